//! The records of a chunk as columns.
//!
//! A record of MTRC states its index and address in full. Most of that can be predicted: indexes of
//! allocations are successive, and addresses are near the previous ones. Columns hold what differs
//! from the prediction, each number beside others of its kind, so that they compress to half the
//! size in less time. The bytes of the chunk can be restored exactly ([`restore`]).
//!
//! ```text
//! columns    length*6  kinds threads indexes addresses sizes others     length: u32, little-endian
//! kinds      a byte for each item: bits 0-1 the kind (0 A, 1 R, 2 F, 3 other bytes), 4 another
//!            thread than that of the record before, 8 an index follows, 16 an address that is not
//!            aligned like the one before
//! threads    the thread, where it is another one (0 before the first record)
//! indexes    A: zigzag of index - (index of the A before + 1); 0 is left out
//!            R, F: zigzag of index of the A before - index; 0 is left out
//! addresses  A, R: zigzag of the difference to the address before of this thread (of all threads
//!            with the same number modulo 16); it is divided by 16, except where kinds has 16
//! sizes      A, R: the size
//! others     for each item of kind 3: length, bytes
//! ```
//! Numbers are unsigned LEB128. Indexes and addresses wrap around at 64 bits. Other bytes are all
//! that is no record without names in its shortest encoding: the header of the file, names, padded
//! or very long numbers. They have no effect on the predictions.

use super::layout::{ALLOC, FREE, Header, MAGIC, RESIZE};
use super::reader::{Numbers, Reader};
use super::writer::{Options, RECORD_BUFFER_LEN, Writer};
use crate::{Cursor, EncodeBuf, Error, Format, Kind, Result, leb128};

/// Number of columns of a chunk.
pub const COLUMNS: usize = 6;
/// Number of threads whose previous addresses are kept apart.
const ROWS: usize = 16;

/// Bits of a byte of the first column.
const KIND: u8 = 3;
const OTHER_THREAD: u8 = 4;
const OTHER_INDEX: u8 = 8;
const UNALIGNED: u8 = 16;
/// The kind of other bytes.
const OTHER: u8 = 3;
/// The tags of the kinds.
const TAGS: [u8; 3] = [ALLOC, RESIZE, FREE];
/// The names of the columns in errors.
const NAMES: [&str; COLUMNS] = ["kinds", "threads", "indexes", "addresses", "sizes", "others"];

/// The values to which those of the next record are relative.
#[derive(Clone, Debug, Default)]
struct Predictor {
    thread: u64,
    /// Index of the allocation before.
    index: u64,
    addresses: [u64; ROWS],
}

impl Predictor {
    #[inline(always)]
    fn address(&mut self) -> &mut u64 {
        &mut self.addresses[self.thread as usize % ROWS]
    }

    /// Returns the difference of an index to the predicted one.
    #[inline(always)]
    fn index_difference(&mut self, tag: u8, index: u64) -> u64 {
        if tag != ALLOC {
            return self.index.wrapping_sub(index);
        }
        let before = std::mem::replace(&mut self.index, index);
        index.wrapping_sub(before.wrapping_add(1))
    }
}

/// Writes the records of chunks as columns.
///
/// # Examples
///
/// ```
/// use heaptape_formats::mtrc::{Block, Columns, Location, Options, Writer, restore};
///
/// let (mut writer, mut plain) = (Writer::new(Options::default()), Vec::new());
/// writer.header(&mut plain);
/// for index in 1..1000 {
///     writer.alloc(&mut plain, Block { index, address: 0x5555_0000_1000 + 48 * index, size: 40 }, &Location::thread(1));
///     writer.free(&mut plain, index, &Location::thread(1));
/// }
/// let mut columns = Vec::new();
/// Columns::default().transpose(&plain, &mut columns);
/// assert!(columns.len() < plain.len() / 3);
/// let mut again = Vec::new();
/// restore(&columns, plain.len(), &mut again)?;
/// assert_eq!(again, plain);
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Columns {
    buffers: [EncodeBuf; COLUMNS],
    predictor: Predictor,
}

impl Columns {
    /// Replaces the content of `out` with the columns of a chunk. All bytes are kept, also of what
    /// is no trace.
    pub fn transpose(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.predictor = Predictor::default();
        self.buffers.iter_mut().for_each(EncodeBuf::clear);
        self.add(plain);
        join(self.contents(), out);
    }

    /// Returns the columns of a chunk.
    pub fn of(plain: &[u8]) -> [Vec<u8>; COLUMNS] {
        let mut columns = Columns::default();
        columns.add(plain);
        columns.replace(Default::default())
    }

    /// Appends the bytes of one record.
    pub(super) fn add_one(&mut self, mut bytes: Vec<u8>) {
        let length = bytes.len();
        // A number is read from eight bytes.
        bytes.extend_from_slice(&[0; 8]);
        match short_record(&bytes) {
            Some((record, short)) if short == length => self.record(&record),
            _ => self.other(bytes.get(..length).unwrap_or_default()),
        }
    }

