//! `heaptape report`: the summary.

use super::asked::{Folding, Names, ProcessArgs, Strict, print};
use super::gates::Gates;
use super::leaks::Suppress;
use crate::Outcome;
use heaptape_analyzer::report::{Asked, summary};
use std::path::PathBuf;

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
    processes: ProcessArgs,
    #[command(flatten)]
    folding: Folding,
    #[command(flatten)]
    strict: Strict,
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    suppress: Suppress,
    #[command(flatten)]
    gates: Gates,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let (origin, processes) = (args.names.origin(), args.folding.of(&args.processes));
    let asked = Asked { paths: args.paths, json: args.json, processes, origin, ..Asked::default() };
    if args.gates.are_asked() {
        return args.gates.check(&asked, None, &args.suppress.options(), args.strict.strict);
    }
    print(args.strict.strict, |out, style| summary::report(&asked, out, style))
}
