//! Decodes the events of a chunk: combines the bytes of the trace with the columns of the tape.
//! Chunks are independent of each other, so they can be decoded in any order and in parallel.

use super::tape::TraceRange;
use super::times;
use crate::event::{Event, Kind};
use crate::missing::Missing;
use heaptape_formats::mtrc::{self, Record};
use heaptape_formats::tape::{self, Codec, Column, Source, Step, Stream, Unpacker, field::Field};
use heaptape_formats::{Cursor, Format, leb128};

/// Maximum length of a decompressed chunk or column. Writers stay below a tenth of it.
const MAX_PLAIN_LENGTH: u64 = 16 << 20;
/// Minimum length of an event in the trace: tag and index.
const MIN_EVENT_LENGTH: usize = 2;
/// Maximum number of events for which memory is allocated at once, before their bytes are read.
const MAX_LIKELY_EVENTS: usize = 1 << 18;

/// Properties of the recording that decoding a chunk depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkContext {
    pub header: mtrc::Header,
    pub ticks_per_second: u64,
    /// Whether frees have sites.
    pub free_sites: bool,
    /// Number of known sites. Higher site numbers are replaced by 0.
    pub sites: u32,
    /// Whether to report the previous state of blocks of earlier chunks, as [`Kind::Previous`].
    pub reports_previous: bool,
}

/// The result of decoding a chunk.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The events in order, including unmatched ones.
    pub events: Vec<Event>,
    /// The errors that were found.
    pub missing: Vec<Missing>,
}

/// Decodes chunks, with buffers that are reused.
#[derive(Default)]
pub(crate) struct Decoder {
    unpacker: Unpacker,
    stored: Vec<u8>,
    plain: Vec<u8>,
    /// Decompressed columns: functions, times, stacks, weights, previous blocks.
    columns: [Vec<u8>; 5],
}

impl Decoder {
    /// Decodes a range of the trace. Errors are in [`Decoded::missing`]. `used` is a vector of
    /// events that is reused, because the events of a chunk need 8 MiB and more.
    pub(crate) fn decode<T: Source + ?Sized, M: Source + ?Sized>(
        &mut self,
        tape: &T,
        trace: &M,
        context: &ChunkContext,
        range: &TraceRange,
        mut used: Vec<Event>,
    ) -> Decoded {
        match range {
            TraceRange::Committed { offset, before, chunk, .. } => {
                used.clear();
                let mut decoded = Decoded { events: used, missing: Vec::new() };
                if let Err(error) = self.committed(tape, trace, context, *offset, *before, &mut decoded) {
                    decoded.events.clear();
                    decoded.missing.push(unusable(chunk, &error));
                }
                decoded
            }
            TraceRange::Salvage { offset, before, length, codec, tick } => {
                salvage(trace, context, (*offset, *length), *codec, *before, *tick)
            }
        }
    }

    /// Decodes a chunk with a commit record.
    fn committed<T: Source + ?Sized, M: Source + ?Sized>(
        &mut self,
        tape: &T,
        trace: &M,
        context: &ChunkContext,
        offset: u64,
        before: u64,
        decoded: &mut Decoded,
    ) -> Result<(), ChunkError> {
        let chunk = match Stream::at(tape, offset).step()? {
            Step::Record(_, tape::Record::Chunk(chunk)) => chunk,
            _ => return Err(ChunkError::Record),
        };
        self.check(trace, &chunk)?;
        let codec = Codec::from_number(chunk.codec).ok_or(ChunkError::Codec(chunk.codec))?;
        let plain_length = chunk.plain_length as usize;
        let Decoder { unpacker, stored, plain, columns } = self;
        let columns = Columns::new(&chunk, context, unpacker, columns, &mut decoded.missing);
        let most_events = usize::try_from(chunk.events).unwrap_or(0).min(plain_length / MIN_EVENT_LENGTH);
        decoded.events.reserve(most_events.min(MAX_LIKELY_EVENTS) + columns.unmatched.len());
        let mut adder = Adder { chunk: &chunk, context, columns, before, number: before, events: &mut decoded.events };
        if codec == Codec::Columns {
            let mut items = mtrc::Items::new(unpacker.joined(stored, plain_length)?)?;
            while let Some(item) = items.next()? {
                match item {
                    mtrc::Item::Record(numbers) => adder.add(&numbers),
                    mtrc::Item::Other(bytes) => adder.add_bytes(bytes, bytes.starts_with(mtrc::layout::MAGIC))?,
                }
            }
        } else {
            unpacker.unpack(codec, stored, plain_length, plain)?;
            adder.add_bytes(plain, true)?;
        }
        adder.finish(&mut decoded.missing)?;
        times::interpolate(&mut decoded.events, context.ticks_per_second);
        Ok(())
    }