    /// Appends records, and other bytes as such.
    pub(super) fn add(&mut self, mut plain: &[u8]) {
        while !plain.is_empty() {
            let length = match short_record(plain) {
                Some((record, length)) => {
                    self.record(&record);
                    length
                }
                None => {
                    let length = length_of_other(plain);
                    self.other(plain.get(..length).unwrap_or(plain));
                    length
                }
            };
            plain = plain.get(length..).unwrap_or_default();
        }
    }

    /// Returns the bytes of each column.
    pub(super) fn contents(&self) -> [&[u8]; COLUMNS] {
        self.buffers.each_ref().map(EncodeBuf::content)
    }

    /// Starts a chunk in the memory of `spare`, and returns the columns of the last one.
    pub(super) fn replace(&mut self, spare: [Vec<u8>; COLUMNS]) -> [Vec<u8>; COLUMNS] {
        self.predictor = Predictor::default();
        let mut buffers = self.buffers.iter_mut();
        spare.map(|spare| buffers.next().map_or(Vec::new(), |buffer| buffer.replace(spare)))
    }

    #[inline(always)]
    pub(super) fn record(&mut self, record: &Numbers) {
        let &Numbers { tag, index, address, size, thread } = record;
        let Columns { buffers: [kinds, threads, indexes, addresses, sizes, _], predictor } = self;
        let mut kind = match tag {
            ALLOC => 0,
            RESIZE => 1,
            _ => 2,
        };
        if thread != predictor.thread {
            kind |= OTHER_THREAD;
            predictor.thread = thread;
            threads.number(thread);
        }
        let difference = predictor.index_difference(tag, index);
        if difference != 0 {
            kind |= OTHER_INDEX;
            indexes.number(leb128::zigzag(difference as i64));
        }
        if tag != FREE {
            let before = predictor.address();
            let difference = address.wrapping_sub(*before) as i64;
            *before = address;
            let is_unaligned = difference & 15 != 0;
            kind |= u8::from(is_unaligned) * UNALIGNED;
            addresses.number(leb128::zigzag(if is_unaligned { difference } else { difference >> 4 }));
            sizes.number(size);
        }
        kinds.byte(kind);
    }

    /// Appends bytes that are no short record.
    #[cold]
    pub(super) fn other(&mut self, bytes: &[u8]) {
        let [kinds, .., others] = &mut self.buffers;
        kinds.byte(OTHER);
        others.number(bytes.len() as u64);
        others.append(|out| out.extend_from_slice(bytes));
    }
}

/// Replaces the content of `out` with the columns of a chunk in one piece, which [`restore`] reads.
pub fn join(parts: [&[u8]; COLUMNS], out: &mut Vec<u8>) {
    out.clear();
    parts.iter().for_each(|part| out.extend_from_slice(&(part.len() as u32).to_le_bytes()));
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Reads a number of at most eight bytes in its shortest encoding, and advances `at`.
#[inline(always)]
fn short_number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let word = u64::from_le_bytes(*bytes.get(*at..)?.first_chunk::<8>()?);
    let (value, length) = leb128::read_word(word)?;
    // In longer encodings the last byte is zero.
    if length > 1 && value >> (7 * (length - 1)) == 0 {
        return None;
    }
    *at += length;
    Some(value)
}

/// Reads a record without names whose numbers have their shortest encoding. Returns it with its
/// length.
#[inline(always)]
fn short_record(bytes: &[u8]) -> Option<(Numbers, usize)> {
    let tag = *bytes.first()?;
    let mut at = 1;
    let mut record = Numbers { tag, ..Numbers::default() };
    match tag {
        ALLOC | RESIZE => {
            record.index = short_number(bytes, &mut at)?;
            record.address = short_number(bytes, &mut at)?;
            record.size = short_number(bytes, &mut at)?;
        }
        FREE => record.index = short_number(bytes, &mut at)?,
        _ => return None,
    }
    record.thread = short_number(bytes, &mut at)?;
    // Function, file and line.
    let is_short = *bytes.get(at..)?.first_chunk::<3>()? == [0; 3];
    is_short.then_some((record, at + 3))
}

/// Returns the length of what starts a chunk and is no short record: a header, another record, or
/// all bytes.
fn length_of_other(bytes: &[u8]) -> usize {
    if bytes.starts_with(MAGIC) {
        return Header::read(bytes).map_or(bytes.len(), |header| header.len());
    }
    match Reader::chunk(Header::default(), bytes, 0).next_raw() {
        Ok(Some((_, raw))) => raw.len(),
        Ok(None) | Err(_) => bytes.len(),
    }
}

