//! The memory that a program maps and unmaps: the record [`Mappings`], and what is mapped after a
//! list of its events.

use super::field::Text;
use crate::tape_record;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

tape_record! {
    /// A call that maps or unmaps memory, or half of one.
    MappingEvent {
        /// Tick of the call: of one that unmaps memory before it, of others after it.
        tick: u64,
        /// Number of the thread.
        thread: u32,
        /// One of the `MAPPING_EVENT_` numbers.
        kind: u8,
        /// First address of the range.
        address: u64,
        /// Length of the range in bytes, a multiple of the page size.
        size: u64,
        /// Call site of the call; 0 if it is not known.
        site: u32,
        /// A sum of `MAPPING_FLAG_` numbers; after [`MAPPING_EVENT_MOVED`] the flags of `mremap`.
        flags: u32,
        /// Number of the name of its file, from 1; 0 if it has none, or the name is not known.
        name: u32,
    }
}

tape_record! {
    /// Kind 21: calls by which the program mapped and unmapped memory.
    Mappings {
        /// Number of the first name. The others follow without gaps.
        first_name: u32,
        /// Names of mapped files, for this record and later ones.
        names: Vec<Text>,
        /// The calls, in the order in which they were recorded.
        events: Vec<MappingEvent>,
        /// Number of calls so far by which an allocator mapped memory. They are not among the
        /// events.
        allocator_calls: u64,
        /// Bytes that these calls mapped.
        allocator_bytes: u64,
    }
}

/// Returns the name of a kind of event.
pub const fn mapping_event(kind: u8) -> &'static str {
    match kind {
        MAPPING_EVENT_MAP => "map",
        MAPPING_EVENT_UNMAP => "unmap",
        MAPPING_EVENT_MOVE => "move",
        MAPPING_EVENT_MOVED => "moved",
        MAPPING_EVENT_FAILED => "failed",
        _ => "unknown",
    }
}

/// The range was mapped. What was mapped there before is gone.
pub const MAPPING_EVENT_MAP: u8 = 1;
/// The range is unmapped.
pub const MAPPING_EVENT_UNMAP: u8 = 2;
/// `mremap` begins: the range is unmapped.
pub const MAPPING_EVENT_MOVE: u8 = 3;
/// `mremap` has mapped this range, in place of the one of the thread's last event.
pub const MAPPING_EVENT_MOVED: u8 = 4;
/// The call of the thread's last event failed, and the range of that event stays mapped.
pub const MAPPING_EVENT_FAILED: u8 = 5;

/// The memory may be read, written (2) or executed (4).
pub const MAPPING_FLAG_READ: u32 = 1;
/// Other processes share the memory.
pub const MAPPING_FLAG_SHARED: u32 = 8;
/// The memory has no file.
pub const MAPPING_FLAG_ANONYMOUS: u32 = 32;
/// The memory is that of `brk` or `sbrk`.
pub const MAPPING_FLAG_BREAK: u32 = 1 << 12;
/// The memory is a segment of System V that `shmat` attached.
pub const MAPPING_FLAG_SEGMENT: u32 = 1 << 13;
/// The range was mapped before the segment of the recording began.
pub const MAPPING_FLAG_CARRIED: u32 = 1 << 14;
/// Flag of `mremap`: the old range stays mapped.
pub const MOVE_FLAG_KEEPS: u32 = 4;

/// Maximum number of ranges of [`MappedRanges`].
const MAX_RANGES: usize = 1 << 20;
/// Maximum number of threads whose last call may still fail.
const MAX_UNDO: usize = 256;

/// The call that mapped a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBy {
    /// Tick of the call.
    pub tick: u64,
    /// Number of the thread.
    pub thread: u32,
    /// Call site of the call; 0 if it is not known.
    pub site: u32,
    /// A sum of `MAPPING_FLAG_` numbers.
    pub flags: u32,
    /// Number of the name of its file; 0 if it has none.
    pub name: u32,
}

/// A range of addresses that the program has mapped by one call. Parts of it may be unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// First address of the range.
    pub start: u64,
    /// First address after the range.
    pub end: u64,
    /// The call that mapped it.
    pub by: MappedBy,
}

