//! `heaptape fragmentation`: shows how live blocks are spread over pages.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::fragmentation;

/// Options of `heaptape fragmentation`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(20);
    print(strict, |out, style| fragmentation::run(&query, out, style))
}
