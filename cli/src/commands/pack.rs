//! `heaptape pack`: copies the symbols of a recording into it.

use super::common::Names;
use crate::Outcome;
use heaptape_analyzer::pack;
use heaptape_analyzer::text::{bytes, counted};
use std::path::PathBuf;

/// Options of `heaptape pack`.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings to pack
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    #[command(flatten)]
    names: Names,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut is_complete = true;
    for folder in &args.folders {
        let packed = pack(folder, args.names.origin())?;
        let (files, size) = (counted(packed.files.len() as u64, "file"), bytes(packed.bytes));
        println!("{}: {files} of {size} packed", folder.display());
        for missing in &packed.missing {
            eprintln!("heaptape: {missing}");
        }
        is_complete &= packed.missing.is_empty();
    }
    Ok(if is_complete { Outcome::Done } else { Outcome::Partial })
}