impl MappedRange {
    /// Returns the length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the event that maps the range.
    pub const fn event(&self) -> MappingEvent {
        let MappedBy { tick, thread, site, flags, name } = self.by;
        let (address, size) = (self.start, self.end - self.start);
        MappingEvent { tick, thread, kind: MAPPING_EVENT_MAP, address, size, site, flags, name }
    }
}

/// The ranges that are mapped, after the events so far. The ranges do not overlap. The numbers of
/// events come from a file or a traced process, and are not trusted.
///
/// ```
/// use heaptape_formats::tape::{MAPPING_EVENT_MAP, MAPPING_EVENT_UNMAP};
/// use heaptape_formats::tape::{MappedRanges, MappingEvent};
///
/// let mut ranges = MappedRanges::default();
/// let call = |kind, address, size| MappingEvent { kind, address, size, ..Default::default() };
/// ranges.apply(&call(MAPPING_EVENT_MAP, 0x10000, 0x3000));
/// ranges.apply(&call(MAPPING_EVENT_UNMAP, 0x11000, 0x1000));
/// assert_eq!((ranges.bytes(), ranges.iter().count()), (0x2000, 2));
/// ```
#[derive(Clone, Debug, Default)]
pub struct MappedRanges {
    /// End and call of each range, by its first address.
    ranges: BTreeMap<u64, (u64, MappedBy)>,
    bytes: u64,
    /// What the last call of a thread unmapped. The oldest are dropped.
    undo: VecDeque<(u32, Vec<MappedRange>)>,
    refused: u64,
}

