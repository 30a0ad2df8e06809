//! Reader of records, from a whole file in memory or from one chunk of it.
//!
//! Records without names that start at least [`FAST_PATH_LEN`] bytes before the end take a fast
//! path: each number is decoded from a load of eight bytes, without a check of the length. All
//! others take the checked path, which alone returns errors.

use super::layout::{ALLOC, FREE, HEAP, Header, INTERNAL, Location, MAGIC, RESIZE, Record, SLOTS};
use super::names::ReaderCache;
use crate::{Cursor, Ending, Error, Format, Kind, Result, leb128};

/// Maximum length of a name. mpatrol's own limit is 1023; this one only bounds memory.
const LONGEST_READ: usize = 1 << 20;
/// Bytes that must follow the start of a record for the fast path: 1 tag, 4 numbers of at most 8
/// bytes, and then a load of 8, with offsets masked to 63.
pub(super) const FAST_PATH_LEN: usize = 72;

/// One parsed record, with numbers, and with slots instead of names. Unused fields are 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parsed {
    tag: u8,
    function: u8,
    file: u8,
    index: u64,
    address: u64,
    size: u64,
    thread: u64,
    line: u64,
}

/// The numbers of a record. Those that its kind does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Tag of the record: [`ALLOC`], [`RESIZE`], [`FREE`], [`HEAP`] or [`INTERNAL`].
    pub tag: u8,
    /// Index of the allocation.
    pub index: u64,
    /// Address of the block, or of the heap memory.
    pub address: u64,
    /// Size of the block, or of the heap memory, in bytes.
    pub size: u64,
    /// Number of the thread.
    pub thread: u64,
}

/// Result of [`parse`] that is no error.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A record, and the number of its bytes.
    Record(Parsed, usize),
    /// The bytes are the end mark.
    End,
    /// The bytes end inside (or before) this field.
    Truncated(&'static str),
}

/// Caches of function and file names.
#[derive(Clone, Debug, Default)]
pub(super) struct NameCaches {
    functions: ReaderCache,
    files: ReaderCache,
}

impl NameCaches {
    /// Returns the record with its names.
    #[inline]
    pub(super) fn record(&self, parsed: &Parsed) -> Record<'_> {
        let &Parsed { tag, index, address, size, .. } = parsed;
        let location = Location {
            thread: parsed.thread,
            function: self.functions.get(parsed.function),
            file: self.files.get(parsed.file),
            line: parsed.line,
        };
        match tag {
            ALLOC => Record::Alloc { index, address, size, location },
            FREE => Record::Free { index, location },
            RESIZE => Record::Resize { index, address, size, location },
            HEAP => Record::Heap { address, size },
            _ => Record::Internal { address, size },
        }
    }
}

/// Decodes the number at `at` of the window. Returns `None` if it has more than 8 bytes.
#[inline(always)]
fn number(window: &[u8; FAST_PATH_LEN], at: &mut usize) -> Option<u64> {
    let from = *at & 63;
    let bytes = window[from..from + 8].first_chunk::<8>()?;
    let (value, len) = leb128::read_word(u64::from_le_bytes(*bytes))?;
    *at = from + len;
    Some(value)
}

/// Parses a record without names that is completely in the window.
#[inline(always)]
fn parse_fast(window: &[u8; FAST_PATH_LEN], has_location: bool) -> Option<(Parsed, usize)> {
    let tag = window[0];
    let mut at = 1;
    let mut parsed = Parsed { tag, ..Parsed::default() };
    match tag {
        ALLOC | RESIZE => {
            parsed.index = number(window, &mut at)?;
            parsed.address = number(window, &mut at)?;
            parsed.size = number(window, &mut at)?;
        }
        FREE => parsed.index = number(window, &mut at)?,
        HEAP | INTERNAL => {
            parsed.address = number(window, &mut at)?;
            parsed.size = number(window, &mut at)?;
            return Some((parsed, at));
        }
        _ => return None,
    }
    if has_location {
        let from = at & 63;
        let bytes = u32::from_le_bytes(*window[from..from + 4].first_chunk::<4>()?);
        if bytes & 0xffff_ff80 == 0 {
            parsed.thread = u64::from(bytes);
            at = from + 4;
        } else {
            parsed.thread = number(window, &mut at)?;
            if window[at & 63] | window[(at + 1) & 63] != 0 {
                return None;
            }
            at += 2;
            parsed.line = number(window, &mut at)?;
        }
    }
    Some((parsed, at))
}