/// Returns the largest number of bytes that [`Columns::transpose`] makes of a chunk.
pub const fn most_bytes(plain: usize) -> usize {
    plain.saturating_mul(3).saturating_add(128)
}

/// A column that is being read.
#[derive(Debug)]
struct Column<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Column<'_> {
    #[inline(always)]
    fn number(&mut self, field: &'static str) -> Result<u64> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if let Some(word) = rest.first_chunk::<8>()
            && let Some((value, length)) = leb128::read_word(u64::from_le_bytes(*word))
        {
            self.at += length;
            return Ok(value);
        }
        self.checked(field)
    }

    /// Reads a number near the end of the column, or a very long one.
    #[cold]
    fn checked(&mut self, field: &'static str) -> Result<u64> {
        let kind = match leb128::read(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((value, length)) => {
                self.at += length;
                return Ok(value);
            }
            Err(leb128::DecodeError::Truncated) => Kind::Truncated,
            Err(leb128::DecodeError::TooLong) => Kind::Text("more than ten bytes".into()),
        };
        Err(Error { format: Format::Mtrc, offset: self.at as u64, field, kind })
    }
}

/// What a chunk of columns consists of.
#[derive(Debug)]
pub enum Item<'a> {
    /// A record without names.
    Record(Numbers),
    /// Other bytes of the trace: its header, or a record that is padded or has names.
    Other(&'a [u8]),
}

/// Reads the items of a chunk of columns, without the bytes of MTRC in between.
#[derive(Debug)]
pub struct Items<'a> {
    columns: [Column<'a>; COLUMNS],
    predictor: Predictor,
}

impl<'a> Items<'a> {
    /// Starts to read joined columns ([`join`]).
    ///
    /// # Errors
    /// When the columns are not as long as they say.
    pub fn new(bytes: &'a [u8]) -> Result<Items<'a>> {
        let mut cursor = Cursor::new(Format::Mtrc, bytes);
        let mut lengths = [0; COLUMNS];
        for (length, name) in lengths.iter_mut().zip(NAMES) {
            *length = cursor.u32(name)? as usize;
        }
        let mut columns = [const { Column { bytes: &[], at: 0 } }; COLUMNS];
        for ((column, length), name) in columns.iter_mut().zip(lengths).zip(NAMES) {
            column.bytes = cursor.take(name, length)?;
        }
        if cursor.remaining() > 0 {
            return Err(cursor.bad("columns", cursor.remaining() as u64, "no byte is left after the last column"));
        }
        Ok(Items { columns, predictor: Predictor::default() })
    }

    /// Returns the number of items.
    const fn count(&self) -> usize {
        self.columns[0].bytes.len()
    }

    /// Returns the next item, or `None` after the last one.
    ///
    /// # Errors
    /// When a column ends too early, is longer than the records need, or has a number that is none.
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "it returns errors, as the other readers do")]
    pub fn next(&mut self) -> Result<Option<Item<'a>>> {
        let [kinds, threads, indexes, addresses, sizes, _] = &mut self.columns;
        let Some(&kind) = kinds.bytes.get(kinds.at) else { return self.end() };
        kinds.at += 1;
        let Some(&tag) = TAGS.get(usize::from(kind & KIND)) else { return self.other() };
        if kind & OTHER_THREAD != 0 {
            self.predictor.thread = threads.number(NAMES[1])?;
        }
        let mut index = 0;
        if kind & OTHER_INDEX != 0 {
            index = leb128::unzigzag(indexes.number(NAMES[2])?) as u64;
        }
        if tag == ALLOC {
            index = self.predictor.index.wrapping_add(1).wrapping_add(index);
            self.predictor.index = index;
        } else {
            index = self.predictor.index.wrapping_sub(index);
        }
        let thread = self.predictor.thread;
        if tag == FREE {
            return Ok(Some(Item::Record(Numbers { tag, index, address: 0, size: 0, thread })));
        }
        let difference = leb128::unzigzag(addresses.number(NAMES[3])?);
        let difference = if kind & UNALIGNED == 0 { difference << 4 } else { difference };
        let before = self.predictor.address();
        *before = before.wrapping_add(difference as u64);
        let address = *before;
        Ok(Some(Item::Record(Numbers { tag, index, address, size: sizes.number(NAMES[4])?, thread })))
    }

    #[cold]
    fn other(&mut self) -> Result<Option<Item<'a>>> {
        let [.., others] = &mut self.columns;
        let length = others.number(NAMES[5])?;
        let bytes = others.bytes.get(others.at..).unwrap_or_default();
        let bytes = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
        let Some(bytes) = bytes else {
            let offset = others.at as u64;
            return Err(Error { format: Format::Mtrc, offset, field: NAMES[5], kind: Kind::Truncated });
        };
        others.at += bytes.len();
        Ok(Some(Item::Other(bytes)))
    }

    #[cold]
    fn end(&self) -> Result<Option<Item<'a>>> {
        for (column, field) in self.columns.iter().zip(NAMES) {
            if column.at != column.bytes.len() {
                let kind = Kind::Text("more values than records".into());
                return Err(Error { format: Format::Mtrc, offset: column.at as u64, field, kind });
            }
        }
        Ok(None)
    }
}

