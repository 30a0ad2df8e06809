//! Writes the events of finished calls into the thread's ring, and counts the ones that do not fit.
//!
//! The order within one event: capture the stack, store the reservation, take the timestamp, store
//! the record, publish. The reservation lets the recorder know that a timestamp may have been taken
//! for an event that it cannot see yet. It is not needed while the process has one thread.

mod annotation;
pub(crate) mod guard;
#[cfg(not(feature = "standalone"))]
mod mapping;
mod resize;
mod ring_space;
mod sample;

pub(crate) use annotation::{annotate, set_stopped};
#[cfg(not(feature = "standalone"))]
pub(crate) use mapping::{is_forwarding, mapping};
pub(crate) use resize::{Resize, resize_begins, resize_ends};

use crate::boot::{claim, inherited};
use crate::caller::Caller;
use crate::stack::cache;
use crate::thread::{
    self, Activation, COUNTED, Deferred, DeferredEvent, MAX_DEFERRED, PENDING, READY, Request, ThreadState, UNTRACED,
};
use crate::{session, sys, timestamp};
use core::sync::atomic::Ordering::Relaxed;
use guard::CallKind;
use heaptape_wire::event::DELTA_LIMIT;
use heaptape_wire::{Event, Op, Record};
use ring_space::ensure_capacity;

/// The most records of one event: gap, sampling interval, timestamp, prefix, event.
const MAX_EVENT_RECORDS: u64 = 5;
enum HookPath {
    /// The fast path, with the thread's state, whose activation is [`READY`].
    Fast(*mut ThreadState),
    /// The process is not traced.
    Untraced,
    /// All other cases, which [`slow_path_state`] handles.
    Slow,
}

/// Returns the path of the current call.
#[inline(always)]
fn hook_path() -> HookPath {
    let state = thread::get();
    if state.is_null() {
        return HookPath::Slow;
    }
    // SAFETY: a state stays mapped for ever once its address is in the thread-local variable; in a
    // forked child it reads as zeros.
    match unsafe { Activation::read(&raw const (*state).activation) }.low_byte() {
        READY => HookPath::Fast(state),
        UNTRACED => HookPath::Untraced,
        _ => HookPath::Slow,
    }
}

/// Attaches the thread if needed and classifies the call. Returns `None` if the call is not traced,
/// or is not an event of its own.
#[cold]
#[inline(never)]
fn slow_path_state(caller: Caller, request: Request) -> Option<(*mut ThreadState, CallKind)> {
    let mut state = thread::get();
    // If a fork interrupted a hook, the child has the parent's state until here.
    // SAFETY: the thread's own state, which stays mapped.
    if state.is_null() || unsafe { (*state).activation.is_none() || inherited::leave_parent(state) } {
        state = claim::enter(caller.sp);
        return (!state.is_null()).then_some((state, CallKind::Event));
    }
    // SAFETY: the thread's own state, which stays mapped.
    if unsafe { (*state).activation }.low_byte() == thread::ENTERING {
        session::count_without_slot();
        return None;
    }
    // SAFETY: the thread's own state, whose activation is not 0.
    unsafe {
        if (*state).activation.has(thread::STOPPED) {
            return None;
        }
        let mut kind = guard::classify(state, caller.sp, request);
        if kind == CallKind::Deferred && hook_is_gone(state, caller) {
            guard::abandon(state);
            kind = CallKind::Event;
        }
        // Events that waited for a hook that has been left happened before this call.
        if kind == CallKind::Event {
            emit_deferred(state, caller.sp);
        }
        (kind != CallKind::Inner).then_some((state, kind))
    }
}

/// Returns whether the hook that this call seems to interrupt was left by a jump. It was if no
/// further event can be deferred, and the stack from here to its end does not contain that hook.
/// (The hook may also have been left for another stack, to be resumed later. While there is space
/// for deferred events, they wait for that.)
///
/// # Safety
/// As [`guard::classify`].
#[cold]
unsafe fn hook_is_gone(state: *mut ThreadState, caller: Caller) -> bool {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        let is_full = Deferred::count(&raw const (*state).deferred) >= MAX_DEFERRED;
        is_full && cache::stack_contains(&raw mut (*state).stacks, caller, (*state).running.sp) == Some(false)
    }
}

