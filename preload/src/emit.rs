//! A finished call -> events in the thread's ring; counts what found no room.
//!
//! Order within one event: capture, announce (`intent`), stamp, store, publish. The announcement
//! lets the recorder know that a stamp may already have been taken for something that it cannot see
//! yet; it is not needed while the process has one thread.

mod resize;
mod room;

pub use resize::{resize_begins, resize_ends};
pub use room::{Patience, obey};

use crate::guard::{self, Verdict};
use crate::thread::{self, BEGUN, BEHIND_NEXT, Block, COUNTED, INTERVAL, NESTED, READY, UNTRACED, Waiting};
use crate::unwind::memo;
use crate::{attach, sample, stamp, tls};
use core::sync::atomic::Ordering::{Relaxed, Release};
use heaptape_wire::event::DELTA_LIMIT;
use heaptape_wire::{Event, Op, Record};
use room::room;

/// Most records of one event: gap mark, interval, stamp, prefix, event.
const ROOM: u64 = 5;
/// With one thread each 16th event is stamped.
const STAMP_EVERY: u32 = 15;

/// How a call goes on.
enum Way {
    /// The thread's block, its gate ready.
    Fast(*mut Block),
    /// The process is not traced.
    Untraced,
    /// Everything else.
    Slow,
}

#[inline(always)]
fn way() -> Way {
    let block = tls::get();
    if block.is_null() {
        return Way::Slow;
    }
    // SAFETY: a block's memory stays mapped for ever once its address was stored in the slot; in a
    // forked child it reads as zeros.
    match unsafe { (&raw const (*block).gate).read_volatile() } & 0xff {
        READY => Way::Fast(block),
        UNTRACED => Way::Untraced,
        _ => Way::Slow,
    }
}

/// The same for the slow way: attaches, judges. `None`: not traced, or not an event of its own.
#[cold]
#[inline(never)]
fn odd_block(sp: usize, bp: usize, size: usize, address: usize) -> Option<(*mut Block, Verdict)> {
    let mut block = tls::get();
    // SAFETY: as above.
    if block.is_null() || unsafe { (*block).gate } == 0 {
        block = thread::enter(sp);
        return (!block.is_null()).then_some((block, Verdict::Event));
    }
    // SAFETY: as above.
    if unsafe { (*block).gate } == thread::ENTERING {
        attach::missed();
        return None;
    }
    // SAFETY: the thread's own block with a gate that is not 0.
    unsafe {
        let mut verdict = guard::judge(block, sp, size, address);
        if verdict == Verdict::Nested && hook_is_gone(block, sp, bp) {
            guard::abandon(block);
            verdict = Verdict::Event;
        }
        // What waited for a hook that is gone came before this call.
        if verdict == Verdict::Event && (&raw const (*block).nested_count).read_volatile() != 0 {
            tell_nested(block, sp);
        }
        (verdict != Verdict::Inner).then_some((block, verdict))
    }
}

/// Whether the hook that this call seems to interrupt was left by a jump: no event can wait any
/// more, and the stack from here to its end does not hold that hook. (It may also have been left
/// for another stack, to be gone on with later; while few events wait, they wait for that.)
///
/// # Safety
/// As [`guard::judge`].
#[cold]
unsafe fn hook_is_gone(block: *mut Block, sp: usize, bp: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let is_full = (&raw const (*block).nested_count).read_volatile() as usize >= NESTED;
        is_full && memo::meets(block, sp, bp, (*block).busy_sp) == Some(false)
    }
}

/// Whether an allocation is passed over by a sampled thread; it is counted then. Asked before the
/// call, so that a jump to the allocator is all that follows; one that fails has been counted
/// nevertheless.
#[inline(always)]
pub fn passes_over(size: usize) -> bool {
    match way() {
        // SAFETY: the thread's own block, its gate ready.
        Way::Fast(block) => unsafe { sample::passes_over(block, size as u64) },
        _ => false,
    }
}

/// The same for a free. Null is not an event, and goes the long way.
#[inline(always)]
pub fn passes_over_free(address: *mut u8) -> bool {
    match way() {
        // SAFETY: as above.
        Way::Fast(block) => !address.is_null() && unsafe { sample::passes_over_free(block, address as u64) },
        _ => false,
    }
}

