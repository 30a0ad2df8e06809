//! `heaptape pack`: copies what names a recording's frames into it.

use crate::Outcome;
use heaptape_analyzer::pack::pack;
use heaptape_analyzer::symbols::Origin;
use heaptape_analyzer::text::{bytes, counted};
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// A folder that stands for / where programs and debug files are looked for first
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Ask the servers of DEBUGINFOD_URLS for missing debug information, by elfutils' debuginfod-find
    #[arg(long)]
    debuginfod: bool,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut whole = true;
    for folder in &args.folders {
        let origin = Origin { sysroot: args.sysroot.as_deref().map(Into::into), debuginfod: args.debuginfod };
        let packed = pack(folder, origin)?;
        let (files, size) = (counted(packed.files.len() as u64, "file"), bytes(packed.bytes));
        println!("{}: {files} of {size} packed", folder.display());
        for missing in &packed.missing {
            eprintln!("heaptape: {missing}");
        }
        whole &= packed.missing.is_empty();
    }
    Ok(if whole { Outcome::Done } else { Outcome::Incomplete })
}
