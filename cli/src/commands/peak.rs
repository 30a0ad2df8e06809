//! `heaptape peak`: lists the call sites of the live bytes at the peak.

use super::common::{Common, print};
use super::mappings::MappingOptions;
use crate::Outcome;
use heaptape_reports::peak;

/// Options of `heaptape peak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    mappings: MappingOptions,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let mut query = args.common.query(20)?;
    query.scope.mappings = args.mappings.filter();
    print(strict, |out, style| peak::run(&query, out, style))
}
