//! Source lines and inlined functions from DWARF, by addr2line. Made only for modules of which a frame is printed.

use super::elf::Elf;
use addr2line::Context;
use gimli::{EndianArcSlice, RunTimeEndian};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Frames that one address may expand to.
const MOST_INLINED: usize = 64;

type Slice = EndianArcSlice<RunTimeEndian>;

/// The debug information of one file.
pub struct Debug(Context<Slice>);

/// A frame as DWARF knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The symbol, or the plain name where the compiler gave no other.
    pub symbol: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
}

impl Debug {
    /// Reads the sections of a file, at most `most` bytes of `.debug_info`.
    pub fn read(elf: &Elf, path: &Path, most: u64) -> Option<Debug> {
        let size = elf.section_size(".debug_info");
        if size == 0 || size > most {
            return None;
        }
        let mut dwarf = gimli::Dwarf::load(|id| load(elf, id.name())).ok()?;
        if let Some(shared) = elf.alternative_link().and_then(|link| Elf::open(&beside(path, &link))) {
            dwarf.load_sup(|id| load(&shared, id.name())).ok()?;
        }
        Context::from_dwarf(dwarf).ok().map(Debug)
    }

    /// The frames of a link-time address, innermost (most deeply inlined) first.
    pub fn find(&self, address: u64) -> Vec<Source> {
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let symbol = frame.function.as_ref().and_then(|name| name.raw_name().ok().map(|name| name.into_owned()));
            let (file, line) = match &frame.location {
                Some(location) => (location.file.map(str::to_string), location.line.filter(|&line| line > 0)),
                None => (None, None),
            };
            found.push(Source { symbol, file, line });
            if found.len() == MOST_INLINED {
                break;
            }
        }
        found
    }
}

fn load(elf: &Elf, name: &str) -> Result<Slice, gimli::Error> {
    let endian = if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    Ok(EndianArcSlice::new(Arc::from(elf.section(name)), endian))
}

/// A link that is relative to the file that holds it.
fn beside(path: &Path, link: &str) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from(link), |folder| folder.join(link))
}
