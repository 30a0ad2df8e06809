//! Deferred events: those of signal handlers that interrupted a hook, kept until it ends.

use heaptape_wire::Event;

/// The most deferred events of a thread.
pub(crate) const MAX_DEFERRED: usize = 256;
/// From this number on, signals have to wait while the interrupted hook waits for its ring.
pub(crate) const MANY_DEFERRED: usize = 128;

/// An event of a signal handler, kept until the interrupted hook ends.
#[derive(Clone, Copy)]
pub(crate) struct DeferredEvent {
    /// The absolute timestamp in ticks.
    pub timestamp: u64,
    /// The event as the hook found it.
    pub event: Event,
}

/// The deferred events, in the order in which they happened.
pub(crate) type DeferredEvents = [DeferredEvent; MAX_DEFERRED];

/// Which of the [`DeferredEvents`] are in use. Handlers may change it at any time, so it is used
/// through a pointer.
#[repr(C)]
pub(crate) struct Deferred {
    /// Number of entries in use.
    count: u32,
    /// Number of entries that have been emitted.
    emitted: u32,
    /// 1 while the stack of a deferred event is being captured.
    is_capturing: u32,
}

impl Deferred {
    /// The state without events.
    pub(crate) const EMPTY: Deferred = Deferred { count: 0, emitted: 0, is_capturing: 0 };

    /// Returns the number of entries in use.
    ///
    /// # Safety
    /// `this` must be the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn count(this: *const Deferred) -> usize {
        // SAFETY: the calling thread's, as the caller ensures.
        unsafe { (&raw const (*this).count).read_volatile() as usize }
    }

    /// Adds an event. Returns false if there is no space for it.
    ///
    /// # Safety
    /// `this` and `events` must be the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn push(
        this: *mut Deferred,
        events: *mut DeferredEvents,
        event: impl FnOnce() -> DeferredEvent,
    ) -> bool {
        // SAFETY: the calling thread's, as the caller ensures. The interrupted hook reads the count
        // only when it is done, and the entries below it.
        unsafe {
            let count = Deferred::count(this);
            if count >= MAX_DEFERRED {
                return false;
            }
            (&raw mut (*events)[count]).write_volatile(event());
            (&raw mut (*this).count).write_volatile(count as u32 + 1);
            true
        }
    }

    /// Returns the next event that has not been emitted, and counts it as emitted before it is, so
    /// that a jump out of the caller emits none twice. If there is none, all entries become free.
    ///
    /// # Safety
    /// As [`Deferred::push`].
    #[inline(always)]
    pub(crate) unsafe fn next(this: *mut Deferred, events: *const DeferredEvents) -> Option<DeferredEvent> {
        // SAFETY: the calling thread's, as the caller ensures; handlers add after the count only.
        unsafe {
            let emitted = (&raw const (*this).emitted).read_volatile();
            if emitted as usize >= Deferred::count(this) {
                (&raw mut (*this).count).write_volatile(0);
                (&raw mut (*this).emitted).write_volatile(0);
                return None;
            }
            let event = (&raw const (*events)[emitted as usize]).read_volatile();
            (&raw mut (*this).emitted).write_volatile(emitted + 1);
            Some(event)
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
