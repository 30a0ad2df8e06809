//! What resident memory is used for, as the recorder computed it: the record [`Division`].

use super::field::Text;
use crate::tape_record;

tape_record! {
    /// The memory of a heap of the allocator.
    DividedHeap {
        /// One of the `HEAP_` numbers.
        kind: u8,
        /// First address of the heap; 0 for blocks with mappings of their own.
        address: u64,
        /// Requested bytes of live blocks.
        live: u64,
        /// What the allocator reserves for them in addition.
        slack: u64,
        /// Other bytes of pages that live blocks are on.
        held: u64,
        /// Bytes of pages that once held blocks, and hold none now.
        free_pages: u64,
        /// Bytes that never were a block's.
        never_block: u64,
    }
}

/// The heap grows by `brk`.
pub const HEAP_MAIN: u8 = 1;
/// The heap is a range of another arena of glibc.
pub const HEAP_ARENA: u8 = 2;
/// The heap is a mapping of an allocator.
pub const HEAP_MAPPING: u8 = 3;
/// All blocks of glibc that have mappings of their own.
pub const HEAP_MAPPED: u8 = 4;

tape_record! {
    /// What the live blocks of a call site keep in memory.
    DividedSite {
        /// Number of the call site; 0 for blocks that an ancestor allocated before a fork.
        site: u32,
        /// Free bytes of pages on which its blocks are.
        pinned: u64,
        /// Number of its blocks on pages with free bytes.
        blocks: u64,
        /// Bytes of these blocks on such pages.
        live: u64,
        /// Number of pages on which there are blocks of no other site.
        alone_pages: u64,
        /// Bytes that its blocks occupy on such pages.
        alone_occupied: u64,
        /// Live bytes on pages that are not in memory and not swapped out.
        untouched: u64,
    }
}

tape_record! {
    /// A range of resident pages without blocks.
    DividedRange {
        /// Bytes between the end of the range before and this one.
        gap: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Bytes of its pages that never were a block's.
        bytes: u64,
    }
}

tape_record! {
    /// The bytes of resident memory by use. Their sum, without `written`, is the resident memory.
    #[derive(Copy)]
    Bill {
        /// Requested bytes of live blocks.
        live: u64,
        /// What the allocator reserves for them in addition, by its size classes.
        slack: u64,
        /// Other bytes of pages that live blocks are on.
        held: u64,
        /// Bytes of pages that once held blocks, and hold none now.
        free_pages: u64,
        /// Bytes of private memory that never were a block's.
        never_block: u64,
        /// Bytes of private memory of a process whose blocks are not known.
        undivided: u64,
        /// Bytes of pages of files, with those that are private and were written.
        files: u64,
        /// Bytes of private pages of files that the process has written, which are in `files`, too.
        written: u64,
        /// Bytes of shared memory without a file on a disk.
        shared: u64,
        /// Bytes of the stacks of threads.
        stacks: u64,
        /// Bytes of the area, the library and the tables of heaptape.
        heaptape: u64,
        /// Bytes of pages that the snapshot does not list.
        unlisted: u64,
    }
}

tape_record! {
    /// The bytes of memory by use, and what is not resident or counts elsewhere.
    DividedUses {
        /// The resident memory by use.
        bill: Bill,
        /// Live bytes on pages that are not in memory and not swapped out.
        untouched: u64,
        /// Bytes of pages that are swapped out.
        swapped: u64,
        /// Live bytes on them.
        swapped_live: u64,
        /// Bytes of pages that were read and never written, which are not resident.
        zero: u64,
        /// Bytes of resident pages that belong to huge pages.
        huge: u64,
    }
}

tape_record! {
    /// Kind 22: the resident memory of a snapshot by its use, of a process whose events are not
    /// kept.
    Division {
        /// Tick of the snapshot: that of its [`Residency`](super::Residency).
        tick: u64,
        /// Why the memory is not divided, or not exactly; empty if it is.
        lacks: Text,
        /// One of the `ALLOCATOR_` numbers: the slack was computed by its size classes.
        allocator: u8,
        /// Number of live blocks at the snapshot, with those that were inherited by fork.
        blocks: u64,
        /// Number of the blocks that an ancestor allocated before a fork.
        inherited_blocks: u64,
        /// Bytes of these blocks.
        inherited_bytes: u64,
        /// Tick from which on blocks are known: the attach of a process that ran already. 0 if all
        /// of them are.
        blocks_since_tick: u64,
        /// Tick from which on freed blocks are known: pages whose blocks were freed before count as
        /// memory that never was a block's. 0 if all are known.
        freed_since_tick: u64,
        /// CPU time of the division in nanoseconds.
        cpu_ns: u64,
        /// The bytes by use.
        uses: Box<DividedUses>,
        /// The heaps of the allocator with the most memory, in this order.
        heaps: Vec<DividedHeap>,
        /// The call sites with the most pinned, and those with the most untouched bytes, in the
        /// order of their numbers.
        sites: Vec<DividedSite>,
        /// Sum of the pinned bytes of all other sites.
        other_pinned: u64,
        /// Sum of the untouched bytes of all other sites.
        other_untouched: u64,
        /// The largest ranges of memory that never was a block's, in ascending order.
        never_blocks: Vec<DividedRange>,
    }
}

/// The size classes of the allocator are not known.
pub const ALLOCATOR_UNKNOWN: u8 = 0;
/// The allocator is that of the C library of GNU.
pub const ALLOCATOR_GLIBC: u8 = 1;
/// The allocator is jemalloc.
pub const ALLOCATOR_JEMALLOC: u8 = 2;
/// The allocator is mimalloc.
pub const ALLOCATOR_MIMALLOC: u8 = 3;
/// The allocator is the tcmalloc of gperftools.
pub const ALLOCATOR_TCMALLOC: u8 = 4;