/// An allocation: after the real call.
#[inline(always)]
pub fn allocated(op: Op, address: *mut u8, size: usize, sp: usize, bp: usize) {
    match way() {
        // SAFETY: the thread's own block, its gate ready.
        Way::Fast(block) if unsafe { sample::wants(block, false, address as u64, size as u64) } => {
            record_with_stack(block, op, address as u64, size as u64, sp, bp);
        }
        Way::Fast(_) | Way::Untraced => {}
        Way::Slow => odd(op, address as u64, size as u64, sp, bp, true),
    }
}

/// A free: before the real call.
#[inline(always)]
pub fn freed(op: Op, address: *mut u8, sp: usize, bp: usize) {
    match way() {
        Way::Untraced => {}
        // SAFETY: as above.
        Way::Fast(block) if !unsafe { sample::wants(block, true, address as u64, 0) } => {}
        Way::Fast(block) if !attach::frees_have_stacks() => record(block, op, address as u64, 0, sp, || 0),
        Way::Fast(block) => record_with_stack(block, op, address as u64, 0, sp, bp),
        Way::Slow => odd(op, address as u64, 0, sp, bp, attach::frees_have_stacks()),
    }
}

/// One copy for all hooks: the capture is what fills the instruction cache.
#[inline(never)]
fn record_with_stack(block: *mut Block, op: Op, address: u64, size: u64, sp: usize, bp: usize) {
    // SAFETY: the gate is busy when `record` calls this, and `sp` and `bp` are the hook's.
    record(block, op, address, size, sp, || unsafe { memo::capture(block, sp, bp) });
}

#[inline(always)]
fn record(block: *mut Block, op: Op, address: u64, size: u64, sp: usize, stack: impl FnOnce() -> u32) {
    // SAFETY: the thread's own block, not busy; `sp` is the hook's.
    unsafe {
        guard::begin(block, sp, COUNTED);
        let stack = stack();
        push(&mut *block, Event { op, stack, address, size });
        guard::end(block);
        if (&raw const (*block).nested_count).read_volatile() != 0 {
            tell_nested(block, sp);
        }
    }
}

#[cold]
#[inline(never)]
fn odd(op: Op, address: u64, size: u64, sp: usize, bp: usize, with_stack: bool) {
    let named = if op.is_free() { address as usize } else { 0 };
    match odd_block(sp, bp, size as usize, named) {
        None => {}
        // SAFETY: the thread's own block with a gate that is not 0.
        Some((block, _)) if !unsafe { sample::wants(block, op.is_free(), address, size) } => {}
        Some((block, Verdict::Nested)) => {
            let stack = if with_stack { nested_stack(block, sp, bp) } else { 0 };
            nest(block, Event { op, stack, address, size });
        }
        Some((block, _)) if with_stack => record_with_stack(block, op, address, size, sp, bp),
        Some((block, _)) => record(block, op, address, size, sp, || 0),
    }
}

/// Stamps and publishes an event; false when it found no room and was counted.
///
/// # Safety
/// The block is the calling thread's and its gate is busy.
#[inline(always)]
unsafe fn push(block: &mut Block, event: Event) -> bool {
    // SAFETY: the slot's control words stay mapped as long as the session.
    let producer = unsafe { &(*block.control).producer.0 };
    if block.head + ROOM + block.reserved > block.limit && !room(block) {
        producer.emitted.store(block.gate / BEGUN, Relaxed);
        if event.op == Op::RESIZE_BEGIN {
            block.gate += BEGUN;
            producer.emitted.store(block.gate / BEGUN, Relaxed);
        }
        if event.op.is_event() || event.op == Op::RESIZE_BEGIN {
            count_lost(block);
        }
        return false;
    }
    if block.lost_untold != 0 {
        tell_marks(block);
    }
    let mut delta = 0;
    if stamp::is_single_threaded() && block.until_stamp != 0 {
        block.until_stamp -= 1;
    } else {
        block.until_stamp = if stamp::is_single_threaded() { STAMP_EVERY } else { 0 };
        producer.reservation.store(block.head + 1, Relaxed);
        let now = stamp::now();
        delta = now.wrapping_sub(block.stamp);
        // Not before the last stamp of this thread, whatever the clock does.
        if (delta as i64) < 0 {
            delta = 0;
        } else if delta >= DELTA_LIMIT {
            block.put(Record::timestamp(now));
            block.stamp = now;
            delta = 0;
        } else {
            block.stamp = now;
        }
    }
    if event.is_compact() {
        block.put(event.compact(delta));
    } else {
        event.extended(delta).into_iter().for_each(|record| block.put(record));
    }
    // Right before the event is published: a thread killed between the two leaves the least doubt.
    producer.emitted.store(block.gate / BEGUN, Relaxed);
    // SAFETY: as above.
    unsafe { block.publish() };
    true
}

