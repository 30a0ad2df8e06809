//! What a thread does when its ring looks full: takes up what the recorder wants changed, and waits
//! for it, or not.

use super::MAX_EVENT_RECORDS;
use crate::entry::{self, EntryMode};
use crate::thread::{self, INTERVAL_AFTER_NEXT, INTERVAL_PENDING, ThreadState};
use crate::{attach, sandbox, sys, timestamp, tls};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use heaptape_wire::area::{ACTIVATION_DORMANT, CLOSED, OVERFLOW_DROP, OVERFLOW_WAIT};
use heaptape_wire::limits::HEADER_CHECK_RECORDS;

/// What the recorder wants changed. The event at hand is told as it was begun.
///
/// # Safety
/// The block is the calling thread's, with a gate that is not 0.
#[cold]
pub unsafe fn apply_control(state: *mut ThreadState) {
    let Some(area) = attach::area() else { return };
    let header = area.header();
    // SAFETY: the caller's promise.
    let state = unsafe { &mut *state };
    let sample_bytes = header.sample_bytes.load(Relaxed);
    if state.countdown.set_mean(sample_bytes) {
        entry::choose(EntryMode::of_interval(sample_bytes));
        state.pending_reports |= INTERVAL_PENDING | INTERVAL_AFTER_NEXT;
    }
    if header.activation.0.load(Relaxed) == ACTIVATION_DORMANT {
        // The block stays as it is until the recorder sees the thread in another slot, or gone.
        tls::set((&raw const header.activation.0).cast_mut().cast());
        entry::choose(EntryMode::Untraced);
    }
}

/// The ring looks full, or was not looked at for long: reads the recorder's position again; waits,
/// when that is wanted and the recorder lives. True when there is room.
#[cold]
#[inline(never)]
pub fn ensure_capacity(state: &mut ThreadState) -> bool {
    sys::aligned(|| ensure_capacity_aligned(state))
}

#[inline(always)]
fn ensure_capacity_aligned(state: &mut ThreadState) -> bool {
    let capacity = state.ring.capacity();
    let wanted = state.head + MAX_EVENT_RECORDS + state.reserved;
    // SAFETY: as in `push`.
    let control = unsafe { &*state.control };
    let mut refresh = |state: &mut ThreadState| {
        let end = control.consumer.0.tail.load(Acquire).wrapping_add(capacity);
        state.limit = end.min(wanted + HEADER_CHECK_RECORDS);
        wanted <= end
    };
    // SAFETY: the caller's own block.
    unsafe { apply_control(state) };
    if refresh(state) {
        return true;
    }
    let Some(area) = attach::area() else { return false };
    let header = area.header();
    if header.state.load(Relaxed) == CLOSED {
        attach::close();
        tls::set(thread::untraced());
        entry::choose(EntryMode::Untraced);
        return false;
    }
    if header.overflow.load(Relaxed) == OVERFLOW_DROP || header.breaker.load(Relaxed) != 0 {
        return false;
    }
    wait(state, header, control, &mut refresh)
}

/// Turns of a loop between two looks.
const SPINS: u32 = 64;

/// How long a thread waits for the recorder.
pub struct Deadline {
    heartbeat: u64,
    start: u64,
    alive: u64,
    /// Looks without a clock.
    looks: u64,
}

impl Deadline {
    /// From now on.
    pub fn new(header: &heaptape_wire::Header) -> Deadline {
        let now = timestamp::monotonic_ns().unwrap_or(0);
        Deadline { heartbeat: header.heartbeat.0.load(Relaxed), start: now, alive: now, looks: 0 }
    }

    fn now(&mut self) -> u64 {
        /// A look and the [`SPINS`] before it, where there is no clock.
        const LOOK_NS: u64 = 2_000;
        self.looks += 1;
        timestamp::monotonic_ns().unwrap_or(self.looks * LOOK_NS)
    }

    /// Whether to wait no longer: the session is closed, the process drops by now (by choice, or
    /// since another of its threads waited without success), the recorder's heart has not beaten
    /// for `wait_ms`, or too much time has passed in all.
    pub fn is_over(&mut self, header: &heaptape_wire::Header) -> bool {
        /// A recorder that lives but takes nothing from a ring for so long is as good as dead.
        const LONGEST_MS: u64 = 30_000;
        let (now, beat) = (self.now(), header.heartbeat.0.load(Relaxed));
        let overflow = header.overflow.load(Relaxed);
        // Signs of life lengthen the wait only where the wait has no bound of its own.
        if beat != self.heartbeat && overflow == OVERFLOW_WAIT {
            (self.heartbeat, self.alive) = (beat, now);
        }
        header.state.load(Relaxed) == CLOSED
            || overflow == OVERFLOW_DROP
            || header.breaker.load(Relaxed) != 0
            || now.saturating_sub(self.alive) / 1_000_000 >= header.wait_ms.load(Relaxed)
            || now.saturating_sub(self.start) / 1_000_000 >= LONGEST_MS
    }
}

/// Waits for room as long as [`Patience`] lasts. Then the breaker trips for the whole process.
fn wait(
    state: &mut ThreadState,
    header: &heaptape_wire::Header,
    control: &heaptape_wire::SlotControl,
    refresh: &mut impl FnMut(&mut ThreadState) -> bool,
) -> bool {
    const SLEEP_MS: u64 = 10;
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if refresh(state) {
            return true;
        }
    }
    let tail_low = (&raw const control.consumer.0.tail).cast::<u32>();
    let mut deadline = Deadline::new(header);
    loop {
        control.waiting.0.store(1, SeqCst);
        let seen = control.consumer.0.tail.load(SeqCst) as u32;
        if refresh(state) {
            control.waiting.0.store(0, Relaxed);
            return true;
        }
        if !sandbox::allows(sandbox::SLEEP) {
            (0..SPINS).for_each(|_| core::hint::spin_loop());
        } else {
            sys::futex_wait(tail_low, seen, SLEEP_MS);
        }
        control.waiting.0.store(0, Relaxed);
        if refresh(state) {
            return true;
        }
        if deadline.is_over(header) {
            header.breaker.store(1, Relaxed);
            return false;
        }
    }
}