/// Parses the record (or the end mark) at the start of `bytes`, which are at offset `base` of their
/// file. Names are stored as they are read, so that a truncated record may be parsed again when
/// more bytes have arrived.
#[inline(always)]
pub(super) fn parse(bytes: &[u8], base: u64, has_location: bool, names: &mut NameCaches) -> Result<Step> {
    if let Some(window) = bytes.first_chunk::<FAST_PATH_LEN>()
        && let Some((parsed, len)) = parse_fast(window, has_location)
    {
        return Ok(Step::Record(parsed, len));
    }
    parse_checked(bytes, base, has_location, names)
}

#[cold]
#[inline(never)]
fn parse_checked(bytes: &[u8], base: u64, has_location: bool, names: &mut NameCaches) -> Result<Step> {
    let mut cursor = Cursor::at_offset(Format::Mtrc, bytes, base);
    let found = match cursor.peek() {
        Some(ALLOC | RESIZE | FREE | HEAP | INTERNAL) => checked_record(&mut cursor, has_location, names),
        Some(tag) if bytes.starts_with(MAGIC) || MAGIC.starts_with(bytes) => {
            return Ok(if bytes.len() < MAGIC.len() && tag == MAGIC[0] {
                Step::Truncated("end mark")
            } else {
                Step::End
            });
        }
        Some(tag) => {
            return Err(cursor.bad("record", u64::from(tag), "A, R, F, H, I or the end mark is expected"));
        }
        None => return Ok(Step::Truncated("end mark")),
    };
    match found {
        Ok(parsed) => Ok(Step::Record(parsed, bytes.len() - cursor.remaining())),
        Err(Error { kind: Kind::Truncated, field, .. }) => Ok(Step::Truncated(field)),
        Err(error) => Err(error),
    }
}

fn checked_record(cursor: &mut Cursor, has_location: bool, names: &mut NameCaches) -> Result<Parsed> {
    let tag = cursor.byte("record")?;
    let mut parsed = Parsed { tag, ..Parsed::default() };
    if matches!(tag, ALLOC | RESIZE | FREE) {
        parsed.index = cursor.leb("index")?;
    }
    if tag != FREE {
        parsed.address = cursor.leb("address")?;
        parsed.size = cursor.leb("size")?;
    }
    if has_location && matches!(tag, ALLOC | RESIZE | FREE) {
        parsed.thread = cursor.leb("thread")?;
        parsed.function = name(cursor, "function", &mut names.functions)?;
        parsed.file = name(cursor, "file", &mut names.files)?;
        parsed.line = cursor.leb("line")?;
    }
    Ok(parsed)
}

fn name(cursor: &mut Cursor, field: &'static str, cache: &mut ReaderCache) -> Result<u8> {
    let byte = cursor.byte(field)?;
    let slot = byte & 0x7f;
    if usize::from(slot) > SLOTS || byte == 0x80 {
        return Err(cursor.bad(field, u64::from(slot), "name slots are 1 to 32"));
    }
    if byte != slot {
        let rest = cursor.rest();
        match rest.iter().take(LONGEST_READ + 1).position(|&byte| byte == 0) {
            Some(length) => {
                cache.define(slot, &rest[..length]);
                cursor.skip(length + 1);
            }
            None if rest.len() <= LONGEST_READ => return Err(cursor.error(field, Kind::Truncated)),
            None => return Err(cursor.error(field, Kind::Text("a name of more than 1 MiB".into()))),
        }
    }
    Ok(slot)
}