    /// Returns the decompressed bytes of a chunk, after checking them.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be read or decompressed, or if the checksum is wrong.
    pub(crate) fn plain<M: Source + ?Sized>(&mut self, trace: &M, chunk: &tape::Chunk) -> Result<&[u8], ChunkError> {
        self.unpack(trace, chunk)?;
        Ok(&self.plain)
    }

    /// Reads, checks and decompresses the bytes of a chunk into `self.plain`.
    fn unpack<M: Source + ?Sized>(&mut self, trace: &M, chunk: &tape::Chunk) -> Result<(), ChunkError> {
        self.check(trace, chunk)?;
        let codec = Codec::from_number(chunk.codec).ok_or(ChunkError::Codec(chunk.codec))?;
        let unpacked = self.unpacker.unpack(codec, &self.stored, chunk.plain_length as usize, &mut self.plain);
        Ok(unpacked?)
    }

    /// Reads the stored bytes of a chunk and checks their length and checksum.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be read, if there are too many or too few, or if the
    /// checksum is wrong.
    pub(crate) fn check<M: Source + ?Sized>(&mut self, trace: &M, chunk: &tape::Chunk) -> Result<(), ChunkError> {
        if chunk.plain_length > MAX_PLAIN_LENGTH || chunk.stored_length > MAX_PLAIN_LENGTH {
            return Err(ChunkError::TooLong(chunk.plain_length.max(chunk.stored_length)));
        }
        let stored = &mut self.stored;
        trace.read_up_to(chunk.stored_offset, chunk.stored_length as usize, stored)?;
        if stored.len() as u64 != chunk.stored_length {
            return Err(ChunkError::Truncated { found: stored.len(), expected: chunk.stored_length });
        }
        if tape::codec::checksum(stored) != chunk.checksum {
            return Err(ChunkError::Checksum);
        }
        Ok(())
    }
}

/// Adds the records of a chunk, each with what the columns of the tape say about it, to the events.
struct Adder<'a> {
    chunk: &'a tape::Chunk,
    context: &'a ChunkContext,
    columns: Columns<'a>,
    /// Number of the first event of the chunk, and of the next one.
    before: u64,
    number: u64,
    events: &'a mut Vec<Event>,
}

impl Adder<'_> {
    /// Adds the records of bytes of the trace. Its first bytes begin with its header, unless
    /// `may_have_header` is false.
    fn add_bytes(&mut self, bytes: &[u8], may_have_header: bool) -> Result<(), ChunkError> {
        let is_first = self.chunk.plain_offset == 0 && self.number == self.before;
        let (header, body) = match is_first && may_have_header {
            true => {
                let header = mtrc::Header::read(bytes)?;
                (header, bytes.get(header.len()..).unwrap_or_default())
            }
            false => (self.context.header, bytes),
        };
        let base = self.chunk.plain_offset + (bytes.len() - body.len()) as u64;
        let mut reader = mtrc::Reader::chunk(header, body, base);
        while let Some(numbers) = reader.next_numbers()? {
            self.add(&numbers);
        }
        Ok(())
    }

    /// Adds an event, and the unmatched ones before it.
    #[inline(always)]
    fn add(&mut self, numbers: &mtrc::Numbers) {
        let Some(kind) = kind_of(numbers.tag) else { return };
        let (columns, number) = (&mut self.columns, self.number);
        if !columns.unmatched.as_slice().is_empty() {
            columns.unmatched_before(number - self.before, self.chunk.first_tick, number, self.events);
        }
        let &mtrc::Numbers { index, address, size, thread, .. } = numbers;
        let thread = u32::try_from(thread).unwrap_or(u32::MAX);
        let mut event = Event { thread, number, index, address, size, ..Event::of(kind) };
        columns.fill(&mut event);
        if self.context.reports_previous && kind != Kind::Alloc && index < self.chunk.first_index {
            self.events.extend(columns.previous(&event));
        }
        self.events.push(event);
        self.number += 1;
    }

    /// Adds the unmatched events at the end, and compares the number of events with that of the
    /// commit record.
    fn finish(mut self, missing: &mut Vec<Missing>) -> Result<(), ChunkError> {
        self.columns.unmatched_before(u64::MAX, self.chunk.first_tick, self.number, self.events);
        self.columns.finish(missing);
        match self.number - self.before {
            found if found != self.chunk.events => Err(ChunkError::Events { found, expected: self.chunk.events }),
            _ => Ok(()),
        }
    }
}

