//! Decides whether a call is an event of its own. The activation of the thread's state answers this
//! at once in the usual case. The other cases are decided here, on the slow path:
//! * A hook of this thread is running and a signal handler called another one. The event is
//!   *deferred* until that hook ends.
//! * The same, but the hook was left (the handler jumped out of it, or the thread was cancelled).
//!   The mark is stale and is cleared.
//! * `operator new` is running and calls `malloc` for the same bytes. This is one event, which the
//!   hook of the operator records.

use crate::probe;
use crate::sys::Need;
use crate::thread::{Activation, BUSY, COUNTED, Deferred, FORWARDING, Forwarded, PENDING, Request, ThreadState};
use core::sync::atomic::{Ordering::Acquire, Ordering::Release, Ordering::SeqCst, compiler_fence};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A regular event of its own.
    Event,
    /// A call that interrupted a running hook of this thread.
    Deferred,
    /// The inner call of a forwarded call.
    Inner,
}

/// Classifies a call that found an activation other than `READY`, by what it requests.
///
/// # Safety
/// `state` must be the calling thread's, with an activation that is not 0.
pub(crate) unsafe fn classify(state: *mut ThreadState, sp: usize, request: Request) -> CallKind {
    // SAFETY: the state is the calling thread's, as the caller ensures; plain accesses by the only
    // thread that has the block.
    unsafe {
        if (*state).activation.has(BUSY) {
            if is_alive(state, sp, (*state).running.sp, (*state).running.return_address) {
                return CallKind::Deferred;
            }
            abandon(state);
        }
        if (*state).activation.has(FORWARDING) {
            let forwarded = (*state).forwarded;
            if !is_alive(state, sp, forwarded.sp, forwarded.return_address) {
                Activation::set(&raw mut (*state).activation, FORWARDING, false);
            } else if forwarded.contains(request) {
                return CallKind::Inner;
            }
        }
        CallKind::Event
    }
}

/// Returns whether the frame of the hook that was entered at `frame` is still on the stack below a
/// call at `sp`. Another word at its return address proves that it is gone. On the thread's own
/// stack, a call from above it proves the same. On another stack (a signal handler's or a
/// coroutine's) the frame is assumed to be there otherwise; [`super`] checks again when many
/// calls have found it so.
///
/// # Safety
/// As [`classify`].
#[inline(never)]
unsafe fn is_alive(state: *mut ThreadState, sp: usize, frame: usize, word: u64) -> bool {
    // SAFETY: the state is the calling thread's; the frame's word is read only where the stack is
    // known to be mapped.
    unsafe {
        let own = |address: usize| (*state).stacks.bounds.contains(address);
        if !own(frame) {
            let mut now = [0; 8];
            let is_same = !Need::PEEK.is_allowed()
                || (probe::peek(frame, &mut now) == now.len() && u64::from_le_bytes(now) == word);
            return sp != frame && is_same;
        }
        if own(sp) && sp >= frame {
            return false;
        }
        (frame as *const u64).read_volatile() == word
    }
}

/// Cleans up after a hook that was left by a jump. Records that it stored but did not publish are
/// removed, and its event is counted as dropped.
///
/// # Safety
/// As [`classify`].
pub(crate) unsafe fn abandon(state: *mut ThreadState) {
    // SAFETY: the state is the calling thread's; its control words are mapped while its activation
    // is not 0.
    unsafe {
        let writer = &mut (*state).writer;
        let producer = writer.producer();
        if (*state).activation.has(COUNTED) {
            producer.emitted.store((*state).activation.events(), Release);
            if producer.head.load(Acquire) == writer.event_head {
                writer.count_dropped();
            }
        }
        writer.roll_back((*state).countdown.mean != 0);
        Activation::end(&raw mut (*state).activation);
        // The hook may have been about to emit them.
        if Deferred::count(&raw const (*state).deferred) != 0 {
            Activation::set(&raw mut (*state).activation, PENDING, true);
        }
        (*state).stacks.cache.forget();
        (*state).deferred.abandon_capture();
    }
}

