//! The memory that a program maps and unmaps: the record [`Mappings`], and what is mapped after a
//! list of its events.

use super::field::{Added, Text};
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
        /// A sum of `MAPPING_FLAG_` numbers; after [`MAPPING_EVENT_MOVED`] the flags of `mremap`,
        /// after [`MAPPING_EVENT_ADVISE`] the advice.
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
        /// Number of calls so far by which an allocator returned memory (`madvise`).
        allocator_returned_calls: Added<u64>,
        /// Bytes in the ranges of these calls.
        allocator_returned_bytes: Added<u64>,
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
        MAPPING_EVENT_PROTECT => "protect",
        MAPPING_EVENT_ADVISE => "advise",
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

/// The access to the range has changed: its flags are the new ones, of read, write and execute.
pub const MAPPING_EVENT_PROTECT: u8 = 6;
/// `madvise` has returned the memory of the range, which stays mapped. Its flags are the number of
/// the advice.
pub const MAPPING_EVENT_ADVISE: u8 = 7;

/// The memory may be read, written (2) or executed (4).
pub const MAPPING_FLAG_READ: u32 = 1;
/// The flags of all access. A range of `mmap` with none of them is only reserved (`PROT_NONE`).
pub const MAPPING_ACCESS: u32 = 7;
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
/// The process has the range from its parent, which mapped it before the fork.
pub const MAPPING_FLAG_INHERITED: u32 = 1 << 15;
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

impl MappedBy {
    /// Returns whether the memory can only be reserved by its access: it is of `mmap`.
    const fn has_access(&self) -> bool {
        self.flags & (MAPPING_FLAG_BREAK | MAPPING_FLAG_SEGMENT) == 0
    }

    /// Returns whether the memory is only reserved: nothing may read, write or execute it.
    pub const fn is_reserved(&self) -> bool {
        self.has_access() && self.flags & MAPPING_ACCESS == 0
    }

    /// Returns whether the process has the range from its parent.
    pub const fn is_inherited(&self) -> bool {
        self.flags & MAPPING_FLAG_INHERITED != 0
    }
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
    /// Bytes of the ranges that are only reserved.
    reserved: u64,
    /// Bytes of the other ranges that the process has from its parent.
    inherited: u64,
    /// Bytes of all others.
    used: u64,
    /// What the last call of a thread unmapped. The oldest are dropped.
    undo: VecDeque<(u32, Vec<MappedRange>)>,
    refused: u64,
}

impl MappedRanges {
    /// Returns the sum of the lengths of all ranges.
    pub const fn bytes(&self) -> u64 {
        self.used + self.reserved + self.inherited
    }

    /// Returns the sum of the lengths of the ranges that are only reserved.
    pub const fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// Returns the sum of the lengths of the ranges that the process has from its parent, without
    /// those that are only reserved.
    pub const fn inherited_bytes(&self) -> u64 {
        self.inherited
    }

