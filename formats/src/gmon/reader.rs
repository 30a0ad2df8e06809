//! Reader of gmon.out files. A truncated file keeps its complete records, and its last histogram
//! the bins that are there. All other faults are errors with their offset. Memory is proportional
//! to the bytes, never to a number in them.

use super::layout::*;
use super::{bsd, detect};
use crate::{Abi, Cursor, Ending, Error, Format, Kind, Result};

/// Form and ABI of a file, if the caller knows them. `None` is detected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints {
    /// Form of the file, as by gprof's `-O`.
    pub form: Option<Form>,
    /// Byte order and pointer size, as in the executable.
    pub abi: Option<Abi>,
}

/// Reads a file of any form.
///
/// # Examples
///
/// ```
/// use heaptape_formats::gmon::{self, Hints};
///
/// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/gmon/real/calls64.gmon"))?;
/// let file = gmon::read(&bytes, Hints::default())?;
/// for arc in file.arcs() {
///     println!("{:#x} called {:#x} {} times", arc.from, arc.to, arc.count);
/// }
/// assert_eq!(gmon::write(&file)?, bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// When the bytes are not a gmon.out file, have a version that is not read, or contain an unknown
/// tag.
pub fn read(bytes: &[u8], hints: Hints) -> Result<Gmon> {
    let found = detect::detect(bytes, hints.form, hints.abi);
    let Some((form, abi)) = found else {
        let mut cursor = Cursor::new(Format::Gmon, bytes);
        cursor.magic("cookie", COOKIE)?;
        return Err(cursor.error("cookie", Kind::Magic));
    };
    match form {
        Form::Magic => magic(bytes, abi),
        Form::LdProfile => ld_profile(bytes, abi),
        Form::Bsd | Form::Bsd44 => bsd::read(bytes, form, abi),
    }
}

fn header(cursor: &mut Cursor<'_>, abi: Abi) -> Result<Gmon> {
    cursor.magic("cookie", COOKIE)?;
    let position = cursor.clone();
    let version = cursor.number("version", abi, 4)? as u32;
    if version > VERSION && version != LD_PROFILE_VERSION {
        return Err(position.error("version", Kind::Version(u64::from(version))));
    }
    let spare = cursor.take("spare", 12)?.try_into().unwrap_or_default();
    Ok(Gmon { version, spare, ..Gmon::new(abi) })
}

fn magic(bytes: &[u8], abi: Abi) -> Result<Gmon> {
    let mut cursor = Cursor::new(Format::Gmon, bytes);
    let mut gmon = header(&mut cursor, abi)?;
    while let Some(tag) = cursor.peek() {
        let start = cursor.clone();
        let step = match tag {
            TAG_HISTOGRAM => {
                cursor.skip(1);
                histogram(&mut cursor, &mut gmon, start.offset())
            }
            TAG_ARC => arcs(&mut cursor, &mut gmon),
            TAG_BLOCKS => {
                cursor.skip(1);
                blocks(&mut cursor, abi).map(|blocks| gmon.records.push(Record::Blocks(blocks)))
            }
            _ => return Err(start.bad("tag", u64::from(tag), "0 (histogram), 1 (arc) or 2 (basic blocks) belongs")),
        };
        match step {
            Ok(()) => {}
            Err(Error { kind: Kind::Truncated, offset, field, .. }) => {
                gmon.end_truncated(start.rest(), offset, field);
                break;
            }
            Err(error) => return Err(error),
        }
        if gmon.ends_inside(&mut cursor) {
            break;
        }
    }
    Ok(gmon)
}

impl Gmon {
    /// Adds a histogram, and notes implausible values.
    pub(super) fn push_histogram(&mut self, histogram: Histogram<'_>) {
        let mut note = |field, value, expected| {
            if self.notes.len() < NOTES {
                let (format, offset) = (Format::Gmon, histogram.offset);
                self.notes.push(Error { format, offset, field, kind: Kind::Bad(value, expected) });
            }
        };
        let Histogram { offset, low, high, unit, size, .. } = histogram;
        if high <= low {
            note("high_pc", high, "an address above low_pc belongs");
        } else if size == 0 {
            note("hist_size", 0, "at least one bin belongs");
        } else if (high - low) / 2 < u64::from(size) {
            note("hist_size", u64::from(size), "at most one bin for 2 bytes of code belongs");
        }
        if unit.rate == Some(0) {
            note("prof_rate", 0, "a rate above zero belongs");
        }
        match self.records.last_mut() {
            Some(Record::Histograms(run)) if run.unit == unit && run.size == size => {
                run.ranges.push((low, high));
                run.bins.extend_from_slice(histogram.bins);
            }
            _ => {
                let (ranges, bins) = (vec![(low, high)], histogram.bins.to_vec());
                self.records.push(Histograms { offset, unit, size, ranges, bins }.record());
            }
        }
    }

