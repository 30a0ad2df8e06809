//! `heaptape report`: summarizes a recording.

use super::common::{Folding, Names, ProcessArgs, Strict, print};
use super::leaks::Suppress;
use super::mappings::MappingOptions;
use super::thresholds::Thresholds;
use super::{live, newest};
use crate::Outcome;
use heaptape_analyzer::report::{Query, summary};
use std::path::PathBuf;

/// Options of `heaptape report`.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings, folders of processes, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT,
    /// Massif, heap profiles of jemalloc and gperftools [default: the newest recording in
    /// this folder]
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Recordings of the processes that the daemon serves now: those of this name (* and ? are
    /// wildcards), pid or label. The daemon writes what it knows first
    #[arg(long, value_name = "NAME|PID|LABEL", conflicts_with = "paths")]
    live: Option<String>,
    /// Control socket of the daemon, for --live
    #[arg(long, value_name = "PATH", requires = "live")]
    control: Option<PathBuf>,
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
    #[command(flatten)]
    mappings: MappingOptions,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let (origin, processes) = (args.names.origin(), args.folding.of(&args.processes));
    let paths = match args.live {
        Some(which) => live::folders(&which, args.control)?,
        None => newest::or_newest(args.paths)?,
    };
    let mappings = args.mappings.filter();
    let query = Query { paths, json: args.json, processes, origin, mappings, ..Query::default() };
    if args.thresholds.is_given() {
        return args.thresholds.check(&query, None, &args.suppress.options(), args.strict.strict);
    }
    print(args.strict.strict, |out, style| summary::report(&query, out, style))
}
