//! `heaptape report`: the summary.

use super::asked::print;
use crate::Outcome;
use heaptape_analyzer::report::summary;
use std::path::{Path, PathBuf};

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings, folders of images, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT, Massif
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let paths: Vec<&Path> = args.paths.iter().map(PathBuf::as_path).collect();
    print(|out, style| summary::report(&paths, args.json, out, style))
}
