//! `heaptape pack`: copies the symbols of a recording into it, or writes the recording to one file.

use super::common::Names;
use super::newest;
use crate::Outcome;
use anyhow::Context;
use heaptape_analyzer::text::{bytes, counted};
use heaptape_analyzer::{has_names, pack, write_archive};
use std::path::{Path, PathBuf};

/// Options of `heaptape pack`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Recordings to pack [default: the newest one in this folder]
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Write the recording to this file, which all commands read as they read the directory
    #[arg(long, value_name = "FILE.heaptape")]
    to: Option<PathBuf>,
    #[command(flatten)]
    names: Names,
}

pub(super) fn run(mut args: Args) -> anyhow::Result<Outcome> {
    args.folders = newest::or_newest(args.folders)?;
    if let (Some(to), [folder]) = (&args.to, &args.folders[..]) {
        // Old and interrupted recordings may have no names of their own.
        let is_complete = has_names(folder)? || copy_symbols(folder, &args.names)?;
        write(folder, to)?;
        return Ok(if is_complete { Outcome::Done } else { Outcome::Partial });
    }
    if args.to.is_some() {
        anyhow::bail!("--to takes one recording: a file holds only one");
    }
    let mut is_complete = true;
    for folder in &args.folders {
        is_complete &= copy_symbols(folder, &args.names)?;
    }
    Ok(if is_complete { Outcome::Done } else { Outcome::Partial })
}

/// Copies the files with the symbols of a recording into it. Returns whether none is missing.
fn copy_symbols(folder: &Path, names: &Names) -> anyhow::Result<bool> {
    let packed = pack(folder, names.origin())?;
    let (files, size) = (counted(packed.files.len() as u64, "file"), bytes(packed.bytes));
    println!("{}: {files} of {size} packed", folder.display());
    for missing in &packed.missing {
        eprintln!("heaptape: {missing}");
    }
    Ok(packed.missing.is_empty())
}

/// Writes a recording to one file.
///
/// # Errors
/// The recording cannot be read, or the file exists or cannot be written.
pub(super) fn write(folder: &Path, to: &Path) -> anyhow::Result<()> {
    let size = write_archive(folder, to).with_context(|| format!("cannot pack {}", folder.display()))?;
    println!("{}: {}", to.display(), bytes(size));
    Ok(())
}
