//! `heaptape compat dcpicat`: prints DCPI profiles as text, as DCPI's dcpicat does.

use super::dcpiprof::{Source, outcome};
use crate::{Outcome, terminal};
use heaptape_compat::dcpi::cat;
use std::io::Write;
use std::path::PathBuf;

/// Options of `heaptape compat dcpicat`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Recordings, profiles, directories of profiles; - is standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print each file separately, with all header lines and chunks
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = terminal::stdout();
    if args.raw {
        let faults = cat::print_raw(&args.files, args.source.stride, &mut out)?;
        out.flush()?;
        for fault in &faults {
            eprintln!("heaptape: {fault}");
        }
        return Ok(if faults.is_empty() { Outcome::Done } else { Outcome::Partial });
    }
    let set = args.source.load(args.files)?;
    cat::print(&set, &mut out)?;
    out.flush()?;
    Ok(outcome(&[&set]))
}
