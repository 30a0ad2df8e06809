//! The shared memory of one session as a whole. The recorder creates, sizes and seals it (no
//! shrinking, no growing); the preload maps it and keeps no descriptor.
//!
//! ```text
//! page 0            | slots x 256 B   | modules x 1 KiB | nodes x 16 B        | slots x ring
//! Header            | SlotControl     | ModuleEntry     | Node                | Record ring
//! ```
//! The file is sparse: what nobody touches costs nothing. The preload maps the header and the first
//! segment of each table, and more segments as it needs them ([`Segments`]). So a program that
//! limits its address space, or locks its memory, pays for what is used only. Rings get smaller as
//! the number of threads grows ([`Layout::ring_bytes`]).

use crate::{board::Board, limits, modules::ModuleEntry, nodes::Node, ring::Ring, segments::Segments};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Starts the header: `HEAPAREA`, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HEAPAREA");
/// Bytes of a page that every layout here is rounded to. Larger real pages are refused by the
/// recorder.
pub const PAGE: u64 = 4096;

/// The sizes that decide the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Params {
    /// Bytes of a ring, a power of two, at least a page.
    pub ring_bytes: u64,
    /// Thread slots.
    pub slots: u32,
    /// Stack nodes.
    pub nodes: u32,
}

impl Default for Params {
    fn default() -> Self {
        Params { ring_bytes: limits::RING_BYTES, slots: limits::SLOTS, nodes: limits::NODES }
    }
}

impl Params {
    /// Whether both sides can work with them.
    pub const fn is_valid(self) -> bool {
        self.ring_bytes.is_power_of_two()
            && self.ring_bytes >= PAGE
            && self.ring_bytes <= 1 << 30
            && self.slots >= 1
            && self.slots <= 1 << 20
            && self.nodes >= 1024
            && self.nodes <= 1 << 28
    }