/// Returns whether sampling skips this allocation of a thread that samples, and counts it then. It
/// is called before the allocation, so that only a jump to the allocator has to follow. An
/// allocation that fails has been counted nevertheless.
#[inline(always)]
pub(crate) fn is_sampled_out(size: usize) -> bool {
    match hook_path() {
        // SAFETY: the thread's own state, whose activation is ready.
        HookPath::Fast(state) => unsafe { sample::is_sampled_out(state, size as u64) },
        _ => false,
    }
}

/// The same as [`is_sampled_out`] for a free. Null is not an event and takes the full path.
#[inline(always)]
pub(crate) fn is_free_sampled_out(address: *mut u8) -> bool {
    match hook_path() {
        // SAFETY: the thread's own state, whose activation is ready.
        HookPath::Fast(state) => !address.is_null() && unsafe { sample::is_free_sampled_out(state, address as u64) },
        _ => false,
    }
}

/// Records an allocation. Called after the allocator.
#[inline(always)]
pub(crate) fn allocated(op: Op, address: *mut u8, size: usize, caller: Caller) {
    match hook_path() {
        // SAFETY: the thread's own state, whose activation is ready.
        HookPath::Fast(state) if unsafe { sample::selects(state, false, address as u64, size as u64) } => {
            record_with_stack(state, op, address as u64, size as u64, caller);
        }
        HookPath::Fast(_) | HookPath::Untraced => {}
        HookPath::Slow => record_slowly(op, address as u64, size as u64, caller, true),
    }
}

/// Records a free. Called before the allocator.
#[inline(always)]
pub(crate) fn freed(op: Op, address: *mut u8, caller: Caller) {
    match hook_path() {
        HookPath::Untraced => {}
        // SAFETY: the thread's own state, whose activation is ready.
        HookPath::Fast(state) if !unsafe { sample::selects(state, true, address as u64, 0) } => {}
        HookPath::Fast(state) if !session::frees_have_stacks() => record(state, op, address as u64, 0, caller, || 0),
        HookPath::Fast(state) => record_with_stack(state, op, address as u64, 0, caller),
        HookPath::Slow => record_slowly(op, address as u64, 0, caller, session::frees_have_stacks()),
    }
}

/// Records an event with its call stack. One copy serves all hooks, because the capture is what
/// fills the instruction cache.
#[inline(never)]
fn record_with_stack(state: *mut ThreadState, op: Op, address: u64, size: u64, caller: Caller) {
    // SAFETY: the activation is busy when `record` calls this, and `caller` is the hook's.
    record(state, op, address, size, caller, || unsafe { cache::capture(&raw mut (*state).stacks, caller) });
}

/// Records an event with the stack node that `stack` returns.
#[inline(always)]
fn record(state: *mut ThreadState, op: Op, address: u64, size: u64, caller: Caller, stack: impl FnOnce() -> u32) {
    // SAFETY: the thread's own state, which is not busy; `caller` is the hook's.
    unsafe {
        guard::begin(state, caller.sp, COUNTED);
        let stack = stack();
        push(&mut *state, Event { op, stack, address, size });
        guard::end(state);
        if Activation::read(&raw const (*state).activation).has(PENDING) {
            emit_deferred(state, caller.sp);
        }
    }
}

/// Records an event on the slow path.
#[cold]
#[inline(never)]
fn record_slowly(op: Op, address: u64, size: u64, caller: Caller, with_stack: bool) {
    let named = if op.is_free() { address as usize } else { 0 };
    match slow_path_state(caller, Request { size: size as usize, slack: 0, address: named }) {
        None => {}
        // SAFETY: the thread's own state, whose activation is not 0.
        Some((state, _)) if !unsafe { sample::selects(state, op.is_free(), address, size) } => {}
        Some((state, CallKind::Deferred)) => {
            let stack = if with_stack { deferred_stack(state, caller) } else { 0 };
            defer(state, Event { op, stack, address, size });
        }
        Some((state, _)) if with_stack => record_with_stack(state, op, address, size, caller),
        Some((state, _)) => record(state, op, address, size, caller, || 0),
    }
}

