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
    print(|out, style| verify::run(&args.path, out, style))
}
