//! `heaptape lifetimes`: how long blocks live.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::lifetimes;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(16);
    print(strict, |out, style| lifetimes::run(&asked, out, style))
}
