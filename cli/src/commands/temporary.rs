//! `heaptape temporary`: lists call sites of short-lived blocks.

use super::common::Common;
use crate::Outcome;
use heaptape_analyzer::model::temporary::{DEFAULT_EVENTS_BETWEEN, MAX_EVENTS_BETWEEN};
use heaptape_reports::temporary;

/// Options of `heaptape temporary`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Maximum number of events of the same thread between allocation and free; 0 for none
    #[arg(long, value_name = "N", default_value_t = DEFAULT_EVENTS_BETWEEN as u16, value_parser = clap::value_parser!(u16).range(..=MAX_EVENTS_BETWEEN as i64))]
    within: u16,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    args.common.print(20, |query, out, style| temporary::run(query, args.within.into(), out, style))
}
