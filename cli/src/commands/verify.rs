//! `heaptape verify`: checks a recording. Status 0: complete; 1: readable with something missing;
//! 2: unreadable.

use super::common::print;
use crate::Outcome;
use heaptape_analyzer::report::verify;
use std::path::PathBuf;

/// Options of `heaptape verify`.
#[derive(clap::Args)]
pub struct Args {
    /// Recording, folder of a process, or file
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    // An incomplete recording has status 1 here, with and without --strict.
    Ok(match print(true, |out, style| verify::run(&args.path, out, style))? {
        Outcome::Incomplete { .. } => Outcome::Partial,
        outcome => outcome,
    })
}
