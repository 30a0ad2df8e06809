//! `heaptape verify`: 0 whole; 1 readable, with gaps or cut; 2 unreadable.

use super::asked::print;
use crate::Outcome;
use heaptape_analyzer::report::verify;
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// A recording, an image's folder, or a file
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    // Its own statuses: 1 is readable with something missing, and needs no --strict.
    Ok(match print(true, |out, style| verify::run(&args.path, out, style))? {
        Outcome::Incomplete { .. } => Outcome::Partial,
        outcome => outcome,
    })
}
