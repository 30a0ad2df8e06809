//! `heaptape pack`: copies what names a recording's frames into it.

use super::asked::Names;
use crate::Outcome;
use heaptape_analyzer::pack::pack;
use heaptape_analyzer::text::{bytes, counted};
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    #[command(flatten)]
    names: Names,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut whole = true;
    for folder in &args.folders {
        let packed = pack(folder, args.names.origin())?;
        let (files, size) = (counted(packed.files.len() as u64, "file"), bytes(packed.bytes));
        println!("{}: {files} of {size} packed", folder.display());
        for missing in &packed.missing {
            eprintln!("heaptape: {missing}");
        }
        whole &= packed.missing.is_empty();
    }
    Ok(if whole { Outcome::Done } else { Outcome::Partial })
}