/// Timestamps and publishes an event. Returns false if the event did not fit and was counted as
/// dropped.
///
/// # Safety
/// The state must be the calling thread's, with a busy activation.
#[inline(always)]
unsafe fn push(state: &mut ThreadState, event: Event) -> bool {
    // SAFETY: the slot's control record stays mapped while the session lives.
    let producer = unsafe { state.writer.producer() };
    if state.writer.is_short_of(MAX_EVENT_RECORDS) && !ensure_capacity(state) {
        producer.emitted.store(state.activation.events(), Relaxed);
        if event.op == Op::RESIZE_BEGIN {
            // SAFETY: the calling thread's own state.
            unsafe { Activation::count_event(&raw mut state.activation) };
            producer.emitted.store(state.activation.events(), Relaxed);
        }
        if event.op.is_event() || event.op == Op::RESIZE_BEGIN {
            count_dropped(state);
        }
        return false;
    }
    if state.writer.pending_reports != 0 {
        put_pending_reports(state);
    }
    let delta = if !timestamp::is_single_threaded() {
        put_timestamp(state)
    } else if state.writer.until_timestamp != 0 {
        state.writer.until_timestamp -= 1;
        0
    } else {
        timestamp_of_single_thread(state)
    };
    if event.is_compact() {
        state.writer.put(event.compact(delta));
    } else {
        event.extended(delta).into_iter().for_each(|record| state.writer.put(record));
    }
    // Stored right before the event is published, so that the count is in doubt for as short as
    // possible if the thread is killed between the two.
    producer.emitted.store(state.activation.events(), Relaxed);
    // SAFETY: the control record is the claimed slot's, since the activation is busy.
    unsafe { state.writer.publish() };
    true
}

/// Takes a timestamp for the next event, and announces that it may have been taken. Returns the
/// ticks since the thread's last one, after a record of its own if there are many.
#[inline(always)]
fn put_timestamp(state: &mut ThreadState) -> u64 {
    // SAFETY: the slot's control record stays mapped while the session lives.
    unsafe { state.writer.producer() }.reservation.store(state.writer.head + 1, Relaxed);
    let now = timestamp::now();
    let delta = now.wrapping_sub(state.writer.timestamp);
    // A timestamp is never before the thread's last one, even if the clock is.
    if (delta as i64) < 0 {
        return 0;
    }
    state.writer.timestamp = now;
    if delta < DELTA_LIMIT {
        return delta;
    }
    state.writer.put(Record::timestamp(now));
    0
}

/// Takes a timestamp while the process has one thread, and decides how many events have none after
/// it.
#[inline(never)]
fn timestamp_of_single_thread(state: &mut ThreadState) -> u64 {
    let before = state.writer.timestamp;
    let delta = put_timestamp(state);
    let elapsed = state.writer.timestamp.wrapping_sub(before);
    state.writer.until_timestamp = state.writer.credit.untimed_after(elapsed);
    delta
}

/// Stores the records that are due before the next event: a gap, a change of the sampling interval.
#[cold]
#[inline(never)]
fn put_pending_reports(state: &mut ThreadState) {
    state.writer.put_pending_reports(state.countdown.mean);
}

/// Counts one event that was dropped for want of space.
#[cold]
fn count_dropped(state: &mut ThreadState) {
    // SAFETY: the slot's control record stays mapped while the session lives.
    unsafe { state.writer.count_dropped() };
}

