//! Reader of profiles, which checks every reference.
//!
//! A truncated file is read as far as its records are complete. Its references may be to records
//! that are missing: these become 0 (none), and records are numbered anew, so that the invariant of
//! [`Profile`] holds.

use super::layout::*;
use crate::{Abi, Cursor, Ending, Error, Format, Kind, Result};

/// Size that no file reaches. A count that needs more is an error, not a truncated file.
pub(super) const NO_FILE: u64 = 1 << 50;

/// Errors that need the whole file in memory.
const LOOP: &str = "the callers form a loop";
const TWICE: &str = "an earlier record has this index";

/// Returns whether an error can be seen only with the whole file in memory, so that
/// [`super::validate()`] does not report it.
pub fn needs_whole_file(error: &Error) -> bool {
    matches!(error.kind, Kind::Bad(_, LOOP | TWICE))
}

/// Name of a field that is compared below.
const ALLOCATED_BINS: &str = "allocated bins";

/// Offsets of the tables, for errors.
#[derive(Default)]
struct TableOffsets {
    data: u64,
    sites: u64,
}

impl Profile {
    /// Reads a profile. The ending says whether the file was complete.
    ///
    /// # Examples
    ///
    /// ```
    /// use heaptape_formats::{Ending, mptl::Profile};
    ///
    /// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/mpatrol/basic.mpt"))?;
    /// let (profile, ending) = Profile::read(&bytes)?;
    /// assert_eq!(ending, Ending::Complete);
    /// let allocated: u64 = profile.data.iter().map(|data| data.allocated.total()).sum();
    /// assert!(allocated > 0 && !profile.sites.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the bytes are not a profile, or its tables contradict each other.
    pub fn read(bytes: &[u8]) -> Result<(Profile, Ending)> {
        let mut cursor = Cursor::new(Format::Mptl, bytes);
        let (abi, version) = cursor.start_of_mpatrol(MAGIC, FIRST_KNOWN..FIRST_TOO_NEW)?;
        let mut profile = Profile { abi, version, strings: Vec::new(), ..Profile::default() };
        let mut offsets = TableOffsets::default();
        match profile.read_tables(&mut cursor, &mut offsets) {
            Ok(()) => {
                profile.check(&offsets)?;
                Ok((profile, Ending::Complete))
            }
            Err(Error { kind: Kind::Truncated, field, offset, .. }) => {
                if field == ALLOCATED_BINS {
                    // The last bin counts all larger sizes, and that one was not read.
                    profile.bins.allocated.push(0);
                }
                profile.repair();
                profile.check(&offsets)?;
                Ok((profile, Ending::Truncated { offset, field }))
            }
            Err(error) => Err(error),
        }
    }

