//! `heaptape dump`: any file of any format as plain text, one record a line.

use crate::Outcome;
use heaptape_analyzer::text::Harmless;
use heaptape_analyzer::unpack;
use heaptape_formats::tape::FILE_MAGIC;
use heaptape_formats::{Format, dcpi, dhat, gmon, heaptrack, massif, mptl, mtrc, pprof, tape};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// A file of any format, packed or not; - is standard input
    file: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = Harmless::new(BufWriter::new(std::io::stdout().lock()));
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
    if let Some(cut) = opened.cut {
        eprintln!("heaptape: {}: {cut}", opened.name);
        return Ok(Outcome::Incomplete);
    }
    Ok(Outcome::Done)
}
