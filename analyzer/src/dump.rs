//! Prints a file of any known format as text.

use crate::unpack;
use heaptape_formats::tape::FILE_MAGIC;
use heaptape_formats::{
    Format, dcpi, dhat, foreign, gmon, heap_text, heaptrack, leak_log, massif, mptl, mtrc, pprof, regular, tape,
};
use std::io::{self, Read, Write};
use std::path::Path;

/// The reason why a file was not printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or decompressed.
    #[error(transparent)]
    Unpack(#[from] unpack::Error),
    /// The file has another format. Holds its name.
    #[error("{0}: not a file of a known format")]
    UnknownFormat(String),
    /// The file is of a tool that is known and not read. Holds its name, and what to do.
    #[error("{0}: {1}")]
    Foreign(String, String),
    /// The output cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Prints a file, or standard input if the path is `-`, one record per line. Returns a message
/// about damage to a compressed file, of which the start has been printed.
///
/// # Errors
/// Returns an error if the file cannot be read, if its format is not known, or if `out` fails.
pub fn dump(path: &Path, out: &mut dyn Write) -> Result<Option<String>, Error> {
    // A tape may be larger than memory, so it is read record by record.
    if let Ok(file) = regular::open(path) {
        let mut start = Vec::new();
        if (&file).take(FILE_MAGIC.len() as u64).read_to_end(&mut start).is_ok() && start == FILE_MAGIC {
            tape::dump(&file, out)?;
            return Ok(None);
        }
    }
    let opened = unpack::open(path)?;
    let bytes = &opened.bytes[..];
    let mut out = out;
    match opened.format {
        Some(Format::Mtrc) => mtrc::dump(bytes, out)?,
        Some(Format::Mptl) => mptl::dump(bytes, out)?,
        Some(Format::Gmon) => match gmon::read(bytes, gmon::Hints::default()) {
            Ok(gmon) => gmon::dump(&gmon, &mut out)?,
            Err(error) => writeln!(out, "error {error}")?,
        },
        Some(Format::Dcpi) => drop(dcpi::dump(bytes, None, &mut out)?),
        Some(Format::Tape) => tape::dump(bytes, out)?,
        Some(Format::Pprof) => pprof::dump(bytes, out)?,
        Some(Format::Heaptrack) => heaptrack::dump(bytes, out)?,
        Some(Format::Dhat) => dhat::dump(bytes, out)?,
        Some(Format::Massif) => massif::dump(bytes, out)?,
        Some(Format::HeapText) => heap_text::dump(bytes, out)?,
        Some(Format::LeakLog) => leak_log::dump(bytes, out)?,
        Some(Format::Recording) => out.write_all(bytes)?,
        // Nobody opens a core by its first bytes: `heaptape core` does by its path.
        None | Some(Format::Core) => {
            return Err(match foreign::advice(bytes) {
                Some(advice) => Error::Foreign(opened.name, advice),
                None => Error::UnknownFormat(opened.name),
            });
        }
    }
    Ok(opened.damage.map(|damage| format!("{}: {damage}", opened.name)))
}
