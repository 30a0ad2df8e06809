//! Annotations: what the program says through `heaptape.h` about its memory, and that is no event
//! of its own. They are rare, so they take the way of deferred events, each with its own timestamp.
//! Events after an annotation have a later one, also where others have none.

use super::{defer, emit_deferred, guard};
use crate::boot::claim;
use crate::caller::Caller;
use crate::thread::{self, Activation, BUSY, STOPPED, ThreadState};
use core::ffi::c_char;
use heaptape_wire::event::{MAX_TEXT, TEXT_BYTES};
use heaptape_wire::{Event, Op};

/// Writes an annotation with a text, or without one if that is null.
///
/// # Safety
/// `text` must be null or end with a zero; `caller` must be the hook's.
#[inline(never)]
pub(crate) unsafe fn annotate(op: Op, address: u64, size: u64, text: *const c_char, caller: Caller) {
    let state = claim::state(caller.sp);
    if !thread::is_traced(state) {
        return;
    }
    // SAFETY: the thread's own state, whose activation is not 0; the text as the caller ensures.
    unsafe {
        let (address, size) = if op == Op::LABEL { count_label(state, text) } else { (address, size) };
        let is_outer = !(*state).activation.has(BUSY);
        if is_outer {
            guard::begin(state, caller.sp, 0);
        }
        let mut at = 0;
        while !text.is_null() && at < MAX_TEXT && *text.add(at) != 0 {
            let mut bytes = [0; size_of::<u128>()];
            for (byte, index) in bytes.iter_mut().zip(at..at + TEXT_BYTES) {
                *byte = text.cast::<u8>().add(index).read();
                if *byte == 0 {
                    break;
                }
            }
            at += TEXT_BYTES;
            let packed = u128::from_le_bytes(bytes);
            defer(state, Event { op: Op::TEXT, stack: 0, address: packed as u64, size: (packed >> 64) as u64 });
            if bytes[TEXT_BYTES - 1] == 0 {
                break;
            }
        }
        defer(state, Event { op, stack: 0, address, size });
        if is_outer {
            guard::end(state);
            emit_deferred(state, caller.sp);
        }
    }
}

/// Counts a label that is set, or removed if it has no text. Returns whether it is set, and the
/// number of labels.
unsafe fn count_label(state: *mut ThreadState, text: *const c_char) -> (u64, u64) {
    // SAFETY: the thread's own state.
    let labels = unsafe { &mut (*state).labels };
    *labels = if text.is_null() { labels.saturating_sub(1) } else { labels.saturating_add(1) };
    (u64::from(!text.is_null()), u64::from(*labels))
}

/// Stops or continues the recording of the calling thread.
pub(crate) fn set_stopped(is_stopped: bool, caller: Caller) {
    let state = claim::state(caller.sp);
    let text = if is_stopped { c"recording stopped" } else { c"recording continued" };
    // SAFETY: the thread's own state; the text ends with a zero.
    unsafe {
        if thread::is_traced(state) && (*state).activation.has(STOPPED) != is_stopped {
            annotate(Op::MARK, 0, 0, text.as_ptr(), caller);
            Activation::set(&raw mut (*state).activation, STOPPED, is_stopped);
        }
    }
}
