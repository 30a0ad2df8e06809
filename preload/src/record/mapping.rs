//! Calls that map and unmap memory. They are rare and no events of the heap, so they take the path
//! of deferred events, each with its own timestamp and the stack of its caller.

use super::guard::{self, CallKind};
use super::{HookPath, defer, deferred_stack, emit_deferred, hook_path, slow_path_state};
use crate::caller::Caller;
use crate::session;
use crate::thread::{self, Activation, FORWARDING, Request};
use core::sync::atomic::Ordering::Relaxed;
use heaptape_wire::mapping::{RECORD_ALL, RECORD_RANGES};
use heaptape_wire::{Event, Op};

/// Returns whether a function of an allocator is running on this thread.
pub(crate) fn is_forwarding() -> bool {
    let state = thread::get();
    // SAFETY: the thread's own state, which stays mapped for ever.
    thread::is_traced(state) && unsafe { Activation::read(&raw const (*state).activation) }.has(FORWARDING)
}

/// Records a call that maps or unmaps memory, or half of one, with its stack. It does nothing if
/// the recorder does not know these records.
#[cold]
#[inline(never)]
pub(crate) fn mapping(op: Op, address: u64, size: u64, caller: Caller) {
    if matches!(hook_path(), HookPath::Untraced) {
        return;
    }
    // No call of an allocator contains this one.
    let request = Request { size: usize::MAX, slack: 0, address: 1 };
    let Some((state, kind)) = slow_path_state(caller, request) else { return };
    let needed = if op.0 < Op::ADVISED.0 { RECORD_RANGES } else { RECORD_ALL };
    if session::area().is_none_or(|area| area.header().record_mappings.load(Relaxed) < needed) {
        return;
    }
    // SAFETY: the thread's own state, whose activation is not 0; `caller` is the hook's.
    unsafe {
        // A handler that leaves the capture by a jump leaves a mark by which it is noticed, and one that
        // runs meanwhile takes no entry that has no event yet.
        let is_outer = kind == CallKind::Event;
        if is_outer {
            guard::begin(state, caller.sp, 0);
        }
        let stack = deferred_stack(state, caller);
        defer(state, Event { op, stack, address, size });
        if is_outer {
            guard::end(state);
            emit_deferred(state, caller.sp);
        }
    }
}
