//! What a thread does when its ring looks full: it applies what the recorder has changed, and waits
//! for space if the overflow policy says so.

use super::MAX_EVENT_RECORDS;
use crate::mode::{self, EntryMode};
use crate::session;
use crate::sys::{self, Need};
use crate::thread::deadline::{Deadline, SPINS};
use crate::thread::{self, Deferred, INTERVAL_AFTER_NEXT, INTERVAL_PENDING, MANY_DEFERRED, ThreadState};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use heaptape_wire::area::{ACTIVATION_DORMANT, CLOSED, OVERFLOW_DROP};
use heaptape_wire::limits::HEADER_CHECK_RECORDS;

/// Applies what the recorder has changed. The current event is still emitted as it was begun.
///
/// # Safety
/// The state must be the calling thread's, with an activation that is not 0.
#[cold]
pub(crate) unsafe fn apply_control(state: *mut ThreadState) {
    let Some(area) = session::area() else { return };
    let header = area.header();
    // SAFETY: the state is the calling thread's, as the caller ensures.
    let state = unsafe { &mut *state };
    let sample_bytes = header.sample_bytes.load(Relaxed);
    if state.countdown.set_mean(sample_bytes) {
        mode::choose(EntryMode::of_interval(sample_bytes));
        state.writer.pending_reports |= INTERVAL_PENDING | INTERVAL_AFTER_NEXT;
    }
    if header.activation.0.load(Relaxed) == ACTIVATION_DORMANT {
        // The state stays as it is until the recorder sees that the thread has another slot, or has
        // ended.
        thread::set((&raw const header.activation.0).cast_mut().cast());
        mode::choose(EntryMode::Untraced);
    }
}

/// Ensures that the ring has space for one event. Called if the ring looks full, or the header has
/// not been read for a while. Reads the recorder's position again, and waits if the overflow policy
/// says so and the recorder is alive. Returns whether there is space.
#[cold]
#[inline(never)]
pub(crate) fn ensure_capacity(state: &mut ThreadState) -> bool {
    sys::aligned(|| ensure_capacity_aligned(state))
}

#[inline(always)]
fn ensure_capacity_aligned(state: &mut ThreadState) -> bool {
    let capacity = state.writer.ring.capacity();
    let wanted = state.writer.head + MAX_EVENT_RECORDS + state.writer.reserved;
    // SAFETY: the slot's control record stays mapped while the session lives.
    let control = unsafe { &*state.writer.control };
    let mut refresh = |state: &mut ThreadState| {
        let end = control.consumer.0.tail.load(Acquire).wrapping_add(capacity);
        state.writer.limit = end.min(wanted + HEADER_CHECK_RECORDS);
        wanted <= end
    };
    // In a forked child the state may be that of a hook of the parent.
    let is_current = core::ptr::eq(thread::get(), state);
    // SAFETY: the calling thread's own state.
    unsafe { apply_control(state) };
    if refresh(state) {
        return true;
    }
    if !is_current {
        return false;
    }
    let Some(area) = session::area() else { return false };
    let header = area.header();
    if header.state.load(Relaxed) == CLOSED {
        session::close();
        thread::set(thread::untraced());
        mode::choose(EntryMode::Untraced);
        return false;
    }
    if header.overflow.load(Relaxed) == OVERFLOW_DROP || header.breaker.load(Relaxed) != 0 {
        return false;
    }
    wait(state, header, control, &mut refresh)
}

/// Has signals wait from when the thread has many deferred events, before there is no space for more.
/// `signals` is what [`sys::release_signals`] needs then.
pub(super) fn hold_signals_if_crowded(state: &ThreadState, signals: &mut Option<u64>) {
    // SAFETY: the calling thread's own state.
    let is_crowded = unsafe { Deferred::count(&raw const state.deferred) } >= MANY_DEFERRED;
    if signals.is_none() && is_crowded && Need::PROBE.is_allowed() {
        *signals = Some(sys::hold_signals());
    }
}

/// Waits for space until the [`Deadline`] is over. Then the whole process stops waiting.
fn wait(
    state: &mut ThreadState,
    header: &heaptape_wire::Header,
    control: &heaptape_wire::SlotControl,
    refresh: &mut impl FnMut(&mut ThreadState) -> bool,
) -> bool {
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if refresh(state) {
            return true;
        }
    }
    let tail_low = (&raw const control.consumer.0.tail).cast::<u32>();
    let mut deadline = Deadline::new(header);
    let mut signals = None;
    let has_space = loop {
        // A handler may have forked meanwhile. In the child nobody reads this ring any more.
        if !core::ptr::eq(thread::get(), state) {
            break false;
        }
        control.waiting.0.store(1, SeqCst);
        let seen = control.consumer.0.tail.load(SeqCst) as u32;
        if refresh(state) {
            control.waiting.0.store(0, Relaxed);
            break true;
        }
        // Handlers go on allocating while the hook waits here, and their events wait for the hook.
        hold_signals_if_crowded(state, &mut signals);
        if !Need::SLEEP.is_allowed() {
            (0..SPINS).for_each(|_| core::hint::spin_loop());
        } else {
            sys::futex_wait(tail_low, seen, deadline.sleep_ms(header));
        }
        control.waiting.0.store(0, Relaxed);
        if refresh(state) {
            break true;
        }
        if deadline.is_over(header) {
            header.breaker.store(1, Relaxed);
            break false;
        }
    };
    signals.into_iter().for_each(sys::release_signals);
    has_space
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_wire::area::OVERFLOW_WAIT;
    use heaptape_wire::{Header, SlotControl};
    use std::boxed::Box;

    /// A handler may fork while a hook waits for space. In the child the hook continues with the state of
    /// the parent's thread, and no recorder reads its ring, though there is one that lives.
    #[test]
    fn hook_of_the_parent_waits_for_nobody_in_a_forked_child() {
        let (header, control) = (Header::default(), SlotControl::default());
        header.overflow.store(OVERFLOW_WAIT, Relaxed);
        header.wait_ms.store(u64::MAX, Relaxed);
        // SAFETY: numbers and pointers, of which zeros are valid values; a forked child sees them, too.
        let mut state = unsafe { Box::<ThreadState>::new_zeroed().assume_init() };
        let mut looks = 0;
        let has_space = wait(&mut state, &header, &control, &mut |_| {
            looks += 1;
            false
        });
        assert_eq!((has_space, looks, header.breaker.load(Relaxed)), (false, SPINS, 0));
    }
}
