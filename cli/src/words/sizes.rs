//! `heaptape sizes`: how large blocks are.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::sizes;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(16);
    print(strict, |out, style| sizes::run(&asked, out, style))
}