    /// Appends `size` bins, or the complete ones that remain, to the last histogram.
    pub(super) fn push_bins(&mut self, cursor: &mut Cursor<'_>, size: u32) -> Result<()> {
        let there = (cursor.remaining() / 2).min(size as usize);
        let (pairs, _) = cursor.take("bins", 2 * there)?.as_chunks::<2>();
        if let Some(Record::Histograms(run)) = self.records.last_mut() {
            if self.abi.big_endian {
                run.bins.extend(pairs.iter().map(|&pair| u16::from_be_bytes(pair)));
            } else {
                run.bins.extend(pairs.iter().map(|&pair| u16::from_le_bytes(pair)));
            }
        }
        Ok(())
    }

    /// Marks the file as truncated within a field. `rest` is what no record holds.
    pub(super) fn end_truncated(&mut self, rest: &[u8], offset: u64, field: &'static str) {
        self.tail = rest.to_vec();
        self.ending = Ending::Truncated { offset, field };
    }

    /// Returns whether the last record has less than it announced. The rest, less than a bin or
    /// block, then becomes the tail.
    pub(super) fn ends_inside(&mut self, cursor: &mut Cursor<'_>) -> bool {
        let field = match self.records.last() {
            Some(Record::Histograms(run)) if run.is_truncated() => "bins",
            Some(Record::Blocks(blocks)) if blocks.blocks.len() < blocks.size as usize => "address, count",
            _ => return false,
        };
        self.end_truncated(cursor.rest(), cursor.offset(), field);
        true
    }
}

/// Reads a histogram record after its tag, with as many bins as there are. They are appended
/// directly to the model.
fn histogram(cursor: &mut Cursor<'_>, gmon: &mut Gmon, offset: u64) -> Result<()> {
    let abi = gmon.abi;
    let low = cursor.word("low_pc", abi)?;
    let high = cursor.word("high_pc", abi)?;
    let size = cursor.number("hist_size", abi, 4)? as u32;
    let rate = Some(cursor.number("prof_rate", abi, 4)? as u32);
    let dimen = cursor.take("dimen", 15)?.try_into().unwrap_or_default();
    let abbrev = cursor.byte("dimen_abbrev")?;
    let unit = Unit { rate, dimen, abbrev };
    gmon.push_histogram(Histogram { offset, low, high, unit, size, bins: &[] });
    gmon.push_bins(cursor, size)
}

/// Reads all arcs up to another tag at once: real files are mostly arcs.
fn arcs(cursor: &mut Cursor<'_>, gmon: &mut Gmon) -> Result<()> {
    let size = 1 + Sizes::of(gmon.abi).arc;
    let rest = cursor.rest();
    let whole = rest.chunks_exact(size).take_while(|record| record[0] == TAG_ARC).count();
    if whole == 0 {
        // The bytes end within this arc: report the field.
        cursor.skip(1);
        cursor.word("from_pc", gmon.abi)?;
        cursor.word("self_pc", gmon.abi)?;
        cursor.take("count", 4)?;
    }
    let bytes = cursor.take("from_pc", whole * size)?;
    gmon.records.push(Record::Arcs(match (gmon.abi.word_size, gmon.abi.big_endian) {
        (4, false) => bytes.chunks_exact(size).map(|r| arc::<4, false>(&r[1..])).collect(),
        (4, true) => bytes.chunks_exact(size).map(|r| arc::<4, true>(&r[1..])).collect(),
        (_, false) => bytes.chunks_exact(size).map(|r| arc::<8, false>(&r[1..])).collect(),
        (_, true) => bytes.chunks_exact(size).map(|r| arc::<8, true>(&r[1..])).collect(),
    }));
    Ok(())
}

