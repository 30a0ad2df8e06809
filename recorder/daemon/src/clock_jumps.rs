//! Jumps of the wall clock. A clock that is set forty days ahead by mistake would make all epochs too
//! old at once, so for an hour after a jump none is removed because of its age.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Difference from the time since boot that is a jump. NTP adjusts by less, or in small steps.
const MIN_JUMP: Duration = Duration::from_secs(600);
/// Time after a jump in which somebody may set the clock right.
const GRACE: Duration = Duration::from_secs(3600);

/// Both clocks at the last look, and whether there was a jump.
#[derive(Debug, Default)]
pub(crate) struct ClockJumps {
    /// Time since boot, and wall time since 1970.
    last: Option<(Duration, Duration)>,
    /// Until when, in time since boot, no age is believed.
    until: Option<Duration>,
}

/// Returns the time since boot, in which a machine that sleeps counts, too.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

impl ClockJumps {
    /// Looks at both clocks. Returns whether ages by the wall clock can be believed.
    pub(crate) fn is_believable(&mut self, boot: Duration, wall: Duration) -> bool {
        if let Some((boot_before, wall_before)) = self.last.replace((boot, wall)) {
            let expected = wall_before + boot.saturating_sub(boot_before);
            let (ahead, back) = (wall.saturating_sub(expected), expected.saturating_sub(wall));
            if ahead >= MIN_JUMP {
                let seconds = ahead.as_secs();
                tracing::warn!(
                    "the clock was set {seconds} s ahead: for an hour no epoch is removed because of its age"
                );
                self.until = Some(boot + GRACE);
            } else if back >= MIN_JUMP {
                // It is right again, or late; in neither case does anything look too old.
                tracing::warn!("the clock was set {} s back", back.as_secs());
                self.until = None;
            }
        }
        self.until = self.until.filter(|until| boot < *until);
        self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_not_believed_for_an_hour_after_a_jump() {
        let seconds = Duration::from_secs;
        let mut jumps = ClockJumps::default();
        let start = seconds(1_795_000_000);
        assert!(jumps.is_believable(seconds(100), start));
        assert!(jumps.is_believable(seconds(110), start + seconds(15)), "an adjustment");
        assert!(jumps.is_believable(seconds(80_000), start + seconds(79_900)), "the machine has slept");
        let ahead = start + seconds(79_900) + 40 * seconds(86_400);
        assert!(!jumps.is_believable(seconds(80_010), ahead));
        assert!(!jumps.is_believable(seconds(83_600), ahead + seconds(3590)));
        assert!(jumps.is_believable(seconds(83_611), ahead + seconds(3601)), "it stays: it was wrong before");
        assert!(!jumps.is_believable(seconds(83_621), ahead + seconds(10_000)), "another jump");
        assert!(jumps.is_believable(seconds(83_631), start + seconds(83_000)), "it is right again");
        assert!(since_boot() > Duration::ZERO);
    }
}
