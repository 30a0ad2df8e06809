//! `heaptape dump`: prints a file of any known format as text, one record per line.

use crate::{Outcome, terminal};
use heaptape_analyzer::{DumpError, dump};
use heaptape_formats::recording::{PROFILE, RECORDING, TAPE, TRACE};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Options of `heaptape dump`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of any known format, compressed or not; - is standard input
    file: PathBuf,
}

/// Maximum number of files in a message.
const MAX_LISTED: usize = 6;

/// Returns the message for a folder: the files in it that can be printed.
fn advice(folder: &Path) -> String {
    let mut files = Vec::new();
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_dumped = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.is_file() && [TAPE, TRACE, PROFILE, RECORDING].iter().any(|known| name.starts_with(known))
    };
    files.extend(entries(folder).filter(is_dumped));
    let folders = entries(folder).filter(|path| path.is_dir());
    files.extend(folders.flat_map(|folder| entries(&folder).filter(is_dumped).collect::<Vec<_>>()));
    files.sort();
    if files.is_empty() {
        return format!("{} is a directory but not a recording: name a file", folder.display());
    }
    let names: Vec<String> = files.iter().take(MAX_LISTED).map(|path| format!("\n  {}", path.display())).collect();
    let more = files.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    format!("{} is a directory: name one of its files:{}{more}", folder.display(), names.concat())
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = terminal::stdout();
    if args.file.is_dir() {
        anyhow::bail!("{}", advice(&args.file));
    }
    let damage = dump(&args.file, &mut out).map_err(|error| match error {
        DumpError::Io(error) => anyhow::Error::new(error),
        error => anyhow::Error::new(error),
    })?;
    out.flush()?;
    if let Some(damage) = damage {
        eprintln!("heaptape: {damage}");
        return Ok(Outcome::Partial);
    }
    Ok(Outcome::Done)
}
