//! Private memory of the library: the page that tells whether this is the process that attached,
//! the threads' blocks, the indexes of nodes. A forked child sees all of it as zeros
//! (`MADV_WIPEONFORK`) and uses it again; without the kernel's help (before 4.14) there is no
//! recording. It is mapped as it is needed, like the segments of the shared area.

use crate::sys;
use crate::thread::{STATE_BYTES, ThreadState};
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use heaptape_wire::area::PAGE;
use heaptape_wire::segments::Segments;

/// A page that a forked child sees as zeros: 1 in the process that attached.
static ALIVE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// How the blocks are split into segments.
const STATES: Segments = Segments::new(1);
/// For each segment the address that block 0 would have if the segment began with it; 0 if the
/// segment is not mapped.
static STATE_ORIGINS: [AtomicUsize; Segments::MAX] = [const { AtomicUsize::new(0) }; Segments::MAX];

/// The first index of nodes: log2 of its places.
pub const FIRST_INDEX_LOG2: u32 = 13;
/// Log2 of the places of the largest index: twice as many as nodes that can be distinguished.
const LAST_INDEX_LOG2: usize = 29;
/// The indexes by log2 of their places; null: not mapped.
static INDEXES: [AtomicPtr<AtomicU64>; LAST_INDEX_LOG2 + 1] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; LAST_INDEX_LOG2 + 1];

const fn index_bytes(log2: u32) -> usize {
    size_of::<AtomicU64>() << log2
}

/// Memory of zeros that a forked child sees as zeros too.
fn wiped(bytes: usize) -> Option<*mut u8> {
    let base = sys::map_private(core::ptr::null_mut(), bytes, 0)?;
    if !sys::advise(base, bytes, libc::MADV_WIPEONFORK) {
        sys::unmap(base, bytes);
        return None;
    }
    sys::advise(base, bytes, libc::MADV_DONTDUMP);
    Some(base)
}

/// The same after the start. The program may have asked for all memory to be locked: ours shall not
/// take of its limit.
fn wiped_later(bytes: usize) -> Option<*mut u8> {
    wiped(bytes).inspect(|base| sys::unlock(*base, bytes))
}

/// Takes the memory into use: that of the parent process where `is_inherited`, which this process
/// sees as zeros, or new memory.
pub fn start(is_inherited: bool) -> bool {
    if is_inherited && !ALIVE.load(Relaxed).is_null() {
        return true;
    }
    // What a start needs in one mapping, and few system calls.
    let (page, index) = (PAGE as usize, index_bytes(FIRST_INDEX_LOG2));
    let Some(base) = wiped(page + index + STATE_BYTES) else { return false };
    INDEXES.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
    STATE_ORIGINS.iter().for_each(|origin| origin.store(0, Relaxed));
    INDEXES[FIRST_INDEX_LOG2 as usize].store(base.wrapping_add(page).cast(), Relaxed);
    STATE_ORIGINS[0].store(base as usize + page + index, Relaxed);
    ALIVE.store(base.cast(), Relaxed);
    true
}

/// Whether this process is the one that attached (not a child that was forked since).
pub fn is_ours() -> bool {
    let alive = ALIVE.load(Relaxed);
    // SAFETY: the page stays mapped for ever; a child reads zeros.
    !alive.is_null() && unsafe { (*alive).load(Relaxed) } == 1
}

/// This process has attached.
pub fn attached() {
    // SAFETY: [`start`] has stored the address of a page that stays mapped.
    unsafe { (*ALIVE.load(Relaxed)).store(1, Release) };
}

/// The block of a slot, mapped when it has not been yet; `None` when there is no memory for it.
pub fn thread_state(slot: u32) -> Option<*mut ThreadState> {
    let segment = STATES.of(slot);
    let start = STATES.start(segment) as usize * STATE_BYTES;
    let place = STATE_ORIGINS.get(segment)?;
    if place.load(Acquire) == 0 {
        let bytes = (STATES.start(segment + 1) - STATES.start(segment)) as usize * STATE_BYTES;
        let base = wiped_later(bytes)?;
        // A thread uses little of its block: huge pages would make it pay for all.
        sys::advise(base, bytes, libc::MADV_NOHUGEPAGE);
        let origin = (base as usize).wrapping_sub(start);
        // Another thread may have been faster.
        if origin == 0 || place.compare_exchange(0, origin, Release, Relaxed).is_err() {
            sys::unmap(base, bytes);
        }
    }
    let origin = Some(place.load(Acquire)).filter(|origin| *origin != 0)?;
    Some(origin.wrapping_add(slot as usize * STATE_BYTES) as *mut ThreadState)
}

/// The index of this size, mapped when it has not been yet; `None` when there is no memory
/// for it. It is all zeros before its first use in this process.
pub fn index(log2: u32) -> Option<*mut AtomicU64> {
    let place = INDEXES.get(log2 as usize)?;
    if place.load(Acquire).is_null() {
        place.store(wiped_later(index_bytes(log2))?.cast(), Release);
    }
    Some(place.load(Acquire))
}
