//! `heaptape threads`: what each thread allocated and freed.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::threads;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(40);
    print(strict, |out, style| threads::run(&asked, out, style))
}
