//! `heaptape fragmentation`: how live blocks lie in memory.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::fragmentation;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(20);
    print(strict, |out, style| fragmentation::run(&asked, out, style))
}
