//! `heaptape realloc`: what resizes cost.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::realloc;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(20);
    print(strict, |out, style| realloc::run(&asked, out, style))
}
