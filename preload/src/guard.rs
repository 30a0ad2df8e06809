//! Is this call an event of its own? The gate of the thread's block says so at one glance;
//! everything else is judged here, on the slow side:
//! * a hook of this thread is at work and a signal handler called another: the event is *nested*
//!   and waits until that hook is done;
//! * the same, but the hook is gone (the handler jumped out of it, the thread was cancelled): the
//!   mark is stale and is cleared;
//! * `operator new` is under way and calls `malloc` for the same bytes: one event, recorded by the
//!   outer hook.

use crate::thread::{BUSY, COUNTED, FORWARDING, ONE_EVENT, READY, ThreadState};
use crate::{sandbox, sys};
use core::sync::atomic::{Ordering::Acquire, Ordering::Release, Ordering::SeqCst, compiler_fence};

/// Changes the gate in one instruction: a handler that comes between a load and a store of it would
/// have its own count undone.
macro_rules! activation {
    ($op:literal, $state:expr, $value:expr) => {
        core::arch::asm!(concat!($op, " qword ptr [{0}], {1}"), in(reg) &raw mut (*$state).activation, in(reg) $value, options(nostack))
    };
}

/// The outer call whose inner calls are not events of their own.
#[derive(Clone, Copy)]
pub struct Forward {
    /// Stack pointer of the outer hook.
    pub sp: usize,
    /// Bytes that an inner allocation of the same call asks for,
    pub size: usize,
    /// or so many more: an alignment that the size may be rounded up to.
    pub slack: usize,
    /// Block that an inner free of the same call names; null for an allocation.
    pub address: usize,
    /// What the word at `sp` holds while the outer call lasts: its return address.
    pub return_address: u64,
}

/// What a call is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// An event of its own, on the usual way.
    Event,
    /// Came while a hook of this thread was at work.
    Deferred,
    /// The inner part of a forwarded call.
    Inner,
}

/// Whether a thread's block is one that events go to.
#[inline(always)]
pub fn is_traced(state: *mut ThreadState) -> bool {
    // SAFETY: blocks stay mapped for ever; a forked child reads zeros.
    !state.is_null() && unsafe { (&raw const (*state).activation).read_volatile() } & READY != 0
}

/// Judges a call that found more than the plain gate. `size` and `block` are the call's own (0 when
/// it has none).
///
/// # Safety
/// `block` is the calling thread's, with a gate that is not 0.
pub unsafe fn classify(state: *mut ThreadState, sp: usize, size: usize, address: usize) -> CallKind {
    // SAFETY: the caller's promise; plain accesses by the only thread that has the block.
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
                activation!("and", state, !FORWARDING);
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

/// Whether the frame of a hook that entered at `frame` still stands under a call at `sp`. Another
/// word in its return address's place proves that it is gone, and so does, on the thread's own
/// stack, a call from above it. On another stack (a signal's, a coroutine's) it is taken to stand
/// otherwise: [`crate::emit`] looks again when many calls have found it so.
///
/// # Safety
/// As [`judge`].
unsafe fn is_alive(state: *mut ThreadState, sp: usize, frame: usize, word: u64) -> bool {
    // SAFETY: the caller's promise; the frame's word is read only where the stack is known to be
    // mapped.
    unsafe {
        let own = |address: usize| address >= (*state).stack_low && address < (*state).stack_end;
        if !own(frame) {
            let mut now = [0; 8];
            let is_same = !sandbox::allows(sandbox::PEEK)
                || (sys::peek(frame, &mut now) == now.len() && u64::from_le_bytes(now) == word);
            return sp != frame && is_same;
        }
        if own(sp) && sp >= frame {
            return false;
        }
        (frame as *const u64).read_volatile() == word
    }
}

/// Clears up after a hook that was left by a jump: what it stored but did not publish is taken
/// back, and its event is counted as lost.
///
/// # Safety
/// As [`judge`].
pub unsafe fn abandon(state: *mut ThreadState) {
    // SAFETY: the caller's promise; the block's control words are mapped while its gate is not 0.
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
        activation!("and", state, !(BUSY | COUNTED));
        (*state).stack_cache.forget();
        (*state).is_capturing_deferred = 0;
        (*state).until_timestamp = 0;
        // A stamp may have been stored with the records that were taken back, and so may the
        // interval.
        (*state).timestamp = 0;
        if (*state).countdown.mean != 0 {
            (*state).pending_reports |= crate::thread::INTERVAL_PENDING;
        }
    }
}

/// Marks the hook that entered at `sp` as at work, and counts its event when it is one
/// ([`COUNTED`]).
///
/// # Safety
/// `block` is the calling thread's, not busy, and `sp` the address of the hook's return address.
#[inline(always)]
pub unsafe fn begin(state: *mut ThreadState, sp: usize, counted: u64) {
    let count = if counted != 0 { ONE_EVENT } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        let word = (sp as *const u64).read();
        let mark = |state: *mut ThreadState| {
            (&raw mut (*state).busy_sp).write_volatile(sp);
            (&raw mut (*state).busy_return_address).write_volatile(word);
            (&raw mut (*state).event_head).write_volatile((*state).head);
        };
        // Before the gate, so that a handler that finds it busy finds these; behind it once more,
        // for one that came just before it and left its own.
        mark(state);
        activation!("add", state, count | BUSY | counted);
        mark(state);
    }
    compiler_fence(SeqCst);
}

/// The hook is done.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub unsafe fn end(state: *mut ThreadState) {
    compiler_fence(SeqCst);
    // SAFETY: the caller's promise.
    unsafe { activation!("and", state, !(BUSY | COUNTED)) };
}

/// Marks a forwarded call under way; false when it is itself inner to another.
///
/// # Safety
/// As [`begin`].
pub unsafe fn forward(state: *mut ThreadState, sp: usize, size: usize, slack: usize, address: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if classify(state, sp, size, address) != CallKind::Event {
            return false;
        }
        if (*state).activation & FORWARDING != 0 {
            return true;
        }
        (*state).forward = Forward { sp, size, slack, address, return_address: (sp as *const u64).read() };
        compiler_fence(SeqCst);
        activation!("or", state, FORWARDING);
        true
    }
}

/// The forwarded call that entered at `sp` is done.
///
/// # Safety
/// As [`begin`].
pub unsafe fn forwarded(state: *mut ThreadState, sp: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*state).activation & FORWARDING != 0 && (*state).forward.sp == sp {
            activation!("and", state, !FORWARDING);
        }
    }
}
