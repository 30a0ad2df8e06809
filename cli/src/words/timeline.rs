//! `heaptape timeline`: live bytes and blocks over the run.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::timeline;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Parts that the run is cut into; --top does not matter here
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slices: u32,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(0);
    print(strict, |out, style| timeline::run(&asked, args.slices as usize, out, style))
}
