//! How long a thread waits for the recorder.

use super::descriptor_thread;
use crate::sys::{self, Need, TaskState};
use crate::timestamp;
use core::sync::atomic::Ordering::Relaxed;
use heaptape_wire::Header;
use heaptape_wire::area::{CLOSED, OVERFLOW_BOUNDED, OVERFLOW_DROP, OVERFLOW_WAIT};

/// Number of spin-loop iterations between two checks.
pub(crate) const SPINS: u32 = 64;

const NS_PER_MS: u64 = 1_000_000;
/// The longest wait for a recorder that is alive and makes no progress, e.g. since its disk hangs.
const LONGEST_NS: u64 = 30_000 * NS_PER_MS;
/// The most time that one look counts for. We look at least every 100 ms, so a longer gap means
/// that this process didn't run either: it was stopped (Ctrl-Z, `docker pause`), and perhaps its
/// recorder with it. That's no reason to give up in the moment in which both continue.
const LONGEST_STEP_NS: u64 = 250 * NS_PER_MS;

/// Decides how long a thread waits for the recorder.
pub(crate) struct Deadline {
    heartbeat: u64,
    progress: u64,
    /// Time of the last look.
    last: u64,
    /// Number of looks, which replaces the clock where there is none.
    looks: u64,
    /// Time since the start of the wait.
    waited: u64,
    /// Time without a sign of life of the recorder, not counting what this process missed.
    silent: u64,
    /// Time without progress of the recorder, counted in the same way.
    stuck: u64,
    sleep_ms: u64,
}

impl Deadline {
    /// Starts the wait now.
    pub(crate) fn new(header: &Header) -> Deadline {
        Deadline {
            heartbeat: header.heartbeat.0.load(Relaxed),
            progress: header.recorder.0.progress.load(Relaxed),
            last: timestamp::monotonic_ns().unwrap_or(0),
            looks: 0,
            waited: 0,
            silent: 0,
            stuck: 0,
            sleep_ms: 10,
        }
    }

    /// Returns how long to sleep before the next look, unless the recorder wakes the thread. Each
    /// look takes CPU time that the recorder may need: 200 threads that looked every 10 ms took a
    /// tenth of two processors.
    pub(crate) fn sleep_ms(&mut self, header: &Header) -> u64 {
        const LONGEST_MS: u64 = 80;
        let now = self.sleep_ms;
        if header.overflow.load(Relaxed) == OVERFLOW_WAIT {
            self.sleep_ms = (2 * now).min(LONGEST_MS);
            return now;
        }
        now.min(10)
    }

    fn now(&mut self) -> u64 {
        /// Estimated time of a check and the [`SPINS`] before it, in nanoseconds.
        const LOOK_NS: u64 = 2_000;
        self.looks += 1;
        timestamp::monotonic_ns().unwrap_or(self.looks * LOOK_NS)
    }

    /// Returns whether to stop waiting: the session is closed, the process drops events (by its
    /// policy, or because another of its threads waited without success), the recorder has shown no
    /// sign of life for `wait_ms` and is stopped or gone, or it makes no progress.
    pub(crate) fn is_over(&mut self, header: &Header) -> bool {
        let now = self.now();
        let step = now.saturating_sub(self.last);
        self.last = now;
        let overflow = header.overflow.load(Relaxed);
        if header.state.load(Relaxed) == CLOSED || overflow == OVERFLOW_DROP || header.breaker.load(Relaxed) != 0 {
            return true;
        }
        let wait_ns = header.wait_ms.load(Relaxed).saturating_mul(NS_PER_MS);
        self.waited += step;
        if overflow == OVERFLOW_BOUNDED {
            // A bound of its own, which signs of life do not extend.
            return self.waited >= wait_ns.min(LONGEST_NS);
        }
        let counted = step.min(LONGEST_STEP_NS);
        (self.silent, self.stuck) = (self.silent + counted, self.stuck + counted);
        let (beat, progress) = (header.heartbeat.0.load(Relaxed), header.recorder.0.progress.load(Relaxed));
        if beat != self.heartbeat {
            (self.heartbeat, self.silent) = (beat, 0);
        }
        if progress != self.progress {
            (self.progress, self.stuck) = (progress, 0);
        }
        if self.silent >= wait_ns {
            match recorder_state(header) {
                // Starved: it has work and gets no processor. Giving up would lose events only
                // because the machine is busy.
                TaskState::Runnable => (self.silent, self.stuck) = (0, 0),
                TaskState::Asleep => self.silent = 0,
                TaskState::Stopped | TaskState::Unknown => return true,
            }
        }
        self.stuck >= LONGEST_NS
    }
}

/// Returns what the recorder's thread that reads the rings does. It's unknown if this process can't
/// see it: in another pid namespace, without `/proc`, in a sandbox, or if it's gone.
#[cold]
fn recorder_state(header: &Header) -> TaskState {
    let (thread, start) = (header.recorder.0.thread.load(Relaxed), header.recorder.0.start.load(Relaxed));
    let mut state = TaskState::Unknown;
    if thread != 0 && Need::INSPECT.is_allowed() {
        descriptor_thread::run(false, |_| state = sys::state_of(thread, start));
    }
    state
}

#[cfg(test)]
mod tests;