    fn read_tables(&mut self, cursor: &mut Cursor, offsets: &mut TableOffsets) -> Result<()> {
        let abi = self.abi;
        for (bound, field) in self.bounds.iter_mut().zip(["small bound", "medium bound", "large bound"]) {
            *bound = cursor.word(field, abi)?;
        }
        let Bins { allocated, allocated_big, freed, freed_big } = &mut self.bins;
        let count = count(cursor, "bin size", abi, 2)?;
        if count > 0 {
            numbers(cursor, ALLOCATED_BINS, abi, count, allocated)?;
            *allocated_big = cursor.word("allocated total", abi)?;
            numbers(cursor, "freed bins", abi, count, freed)?;
            *freed_big = cursor.word("freed total", abi)?;
        }
        records(cursor, ["data count", "data"], abi, &mut offsets.data, &mut self.data, data)?;
        records(cursor, ["site count", "site"], abi, &mut offsets.sites, &mut self.sites, site)?;
        let count = self::count(cursor, "symbol count", abi, 1)?;
        numbers(cursor, "symbol addresses", abi, count, &mut self.symbols)?;
        let before = cursor.clone();
        let length = cursor.word("string table size", abi)?;
        if length >= NO_FILE {
            return Err(before.bad("string table size", length, "no file is that large"));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let held = cursor.rest();
        self.strings.extend_from_slice(held.get(..length).unwrap_or(held));
        cursor.take("string table", length)?;
        cursor.magic("end mark", MAGIC)?;
        self.trailing.extend_from_slice(cursor.rest());
        Ok(())
    }

    /// Makes the tables of a truncated file consistent: removes incomplete names, numbers the
    /// records 1..=n in the order of their own numbers, and sets references to missing records to
    /// 0.
    fn repair(&mut self) {
        self.bins.freed.resize(self.bins.allocated.len(), 0);
        let data = renumber(self.data.iter_mut().map(|data| &mut data.index));
        let sites = renumber(self.sites.iter_mut().map(|site| &mut site.index));
        let whole = self.strings.iter().rposition(|&byte| byte == 0).map_or(0, |last| last as u64 + 1);
        let symbols = self.symbols.len() as u64;
        let new = |numbers: &[(u64, u64)], old: u64| {
            numbers.binary_search_by_key(&old, |&(old, _)| old).map_or(0, |at| numbers[at].1)
        };
        for site in &mut self.sites {
            site.parent = new(&sites, site.parent);
            site.data = new(&data, site.data);
            site.name = if site.name < whole { site.name } else { 0 };
            site.symbol = if site.symbol <= symbols { site.symbol } else { 0 };
        }
    }

    fn check(&self, offsets: &TableOffsets) -> Result<()> {
        let word = u64::from(self.abi.word_size);
        let at = |table: u64, record_len: usize, record: usize, field: usize| {
            table + (record as u64 * record_len as u64 + field as u64) * word
        };
        let error = |offset: u64, Reference { field, expected, .. }: Reference, value: u64| {
            Err(Error { format: Format::Mptl, offset, field, kind: Kind::Bad(value, expected) })
        };
        let indexes = self.data.iter().map(|data| data.index);
        if let Some((record, index, what)) = misnumbered(indexes, self.data.len(), DATA_INDEX) {
            return error(at(offsets.data, DATA_LEN, record, what.word), what, index);
        }
        let indexes = self.sites.iter().map(|site| site.index);
        if let Some((record, index, what)) = misnumbered(indexes, self.sites.len(), SITE_INDEX) {
            return error(at(offsets.sites, SITE_LEN, record, what.word), what, index);
        }
        let named_until = self.strings.iter().rposition(|&byte| byte == 0).map_or(0, |last| last as u64 + 1);
        for (record, site) in self.sites.iter().enumerate() {
            let checks = [
                (PARENT, site.parent, self.sites.len() as u64),
                (SYMBOL, site.symbol, self.symbols.len() as u64),
                (NAME, site.name, named_until.saturating_sub(1)),
                (SITE_DATA, site.data, self.data.len() as u64),
            ];
            for (what, value, most) in checks {
                if value > most {
                    return error(at(offsets.sites, SITE_LEN, record, what.word), what, value);
                }
            }
        }
        if let Some(record) = self.parent_loop() {
            let parent = self.sites[record].parent;
            let what = Reference { expected: LOOP, ..PARENT };
            return error(at(offsets.sites, SITE_LEN, record, what.word), what, parent);
        }
        Ok(())
    }

    /// Returns the position of a site whose callers lead back to itself.
    fn parent_loop(&self) -> Option<usize> {
        // The real library creates callers before callees, so in its files every parent has the
        // lower number.
        if self.sites.iter().all(|site| site.parent < site.index) {
            return None;
        }
        let positions = self.site_positions();
        // The walk that first reached a site, from 1. A walk that reaches a site of its own has
        // found a loop.
        let mut seen = vec![0; self.sites.len()];
        for start in 0..self.sites.len() {
            let mut record = start;
            while seen[record] == 0 {
                seen[record] = start + 1;
                match self.sites[record].parent {
                    0 => break,
                    parent => record = positions[parent as usize - 1],
                }
                if seen[record] == start + 1 {
                    return Some(record);
                }
            }
        }
        None
    }
}

/// Returns the first record whose index is not one of 1..=count, or is that of an earlier record.
fn misnumbered(indexes: impl Iterator<Item = u64>, count: usize, what: Reference) -> Option<(usize, u64, Reference)> {
    let mut seen = vec![false; count];
    for (record, index) in indexes.enumerate() {
        match usize::try_from(index.wrapping_sub(1)).ok().and_then(|at| seen.get_mut(at)) {
            None => return Some((record, index, what)),
            Some(true) => return Some((record, index, Reference { expected: TWICE, ..what })),
            Some(seen) => *seen = true,
        }
    }
    None
}

/// Replaces the indexes by 1..=n in their order. Returns pairs of old and new index in ascending
/// order. Of equal old ones, references find the first.
fn renumber<'a>(indexes: impl Iterator<Item = &'a mut u64>) -> Vec<(u64, u64)> {
    let mut indexes: Vec<&mut u64> = indexes.collect();
    indexes.sort_by_key(|index| **index);
    let mut pairs: Vec<(u64, u64)> = Vec::with_capacity(indexes.len());
    for (index, new) in indexes.into_iter().zip(1..) {
        pairs.push((*index, new));
        *index = new;
    }
    pairs.dedup_by_key(|pair| pair.0);
    pairs
}

