//! `heaptape compat dcpidiff`: compares the counts of two sets of profiles, as DCPI's dcpidiff
//! does.

use super::dcpiprof::{Source, outcome, per_cent};
use crate::{Outcome, terminal};
use anyhow::bail;
use heaptape_compat::dcpi::diff;
use std::io::Write;
use std::path::PathBuf;

/// Options of `heaptape compat dcpidiff`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// `[PROCEDURE] FIRST SECOND`, or `[PROCEDURE]` if --first and --second name the sets
    inputs: Vec<PathBuf>,
    /// Profiles, directories and ELF files of the first set
    #[arg(short = 'a', long, num_args = 1.., value_name = "FILE")]
    first: Vec<PathBuf>,
    /// Profiles, directories and ELF files of the second set
    #[arg(short = 'b', long, num_args = 1.., value_name = "FILE")]
    second: Vec<PathBuf>,
    /// Print a line for each source line
    #[arg(long, conflicts_with = "by_image")]
    source_line: bool,
    /// Print a line for each image
    #[arg(short = 'i', long)]
    by_image: bool,
    /// Only this event
    #[arg(short = 's', long, visible_alias = "sort", value_name = "EVENT")]
    event: Option<String>,
    /// Leave out differences below this percentage of the sum
    #[arg(long, value_name = "PERCENT", value_parser = per_cent)]
    range: Option<f64>,
    /// Print only as many lines as account for this percentage of both sets
    #[arg(long, value_name = "PERCENT", value_parser = per_cent)]
    keep: Option<f64>,
    /// Separate columns by commas
    #[arg(long)]
    csl: bool,
    /// Print no heading
    #[arg(long)]
    no_header: bool,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(mut args: Args) -> anyhow::Result<Outcome> {
    if args.first.is_empty() && args.second.is_empty() && args.inputs.len() >= 2 {
        args.second.extend(args.inputs.pop());
        args.first.extend(args.inputs.pop());
    }
    if args.first.is_empty() || args.second.is_empty() || args.inputs.len() > 1 {
        bail!("dcpidiff compares two sets: FIRST SECOND, or --first FILE… --second FILE…");
    }
    let first = args.source.load(args.first)?;
    let second = args.source.load(args.second)?;
    let options = diff::Options {
        procedure: args.inputs.first().map(|procedure| procedure.to_string_lossy().into_owned()),
        by: match (args.source_line, args.by_image) {
            (true, _) => diff::By::Lines,
            (_, true) => diff::By::Images,
            _ => diff::By::Auto,
        },
        event: args.event,
        range: args.range,
        keep: args.keep,
        no_header: args.no_header,
        comma_separated: args.csl,
    };
    let mut out = terminal::stdout();
    diff::print(&first, &second, &options, &mut out)?;
    out.flush()?;
    Ok(outcome(&[&first, &second]))
}
