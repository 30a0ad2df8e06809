//! The shared memory of one session. The recorder creates it, sets its size and seals it (no
//! shrinking, no growing). The preload maps it and keeps no descriptor.
//!
//! ```text
//! page 0       | slots x 256 B | modules x 1 KiB | nodes x 16 B | slots x ring | 96 KiB
//! Header       | SlotControl   | ModuleEntry     | Node         | Record ring  | PatchTable
//! ```
//! The file is sparse, so memory that nothing touches costs nothing. The preload maps the header
//! and the first segment of each table, and more segments as it needs them ([`Segments`]). So a
//! program that limits its address space, or locks its memory, pays only for what is used. Rings
//! get smaller as the number of threads grows ([`Layout::ring_bytes`]).

mod slot;

pub use slot::*;

use crate::{
    board::Board, limits, modules::ModuleEntry, nodes::Node, patches::PatchTable, ring::Ring, segments::Segments,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A bit of [`Header::signs`]: the library notes when the process calls `exit` or `_exit`, so that another
/// name of one that has ended without is a sign of another program.
pub const TELLS_END: u32 = 2;
/// What [`Header::signs`] grows by when the process makes a child, or starts a program in one, by a
/// call that the library sees.
pub const CHILD: u32 = 16;

/// The first bytes of the header: `HEAPAREA`, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HEAPAREA");
/// The largest page that a kernel for this processor can have, in bytes. Every layout here is
/// rounded to it, so what is mapped on its own begins with a page under each of these kernels.
pub const PAGE: u64 = if cfg!(target_arch = "aarch64") { 64 << 10 } else { 4 << 10 };

/// Returns whether a process with pages of this size can map an area.
pub const fn is_page(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= 4 << 10 && bytes <= PAGE
}

/// The sizes that decide the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Params {
    /// Size of a ring in bytes: a power of two, at least a page.
    pub ring_bytes: u64,
    /// How often the ring of the first thread is doubled.
    pub first_ring_shift: u32,
    /// Number of thread slots.
    pub slots: u32,
    /// Capacity of the stack table in nodes.
    pub nodes: u32,
}

impl Default for Params {
    fn default() -> Self {
        Params { ring_bytes: limits::RING_BYTES, first_ring_shift: 0, slots: limits::SLOTS, nodes: limits::NODES }
    }
}

impl Params {
    /// Returns whether both sides can work with these sizes.
    pub const fn is_valid(self) -> bool {
        self.ring_bytes.is_power_of_two()
            && self.ring_bytes >= PAGE
            && self.ring_bytes <= 1 << 30
            && self.first_ring_shift <= limits::FIRST_RING_SHIFT
            && self.slots >= 1
            && self.slots <= 1 << 20
            && self.nodes >= 1024
            && self.nodes <= 1 << 28
    }

    /// Reduces slots, nodes and rings until the layout has at most `bytes` bytes. Used for
    /// processes with a limit on address space.
    pub const fn fit_into(mut self, bytes: u64) -> Params {
        while Layout::new(self).total > bytes {
            if self.slots > 64 {
                self.slots /= 2;
            } else if self.nodes > 1 << 18 {
                self.nodes /= 2;
            } else if self.first_ring_shift > 0 {
                self.first_ring_shift -= 1;
            } else if self.ring_bytes > 1 << 18 {
                self.ring_bytes /= 2;
            } else if self.slots > 8 {
                self.slots /= 2;
            } else if self.nodes > 1 << 16 {
                self.nodes /= 2;
            } else {
                break;
            }
        }
        self
    }
}

/// The tables of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The control records of the slots.
    Slots,
    /// The table of modules.
    Modules,
    /// The stack table, with its nodes.
    Nodes,
    /// The rings, one for each slot.
    Rings,
}

impl Table {
    /// All tables, in the order of the file.
    pub const ALL: [Table; 4] = [Table::Slots, Table::Modules, Table::Nodes, Table::Rings];

    /// Returns how the table is divided into segments.
    #[inline(always)]
    pub const fn segments(self) -> Segments {
        match self {
            Table::Slots => const { Segments::new(PAGE as u32 / size_of::<SlotControl>() as u32) },
            Table::Modules => const { Segments::new(64) },
            Table::Nodes => const { Segments::new(8_192) },
            Table::Rings => const { Segments::new(1) },
        }
    }
}

