//! How the sites of a process grow: their number for the live views, their history for the tape.

use super::heap::Heap;
use crate::heap::history::{GrowthHistory, LiveSum};
use crate::heap::profile::Profile;
use formats::tape;
use std::time::{Duration, Instant};

/// Period over which the growth of sites is counted.
const GROWTH_PERIOD: Duration = Duration::from_secs(60);

/// How the live bytes of a site changed, and in which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteGrowth {
    /// Difference of the live bytes.
    pub bytes: i64,
    /// Seconds in which they changed so.
    pub seconds: u64,
}

/// The growth of the sites of a process.
#[derive(Debug)]
pub(super) struct Growth {
    /// Live bytes of the sites at the last check, and when that was.
    previous_live: Vec<(u32, u64)>,
    checked: Instant,
    /// Whether there was a check yet.
    is_checked: bool,
    /// Number of sites that had grown at the last check.
    growing: u64,
    /// History of the sites since the attach, or since the sums were reset.
    history: GrowthHistory,
}

/// Returns the standard error of each site, if blocks are sampled.
fn errors_of(heap: &Heap) -> Option<impl Fn(u32) -> u64> {
    heap.is_sampled().then_some(|site| heap.error(site))
}

impl Default for Growth {
    fn default() -> Self {
        let history = GrowthHistory::default();
        Growth { previous_live: Vec::new(), checked: Instant::now(), is_checked: false, growing: 0, history }
    }
}

impl Growth {
    /// Counts the sites that hold more than a minute ago, once a minute.
    pub(super) fn check(&mut self, profile: &Profile) {
        if self.checked.elapsed() < GROWTH_PERIOD {
            return;
        }
        let sums = profile.site_sums();
        self.remember(sums.iter().map(|row| (row.site, row.bytes - row.freed_bytes)).collect());
    }

    /// Counts the sites that grew since the last check, and remembers the live bytes of this one.
    fn remember(&mut self, now: Vec<(u32, u64)>) {
        self.growing = now.iter().filter(|(site, live)| *live > self.before(*site)).count() as u64;
        (self.previous_live, self.checked, self.is_checked) = (now, Instant::now(), true);
    }

    /// Returns the live bytes of a site at the last check.
    fn before(&self, site: u32) -> u64 {
        let found = self.previous_live.binary_search_by_key(&site, |(site, _)| *site);
        found.map_or(0, |index| self.previous_live[index].1)
    }

    /// Returns how a site changed since the last check, if there was one.
    pub(super) fn of_site(&self, site: u32, live: u64) -> Option<SiteGrowth> {
        let bytes = || i64::try_from(live).unwrap_or(i64::MAX).saturating_sub_unsigned(self.before(site));
        self.is_checked.then(|| SiteGrowth { bytes: bytes(), seconds: self.checked.elapsed().as_secs() })
    }

    /// Adds a point to the history, if one is due.
    pub(crate) fn add_point(&mut self, tick: impl FnOnce() -> u64, heap: &Heap) {
        if self.history.is_due() {
            let totals = heap.profile().totals();
            let all = LiveSum { blocks: totals.live_blocks, bytes: totals.live_bytes };
            self.history.add_point(tick(), heap.profile(), all, errors_of(heap));
        }
    }

    /// Returns the number of sites that had grown at the last check.
    pub(super) fn growing(&self) -> u64 {
        self.growing
    }

    /// Returns the memory that the history takes, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.history.memory()
    }

    /// Returns the history of the sites that grow, if it is long enough, with the standard errors
    /// of sampled sums.
    pub(super) fn history(&self, heap: &Heap) -> Option<(tape::History, Option<tape::HistoryErrors>)> {
        let history = self.history.record(heap.profile())?;
        let errors = errors_of(heap).map(|now| self.history.errors(&history, now));
        Some((history, errors))
    }

    /// Notes that events are lost: what is certain is the history since then.
    pub(crate) fn note_loss(&mut self) {
        self.history.note_loss();
    }

    /// Forgets the history, since the sums are reset.
    pub(crate) fn reset_history(&mut self) {
        self.history = GrowthHistory::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_of_a_site_is_that_since_the_last_check() {
        let mut growth = Growth::default();
        assert_eq!(growth.of_site(3, 150), None, "nothing is known of the time before");
        growth.remember(vec![(3, 100), (5, 7)]);
        assert_eq!(growth.growing(), 2);
        let of = |growth: &Growth, site, live| growth.of_site(site, live).map(|growth| growth.bytes);
        assert_eq!((of(&growth, 3, 150), of(&growth, 3, 20), of(&growth, 4, 9)), (Some(50), Some(-80), Some(9)));
        growth.remember(vec![(3, 160), (5, 7)]);
        assert_eq!((of(&growth, 3, 150), growth.growing()), (Some(-10), 1));
    }
}
