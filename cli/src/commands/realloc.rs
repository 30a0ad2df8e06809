//! `heaptape realloc`: shows the cost of reallocations.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::realloc;

/// Options of `heaptape realloc`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(20);
    print(strict, |out, style| realloc::run(&query, out, style))
}
