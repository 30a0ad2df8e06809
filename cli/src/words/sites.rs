//! `heaptape sites`: where memory is allocated.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::sites;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(20);
    print(strict, |out, style| sites::run(&asked, out, style))
}
