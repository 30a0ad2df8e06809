//! `heaptape report`: summarizes a recording.

use super::common::{Folding, Names, ProcessArgs, Strict, print};
use super::leaks::Suppress;
use super::thresholds::Thresholds;
use crate::Outcome;
use heaptape_analyzer::report::{Query, summary};
use std::path::PathBuf;

/// Options of `heaptape report`.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings, folders of processes, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT,
    /// Massif
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Print JSON instead of text
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
    thresholds: Thresholds,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let (origin, processes) = (args.names.origin(), args.folding.of(&args.processes));
    let query = Query { paths: args.paths, json: args.json, processes, origin, ..Query::default() };
    if args.thresholds.is_given() {
        return args.thresholds.check(&query, None, &args.suppress.options(), args.strict.strict);
    }
    print(args.strict.strict, |out, style| summary::report(&query, out, style))
}
