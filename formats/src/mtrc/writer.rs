//! Writer of records, which appends to a `Vec`.
//!
//! A record without names is composed in a buffer, up to eight bytes at each store: 10 to 12 ns an
//! event (`examples/mtrc_speed.rs`, Ice Lake 2.8 GHz; reading takes 10). The checked path is for
//! names, numbers of more than 56 bits, and the last bytes before the edge of a [`Window`].

use super::layout::{ALLOC, FREE, HEAP, Header, INTERNAL, Location, MAGIC, RESIZE, Record};
use super::names::WriterCache;
use super::reader::Numbers;
use super::shape::{Name, Shape};
use super::window::Window;
use crate::leb128;

/// Buffer size for a record without names: 1 tag, 5 numbers of at most 10 bytes, 2 empty names; and
/// a store of 8.
pub const RECORD_BUFFER_LEN: usize = leb128::BUFFER_LEN;
/// Distance from the edge at which no number of a record without names, nor the first one of the
/// next record, can reach it.
const FAR_FROM_EDGE: u64 = 96;

/// Options of a [`Writer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Header of the file. The version decides whether records have a location.
    pub header: Header,
    /// Whether to make numbers longer where mpatrol's own reader would otherwise fail (about 12
    /// bytes in 400 KB). It costs nothing if addresses and threads are below 2^35.
    pub padding: bool,
}

/// The block of an allocation or a reallocation: three numbers of one type, which must not be mixed
/// up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Number of the allocation, which its reallocations and its deallocation repeat.
    pub index: u64,
    /// Where the block starts.
    pub address: u64,
    /// Bytes that the program asked for.
    pub size: u64,
}

/// Writer of records. It owns no buffer: each call is passed the `Vec` to append to, which the
/// caller may empty in between.
///
/// # Examples
///
/// ```
/// use heaptape_formats::mtrc::{Block, Location, Options, Reader, Record, Writer};
///
/// let (mut writer, mut trace) = (Writer::new(Options::default()), Vec::new());
/// writer.header(&mut trace);
/// writer.alloc(&mut trace, Block { index: 1, address: 0x1000, size: 24 }, &Location::thread(1));
/// writer.free(&mut trace, 1, &Location::thread(1));
/// writer.end(&mut trace);
///
/// let mut reader = Reader::new(&trace)?;
/// assert!(matches!(reader.next()?, Some(Record::Alloc { index: 1, size: 24, .. })));
/// assert!(matches!(reader.next()?, Some(Record::Free { index: 1, .. })));
/// assert!(reader.next()?.is_none());
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Writer {
    options: Options,
    has_location: bool,
    functions: WriterCache,
    files: WriterCache,
    window: Window,
}

impl Writer {
    /// Creates a writer at the start of a file. The first call must be [`Writer::header`].
    pub fn new(options: Options) -> Writer {
        let (functions, files) = (WriterCache::default(), WriterCache::default());
        Writer { options, has_location: options.header.has_location(), functions, files, window: Window::default() }
    }

    /// Creates a writer that continues where another one stopped, at the start of a chunk. `window`
    /// is what [`Writer::window`] returned there.
    pub fn resume(options: Options, window: Window) -> Writer {
        Writer { window, ..Writer::new(options) }
    }

    /// Returns the number of bytes written, from the start of the file.
    pub const fn offset(&self) -> u64 {
        self.window.offset
    }

    /// Returns the position for [`Writer::resume`].
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Appends the header to `out`.
    pub fn header(&mut self, out: &mut Vec<u8>) {
        self.options.header.write(out);
        self.window = Window::after(&self.options.header);
    }

    /// Starts a chunk: names are defined again before they are used, so that a reader can start
    /// here.
    pub fn new_chunk(&mut self) {
        self.functions.clear();
        self.files.clear();
    }

    /// Appends `H`: heap memory for the program.
    pub fn heap(&mut self, out: &mut Vec<u8>, address: u64, size: u64) {
        self.put(out, HEAP, [address, size], None);
    }

    /// Appends `I`: heap memory for mpatrol's library.
    pub fn internal(&mut self, out: &mut Vec<u8>, address: u64, size: u64) {
        self.put(out, INTERNAL, [address, size], None);
    }

    /// Appends `A`: an allocation.
    #[inline]
    pub fn alloc(&mut self, out: &mut Vec<u8>, block: Block, location: &Location) {
        let Block { index, address, size } = block;
        self.put(out, ALLOC, [index, address, size], Some(location));
    }

