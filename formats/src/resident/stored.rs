//! The record of a division in a tape: bounded, with the sites and ranges that have the most
//! memory.

use super::{Allocator, Bill, Heap, HeapKind, NeverBlock, Resident, SiteMemory, row};
use crate::tape::{
    ALLOCATOR_GLIBC, ALLOCATOR_JEMALLOC, ALLOCATOR_MIMALLOC, ALLOCATOR_TCMALLOC, ALLOCATOR_UNKNOWN, DividedHeap,
    DividedRange, DividedSite, DividedUses, Division, HEAP_ARENA, HEAP_MAIN, HEAP_MAPPED, HEAP_MAPPING,
};

/// Maximum number of sites that are stored for the memory that they pin, and for that which they
/// never wrote.
const MAX_PINNING: usize = 192;
const MAX_UNTOUCHED: usize = 64;
/// Maximum number of heaps that are stored.
const MAX_HEAPS: usize = 64;
/// Maximum number of ranges that are stored.
const MAX_RANGES: usize = 256;
/// Maximum number of a site that is read from a tape: those of larger numbers are left out.
const MAX_SITE: u32 = 1 << 24;

impl Allocator {
    /// Returns the number of the allocator in a tape: one of the `ALLOCATOR_` numbers.
    pub const fn number(self) -> u8 {
        match self {
            Allocator::Glibc => ALLOCATOR_GLIBC,
            Allocator::Jemalloc => ALLOCATOR_JEMALLOC,
            Allocator::Mimalloc => ALLOCATOR_MIMALLOC,
            Allocator::Tcmalloc => ALLOCATOR_TCMALLOC,
            Allocator::Unknown => ALLOCATOR_UNKNOWN,
        }
    }

    /// Returns the allocator with a number in a tape.
    pub const fn of_number(number: u8) -> Allocator {
        match number {
            ALLOCATOR_GLIBC => Allocator::Glibc,
            ALLOCATOR_JEMALLOC => Allocator::Jemalloc,
            ALLOCATOR_MIMALLOC => Allocator::Mimalloc,
            ALLOCATOR_TCMALLOC => Allocator::Tcmalloc,
            _ => Allocator::Unknown,
        }
    }
}

/// Marks the `most` rows with the largest values above 0.
fn mark<T>(rows: &[T], most: usize, value: impl Fn(&T) -> u64, marks: &mut [bool]) {
    let mut all: Vec<usize> = (0..rows.len()).filter(|index| value(&rows[*index]) > 0).collect();
    if all.len() > most {
        all.select_nth_unstable_by_key(most, |index| (std::cmp::Reverse(value(&rows[*index])), *index));
        all.truncate(most);
    }
    all.into_iter().for_each(|index| marks[index] = true);
}

fn stored_heap(heap: &Heap) -> DividedHeap {
    let kind = match heap.kind {
        HeapKind::Main => HEAP_MAIN,
        HeapKind::Arena => HEAP_ARENA,
        HeapKind::Mapping => HEAP_MAPPING,
        HeapKind::Mapped => HEAP_MAPPED,
    };
    let Bill { live, slack, held, free_pages, never_block, .. } = heap.bill;
    DividedHeap { kind, address: heap.address, live, slack, held, free_pages, never_block }
}

fn heap_of(stored: &DividedHeap) -> Heap {
    let DividedHeap { kind, address, live, slack, held, free_pages, never_block } = *stored;
    let kind = match kind {
        HEAP_MAIN => HeapKind::Main,
        HEAP_ARENA => HeapKind::Arena,
        HEAP_MAPPED => HeapKind::Mapped,
        _ => HeapKind::Mapping,
    };
    Heap { kind, address, bill: Bill { live, slack, held, free_pages, never_block, ..Bill::default() } }
}

