//! Where the blocks of each region are: an extendible hash table of small segments. A full segment
//! splits in two, so no pause grows with the table. Four neighboring regions share a line of the
//! cache, since a program that uses one of them often uses the next one soon.

use super::runs::Run;
use std::sync::Arc;

/// Number of slots of a segment, a power of two.
const SLOTS: usize = 1024;
/// A segment with more regions than this splits.
const SPLIT_ABOVE: u32 = SLOTS as u32 / 2;
/// Binary logarithm of the number of regions of a line.
const LINE_LOG2: u32 = 2;
const LINE: usize = 1 << LINE_LOG2;
/// Maximum number of hash bits by which segments are distinguished.
const MAX_DEPTH: u32 = 26;

/// A region and its run.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Number of the region plus 1; 0 for a free slot.
    region: u64,
    run: Run,
}

/// Where a region is searched for.
#[derive(Clone, Copy)]
struct Key {
    region: u64,
    hash: u64,
}

impl Key {
    #[inline(always)]
    fn new(region: u64, multiplier: u64) -> Key {
        // With one multiplication some multipliers crowd successive lines in a few slots.
        let spread = (region >> LINE_LOG2).wrapping_mul(multiplier);
        Key { region, hash: (spread ^ spread >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Returns the slot of the region if that is not taken. Its position in the line depends on the
    /// hash as well, since many programs use each fourth region only.
    #[inline(always)]
    fn slot(self) -> usize {
        ((self.hash >> 16) as usize % SLOTS) ^ (self.region as usize % LINE)
    }

    /// Returns all slots in which the region may be, in the order in which they are searched.
    #[inline(always)]
    fn slots(self) -> impl Iterator<Item = usize> {
        (0..SLOTS / LINE).map(move |line| (self.slot() + LINE * line) % SLOTS)
    }
}

#[derive(Clone, Debug)]
struct Segment {
    slots: Arc<[Slot; SLOTS]>,
    /// Number of regions in the segment.
    count: u32,
    /// Number of leading hash bits that all regions of the segment have in common.
    depth: u32,
}

impl Segment {
    fn new(depth: u32) -> Segment {
        Segment { slots: Arc::new([Slot::default(); SLOTS]), count: 0, depth }
    }

    /// Stores a region that is not present. Returns whether there was a free slot.
    fn add(&mut self, key: Key, run: Run) -> bool {
        let Some(slot) = key.slots().find(|slot| self.slots[*slot].region == 0) else { return false };
        Arc::make_mut(&mut self.slots)[slot] = Slot { region: key.region + 1, run };
        self.count += 1;
        true
    }

    fn regions(&self) -> impl Iterator<Item = (u64, Run)> {
        self.slots.iter().filter(|slot| slot.region != 0).map(|slot| (slot.region - 1, slot.run))
    }
}

/// The runs of all regions.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Number of the segment for each value of the hash's leading bits.
    numbers: Vec<u32>,
    depth: u32,
    /// Multiplier of the hash, not divisible by two. It is unknown to clients, so that they cannot
    /// fill one segment on purpose.
    multiplier: u64,
}

impl Directory {
    /// Makes an empty directory.
    pub(super) fn new(multiplier: u64) -> Directory {
        Directory { segments: vec![Segment::new(0)], numbers: vec![0], depth: 0, multiplier }
    }

    #[inline(always)]
    fn key(&self, region: u64) -> Key {
        Key::new(region, self.multiplier)
    }

    #[inline(always)]
    fn number(&self, key: Key) -> usize {
        // A shift by 64 would not shift at all, so it is done in two steps.
        self.numbers[(key.hash >> 1 >> (63 - self.depth)) as usize] as usize
    }

    #[inline(always)]
    pub(super) fn get(&self, region: u64) -> Option<Run> {
        let key = self.key(region);
        let slots = &self.segments[self.number(key)].slots;
        for slot in key.slots() {
            let slot = &slots[slot];
            if slot.region == region + 1 {
                return Some(slot.run);
            }
            if slot.region == 0 {
                break;
            }
        }
        None
    }

    pub(super) fn replace(&mut self, region: u64, run: Run) {
        let key = self.key(region);
        let number = self.number(key);
        let slots = Arc::make_mut(&mut self.segments[number].slots);
        if let Some(slot) = key.slots().find(|slot| slots[*slot].region == region + 1) {
            slots[slot].run = run;
        }
    }

    /// Adds a region that is not present. Regions for whose runs `is_unused` returns true are
    /// removed before a segment splits. Returns whether there was a slot for the region.
    pub(super) fn add(&mut self, region: u64, run: Run, mut is_unused: impl FnMut(Run) -> bool) -> bool {
        let key = self.key(region);
        let mut number = self.number(key);
        if self.segments[number].count >= SPLIT_ABOVE {
            self.clean(number, &mut is_unused);
            // A segment that is nearly full again would be cleaned again soon.
            while self.segments[number].count >= SPLIT_ABOVE - SPLIT_ABOVE / 8 && self.split(number) {
                number = self.number(key);
            }
        }
        self.segments[number].add(key, run)
    }

    /// Removes the regions of a segment whose runs are not used.
    fn clean(&mut self, number: usize, is_unused: &mut impl FnMut(Run) -> bool) {
        let old = &self.segments[number];
        let mut kept = Segment::new(old.depth);
        for (region, run) in old.regions() {
            if !is_unused(run) {
                kept.add(Key::new(region, self.multiplier), run);
            }
        }
        self.segments[number] = kept;
    }

    /// Divides a segment. Returns whether that is possible: regions that have many hash bits in
    /// common were chosen on purpose.
    fn split(&mut self, number: usize) -> bool {
        let Segment { depth, .. } = self.segments[number];
        if depth == self.depth {
            if self.depth == MAX_DEPTH || self.numbers.len() > 64 * self.segments.len() + 1024 {
                return false;
            }
            self.numbers = self.numbers.iter().flat_map(|segment| [*segment; 2]).collect();
            self.depth += 1;
        }
        let mut halves = [Segment::new(depth + 1), Segment::new(depth + 1)];
        for (region, run) in self.segments[number].regions() {
            let key = Key::new(region, self.multiplier);
            halves[(key.hash >> (63 - depth) & 1) as usize].add(key, run);
        }
        let [low, high] = halves;
        let new = self.segments.len() as u32;
        self.segments[number] = low;
        self.segments.push(high);
        // The entries of one segment are adjacent; the upper half of them is assigned to the new
        // one.
        let bit = 1usize << (self.depth - depth - 1);
        for (bits, segment) in self.numbers.iter_mut().enumerate() {
            if *segment as usize == number && bits & bit != 0 {
                *segment = new;
            }
        }
        true
    }

    /// Returns all regions and their runs, in arbitrary order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Run)> {
        self.segments.iter().flat_map(Segment::regions)
    }

    /// Returns the bytes of the table.
    pub(super) fn bytes(&self) -> u64 {
        (self.segments.len() * size_of::<[Slot; SLOTS]>() + self.numbers.len() * size_of::<u32>()) as u64
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.segments.len(), self.numbers.len())
    }
}
