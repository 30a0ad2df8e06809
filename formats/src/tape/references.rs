//! Which block holds which, at one point in time: the file `references.tape`.
//!
//! It has the records of a tape: first one [`References`], then any number of
//! [`ReferenceBlocks`], [`ReferenceEdges`], [`ReferenceRoots`] and [`ReferenceOffsets`], and last [`ReferencesEnd`],
//! which a truncated file lacks. Blocks are numbered from 0 in ascending order of their addresses.

use super::Codec;
use super::field::Text;
use crate::{Error, Format, Kind, Result, leb128, tape_record};

/// Maximum length of the unpacked bytes of a record, in bytes.
pub const MAX_REFERENCE_BYTES: usize = 16 << 20;
/// A record is full at this number of unpacked bytes.
const FULL: usize = 1 << 20;
/// Maximum number of edges of one item: a longer list is several items.
const MAX_ITEM: usize = 1 << 16;
/// Largest value of a word that is stored as a count.
pub const MAX_COUNT: u64 = 0xffff;

tape_record! {
    /// A range of memory outside of blocks that may hold references.
    RootRegion {
        /// First address.
        start: u64,
        /// Number of bytes.
        length: u64,
        /// One of the `ROOT_` numbers.
        kind: u8,
        /// Number of its name in the list of names, from 1; 0 if it has none.
        name: u32,
        /// Kernel's id of the thread whose stack, registers or thread-local data it is; else 0.
        thread: u32,
    }
}

/// Writable data of a module.
pub const ROOT_DATA: u8 = 1;
/// Thread-local data, and the libc's own data of a thread.
pub const ROOT_THREAD_LOCAL: u8 = 2;
/// The part of a stack that is in use.
pub const ROOT_STACK: u8 = 3;
/// The general registers of a thread: all of them (16 on x86-64, 31 on aarch64), 8 bytes each, or only the six arguments of the system call that
/// it waited in, since a stop could have ended that wait.
pub const ROOT_REGISTERS: u8 = 4;
/// Other writable memory without blocks, e.g. of an arena that the program maps itself.
pub const ROOT_MAPPING: u8 = 5;
/// The memory of an allocator, where blocks of which nothing is known may be: they were allocated before
/// the recording.
pub const ROOT_EARLIER: u8 = 6;

tape_record! {
    /// Kind 23, the first record of `references.tape`.
    References {
        /// Tick at which the memory began to be read.
        tick: u64,
        /// Process id.
        pid: u32,
        /// Why: a number of [`super::residency_cause`].
        cause: u8,
        /// Number of threads of the process, and of those that stood still meanwhile.
        threads: u32,
        /// Threads that stood still.
        stopped: u32,
        /// Names of the regions: paths of modules, or the kernel's names in brackets.
        names: Vec<Text>,
        /// Where references were searched, besides the blocks.
        regions: Vec<RootRegion>,
    }
}

tape_record! {
    /// Kind 24: some of the blocks.
    ReferenceBlocks {
        /// Number of the first one.
        first: u64,
        /// Number of blocks.
        count: u32,
        /// How the bytes are stored: a number of [`Codec`].
        codec: u8,
        /// Length of the unpacked bytes.
        plain_length: u32,
        /// The bytes as stored; [`ReferenceBlocks::each`] reads them.
        stored: Text,
    }
}

tape_record! {
    /// Kind 25: references in blocks.
    ReferenceEdges {
        /// How the bytes are stored: a number of [`Codec`].
        codec: u8,
        /// Length of the unpacked bytes.
        plain_length: u32,
        /// The bytes as stored; [`ReferenceEdges::each`] reads them.
        stored: Text,
    }
}

tape_record! {
    /// Kind 26: references in the regions of [`References`].
    ReferenceRoots {
        /// How the bytes are stored: a number of [`Codec`].
        codec: u8,
        /// Length of the unpacked bytes.
        plain_length: u32,
        /// The bytes as stored; [`ReferenceRoots::each`] reads them.
        stored: Text,
    }
}

tape_record! {
    /// Kind 28: words in blocks that may be offsets of blocks to which no address leads.
    ReferenceOffsets {
        /// How the bytes are stored: a number of [`Codec`].
        codec: u8,
        /// Length of the unpacked bytes.
        plain_length: u32,
        /// The bytes as stored; [`ReferenceOffsets::each`] reads them.
        stored: Text,
    }
}

