//! Deferred events: those of signal handlers that interrupted a hook, kept until it ends.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use heaptape_wire::Event;

/// The most deferred events of a thread.
pub(crate) const MAX_DEFERRED: usize = 256;
/// From this number on, signals have to wait while the interrupted hook waits for its ring.
pub(crate) const MANY_DEFERRED: usize = 128;

/// An event of a signal handler, kept until the interrupted hook ends.
#[derive(Clone, Copy)]
pub(crate) struct DeferredEvent {
    /// The absolute timestamp in ticks; 0 in an entry without an event.
    pub timestamp: u64,
    /// The event as the hook found it.
    pub event: Event,
}

/// The deferred events: the one with number `n` is at `n % MAX_DEFERRED`.
pub(crate) type DeferredEvents = [DeferredEvent; MAX_DEFERRED];

/// A queue of [`DeferredEvents`]. Handlers add to it at any time, so it is used through a pointer.
/// Only a hook that is busy takes from it, so handlers never do that meanwhile.
#[repr(C)]
pub(crate) struct Deferred {
    /// Number of events that were added. It may overflow, as `taken` may.
    added: AtomicU32,
    /// Number of events that were taken.
    taken: u32,
    /// 1 while the stack of a deferred event is being captured.
    is_capturing: u32,
}

impl Deferred {
    /// Returns the queue without events.
    pub(crate) const fn new() -> Deferred {
        Deferred { added: AtomicU32::new(0), taken: 0, is_capturing: 0 }
    }

    /// Returns the number of events that wait.
    ///
    /// # Safety
    /// `this` must be the calling thread's.
    pub(crate) unsafe fn count(this: *const Deferred) -> usize {
        // SAFETY: the calling thread's, as the caller ensures.
        unsafe { (*this).added.load(Relaxed).wrapping_sub((&raw const (*this).taken).read_volatile()) as usize }
    }

    /// Adds an event. Returns false if there is no space for it. The entry is taken first, so that a
    /// handler that interrupts this one uses the next ones.
    ///
    /// # Safety
    /// `this` and `events` must be the calling thread's.
    pub(crate) unsafe fn add(
        this: *mut Deferred,
        events: *mut DeferredEvents,
        event: impl FnOnce() -> DeferredEvent,
    ) -> bool {
        // SAFETY: the calling thread's, as the caller ensures. Nobody else writes the entry that this
        // call has got, and the interrupted hook reads it when this handler has ended.
        unsafe {
            loop {
                let number = (*this).added.load(Relaxed);
                if number.wrapping_sub((&raw const (*this).taken).read_volatile()) as usize >= MAX_DEFERRED {
                    return false;
                }
                if (*this).added.compare_exchange(number, number.wrapping_add(1), Relaxed, Relaxed).is_ok() {
                    (&raw mut (*events)[number as usize % MAX_DEFERRED]).write_volatile(event());
                    return true;
                }
            }
        }
    }

    /// Takes the next event, before it is emitted, so that a jump out of the caller emits none twice. An
    /// entry whose handler was left by a jump before it had an event is passed over.
    ///
    /// # Safety
    /// As [`Deferred::add`], in a hook that is busy.
    pub(crate) unsafe fn take(this: *mut Deferred, events: *mut DeferredEvents) -> Option<DeferredEvent> {
        // SAFETY: the calling thread's, as the caller ensures. A handler does not use the entry before it
        // is taken.
        unsafe {
            let taken = &raw mut (*this).taken;
            while Deferred::count(this) != 0 {
                let number = taken.read_volatile();
                let entry = &raw mut (*events)[number as usize % MAX_DEFERRED];
                let event = entry.read_volatile();
                (&raw mut (*entry).timestamp).write_volatile(0);
                taken.write_volatile(number.wrapping_add(1));
                if event.timestamp != 0 {
                    return Some(event);
                }
            }
            None
        }
    }

    /// Runs `capture` unless it interrupted another such call. Returns 0 then.
    ///
    /// # Safety
    /// `this` must be the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn while_capturing(this: *mut Deferred, capture: impl FnOnce() -> u32) -> u32 {
        // SAFETY: the calling thread's, as the caller ensures.
        unsafe {
            if (&raw const (*this).is_capturing).read_volatile() != 0 {
                return 0;
            }
            (&raw mut (*this).is_capturing).write_volatile(1);
            let node = capture();
            (&raw mut (*this).is_capturing).write_volatile(0);
            node
        }
    }

    /// Forgets a capture that was left by a jump.
    pub(crate) const fn abandon_capture(&mut self) {
        self.is_capturing = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_wire::Op;
    use std::{boxed::Box, vec::Vec};

    fn event(timestamp: u64) -> DeferredEvent {
        DeferredEvent { timestamp, event: Event { op: Op::TEXT, stack: 0, address: timestamp, size: 0 } }
    }

    #[test]
    fn handlers_that_interrupt_each_other_use_entries_of_their_own() {
        let mut deferred = Deferred::new();
        let mut events: Box<DeferredEvents> = Box::new([event(0); MAX_DEFERRED]);
        let (this, events) = (&raw mut deferred, &raw mut *events);
        // SAFETY: all of this is the test's own.
        unsafe {
            let is_kept = Deferred::add(this, events, || {
                assert!(Deferred::add(this, events, || event(7)) && Deferred::add(this, events, || event(8)));
                event(9)
            });
            assert!(is_kept);
            // One that is left before it has an event.
            (*this).added.fetch_add(1, Relaxed);
            assert!(Deferred::add(this, events, || event(10)));
            let times = || core::iter::from_fn(|| Deferred::take(this, events)).map(|event| event.timestamp);
            assert_eq!(times().collect::<Vec<_>>(), [9, 7, 8, 10]);
        }
    }

    #[test]
    fn queue_is_as_long_as_its_array_wherever_it_begins() {
        let mut events: Box<DeferredEvents> = Box::new([event(0); MAX_DEFERRED]);
        for first in [0, 1, 255, u32::MAX - 3] {
            let mut deferred = Deferred { added: AtomicU32::new(first), taken: first, is_capturing: 0 };
            let (this, events) = (&raw mut deferred, &raw mut *events);
            // SAFETY: all of this is the test's own.
            unsafe {
                let added = (1..300).filter(|&time| Deferred::add(this, events, || event(time))).count();
                assert_eq!((added, Deferred::count(this)), (MAX_DEFERRED, MAX_DEFERRED));
                assert_eq!(Deferred::take(this, events).map(|event| event.timestamp), Some(1));
                assert!(Deferred::add(this, events, || event(999)));
                let taken: Vec<u64> =
                    core::iter::from_fn(|| Deferred::take(this, events)).map(|event| event.timestamp).collect();
                assert!(taken.iter().copied().eq((2..=256).chain([999])), "{taken:?}");
                assert!(Deferred::count(this) == 0 && Deferred::take(this, events).is_none());
            }
        }
    }
}
