//! `heaptape timeline`: shows live bytes and blocks over the run.

use super::common::{Common, print};
use super::mappings::MappingOptions;
use crate::Outcome;
use heaptape_reports::timeline;

/// Options of `heaptape timeline`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of slices of the run; --top has no effect here
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slices: u32,
    /// Show what the resident memory consisted of, at up to 24 snapshots of the pages
    #[arg(long)]
    rss: bool,
    #[command(flatten)]
    mappings: MappingOptions,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let mut query = args.common.query(0)?;
    query.scope.mappings = args.mappings.filter();
    print(strict, |out, style| timeline::run(&query, args.slices as usize, args.rss, out, style))
}
