//! What all threads of a process are stopped for, and for how long that may hold them.

use super::AttachError;
use super::ptrace::StopError;
use nix::errno::Errno;
use std::time::Duration;

/// How often a stop is tried, while a thread does not stop or a stack refers to a jump's bytes.
const MAX_HOOK_TRIES: u32 = 100;
/// How often a stop is tried to restore the functions, which must not fail because a machine is
/// busy.
const MAX_RESTORE_TRIES: u32 = 50;
/// After how many tries in a row in which a thread did not stop for a whole second no jumps are
/// written: it may wait for a file system that never answers.
const MAX_STUCK_TRIES: u32 = 10;
/// The try to restore from which on each limit is twice the one before.
const PATIENT_TRY: u32 = 40;
/// The milliseconds in which all threads must stop, for one try after the other; the last one holds
/// for all further tries. On a busy machine a thread that can run waits for a processor, and all
/// others are stopped meanwhile.
const STOP_LIMITS: [u64; 9] = [5, 10, 15, 15, 20, 20, 40, 80, 100];

/// What all threads are stopped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To write the jumps: rather not at all than with a long stop.
    Hook,
    /// To write the functions' own bytes: a longer stop at the end rather than hooks that stay.
    Restore,
}

impl Purpose {
    /// Returns the time in which all threads must stop. A thread that waits in the kernel, where
    /// nothing interrupts it, is no reason to hold the others for longer.
    pub(super) fn limit(self, tries: u32, one_is_in_kernel: bool) -> Duration {
        let limit = Duration::from_millis(STOP_LIMITS[STOP_LIMITS.len().min(tries as usize + 1) - 1]);
        match self {
            Purpose::Restore if !one_is_in_kernel => limit * 2u32.pow(tries.saturating_sub(PATIENT_TRY).min(5)),
            Purpose::Restore | Purpose::Hook => limit,
        }
    }

    fn max_tries(self) -> u32 {
        match self {
            Purpose::Hook => MAX_HOOK_TRIES,
            Purpose::Restore => MAX_RESTORE_TRIES,
        }
    }

    /// Returns whether a further try may succeed after this error. In the last `stuck_tries` a thread
    /// did not stop at all.
    pub(crate) fn may_try_again(self, error: &AttachError, tries: u32, stuck_tries: u32) -> bool {
        let may_pass = match error {
            AttachError::Unsafe => true,
            AttachError::Stop(StopError::Late) => self == Purpose::Restore || stuck_tries < MAX_STUCK_TRIES,
            // The kernel has ended it, because it took too long; or the tracer of a command that was
            // killed finishes its step. We have the right, since the memory was opened before.
            AttachError::Killed | AttachError::Stop(StopError::Trace(Errno::EPERM)) => self == Purpose::Restore,
            _ => false,
        };
        may_pass && tries < self.max_tries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_restore_takes_a_long_stop() {
        let last = |purpose: Purpose, one_is_in_kernel| purpose.limit(purpose.max_tries(), one_is_in_kernel);
        assert_eq!(last(Purpose::Hook, false), Duration::from_millis(100));
        assert_eq!(last(Purpose::Restore, true), Duration::from_millis(100));
        assert_eq!(last(Purpose::Restore, false), Duration::from_millis(3200));
        assert_eq!(Purpose::Restore.limit(PATIENT_TRY, false), Duration::from_millis(100));
    }

    #[test]
    fn a_restore_waits_for_another_tracer() {
        let other = AttachError::Stop(StopError::Trace(Errno::EPERM));
        assert!(Purpose::Restore.may_try_again(&other, 0, 0) && !Purpose::Hook.may_try_again(&other, 0, 0));
        assert!(!Purpose::Restore.may_try_again(&other, MAX_RESTORE_TRIES, 0));
    }

    #[test]
    fn thread_that_never_stops_is_not_waited_for_to_write_jumps() {
        let late = AttachError::Stop(StopError::Late);
        assert!(Purpose::Hook.may_try_again(&late, 20, MAX_STUCK_TRIES - 1));
        assert!(!Purpose::Hook.may_try_again(&late, 20, MAX_STUCK_TRIES));
        assert!(Purpose::Restore.may_try_again(&late, 20, MAX_STUCK_TRIES), "its functions must not stay hooked");
    }
}
