//! Layout of MPTL.
//!
//! ```text
//! "MPTL"  1  version
//! small  medium  large                          bounds of the size classes, inclusive
//! B  [ B allocated bins, big total, B freed bins, big total ]   the bracket only when B > 0
//! nd  nd * ( index  allocated counts[4] totals[4]  freed counts[4] totals[4] )
//! nc  nc * ( index  parent  address  symbol  name  data )
//! ns  ns * start address of symbol 1..=ns
//! length  string table     names end with a NUL; byte 0 is one, so offset 0 is no name
//! "MPTL"
//! ```
//! A number is a native word of the writing machine: 4 or 8 bytes.
//!
//! Indexes count from 1; 0 is none. A site is a return address with all its callers; its parent is
//! the caller. Bin `i` counts the blocks of size `i + 1`. The last one counts those of B bytes and
//! more, whose bytes are the big total.

use crate::Abi;

/// First and last bytes of a file.
pub const MAGIC: &[u8; 4] = b"MPTL";
/// Version that heaptape writes: that of mpatrol 1.5.1.
pub const VERSION: u64 = 10501;
/// First version that is read; mpatrol's own tool has the same limit.
pub const FIRST_KNOWN: u64 = 10300;
/// First version that is refused, as mpatrol's own tool refuses it.
pub const FIRST_TOO_NEW: u64 = 10600;
/// Default upper bounds of small, medium and large blocks, in bytes.
pub const BOUNDS: [u64; 3] = [32, 256, 2048];
/// Default number of bins.
pub const BINS: usize = 1024;
/// Length of a data record in machine words.
pub const DATA_LEN: usize = 17;
/// Length of a site record in machine words.
pub const SITE_LEN: usize = 6;

/// A word of a record that refers to another record: its position, its name, and the error if it
/// refers to nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub word: usize,
    pub field: &'static str,
    pub expected: &'static str,
}

const INDEX: Reference = Reference { word: 0, field: "", expected: "indexes go from 1 to the count" };
/// Index of a data record.
pub(super) const DATA_INDEX: Reference = Reference { field: "data index", ..INDEX };
/// Index of a site.
pub(super) const SITE_INDEX: Reference = Reference { field: "site index", ..INDEX };
/// Reference of a site to its caller.
pub(super) const PARENT: Reference = Reference { word: 1, field: "parent index", expected: "there are fewer sites" };
/// Reference of a site to its function.
pub(super) const SYMBOL: Reference = Reference { word: 3, field: "symbol index", expected: "there are fewer symbols" };
/// Reference of a site to its name.
pub(super) const NAME: Reference =
    Reference { word: 4, field: "name offset", expected: "no name of the string table starts there" };
/// Reference of a site to its sums.
pub(super) const SITE_DATA: Reference =
    Reference { word: 5, field: "data index", expected: "there are fewer data records" };

/// Counts and bytes for each of the four size classes: small, medium, large, extra large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of blocks of each class.
    pub counts: [u64; 4],
    /// Sum of the sizes of the blocks of each class, in bytes.
    pub totals: [u64; 4],
}

impl Sums {
    /// Counts one block of `size` bytes.
    #[inline]
    pub fn add(&mut self, bounds: &[u64; 3], size: u64) {
        let class = bounds.iter().filter(|&&bound| size > bound).count();
        self.counts[class] = self.counts[class].wrapping_add(1);
        self.totals[class] = self.totals[class].wrapping_add(size);
    }

    /// Returns the number of blocks of all classes. Sums of hostile numbers wrap.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &count| sum.wrapping_add(count))
    }

    /// Returns the bytes of all classes. Sums of hostile numbers wrap.
    pub fn total(&self) -> u64 {
        self.totals.iter().fold(0, |sum, &total| sum.wrapping_add(total))
    }
}

/// Sums of the blocks allocated at one call stack, and of those of them that were freed, at any
/// call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// Number of this record.
    pub index: u64,
    /// Sums of all blocks that were allocated here.
    pub allocated: Sums,
    /// Sums of those blocks that were freed.
    pub freed: Sums,
}

/// One return address with all its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Index of this site.
    pub index: u64,
    /// Index of the caller's site; 0 for the outermost frame.
    pub parent: u64,
    /// Return address of the call.
    pub address: u64,
    /// Number of the function's symbol; 0 if unknown.
    pub symbol: u64,
    /// Offset of the function's name in the string table; 0 if unknown.
    pub name: u64,
    /// Index of the data record; 0 for a frame that did not allocate.
    pub data: u64,
}