/// The offsets of the tables, in bytes from the start of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The sizes that the layout was computed from.
    pub params: Params,
    /// Offset of the control records of the slots.
    pub slots: u64,
    /// Offset of the module table.
    pub modules: u64,
    /// Offset of the stack table.
    pub nodes: u64,
    /// Offset of the first ring.
    pub rings: u64,
    /// Offset of the [`PatchTable`].
    pub patches: u64,
    /// Size of the area in bytes.
    pub total: u64,
}

/// Rounds up to a multiple of the page size.
const fn up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

impl Layout {
    /// Computes the layout for the given sizes.
    pub const fn new(params: Params) -> Layout {
        let slots = up(size_of::<Header>() as u64);
        let modules = slots + up(params.slots as u64 * size_of::<SlotControl>() as u64);
        let nodes = modules + up(limits::MODULES as u64 * size_of::<ModuleEntry>() as u64);
        let rings = nodes + up(params.nodes as u64 * size_of::<Node>() as u64);
        let layout = Layout { params, slots, modules, nodes, rings, patches: 0, total: 0 };
        let last = Table::Rings.segments().of(params.slots - 1);
        let (offset, bytes) = match layout.segment(Table::Rings, last) {
            Some(range) => range,
            None => (rings, 0),
        };
        let patches = offset + bytes;
        Layout { patches, total: patches + up(size_of::<PatchTable>() as u64), ..layout }
    }

    /// Returns the number of entries of a table.
    pub const fn entries(&self, table: Table) -> u32 {
        match table {
            Table::Slots | Table::Rings => self.params.slots,
            Table::Modules => limits::MODULES,
            Table::Nodes => self.params.nodes,
        }
    }

    /// Returns the size of each entry of a segment of a table, in bytes.
    pub const fn entry_bytes(&self, table: Table, segment: usize) -> u64 {
        match table {
            Table::Slots => size_of::<SlotControl>() as u64,
            Table::Modules => size_of::<ModuleEntry>() as u64,
            Table::Nodes => size_of::<Node>() as u64,
            Table::Rings => self.ring_bytes(segment),
        }
    }

    /// Returns the size of each ring of a segment, in bytes. The first four threads have full-size
    /// rings, and the first one possibly a larger one. Each time that the number of threads
    /// doubles, the rings of the new threads have half the size, down to
    /// [`limits::MIN_RING_BYTES`].
    pub const fn ring_bytes(&self, segment: usize) -> u64 {
        const FULL_SIZE: usize = 2;
        if segment == 0 {
            return self.params.ring_bytes << self.params.first_ring_shift;
        }
        let all = self.params.ring_bytes;
        let least = if all < limits::MIN_RING_BYTES { all } else { limits::MIN_RING_BYTES };
        let bytes = all >> segment.saturating_sub(FULL_SIZE);
        if bytes < least { least } else { bytes }
    }

    /// Returns offset and size of a segment of a table in bytes, or `None` if the table ends before
    /// it. The segments of a table follow each other in the file.
    #[inline(never)]
    pub const fn segment(&self, table: Table, segment: usize) -> Option<(u64, u64)> {
        let (segments, entries) = (table.segments(), self.entries(table));
        let Some(end) = segments.end(segment, entries) else { return None };
        let mut offset = match table {
            Table::Slots => self.slots,
            Table::Modules => self.modules,
            Table::Nodes => self.nodes,
            Table::Rings => self.rings,
        };
        if let Table::Rings = table {
            // Rings of later segments are smaller.
            let mut before = 0;
            while before < segment {
                offset += (segments.start(before + 1) - segments.start(before)) * self.ring_bytes(before);
                before += 1;
            }
        } else {
            offset += segments.start(segment) * self.entry_bytes(table, segment);
        }
        Some((offset, up((end - segments.start(segment)) * self.entry_bytes(table, segment))))
    }

    /// Returns offset and size of a slot's ring in bytes, or `None` if there is no such slot.
    pub const fn ring(&self, slot: u32) -> Option<(u64, u64)> {
        if slot >= self.params.slots {
            return None;
        }
        let segments = Table::Rings.segments();
        let segment = segments.of(slot);
        let Some((offset, _)) = self.segment(Table::Rings, segment) else { return None };
        let bytes = self.ring_bytes(segment);
        Some((offset + (slot as u64 - segments.start(segment)) * bytes, bytes))
    }
}