/// What [`Edge::inside`] says of such a word: it counts from the start of its block, or from itself.
pub const OFFSET_FROM_BLOCK: u64 = 0;
/// See [`OFFSET_FROM_BLOCK`].
pub const OFFSET_FROM_WORD: u64 = 1;
/// No offset: words were looked for that lead to this block, which is source and target. If there is
/// such a mark, no words were looked for that lead to blocks without one.
pub const LOOKED_FOR: u64 = 2;

tape_record! {
    /// Kind 27, the last record: what was found.
    ReferencesEnd {
        /// Tick at which the reading ended.
        end_tick: u64,
        /// Why references may be missing; empty if none are.
        lacks: Text,
        /// Number of blocks.
        blocks: u64,
        /// Requested bytes of them.
        bytes: u64,
        /// Number of references in blocks.
        edges: u64,
        /// Number of references in regions.
        root_edges: u64,
        /// Bytes of memory that were read.
        read_bytes: u64,
        /// CPU time of the search in nanoseconds.
        cpu_ns: u64,
    }
}

/// What the first words of a block look like. Nothing else of its content is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstWords {
    /// The first word if it is an address in a file that the process has mapped, as that of a
    /// vtable; else 0.
    pub pointer: u64,
    /// Two words that may be counts of references, up to [`MAX_COUNT`]: the halves of the second
    /// word after a pointer, else the first two words. 0 and 0 if they are not.
    pub counts: (u16, u16),
}

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceBlock {
    /// Address of the block.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Bytes that were searched: what the program may use.
    pub usable: u64,
    /// Site number; 0 if the process did not allocate it.
    pub site: u32,
    /// Allocation index; 0 if the process did not allocate it.
    pub index: u64,
    /// How its content begins.
    pub first: FirstWords,
}

/// A word that holds the address of a block, or one inside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Number of the block, or of the region, that has the word.
    pub source: u64,
    /// Offset of the word in it, in bytes: a multiple of 8 from its first aligned word on.
    pub offset: u64,
    /// Number of the block that it points to.
    pub target: u64,
    /// Offset in that block.
    pub inside: u64,
}

const HAS_POINTER: u64 = 1;
const HAS_COUNTS: u64 = 2;

/// Packs blocks in ascending order into records.
#[derive(Debug, Default)]
pub struct BlockPacker {
    bytes: Vec<u8>,
    first: u64,
    count: u32,
    last: ReferenceBlock,
}

impl BlockPacker {
    /// Adds a block. Returns whether it is time to [`take`](BlockPacker::take) them.
    pub fn push(&mut self, block: &ReferenceBlock) -> bool {
        let ReferenceBlock { address, size, usable, site, index, first } = *block;
        let out = &mut self.bytes;
        leb128::write(out, address.wrapping_sub(self.last.address));
        leb128::write(out, size);
        leb128::write(out, usable.saturating_sub(size));
        leb128::write(out, leb128::zigzag(i64::from(site) - i64::from(self.last.site)));
        leb128::write(out, leb128::zigzag(index.wrapping_sub(self.last.index).cast_signed()));
        let flags = if first.pointer == 0 { 0 } else { HAS_POINTER };
        let flags = flags | if first.counts == (0, 0) { 0 } else { HAS_COUNTS };
        leb128::write(out, flags);
        let mut last_pointer = self.last.first.pointer;
        if flags & HAS_POINTER != 0 {
            leb128::write(out, leb128::zigzag(first.pointer.wrapping_sub(last_pointer).cast_signed()));
            last_pointer = first.pointer;
        }
        if flags & HAS_COUNTS != 0 {
            leb128::write(out, first.counts.0.into());
            leb128::write(out, first.counts.1.into());
        }
        self.last = *block;
        self.last.first.pointer = last_pointer;
        self.count += 1;
        self.bytes.len() >= FULL
    }