    /// Shrinks slots, nodes and rings until the layout takes at most `bytes`: for processes with a
    /// limit on address space.
    pub const fn fit_into(mut self, bytes: u64) -> Params {
        while Layout::new(self).total > bytes {
            if self.slots > 64 {
                self.slots /= 2;
            } else if self.nodes > 1 << 18 {
                self.nodes /= 2;
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

/// A table of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The slot controls.
    Slots,
    /// The module table.
    Modules,
    /// The node table.
    Nodes,
    /// The rings, one for each slot.
    Rings,
}

impl Table {
    /// All of them, in the order of the file.
    pub const ALL: [Table; 4] = [Table::Slots, Table::Modules, Table::Nodes, Table::Rings];

    /// How the table is split into segments.
    #[inline(always)]
    pub const fn segments(self) -> Segments {
        match self {
            Table::Slots => const { Segments::new(16) },
            Table::Modules => const { Segments::new(64) },
            Table::Nodes => const { Segments::new(8_192) },
            Table::Rings => const { Segments::new(1) },
        }
    }
}

/// Where the parts lie: byte offsets from the start of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What it was made from.
    pub params: Params,
    /// The slot controls.
    pub slots: u64,
    /// The module table.
    pub modules: u64,
    /// The node table.
    pub nodes: u64,
    /// The rings.
    pub rings: u64,
    /// Bytes in all.
    pub total: u64,
}

const fn up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

impl Layout {
    /// Computes the offsets.
    pub const fn new(params: Params) -> Layout {
        let slots = up(size_of::<Header>() as u64);
        let modules = slots + up(params.slots as u64 * size_of::<SlotControl>() as u64);
        let nodes = modules + up(limits::MODULES as u64 * size_of::<ModuleEntry>() as u64);
        let rings = nodes + up(params.nodes as u64 * size_of::<Node>() as u64);
        let layout = Layout { params, slots, modules, nodes, rings, total: 0 };
        let last = Table::Rings.segments().of(params.slots - 1);
        let (offset, bytes) = match layout.segment(Table::Rings, last) {
            Some(place) => place,
            None => (rings, 0),
        };
        Layout { total: offset + bytes, ..layout }
    }

    /// Entries of a table.
    pub const fn entries(&self, table: Table) -> u32 {
        match table {
            Table::Slots | Table::Rings => self.params.slots,
            Table::Modules => limits::MODULES,
            Table::Nodes => self.params.nodes,
        }
    }

    /// Bytes of each entry of a segment of a table.
    pub const fn entry_bytes(&self, table: Table, segment: usize) -> u64 {
        match table {
            Table::Slots => size_of::<SlotControl>() as u64,
            Table::Modules => size_of::<ModuleEntry>() as u64,
            Table::Nodes => size_of::<Node>() as u64,
            Table::Rings => self.ring_bytes(segment),
        }
    }

    /// Bytes of each ring of a segment. The first four threads have whole rings; each time that the
    /// number of threads doubles, the rings of those that come are half as large, down to
    /// [`limits::MIN_RING_BYTES`].
    pub const fn ring_bytes(&self, segment: usize) -> u64 {
        const WHOLE: usize = 2;
        let all = self.params.ring_bytes;
        let least = if all < limits::MIN_RING_BYTES { all } else { limits::MIN_RING_BYTES };
        let bytes = all >> segment.saturating_sub(WHOLE);
        if bytes < least { least } else { bytes }
    }

    /// Offset and bytes of a segment of a table; `None` if the table ends before it. Segments of a
    /// table follow each other in the file.
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

    /// Offset and bytes of a slot's ring; `None` if there is no such slot.
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

/// The process runs untraced from now on: the recorder has closed the session.
pub const CLOSED: u32 = 2;
/// The session is live.
pub const LIVE: u32 = 1;

/// `gate`: events are told.
pub const ACTIVATION_ENABLED: u64 = 0;
/// `gate`: the process is dormant. The thread-local word of each of its threads points to the
/// header's `gate`, so that this very load decides; it is the value that a thread's own gate has
/// while its process is not traced.
pub const ACTIVATION_DORMANT: u64 = 128;

/// Ticks are the processor's time stamp counter.
pub const CLOCK_TSC: u32 = 1;
/// Ticks are nanoseconds of `CLOCK_MONOTONIC`.
pub const CLOCK_MONOTONIC: u32 = 2;

/// `stacks`: every frame.
pub const STACKS_FULL: u32 = 0;
/// `stacks`: the caller alone.
pub const STACKS_CALLER: u32 = 1;

/// `overflow`: wait for room, boundedly.
pub const OVERFLOW_WAIT: u32 = 0;
/// `overflow`: count and carry on.
pub const OVERFLOW_DROP: u32 = 1;
/// `overflow`: wait for room for at most `wait_ms` at a time, whether or not the recorder shows
/// life. After a wait without success the process drops until the recorder clears `breaker`.
pub const OVERFLOW_BOUNDED: u32 = 2;

/// A value alone on its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// The first page. Who writes: R the recorder before the hand-over, r the recorder at any time, p
/// the preload.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct Header {
    /// R: [`MAGIC`].
    pub magic: AtomicU64,
    /// R: [`crate::WIRE_VERSION`].
    pub version: AtomicU32,
    /// R: one of the `CLOCK_` values.
    pub clock: AtomicU32,
    /// R: [`Params::ring_bytes`].
    pub ring_bytes: AtomicU64,
    /// R: [`Params::slots`].
    pub slots: AtomicU32,
    /// R: [`Params::nodes`].
    pub nodes: AtomicU32,
    /// r: one of the `STACKS_` values.
    pub stacks: AtomicU32,
    /// r: one of the `OVERFLOW_` values.
    pub overflow: AtomicU32,
    /// r: frames carry stacks at frees too.
    pub free_stacks: AtomicU32,
    /// r: most frames of a stack, at most [`limits::MAX_FRAMES`].
    pub max_frames: AtomicU32,
    /// r: mean bytes between samples; 0 records every event. Threads take a new value up at their
    /// next sample, or within [`limits::HEADER_CHECK_RECORDS`] records, and tell so by [`crate::Op::SAMPLE_INTERVAL`].
    pub sample_bytes: AtomicU64,
    /// r: milliseconds that a full ring may make the process wait: in all, while the recorder shows
    /// no life; with [`OVERFLOW_BOUNDED`] each time, whatever the recorder does.
    pub wait_ms: AtomicU64,
    /// r: [`LIVE`] or [`CLOSED`].
    pub state: AtomicU32,
    /// r: the recorder's clock when its last pass began; stands still when it is stopped or gone. A
    /// program that may not read a clock takes its timestamps from here.
    pub heartbeat: Line<AtomicU64>,
    /// p: slots ever claimed (an upper bound of the indexes in use); r lowers nothing.
    pub slots_used: Line<AtomicU32>,
    /// p, r: no slot below this index is free, as a hint.
    pub slot_hint: AtomicU32,
    /// p: events that found no slot.
    pub dropped_without_slot: AtomicU64,
    /// p: nodes claimed, node 0 among them; may pass `nodes` when the table is full.
    pub nodes_used: Line<AtomicU32>,
    /// p: captures whose stack found no node.
    pub nodes_missing: AtomicU64,
    /// p: modules claimed.
    pub modules_used: Line<AtomicU32>,
    /// p: 1 once the wait budget is spent: the process drops from now on. r: 0 when it may wait
    /// again ([`OVERFLOW_BOUNDED`]).
    pub breaker: AtomicU32,
    /// p: 1 once the area is mapped and in use; before that the process may have given up. Release.
    pub attached: AtomicU32,
    /// p: 1 when the program, or a library that was preloaded before, has a `malloc` of its own,
    /// which is called instead. Before `attached`.
    pub own_malloc: AtomicU32,
    /// p, builds with `--cfg heaptape_verify` only: captures compared with a full walk, and how
    /// many differed.
    pub verified: [AtomicU64; 2],
    /// The same, compared with the libc's own `backtrace`.
    pub backtraced: [AtomicU64; 2],
    /// p: processes that cannot reach the recorder, forked children among them; r takes the entries
    /// away.
    pub board: Line<Board>,
    /// r: [`ACTIVATION_ENABLED`] or [`ACTIVATION_DORMANT`]. The page that holds it is the one that forked children
    /// keep.
    pub activation: Line<AtomicU64>,
}

/// A slot that nobody owns.
pub const SLOT_FREE: u32 = 0;
/// A slot that a thread owns.
pub const SLOT_CLAIMED: u32 = 1;

/// The control block of one thread's ring: four cache lines.
#[derive(Debug, Default)]
#[repr(C, align(256))]
pub struct SlotControl {
    /// Written by the thread.
    pub producer: Line<ProducerState>,
    /// Written by the recorder.
    pub consumer: Line<ConsumerState>,
    /// Written by the thread when it must wait.
    pub waiting: Line<AtomicU32>,
    /// Written at claim and give-back.
    pub owner: Line<OwnerState>,
}

/// What the thread tells on every event.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProducerState {
    /// Records published since the area was made. Release.
    pub head: AtomicU64,
    /// `head` after the record that is being timestamped, or `head` if there is none. Written
    /// before the timestamp is taken.
    pub reservation: AtomicU64,
    /// Number of events that happened on this slot, dropped ones included.
    pub emitted: AtomicU64,
    /// Number of events that were dropped for want of space in the ring.
    pub dropped: AtomicU64,
    /// Number of events that sampling skipped. They are not in `emitted`; the accounting adds them.
    pub sampled_out: AtomicU64,
    /// Number of deferred events (of signal handlers that interrupted a hook) that were dropped.
    /// They are in neither `emitted` nor `dropped`; the accounting adds them to both.
    pub deferred_dropped: AtomicU64,
}

/// What the recorder tells.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ConsumerState {
    /// Records that the recorder has taken over. Release.
    pub tail: AtomicU64,
    /// What the next recorder must know of the records before a position: the mark whose position
    /// is `tail` holds, the other one is being written.
    pub marks: [TimestampMark; 2],
    /// For each mark one more than the dropped events that the gap records before it report; 0 if
    /// that is not known.
    pub reported: [AtomicU64; 2],
}

