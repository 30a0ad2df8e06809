//! Reads files of other tools as profiles: call sites with sums, and totals. Reports by stack work
//! on them; a report that needs events says that there are none.
//!
//! An importer is a module with a function `read` and an entry in the list below. It takes memory
//! for the call stacks of the file, no more.

mod dhat;
mod frame_text;
mod heap_text;
mod heaptrack;
mod leak_log;
mod link_bias;
pub(crate) use link_bias::{link_bias, relink};
mod massif;
mod pprof;

use crate::stacks::{Named, Site, Stacks};
use heaptape_formats::tape::{SiteSums, Totals};
use heaptape_formats::{Ending, Error, Format, ReadError};
use rustc_hash::FxHashMap;
use std::io::BufRead;

type ReadResult = Result<(Imported, Ending), Error>;
/// A reader of a complete file in memory.
type ReadFn = fn(&[u8]) -> ReadResult;

/// The formats that are read at once. heaptrack's format is read as a stream.
const READERS: [(Format, ReadFn); 5] = [
    (Format::Pprof, pprof::read),
    (Format::Dhat, dhat::read),
    (Format::Massif, massif::read),
    (Format::HeapText, heap_text::read),
    (Format::LeakLog, leak_log::read),
];

/// Returns whether files of a format can be imported.
pub fn is_supported(format: Format) -> bool {
    format == Format::Heaptrack || READERS.iter().any(|(known, _)| *known == format)
}

/// The content of an imported file.
#[derive(Debug, Default)]
pub struct Imported {
    /// The call sites of the file.
    pub stacks: Stacks,
    pub sums: Vec<SiteSums>,
    /// The totals over all sites.
    pub totals: Totals,
    /// Whether the sums and totals include the peak.
    pub has_peak: bool,
    /// Process ID; 0 if unknown.
    pub pid: u32,
    /// The command line, or the path of the program.
    pub argv: Vec<String>,
    /// Duration of the run in nanoseconds.
    pub duration_ns: u64,
    /// Start time in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Rules of LSan that the file has for its own leaks.
    pub suppressions: Vec<String>,
    /// What the reader of a report must know of the numbers: what they are estimated from, or leave
    /// out.
    pub notes: Vec<String>,
}

/// Imports heaptrack's format, which is read as a stream.
///
/// # Errors
/// Returns an error if the stream cannot be read, or is not a file of the format.
pub(crate) fn from_stream(from: impl BufRead) -> Result<(Imported, Ending), ReadError> {
    heaptrack::read(from)
}

/// Imports decompressed bytes in memory.
///
/// # Examples
///
/// ```
/// use heaptape_analyzer::import;
/// use heaptape_formats::Format;
///
/// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/import/valgrind-dhat.json"))?;
/// let (imported, ending) = import::from_bytes(Format::Dhat, &bytes)?;
/// assert!(ending.is_complete());
/// assert_eq!(imported.totals.live_bytes, 1001);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the bytes are not a file of the format.
pub fn from_bytes(format: Format, bytes: &[u8]) -> Result<(Imported, Ending), Error> {
    if let Some((_, read)) = READERS.iter().find(|(known, _)| *known == format) {
        return read(bytes);
    }
    heaptrack::read(bytes).map_err(|failure| match failure {
        ReadError::Format(error) => error,
        ReadError::Io(error) => {
            Error { format, offset: 0, field: "bytes", kind: heaptape_formats::Kind::Text(error.to_string()) }
        }
    })
}

/// Collects call sites. Equal sites are merged.
#[derive(Debug, Default)]
struct Sites {
    stacks: Stacks,
    known: FxHashMap<Site, u32>,
    named: FxHashMap<Named, u32>,
    sums: FxHashMap<u32, SiteSums>,
}

impl Sites {
    /// Returns the site of a frame that the file names. Adds the site if it is new.
    fn named(&mut self, parent: u32, address: u64, named: Named) -> u32 {
        let stacks = &mut self.stacks;
        let number = *self.named.entry(named).or_insert_with_key(|named| {
            stacks.named.push(named.clone());
            stacks.named.len() as u32
        });
        self.site(Site { parent, named: number, address, ..Site::default() })
    }

    /// Returns the number of a site. Adds the site if it is new.
    fn site(&mut self, site: Site) -> u32 {
        let stacks = &mut self.stacks;
        *self.known.entry(site).or_insert_with(|| stacks.push(site))
    }

    fn sums(&mut self, site: u32) -> &mut SiteSums {
        self.sums.entry(site).or_insert_with(|| SiteSums { site, ..SiteSums::default() })
    }

    /// Completes the import. The totals are the sums over all sites.
    fn finish(self, has_peak: bool) -> Imported {
        let mut sums: Vec<SiteSums> = self.sums.into_values().collect();
        sums.sort_by_key(|row| row.site);
        let add = |of: fn(&SiteSums) -> u64| sums.iter().fold(0u64, |sum, row| sum.saturating_add(of(row)));
        let totals = Totals {
            allocs: add(|row| row.allocs),
            frees: add(|row| row.frees),
            bytes_allocated: add(|row| row.bytes),
            live_blocks: add(|row| row.allocs.saturating_sub(row.frees)),
            live_bytes: add(|row| row.bytes.saturating_sub(row.freed_bytes)),
            peak_bytes: add(|row| row.peak_bytes),
            peak_blocks: add(|row| row.peak_blocks),
            ..Totals::default()
        };
        Imported { stacks: self.stacks, sums, totals, has_peak, ..Imported::default() }
    }
}

/// Splits a command line at white space.
fn split_command(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_string).collect()
}
