//! How long a thread waits for the recorder.

use crate::timestamp;
use core::sync::atomic::Ordering::Relaxed;
use heaptape_wire::area::{CLOSED, OVERFLOW_DROP, OVERFLOW_WAIT};

/// Number of spin-loop iterations between two checks.
pub const SPINS: u32 = 64;

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