/// Keeps an event of a signal handler that interrupted a hook of this thread until that hook ends.
/// Returns false if the event was dropped.
#[cold]
#[inline(never)]
fn defer(state: *mut ThreadState, event: Event) -> bool {
    // SAFETY: the thread's own state.
    unsafe {
        let deferred = || DeferredEvent { timestamp: timestamp::now(), event };
        let is_kept = Deferred::add(&raw mut (*state).deferred, &raw mut (*state).deferred_events, deferred);
        if is_kept {
            Activation::set(&raw mut (*state).activation, PENDING, true);
        } else {
            // The interrupted hook may hold the other counters in registers. This one is written by
            // handlers only.
            (*state).writer.producer().deferred_dropped.fetch_add(1, Relaxed);
        }
        is_kept
    }
}

/// Captures the stack of a deferred event. Returns 0 if a handler interrupted another handler's
/// capture.
#[cold]
fn deferred_stack(state: *mut ThreadState, caller: Caller) -> u32 {
    // SAFETY: the thread's own state; the deferred frames are reserved for this call.
    unsafe {
        Deferred::while_capturing(&raw mut (*state).deferred, || {
            cache::capture_deferred(&raw mut (*state).stacks, caller)
        })
    }
}

/// Emits the deferred events, if there are any. `sp` is that of the hook that has just finished, which
/// is busy until the last one, so that the events of handlers that run meanwhile come after them.
#[cold]
#[inline(never)]
fn emit_deferred(state: *mut ThreadState, sp: usize) {
    // SAFETY: the thread's own state; `sp` is the hook's.
    unsafe {
        let mut signals = None;
        while Activation::read(&raw const (*state).activation).has(PENDING) {
            guard::begin(state, sp, 0);
            // Cleared first: a handler that adds an event after the last one was taken sets it again.
            Activation::set(&raw mut (*state).activation, PENDING, false);
            while let Some(deferred) = Deferred::take(&raw mut (*state).deferred, &raw mut (*state).deferred_events) {
                // Handlers may come faster than their events are emitted.
                ring_space::hold_signals_if_crowded(&*state, &mut signals);
                guard::begin_event(state, if deferred.event.op.is_event() { COUNTED } else { 0 });
                push_deferred(&mut *state, deferred);
                Activation::set(&raw mut (*state).activation, COUNTED, false);
            }
            guard::end(state);
        }
        signals.into_iter().for_each(sys::release_signals);
    }
}

/// Publishes a deferred event with its own timestamp.
///
/// This is not [`push`] with another timestamp: what differs is each step but the last. The event
/// was counted when it happened, so `emitted` is stored first, and a dropped one may be half of a
/// resize. Its time is an absolute one, maybe before the thread's last event, so it needs a record
/// and ends a run of events without times. As a parameter of `push`, these would be three more
/// branches in every copy of the hot path.
///
/// # Safety
/// As [`push`].
unsafe fn push_deferred(state: &mut ThreadState, deferred: DeferredEvent) {
    // SAFETY: the slot's control record stays mapped while the session lives.
    let producer = unsafe { state.writer.producer() };
    producer.emitted.store(state.activation.events(), Relaxed);
    if state.writer.is_short_of(MAX_EVENT_RECORDS) && !ensure_capacity(state) {
        let op = deferred.event.op;
        if op.changes_blocks() {
            // SAFETY: the calling thread's own state.
            unsafe { Activation::count_event(&raw mut state.activation) };
            producer.emitted.store(state.activation.events(), Relaxed);
        }
        if op.is_event() || op.changes_blocks() {
            count_dropped(state);
        }
        return;
    }
    if state.writer.pending_reports != 0 {
        put_pending_reports(state);
    }
    producer.reservation.store(state.writer.head + 1, Relaxed);
    state.writer.timestamp = state.writer.timestamp.max(deferred.timestamp);
    state.writer.until_timestamp = 0;
    state.writer.put(Record::timestamp(state.writer.timestamp));
    if deferred.event.is_compact() {
        state.writer.put(deferred.event.compact(0));
    } else {
        deferred.event.extended(0).into_iter().for_each(|record| state.writer.put(record));
    }
    // SAFETY: the control record is the claimed slot's, since the activation is busy.
    unsafe { state.writer.publish() };
}
