//! `heaptape sites`: lists call sites by allocated bytes, or functions with what they call.

use super::common::Common;
use crate::Outcome;
use heaptape_reports::{inclusive, sites};

/// Options of `heaptape sites`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// List functions by what they allocate together with the functions that they call
    #[arg(long, alias = "cumulative", conflicts_with = "by")]
    inclusive: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let report = if args.inclusive { inclusive::run } else { sites::run };
    args.common.print(20, report)
}
