//! `heaptape sites`: lists call sites by allocated bytes.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::sites;

/// Options of `heaptape sites`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(20);
    print(strict, |out, style| sites::run(&query, out, style))
}
