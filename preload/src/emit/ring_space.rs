//! What a thread does when its ring looks full: it applies what the recorder has changed, and waits
//! for space if the overflow policy says so.

use super::MAX_EVENT_RECORDS;
use crate::entry::{self, EntryMode};
use crate::thread::{self, INTERVAL_AFTER_NEXT, INTERVAL_PENDING, ThreadState};
use crate::{attach, sandbox, sys, timestamp, tls};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use heaptape_wire::area::{ACTIVATION_DORMANT, CLOSED, OVERFLOW_DROP, OVERFLOW_WAIT};
use heaptape_wire::limits::HEADER_CHECK_RECORDS;

/// Applies what the recorder has changed. The current event is still emitted as it was begun.
///
/// # Safety
/// The state must be the calling thread's, with an activation that is not 0.
#[cold]
pub unsafe fn apply_control(state: *mut ThreadState) {
    let Some(area) = attach::area() else { return };
    let header = area.header();
    // SAFETY: the state is the calling thread's, as the caller ensures.
    let state = unsafe { &mut *state };
    let sample_bytes = header.sample_bytes.load(Relaxed);
    if state.countdown.set_mean(sample_bytes) {
        entry::choose(EntryMode::of_interval(sample_bytes));
        state.pending_reports |= INTERVAL_PENDING | INTERVAL_AFTER_NEXT;
    }
    if header.activation.0.load(Relaxed) == ACTIVATION_DORMANT {
        // The state stays as it is until the recorder sees that the thread has another slot, or has
        // ended.
        tls::set((&raw const header.activation.0).cast_mut().cast());
        entry::choose(EntryMode::Untraced);
    }
}

/// Ensures that the ring has space for one event. Called if the ring looks full, or the header has
/// not been read for a while. Reads the recorder's position again, and waits if the overflow policy
/// says so and the recorder is alive. Returns whether there is space.
#[cold]
#[inline(never)]
pub fn ensure_capacity(state: &mut ThreadState) -> bool {
    sys::aligned(|| ensure_capacity_aligned(state))
}

#[inline(always)]
fn ensure_capacity_aligned(state: &mut ThreadState) -> bool {
    let capacity = state.ring.capacity();
    let wanted = state.head + MAX_EVENT_RECORDS + state.reserved;
    // SAFETY: the slot's control record stays mapped while the session lives.
    let control = unsafe { &*state.control };
    let mut refresh = |state: &mut ThreadState| {
        let end = control.consumer.0.tail.load(Acquire).wrapping_add(capacity);
        state.limit = end.min(wanted + HEADER_CHECK_RECORDS);
        wanted <= end
    };
    // SAFETY: the calling thread's own state.
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

/// Number of spin-loop iterations between two checks.
const SPINS: u32 = 64;

/// Decides how long a thread waits for the recorder.
pub struct Deadline {
    heartbeat: u64,
    start: u64,
    alive: u64,
    /// Number of checks, which replaces the clock where there is none.
    looks: u64,
}

impl Deadline {
    /// Starts the wait now.
    pub fn new(header: &heaptape_wire::Header) -> Deadline {
        let now = timestamp::monotonic_ns().unwrap_or(0);
        Deadline { heartbeat: header.heartbeat.0.load(Relaxed), start: now, alive: now, looks: 0 }
    }

    fn now(&mut self) -> u64 {
        /// Estimated time of a check and the [`SPINS`] before it, in nanoseconds.
        const LOOK_NS: u64 = 2_000;
        self.looks += 1;
        timestamp::monotonic_ns().unwrap_or(self.looks * LOOK_NS)
    }

    /// Returns whether to stop waiting: the session is closed, the process drops events (by its
    /// policy, or because another of its threads waited without success), the recorder has shown no
    /// sign of life for `wait_ms`, or the wait has lasted too long in total.
    pub fn is_over(&mut self, header: &heaptape_wire::Header) -> bool {
        /// The longest wait in milliseconds. A recorder that is alive but reads nothing from a ring
        /// for this long is treated as dead.
        const LONGEST_MS: u64 = 30_000;
        let (now, beat) = (self.now(), header.heartbeat.0.load(Relaxed));
        let overflow = header.overflow.load(Relaxed);
        // Signs of life extend the wait only if the policy has no bound of its own.
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

/// Waits for space until the [`Deadline`] is over. Then the whole process stops waiting.
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
