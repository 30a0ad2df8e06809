//! The live blocks of one process: a map from the address to allocation index, size and site.
//!
//! An extendible hash table of small segments. A full segment splits in two, so no pause grows with
//! the table. A segment has groups of eight buckets with one byte of tag each: a lookup compares
//! eight tags at once and nearly always reads one bucket of the same page. A group covers 256
//! neighboring bytes, and the groups of a page are neighbors, so blocks that are close together are
//! found together. A block whose group is full is stored in that of another page. Each group counts
//! the blocks that overflowed it, so no tombstones are needed. A snapshot (for a forked child)
//! shares the segments; a change of a shared one copies it first.
//!
//! A bucket takes 26 bytes; a live block takes 45 bytes on average while the table grows.

#[allow(unsafe_code)]
mod memory;

use crate::sys::prefetch;
use memory::{Memory, SegmentMemory};
use std::collections::HashMap;
use std::sync::Arc;

/// Number of buckets of a group.
const BUCKETS: usize = 8;
/// Number of groups of a segment, a power of two.
const GROUPS: usize = 256;
/// A segment with more live blocks than this splits.
const SPLIT_ABOVE: u32 = (GROUPS * BUCKETS) as u32 * 25 / 32;
/// Maximum number of hash bits by which the directory distinguishes segments.
const MAX_DEPTH: u32 = 26;
/// Number of groups for the addresses of one page, a power of two.
const PAGE_GROUPS: usize = 16;
/// The lowest bit of each tag.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each tag, which is set for an occupied bucket.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// A live block, apart from its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Allocation index, below 2^48.
    pub index: u64,
    /// Requested bytes, below 2^48 (no CPU addresses more).
    pub size: u64,
    /// Site where the block was allocated.
    pub site: u32,
}

/// The largest size that is stored. Larger sizes, which only a hostile client sends, are reduced to
/// it.
pub const MAX_SIZE: u64 = (1 << 48) - 1;

/// A block at an address in 24 bytes: `low` = index << 16 | size & 0xffff, `high` = site << 32 |
/// size >> 16.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    /// Address of the block.
    pub address: u64,
    low: u64,
    high: u64,
}

impl Bucket {
    /// Packs a block and its address.
    #[inline(always)]
    pub fn new(address: u64, block: Block) -> Bucket {
        let low = block.index << 16 | (block.size & 0xffff);
        Bucket { address, low, high: u64::from(block.site) << 32 | (block.size >> 16 & 0xffff_ffff) }
    }

    /// Returns the block without its address.
    #[inline(always)]
    pub fn block(&self) -> Block {
        let size = (self.high & 0xffff_ffff) << 16 | (self.low & 0xffff);
        Block { index: self.low >> 16, size, site: (self.high >> 32) as u32 }
    }
}

/// An address and its hash, which determine where the block is stored.
#[derive(Clone, Copy)]
struct Key {
    address: u64,
    hash: u64,
}

