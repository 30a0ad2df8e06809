//! `heaptape report`: summarizes a recording.

use super::common::{Folding, Names, ProcessArgs, Recordings, Strict, print};
use super::leaks::Suppress;
use super::mappings::MappingOptions;
use super::thresholds::Thresholds;
use crate::Outcome;
use heaptape_analyzer::report::{Query, Scope, View, summary};

/// Options of `heaptape report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    recordings: Recordings,
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

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let (origin, processes) = (args.names.origin(), args.folding.of(&args.processes));
    let paths = args.recordings.paths()?;
    let scope = Scope { paths, processes, mappings: args.mappings.filter(), ..Scope::default() };
    let query = Query { scope, view: View { json: args.json, origin, ..View::default() }, ..Query::default() };
    if args.thresholds.is_given() {
        return args.thresholds.check(&query, None, &args.suppress.options(), args.strict.strict);
    }
    print(args.strict.strict, |out, style| summary::report(&query, out, style))
}
