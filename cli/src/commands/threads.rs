//! `heaptape threads`: shows what each thread allocated and freed.

use super::common::{Common, print};
use crate::Outcome;
use heaptape_analyzer::report::threads;

/// Options of `heaptape threads`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let strict = args.common.strict();
    let query = args.common.query(40);
    print(strict, |out, style| threads::run(&query, out, style))
}