/// Reads a count of items of at least `min_len` numbers. A count that no file could hold is an
/// error, not a truncated file.
fn count(cursor: &mut Cursor, field: &'static str, abi: Abi, min_len: u64) -> Result<usize> {
    let before = cursor.clone();
    let count = cursor.word(field, abi)?;
    let bytes = count.checked_mul(min_len * u64::from(abi.word_size)).filter(|&bytes| bytes < NO_FILE);
    match bytes {
        Some(_) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        None => Err(before.bad(field, count, "no file is that large")),
    }
}

/// Reads `count` items of `size` bytes, or the complete ones that remain. The second result is an
/// error if these are fewer.
fn take<'a>(cursor: &mut Cursor<'a>, field: &'static str, count: usize, size: usize) -> (&'a [u8], Result<()>) {
    let held = count.min(cursor.remaining() / size.max(1));
    let bytes = cursor.take(field, held * size).unwrap_or_default();
    (bytes, if held < count { Err(cursor.error(field, Kind::Truncated)) } else { Ok(()) })
}

fn numbers(cursor: &mut Cursor, field: &'static str, abi: Abi, count: usize, into: &mut Vec<u64>) -> Result<()> {
    let (bytes, all) = take(cursor, field, count, usize::from(abi.word_size));
    decode(bytes, abi, |&[word]| word, into);
    all
}

fn records<T, const N: usize>(
    cursor: &mut Cursor,
    [count_field, field]: [&'static str; 2],
    abi: Abi,
    offset: &mut u64,
    into: &mut Vec<T>,
    make: impl Fn(&[u64; N]) -> T,
) -> Result<()> {
    let count = count(cursor, count_field, abi, N as u64)?;
    *offset = cursor.offset();
    let (bytes, all) = take(cursor, field, count, N * usize::from(abi.word_size));
    decode(bytes, abi, make, into);
    all
}

/// Decodes items of N numbers each. The ABI is looked at once, not for each word.
fn decode<T, const N: usize>(bytes: &[u8], abi: Abi, make: impl Fn(&[u64; N]) -> T, into: &mut Vec<T>) {
    fn each<T, const N: usize, const W: usize>(
        bytes: &[u8],
        number: impl Fn([u8; W]) -> u64,
        make: impl Fn(&[u64; N]) -> T,
        into: &mut Vec<T>,
    ) {
        let (numbers, _) = bytes.as_chunks::<W>();
        let (items, _) = numbers.as_chunks::<N>();
        into.reserve_exact(items.len());
        into.extend(items.iter().map(|item| make(&item.map(&number))));
    }
    match abi {
        Abi { big_endian: false, word_size: 8 } => each(bytes, u64::from_le_bytes, make, into),
        Abi { big_endian: true, word_size: 8 } => each(bytes, u64::from_be_bytes, make, into),
        Abi { big_endian: false, .. } => each(bytes, |word| u64::from(u32::from_le_bytes(word)), make, into),
        Abi { big_endian: true, .. } => each(bytes, |word| u64::from(u32::from_be_bytes(word)), make, into),
    }
}

fn data(numbers: &[u64; DATA_LEN]) -> Data {
    let four = |from: usize| std::array::from_fn(|at| numbers[from + at]);
    let sums = |from: usize| Sums { counts: four(from), totals: four(from + 4) };
    Data { index: numbers[0], allocated: sums(1), freed: sums(9) }
}

fn site(&[index, parent, address, symbol, name, data]: &[u64; SITE_LEN]) -> Site {
    Site { index, parent, address, symbol, name, data }
}