    /// Appends `R`: a reallocation with its new address and size.
    #[inline]
    pub fn resize(&mut self, out: &mut Vec<u8>, block: Block, location: &Location) {
        let Block { index, address, size } = block;
        self.put(out, RESIZE, [index, address, size], Some(location));
    }

    /// Appends `F`: a deallocation.
    #[inline]
    pub fn free(&mut self, out: &mut Vec<u8>, index: u64, location: &Location) {
        self.put(out, FREE, [index], Some(location));
    }

    /// Composes a record without names, of these numbers, at the start of `buffer`. Returns its
    /// size; bytes after it may have been zeroed. Returns 0 if the record must be appended by one
    /// of the other calls. For callers that own the buffer, this takes half of the time of
    /// appending.
    #[inline(always)]
    pub fn compose<const N: usize>(
        &mut self,
        buffer: &mut [u8; RECORD_BUFFER_LEN],
        tag: u8,
        numbers: [u64; N],
        thread: u64,
    ) -> usize {
        let near_edge = self.options.padding && self.window.left() < FAR_FROM_EDGE;
        if near_edge || !self.has_location || numbers.iter().fold(thread, |all, number| all | number) >= 1 << 56 {
            return 0;
        }
        let size = compose(buffer, tag, &numbers, Some(&Location::thread(thread)));
        self.window.offset += size as u64;
        size
    }

    /// Counts a record without names that is written elsewhere. Returns false, and counts nothing,
    /// if its numbers may need padding or are longer than eight bytes.
    #[inline(always)]
    pub(super) fn advance<const N: usize>(&mut self, numbers: [u64; N], thread: u64) -> bool {
        let near_edge = self.options.padding && self.window.left() < FAR_FROM_EDGE;
        if near_edge || !self.has_location || numbers.iter().fold(thread, |all, number| all | number) >= 1 << 56 {
            return false;
        }
        // The tag, and no function, file and line.
        let lengths = numbers.iter().map(|number| leb128::short_len(*number)).sum::<usize>();
        self.window.offset += (4 + lengths + leb128::short_len(thread)) as u64;
        true
    }

    /// Appends a record without names.
    #[inline]
    pub fn numbers(&mut self, out: &mut Vec<u8>, numbers: &Numbers) {
        let &Numbers { tag, index, address, size, thread } = numbers;
        let location = Location::thread(thread);
        match tag {
            ALLOC | RESIZE => self.put(out, tag, [index, address, size], Some(&location)),
            FREE => self.put(out, tag, [index], Some(&location)),
            _ => self.put(out, tag, [address, size], None),
        }
    }

    /// Appends a record of any kind.
    pub fn record(&mut self, out: &mut Vec<u8>, record: &Record) {
        match record {
            &Record::Heap { address, size } => self.heap(out, address, size),
            &Record::Internal { address, size } => self.internal(out, address, size),
            &Record::Alloc { index, address, size, ref location } => {
                self.alloc(out, Block { index, address, size }, location);
            }
            &Record::Resize { index, address, size, ref location } => {
                self.resize(out, Block { index, address, size }, location);
            }
            Record::Free { index, location } => self.free(out, *index, location),
        }
    }

