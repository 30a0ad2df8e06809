//! `heaptape compat dcpiscan`: lists programs and libraries with their identities, as DCPI's dcpiscan
//! does.

use crate::{Outcome, terminal};
use heaptape_compat::dcpi::scan;
use std::io::Write;
use std::path::PathBuf;

/// Options of `heaptape compat dcpiscan`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Programs, libraries, and directories that are searched for them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Separate columns by commas
    #[arg(long)]
    csl: bool,
    /// Print no heading
    #[arg(long)]
    no_header: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = terminal::stdout();
    let faults = scan::print(&args.paths, args.csl, args.no_header, &mut out)?;
    out.flush()?;
    for fault in &faults {
        eprintln!("heaptape: {fault}");
    }
    Ok(if faults.is_empty() { Outcome::Done } else { Outcome::Partial })
}
