//! Private memory of the library: the page that shows whether this is the process that attached,
//! the states of the threads, and the indexes of stack nodes. A forked child sees all of it as
//! zeros (`MADV_WIPEONFORK`) and uses it again. Without this feature of the kernel (before 4.14)
//! nothing is recorded. The memory is mapped as it is needed, like the segments of the shared area.

use crate::sys::{self, Part};
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use heaptape_wire::area::PAGE;
use heaptape_wire::segments::Segments;

/// A page that a forked child sees as zeros. It holds 1 in the process that attached.
static ALIVE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// The division of the thread states into segments.
const STATES: Segments = Segments::new(1);
/// For each segment, the address that state 0 would have if the segment began with it; 0 if the
/// segment is not mapped.
static STATE_ORIGINS: [AtomicUsize; Segments::MAX] = [const { AtomicUsize::new(0) }; Segments::MAX];

/// Size of the state of a thread.
static STATE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Binary logarithm of the number of entries of the first index of nodes.
pub(crate) const FIRST_INDEX_LOG2: u32 = 13;
/// Binary logarithm of the number of entries of the largest index, which is twice the number of
/// nodes that can be distinguished.
const LAST_INDEX_LOG2: usize = 29;
/// The indexes by the binary logarithm of their number of entries; null if not mapped.
static INDEXES: [AtomicPtr<AtomicU64>; LAST_INDEX_LOG2 + 1] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; LAST_INDEX_LOG2 + 1];

/// Number of bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

const fn index_bytes(log2: u32) -> usize {
    size_of::<AtomicU64>() << log2
}

/// Makes a forked child see memory of zeros as zeros too. Returns `None`, and unmaps it, if the system
/// refuses.
#[inline(never)]
fn wiped(base: *mut u8, bytes: usize) -> Option<*mut u8> {
    if !sys::advise(base, bytes, libc::MADV_WIPEONFORK) {
        sys::unmap(base, bytes);
        return None;
    }
    sys::advise(base, bytes, libc::MADV_DONTDUMP);
    Some(base)
}

/// Maps such memory after the attach. The program may have requested all memory to be locked, and this
/// library's memory must not count against its limit.
#[inline(never)]
fn wiped_later(bytes: usize, part: Part) -> Option<*mut u8> {
    wiped(sys::map_private(bytes, part)?, bytes).inspect(|base| sys::unlock(*base, bytes))
}

/// Prepares the memory, for thread states of `state_bytes`: that of the parent process if
/// `is_inherited`, which this process sees as zeros, or else new memory.
pub(crate) fn start(is_inherited: bool, state_bytes: usize) -> bool {
    STATE_BYTES.store(state_bytes, Relaxed);
    if is_inherited && !ALIVE.load(Relaxed).is_null() {
        return true;
    }
    // Everything that an attach needs is in one mapping, which saves system calls.
    let (page, index) = (PAGE as usize, index_bytes(FIRST_INDEX_LOG2));
    let bytes = page + index + state_bytes;
    let Some(base) = sys::map_private(bytes, Part::All).and_then(|base| wiped(base, bytes)) else { return false };
    INDEXES.iter().for_each(|index| index.store(core::ptr::null_mut(), Relaxed));
    STATE_ORIGINS.iter().for_each(|origin| origin.store(0, Relaxed));
    INDEXES[FIRST_INDEX_LOG2 as usize].store(base.wrapping_add(page).cast(), Relaxed);
    STATE_ORIGINS[0].store(base as usize + page + index, Relaxed);
    ALIVE.store(base.cast(), Relaxed);
    true
}

/// Returns whether this process is the one that attached, and not a child that was forked since.
pub(crate) fn is_ours() -> bool {
    let alive = ALIVE.load(Relaxed);
    // SAFETY: the page stays mapped for ever; a child reads zeros.
    !alive.is_null() && unsafe { (*alive).load(Relaxed) } == 1
}

/// Marks this process as the one that attached.
pub(crate) fn attached() {
    // SAFETY: [`start`] has stored the address of a page that stays mapped.
    unsafe { (*ALIVE.load(Relaxed)).store(1, Release) };
}

