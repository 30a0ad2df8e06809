//! Jumps of the wall clock. A clock that is set forty days ahead by mistake would make all epochs too
//! old at once, and give the next ones names that sort after those of the coming weeks. So for an
//! hour after a jump no epoch is removed because of its age, and new ones are named by the time that
//! it would be without the jump.

use heaptape_recorder::os::clock;
use nix::time::{ClockId, clock_gettime};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Difference from the time since boot that is a jump. NTP adjusts by less, or in small steps.
const MIN_JUMP: Duration = Duration::from_secs(600);
/// Time after a jump in which somebody may set the clock right.
const GRACE: Duration = Duration::from_secs(3600);

/// Both clocks: the time since boot, in which a machine that sleeps counts, too, and the wall time
/// since 1970.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    boot: Duration,
    wall: Duration,
}

impl Clocks {
    /// Returns the wall time at a later time since boot, if nobody sets the clock.
    fn wall_at(self, boot: Duration) -> Duration {
        self.wall + boot.saturating_sub(self.boot)
    }
}

/// Both clocks at the last look, and before a jump.
#[derive(Debug, Default)]
struct ClockJumps {
    last: Option<Clocks>,
    /// The last clocks before a jump, and the time since boot until which they are believed.
    before: Option<(Clocks, Duration)>,
}

impl ClockJumps {
    /// Looks at both clocks. Returns the time that it would be without a jump; `None` if the wall
    /// clock can be believed.
    fn time_without_jump(&mut self, boot: Duration, wall: Duration) -> Option<Duration> {
        if let Some(last) = self.last.replace(Clocks { boot, wall }) {
            let expected = last.wall_at(boot);
            let (ahead, back) = (wall.saturating_sub(expected), expected.saturating_sub(wall));
            if ahead >= MIN_JUMP {
                let seconds = ahead.as_secs();
                tracing::warn!(
                    "the clock was set {seconds} s ahead: for an hour no epoch is removed because of its age"
                );
                let before = self.before.map_or(last, |(before, _)| before);
                self.before = Some((before, boot + GRACE));
            } else if back >= MIN_JUMP {
                // It is right again, or late; in neither case does anything look too old.
                tracing::warn!("the clock was set {} s back", back.as_secs());
                self.before = None;
            }
        }
        self.before = self.before.filter(|(_, until)| boot < *until);
        self.before.map(|(before, _)| before.wall_at(boot))
    }
}

/// The wall clock, for the threads that name epochs and remove them.
#[derive(Debug, Default)]
pub(crate) struct WallClock(Mutex<ClockJumps>);

impl WallClock {
    /// Returns the time that it would be without a jump; `None` if the wall clock can be believed.
    pub(crate) fn time_without_jump(&self) -> Option<Duration> {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        let mut jumps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jumps.time_without_jump(boot, Duration::from_nanos(clock::unix_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_not_believed_for_an_hour_after_a_jump() {
        let seconds = Duration::from_secs;
        let mut jumps = ClockJumps::default();
        let start = seconds(1_795_000_000);
        let mut without_jump = |boot: u64, wall: Duration| jumps.time_without_jump(seconds(boot), wall);
        assert_eq!(without_jump(100, start), None);
        assert_eq!(without_jump(110, start + seconds(15)), None, "an adjustment");
        assert_eq!(without_jump(80_000, start + seconds(79_900)), None, "the machine has slept");
        let ahead = start + seconds(79_900) + 40 * seconds(86_400);
        assert_eq!(without_jump(80_010, ahead), Some(start + seconds(79_910)));
        assert_eq!(without_jump(80_020, ahead + seconds(5000)), Some(start + seconds(79_920)), "a second jump");
        assert_eq!(without_jump(83_600, ahead + seconds(8580)), Some(start + seconds(83_500)));
        assert_eq!(without_jump(83_621, ahead + seconds(8601)), None, "it stays: it was wrong before");
        assert!(without_jump(83_631, ahead + seconds(20_000)).is_some(), "another jump");
        assert_eq!(without_jump(83_641, start + seconds(83_000)), None, "it is right again");
        assert_eq!(without_jump(83_651, start - 40 * seconds(86_400)), None, "set back");
    }
}