impl Key {
    #[inline(always)]
    fn new(address: u64, multiplier: u64) -> Key {
        // With one multiplication some multipliers crowd successive pages in a fifth of the groups.
        let spread = (address >> 12).wrapping_mul(multiplier);
        Key { address, hash: (spread ^ spread >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Returns the group where the block is stored if that is not full. The groups of a page are
    /// neighbors, in an order of its own, since many programs use the same offset of each page.
    #[inline(always)]
    fn group(self) -> usize {
        let within = (self.address >> 8) as usize & (PAGE_GROUPS - 1);
        ((self.hash >> 17) as usize ^ within) & (GROUPS - 1)
    }

    /// Returns the tag. Blocks of the 256 bytes of one group that are 16 bytes apart have different
    /// tags.
    #[inline(always)]
    fn tag(self) -> u64 {
        0x80 | (self.hash >> 10 & 0x70) | (self.address >> 4 & 0x0f)
    }

    /// Returns the bucket where the block is stored if that is free.
    #[inline(always)]
    fn bucket(self) -> usize {
        (self.address >> 5) as usize & (BUCKETS - 1)
    }

    /// Returns the top bits of the tags of all buckets that may contain the block. There may be
    /// false positives.
    #[inline(always)]
    fn candidates(self, tags: u64) -> u64 {
        let differ = tags ^ (LOW_BITS * self.tag());
        differ.wrapping_sub(LOW_BITS) & !differ & HIGH_BITS
    }
}

/// Returns the group where a block is stored if this one is full: that of another page, since the
/// neighbors are often full too. All groups follow each other so.
#[inline(always)]
fn next_group(group: usize) -> usize {
    let next = group + PAGE_GROUPS;
    (next + next / GROUPS) & (GROUPS - 1)
}

/// The buckets of neighboring blocks. An operation needs one group in nearly all cases, so all that
/// it reads is in one page, or in two where a group extends into the next one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    /// The tag of each bucket, 0 if it is free.
    tags: u64,
    /// Number of blocks that belong to this group or to one before it and are stored after it. From
    /// 255 on it is not counted any more.
    overflowed: u8,
    buckets: [Bucket; BUCKETS],
}

impl Group {
    /// Stores a block in one of the buckets whose bits in `free` are set.
    #[inline(always)]
    fn put(&mut self, free: u64, key: Key, block: Bucket) {
        let preferred = key.bucket();
        let bucket = if free >> (8 * preferred + 7) & 1 != 0 { preferred } else { free.trailing_zeros() as usize / 8 };
        let shift = 8 * bucket;
        self.tags = self.tags & !(0xff << shift) | key.tag() << shift;
        // Word by word: a copy of what was just written waits for its stores.
        let Bucket { address, low, high } = block;
        let bucket = &mut self.buckets[bucket & (BUCKETS - 1)];
        (bucket.address, bucket.low, bucket.high) = (address, low, high);
    }
}

/// The memory of a segment.
#[derive(Clone, Debug)]
pub struct Groups([Group; GROUPS]);

impl Default for Groups {
    fn default() -> Self {
        Groups([Group::default(); GROUPS])
    }
}

impl Groups {
    /// Returns group and bucket of an address.
    #[inline(always)]
    fn find(&self, key: Key) -> Option<(usize, usize)> {
        let mut group = key.group();
        for _ in 0..GROUPS {
            let Group { tags, overflowed, buckets } = &self.0[group];
            let mut candidates = key.candidates(*tags);
            while candidates != 0 {
                let bucket = candidates.trailing_zeros() as usize / 8;
                if buckets[bucket].address == key.address {
                    return Some((group, bucket));
                }
                candidates &= candidates - 1;
            }
            if *overflowed == 0 {
                return None;
            }
            group = next_group(group);
        }
        None
    }

    /// Inserts a block if its group alone tells that it is not present, and has a free bucket, as
    /// nearly always. Returns whether it did.
    #[inline(always)]
    fn insert_at_once(&mut self, key: Key, block: Bucket) -> bool {
        let group = &mut self.0[key.group()];
        let free = !group.tags & HIGH_BITS;
        let is_simple = free != 0 && group.overflowed == 0 && key.candidates(group.tags) == 0;
        if is_simple {
            group.put(free, key, block);
        }
        is_simple
    }

    /// Inserts a block that is not present. There must be a free bucket.
    #[cold]
    fn insert(&mut self, key: Key, block: Bucket) {
        let mut group = key.group();
        for _ in 0..GROUPS {
            let free = !self.0[group].tags & HIGH_BITS;
            if free != 0 {
                return self.0[group].put(free, key, block);
            }
            let overflowed = &mut self.0[group].overflowed;
            *overflowed = overflowed.saturating_add(1);
            group = next_group(group);
        }
    }

    /// Removes the block in a bucket.
    #[inline(always)]
    fn clear(&mut self, key: Key, group: usize, bucket: usize) {
        self.0[group].tags &= !(0xff << (8 * bucket));
        let mut full_group = key.group();
        while full_group != group {
            let overflowed = &mut self.0[full_group].overflowed;
            if *overflowed != u8::MAX {
                *overflowed -= 1;
            }
            full_group = next_group(full_group);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.0.iter().flat_map(|Group { tags, buckets, .. }| {
            let is_used = move |(bucket, _): &(usize, &Bucket)| tags >> (8 * bucket + 7) & 1 != 0;
            buckets.iter().enumerate().filter(is_used).map(|(_, bucket)| bucket)
        })
    }
}

/// Sharing owned groups does not copy them.
#[derive(Debug)]
enum SegmentGroups {
    Owned(SegmentMemory),
    Shared(Arc<SegmentMemory>),
}

#[derive(Debug)]
struct Segment {
    groups: SegmentGroups,
    count: u32,
    /// Number of blocks above which the table has to act: 0 if blocks of the segment are crowded.
    limit: u32,
    /// Number of leading hash bits that all blocks of the segment have in common.
    depth: u32,
}

impl Segment {
    #[inline(always)]
    fn groups(&self) -> &Groups {
        match &self.groups {
            SegmentGroups::Owned(groups) => groups,
            SegmentGroups::Shared(groups) => groups,
        }
    }

    #[inline(always)]
    fn groups_mut(&mut self, memory: &mut Memory) -> &mut Groups {
        if let SegmentGroups::Shared(groups) = &self.groups {
            self.groups = SegmentGroups::Owned(memory.copy(groups));
        }
        match &mut self.groups {
            SegmentGroups::Owned(groups) => groups,
            SegmentGroups::Shared(_) => unreachable!("it was copied"),
        }
    }
}

/// The table of live blocks.
#[derive(Debug)]
pub struct Index {
    memory: Memory,
    segments: Vec<Segment>,
    /// Number of the segment for each value of the hash's leading bits.
    directory: Vec<u32>,
    depth: u32,
    /// Multiplier of the hash, not divisible by two. It is unknown to clients, so that they cannot
    /// fill one segment on purpose.
    multiplier: u64,
    count: u64,
    /// Blocks of a segment that is full and cannot be divided: one page has more than 1,600 of
    /// them, or their addresses were chosen on purpose.
    crowded: HashMap<u64, Block>,
}

impl Default for Index {
    fn default() -> Self {
        Index::new(random_multiplier())
    }
}

fn random_multiplier() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // A value near the golden ratio spreads neighbors well; the random bits keep it secret.
    0x9e37_79b9_7f4a_7c15 ^ (RandomState::new().hash_one(0u8) & 0xffff_fffe)
}

impl Index {
    fn new(multiplier: u64) -> Index {
        let mut memory = Memory::default();
        let first = Segment { groups: SegmentGroups::Owned(memory.empty()), count: 0, limit: SPLIT_ABOVE, depth: 0 };
        Index {
            memory,
            segments: vec![first],
            directory: vec![0],
            depth: 0,
            multiplier,
            count: 0,
            crowded: HashMap::new(),
        }
    }

    /// Returns the number of live blocks.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether no block is live.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline(always)]
    fn segment_of(&self, key: Key) -> usize {
        // A shift by 64 would not shift at all, so it is done in two steps.
        self.directory[(key.hash >> 1 >> (63 - self.depth)) as usize] as usize
    }

    /// Prefetches the memory that an operation on this address will need.
    #[inline(always)]
    pub fn prefetch(&self, address: u64) {
        let key = Key::new(address, self.multiplier);
        let groups = self.segments[self.segment_of(key)].groups();
        let group = &groups.0[key.group()];
        prefetch(&group.tags);
        prefetch(&group.buckets[key.bucket()]);
    }

    /// Returns the block at an address.
    pub fn get(&self, address: u64) -> Option<Block> {
        let key = Key::new(address, self.multiplier);
        let groups = self.segments[self.segment_of(key)].groups();
        let found = groups.find(key).map(|(group, bucket)| groups.0[group].buckets[bucket].block());
        if self.crowded.is_empty() { found } else { found.or_else(|| self.crowded.get(&address).copied()) }
    }

    /// Inserts a block at an address and returns the one that was there.
    #[inline(always)]
    pub fn insert(&mut self, address: u64, block: Block) -> Option<Block> {
        let key = Key::new(address, self.multiplier);
        let number = self.segment_of(key);
        let segment = &mut self.segments[number];
        let groups = segment.groups_mut(&mut self.memory);
        if !groups.insert_at_once(key, Bucket::new(address, block)) {
            if let Some((group, bucket)) = groups.find(key) {
                let bucket = &mut groups.0[group].buckets[bucket];
                let old = bucket.block();
                *bucket = Bucket::new(address, block);
                return Some(old);
            }
            groups.insert(key, Bucket::new(address, block));
        }
        segment.count += 1;
        self.count += 1;
        if segment.count > segment.limit { self.make_space(key) } else { None }
    }

    /// Removes the block at an address.
    pub fn remove(&mut self, address: u64) -> Option<Block> {
        self.take(address).map(|bucket| bucket.block())
    }

    /// Removes the block at an address, and returns it packed, as the journal stores it.
    #[inline(always)]
    pub fn take(&mut self, address: u64) -> Option<Bucket> {
        let key = Key::new(address, self.multiplier);
        let number = self.segment_of(key);
        let segment = &mut self.segments[number];
        // The block is searched for before a shared segment is copied: a child frees many blocks
        // that it does not have.
        let Some((group, bucket)) = segment.groups().find(key) else {
            return self.remove_crowded(address).map(|block| Bucket::new(address, block));
        };
        let found = segment.groups().0[group].buckets[bucket];
        segment.groups_mut(&mut self.memory).clear(key, group, bucket);
        segment.count -= 1;
        self.count -= 1;
        Some(found)
    }

    #[cold]
    #[inline(never)]
    fn remove_crowded(&mut self, address: u64) -> Option<Block> {
        let found = self.crowded.remove(&address)?;
        self.count -= 1;
        Some(found)
    }

    /// Splits the segment of a block that was inserted until it is not full, or stores the block
    /// elsewhere if the segment cannot be divided any further. Returns the block that was at its
    /// address and was stored elsewhere.
    #[cold]
    #[inline(never)]
    fn make_space(&mut self, key: Key) -> Option<Block> {
        let old = self.remove_crowded(key.address);
        loop {
            let number = self.segment_of(key);
            if self.segments[number].count <= SPLIT_ABOVE {
                return old;
            }
            let may_double = self.directory.len() <= 64 * self.segments.len() + 1024 && self.depth < MAX_DEPTH;
            if self.segments[number].depth == self.depth && !may_double {
                if let Some(block) = self.remove(key.address) {
                    self.crowded.insert(key.address, block);
                    self.count += 1;
                    self.segments[number].limit = 0;
                }
                return old;
            }
            self.split(number);
        }
    }

    fn split(&mut self, number: usize) {
        if self.segments[number].depth == self.depth {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
            self.depth += 1;
        }
        let Segment { limit, depth, .. } = self.segments[number];
        let depth = depth + 1;
        let (mut halves, mut counts) = ([self.memory.empty(), self.memory.empty()], [0; 2]);
        for bucket in self.segments[number].groups().iter() {
            let key = Key::new(bucket.address, self.multiplier);
            let half = (key.hash >> (64 - depth) & 1) as usize;
            halves[half].insert(key, *bucket);
            counts[half] += 1;
        }
        let [low, high] = halves;
        let new = self.segments.len() as u32;
        self.segments[number] = Segment { groups: SegmentGroups::Owned(low), count: counts[0], limit, depth };
        self.segments.push(Segment { groups: SegmentGroups::Owned(high), count: counts[1], limit, depth });
        // The directory entries of one segment are adjacent; the upper half of them is assigned to
        // the new one.
        let bit = 1usize << (self.depth - depth);
        for (bits, segment) in self.directory.iter_mut().enumerate() {
            if *segment as usize == number && bits & bit != 0 {
                *segment = new;
            }
        }
    }

    /// Returns a copy that shares all segments until one side changes them.
    pub fn snapshot(&mut self) -> Index {
        let mut segments = Vec::with_capacity(self.segments.len());
        for Segment { groups, count, limit, depth } in std::mem::take(&mut self.segments) {
            let groups = match groups {
                SegmentGroups::Owned(groups) => Arc::new(groups),
                SegmentGroups::Shared(groups) => groups,
            };
            segments.push(Segment { groups: SegmentGroups::Shared(Arc::clone(&groups)), count, limit, depth });
            self.segments.push(Segment { groups: SegmentGroups::Shared(groups), count, limit, depth });
        }
        let Index { depth, multiplier, count, .. } = *self;
        Index {
            memory: Memory::default(),
            segments,
            directory: self.directory.clone(),
            depth,
            multiplier,
            count,
            crowded: self.crowded.clone(),
        }
    }

    /// Returns all live blocks with their addresses, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        let stored = self.segments.iter().flat_map(|segment| segment.groups().iter());
        let crowded = self.crowded.iter().map(|(address, block)| (*address, *block));
        stored.map(|bucket| (bucket.address, bucket.block())).chain(crowded)
    }
}

#[cfg(test)]
mod tests;
