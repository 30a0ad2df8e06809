//! How the live bytes of a process grew over an hour, a day, since its start and since the last
//! mark. The past is kept at points in time whose distance grows with the period.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const QUARTER: Duration = Duration::from_secs(900);
const DAY: Duration = Duration::from_secs(86_400);

/// The live bytes at a point in time.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: Instant,
    live: u64,
}

/// Points at equal distances, the oldest of which is as old as the period.
#[derive(Debug)]
struct Points {
    distance: Duration,
    period: Duration,
    points: VecDeque<Point>,
}

impl Points {
    fn new(distance: Duration, period: Duration) -> Points {
        Points { distance, period, points: VecDeque::new() }
    }

    fn add(&mut self, point: Point) {
        if self.points.back().is_some_and(|last| point.at.duration_since(last.at) < self.distance) {
            return;
        }
        self.points.push_back(point);
        // The second one is old enough, so the first one is not needed.
        while self.points.get(1).is_some_and(|second| point.at.duration_since(second.at) >= self.period) {
            self.points.pop_front();
        }
    }

    /// Returns the live bytes of a period ago; `None` if they are not known.
    fn before(&self, now: Instant) -> Option<u64> {
        let first = self.points.front()?;
        (now.duration_since(first.at) >= self.period).then_some(first.live)
    }
}

/// The live bytes of a process in the past.
#[derive(Debug)]
pub(crate) struct LiveHistory {
    hour: Points,
    day: Points,
    first: Option<u64>,
    mark: Option<u64>,
    last: Option<Point>,
    /// Time from which the live blocks are known.
    known_since: u64,
}

impl Default for LiveHistory {
    fn default() -> Self {
        let (hour, day) = (Points::new(MINUTE, HOUR), Points::new(QUARTER, DAY));
        LiveHistory { hour, day, first: None, mark: None, last: None, known_since: 0 }
    }
}

impl LiveHistory {
    /// Adds the live bytes of a point in time. `known_since` identifies the live set: with another
    /// one the past begins anew, since the growth would be that of what is known. Returns whether
    /// it does.
    pub(crate) fn add(&mut self, at: Instant, live: u64, known_since: u64) -> bool {
        let is_new = self.last.is_some() && known_since != self.known_since;
        if is_new {
            *self = LiveHistory::default();
        }
        let point = Point { at, live };
        self.known_since = known_since;
        self.hour.add(point);
        self.day.add(point);
        self.first.get_or_insert(live);
        self.last = Some(point);
        is_new
    }

    /// Notes that the growth since the mark begins now.
    pub(crate) fn mark(&mut self) {
        self.mark = self.last.map(|last| last.live);
    }

    /// Returns the growth by period, as far as it is known.
    pub(crate) fn growths(&self) -> BTreeMap<String, i64> {
        let Some(last) = self.last else { return BTreeMap::new() };
        let growth = |before: u64| i64::try_from(last.live).unwrap_or(i64::MAX).saturating_sub_unsigned(before);
        let known = [
            ("hour", self.hour.before(last.at)),
            ("day", self.day.before(last.at)),
            ("start", self.first),
            ("mark", self.mark),
        ];
        known.into_iter().filter_map(|(period, before)| Some((period.to_owned(), growth(before?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_each_period() {
        let (mut history, start) = (LiveHistory::default(), Instant::now());
        let growths = |history: &LiveHistory| history.growths().into_iter().collect::<Vec<_>>();
        let known = |all: &[(&str, i64)]| -> Vec<(String, i64)> {
            all.iter().map(|(period, growth)| ((*period).to_owned(), *growth)).collect()
        };
        assert_eq!(growths(&history), known(&[]));
        // It grows by a byte a second.
        for second in 0..2 * 86_400 {
            history.add(start + Duration::from_secs(second), 1000 + second, 0);
            if second == 3500 {
                assert_eq!(growths(&history), known(&[("start", 3500)]));
            }
            if second == 100_000 {
                history.mark();
            }
            assert!(history.hour.points.len() <= 62 && history.day.points.len() <= 98);
        }
        let found = history.growths();
        assert_eq!((found["start"], found["mark"]), (2 * 86_400 - 1, 2 * 86_400 - 1 - 100_000));
        assert!((3600..3660).contains(&found["hour"]) && (86_400..87_300).contains(&found["day"]), "{found:?}");
        // What was allocated before is not known any more.
        assert!(history.add(start + 3 * DAY, 7, 99));
        assert!(!history.add(start + 3 * DAY + MINUTE, 9, 99));
        assert_eq!(growths(&history), known(&[("start", 2)]));
    }
}
