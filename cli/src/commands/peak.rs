//! `heaptape peak`: lists the call sites of the live bytes at the peak.

use super::common::{Common, print};
use super::mappings::MappingOptions;
use crate::Outcome;
use heaptape_analyzer::report::Query;
use heaptape_reports::peak;

/// Options of `heaptape peak`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    mappings: MappingOptions,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let (strict, mappings) = (args.common.strict(), args.mappings.filter());
    let query = Query { mappings, ..args.common.query(20)? };
    print(strict, |out, style| peak::run(&query, out, style))
}