/// What is to be told before the next event: a gap, another sampling interval.
#[cold]
#[inline(never)]
fn tell_marks(block: &mut Block) {
    let marks = core::mem::take(&mut block.lost_untold);
    let events = marks & !(INTERVAL | BEHIND_NEXT);
    if events != 0 {
        block.put(Record::dropped(events));
    }
    if marks & INTERVAL != 0 {
        block.put(Record::sample_interval(block.countdown.mean, marks & BEHIND_NEXT != 0));
    }
}

#[cold]
fn count_lost(block: &mut Block) {
    // SAFETY: as in `push`.
    let producer = unsafe { &(*block.control).producer.0 };
    block.lost += 1;
    block.lost_untold += 1;
    producer.dropped.store(block.lost, Release);
}

/// An event of a signal handler that interrupted a hook of this thread: kept until that hook is
/// done. False when it was lost.
#[cold]
#[inline(never)]
fn nest(block: *mut Block, event: Event) -> bool {
    // SAFETY: the thread's own block. The interrupted hook reads `nested_count` only when it is
    // done, and never the rest.
    unsafe {
        let count = (&raw const (*block).nested_count).read_volatile() as usize;
        if count >= NESTED {
            // The interrupted hook may hold the other counters in registers: this one is the
            // handlers' own.
            (*(*block).control).producer.0.deferred_dropped.fetch_add(1, Relaxed);
            return false;
        }
        let waiting = Waiting { stamp: stamp::now(), event };
        (&raw mut (*block).nested[count]).write_volatile(waiting);
        (&raw mut (*block).nested_count).write_volatile(count as u32 + 1);
        true
    }
}

/// The stack of a nested event; 0 when a handler interrupted another one's capture.
#[cold]
fn nested_stack(block: *mut Block, sp: usize, bp: usize) -> u32 {
    // SAFETY: `nested_busy` gives the nested frames to this call alone.
    unsafe {
        if (&raw const (*block).nested_busy).read_volatile() != 0 {
            return 0;
        }
        (&raw mut (*block).nested_busy).write_volatile(1);
        let node = memo::nested(block, sp, bp);
        (&raw mut (*block).nested_busy).write_volatile(0);
        node
    }
}

/// Puts the events that waited into the ring. `sp` is the hook's that has just finished.
#[cold]
#[inline(never)]
fn tell_nested(block: *mut Block, sp: usize) {
    // SAFETY: the thread's own block; handlers add behind `nested_count` only, and an index is
    // passed before its event is emitted, so that a jump out of here emits none twice.
    unsafe {
        loop {
            let told = (&raw const (*block).nested_told).read_volatile();
            if told >= (&raw const (*block).nested_count).read_volatile() {
                break;
            }
            let waiting = (&raw const (*block).nested[told as usize]).read_volatile();
            (&raw mut (*block).nested_told).write_volatile(told + 1);
            guard::begin(block, sp, if waiting.event.op.is_event() { COUNTED } else { 0 });
            push_waiting(&mut *block, waiting);
            guard::end(block);
        }
        (&raw mut (*block).nested_count).write_volatile(0);
        (&raw mut (*block).nested_told).write_volatile(0);
    }
}

/// # Safety
/// As [`push`].
unsafe fn push_waiting(block: &mut Block, waiting: Waiting) {
    // SAFETY: as in `push`.
    let producer = unsafe { &(*block.control).producer.0 };
    producer.emitted.store(block.gate / BEGUN, Relaxed);
    if block.head + ROOM + block.reserved > block.limit && !room(block) {
        if waiting.event.op.is_event() {
            count_lost(block);
        }
        return;
    }
    if block.lost_untold != 0 {
        tell_marks(block);
    }
    producer.reservation.store(block.head + 1, Relaxed);
    block.stamp = block.stamp.max(waiting.stamp);
    block.until_stamp = 0;
    block.put(Record::timestamp(block.stamp));
    if waiting.event.is_compact() {
        block.put(waiting.event.compact(0));
    } else {
        waiting.event.extended(0).into_iter().for_each(|record| block.put(record));
    }
    // SAFETY: as above.
    unsafe { block.publish() };
}
