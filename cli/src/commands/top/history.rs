//! The live bytes of call sites in the last minute, for their growth.

use heaptape_daemon::protocol::CallSite;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long past values are kept.
const KEPT: Duration = Duration::from_secs(60);

/// Live bytes of the sites in one answer of the daemon.
#[derive(Debug)]
struct Sample {
    at: Instant,
    live_bytes: HashMap<u32, u64>,
    /// Whether the process has no other sites.
    is_complete: bool,
}

/// The answers of the last minute, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Sample>);

impl History {
    /// Adds an answer. `limit` is the number of sites that were requested.
    pub(super) fn add(&mut self, at: Instant, sites: &[CallSite], limit: u64) {
        let live_bytes = sites.iter().map(|site| (site.site, site.live_bytes)).collect();
        self.0.push_back(Sample { at, live_bytes, is_complete: (sites.len() as u64) < limit });
        // One older sample than a minute is kept, so that there is always a whole minute.
        while self.0.get(1).is_some_and(|second| at.duration_since(second.at) >= KEPT) {
            self.0.pop_front();
        }
    }

    /// Returns the seconds from the oldest to the newest answer.
    pub(super) fn seconds(&self) -> u64 {
        let span = self.0.back().zip(self.0.front()).map(|(last, first)| last.at.duration_since(first.at));
        span.unwrap_or_default().as_secs()
    }

    /// Returns the change of a site's live bytes since the oldest answer, or `None` if it is not
    /// known: there is one answer only, or the site was not among the largest then.
    pub(super) fn growth(&self, site: &CallSite) -> Option<i64> {
        let oldest = self.0.front().filter(|_| self.0.len() > 1)?;
        let before = oldest.live_bytes.get(&site.site).copied().or(oldest.is_complete.then_some(0))?;
        let grown = i128::from(site.live_bytes) - i128::from(before);
        Some(grown.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_last_minute() {
        let site = |number, live_bytes| CallSite { site: number, live_bytes, ..CallSite::default() };
        let start = Instant::now();
        let mut history = History::default();
        history.add(start, &[site(1, 100)], 2);
        assert_eq!((history.growth(&site(1, 100)), history.seconds()), (None, 0));
        history.add(start + Duration::from_secs(30), &[site(1, 150), site(2, 9)], 2);
        assert_eq!((history.growth(&site(1, 150)), history.growth(&site(2, 9))), (Some(50), Some(9)));
        history.add(start + Duration::from_secs(95), &[site(1, 140), site(3, 9)], 2);
        assert_eq!((history.growth(&site(1, 140)), history.seconds()), (Some(-10), 65));
        // Then, the answer had no room for this site: nobody knows what it had.
        assert_eq!(history.growth(&site(3, 9)), None);
    }
}