    /// Returns the blocks so far as a record, or `None` if there are none.
    ///
    /// # Errors
    /// When the compression library fails.
    pub fn take(&mut self) -> std::io::Result<Option<ReferenceBlocks>> {
        if self.count == 0 {
            return Ok(None);
        }
        let (codec, plain_length, stored) = pack(&mut self.bytes)?;
        let record = ReferenceBlocks { first: self.first, count: self.count, codec, plain_length, stored };
        self.first += u64::from(self.count);
        (self.count, self.last) = (0, ReferenceBlock::default());
        Ok(Some(record))
    }
}

/// Packs edges, in ascending order of their sources and offsets.
#[derive(Debug, Default)]
pub struct EdgePacker {
    bytes: Vec<u8>,
    last_source: u64,
    item: Vec<u8>,
    in_item: usize,
    open: u64,
    last: Edge,
}

impl EdgePacker {
    /// Adds an edge. Returns whether it is time to take them.
    pub fn push(&mut self, edge: Edge) -> bool {
        if self.in_item > 0 && (edge.source != self.open || self.in_item >= MAX_ITEM) {
            self.close();
        }
        if self.in_item == 0 {
            self.open = edge.source;
            self.last = Edge { target: edge.source, ..Edge::default() };
        }
        let out = &mut self.item;
        leb128::write(out, edge.offset.wrapping_sub(self.last.offset) / 8);
        leb128::write(out, leb128::zigzag(edge.target.wrapping_sub(self.last.target).cast_signed()));
        leb128::write(out, edge.inside);
        self.last = edge;
        self.in_item += 1;
        self.bytes.len() + self.item.len() >= FULL
    }

    fn close(&mut self) {
        if self.in_item == 0 {
            return;
        }
        leb128::write(&mut self.bytes, self.open.wrapping_sub(self.last_source));
        leb128::write(&mut self.bytes, self.in_item as u64);
        self.bytes.append(&mut self.item);
        (self.last_source, self.in_item) = (self.open, 0);
    }

    fn take(&mut self) -> std::io::Result<Option<(u8, u32, Text)>> {
        self.close();
        self.last_source = 0;
        if self.bytes.is_empty() { Ok(None) } else { pack(&mut self.bytes).map(Some) }
    }

    /// Returns the edges of blocks so far as a record, or `None` if there are none.
    ///
    /// # Errors
    /// When the compression library fails.
    pub fn take_edges(&mut self) -> std::io::Result<Option<ReferenceEdges>> {
        let taken = self.take()?;
        Ok(taken.map(|(codec, plain_length, stored)| ReferenceEdges { codec, plain_length, stored }))
    }

    /// Returns the offsets so far as a record, or `None` if there are none.
    ///
    /// # Errors
    /// When the compression library fails.
    pub fn take_offsets(&mut self) -> std::io::Result<Option<ReferenceOffsets>> {
        let taken = self.take()?;
        Ok(taken.map(|(codec, plain_length, stored)| ReferenceOffsets { codec, plain_length, stored }))
    }

    /// Returns the edges of regions so far as a record, or `None` if there are none.
    ///
    /// # Errors
    /// When the compression library fails.
    pub fn take_roots(&mut self) -> std::io::Result<Option<ReferenceRoots>> {
        let taken = self.take()?;
        Ok(taken.map(|(codec, plain_length, stored)| ReferenceRoots { codec, plain_length, stored }))
    }
}

fn pack(bytes: &mut Vec<u8>) -> std::io::Result<(u8, u32, Text)> {
    let mut stored = Vec::new();
    Codec::Zstd.pack(bytes, 1, &mut stored)?;
    let length = bytes.len() as u32;
    bytes.clear();
    Ok((Codec::Zstd as u8, length, Text(stored)))
}

/// The unpacked numbers of a record.
struct Numbers {
    plain: Vec<u8>,
    at: usize,
    field: &'static str,
}

impl Numbers {
    fn of(codec: u8, plain_length: u32, stored: &Text, field: &'static str) -> Result<Numbers> {
        let mut numbers = Numbers { plain: Vec::new(), at: 0, field };
        let Some(codec) = Codec::from_number(codec) else { return Err(numbers.bad(format!("unknown codec {codec}"))) };
        if plain_length as usize > MAX_REFERENCE_BYTES {
            return Err(numbers.bad(format!("{plain_length} bytes, more than {MAX_REFERENCE_BYTES}")));
        }
        let plain = codec.unpack(&stored.0, plain_length as usize);
        numbers.plain = plain.map_err(|error| numbers.bad(error.to_string()))?;
        Ok(numbers)
    }

