//! A finished call -> events in the thread's ring; counts what found no room.
//!
//! Order within one event: capture, announce (`intent`), stamp, store, publish. The announcement lets the recorder know that a stamp may
//! already have been taken for something that it cannot see yet; it is not needed while the process has one thread.

use crate::entry::{self, Lane};
use crate::guard::{self, Verdict};
use crate::thread::{self, BEGUN, BEHIND_NEXT, Block, COUNTED, INTERVAL, NESTED, READY, UNTRACED, Waiting};
use crate::unwind::memo;
use crate::{attach, sample, stamp, sys, tls};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use heaptape_wire::area::{CLOSED, GATE_DORMANT, OVERFLOW_DROP};
use heaptape_wire::event::DELTA_LIMIT;
use heaptape_wire::limits::STRIDE;
use heaptape_wire::{Event, Op, Record};

/// Most records of one event: gap mark, interval, stamp, prefix, event.
const ROOM: u64 = 5;
/// Records that the second half of a resize needs.
const SECOND_HALF: u64 = 3;
/// Most records kept for second halves: a resize that is left by a jump never asks for its own.
const MOST_RESERVED: u64 = 8 * SECOND_HALF;
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
    // SAFETY: a block's memory stays mapped for ever once its address was stored in the slot; in a forked child it reads as zeros.
    match unsafe { (&raw const (*block).gate).read_volatile() } & 0xff {
        READY => Way::Fast(block),
        UNTRACED => Way::Untraced,
        _ => Way::Slow,
    }
}

/// The same for the slow way: attaches, judges. `None`: not traced, or not an event of its own.
#[cold]
#[inline(never)]
fn odd_block(sp: usize, size: usize, address: usize) -> Option<(*mut Block, Verdict)> {
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
    match unsafe { guard::judge(block, sp, size, address) } {
        Verdict::Inner => None,
        verdict => Some((block, verdict)),
    }
}