/// Reader of the records of a file, or of one chunk.
///
/// # Examples
///
/// ```
/// use heaptape_formats::mtrc::{Reader, Record};
///
/// let trace = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/mpatrol/basic.mtrc"))?;
/// let mut reader = Reader::new(&trace)?;
/// let mut allocations = 0;
/// while let Some(record) = reader.next()? {
///     if let Record::Alloc { size, .. } = record {
///         allocations += 1;
///         assert!(size > 0);
///     }
/// }
/// assert!(allocations > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    header: Header,
    bytes: &'a [u8],
    base: u64,
    /// Position of the next record in `bytes`.
    at: usize,
    whole_file: bool,
    names: NameCaches,
    ending: Option<Ending>,
}

impl<'a> Reader<'a> {
    /// Creates a reader and reads the header of a file.
    ///
    /// # Errors
    /// When the bytes do not start with a header of a known version.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let header = Header::read(bytes)?;
        let at = header.len();
        let names = NameCaches::default();
        Ok(Reader { header, bytes, base: 0, at, whole_file: true, names, ending: None })
    }

    /// Creates a reader of one chunk: records only, with empty name caches. `header` is that of the
    /// file, and `base` the offset of the chunk in the (uncompressed) file, from which offsets are
    /// counted. The chunk is complete if its bytes end after a record, or with the end mark.
    pub fn chunk(header: Header, bytes: &'a [u8], base: u64) -> Self {
        Reader { header, bytes, base, at: 0, whole_file: false, names: NameCaches::default(), ending: None }
    }

    /// Returns the file's header.
    pub const fn header(&self) -> Header {
        self.header
    }

    /// Reads the next record. Returns `None` if there is none; then [`Reader::ending`] has the
    /// reason.
    ///
    /// # Errors
    /// When the next bytes are not a record. The records before remain valid; no record after it
    /// can be found.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an iterator could not lend names from the cache")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        Ok(self.next_raw()?.map(|(record, _)| record))
    }

    /// Reads the next record and returns it with its bytes.
    ///
    /// # Errors
    /// As for [`Reader::next`].
    #[inline]
    pub fn next_raw(&mut self) -> Result<Option<(Record<'_>, &'a [u8])>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match parse(rest, self.base + self.at as u64, self.header.has_location(), &mut self.names)? {
            Step::Record(parsed, len) => {
                self.at += len;
                Ok(Some((self.names.record(&parsed), rest.get(..len).unwrap_or_default())))
            }
            step => {
                self.stop(step);
                Ok(None)
            }
        }
    }

    /// Reads the numbers of the next record, without its names.
    ///
    /// # Errors
    /// As for [`Reader::next`].
    #[inline]
    pub fn next_numbers(&mut self) -> Result<Option<Numbers>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match parse(rest, self.base + self.at as u64, self.header.has_location(), &mut self.names)? {
            Step::Record(parsed, len) => {
                self.at += len;
                let Parsed { tag, index, address, size, thread, .. } = parsed;
                Ok(Some(Numbers { tag, index, address, size, thread }))
            }
            step => {
                self.stop(step);
                Ok(None)
            }
        }
    }

    #[cold]
    fn stop(&mut self, step: Step) {
        self.ending = Some(match step {
            Step::Truncated(_) if !self.whole_file && self.at == self.bytes.len() => Ending::Complete,
            Step::Truncated(field) => Ending::Truncated { offset: self.offset(), field },
            _ => Ending::Complete,
        });
    }

    /// Returns how the bytes ended; `None` while records may follow.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns the offset of the next record from the start of the file.
    pub const fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Returns the bytes after the last record that was returned: at the end of a whole file, the
    /// end mark and all bytes after it.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
}
