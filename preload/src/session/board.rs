//! Notices for the recorder when no socket can be reached; see [`heaptape_wire::board`].

use super::Area;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use heaptape_wire::board::Board;
use heaptape_wire::hello::UntracedReason;

/// The board of the session of this process, or of the process that it was forked from; null if
/// there is none.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(core::ptr::null_mut());
/// The first page of the parent's area, which this process shares until it has an area of its own.
static SHARED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Switches to the board of a new session. Returns the parent's page, which is no longer needed.
pub(crate) fn begin(area: &Area) -> *mut u8 {
    BOARD.store((&raw const area.header().board.0).cast_mut(), Relaxed);
    SHARED.swap(core::ptr::null_mut(), Relaxed)
}

/// Notes the start of the parent's area in a forked child. With `is_private` the child does not
/// share the first page.
pub(crate) fn forked(area: *mut u8, is_private: bool) {
    if is_private {
        BOARD.store(core::ptr::null_mut(), Relaxed);
    } else {
        SHARED.store(area, Relaxed);
    }
}

/// Posts a process that is not recorded, with the program that it runs next, if any.
#[inline(never)]
pub(crate) fn post(pid: u32, why: UntracedReason, path: &[u8]) {
    let board = BOARD.load(Relaxed);
    if !board.is_null() {
        // SAFETY: the page that holds the board stays mapped for ever, and all of it is atomics.
        unsafe { &*board }.post(pid, why, path);
    }
}