    /// Returns the sum of the lengths of the ranges that the process has mapped itself and may use.
    pub const fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Returns the sum that a range is in.
    const fn sum(&mut self, by: &MappedBy) -> &mut u64 {
        match (by.is_reserved(), by.is_inherited()) {
            (true, _) => &mut self.reserved,
            (false, true) => &mut self.inherited,
            (false, false) => &mut self.used,
        }
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
                // Memory that was mapped by an unknown call may be used.
                let unknown = MappedBy { flags: MAPPING_FLAG_READ, ..MappedBy::default() };
                let first = old.first().map_or(unknown, |range| range.by);
                if flags & MOVE_FLAG_KEEPS != 0 {
                    self.restore(&old);
                }
                self.remove(range.clone());
                let flags = first.flags & !MAPPING_FLAG_INHERITED;
                self.insert(range, MappedBy { flags, name: first.name, ..by });
            }
            MAPPING_EVENT_FAILED => {
                let old = self.take_undo(thread);
                self.restore(&old);
            }
            MAPPING_EVENT_PROTECT => self.protect(range, flags),
            _ => {}
        }
    }

    /// Returns the ranges, in this one, that a change of the access makes usable or reserved.
    fn changed_by(&self, range: &Range<u64>, access: u32) -> Vec<MappedRange> {
        if range.is_empty() {
            return Vec::new();
        }
        let is_changed = |by: &MappedBy| by.has_access() && by.is_reserved() != (access & MAPPING_ACCESS == 0);
        let first = self.find(range.start).map_or(range.start, |found| found.start);
        let touched = self.ranges.range(first..range.end.max(first)).filter(|(_, (_, by))| is_changed(by));
        let clipped = touched.map(|(start, (end, by))| MappedRange {
            start: (*start).max(range.start),
            end: (*end).min(range.end),
            by: *by,
        });
        clipped.collect()
    }

    /// Returns whether an event changes the ranges, or is of interest without that. Changes of the
    /// access that neither reserve memory nor make it usable do not.
    pub fn is_of_interest(&self, event: &MappingEvent) -> bool {
        let range = event.address..event.address.saturating_add(event.size);
        event.kind != MAPPING_EVENT_PROTECT || !self.changed_by(&range, event.flags).is_empty()
    }

    /// Changes the access to a range, where that makes memory usable or reserved.
    fn protect(&mut self, range: Range<u64>, access: u32) {
        for MappedRange { start, end, by } in self.changed_by(&range, access) {
            self.remove(start..end);
            let flags = by.flags & !MAPPING_ACCESS | access & MAPPING_ACCESS;
            self.insert(start..end, MappedBy { flags, ..by });
            self.join(start);
            self.join(end);
        }
    }

    /// Joins the ranges before and after an address if they are of one call, with the same access.
    fn join(&mut self, at: u64) {
        let (Some((start, (end, by))), Some((after, other))) =
            (self.ranges.range(..at).next_back().map(|(start, found)| (*start, *found)), self.ranges.get(&at).copied())
        else {
            return;
        };
        if end == at && by == other {
            self.ranges.remove(&at);
            self.ranges.insert(start, (after, by));
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
        *self.sum(&by) += range.end - range.start;
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
            *self.sum(&by) -= end - start;
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
        fn ranges_are_those_of_a_table_of_pages(calls in prop::collection::vec((0..3u32, 0..7u8, 0..PAGES, 0..8u64, 0..PAGES, 0..8u64), 0..200)) {
            let mut ranges = MappedRanges::default();
            // The site that mapped each page, and the access to it.
            let mut pages = [(0u32, 0u32); 64];
            for (number, call) in calls.iter().enumerate() {
                let (thread, what, page, length, to, new_length): Call = *call;
                let site = number as u32 + 1;
                let at = |page: u64, length: u64| page as usize..(page + length) as usize;
                // The new range of a move has the access of the first page of the old one.
                let old = pages[at(page, length)].iter().find(|page| page.0 != 0).map_or(MAPPING_FLAG_READ, |page| page.1);
                let old = old & !MAPPING_FLAG_INHERITED;
                match what {
                    0 => {
                        // Memory of brk is never reserved.
                        let flags = [0, 3, MAPPING_FLAG_BREAK, MAPPING_FLAG_INHERITED | 1][(to % 4) as usize];
                        ranges.apply(&MappingEvent { flags, ..event(thread, MAPPING_EVENT_MAP, page, length, site) });
                        pages[at(page, length)].fill((site, flags));
                    }
                    1 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_UNMAP, page, length, site));
                        pages[at(page, length)].fill((0, 0));
                    }
                    2 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_UNMAP, page, length, site));
                        ranges.apply(&event(thread, MAPPING_EVENT_FAILED, 0, 0, site));
                    }
                    3 => {
                        ranges.apply(&event(thread, MAPPING_EVENT_MOVE, page, length, site));
                        ranges.apply(&event(thread, MAPPING_EVENT_MOVED, to, new_length, site));
                        pages[at(page, length)].fill((0, 0));
                        pages[at(to, new_length)].fill((site, old));
                    }
                    4 | 5 => {
                        let flags = u32::from(what == 5);
                        let protect = MappingEvent { flags, ..event(thread, MAPPING_EVENT_PROTECT, page, length, site) };
                        let before: Vec<MappedRange> = ranges.iter().collect();
                        let is_of_interest = ranges.is_of_interest(&protect);
                        ranges.apply(&protect);
                        prop_assert_eq!(is_of_interest, before != ranges.iter().collect::<Vec<_>>());
                        for (_, access) in pages[at(page, length)].iter_mut().filter(|page| page.1 & MAPPING_FLAG_BREAK == 0) {
                            *access = *access & MAPPING_FLAG_INHERITED | flags;
                        }
                    }
                    _ => {
                        let moved = MappingEvent { flags: MOVE_FLAG_KEEPS, ..event(thread, MAPPING_EVENT_MOVED, to, new_length, site) };
                        ranges.apply(&event(thread, MAPPING_EVENT_MOVE, page, length, site));
                        ranges.apply(&moved);
                        pages[at(to, new_length)].fill((site, old));
                    }
                }
                let mut found = [(0u32, false, false); 64];
                for range in ranges.iter() {
                    let what = (range.by.site, range.by.is_reserved(), range.by.is_inherited());
                    found[(range.start >> 12) as usize..(range.end >> 12) as usize].fill(what);
                }
                let is_reserved = |site, access| site != 0 && access & !MAPPING_FLAG_INHERITED == 0;
                let expected = pages.map(|(site, access)| (site, is_reserved(site, access), access & MAPPING_FLAG_INHERITED != 0));
                prop_assert_eq!(found, expected);
                let sum = |counts: fn(&(u32, bool, bool)) -> bool| (expected.iter().filter(|page| counts(page)).count() as u64) << 12;
                prop_assert_eq!(ranges.bytes(), sum(|page| page.0 != 0));
                prop_assert_eq!(ranges.reserved_bytes(), sum(|page| page.1));
                prop_assert_eq!(ranges.inherited_bytes(), sum(|page| page.2 && !page.1));
                prop_assert_eq!(ranges.used_bytes(), sum(|page| page.0 != 0 && !page.1 && !page.2));
            }
        }

        #[test]
        fn hostile_events_are_bounded(events in prop::collection::vec(any::<(u32, u8, u64, u64, u32)>(), 0..100)) {
            let mut ranges = MappedRanges::default();
            for (thread, kind, address, size, flags) in events {
                ranges.apply(&MappingEvent { thread: thread % 4, kind: kind % 9, address, size, flags, ..MappingEvent::default() });
                prop_assert_eq!(ranges.iter().map(|range| u128::from(range.bytes())).sum::<u128>(), u128::from(ranges.bytes()));
                let reserved = ranges.iter().filter(|range| range.by.is_reserved());
                prop_assert_eq!(reserved.map(|range| range.bytes()).sum::<u64>(), ranges.reserved_bytes());
            }
        }
    }
}
