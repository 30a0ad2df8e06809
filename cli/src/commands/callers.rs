//! `heaptape callers`: lists the functions that call a function.

use super::common::Common;
use crate::Outcome;
use heaptape_reports::callers::{self, Neighbors};

/// Options of `heaptape callers` and `heaptape callees`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The function: its name, or a part of it (* and ? are wildcards, ^ and $ anchor it)
    #[arg(value_name = "FUNCTION")]
    name: String,
    #[command(flatten)]
    common: Common,
}

impl Args {
    /// Prints the callers or the callees.
    pub(crate) fn print(self, which: Neighbors) -> anyhow::Result<Outcome> {
        self.common.ensure_function_first(&self.name)?;
        self.common.print(20, |query, out, style| callers::run(query, &self.name, which, out, style))
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    args.print(Neighbors::Callers)
}