/// Value of `state`: the recorder has closed the session, and the process runs untraced from now
/// on.
pub const CLOSED: u32 = 2;
/// Value of `state`: the session is live.
pub const LIVE: u32 = 1;

/// Value of `activation`: events are recorded.
pub const ACTIVATION_ENABLED: u64 = 0;
/// Value of `activation`: the process is dormant. The thread-local variable of each of its threads
/// points to `activation` of the header, so that this one load decides. It is the value that a
/// thread's own activation has while its process is not traced.
pub const ACTIVATION_DORMANT: u64 = 128;

/// Value of `clock`: ticks are those of the CPU's counter (TSC).
pub const CLOCK_TSC: u32 = 1;
/// Value of `clock`: ticks are nanoseconds of `CLOCK_MONOTONIC`.
pub const CLOCK_MONOTONIC: u32 = 2;

/// Value of `stacks`: all frames are recorded.
pub const STACKS_FULL: u32 = 0;
/// Value of `stacks`: only the caller is recorded.
pub const STACKS_CALLER: u32 = 1;

/// Value of `overflow`: a thread waits for space while the recorder lives, and `wait_ms` for one
/// that is stopped or gone.
pub const OVERFLOW_WAIT: u32 = 0;
/// Value of `overflow`: events are dropped and counted.
pub const OVERFLOW_DROP: u32 = 1;
/// Value of `overflow`: a thread waits for space for at most `wait_ms` at a time, whether or not
/// the recorder shows signs of life. After a wait without success the process drops events until
/// the recorder clears `breaker`.
pub const OVERFLOW_BOUNDED: u32 = 2;