impl Resident {
    /// Stores the division in a record, which has a few kilobytes.
    pub fn store_into(&self, record: &mut Division) {
        let (swapped_live, swapped) = self.swapped;
        let Resident { bill, untouched, zero, huge, .. } = *self;
        *record.uses = DividedUses { bill, untouched, swapped, swapped_live, zero, huge };
        record.heaps = self.heaps.iter().take(MAX_HEAPS).map(stored_heap).collect();
        let mut is_stored = vec![false; self.sites.len()];
        mark(&self.sites, MAX_PINNING, |site| site.pinned, &mut is_stored);
        mark(&self.sites, MAX_UNTOUCHED, |site| site.untouched, &mut is_stored);
        for ((site, memory), is_stored) in (0..).zip(&self.sites).zip(is_stored) {
            let SiteMemory { pinned, blocks, live, alone_pages, alone_occupied, untouched, .. } = *memory;
            if is_stored {
                record.sites.push(DividedSite { site, pinned, blocks, live, alone_pages, alone_occupied, untouched });
            } else {
                record.other_pinned += pinned;
                record.other_untouched += untouched;
            }
        }
        let mut is_stored = vec![false; self.never_block.len()];
        mark(&self.never_block, MAX_RANGES, |range| range.bytes, &mut is_stored);
        let mut end = 0;
        for (range, _) in self.never_block.iter().zip(is_stored).filter(|(_, is_stored)| *is_stored) {
            let (gap, length) = (range.start - end, range.end - range.start);
            record.never_blocks.push(DividedRange { gap, length, bytes: range.bytes });
            end = range.end;
        }
    }
}

impl From<&Division> for Resident {
    fn from(record: &Division) -> Resident {
        let mut sites = Vec::new();
        for stored in record.sites.iter().filter(|stored| stored.site <= MAX_SITE) {
            let DividedSite { site, pinned, blocks, live, alone_pages, alone_occupied, untouched } = *stored;
            *row(&mut sites, site) =
                SiteMemory { pinned, blocks, live, alone_pages, alone_occupied, untouched, ticks: None };
        }
        let mut at = 0_u64;
        let never_block = record.never_blocks.iter().map(|range| {
            let start = at.saturating_add(range.gap);
            at = start.saturating_add(range.length);
            NeverBlock { start, end: at, bytes: range.bytes }
        });
        Resident {
            bill: record.uses.bill,
            heaps: record.heaps.iter().map(heap_of).collect(),
            sites,
            untouched: record.uses.untouched,
            swapped: (record.uses.swapped_live, record.uses.swapped),
            zero: record.uses.zero,
            huge: record.uses.huge,
            never_block: never_block.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_division_is_read_as_it_was() {
        let heap =
            Heap { kind: HeapKind::Arena, address: 64 << 20, bill: Bill { live: 5, held: 6, ..Bill::default() } };
        let site =
            SiteMemory { pinned: 7, blocks: 1, live: 2, alone_pages: 1, alone_occupied: 3, ..Default::default() };
        let resident = Resident {
            bill: Bill { live: 1, slack: 2, held: 3, free_pages: 4, never_block: 5, undivided: 6, ..Bill::default() },
            heaps: vec![heap],
            sites: vec![SiteMemory::default(), site, SiteMemory { untouched: 9, ..Default::default() }],
            untouched: 9,
            swapped: (10, 11),
            zero: 12,
            huge: 13,
            never_block: vec![NeverBlock { start: 4096, end: 8192, bytes: 4096 }],
        };
        let mut record = Division::default();
        resident.store_into(&mut record);
        assert_eq!(format!("{:?}", Resident::from(&record)), format!("{resident:?}"));
        assert_eq!((record.sites.len(), record.other_pinned), (2, 0));
    }

    #[test]
    fn record_is_bounded() {
        let site = |number: u64| SiteMemory { pinned: number, untouched: 20_000 - number, ..Default::default() };
        let range = |number: u64| NeverBlock { start: number << 13, end: (number << 13) + 4096, bytes: 4096 };
        let resident = Resident {
            sites: (0..20_000).map(site).collect(),
            never_block: (0..20_000).map(range).collect(),
            ..Resident::default()
        };
        let mut record = Division::default();
        resident.store_into(&mut record);
        assert_eq!(record.sites.len(), MAX_PINNING + MAX_UNTOUCHED);
        let pinned: u64 = record.sites.iter().map(|site| site.pinned).sum();
        assert_eq!(pinned + record.other_pinned, (0..20_000).sum::<u64>());
        assert_eq!(record.sites.last().map(|site| site.pinned), Some(19_999));
        let mut bytes = Vec::new();
        crate::tape::Record::Division(record).put(&mut bytes);
        assert!(bytes.len() < 8 << 10, "{}", bytes.len());
    }

    #[test]
    fn hostile_records_are_bounded() {
        let sites = vec![DividedSite { site: u32::MAX, pinned: 1, ..Default::default() }];
        let range = DividedRange { gap: u64::MAX, length: u64::MAX, bytes: u64::MAX };
        let record = Division { sites, never_blocks: vec![range.clone(), range], ..Default::default() };
        let resident = Resident::from(&record);
        assert_eq!((resident.sites.len(), resident.never_block.len()), (0, 2));
    }
}
