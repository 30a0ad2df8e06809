//! Reads traces and profiles without a tape: files of mpatrol, or of a damaged recording. A trace
//! has no stacks, and a profile has no order of events.

use super::chunk::event_of;
use crate::event::{Event, Span};
use crate::missing::Missing;
use crate::stacks::{Named, Site, Stacks};
use crate::unpack::Compression;
use heaptape_formats::mtrc::{self, Record};
use heaptape_formats::tape::{Codec, SiteSums, Totals};
use heaptape_formats::{Ending, Result, mptl, regular};
use rustc_hash::FxHashMap;
use std::io::Read;
use std::path::Path;

/// Number of events in a batch.
const BATCH: usize = 16 * 1024;

/// Thread numbers for reports. Small numbers of the trace are used as they are. Others, such as the
/// `pthread_self()` addresses that mpatrol's library writes, are numbered from 1.
#[derive(Debug, Default)]
struct Threads(FxHashMap<u64, u32>);

impl Threads {
    fn number(&mut self, thread: u64) -> u32 {
        match u32::try_from(thread) {
            Ok(small) => small,
            Err(_) => {
                let next = self.0.len() as u32 + 1;
                *self.0.entry(thread).or_insert(next)
            }
        }
    }
}

/// Sites that are created from the names in a trace.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: FxHashMap<Named, u32>,
    /// The last location and its site, because most events have the location of the previous one.
    last: (Named, u32),
}

impl Names {
    fn site(&mut self, location: &mtrc::Location, stacks: &mut Stacks) -> u32 {
        let (Some(function), file) = (location.function, location.file) else { return 0 };
        let file = file.unwrap_or_default();
        let (last, number) = &self.last;
        if *number != 0 && last.function == function && last.file == file && last.line == location.line {
            return *number;
        }
        let named = Named { function: function.to_vec(), file: file.to_vec(), line: location.line };
        let number = *self.numbers.entry(named.clone()).or_insert_with(|| {
            stacks.named.push(named.clone());
            stacks.push(Site { named: stacks.named.len() as u32, ..Site::default() })
        });
        self.last = (named, number);
        number
    }
}

/// Returns the sites that a trace names, and the number of its events. Reads the complete trace.
pub(crate) fn named_sites(path: &Path) -> (Stacks, u64) {
    let mut stacks = Stacks::default();
    let (mut names, mut events) = (Names::default(), 0);
    walk(path, |record| {
        if let Some((location, _)) = location_of(record) {
            names.site(location, &mut stacks);
            events += 1;
        }
        true
    });
    (stacks, events)
}

/// Returns the location of an event, and whether the event allocates a block.
fn location_of<'a, 'b>(record: &'a Record<'b>) -> Option<(&'a mtrc::Location<'b>, bool)> {
    match record {
        Record::Alloc { location, .. } | Record::Resize { location, .. } => Some((location, true)),
        Record::Free { location, .. } => Some((location, false)),
        _ => None,
    }
}

/// Calls `each` for the records of a trace file, compressed or not, until it returns false. Returns
/// the error that ended the file early.
pub(crate) fn walk(path: &Path, mut each: impl FnMut(&Record) -> bool) -> Option<Missing> {
    let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = |why: String| Some(Missing::File { name: name(), why });
    let reader = match open(path) {
        Ok(reader) => reader,
        Err(error) => return file(error.to_string()),
    };
    let mut stream = match mtrc::Stream::new(reader) {
        Ok(stream) => stream,
        Err(failure) => return file(failure.to_string()),
    };
    loop {
        match stream.next() {
            Ok(Some(record)) => {
                if !each(&record) {
                    return None;
                }
            }
            Ok(None) => break,
            Err(failure) => return Some(Missing::Truncated { name: name(), at: failure.to_string() }),
        }
    }
    match stream.ending() {
        Some(Ending::Truncated { offset, field }) => {
            Some(Missing::Truncated { name: name(), at: format!("offset {offset} ({field})") })
        }
        _ => None,
    }
}

/// Opens a file and decompresses it while it is read.
///
/// # Errors
/// Returns an error if the file cannot be opened or its first bytes cannot be read.
pub fn open(path: &Path) -> std::io::Result<Box<dyn Read>> {
    unpacking(Box::new(regular::open_once(path)?))
}

/// Returns a reader that decompresses a stream, if it is compressed.
///
/// # Errors
/// Returns an error if the first bytes cannot be read.
pub fn unpacking(mut from: Box<dyn Read>) -> std::io::Result<Box<dyn Read>> {
    let mut start = Vec::new();
    from.by_ref().take(Compression::MAGIC).read_to_end(&mut start)?;
    let compression = Compression::detect(&start);
    let complete = std::io::Cursor::new(start).chain(from);
    match compression {
        None => Ok(Box::new(complete)),
        Some(Compression::Gzip) => Ok(Box::new(flate2::read::MultiGzDecoder::new(std::io::BufReader::new(complete)))),
        Some(Compression::Zstd) => Codec::Zstd.reader(complete),
        Some(Compression::Lz4) => Codec::Lz4.reader(complete),
        Some(Compression::Bzip2) => Ok(Box::new(bzip2_rs::DecoderReader::new(complete))),
        Some(Compression::Xz) => crate::unpack::xz_reader(complete),
        Some(Compression::Columns) => Codec::Columns.reader(complete),
    }
}

