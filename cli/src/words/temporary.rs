//! `heaptape temporary`: blocks freed with nothing between.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::model::temporary::MOST_BETWEEN;
use heaptape_analyzer::report::temporary;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Freed with at most N events of the same thread between
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=MOST_BETWEEN as i64))]
    within: u16,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(20);
    print(strict, |out, style| temporary::run(&asked, args.within.into(), out, style))
}