/// Where a thread's stamps stood.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TimestampMark {
    /// Position in the ring.
    pub tail: AtomicU64,
    /// The timestamp that the next tick difference counts from.
    pub timestamp: AtomicU64,
}

impl ConsumerState {
    /// Notes the stamp, and the dropped events reported so far, at a position that is about to
    /// become the tail.
    #[inline]
    pub fn mark(&self, tail: u64, timestamp: u64, reported: u64) {
        let held = self.tail.load(Relaxed);
        let free = usize::from(self.marks[0].tail.load(Relaxed) == held);
        self.marks[free].timestamp.store(timestamp, Relaxed);
        self.reported[free].store(reported.wrapping_add(1), Relaxed);
        self.marks[free].tail.store(tail, Relaxed);
    }

    /// The mark at the tail.
    fn held(&self) -> Option<usize> {
        let tail = self.tail.load(Relaxed);
        self.marks.iter().position(|mark| mark.tail.load(Relaxed) == tail)
    }

    /// Returns the timestamp at the tail, or 0 if it is not known.
    pub fn timestamp(&self) -> u64 {
        self.held().map_or(0, |held| self.marks[held].timestamp.load(Relaxed))
    }

    /// The dropped events that the gap records before the tail report, if known.
    pub fn reported(&self) -> Option<u64> {
        if self.tail.load(Relaxed) == 0 {
            return Some(0);
        }
        self.reported[self.held()?].load(Relaxed).checked_sub(1)
    }
}