/// The reason why a chunk cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChunkError {
    /// The tape or the trace cannot be read, or the bytes cannot be decompressed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes are not those of a trace.
    #[error(transparent)]
    Format(#[from] heaptape_formats::Error),
    /// The commit record has changed since the recording was opened.
    #[error("its record cannot be read again")]
    Record,
    /// The codec has this unknown number.
    #[error("codec {0} is not known")]
    Codec(u8),
    /// The chunk is said to have this number of bytes.
    #[error("{0} bytes are more than a chunk can have")]
    TooLong(u64),
    /// The column is said to have this number of bytes.
    #[error("{0} bytes are more than a column can have")]
    ColumnTooLong(u32),
    /// The trace ends inside the chunk.
    #[error("the trace has only {found} of its {expected} bytes")]
    Truncated {
        /// Number of bytes in the trace.
        found: usize,
        /// Number of bytes of the chunk.
        expected: u64,
    },
    /// The bytes are not those that were written.
    #[error("the checksum does not match its bytes")]
    Checksum,
    /// The number of events differs from that of the commit record.
    #[error("it has {found} events instead of {expected}")]
    Events {
        /// Number of events in the bytes.
        found: u64,
        /// Number of events of the commit record.
        expected: u64,
    },
}

/// Returns the description of a chunk that cannot be decoded.
pub(crate) fn unusable(chunk: &tape::Chunk, error: &ChunkError) -> Missing {
    let &tape::Chunk { number, events, first_tick, last_tick, .. } = chunk;
    Missing::Chunk { number, events, first_tick, last_tick, why: error.to_string() }
}

/// Returns the kind of event of a record's tag.
const fn kind_of(tag: u8) -> Option<Kind> {
    match tag {
        mtrc::layout::ALLOC => Some(Kind::Alloc),
        mtrc::layout::RESIZE => Some(Kind::Resize),
        mtrc::layout::FREE => Some(Kind::Free),
        _ => None,
    }
}

/// Returns the event of a trace record without columns, or `None` for heap and internal records.
pub(crate) fn event_of(record: &Record) -> Option<Event> {
    let (kind, index, address, size, location) = match record {
        Record::Alloc { index, address, size, location } => (Kind::Alloc, *index, *address, *size, location),
        Record::Resize { index, address, size, location } => (Kind::Resize, *index, *address, *size, location),
        Record::Free { index, location } => (Kind::Free, *index, 0, 0, location),
        Record::Heap { .. } | Record::Internal { .. } => return None,
    };
    let thread = u32::try_from(location.thread).unwrap_or(u32::MAX);
    Some(Event { thread, index, address, size, ..Event::of(kind) })
}

