//! What a sandbox of the program certainly lets this library do. It is known from the filters that
//! the program has installed; see `process/sandbox.rs`.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Purposes of system calls, as a set of bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need(u32);

impl Need {
    pub(crate) const NONE: Need = Need(0);
    /// Checking whether memory can be read.
    pub(crate) const PROBE: Need = Need(1);
    /// Mapping more of the library's own memory.
    pub(crate) const MAP_MORE: Need = Need(2);
    /// Mapping memory for other purposes.
    pub(crate) const MAP: Need = Need(4);
    /// Giving a thread its state.
    pub(crate) const THREAD: Need = Need(8);
    /// Waiting without using the CPU.
    pub(crate) const SLEEP: Need = Need(16);
    /// Copying memory that may not be readable.
    pub(crate) const PEEK: Need = Need(32);
    /// Reading the clock, which the vDSO may do by a system call.
    pub(crate) const TIME: Need = Need(64);
    /// Attaching a forked child.
    pub(crate) const ATTACH: Need = Need(128);
    /// Inspecting a program that is about to start, and notifying the recorder.
    pub(crate) const INSPECT: Need = Need(256);
    /// Unlocking memory of this library in a program that locks its own.
    pub(crate) const UNLOCK: Need = Need(512);
    pub(crate) const EVERYTHING: Need = Need(1023);
    /// Whatever can wait until it is known in which sandbox the program was started.
    pub(crate) const LATER: Need = Need(1024);

    /// Returns the needs of both sets.
    pub(crate) const fn and(self, other: Need) -> Need {
        Need(self.0 | other.0)
    }

    /// Returns whether a set contains one of these needs.
    pub(crate) const fn is_in(self, other: Need) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the system calls for all of these needs are certainly harmless.
    #[inline(always)]
    pub(crate) fn is_allowed(self) -> bool {
        !self.is_in(forbidden())
    }
}

/// Needs whose calls may kill the process. Children inherit them. Until [`permit`] the program may
/// have been started in a sandbox that forbids what debuggers do.
static FORBIDDEN: AtomicU32 = AtomicU32::new(if cfg!(test) { 0 } else { Need::PEEK.0 | Need::LATER.0 });

/// Returns the needs whose calls may kill the process.
#[inline(always)]
pub(crate) fn forbidden() -> Need {
    Need(FORBIDDEN.load(Relaxed))
}

/// Adds needs whose calls may kill the process from now on.
pub(crate) fn forbid(needs: Need) {
    FORBIDDEN.fetch_or(needs.0, Relaxed);
}

/// Permits needs of a program that was started without a sandbox.
pub(crate) fn permit(needs: Need) {
    FORBIDDEN.fetch_and(!needs.0, Relaxed);
}

/// Sets the forbidden needs to what they were, because the program's filter was refused.
pub(crate) fn restore(before: Need) {
    FORBIDDEN.store(before.0, Relaxed);
}
