//! `heaptape free-sites`: where memory is given back.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::free_sites;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(20);
    print(strict, |out, style| free_sites::run(&asked, out, style))
}