/// A value on a cache line of its own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// The first page of the area. The letters say who writes a field: R the recorder before the
/// hand-over, r the recorder at any time, p the preload.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct Header {
    /// R: the constant [`MAGIC`].
    pub magic: AtomicU64,
    /// R: the protocol version, [`crate::WIRE_VERSION`].
    pub version: AtomicU32,
    /// R: one of the `CLOCK_` values.
    pub clock: AtomicU32,
    /// R: the value of [`Params::ring_bytes`].
    pub ring_bytes: AtomicU64,
    /// R: the value of [`Params::slots`].
    pub slots: AtomicU32,
    /// R: the value of [`Params::nodes`].
    pub nodes: AtomicU32,
    /// R: number of functions in the [`PatchTable`]; with 0 the process does not map it.
    pub patches: AtomicU32,
    /// r: one of the `STACKS_` values.
    pub stacks: AtomicU32,
    /// r: one of the `OVERFLOW_` values.
    pub overflow: AtomicU32,
    /// r: whether frees are recorded with stacks too.
    pub free_stacks: AtomicU32,
    /// r: the most frames of a stack, at most [`limits::MAX_FRAMES`].
    pub max_frames: AtomicU32,
    /// r: mean number of bytes between samples; 0 records every event. Threads apply a new value at
    /// their next sample, or within [`limits::HEADER_CHECK_RECORDS`] records, and report it by
    /// [`crate::Op::SAMPLE_INTERVAL`].
    pub sample_bytes: AtomicU64,
    /// r: milliseconds that a full ring may make the process wait: in total for a recorder that is
    /// stopped or gone, or each time with [`OVERFLOW_BOUNDED`].
    pub wait_ms: AtomicU64,
    /// r: [`LIVE`] or [`CLOSED`].
    pub state: AtomicU32,
    /// R: the value of [`Params::first_ring_shift`]; 0 for libraries before minor version
    /// [`crate::MINOR_FIRST_RING`].
    pub first_ring_shift: AtomicU32,
    /// r: which ends the process announces: a sum of the `ANNOUNCE_` values. Libraries before minor
    /// version 4 ignore it, and those before 8 announce [`crate::hello::ORIGIN_EXIT`] only.
    pub announce_exit: AtomicU32,
    /// r: which calls that map memory are recorded: 0 for none, or a `RECORD_` value of
    /// [`crate::mapping`]. Libraries before minor version 5 ignore it.
    pub record_mappings: AtomicU32,
    /// p: address of the next `malloc`; 0 if it is not known. Written before `attached`.
    pub next_malloc: AtomicU64,
    /// r: the recorder's clock when its last pass began, which does not change while the recorder
    /// is stopped or gone. A program that may not read a clock takes its timestamps from here.
    pub heartbeat: Line<AtomicU64>,
    /// p: number of slots ever claimed (an upper bound of the indexes in use). The recorder does
    /// not lower it.
    pub slots_used: Line<AtomicU32>,
    /// p, r: a hint that no slot below this index is free.
    pub slot_hint: AtomicU32,
    /// p: what the process tells of itself: [`TELLS_END`], and how many times [`CHILD`].
    pub signs: AtomicU32,
    /// p: one more than the page faults of the children that the process had waited for when it
    /// called `exit` or `_exit`; 0 if it has not.
    pub child_faults: AtomicU64,
    /// p: number of events of threads that had no slot.
    pub dropped_without_slot: AtomicU64,
    /// p: number of nodes claimed, including node 0. It may exceed `nodes` when the table is full.
    pub nodes_used: Line<AtomicU32>,
    /// p: number of frames that got no node, so that their stacks end before them.
    pub nodes_missing: AtomicU64,
    /// p: number of modules claimed.
    pub modules_used: Line<AtomicU32>,
    /// p: 1 once the waiting time is used up, and the process drops events from now on. r: 0 when
    /// it may wait again ([`OVERFLOW_BOUNDED`]).
    pub breaker: AtomicU32,
    /// p: 1 once the area is mapped and in use. Before that the process may have given up. Written
    /// with Release.
    pub attached: AtomicU32,
    /// p: 1 if the program, or a library that was preloaded before, has a `malloc` of its own,
    /// which is called instead. Written before `attached`.
    pub own_malloc: AtomicU32,
    /// R: size of the [`crate::search_tables`] after the area in bytes; 0 if there are none.
    /// Libraries before minor version 7 ignore it.
    pub search_bytes: AtomicU32,
    /// p, in builds with `--cfg heaptape_verify` only: number of captures that were compared with a
    /// full walk, and number of those that differed.
    pub verified: [AtomicU64; 2],
    /// The same for comparisons with the libc's own `backtrace`.
    pub backtraced: [AtomicU64; 2],
    /// p: number of calls by which allocators mapped memory, and their bytes; the same of those by
    /// which they returned memory (`madvise`). They are not recorded one by one.
    pub allocator_mapped: [AtomicU64; 4],
    /// p: processes that cannot reach the recorder, including forked children. r removes the
    /// entries.
    pub board: Line<Board>,
    /// r: [`ACTIVATION_ENABLED`] or [`ACTIVATION_DORMANT`]. Forked children keep the page that
    /// holds it.
    pub activation: Line<AtomicU64>,
    /// r: the recorder, so that a process that waits knows whether it lives. Zeros from recorders
    /// that do not write it.
    pub recorder: Line<RecorderState>,
    /// p: 1 if more slots are needed than ever before, of which ended threads may own some. r: 0
    /// when it has looked for these.
    pub slots_wanted: Line<AtomicU32>,
    /// p: address and size of the library's private memory, so that the recorder does not take it
    /// for the program's; zeros if unused.
    pub private: Line<[[AtomicU64; 2]; PRIVATE_RANGES]>,
}

/// Number of ranges of private memory that [`Header::private`] has room for.
pub const PRIVATE_RANGES: usize = 8;

impl Header {
    /// Returns the ranges of the library's private memory: first address and first one after it.
    /// The numbers are the client's.
    pub fn private_ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ranges = self.private.0.iter().map(|range| range.each_ref().map(|word| word.load(Relaxed)));
        ranges.filter(|range| range[1] != 0).map(|[start, bytes]| (start, start.saturating_add(bytes)))
    }
}

/// What a waiting process must know of its recorder.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RecorderState {
    /// The kernel's id of the thread that reads the rings, in the recorder's pid namespace; 0 if it
    /// is not known.
    pub thread: AtomicU32,
    /// Start of that thread in clock ticks after the boot, as in `/proc/TID/stat`. Another thread
    /// with its number has another start.
    pub start: AtomicU64,
    /// Changes whenever the recorder has finished records that it had read.
    pub progress: AtomicU64,
}

