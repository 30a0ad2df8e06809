//! `heaptape sizes`: shows the distribution of block sizes.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::sizes;

/// Options of `heaptape sizes`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(16);
    print(strict, |out, style| sizes::run(&query, out, style))
}
