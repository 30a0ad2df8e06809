//! `heaptape report`: the summary.

use super::asked::{Names, print};
use super::gates::Gates;
use super::leaks::Suppress;
use crate::Outcome;
use heaptape_analyzer::report::{Asked, summary};
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
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    suppress: Suppress,
    #[command(flatten)]
    gates: Gates,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let origin = args.names.origin();
    if args.gates.are_asked() {
        let asked = Asked { paths: args.paths, json: args.json, origin, ..Asked::default() };
        return args.gates.check(&asked, None, &args.suppress.options());
    }
    let paths: Vec<&Path> = args.paths.iter().map(PathBuf::as_path).collect();
    print(|out, style| summary::report(&paths, args.json, &origin, out, style))
}