/// Whether an allocation is passed over by a sampled thread; it is counted then. Asked before the call, so that a jump to the allocator is all
/// that follows; one that fails has been counted nevertheless.
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
    match odd_block(sp, size as usize, named) {
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

/// A resize whose first half has been told, or that is sampled and has none to tell.
#[derive(Clone, Copy)]
pub struct Resize {
    block: *mut Block,
    nested: bool,
    /// With sampling: the old block was sampled, the new one is to be. Both hold for a resize that is recorded whole.
    old: bool,
    new: bool,
}

/// The first half of a resize: before the real call. Gives what the second half needs.
#[inline(never)]
pub fn resize_begins(old: *mut u8, sp: usize, size: usize) -> Option<Resize> {
    let (block, verdict) = match way() {
        Way::Fast(block) => (block, Verdict::Event),
        Way::Untraced => return None,
        Way::Slow => odd_block(sp, size, old as usize)?,
    };
    let mut resize = Resize { block, nested: verdict == Verdict::Nested, old: true, new: true };
    // SAFETY: the thread's own block with a gate that is not 0.
    unsafe {
        if (*block).countdown.mean != 0 {
            (resize.old, resize.new) = (sample::remove(old as u64), sample::hits(block, size as u64));
            if !resize.old {
                return Some(resize);
            }
        }
    }
    let event = Event { op: Op::RESIZE_BEGIN, stack: 0, address: old as u64, size: 0 };
    if resize.nested {
        return nest(block, event).then_some(resize);
    }
    // SAFETY: the thread's own block, not busy.
    unsafe {
        guard::begin(block, sp, 0);
        let reserved = (*block).reserved;
        (*block).reserved = (reserved + SECOND_HALF).min(MOST_RESERVED);
        let done = push(&mut *block, event);
        if !done {
            (*block).reserved = reserved;
        }
        guard::end(block);
        done.then_some(resize)
    }
}

/// The second half: after the real call.
#[inline(never)]
pub fn resize_ends(resize: Resize, op: Op, old: *mut u8, new: *mut u8, size: usize, sp: usize, bp: usize) {
    let block = resize.block;
    // SAFETY: the block that the first half was given.
    unsafe {
        if (*block).gate == 0 {
            return; // forked inside the real call: the child's first event of its own attaches it
        }
        let failed = new.is_null() && size != 0;
        let Some(op) =
            (if (*block).countdown.mean == 0 { Some(op) } else { sampled_resize(resize, op, old, new, failed) })
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
        if resize.nested {
            let stack = nested_stack(block, sp, bp);
            nest(block, Event { op, stack, address, size });
            return;
        }
        guard::begin(block, sp, if op.is_event() { COUNTED } else { 0 });
        let stack = if op == Op::RESIZE_FAILED { 0 } else { memo::capture(block, sp, bp) };
        (*block).reserved = (*block).reserved.saturating_sub(SECOND_HALF);
        push(&mut *block, Event { op, stack, address, size });
        guard::end(block);
        if (&raw const (*block).nested_count).read_volatile() != 0 {
            tell_nested(block, sp);
        }
    }
}

/// What a resize is recorded as when blocks are sampled; `None`: not at all, and counted. The new block's chance is its own: sampled to
/// not sampled is a free, not sampled to sampled an allocation.
///
/// # Safety
/// The block is the calling thread's.
#[cold]
unsafe fn sampled_resize(resize: Resize, op: Op, old: *mut u8, new: *mut u8, failed: bool) -> Option<Op> {
    if failed {
        return (resize.old && sample::insert(old as u64)).then_some(Op::RESIZE_FAILED);
    }
    let new_sampled = resize.new && !new.is_null() && sample::insert(new as u64);
    match (resize.old, new_sampled) {
        (true, true) => Some(op),
        (true, false) => Some(Op::RESIZE_FREED),
        (false, true) => Some(if op == Op::RESIZE { Op::REALLOC } else { Op::REALLOCARRAY }),
        (false, false) => {
            // SAFETY: the caller's promise.
            unsafe { sample::count_passed(resize.block) };
            None
        }
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
        producer.intent.store(block.head + 1, Relaxed);
        let now = stamp::now();
        delta = now.wrapping_sub(block.stamp);
        // Not before the last stamp of this thread, whatever the clock does.
        if (delta as i64) < 0 {
            delta = 0;
        } else if delta >= DELTA_LIMIT {
            block.put(Record::stamp(now));
            block.stamp = now;
            delta = 0;
        } else {
            block.stamp = now;
        }
    }
    if event.is_narrow() {
        block.put(event.narrow(delta));
    } else {
        event.wide(delta).into_iter().for_each(|record| block.put(record));
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
        block.put(Record::lost(events));
    }
    if marks & INTERVAL != 0 {
        block.put(Record::interval(block.countdown.mean, marks & BEHIND_NEXT != 0));
    }
}

#[cold]
fn count_lost(block: &mut Block) {
    // SAFETY: as in `push`.
    let producer = unsafe { &(*block.control).producer.0 };
    block.lost += 1;
    block.lost_untold += 1;
    producer.lost.store(block.lost, Release);
}

/// What the recorder wants changed. The event at hand is told as it was begun.
///
/// # Safety
/// The block is the calling thread's, with a gate that is not 0.
#[cold]
pub unsafe fn obey(block: *mut Block) {
    let Some(area) = attach::area() else { return };
    let header = area.header();
    // SAFETY: the caller's promise.
    let block = unsafe { &mut *block };
    let sample_bytes = header.sample_bytes.load(Relaxed);
    if block.countdown.take_up(sample_bytes) {
        entry::choose(Lane::of_interval(sample_bytes));
        block.lost_untold |= INTERVAL | BEHIND_NEXT;
    }
    if header.gate.0.load(Relaxed) == GATE_DORMANT {
        // The block stays as it is until the recorder sees the thread in another slot, or gone.
        tls::set((&raw const header.gate.0).cast_mut().cast());
        entry::choose(Lane::Untraced);
    }
}

/// The ring looks full, or was not looked at for long: reads the recorder's position again; waits, when that is wanted and the recorder lives. True when there is room.
#[cold]
#[inline(never)]
fn room(block: &mut Block) -> bool {
    let capacity = block.ring.capacity();
    let wanted = block.head + ROOM + block.reserved;
    // SAFETY: as in `push`.
    let control = unsafe { &*block.control };
    let mut refresh = |block: &mut Block| {
        let end = control.consumer.0.tail.load(Acquire).wrapping_add(capacity);
        block.limit = end.min(wanted + STRIDE);
        wanted <= end
    };
    // SAFETY: the caller's own block.
    unsafe { obey(block) };
    if refresh(block) {
        return true;
    }
    let Some(area) = attach::area() else { return false };
    let header = area.header();
    if header.state.load(Relaxed) == CLOSED {
        attach::close();
        tls::set(thread::untraced());
        entry::choose(Lane::Untraced);
        return false;
    }
    if header.overflow.load(Relaxed) == OVERFLOW_DROP || header.breaker.load(Relaxed) != 0 {
        return false;
    }
    wait(block, header, control, &mut refresh)
}

/// Waits for room: as long as the recorder's heartbeat moves, and `wait_ms` in all without it. Then the breaker trips for the whole process.
fn wait(
    block: &mut Block,
    header: &heaptape_wire::Header,
    control: &heaptape_wire::SlotControl,
    refresh: &mut impl FnMut(&mut Block) -> bool,
) -> bool {
    const SPINS: u32 = 64;
    const NAP_MS: u64 = 10;
    /// A recorder that lives but takes nothing from this ring for so long is as good as dead.
    const LONGEST_MS: u64 = 30_000;
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if refresh(block) {
            return true;
        }
    }
    let tail_low = (&raw const control.consumer.0.tail).cast::<u32>();
    let mut heartbeat = header.heartbeat.0.load(Relaxed);
    let (start, mut alive) = (sys::monotonic_ns(), sys::monotonic_ns());
    loop {
        control.waiting.0.store(1, SeqCst);
        let seen = control.consumer.0.tail.load(SeqCst) as u32;
        if refresh(block) {
            control.waiting.0.store(0, Relaxed);
            return true;
        }
        if crate::sandbox::is_sandboxed() {
            (0..SPINS).for_each(|_| core::hint::spin_loop());
        } else {
            sys::futex_wait(tail_low, seen, NAP_MS);
        }
        control.waiting.0.store(0, Relaxed);
        if refresh(block) {
            return true;
        }
        let now = sys::monotonic_ns();
        let beat = header.heartbeat.0.load(Relaxed);
        if beat != heartbeat {
            (heartbeat, alive) = (beat, now);
        }
        let silent_ms = now.saturating_sub(alive) / 1_000_000;
        if header.state.load(Relaxed) == CLOSED
            || silent_ms >= header.wait_ms.load(Relaxed)
            || now.saturating_sub(start) / 1_000_000 >= LONGEST_MS
        {
            header.breaker.store(1, Relaxed);
            return false;
        }
    }
}