impl MappedRanges {
    /// Returns the sum of the lengths of all ranges.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of ranges that were left out because there were too many.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = MappedRange> + '_ {
        self.ranges.iter().map(|(start, (end, by))| MappedRange { start: *start, end: *end, by: *by })
    }

    /// Changes the calls of all ranges.
    pub fn for_each_call(&mut self, mut change: impl FnMut(&mut MappedBy)) {
        self.ranges.values_mut().for_each(|(_, by)| change(by));
    }

    /// Returns the range that begins at an address.
    pub fn at(&self, start: u64) -> Option<MappedRange> {
        self.ranges.get(&start).map(|(end, by)| MappedRange { start, end: *end, by: *by })
    }

    /// Returns the range that contains an address.
    pub fn find(&self, address: u64) -> Option<MappedRange> {
        let (start, (end, by)) = self.ranges.range(..=address).next_back()?;
        (address < *end).then_some(MappedRange { start: *start, end: *end, by: *by })
    }

    /// Applies an event to the ranges.
    pub fn apply(&mut self, event: &MappingEvent) {
        let MappingEvent { tick, thread, kind, address, size, site, flags, name } = *event;
        let range = address..address.saturating_add(size);
        let by = MappedBy { tick, thread, site, flags, name };
        match kind {
            MAPPING_EVENT_MAP => {
                self.remove(range.clone());
                self.insert(range, by);
            }
            MAPPING_EVENT_UNMAP | MAPPING_EVENT_MOVE => {
                let removed = self.remove(range);
                self.undo.retain(|(other, _)| *other != thread);
                self.undo.push_back((thread, removed));
                if self.undo.len() > MAX_UNDO {
                    self.undo.pop_front();
                }
            }
            MAPPING_EVENT_MOVED => {
                let old = self.take_undo(thread);
                let first = old.first().map_or(MappedBy::default(), |range| range.by);
                if flags & MOVE_FLAG_KEEPS != 0 {
                    self.restore(&old);
                }
                self.remove(range.clone());
                self.insert(range, MappedBy { flags: first.flags, name: first.name, ..by });
            }
            MAPPING_EVENT_FAILED => {
                let old = self.take_undo(thread);
                self.restore(&old);
            }
            _ => {}
        }
    }

    fn take_undo(&mut self, thread: u32) -> Vec<MappedRange> {
        let index = self.undo.iter().position(|(other, _)| *other == thread);
        index.and_then(|index| self.undo.remove(index)).map_or_else(Vec::new, |(_, removed)| removed)
    }

    /// Adds ranges again, unless something else is mapped there by now.
    fn restore(&mut self, ranges: &[MappedRange]) {
        for range in ranges {
            let is_taken = self.ranges.range(..range.end).next_back().is_some_and(|(_, (end, _))| *end > range.start);
            if !is_taken {
                self.insert(range.start..range.end, range.by);
            }
        }
    }

    /// Adds a range where nothing is mapped.
    fn insert(&mut self, range: Range<u64>, by: MappedBy) {
        if range.is_empty() {
            return;
        }
        if self.ranges.len() >= MAX_RANGES {
            self.refused += 1;
            return;
        }
        self.bytes += range.end - range.start;
        self.ranges.insert(range.start, (range.end, by));
    }

    /// Unmaps a range, and returns what was mapped there.
    fn remove(&mut self, range: Range<u64>) -> Vec<MappedRange> {
        let mut removed = Vec::new();
        if range.is_empty() {
            return removed;
        }
        // The range that contains the start keeps what is before it.
        if let Some(found) = self.find(range.start).filter(|found| found.start < range.start) {
            self.ranges.insert(found.start, (range.start, found.by));
            self.ranges.insert(range.start, (found.end, found.by));
        }
        while let Some((start, (end, by))) =
            self.ranges.range(range.clone()).next().map(|(start, found)| (*start, *found))
        {
            self.ranges.remove(&start);
            if end > range.end {
                self.ranges.insert(range.end, (end, by));
            }
            let end = end.min(range.end);
            self.bytes -= end - start;
            removed.push(MappedRange { start, end, by });
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The size of the address space of the test in pages.
    const PAGES: u64 = 24;

    /// One call: thread, kind, first page, number of pages, and for a move the new first page and
    /// number.
    type Call = (u32, u8, u64, u64, u64, u64);

    fn event(thread: u32, kind: u8, page: u64, pages: u64, site: u32) -> MappingEvent {
        MappingEvent { kind, thread, site, address: page << 12, size: pages << 12, ..MappingEvent::default() }
    }

    proptest! {
        #[test]
        fn ranges_are_those_of_a_table_of_pages(calls in prop::collection::vec((0..3u32, 0..5u8, 0..PAGES, 0..8u64, 0..PAGES, 0..8u64), 0..200)) {
            let mut ranges = MappedRanges::default();
            // The site that mapped each page.
            let mut pages = [0u32; 64];
            for (number, call) in calls.iter().enumerate() {
                let (thread, what, page, length, to, new_length): Call = *call;
                let site = number as u32 + 1;
                let at = |page: u64, length: u64| page as usize..(page + length) as usize;
                match what {
                    0 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_MAP, page, length, site));
                        pages[at(page, length)].fill(site);
                    }
                    1 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_UNMAP, page, length, site));
                        pages[at(page, length)].fill(0);
                    }
                    2 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_UNMAP, page, length, site));
                        ranges.apply(&event(thread, MAPPING_EVENT_FAILED, 0, 0, site));
                    }
                    3 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_MOVE, page, length, site));
                        ranges.apply(&event(thread, MAPPING_EVENT_MOVED, to, new_length, site));
                        pages[at(page, length)].fill(0);
                        pages[at(to, new_length)].fill(site);
                    }
                    _ => {
                        let moved = MappingEvent { flags: MOVE_FLAG_KEEPS, ..event(thread, MAPPING_EVENT_MOVED, to, new_length, site) };
                        ranges.apply(&event(thread, MAPPING_EVENT_MOVE, page, length, site));
                        ranges.apply(&moved);
                        pages[at(to, new_length)].fill(site);
                    }
                }
                let mut found = [0u32; 64];
                for range in ranges.iter() {
                    found[(range.start >> 12) as usize..(range.end >> 12) as usize].fill(range.by.site);
                }
                prop_assert_eq!(found, pages);
                prop_assert_eq!(ranges.bytes() >> 12, pages.iter().filter(|site| **site != 0).count() as u64);
            }
        }

        #[test]
        fn hostile_events_are_bounded(events in prop::collection::vec(any::<(u32, u8, u64, u64, u32)>(), 0..100)) {
            let mut ranges = MappedRanges::default();
            for (thread, kind, address, size, flags) in events {
                ranges.apply(&MappingEvent { thread: thread % 4, kind: kind % 7, address, size, flags, ..MappingEvent::default() });
                prop_assert_eq!(ranges.iter().map(|range| u128::from(range.bytes())).sum::<u128>(), u128::from(ranges.bytes()));
            }
        }
    }
}