    fn bad(&self, text: String) -> Error {
        Error { format: Format::Tape, offset: self.at as u64, field: self.field, kind: Kind::Text(text) }
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.plain.len()
    }

    fn next(&mut self) -> Result<u64> {
        let rest = self.plain.get(self.at..).unwrap_or_default();
        let Ok((number, length)) = leb128::read(rest) else { return Err(self.bad("no number".into())) };
        self.at += length;
        Ok(number)
    }

    fn count(&mut self) -> Result<u16> {
        let number = self.next()?;
        u16::try_from(number).map_err(|_| self.bad(format!("the count {number}")))
    }
}

impl ReferenceBlocks {
    /// Reads the blocks.
    ///
    /// # Errors
    /// When the bytes are not as many blocks, in ascending order.
    pub fn each(&self, mut visit: impl FnMut(ReferenceBlock)) -> Result<()> {
        let mut numbers = Numbers::of(self.codec, self.plain_length, &self.stored, "ReferenceBlocks.stored")?;
        let mut last = ReferenceBlock::default();
        for number in 0..self.count {
            let gap = numbers.next()?;
            let address = last.address.checked_add(gap).filter(|_| number == 0 || gap > 0);
            let Some(address) = address else { return Err(numbers.bad(format!("a block {gap} bytes later"))) };
            let size = numbers.next()?;
            let usable = size.checked_add(numbers.next()?).filter(|usable| address.checked_add(*usable).is_some());
            let Some(usable) = usable else { return Err(numbers.bad(format!("a block of {size} bytes"))) };
            let site = i64::from(last.site).checked_add(leb128::unzigzag(numbers.next()?));
            let Some(site) = site.and_then(|site| u32::try_from(site).ok()) else {
                return Err(numbers.bad("a site number".into()));
            };
            let index = last.index.wrapping_add_signed(leb128::unzigzag(numbers.next()?));
            let flags = numbers.next()?;
            let mut first = FirstWords::default();
            if flags & HAS_POINTER != 0 {
                first.pointer = last.first.pointer.wrapping_add_signed(leb128::unzigzag(numbers.next()?));
            }
            if flags & HAS_COUNTS != 0 {
                first.counts = (numbers.count()?, numbers.count()?);
            }
            let block = ReferenceBlock { address, size, usable, site, index, first };
            visit(block);
            let pointer = if first.pointer == 0 { last.first.pointer } else { first.pointer };
            last = ReferenceBlock { first: FirstWords { pointer, ..first }, ..block };
        }
        if numbers.is_at_end() { Ok(()) } else { Err(numbers.bad("bytes after the last block".into())) }
    }
}

fn each_edge(mut numbers: Numbers, visit: &mut dyn FnMut(Edge)) -> Result<()> {
    let mut source = 0u64;
    while !numbers.is_at_end() {
        let (gap, count) = (numbers.next()?, numbers.next()?);
        let Some(sum) = source.checked_add(gap) else { return Err(numbers.bad("a source".into())) };
        source = sum;
        let mut last = Edge { target: source, ..Edge::default() };
        for _ in 0..count {
            let offset = numbers.next()?.checked_mul(8).and_then(|gap| last.offset.checked_add(gap));
            let target = last.target.wrapping_add_signed(leb128::unzigzag(numbers.next()?));
            let Some(offset) = offset else { return Err(numbers.bad("an offset".into())) };
            last = Edge { source, offset, target, inside: numbers.next()? };
            visit(last);
        }
    }
    Ok(())
}

impl ReferenceEdges {
    /// Reads the edges. Nothing is known of the numbers of their blocks.
    ///
    /// # Errors
    /// When the bytes are not edges.
    pub fn each(&self, mut visit: impl FnMut(Edge)) -> Result<()> {
        let numbers = Numbers::of(self.codec, self.plain_length, &self.stored, "ReferenceEdges.stored")?;
        each_edge(numbers, &mut visit)
    }
}