/// An event of a signal handler that interrupted a hook of this thread: kept until that hook is done. False when it was lost.
#[cold]
#[inline(never)]
fn nest(block: *mut Block, event: Event) -> bool {
    // SAFETY: the thread's own block. The interrupted hook reads `nested_count` only when it is done, and never the rest.
    unsafe {
        let count = (&raw const (*block).nested_count).read_volatile() as usize;
        if count >= NESTED {
            // The interrupted hook may hold the other counters in registers: this one is the handlers' own.
            (*(*block).control).producer.0.nested_lost.fetch_add(1, Relaxed);
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
        let stack = memo::nested(block, sp, bp);
        (&raw mut (*block).nested_busy).write_volatile(0);
        stack
    }
}

/// Puts the events that waited into the ring. `sp` is the hook's that has just finished.
#[cold]
#[inline(never)]
fn tell_nested(block: *mut Block, sp: usize) {
    // SAFETY: the thread's own block; handlers add behind `nested_count` only, and an index is passed before its event is told, so
    // that a jump out of here tells none twice.
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
    producer.intent.store(block.head + 1, Relaxed);
    block.stamp = block.stamp.max(waiting.stamp);
    block.until_stamp = 0;
    block.put(Record::stamp(block.stamp));
    if waiting.event.is_narrow() {
        block.put(waiting.event.narrow(0));
    } else {
        waiting.event.wide(0).into_iter().for_each(|record| block.put(record));
    }
    // SAFETY: as above.
    unsafe { block.publish() };
}
