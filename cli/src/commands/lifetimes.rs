//! `heaptape lifetimes`: shows the distribution of block lifetimes.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::lifetimes;

/// Options of `heaptape lifetimes`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(16);
    print(strict, |out, style| lifetimes::run(&query, out, style))
}