/// Replaces the content of `plain` with the bytes that were transposed. Their number must be
/// `length`, a bound that the caller has checked.
///
/// # Errors
/// When the bytes are no transposed chunk of this length.
pub fn restore(columns: &[u8], length: usize, plain: &mut Vec<u8>) -> Result<()> {
    let mut items = Items::new(columns)?;
    plain.clear();
    // Most records have less than 24 bytes. The rest is allocated as it is needed.
    plain.reserve(length.min(items.count().saturating_mul(24)));
    let mut writer = Writer::new(Options::default());
    let mut buffer = [0; RECORD_BUFFER_LEN];
    while let Some(item) = items.next()? {
        match item {
            Item::Record(numbers) => {
                let Numbers { tag, index, address, size, thread } = numbers;
                let composed = match tag {
                    FREE => writer.compose(&mut buffer, tag, [index], thread),
                    _ => writer.compose(&mut buffer, tag, [index, address, size], thread),
                };
                match composed {
                    0 => writer.numbers(plain, &numbers),
                    composed => plain.extend_from_slice(buffer.get(..composed).unwrap_or_default()),
                }
            }
            Item::Other(bytes) => plain.extend_from_slice(bytes),
        }
        if plain.len() > length {
            break;
        }
    }
    if plain.len() != length {
        let kind = Kind::Bad(plain.len() as u64, "the length of the chunk was expected");
        return Err(Error { format: Format::Mtrc, offset: plain.len() as u64, field: "records", kind });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtrc::{Block, Location};

    /// Returns records of one chunk: padded and long numbers, names, several threads, and bytes at
    /// the end that are no record.
    fn records(count: u64) -> Vec<u8> {
        let (mut writer, mut plain) = (Writer::new(Options { padding: true, ..Options::default() }), Vec::new());
        writer.header(&mut plain);
        let mut state = 88_172_645_463_325_252u64;
        for index in 1..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let named = Location { function: Some(b"f"), line: 7, ..Location::thread(3) };
            let location = if state >> 57 == 5 { named } else { Location::thread(state >> 62) };
            let address = 0x5555_0000_0000 + (state >> 40 & 0xffff8);
            match state >> 32 & 7 {
                0 => writer.resize(&mut plain, Block { index: index / 2, address, size: state >> 50 }, &location),
                1 => writer.alloc(
                    &mut plain,
                    Block { index: index * 3, address: state | 1 << 63, size: u64::MAX },
                    &location,
                ),
                2 | 3 => writer.free(&mut plain, index / 3, &location),
                _ => writer.alloc(&mut plain, Block { index, address, size: state >> 55 }, &location),
            }
        }
        plain.extend_from_slice(b"not a record");
        plain
    }

    fn transposed(plain: &[u8]) -> Vec<u8> {
        let mut columns = Vec::new();
        Columns::default().transpose(plain, &mut columns);
        columns
    }

    #[test]
    fn all_bytes_are_restored() -> Result<()> {
        let (mut columns, mut bytes, mut again) = (Columns::default(), Vec::new(), Vec::new());
        let overlong = [b'F', 0x81, 0x80, 0, 1, 0, 0, 0, b'F', 0x80, 0, 1, 0, 0, 0, b'F', 1, 1, 0, 0, 0].to_vec();
        for plain in [records(50_000), Vec::new(), b"MTRC".to_vec(), vec![b'A'; 99], overlong, records(3)] {
            columns.transpose(&plain, &mut bytes);
            assert!(bytes.len() <= most_bytes(plain.len()));
            restore(&bytes, plain.len(), &mut again)?;
            assert!(again == plain);
            assert_eq!(bytes, transposed(&plain), "memory that is used again changes nothing");
        }
        Ok(())
    }

    #[test]
    fn damaged_and_cut_columns_are_errors_or_other_records() {
        let plain = records(300);
        let columns = transposed(&plain);
        let mut again = Vec::new();
        for length in 0..columns.len() {
            assert!(restore(&columns[..length], plain.len(), &mut again).is_err(), "{length}");
        }
        for bit in 0..8 * columns.len() {
            let mut damaged = columns.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if restore(&damaged, plain.len(), &mut again).is_ok() {
                assert_eq!(again.len(), plain.len());
            }
        }
        assert!(restore(&[&columns[..], &[0]].concat(), plain.len(), &mut again).is_err());
        assert!(restore(&columns, plain.len() - 1, &mut again).is_err());
    }
}
