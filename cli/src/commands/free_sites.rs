//! `heaptape free-sites`: lists call sites that free.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::free_sites;

/// Options of `heaptape free-sites`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(20);
    print(strict, |out, style| free_sites::run(&query, out, style))
}