impl ReferenceOffsets {
    /// Reads the words, with their blocks. Nothing is known of the numbers.
    ///
    /// # Errors
    /// When the bytes are not edges.
    pub fn each(&self, mut visit: impl FnMut(Edge)) -> Result<()> {
        let numbers = Numbers::of(self.codec, self.plain_length, &self.stored, "ReferenceOffsets.stored")?;
        each_edge(numbers, &mut visit)
    }
}

impl ReferenceRoots {
    /// Reads the edges, whose sources are regions. Nothing is known of the numbers.
    ///
    /// # Errors
    /// When the bytes are not edges.
    pub fn each(&self, mut visit: impl FnMut(Edge)) -> Result<()> {
        let numbers = Numbers::of(self.codec, self.plain_length, &self.stored, "ReferenceRoots.stored")?;
        each_edge(numbers, &mut visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, site: u32, index: u64) -> ReferenceBlock {
        ReferenceBlock { address, size: 24, usable: 24, site, index, ..ReferenceBlock::default() }
    }

    fn read(records: &[ReferenceBlocks]) -> Vec<ReferenceBlock> {
        let mut blocks = Vec::new();
        for record in records {
            record.each(|block| blocks.push(block)).unwrap_or_else(|error| panic!("{error}"));
        }
        blocks
    }

    #[test]
    fn blocks_are_read_as_they_were_packed() {
        let mut blocks = vec![block(0x5000, 7, 1), block(0x5020, 3, 900), block(0x7fff_0000_0000, 0, 0)];
        blocks[1].first = FirstWords { pointer: 0x4010, counts: (2, 1) };
        blocks[2].first = FirstWords { pointer: 0x4000, counts: (0, 0) };
        blocks[2].usable = 1 << 40;
        let (mut packer, mut records) = (BlockPacker::default(), Vec::new());
        for block in &blocks[..2] {
            packer.push(block);
        }
        records.extend(packer.take().expect("packed"));
        packer.push(&blocks[2]);
        records.extend(packer.take().expect("packed"));
        assert_eq!((records[1].first, records[1].count), (2, 1));
        assert_eq!(read(&records), blocks);
        assert_eq!(packer.take().expect("packed"), None);
    }

    #[test]
    fn edges_are_read_as_they_were_packed() {
        let edge = |source, offset, target, inside| Edge { source, offset, target, inside };
        let mut edges = vec![edge(0, 0, 9, 0), edge(0, 16, 3, 8), edge(2, 8, 0, 0), edge(1 << 40, 0, 5, 1 << 33)];
        edges.extend((0..70_000).map(|word| edge((1 << 40) + 1, 8 * word, word, 0)));
        let (mut packer, mut found) = (EdgePacker::default(), Vec::new());
        for edge in &edges {
            if packer.push(*edge) {
                let record = packer.take_edges().expect("packed").expect("edges");
                record.each(|edge| found.push(edge)).expect("edges");
            }
        }
        let record = packer.take_roots().expect("packed").expect("edges");
        record.each(|edge| found.push(edge)).expect("edges");
        assert_eq!(found, edges);
    }

    #[test]
    fn bad_bytes_are_refused() {
        let mut packer = BlockPacker::default();
        packer.push(&block(0x5000, 7, 1));
        let good = packer.take().expect("packed").expect("a block");
        let with = |bytes: &[u8]| ReferenceBlocks {
            codec: 0,
            plain_length: bytes.len() as u32,
            stored: bytes.into(),
            ..good.clone()
        };
        for wrong in [
            ReferenceBlocks { codec: 9, ..good.clone() },
            ReferenceBlocks { plain_length: u32::MAX, ..good.clone() },
            ReferenceBlocks { count: 2, ..good.clone() },
            ReferenceBlocks { count: 0, ..good.clone() },
            with(&[1]),
            with(&[1, 1, 0, 1, 0, 0]),
            with(&[1, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 1, 1]),
            with(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 0, 0, 0]),
        ] {
            assert!(wrong.each(|_| {}).is_err(), "{wrong:?}");
        }
        let edges = |bytes: &[u8]| ReferenceEdges { codec: 0, plain_length: bytes.len() as u32, stored: bytes.into() };
        for wrong in [&[0u8, 2, 0, 0, 0][..], &[1], &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0]] {
            assert!(edges(wrong).each(|_| {}).is_err(), "{wrong:?}");
        }
    }
}