/// Who owns the slot.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OwnerState {
    /// [`SLOT_FREE`] or [`SLOT_CLAIMED`]; the thread takes by compare-and-swap, the recorder gives
    /// back.
    pub state: AtomicU32,
    /// Kernel's id of the owner.
    pub tid: AtomicU32,
    /// Counts the owners of this slot.
    pub epoch: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == 4096 && size_of::<SlotControl>() == 256);

/// The area as mapped in this process. Copyable: it owns nothing; the code that mapped the bytes
/// keeps them mapped.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: an `Area` is an address and sizes; all that lies behind it is atomic words or records
// reached through `Ring` and `Node`, which state their own sharing rules.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// # Safety
    /// `base` must be the start of `Layout::new(params).total` mapped bytes, page-aligned, that
    /// stay mapped (with or without access rights) as long as this value or anything made from it
    /// is used. The caller that maps upholds it. Parts without access rights must be opened before
    /// they are reached for.
    pub const unsafe fn new(base: *mut u8, params: Params) -> Area {
        Area { base, layout: Layout::new(params) }
    }

    /// The start of the mapping.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Where the parts lie.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    const fn at<T>(&self, offset: u64) -> *mut T {
        debug_assert!(offset + size_of::<T>() as u64 <= self.layout.total);
        // SAFETY: every caller gives an offset inside the layout, whose bytes `new`'s caller keeps
        // mapped.
        unsafe { self.base.add(offset as usize).cast() }
    }

    /// The header.
    #[inline(always)]
    pub const fn header<'a>(&self) -> &'a Header {
        // SAFETY: offset 0 holds the header; all its fields are atomics, so sharing with the other
        // process is sound.
        unsafe { &*self.at::<Header>(0) }
    }

    /// The control block of a slot; `None` when there is no such slot.
    pub const fn slot<'a>(&self, index: u32) -> Option<&'a SlotControl> {
        if index >= self.layout.params.slots {
            return None;
        }
        // SAFETY: the index was checked against the layout; all fields are atomics.
        Some(unsafe { &*self.at::<SlotControl>(self.layout.slots + index as u64 * size_of::<SlotControl>() as u64) })
    }

    /// The ring of a slot.
    pub const fn ring(&self, index: u32) -> Option<Ring> {
        let Some((offset, bytes)) = self.layout.ring(index) else { return None };
        let records = self.at(offset);
        // SAFETY: the index was checked, so the ring's bytes lie inside the mapping.
        Some(unsafe { Ring::new(records, bytes / size_of::<crate::Record>() as u64) })
    }

    /// The first node.
    pub const fn first_node(&self) -> *mut Node {
        self.at(self.layout.nodes)
    }

    /// A module entry.
    pub const fn module<'a>(&self, index: u32) -> Option<&'a ModuleEntry> {
        if index >= limits::MODULES {
            return None;
        }
        // SAFETY: the index was checked; all fields are atomics.
        Some(unsafe { &*self.at::<ModuleEntry>(self.layout.modules + index as u64 * size_of::<ModuleEntry>() as u64) })
    }

    /// How many slots may be in use.
    pub fn slots_used(&self) -> u32 {
        self.header().slots_used.0.load(Relaxed).min(self.layout.params.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_fill_the_file() {
        for (ring_bytes, slots, nodes) in [(1 << 20, 16_384, 1 << 24), (4096, 1, 1024), (1 << 22, 300, 70_000)] {
            let layout = Layout::new(Params { ring_bytes, slots, nodes });
            let mut next = layout.slots;
            for table in Table::ALL {
                for (offset, bytes) in (0..Segments::MAX).map_while(|segment| layout.segment(table, segment)) {
                    assert_eq!((offset, bytes % PAGE), (next, 0), "{table:?} of {:?}", layout.params);
                    next += bytes;
                }
            }
            assert_eq!(next, layout.total);
            let mut ring = layout.rings;
            for slot in 0..slots {
                assert_eq!(layout.ring(slot).map(|place| place.0), Some(ring));
                ring += layout.ring(slot).map_or(0, |place| place.1);
            }
            assert_eq!((ring, layout.ring(slots)), (layout.total, None));
        }
    }

    #[test]
    fn rings_of_many_threads_are_smaller() {
        let layout = Layout::new(Params::default());
        let all: u64 = (0..200).filter_map(|slot| layout.ring(slot)).map(|(_, bytes)| bytes).sum();
        assert_eq!(
            (layout.ring(3), layout.ring(16_383).map(|ring| ring.1)),
            (Some((layout.rings + (3 << 20), 1 << 20)), Some(32 << 10))
        );
        assert!(all < 17 << 20, "{all} bytes");
    }
}
