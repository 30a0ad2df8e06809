//! Decides whether a call is an event of its own. The activation of the thread's state answers this
//! at once in the usual case. The other cases are decided here, on the slow path:
//! * A hook of this thread is running and a signal handler called another one. The event is
//!   *deferred* until that hook ends.
//! * The same, but the hook was left (the handler jumped out of it, or the thread was cancelled).
//!   The mark is stale and is cleared.
//! * `operator new` is running and calls `malloc` for the same bytes. This is one event, which the
//!   hook of the operator records.

use crate::sys::Need;
use crate::thread::{BUSY, COUNTED, FORWARDING, Forward, ONE_EVENT, ThreadState};
use crate::{arch, probe};
use core::sync::atomic::{Ordering::Acquire, Ordering::Release, Ordering::SeqCst, compiler_fence};

/// The kind of a call of a hook.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A regular event of its own.
    Event,
    /// A call that interrupted a running hook of this thread.
    Deferred,
    /// The inner call of a forwarded call.
    Inner,
}

/// Classifies a call that found an activation other than `READY`. `size` and `address` are the
/// call's own, or 0 if it has none.
///
/// # Safety
/// `state` must be the calling thread's, with an activation that is not 0.
pub unsafe fn classify(state: *mut ThreadState, sp: usize, size: usize, address: usize) -> CallKind {
    // SAFETY: the state is the calling thread's, as the caller ensures; plain accesses by the only
    // thread that has the block.
    unsafe {
        if (*state).activation & BUSY != 0 {
            if is_alive(state, sp, (*state).busy_sp, (*state).busy_return_address) {
                return CallKind::Deferred;
            }
            abandon(state);
        }
        if (*state).activation & FORWARDING != 0 {
            let forward = (*state).forward;
            if !is_alive(state, sp, forward.sp, forward.return_address) {
                arch::signal_atomic_and(&raw mut (*state).activation, !FORWARDING);
            } else if (address != 0 && address == forward.address)
                || (address == 0
                    && forward.address == 0
                    && size.max(1).wrapping_sub(forward.size.max(1)) <= forward.slack)
            {
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
pub unsafe fn abandon(state: *mut ThreadState) {
    // SAFETY: the state is the calling thread's; its control words are mapped while its activation
    // is not 0.
    unsafe {
        let producer = &(*(*state).control).producer.0;
        let published = producer.head.load(Acquire);
        if (*state).activation & COUNTED != 0 {
            producer.emitted.store((*state).activation / ONE_EVENT, Release);
            if published == (*state).event_head {
                (*state).dropped += 1;
                (*state).pending_reports += 1;
                producer.dropped.store((*state).dropped, Release);
            }
        }
        (*state).head = published;
        producer.reservation.store(published, Release);
        arch::signal_atomic_and(&raw mut (*state).activation, !(BUSY | COUNTED));
        (*state).stacks.cache.forget();
        (*state).is_capturing_deferred = 0;
        (*state).until_timestamp = 0;
        // The removed records may have contained a timestamp and a sampling interval.
        (*state).timestamp = 0;
        if (*state).countdown.mean != 0 {
            (*state).pending_reports |= crate::thread::INTERVAL_PENDING;
        }
    }
}

/// Marks the hook that was entered at `sp` as running, and counts its event if `counted` is
/// [`COUNTED`].
///
/// # Safety
/// `state` must be the calling thread's and not busy, and `sp` the address of the hook's return
/// address.
#[inline(always)]
pub unsafe fn begin(state: *mut ThreadState, sp: usize, counted: u64) {
    let count = if counted != 0 { ONE_EVENT } else { 0 };
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        let word = (sp as *const u64).read();
        let mark = |state: *mut ThreadState| {
            (&raw mut (*state).busy_sp).write_volatile(sp);
            (&raw mut (*state).busy_return_address).write_volatile(word);
            (&raw mut (*state).event_head).write_volatile((*state).head);
        };
        // The fields are written before the activation, so that a handler that finds it busy finds
        // them set. They are written again after it, in case a handler ran just before and left its
        // own values.
        mark(state);
        // In one instruction: with a separate load and store, a handler that runs between them
        // would have its own count undone.
        arch::signal_atomic_add(&raw mut (*state).activation, count | BUSY | counted);
        mark(state);
    }
    compiler_fence(SeqCst);
}

/// Marks the hook as ended.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub unsafe fn end(state: *mut ThreadState) {
    compiler_fence(SeqCst);
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe { arch::signal_atomic_and(&raw mut (*state).activation, !(BUSY | COUNTED)) };
}

/// Marks the start of a forwarded call. Returns false if the call is itself an inner call of
/// another one.
///
/// # Safety
/// As [`begin`].
pub unsafe fn forward(state: *mut ThreadState, sp: usize, size: usize, slack: usize, address: usize) -> bool {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        if classify(state, sp, size, address) != CallKind::Event {
            return false;
        }
        if (*state).activation & FORWARDING != 0 {
            return true;
        }
        (*state).forward = Forward { sp, size, slack, address, return_address: (sp as *const u64).read() };
        compiler_fence(SeqCst);
        arch::signal_atomic_or(&raw mut (*state).activation, FORWARDING);
        true
    }
}

/// Marks the end of the forwarded call that was entered at `sp`.
///
/// # Safety
/// As [`begin`].
pub unsafe fn forwarded(state: *mut ThreadState, sp: usize) {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        if (*state).activation & FORWARDING != 0 && (*state).forward.sp == sp {
            arch::signal_atomic_and(&raw mut (*state).activation, !FORWARDING);
        }
    }
}
