//! `heaptape leaks`: what was never freed, by stack, with a verdict.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::leaks;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Merge stacks whose innermost N frames of the program (wrappers and containers apart) are the same; 0: only equal stacks
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let options = leaks::Options { depth: args.depth, top: args.common.top() };
    let asked = args.common.asked(0);
    print(|out, style| leaks::run(&asked, options, out, style))
}