/// Decodes one arc. Width and byte order are constants for the compiler. `bytes` has at least its
/// two words and 4 bytes.
fn arc<const WORD: usize, const BIG: bool>(bytes: &[u8]) -> Arc {
    let (from, rest) = bytes.split_at(WORD);
    let (to, count) = rest.split_at(WORD);
    Arc { from: number::<BIG>(from), to: number::<BIG>(to), count: number::<BIG>(&count[..4]) }
}

fn number<const BIG: bool>(bytes: &[u8]) -> u64 {
    let narrow = bytes.try_into().map(if BIG { u32::from_be_bytes } else { u32::from_le_bytes }).map(u64::from);
    let wide = || bytes.try_into().map(if BIG { u64::from_be_bytes } else { u64::from_le_bytes });
    narrow.or_else(|_| wide()).unwrap_or_default()
}

/// Reads a record of basic blocks after its tag, with as many blocks as there are.
fn blocks(cursor: &mut Cursor<'_>, abi: Abi) -> Result<Blocks> {
    let announced = cursor.number("nblocks", abi, 4)? as u32;
    let each = Sizes::of(abi).block;
    let capacity = cursor.remaining() / each;
    let swapped_count = announced as usize > capacity && announced.swap_bytes() as usize <= capacity;
    let size = if swapped_count { announced.swap_bytes() } else { announced };
    let bytes = cursor.take("address", each * capacity.min(size as usize))?;
    let block = |bytes: &[u8]| {
        let (address, count) = bytes.split_at(each / 2);
        Block { address: abi.number(address), count: abi.number(count) }
    };
    Ok(Blocks { size, swapped_count, blocks: bytes.chunks_exact(each).map(block).collect() })
}

/// Reads glibc's profile of one shared object: always one histogram and one table of arcs, in a
/// file of fixed size.
fn ld_profile(bytes: &[u8], abi: Abi) -> Result<Gmon> {
    let mut cursor = Cursor::new(Format::Gmon, bytes);
    let mut gmon = Gmon { form: Form::LdProfile, ..header(&mut cursor, abi)? };
    let start = cursor.clone();
    match ld_profile_records(&mut cursor, &mut gmon) {
        Ok(()) => {
            if !gmon.ends_inside(&mut cursor) {
                gmon.tail = cursor.rest().to_vec();
            }
        }
        Err(Error { kind: Kind::Truncated, offset, field, .. }) => {
            let kept = gmon.records.first().map_or(start, |_| cursor);
            gmon.end_truncated(kept.rest(), offset, field);
        }
        Err(error) => return Err(error),
    }
    Ok(gmon)
}

fn ld_profile_records(cursor: &mut Cursor<'_>, gmon: &mut Gmon) -> Result<()> {
    let abi = gmon.abi;
    tag(cursor, abi, TAG_HISTOGRAM)?;
    histogram(cursor, gmon, HEADER as u64)?;
    if matches!(gmon.records.last(), Some(Record::Histograms(run)) if run.is_truncated()) {
        return Ok(());
    }
    let mut ahead = cursor.clone();
    tag(&mut ahead, abi, TAG_ARC)?;
    let count = ahead.number("narcs", abi, 4)?;
    let sizes = Sizes::of(abi);
    let capacity = ahead.remaining() / sizes.arc;
    if count > capacity as u64 {
        return Err(ahead.error("from_pc", Kind::Truncated));
    }
    let bytes = ahead.take("from_pc", count as usize * sizes.arc)?;
    let arc = |bytes: &[u8]| {
        let (from, rest) = bytes.split_at(sizes.word);
        let (to, count) = rest.split_at(sizes.word);
        Arc { from: abi.number(from), to: abi.number(to), count: abi.number(count) }
    };
    gmon.records.push(Record::Arcs(bytes.chunks_exact(sizes.arc).map(arc).collect()));
    *cursor = ahead;
    Ok(())
}

/// Reads a tag of an `ld.so` profile: 4 bytes.
fn tag(cursor: &mut Cursor<'_>, abi: Abi, expected: u8) -> Result<()> {
    let position = cursor.clone();
    match cursor.number("tag", abi, 4)? {
        found if found == u64::from(expected) => Ok(()),
        found => Err(position.bad("tag", found, "0 before the histogram and 1 before the arcs belongs")),
    }
}
