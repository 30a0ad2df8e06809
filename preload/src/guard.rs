//! Is this call an event of its own? The gate of the thread's block says so at one glance;
//! everything else is judged here, on the slow side:
//! * a hook of this thread is at work and a signal handler called another: the event is *nested*
//!   and waits until that hook is done;
//! * the same, but the hook is gone (the handler jumped out of it, the thread was cancelled): the
//!   mark is stale and is cleared;
//! * `operator new` is under way and calls `malloc` for the same bytes: one event, recorded by the
//!   outer hook.

use crate::thread::{BEGUN, BUSY, Block, COUNTED, FORWARDING, READY};
use crate::{sandbox, sys};
use core::sync::atomic::{Ordering::Acquire, Ordering::Release, Ordering::SeqCst, compiler_fence};

/// Changes the gate in one instruction: a handler that comes between a load and a store of it would
/// have its own count undone.
macro_rules! gate {
    ($op:literal, $block:expr, $value:expr) => {
        core::arch::asm!(concat!($op, " qword ptr [{0}], {1}"), in(reg) &raw mut (*$block).gate, in(reg) $value, options(nostack))
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
    pub block: usize,
    /// What the word at `sp` holds while the outer call lasts: its return address.
    pub word: u64,
}

/// What a call is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// An event of its own, on the usual way.
    Event,
    /// Came while a hook of this thread was at work.
    Nested,
    /// The inner part of a forwarded call.
    Inner,
}

/// Whether a thread's block is one that events go to.
#[inline(always)]
pub fn is_traced(block: *mut Block) -> bool {
    // SAFETY: blocks stay mapped for ever; a forked child reads zeros.
    !block.is_null() && unsafe { (&raw const (*block).gate).read_volatile() } & READY != 0
}

/// Judges a call that found more than the plain gate. `size` and `block` are the call's own (0 when
/// it has none).
///
/// # Safety
/// `block` is the calling thread's, with a gate that is not 0.
pub unsafe fn judge(block: *mut Block, sp: usize, size: usize, address: usize) -> Verdict {
    // SAFETY: the caller's promise; plain accesses by the only thread that has the block.
    unsafe {
        if (*block).gate & BUSY != 0 {
            if is_alive(block, sp, (*block).busy_sp, (*block).busy_word) {
                return Verdict::Nested;
            }
            abandon(block);
        }
        if (*block).gate & FORWARDING != 0 {
            let forward = (*block).forward;
            if !is_alive(block, sp, forward.sp, forward.word) {
                gate!("and", block, !FORWARDING);
            } else if (address != 0 && address == forward.block)
                || (address == 0
                    && forward.block == 0
                    && size.max(1).wrapping_sub(forward.size.max(1)) <= forward.slack)
            {
                return Verdict::Inner;
            }
        }
        Verdict::Event
    }
}

/// Whether the frame of a hook that entered at `frame` still stands under a call at `sp`. Another
/// word in its return address's place proves that it is gone, and so does, on the thread's own
/// stack, a call from above it. On another stack (a signal's, a coroutine's) it is taken to stand
/// otherwise: [`crate::emit`] looks again when many calls have found it so.
///
/// # Safety
/// As [`judge`].
unsafe fn is_alive(block: *mut Block, sp: usize, frame: usize, word: u64) -> bool {
    // SAFETY: the caller's promise; the frame's word is read only where the stack is known to be
    // mapped.
    unsafe {
        let own = |address: usize| address >= (*block).stack_low && address < (*block).stack_end;
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
pub unsafe fn abandon(block: *mut Block) {
    // SAFETY: the caller's promise; the block's control words are mapped while its gate is not 0.
    unsafe {
        let producer = &(*(*block).control).producer.0;
        let published = producer.head.load(Acquire);
        if (*block).gate & COUNTED != 0 {
            producer.emitted.store((*block).gate / BEGUN, Release);
            if published == (*block).event_head {
                (*block).lost += 1;
                (*block).lost_untold += 1;
                producer.dropped.store((*block).lost, Release);
            }
        }
        (*block).head = published;
        producer.reservation.store(published, Release);
        gate!("and", block, !(BUSY | COUNTED));
        (*block).memo.forget();
        (*block).nested_busy = 0;
        (*block).until_stamp = 0;
        // A stamp may have been stored with the records that were taken back, and so may the
        // interval.
        (*block).stamp = 0;
        if (*block).countdown.mean != 0 {
            (*block).lost_untold |= crate::thread::INTERVAL;
        }
    }
}

/// Marks the hook that entered at `sp` as at work, and counts its event when it is one
/// ([`COUNTED`]).
///
/// # Safety
/// `block` is the calling thread's, not busy, and `sp` the address of the hook's return address.
#[inline(always)]
pub unsafe fn begin(block: *mut Block, sp: usize, counted: u64) {
    let count = if counted != 0 { BEGUN } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        let word = (sp as *const u64).read();
        let mark = |block: *mut Block| {
            (&raw mut (*block).busy_sp).write_volatile(sp);
            (&raw mut (*block).busy_word).write_volatile(word);
            (&raw mut (*block).event_head).write_volatile((*block).head);
        };
        // Before the gate, so that a handler that finds it busy finds these; behind it once more,
        // for one that came just before it and left its own.
        mark(block);
        gate!("add", block, count | BUSY | counted);
        mark(block);
    }
    compiler_fence(SeqCst);
}

/// The hook is done.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub unsafe fn end(block: *mut Block) {
    compiler_fence(SeqCst);
    // SAFETY: the caller's promise.
    unsafe { gate!("and", block, !(BUSY | COUNTED)) };
}

/// Marks a forwarded call under way; false when it is itself inner to another.
///
/// # Safety
/// As [`begin`].
pub unsafe fn forward(block: *mut Block, sp: usize, size: usize, slack: usize, address: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if judge(block, sp, size, address) != Verdict::Event {
            return false;
        }
        if (*block).gate & FORWARDING != 0 {
            return true;
        }
        (*block).forward = Forward { sp, size, slack, block: address, word: (sp as *const u64).read() };
        compiler_fence(SeqCst);
        gate!("or", block, FORWARDING);
        true
    }
}

/// The forwarded call that entered at `sp` is done.
///
/// # Safety
/// As [`begin`].
pub unsafe fn forwarded(block: *mut Block, sp: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*block).gate & FORWARDING != 0 && (*block).forward.sp == sp {
            gate!("and", block, !FORWARDING);
        }
    }
}
