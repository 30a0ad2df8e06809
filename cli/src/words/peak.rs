//! `heaptape peak`: who holds the most live bytes.

use super::asked::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::peak;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let asked = args.common.asked(20);
    print(strict, |out, style| peak::run(&asked, out, style))
}
