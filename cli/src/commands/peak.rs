//! `heaptape peak`: lists the call sites of the live bytes at the peak.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::peak;

/// Options of `heaptape peak`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(20);
    print(strict, |out, style| peak::run(&query, out, style))
}