/// Decodes bytes without a commit record, up to the first error.
fn salvage<M: Source + ?Sized>(
    trace: &M,
    context: &ChunkContext,
    (offset, length): (u64, u64),
    codec: Codec,
    before: u64,
    tick: u64,
) -> Decoded {
    let mut decoded = Decoded::default();
    let mut stored = Vec::new();
    if trace.read_up_to(offset, length.min(MAX_PLAIN_LENGTH) as usize, &mut stored).is_err() || stored.is_empty() {
        return decoded;
    }
    let mut plain = Vec::new();
    if let Ok(reader) = codec.reader(&stored[..]) {
        // The bytes before the damage are valid. The error at the damage is expected.
        let _ = std::io::Read::read_to_end(&mut std::io::Read::take(reader, MAX_PLAIN_LENGTH), &mut plain);
    }
    let body = match mtrc::Header::read(&plain) {
        Ok(header) if offset == 0 => &plain[header.len()..],
        _ => &plain[..],
    };
    let mut reader = mtrc::Reader::chunk(context.header, body, 0);
    while let Ok(Some(record)) = reader.next() {
        if let Some(event) = event_of(&record) {
            let number = before + decoded.events.len() as u64;
            decoded.events.push(Event { number, tick, ..event });
        }
    }
    if !decoded.events.is_empty() {
        decoded.missing.push(Missing::Salvaged { events: decoded.events.len() as u64, offset });
    }
    let rest = reader.rest();
    if !rest.is_empty() && rest != mtrc::layout::MAGIC {
        decoded.missing.push(Missing::TrailingBytes { offset, bytes: rest.len() as u64 });
    }
    decoded
}

/// The columns of a chunk, which are read along with its records.
struct Columns<'a> {
    number: u32,
    entries: Option<ColumnReader<'a>>,
    ticks: Option<ColumnReader<'a>>,
    sites: Option<ColumnReader<'a>>,
    weights: Option<ColumnReader<'a>>,
    previous: Option<ColumnReader<'a>>,
    unmatched: std::vec::IntoIter<tape::Unmatched>,
    tick: u64,
    free_sites: bool,
    highest_site: u64,
}

struct ColumnReader<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl ColumnReader<'_> {
    #[inline]
    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied();
        self.failed |= byte.is_none();
        self.at += 1;
        byte.unwrap_or(0)
    }

    #[inline]
    fn number(&mut self) -> u64 {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if let Some(word) = rest.first_chunk::<8>()
            && let Some((value, taken)) = leb128::read_word(u64::from_le_bytes(*word))
        {
            self.at += taken;
            return value;
        }
        self.checked()
    }

    /// Reads a number near the end of the column, or a very long one.
    #[cold]
    fn checked(&mut self) -> u64 {
        match leb128::read(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((value, size)) => {
                self.at += size;
                value
            }
            Err(_) => {
                self.failed = true;
                0
            }
        }
    }

    /// Returns a description of the error, if the column does not have exactly the values read.
    fn error(&self) -> Option<&'static str> {
        match self.at.cmp(&self.bytes.len()) {
            _ if self.failed => Some("it has fewer values than the chunk has events"),
            std::cmp::Ordering::Equal => None,
            _ => Some("it has more values than the chunk has events"),
        }
    }
}

