//! `heaptape source`: prints the source of a function, with what each line allocates.

use super::common::Common;
use crate::Outcome;
use heaptape_reports::source::{self, Options};
use std::path::PathBuf;

/// Options of `heaptape source`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The function: its name, or a part of it (* and ? are wildcards, ^ and $ anchor it)
    #[arg(value_name = "FUNCTION")]
    name: String,
    /// Folder with the source files, if they are not where the program was built; may be repeated
    #[arg(long, value_name = "DIR")]
    source_root: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    args.common.ensure_function_first(&args.name)?;
    let options = Options { function: args.name, roots: args.source_root };
    args.common.print(0, |query, out, style| source::run(query, &options, out, style))
}