/// Numbers of blocks by exact size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    /// Allocated blocks of size 1, 2, 3 … The last bin also counts all larger ones.
    pub allocated: Vec<u64>,
    /// Bytes of the allocated blocks in the last bin.
    pub allocated_big: u64,
    /// Freed blocks, in the same number of bins.
    pub freed: Vec<u64>,
    /// Bytes of the freed blocks in the last bin.
    pub freed_big: u64,
}

impl Bins {
    /// Creates `count` empty bins.
    pub fn new(count: usize) -> Bins {
        Bins { allocated: vec![0; count], freed: vec![0; count], ..Bins::default() }
    }

    /// Counts an allocated block.
    #[inline]
    pub fn alloc(&mut self, size: u64) {
        self.alloc_many(size, 1);
    }

    /// Counts a freed block.
    #[inline]
    pub fn free(&mut self, size: u64) {
        self.free_many(size, 1);
    }

    /// Counts `blocks` allocated blocks of one size.
    #[inline]
    pub fn alloc_many(&mut self, size: u64, blocks: u64) {
        count(&mut self.allocated, &mut self.allocated_big, size, blocks);
    }

    /// Counts `blocks` freed blocks of one size.
    #[inline]
    pub fn free_many(&mut self, size: u64, blocks: u64) {
        count(&mut self.freed, &mut self.freed_big, size, blocks);
    }

    /// Adds the counts of `other`, which has the same number of bins.
    pub fn add(&mut self, other: &Bins) {
        for (mine, others) in [(&mut self.allocated, &other.allocated), (&mut self.freed, &other.freed)] {
            mine.iter_mut().zip(others).for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        }
        self.allocated_big = self.allocated_big.wrapping_add(other.allocated_big);
        self.freed_big = self.freed_big.wrapping_add(other.freed_big);
    }
}

#[inline]
fn count(bins: &mut [u64], big: &mut u64, size: u64, blocks: u64) {
    let Some(last) = bins.len().checked_sub(1) else { return };
    let bin = usize::try_from(size.saturating_sub(1)).map_or(last, |bin| bin.min(last));
    bins[bin] = bins[bin].wrapping_add(blocks);
    if bin == last {
        *big = big.wrapping_add(size.wrapping_mul(blocks));
    }
}

/// A profile: the tables of the file in the file's order.
///
/// Invariant of profiles that [`Profile::read`] returned: sites and data have the indexes 1..=n,
/// each once; every reference is 0 or refers to an existing record; parents form no loop; every
/// name in use ends with a NUL inside the string table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Byte order and word size of the machine that wrote it.
    pub abi: Abi,
    /// Version of the library that wrote it.
    pub version: u64,
    /// Upper bounds of small, medium and large blocks.
    pub bounds: [u64; 3],
    /// Numbers of blocks by size.
    pub bins: Bins,
    /// Sums of the call stacks that allocated.
    pub data: Vec<Data>,
    /// Call sites, usually in ascending address order.
    pub sites: Vec<Site>,
    /// Start addresses of symbols 1, 2, 3 …
    pub symbols: Vec<u64>,
    /// String table: names that end with NULs.
    pub strings: Vec<u8>,
    /// Bytes after the end mark, which no reader looks at.
    pub trailing: Vec<u8>,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            abi: Abi::LE64,
            version: VERSION,
            bounds: BOUNDS,
            bins: Bins::default(),
            data: Vec::new(),
            sites: Vec::new(),
            symbols: Vec::new(),
            strings: vec![0],
            trailing: Vec::new(),
        }
    }
}

impl Profile {
    /// Returns the name at an offset of the string table; none at offset 0 and outside the table.
    pub fn name(&self, offset: u64) -> Option<&[u8]> {
        if offset == 0 {
            return None;
        }
        let rest = self.strings.get(usize::try_from(offset).ok()?..)?;
        rest.get(..rest.iter().position(|&byte| byte == 0)?)
    }

    /// Returns the start address of a symbol.
    pub fn symbol(&self, number: u64) -> Option<u64> {
        self.symbols.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
    }

    /// Returns the position in [`Profile::data`] of each data index, at index - 1.
    pub fn data_positions(&self) -> Vec<usize> {
        positions(self.data.len(), self.data.iter().map(|data| data.index))
    }

    /// Returns the position in [`Profile::sites`] of each site index, at index - 1.
    pub fn site_positions(&self) -> Vec<usize> {
        positions(self.sites.len(), self.sites.iter().map(|site| site.index))
    }
}

fn positions(count: usize, indexes: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut positions = vec![0; count];
    for (position, index) in indexes.enumerate() {
        let slot = usize::try_from(index).ok().and_then(|index| positions.get_mut(index.wrapping_sub(1)));
        if let Some(slot) = slot {
            *slot = position;
        }
    }
    positions
}
