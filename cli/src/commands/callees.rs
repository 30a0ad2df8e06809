//! `heaptape callees`: lists the functions that a function calls.

pub use super::callers::Args;
use crate::Outcome;
use heaptape_reports::callers::Neighbors;

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    args.print(Neighbors::Callees)
}