/// Marks the hook that was entered at `sp` as running, and counts its event if `counted` is
/// [`COUNTED`].
///
/// # Safety
/// `state` must be the calling thread's and not busy, and `sp` the address of the hook's return
/// address.
#[inline(always)]
pub(crate) unsafe fn begin(state: *mut ThreadState, sp: usize, counted: u64) {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        let word = (sp as *const u64).read();
        let mark = |state: *mut ThreadState| {
            (&raw mut (*state).running.sp).write_volatile(sp);
            (&raw mut (*state).running.return_address).write_volatile(word);
            (&raw mut (*state).writer.event_head).write_volatile((*state).writer.head);
        };
        // The fields are written before the activation, so that a handler that finds it busy finds
        // them set. They are written again after it, in case a handler ran just before and left its
        // own values.
        mark(state);
        Activation::begin(&raw mut (*state).activation, counted);
        mark(state);
    }
    compiler_fence(SeqCst);
}

/// Counts the next event of a hook that is marked and has published the one before, if `counted` is
/// [`COUNTED`].
///
/// # Safety
/// As [`begin`], but for a state that is busy.
pub(crate) unsafe fn begin_event(state: *mut ThreadState, counted: u64) {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        (&raw mut (*state).writer.event_head).write_volatile((*state).writer.head);
        if counted != 0 {
            Activation::begin_event(&raw mut (*state).activation);
        }
    }
    compiler_fence(SeqCst);
}

/// Marks the hook as ended.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub(crate) unsafe fn end(state: *mut ThreadState) {
    compiler_fence(SeqCst);
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe { Activation::end(&raw mut (*state).activation) };
}

/// Marks the start of a forwarded call. Returns false if the call is itself an inner call of
/// another one.
///
/// # Safety
/// As [`begin`].
pub(crate) unsafe fn forward(state: *mut ThreadState, sp: usize, request: Request) -> bool {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        if classify(state, sp, request) != CallKind::Event {
            return false;
        }
        if (*state).activation.has(FORWARDING) {
            return true;
        }
        (*state).forwarded = Forwarded { sp, request, return_address: (sp as *const u64).read() };
        compiler_fence(SeqCst);
        Activation::set(&raw mut (*state).activation, FORWARDING, true);
        true
    }
}

/// Marks the end of the forwarded call that was entered at `sp`.
///
/// # Safety
/// As [`begin`].
pub(crate) unsafe fn forwarded(state: *mut ThreadState, sp: usize) {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        if (*state).activation.has(FORWARDING) && (*state).forwarded.sp == sp {
            Activation::set(&raw mut (*state).activation, FORWARDING, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::DeferredEvent;
    use heaptape_wire::{Event, Op, SlotControl};
    use std::boxed::Box;

    #[test]
    fn what_waits_for_a_hook_that_was_left_is_for_the_next_one() {
        let control = SlotControl::default();
        for is_waiting in [false, true] {
            // SAFETY: numbers and pointers, of which zeros are valid values; all of it is the test's own.
            unsafe {
                let mut state = Box::<ThreadState>::new_zeroed().assume_init();
                (state.writer.control, state.activation) = (&raw const control, Activation::NEW);
                let this = &raw mut *state;
                Activation::begin(&raw mut (*this).activation, COUNTED);
                if is_waiting {
                    let event = Event { op: Op::TEXT, stack: 0, address: 0, size: 0 };
                    let (deferred, events) = (&raw mut (*this).deferred, &raw mut (*this).deferred_events);
                    assert!(Deferred::add(deferred, events, || DeferredEvent { timestamp: 1, event }));
                }
                abandon(this);
                let activation = (*this).activation;
                assert_eq!((activation.has(BUSY), activation.has(PENDING)), (false, is_waiting));
            }
        }
    }
}
