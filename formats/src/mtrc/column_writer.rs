//! Writer of records as columns, without the bytes of MTRC in between.

use super::columns::{COLUMNS, Columns};
use super::reader::Numbers;
use super::writer::{Options, Writer};

/// Writes the records of a trace as the columns of chunks ([`super::restore`]). The bytes that they
/// stand for are those that a [`Writer`] appends for the same calls: header and padded numbers are
/// in them, too.
///
/// # Examples
///
/// ```
/// use heaptape_formats::mtrc::layout::ALLOC;
/// use heaptape_formats::mtrc::{Block, ColumnWriter, Location, Options, Writer, join, restore};
///
/// let mut writer = ColumnWriter::new(Options::default());
/// writer.record(ALLOC, [1, 0x1000, 24], 7);
/// let length = writer.plain_length();
/// let (mut joined, mut plain) = (Vec::new(), Vec::new());
/// join(writer.contents(), &mut joined);
/// restore(&joined, length as usize, &mut plain)?;
///
/// let (mut same, mut expected) = (Writer::new(Options::default()), Vec::new());
/// same.header(&mut expected);
/// same.alloc(&mut expected, Block { index: 1, address: 0x1000, size: 24 }, &Location::thread(7));
/// assert_eq!(plain, expected);
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColumnWriter {
    /// Knows the offset in the trace, and how long its records are.
    writer: Writer,
    columns: Columns,
    /// Offset of the chunk in the trace.
    start: u64,
}

impl ColumnWriter {
    /// Creates a writer whose first chunk begins with the header of the trace.
    pub fn new(options: Options) -> ColumnWriter {
        let (mut writer, mut columns, mut header) = (Writer::new(options), Columns::default(), Vec::new());
        writer.header(&mut header);
        columns.other(&header);
        ColumnWriter { writer, columns, start: 0 }
    }

    /// Returns a writer of the chunk after this one, which does not end yet.
    #[must_use]
    pub fn following(&self) -> ColumnWriter {
        ColumnWriter { writer: self.writer.clone(), columns: Columns::default(), start: self.offset() }
    }

    /// Appends a record without names: index, address and size, or only the index of a free.
    #[inline(always)]
    pub fn record<const N: usize>(&mut self, tag: u8, numbers: [u64; N], thread: u64) {
        if !self.writer.advance(numbers, thread) {
            return self.record_carefully(tag, &numbers, thread);
        }
        self.columns.record(&named(tag, &numbers, thread));
    }

    /// Appends a record that may need padding, or has very long numbers.
    #[cold]
    #[inline(never)]
    fn record_carefully(&mut self, tag: u8, numbers: &[u64], thread: u64) {
        let mut bytes = Vec::new();
        self.writer.numbers(&mut bytes, &named(tag, numbers, thread));
        self.columns.add_one(bytes);
    }

    /// Returns the offset of the next record in the trace.
    pub const fn offset(&self) -> u64 {
        self.writer.offset()
    }

    /// Returns the offset of the chunk in the trace.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Returns the number of bytes of the chunk in the trace.
    pub const fn plain_length(&self) -> u64 {
        self.offset() - self.start
    }

    /// Returns the bytes of each column of the chunk.
    pub fn contents(&self) -> [&[u8]; COLUMNS] {
        self.columns.contents()
    }

    /// Starts a chunk in the memory of `spare`, and returns the columns of the last one.
    pub fn finish_chunk(&mut self, spare: [Vec<u8>; COLUMNS]) -> [Vec<u8>; COLUMNS] {
        self.start = self.offset();
        self.columns.replace(spare)
    }
}

/// Returns the numbers of a record by name.
#[inline(always)]
fn named(tag: u8, numbers: &[u64], thread: u64) -> Numbers {
    match *numbers {
        [index, address, size] => Numbers { tag, index, address, size, thread },
        [index] => Numbers { tag, index, thread, ..Numbers::default() },
        _ => Numbers { tag, thread, ..Numbers::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::{join, restore};
    use super::super::layout::{ALLOC, FREE, RESIZE};
    use super::super::reader::Reader;
    use super::*;

    /// The columns are those of the bytes that a writer would have appended, over edges of the
    /// reader's buffer, numbers of all lengths, and several chunks.
    #[test]
    fn columns_are_those_of_the_written_bytes() {
        let options = Options { padding: true, ..Options::default() };
        let (mut writer, mut plain_writer) = (ColumnWriter::new(options), Writer::new(options));
        let (mut all, mut state, mut padded) = (Vec::new(), 1u64, 0);
        let mut spare: [Vec<u8>; COLUMNS] = Default::default();
        for chunk in 0..5 {
            let mut plain = Vec::new();
            if chunk == 0 {
                plain_writer.header(&mut plain);
            }
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let number = |shift: u32| state.rotate_left(shift) >> (state >> (shift & 31) & 63);
                let tag = [ALLOC, RESIZE, FREE][(state >> 33) as usize % 3];
                let thread = if state >> 60 == 3 { number(7) } else { state >> 62 };
                let numbers = Numbers { tag, index: number(11), address: number(23), size: number(41), thread };
                let Numbers { index, address, size, .. } = numbers;
                match tag {
                    FREE => writer.record(FREE, [index], thread),
                    _ => writer.record(tag, [index, address, size], thread),
                }
                let before = plain.len();
                plain_writer.numbers(&mut plain, &numbers);
                padded += usize::from(plain[before..].windows(2).any(|pair| pair == [0x80, 0]));
            }
            assert_eq!((writer.start(), writer.plain_length()), (all.len() as u64, plain.len() as u64));
            let (mut joined, mut transposed, mut restored) = (Vec::new(), Vec::new(), Vec::new());
            join(writer.contents(), &mut joined);
            Columns::default().transpose(&plain, &mut transposed);
            // The last few records of transposed bytes are not recognized.
            assert!(joined.len() <= transposed.len(), "chunk {chunk}");
            restore(&joined, plain.len(), &mut restored).unwrap();
            assert!(restored == plain, "chunk {chunk}");
            spare = writer.finish_chunk(spare);
            all.extend(plain);
            assert_eq!(writer.offset(), all.len() as u64);
        }
        assert!(padded > 0);
        let mut reader = Reader::new(&all).unwrap();
        let mut count = 0;
        while reader.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 100_000);
    }
}