    /// Appends the end mark.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        self.window.offset += MAGIC.len() as u64;
    }

    /// Appends a record in exactly the given shape: number widths and name slots as they were read,
    /// not as this writer would choose. The writer's own name caches are not changed, and nothing
    /// is padded.
    pub fn shaped(&mut self, out: &mut Vec<u8>, record: &Record, shape: &Shape) {
        let start = out.len();
        let (tag, numbers, location) = fields(record);
        let mut widths = shape.widths.iter().copied();
        let mut number =
            |out: &mut Vec<u8>, value| leb128::write_padded(out, value, usize::from(widths.next().unwrap_or(0)));
        out.push(tag);
        for value in numbers.into_iter().flatten() {
            number(out, value);
        }
        if let Some(location) = location.filter(|_| self.has_location) {
            number(out, location.thread);
            for (name, text) in [(shape.function, location.function), (shape.file, location.file)] {
                match name {
                    Name::None => out.push(0),
                    Name::Use(slot) => out.push(slot),
                    Name::Define(slot) => {
                        out.push(0x80 | slot);
                        out.extend_from_slice(text.unwrap_or_default());
                        out.push(0);
                    }
                }
            }
            number(out, location.line);
        }
        self.window.offset += (out.len() - start) as u64;
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, out: &mut Vec<u8>, tag: u8, numbers: [u64; N], location: Option<&Location>) {
        let location = if self.has_location { location } else { None };
        let named = location.is_some_and(|location| location.function.is_some() || location.file.is_some());
        let near_edge = self.options.padding && self.window.left() < FAR_FROM_EDGE;
        if !named && !near_edge && numbers.iter().fold(0, |all, number| all | number) < 1 << 56 {
            let start = out.len();
            out.extend_from_slice(&[0; RECORD_BUFFER_LEN]);
            let mut size = 0;
            if let Some(buffer) = out.get_mut(start..).and_then(|tail| tail.first_chunk_mut::<RECORD_BUFFER_LEN>()) {
                size = compose(buffer, tag, &numbers, location);
            }
            out.truncate(start + size);
            self.window.offset += size as u64;
            if size > 0 {
                return;
            }
        }
        self.put_checked(out, tag, &numbers, location);
    }

    #[cold]
    #[inline(never)]
    fn put_checked(&mut self, out: &mut Vec<u8>, tag: u8, numbers: &[u64], location: Option<&Location>) {
        // Assumed length of the next record's first number: an index or an address, below 2^63.
        const UNKNOWN: usize = 9;
        out.push(tag);
        self.window.byte();
        let thread = location.map(|location| location.thread);
        let mut numbers = numbers.iter().copied().chain(thread).peekable();
        let mut names = Vec::new();
        if let Some(location) = location {
            self.functions.put(&mut names, location.function);
            self.files.put(&mut names, location.file);
        }
        while let Some(value) = numbers.next() {
            let (gap, next_size) = match (numbers.peek(), location) {
                (Some(&next), _) => (0, leb128::len(next)),
                (None, Some(location)) => (names.len(), leb128::len(location.line)),
                (None, None) => (1, UNKNOWN),
            };
            self.put_number(out, value, gap, next_size);
        }
        if let Some(location) = location {
            out.extend_from_slice(&names);
            names.iter().for_each(|_| self.window.byte());
            self.put_number(out, location.line, 1, UNKNOWN);
        }
    }

    /// Appends a number, longer than it must be if the next one requires that. Readers accept ten
    /// bytes at most: these could be too few only for a number of 2^42 or more that is followed by
    /// one of 2^56 or more.
    fn put_number(&mut self, out: &mut Vec<u8>, value: u64, gap: usize, next_size: usize) {
        let mut size = leb128::len(value);
        if self.options.padding {
            size = leb128::MAX_BYTES.min(size + self.window.pad(size, gap, next_size));
        }
        leb128::write_padded(out, value, size);
        self.window.number(size);
    }
}

/// Returns tag, numbers and location of a record.
fn fields<'a>(record: &Record<'a>) -> (u8, [Option<u64>; 3], Option<Location<'a>>) {
    match *record {
        Record::Heap { address, size } => (HEAP, [Some(address), Some(size), None], None),
        Record::Internal { address, size } => (INTERNAL, [Some(address), Some(size), None], None),
        Record::Alloc { index, address, size, location } => {
            (ALLOC, [Some(index), Some(address), Some(size)], Some(location))
        }
        Record::Resize { index, address, size, location } => {
            (RESIZE, [Some(index), Some(address), Some(size)], Some(location))
        }
        Record::Free { index, location } => (FREE, [Some(index), None, None], Some(location)),
    }
}

/// Writes a record without names. Returns its size, or 0 if thread or line are too large for this
/// path.
#[inline(always)]
fn compose(buffer: &mut [u8; RECORD_BUFFER_LEN], tag: u8, numbers: &[u64], location: Option<&Location>) -> usize {
    buffer[0] = tag;
    let mut at = 1;
    for &number in numbers {
        leb128::write_short(buffer, &mut at, number);
    }
    if let Some(location) = location {
        if location.thread < 0x80 && location.line == 0 {
            buffer[at & 63..][..4].copy_from_slice(&(location.thread as u32).to_le_bytes());
            return at + 4;
        }
        if (location.thread | location.line) >= 1 << 56 {
            return 0;
        }
        leb128::write_short(buffer, &mut at, location.thread);
        buffer[at & 63] = 0;
        buffer[(at + 1) & 63] = 0;
        at += 2;
        leb128::write_short(buffer, &mut at, location.line);
    }
    at
}
