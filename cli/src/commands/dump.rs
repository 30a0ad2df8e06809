//! `heaptape dump`: prints a file of any known format as text, one record per line.

use crate::{Outcome, terminal};
use heaptape_analyzer::unpack;
use heaptape_formats::recording::{PROFILE, RECORDING, TAPE, TRACE};
use heaptape_formats::tape::FILE_MAGIC;
use heaptape_formats::{Format, dcpi, dhat, gmon, heaptrack, massif, mptl, mtrc, pprof, tape};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Options of `heaptape dump`.
#[derive(clap::Args)]
pub struct Args {
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

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = terminal::stdout();
    if args.file.is_dir() {
        anyhow::bail!("{}", advice(&args.file));
    }
    // A tape may be larger than memory, so it is read record by record.
    if let Ok(file) = File::open(&args.file) {
        let mut start = Vec::new();
        if (&file).take(FILE_MAGIC.len() as u64).read_to_end(&mut start).is_ok() && start == FILE_MAGIC {
            tape::dump(&file, &mut out)?;
            out.flush()?;
            return Ok(Outcome::Done);
        }
    }
    let opened = unpack::open(&args.file)?;
    let bytes = &opened.bytes[..];
    match opened.format {
        Some(Format::Mtrc) => mtrc::dump(bytes, &mut out)?,
        Some(Format::Mptl) => mptl::dump(bytes, &mut out)?,
        Some(Format::Gmon) => match gmon::read(bytes, gmon::Hints::default()) {
            Ok(gmon) => gmon::dump(&gmon, &mut out)?,
            Err(error) => writeln!(out, "error {error}")?,
        },
        Some(Format::Dcpi) => drop(dcpi::dump(bytes, None, &mut out)?),
        Some(Format::Tape) => tape::dump(bytes, &mut out)?,
        Some(Format::Pprof) => pprof::dump(bytes, &mut out)?,
        Some(Format::Heaptrack) => heaptrack::dump(bytes, &mut out)?,
        Some(Format::Dhat) => dhat::dump(bytes, &mut out)?,
        Some(Format::Massif) => massif::dump(bytes, &mut out)?,
        Some(Format::Recording) => out.write_all(bytes)?,
        None => anyhow::bail!("{}: not a file of a known format", opened.name),
    }
    out.flush()?;
    if let Some(damage) = opened.damage {
        eprintln!("heaptape: {}: {damage}", opened.name);
        return Ok(Outcome::Partial);
    }
    Ok(Outcome::Done)
}