/// Calls `each` for batches of the events of a trace file, in order. Returns the errors of the
/// file. The site of an event is the location in the trace, numbered as by [`named_sites`], or 0 if
/// `named` is not set.
pub(crate) fn events(path: &Path, span: Span, named: bool, each: &mut dyn FnMut(&[Event])) -> Vec<Missing> {
    let (mut threads, mut names) = (Threads::default(), Names::default());
    let mut stacks = Stacks::default();
    let mut batch: Vec<Event> = Vec::with_capacity(BATCH);
    let mut number = 0;
    let missing = walk(path, |record| {
        let Some((location, allocates)) = location_of(record) else { return true };
        let Some(mut event) = event_of(record) else { return true };
        event.number = number;
        event.thread = threads.number(location.thread);
        let site = if named { names.site(location, &mut stacks) } else { 0 };
        // Sites of frees are used only for recordings that have them.
        event.site = if allocates { site } else { 0 };
        number += 1;
        if span.contains(event.position()) {
            batch.push(event);
            if batch.len() == BATCH {
                each(&batch);
                batch.clear();
            }
        }
        !span.is_past(event.position())
    });
    if !batch.is_empty() {
        each(&batch);
    }
    missing.into_iter().collect()
}

/// The sites and sums of a profile. Numbers that a profile does not have, such as the peak, are 0.
#[derive(Debug)]
pub(crate) struct ProfileSums {
    /// The call sites of the profile.
    pub stacks: Stacks,
    /// The totals over all sites.
    pub totals: Totals,
    pub sums: Vec<SiteSums>,
    /// Whether the profile is complete.
    pub ending: Ending,
}

/// Reads the sites and sums of a profile.
///
/// # Errors
/// Returns an error if the bytes are not a profile.
pub(crate) fn profile(bytes: &[u8]) -> Result<ProfileSums> {
    let (profile, ending) = mptl::Profile::read(bytes)?;
    let mut stacks = Stacks::default();
    let mut names: FxHashMap<(u64, u64), u32> = FxHashMap::default();
    let (sites, data) = (profile.site_positions(), profile.data_positions());
    let mut sums = Vec::new();
    for (index, number) in sites.iter().zip(1u32..) {
        let Some(site) = profile.sites.get(*index) else { continue };
        let named = match profile.name(site.name) {
            Some(function) => *names.entry((site.symbol, site.name)).or_insert_with(|| {
                stacks.named.push(Named { function: function.to_vec(), ..Named::default() });
                stacks.named.len() as u32
            }),
            None => 0,
        };
        let parent = u32::try_from(site.parent).unwrap_or(0);
        stacks.push(Site { parent, module: 0, named, flags: 0, address: site.address });
        let row = usize::try_from(site.data).ok().and_then(|data_index| data.get(data_index.wrapping_sub(1)));
        if let Some(row) = row.and_then(|&index| profile.data.get(index)) {
            sums.push(SiteSums {
                site: number,
                allocs: row.allocated.count(),
                bytes: row.allocated.total(),
                frees: row.freed.count(),
                freed_bytes: row.freed.total(),
                ..SiteSums::default()
            });
        }
    }
    Ok(ProfileSums { stacks, totals: totals(&profile), sums, ending })
}

/// Returns the totals of a profile. The bins include blocks without a stack. If there are no bins,
/// the data records are added up.
fn totals(profile: &mptl::Profile) -> Totals {
    let bins = &profile.bins;
    let of = |counts: &[u64], big: u64| {
        let all = counts.iter().fold(0u64, |sum, &count| sum.saturating_add(count));
        let exact = counts.split_last().map_or(&[][..], |(_, exact)| exact);
        let bytes =
            exact.iter().zip(1u64..).fold(big, |sum, (&count, size)| sum.saturating_add(count.saturating_mul(size)));
        (all, bytes)
    };
    let (mut allocs, mut bytes) = of(&bins.allocated, bins.allocated_big);
    let (mut frees, mut freed) = of(&bins.freed, bins.freed_big);
    if bins.allocated.is_empty() {
        for data in &profile.data {
            allocs = allocs.saturating_add(data.allocated.count());
            bytes = bytes.saturating_add(data.allocated.total());
            frees = frees.saturating_add(data.freed.count());
            freed = freed.saturating_add(data.freed.total());
        }
    }
    Totals {
        allocs,
        frees,
        bytes_allocated: bytes,
        live_blocks: allocs.saturating_sub(frees),
        live_bytes: bytes.saturating_sub(freed),
        ..Totals::default()
    }
}
