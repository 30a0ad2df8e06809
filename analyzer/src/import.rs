//! Other tools' files as what a profile loads to: call sites with sums, and the totals. Whatever asks for sums by stack works on them;
//! what needs events says that there are none.
//!
//! An import is a file here with `read`, and a line in the list below. Memory follows the file's stacks.

mod dhat;
mod frame_text;
mod heaptrack;
mod massif;
mod pprof;

use crate::load::{Clock, Events, Failure, Image, io_failure};
use crate::missing::Missing;
use crate::stacks::{Named, Site, Stacks};
use crate::unpack;
use heaptape_formats::tape::{SiteSums, Totals};
use heaptape_formats::{Ending, Error, Format};
use rustc_hash::FxHashMap;
use std::path::Path;

/// What a reader gives.
type ReadResult = Result<(Imported, Ending), Error>;
/// A reader of bytes.
type ReadFn = fn(&[u8]) -> ReadResult;

/// THE list: formats whose bytes are read at once. heaptrack's is read as a stream.
const READERS: [(Format, ReadFn); 3] =
    [(Format::Pprof, pprof::read), (Format::Dhat, dhat::read), (Format::Massif, massif::read)];

/// Whether files of a format are imported.
pub fn is_supported(format: Format) -> bool {
    format == Format::Heaptrack || READERS.iter().any(|(known, _)| *known == format)
}

/// What an import knows.
#[derive(Debug, Default)]
pub struct Imported {
    /// Call sites.
    pub stacks: Stacks,
    /// Sums by site.
    pub sums: Vec<SiteSums>,
    /// Totals.
    pub totals: Totals,
    /// Whether sums and totals know the peak.
    pub has_peak: bool,
    /// Process id; 0 when not known.
    pub pid: u32,
    /// The command line, or the program's path.
    pub argv: Vec<String>,
    /// Length of the run, nanoseconds.
    pub duration_ns: u64,
    /// Start, nanoseconds since 1970.
    pub started_unix_ns: u64,
}

/// The file as an image.
///
/// # Errors
/// When it cannot be read.
pub fn from_path(path: &Path, format: Format) -> Result<Image, Failure> {
    let failed = |error| Failure::Format { path: path.display().to_string(), error };
    let (imported, ending, damage) = match READERS.iter().find(|(known, _)| *known == format) {
        Some((_, read)) => {
            let unknown = |error: unpack::Error| {
                let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Failure::Unknown { path: path.display().to_string(), why }
            };
            let opened = unpack::open(path).map_err(unknown)?;
            let (imported, ending) = read(&opened.bytes).map_err(failed)?;
            (imported, ending, opened.damage)
        }
        None => {
            let from = crate::load::bare::open(path).map_err(|error| io_failure(path, error))?;
            match heaptrack::read(std::io::BufReader::with_capacity(1 << 18, from)) {
                Ok((imported, ending)) => (imported, ending, None),
                Err(heaptape_formats::heaptrack::Failure::Io(error)) => return Err(io_failure(path, error)),
                Err(heaptape_formats::heaptrack::Failure::Format(error)) => return Err(failed(error)),
            }
        }
    };
    Ok(imported.image(path, ending, damage))
}

/// The same of bytes that lie in memory, unpacked.
///
/// # Errors
/// When they are no file of the format.
pub fn from_bytes(format: Format, bytes: &[u8]) -> Result<(Imported, Ending), Error> {
    if let Some((_, read)) = READERS.iter().find(|(known, _)| *known == format) {
        return read(bytes);
    }
    heaptrack::read(bytes).map_err(|failure| match failure {
        heaptape_formats::heaptrack::Failure::Format(error) => error,
        heaptape_formats::heaptrack::Failure::Io(error) => {
            Error { format, offset: 0, field: "bytes", kind: heaptape_formats::Kind::Text(error.to_string()) }
        }
    })
}

impl Imported {
    fn image(self, path: &Path, ending: Ending, damage: Option<String>) -> Image {
        let has_peak = self.has_peak;
        let mut image = Image { path: path.to_path_buf(), events: Events::Imported { has_peak }, ..Image::nothing() };
        image.about.folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        image.about.pid = self.pid;
        image.about.exe = self.argv.first().cloned().unwrap_or_default();
        image.about.argv = self.argv;
        // Times are told in nanoseconds after the start.
        let ticks_per_second = if self.duration_ns > 0 { 1_000_000_000 } else { 0 };
        image.clock = Clock { ticks_per_second, start_tick: 0, start_unix_ns: self.started_unix_ns };
        image.tape.last_tick = self.duration_ns;
        image.tape.stacks = self.stacks;
        image.sums = Some((self.totals, self.sums));
        let at = match (ending, damage) {
            (_, Some(damage)) => Some(damage),
            (Ending::Cut { offset, field }, None) => Some(format!("offset {offset} ({field})")),
            (Ending::Complete, None) => None,
        };
        if let Some(at) = at {
            image.missing.push(Missing::Cut { name: image.about.folder.clone(), at });
        }
        image
    }
}

/// Call sites in the making, each once.
#[derive(Debug, Default)]
struct Sites {
    stacks: Stacks,
    known: FxHashMap<Site, u32>,
    named: FxHashMap<Named, u32>,
    sums: FxHashMap<u32, SiteSums>,
}

impl Sites {
    /// A frame that the file names.
    fn named(&mut self, parent: u32, address: u64, named: Named) -> u32 {
        let stacks = &mut self.stacks;
        let number = *self.named.entry(named).or_insert_with_key(|named| {
            stacks.named.push(named.clone());
            stacks.named.len() as u32
        });
        self.site(Site { parent, named: number, address, ..Site::default() })
    }

    fn site(&mut self, site: Site) -> u32 {
        let stacks = &mut self.stacks;
        *self.known.entry(site).or_insert_with(|| stacks.push(site))
    }

    fn sums(&mut self, site: u32) -> &mut SiteSums {
        self.sums.entry(site).or_insert_with(|| SiteSums { site, ..SiteSums::default() })
    }

    /// What the rows add up to becomes the totals.
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

/// A command line as the split_command that stand between blanks.
fn split_command(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_string).collect()
}