/// Tells the recorder where this memory is. There is room for the largest ranges. Each segment is
/// twice as large as the one before it, so that the others are a 128th of all; of the indexes only
/// the last one has memory.
#[cold]
#[inline(never)]
pub(crate) fn publish(header: &heaptape_wire::Header) {
    /// The most segments, which leaves room for the last index. With two less, 32 states of 1,024
    /// seemed to be memory of the program, and some 8 MiB to be another allocator's.
    const SEGMENTS: usize = heaptape_wire::area::PRIVATE_RANGES - 1;
    let state_bytes = STATE_BYTES.load(Relaxed);
    let states = STATE_ORIGINS.iter().enumerate().rev().map(|(segment, origin)| {
        let (origin, first) = (origin.load(Relaxed), STATES.start(segment) as usize);
        let bytes = (STATES.start(segment + 1) as usize - first) * state_bytes;
        (if origin == 0 { 0 } else { origin.wrapping_add(first * state_bytes) }, bytes)
    });
    let indexes = INDEXES.iter().enumerate().rev();
    let indexes = indexes.map(|(log2, index)| (index.load(Relaxed) as usize, index_bytes(log2 as u32)));
    let is_mapped = |range: &(usize, usize)| range.0 != 0;
    let mapped = states.filter(is_mapped).take(SEGMENTS).chain(indexes.filter(is_mapped));
    for ([to, size], (start, bytes)) in header.private.0.iter().zip(mapped) {
        to.store(start as u64, Relaxed);
        size.store(bytes as u64, Relaxed);
    }
}

/// Maps a segment of states.
fn map_states(_page: *mut u8, bytes: usize, part: Part) -> Option<*mut u8> {
    let base = wiped_later(bytes, part)?;
    // A thread uses little of its state, and with huge pages it would pay for all of it.
    sys::advise(base, bytes, libc::MADV_NOHUGEPAGE);
    Some(base)
}

/// Returns the memory for the state of a slot, which has `state_bytes`, and maps it if needed.
/// Returns `None` if there is no memory for it.
pub(crate) fn thread_state(slot: u32, state_bytes: usize) -> Option<*mut u8> {
    let segment = STATES.of(slot);
    let start = STATES.start(segment) as usize * state_bytes;
    let known = STATE_ORIGINS.get(segment)?;
    let origin = match known.load(Acquire) {
        0 => {
            let bytes = (STATES.start(segment + 1) - STATES.start(segment)) as usize * state_bytes;
            sys::map_once(known, start, (core::ptr::null_mut(), bytes, Part::Quarter), map_states)?
        }
        origin => origin,
    };
    Some(origin.wrapping_add(slot as usize * state_bytes) as *mut u8)
}

/// Returns the index of this size, and maps it if needed. Returns `None` if there is no memory for
/// it. The index is all zeros before its first use in this process.
#[inline(never)]
pub(crate) fn index(log2: u32) -> Option<*mut AtomicU64> {
    let known = INDEXES.get(log2 as usize)?;
    if known.load(Acquire).is_null() {
        let (bytes, base) = (index_bytes(log2), wiped_later(index_bytes(log2), Part::Sixteenth)?);
        if bytes >= HUGE_PAGE {
            // Each lookup reads another page of it.
            sys::advise(base, bytes, libc::MADV_HUGEPAGE);
        }
        known.store(base.cast(), Release);
    }
    Some(known.load(Acquire))
}

/// Returns the memory of an index that is not used any more. It stays mapped, and is all zeros.
pub(crate) fn release_index(log2: u32) {
    let index = INDEXES.get(log2 as usize).map_or(core::ptr::null_mut(), |index| index.load(Relaxed));
    if !index.is_null() {
        sys::advise(index.cast(), index_bytes(log2), libc::MADV_DONTNEED);
    }
}

/// Unmaps all of it, in a process in which no thread uses it any more.
#[cfg(feature = "standalone")]
pub(crate) fn give_up(state_bytes: usize) {
    let segment = |segment: usize| {
        let (start, end) = (STATES.start(segment) as usize, STATES.start(segment + 1) as usize);
        let origin = STATE_ORIGINS[segment].swap(0, Relaxed);
        (origin, origin.wrapping_add(start * state_bytes), (end - start) * state_bytes)
    };
    for (origin, at, bytes) in (1..Segments::MAX).map(segment) {
        if origin != 0 {
            sys::unmap(at as *mut u8, bytes);
        }
    }
    for (log2, index) in INDEXES.iter().enumerate() {
        let at = index.swap(core::ptr::null_mut(), Relaxed);
        if !at.is_null() && log2 != FIRST_INDEX_LOG2 as usize {
            sys::unmap(at.cast(), index_bytes(log2 as u32));
        }
    }
    let first = ALIVE.swap(core::ptr::null_mut(), Relaxed);
    sys::unmap(first.cast(), PAGE as usize + index_bytes(FIRST_INDEX_LOG2) + state_bytes);
}
