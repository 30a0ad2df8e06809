//! Imports files of other tools as profiles: call sites with sums, and totals. Reports that use
//! sums by stack work on them. Reports that need events report that there are none.
//!
//! An importer is a module with a function `read` and an entry in the list below. Its memory is
//! proportional to the number of call stacks in the file.

mod dhat;
mod frame_text;
mod heaptrack;
mod massif;
mod pprof;

use crate::load::{Clock, Events, Failure, Process, io_failure};
use crate::missing::Missing;
use crate::stacks::{Named, Site, Stacks};
use crate::unpack;
use heaptape_formats::tape::{SiteSums, Totals};
use heaptape_formats::{Ending, Error, Format};
use rustc_hash::FxHashMap;
use std::path::Path;

/// The result of a reader.
type ReadResult = Result<(Imported, Ending), Error>;
/// A reader of a complete file in memory.
type ReadFn = fn(&[u8]) -> ReadResult;

/// The formats that are read at once. heaptrack's format is read as a stream.
const READERS: [(Format, ReadFn); 3] =
    [(Format::Pprof, pprof::read), (Format::Dhat, dhat::read), (Format::Massif, massif::read)];

/// Returns whether files of a format can be imported.
pub fn is_supported(format: Format) -> bool {
    format == Format::Heaptrack || READERS.iter().any(|(known, _)| *known == format)
}

/// The content of an imported file.
#[derive(Debug, Default)]
pub struct Imported {
    /// The call sites of the file.
    pub stacks: Stacks,
    /// The sums of each site.
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
}

/// Imports a file of another tool.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn from_path(path: &Path, format: Format) -> Result<Process, Failure> {
    let format_error = |error| Failure::Format { path: path.display().to_string(), error };
    let (imported, ending, damage) = match READERS.iter().find(|(known, _)| *known == format) {
        Some((_, read)) => {
            let unknown = |error: unpack::Error| {
                let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Failure::Unknown { path: path.display().to_string(), why }
            };
            let opened = unpack::open(path).map_err(unknown)?;
            let (imported, ending) = read(&opened.bytes).map_err(format_error)?;
            (imported, ending, opened.damage)
        }
        None => {
            let from = crate::load::bare::open(path).map_err(|error| io_failure(path, error))?;
            match heaptrack::read(std::io::BufReader::with_capacity(1 << 18, from)) {
                Ok((imported, ending)) => (imported, ending, None),
                Err(heaptape_formats::ReadError::Io(error)) => return Err(io_failure(path, error)),
                Err(heaptape_formats::ReadError::Format(error)) => return Err(format_error(error)),
            }
        }
    };
    Ok(imported.process(path, ending, damage))
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
        heaptape_formats::ReadError::Format(error) => error,
        heaptape_formats::ReadError::Io(error) => {
            Error { format, offset: 0, field: "bytes", kind: heaptape_formats::Kind::Text(error.to_string()) }
        }
    })
}

impl Imported {
    fn process(self, path: &Path, ending: Ending, damage: Option<String>) -> Process {
        let has_peak = self.has_peak;
        let mut process =
            Process { path: path.to_path_buf(), events: Events::Imported { has_peak }, ..Process::nothing() };
        process.about.folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        process.about.pid = self.pid;
        process.about.exe = self.argv.first().cloned().unwrap_or_default();
        process.about.argv = self.argv;
        // Timestamps are nanoseconds after the start.
        let ticks_per_second = if self.duration_ns > 0 { 1_000_000_000 } else { 0 };
        process.clock = Clock { ticks_per_second, start_tick: 0, start_unix_ns: self.started_unix_ns };
        process.tape.last_tick = self.duration_ns;
        process.tape.stacks = self.stacks;
        process.sums = Some((self.totals, self.sums));
        let truncated_at = match (ending, damage) {
            (_, Some(damage)) => Some(damage),
            (Ending::Truncated { offset, field }, None) => Some(format!("offset {offset} ({field})")),
            (Ending::Complete, None) => None,
        };
        if let Some(at) = truncated_at {
            process.missing.push(Missing::Truncated { name: process.about.folder.clone(), at });
        }
        process
    }
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

    /// Returns the sums of a site.
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
