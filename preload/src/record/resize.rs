//! Resizes: two events around one call of the allocator. The first half frees the old block before
//! another thread can get its address; the second half allocates the new block.

use super::guard::{self, CallKind};
use super::{
    HookPath, defer, deferred_stack, emit_deferred, hook_path, push, record_with_stack, sample, slow_path_state,
};
use crate::caller::Caller;
use crate::sampling;
use crate::thread::{COUNTED, Request, ThreadState};
use heaptape_wire::{Event, Op};

/// Number of records that a second half needs.
const SECOND_HALF: u64 = 3;
/// The most records that are kept free for second halves. A resize that is left by a jump never
/// uses its own.
const MAX_RESERVED: u64 = 8 * SECOND_HALF;

/// A resize whose first half has been emitted, or that sampling selects without a first half.
#[derive(Clone, Copy)]
pub(crate) struct Resize {
    state: *mut ThreadState,
    deferred: bool,
    /// With sampling: the old block was sampled. True for every resize that is fully recorded.
    old: bool,
    /// With sampling: the new block is selected. True for every resize that is fully recorded.
    new: bool,
}

/// Emits the first half of a resize. Called before the allocator. Returns what the second half
/// needs, or `None` if there is no second half.
#[inline(never)]
pub(crate) fn resize_begins(old: *mut u8, size: usize, caller: Caller) -> Option<Resize> {
    let (state, kind) = match hook_path() {
        HookPath::Fast(state) => (state, CallKind::Event),
        HookPath::Untraced => return None,
        HookPath::Slow => slow_path_state(caller, Request::of_block(size, old))?,
    };
    let mut resize = Resize { state, deferred: kind == CallKind::Deferred, old: true, new: true };
    // SAFETY: the thread's own state, whose activation is not 0.
    unsafe {
        if (*state).countdown.mean != 0 {
            (resize.old, resize.new) = (sampling::remove(old as u64), sample::hits(state, size as u64));
            if !resize.old {
                return Some(resize);
            }
        }
    }
    let event = Event { op: Op::RESIZE_BEGIN, stack: 0, address: old as u64, size: 0 };
    if resize.deferred {
        return defer(state, event).then_some(resize);
    }
    // SAFETY: the thread's own state, which is not busy.
    unsafe {
        guard::begin(state, caller.sp, 0);
        let reserved = (*state).writer.reserved;
        (*state).writer.reserved = (reserved + SECOND_HALF).min(MAX_RESERVED);
        let done = push(&mut *state, event);
        if !done {
            (*state).writer.reserved = reserved;
        }
        guard::end(state);
        done.then_some(resize)
    }
}

/// Emits the second half of a resize. Called after the allocator.
#[inline(never)]
pub(crate) fn resize_ends(resize: Resize, op: Op, old: *mut u8, new: *mut u8, size: usize, caller: Caller) {
    let state = resize.state;
    // SAFETY: the state that the first half used.
    unsafe {
        if (*state).activation.is_none() {
            return; // Forked inside the allocator: the child attaches at its first own event.
        }
        let failed = new.is_null() && size != 0;
        let Some(op) =
            (if (*state).countdown.mean == 0 { Some(op) } else { sampled_resize(resize, op, old, new, failed) })
        else {
            return;
        };
        let (op, address, size) = if failed {
            (Op::RESIZE_FAILED, old as u64, 0)
        } else if new.is_null() || op == Op::RESIZE_FREED {
            (Op::RESIZE_FREED, old as u64, 0)
        } else {
            (op, new as u64, size as u64)
        };
        if resize.deferred {
            let stack = deferred_stack(state, caller);
            defer(state, Event { op, stack, address, size });
            return;
        }
        (*state).writer.reserved = (*state).writer.reserved.saturating_sub(SECOND_HALF);
        if op == Op::RESIZE_FAILED {
            record_failed(state, address, caller);
        } else {
            record_with_stack(state, op, address, size, caller);
        }
    }
}

/// Records that a resize has left its block as it was.
///
/// # Safety
/// The state must be the calling thread's, which is not busy.
#[cold]
unsafe fn record_failed(state: *mut ThreadState, address: u64, caller: Caller) {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        guard::begin(state, caller.sp, if Op::RESIZE_FAILED.is_event() { COUNTED } else { 0 });
        push(&mut *state, Event { op: Op::RESIZE_FAILED, stack: 0, address, size: 0 });
        guard::end(state);
        emit_deferred(state, caller.sp);
    }
}

/// Returns the op that a resize is recorded as when blocks are sampled. Returns `None` if it is
/// counted and not recorded. The new block is selected independently of the old one: from sampled
/// to not sampled is a free, from not sampled to sampled is an allocation.
///
/// # Safety
/// The state must be the calling thread's.
#[cold]
unsafe fn sampled_resize(resize: Resize, op: Op, old: *mut u8, new: *mut u8, failed: bool) -> Option<Op> {
    if failed {
        return (resize.old && sampling::insert(old as u64)).then_some(Op::RESIZE_FAILED);
    }
    let new_sampled = resize.new && !new.is_null() && sampling::insert(new as u64);
    match (resize.old, new_sampled) {
        (true, true) => Some(op),
        (true, false) => Some(Op::RESIZE_FREED),
        (false, true) => Some(op.first_of_resize()),
        (false, false) => {
            // SAFETY: the state is the calling thread's, as the caller ensures.
            unsafe { sample::count_sampled_out(resize.state) };
            None
        }
    }
}
