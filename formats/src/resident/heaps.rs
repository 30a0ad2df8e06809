//! The heaps of an allocator in the address space, as far as its layout shows them: glibc's main
//! arena grows by `brk`, and each further one consists of ranges that are aligned to 64 MiB
//! (`HEAP_MAX_SIZE` in glibc's `malloc/arena.c`). Of other allocators each mapping is a heap.

use super::Bill;
use super::bill::{LiveBlock, Ranges};
use super::size_class::Allocator;
use crate::tape::{MAPPING_ANONYMOUS, MAPPING_BRK};
use rustc_hash::{FxHashMap, FxHashSet};

/// Size and alignment of a range of a glibc arena.
const ARENA: u64 = 64 << 20;

/// Returns the first address of the range of an arena of glibc that a block is in, unless it has a
/// mapping of its own.
pub fn arena_of(block: &LiveBlock) -> Option<u64> {
    let is_small = block.size < ARENA && !Allocator::is_mapped_by_glibc(block.address, block.size);
    is_small.then(|| block.address / ARENA * ARENA)
}

/// What a heap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeapKind {
    /// The memory that grows by `brk`.
    Main,
    /// A range of another arena of glibc.
    Arena,
    /// A mapping of an allocator.
    Mapping,
    /// All blocks of glibc that have mappings of their own.
    Mapped,
}

/// The resident memory of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Kind of the heap, by the layout of the allocator.
    pub kind: HeapKind,
    /// First address of the heap; 0 for blocks with mappings of their own.
    pub address: u64,
    /// The bytes of the heap by use.
    pub bill: Bill,
}

/// Divides the resident memory by heap.
#[derive(Debug)]
pub(super) struct Heaps {
    allocator: Allocator,
    /// The ranges of arenas in which there are live blocks.
    arenas: FxHashSet<u64>,
    found: FxHashMap<(HeapKind, u64), Bill>,
    /// The heap of the addresses before `until`.
    current: Option<(HeapKind, u64)>,
    until: u64,
}

impl Heaps {
    /// Prepares the division for an allocator that has blocks in these ranges of arenas.
    pub(super) fn new(allocator: Allocator, arenas: FxHashSet<u64>) -> Heaps {
        Heaps { allocator, arenas, found: FxHashMap::default(), current: None, until: 0 }
    }

    /// Returns the first address after `at` that may be in another heap. Addresses ascend.
    pub(super) fn until(&mut self, ranges: &Ranges, at: u64) -> u64 {
        if at < self.until {
            return self.until;
        }
        let mapping = ranges.at(at);
        self.until = mapping.end.max(at + 1);
        self.current = match (mapping.kind, self.allocator) {
            (MAPPING_BRK, _) => Some((HeapKind::Main, mapping.start)),
            (MAPPING_ANONYMOUS, Allocator::Glibc) => {
                let arena = at / ARENA * ARENA;
                self.until = self.until.min(arena.saturating_add(ARENA));
                let is_arena = self.arenas.contains(&arena) && mapping.start <= arena;
                Some(if is_arena { (HeapKind::Arena, arena) } else { (HeapKind::Mapped, 0) })
            }
            (MAPPING_ANONYMOUS, _) => Some((HeapKind::Mapping, mapping.start)),
            _ => None,
        };
        self.until
    }

    /// Adds what was found since `before` to the heap of the last address.
    pub(super) fn add(&mut self, before: &Bill, now: &Bill) {
        let Some(heap) = self.current else { return };
        let bill = self.found.entry(heap).or_default();
        bill.live += now.live - before.live;
        bill.slack += now.slack - before.slack;
        bill.held += now.held - before.held;
        bill.free_pages += now.free_pages - before.free_pages;
        bill.never_block += now.never_block - before.never_block;
    }

    /// Returns the heaps in which there are blocks, or were some, those with the most memory first.
    pub(super) fn finish(self) -> Vec<Heap> {
        let heaps = self.found.into_iter().map(|((kind, address), mut bill)| {
            if kind == HeapKind::Mapped {
                // It may belong to the program as well.
                bill.never_block = 0;
            }
            Heap { kind, address, bill }
        });
        let mut heaps: Vec<Heap> = heaps.filter(|heap| heap.bill.sum() > heap.bill.never_block).collect();
        heaps.sort_unstable_by_key(|heap| (std::cmp::Reverse(heap.bill.sum()), heap.address));
        heaps
    }
}
