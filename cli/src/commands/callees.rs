//! `heaptape callees`: lists the functions that a function calls.

pub(super) use super::callers::Args;
use crate::Outcome;
use heaptape_reports::callers::Neighbors;

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    args.print(Neighbors::Callees)
}