impl<'a> Columns<'a> {
    fn new(
        chunk: &tape::Chunk,
        context: &ChunkContext,
        unpacker: &mut Unpacker,
        memory: &'a mut [Vec<u8>; 5],
        missing: &mut Vec<Missing>,
    ) -> Self {
        let mut unpack = |kind, what, bytes: &mut Vec<u8>| -> bool {
            let Some(column) = chunk.columns.iter().find(|column| column.kind == kind) else { return false };
            let unpacked = unpack_column(unpacker, column, bytes);
            if let Err(why) = &unpacked {
                missing.push(Missing::Column { number: chunk.number, what, why: why.to_string() });
            }
            unpacked.is_ok()
        };
        let kinds = [
            (tape::COLUMN_ENTRIES, "functions"),
            (tape::COLUMN_TICKS, "times"),
            (tape::COLUMN_SITES, "stacks"),
            (tape::COLUMN_WEIGHTS, "weights"),
            (tape::COLUMN_PREVIOUS, "earlier blocks"),
        ];
        // The order is that of the fields below.
        let mut columns = memory.iter_mut().zip(kinds).map(|(bytes, (kind, what))| {
            let is_needed = kind != tape::COLUMN_PREVIOUS || context.reports_previous;
            let is_there = is_needed && unpack(kind, what, bytes);
            let bytes: &[u8] = bytes;
            is_there.then_some(ColumnReader { bytes, at: 0, failed: false })
        });
        let mut column = || columns.next().flatten();
        let (entries, ticks, sites, weights, previous) = (column(), column(), column(), column(), column());
        drop(columns);
        let (mut items, mut bytes) = (Vec::new(), Vec::new());
        if unpack(tape::COLUMN_UNMATCHED, "unmatched events", &mut bytes) {
            let mut cursor = Cursor::new(Format::Tape, &bytes);
            while cursor.remaining() > 0 {
                match tape::Unmatched::get(&mut cursor, "unmatched") {
                    Ok(item) => items.push(item),
                    Err(error) => {
                        let why = error.to_string();
                        missing.push(Missing::Column { number: chunk.number, what: "unmatched events", why });
                        break;
                    }
                }
            }
        }
        Columns {
            number: chunk.number,
            entries,
            ticks,
            sites,
            weights,
            previous,
            unmatched: items.into_iter(),
            tick: chunk.first_tick,
            free_sites: context.free_sites,
            highest_site: u64::from(context.sites),
        }
    }

    /// Sets the fields of the next event that are in columns.
    #[inline]
    fn fill(&mut self, event: &mut Event) {
        if let Some(entries) = &mut self.entries {
            event.entry = entries.byte();
        }
        if let Some(ticks) = &mut self.ticks {
            self.tick = self.tick.saturating_add(ticks.number());
        }
        event.tick = self.tick;
        let takes = event.kind != Kind::Free;
        if let Some(sites) = &mut self.sites
            && (takes || self.free_sites)
        {
            let site = sites.number();
            event.site = if site <= self.highest_site { site as u32 } else { 0 };
        }
        if let Some(weights) = &mut self.weights
            && takes
        {
            event.weight = weights.number();
        }
    }

    /// Returns the state of an event's block before it, unless the block is inherited.
    #[inline]
    fn previous(&mut self, event: &Event) -> Option<Event> {
        let previous = self.previous.as_mut()?;
        let site = previous.number().checked_sub(1)?;
        let size = previous.number();
        let site = if site <= self.highest_site { site as u32 } else { 0 };
        Some(Event { kind: Kind::Previous, entry: 0, site, size, address: 0, weight: 0, ..*event })
    }

    /// Adds the unmatched events before the event with this position in the chunk.
    #[inline]
    fn unmatched_before(&mut self, position: u64, first_tick: u64, number: u64, into: &mut Vec<Event>) {
        while let Some(next) = self.unmatched.as_slice().first()
            && u64::from(next.position) <= position
        {
            into.push(Event {
                entry: next.entry,
                thread: next.thread,
                number,
                address: next.address,
                tick: first_tick.saturating_add(next.tick),
                ..Event::of(Kind::Unmatched)
            });
            self.unmatched.next();
        }
    }

    /// Adds the errors of all columns.
    fn finish(self, missing: &mut Vec<Missing>) {
        let columns = [
            (self.entries, "functions"),
            (self.ticks, "times"),
            (self.sites, "stacks"),
            (self.weights, "weights"),
            (self.previous, "earlier blocks"),
        ];
        for (column, what) in columns {
            if let Some(why) = column.and_then(|column| column.error()) {
                missing.push(Missing::Column { number: self.number, what, why: why.into() });
            }
        }
    }
}

fn unpack_column(unpacker: &mut Unpacker, column: &Column, bytes: &mut Vec<u8>) -> Result<(), ChunkError> {
    if u64::from(column.plain_length) > MAX_PLAIN_LENGTH {
        return Err(ChunkError::ColumnTooLong(column.plain_length));
    }
    let codec = Codec::from_number(column.codec).ok_or(ChunkError::Codec(column.codec))?;
    let unpacked = unpacker.unpack(codec, &column.stored.0, column.plain_length as usize, bytes);
    Ok(unpacked?)
}