/// Value of [`Header::announce_exit`]: [`crate::hello::ORIGIN_EXIT`], for a snapshot of the pages.
pub const ANNOUNCE_PAGES: u32 = 1;
/// Value of [`Header::announce_exit`]: [`crate::hello::ORIGIN_BEFORE_EXIT`], for the references. A
/// process that could not send it announces [`crate::hello::ORIGIN_EXIT`].
pub const ANNOUNCE_REFERENCES: u32 = 2;
/// Value of [`Header::announce_exit`]: as [`ANNOUNCE_PAGES`], by a process that has had more than
/// [`LARGE_KIB`] in memory. So one that ends before anybody looked at it has a snapshot if that
/// could find something.
pub const ANNOUNCE_LARGE: u32 = 4;
/// The libraries and tables of a small program, and the least that is called unseen.
pub const LARGE_KIB: u64 = 10 << 10;

const _: () = assert!(size_of::<Header>() == 4096 && size_of::<SlotControl>() == 256);

/// The area as mapped in this process. It can be copied, since it owns nothing; the code that
/// mapped the bytes keeps them mapped.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: an `Area` is an address and sizes. The mapped memory consists of atomics, and of records
// that are reached through `Ring` and `Node`, which have their own rules for sharing.
unsafe impl Send for Area {}
// SAFETY: as for `Send`, all shared memory is reached by atomics or by `Ring` and `Node`.
unsafe impl Sync for Area {}

impl Area {
    /// Returns the area at an address.
    ///
    /// # Safety
    /// `base` must be the start of `Layout::new(params).total` mapped bytes, page-aligned, that
    /// stay mapped (with or without access rights) while this value or anything made from it is
    /// used. The code that maps the bytes ensures it. Ranges without access rights must be made
    /// accessible before they are used.
    pub const unsafe fn new(base: *mut u8, params: Params) -> Area {
        Area { base, layout: Layout::new(params) }
    }

    /// Returns the start of the mapping.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the layout of the area.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    const fn at<T>(&self, offset: u64) -> *mut T {
        debug_assert!(offset + size_of::<T>() as u64 <= self.layout.total);
        // SAFETY: every caller passes an offset inside the layout, whose bytes stay mapped by the
        // condition of `new`.
        unsafe { self.base.add(offset as usize).cast() }
    }

    /// Returns the header of the area.
    #[inline(always)]
    pub const fn header<'a>(&self) -> &'a Header {
        // SAFETY: offset 0 holds the header; all its fields are atomics, so sharing with the other
        // process is sound.
        unsafe { &*self.at::<Header>(0) }
    }

    /// Returns the control record of a slot, or `None` if there is no such slot.
    pub const fn slot<'a>(&self, index: u32) -> Option<&'a SlotControl> {
        if index >= self.layout.params.slots {
            return None;
        }
        // SAFETY: the index was checked against the layout; all fields are atomics.
        Some(unsafe { &*self.at::<SlotControl>(self.layout.slots + index as u64 * size_of::<SlotControl>() as u64) })
    }

    /// Returns the ring of a slot, or `None` if there is no such slot.
    pub const fn ring(&self, index: u32) -> Option<Ring> {
        let Some((offset, bytes)) = self.layout.ring(index) else { return None };
        let records = self.at(offset);
        // SAFETY: the index was checked, so the ring's bytes lie inside the mapping.
        Some(unsafe { Ring::new(records, bytes / size_of::<crate::Record>() as u64) })
    }

    /// Returns the address of the first node.
    pub const fn first_node(&self) -> *mut Node {
        self.at(self.layout.nodes)
    }

    /// Returns a module entry, or `None` if there is no such entry.
    pub const fn module<'a>(&self, index: u32) -> Option<&'a ModuleEntry> {
        if index >= limits::MODULES {
            return None;
        }
        // SAFETY: the index was checked; all fields are atomics.
        Some(unsafe { &*self.at::<ModuleEntry>(self.layout.modules + index as u64 * size_of::<ModuleEntry>() as u64) })
    }

    /// Returns the table of patches.
    pub const fn patches<'a>(&self) -> &'a PatchTable {
        // SAFETY: the layout has the table at this offset; all fields are atomics.
        unsafe { &*self.at::<PatchTable>(self.layout.patches) }
    }

    /// Returns how many slots may be in use.
    pub fn slots_used(&self) -> u32 {
        self.header().slots_used.0.load(Relaxed).min(self.layout.params.slots)
    }
}

#[cfg(test)]
mod tests;
