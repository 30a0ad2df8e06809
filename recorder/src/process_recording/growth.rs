//! How the sites of a process grow: their number for the live views, their history for the tape.

use super::heap::Heap;
use crate::history::GrowthHistory;
use crate::profile::Profile;
use formats::tape;
use std::time::{Duration, Instant};

/// Period over which the growth of sites is counted.
const GROWTH_PERIOD: Duration = Duration::from_secs(60);

/// The growth of the sites of a process.
#[derive(Debug)]
pub struct Growth {
    /// Live bytes of the sites at the last check, and when that was.
    previous_live: Vec<(u32, u64)>,
    checked: Instant,
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
        Growth { previous_live: Vec::new(), checked: Instant::now(), growing: 0, history }
    }
}

impl Growth {
    /// Counts the sites that hold more than a minute ago, once a minute.
    pub fn check(&mut self, profile: &Profile) {
        if self.checked.elapsed() < GROWTH_PERIOD {
            return;
        }
        let sums = profile.site_sums();
        let now: Vec<(u32, u64)> = sums.iter().map(|row| (row.site, row.bytes - row.freed_bytes)).collect();
        let before = |site: u32| {
            let found = self.previous_live.binary_search_by_key(&site, |(site, _)| *site);
            found.map_or(0, |index| self.previous_live[index].1)
        };
        self.growing = now.iter().filter(|(site, live)| *live > before(*site)).count() as u64;
        (self.previous_live, self.checked) = (now, Instant::now());
    }

    /// Adds a point to the history, if one is due.
    pub fn add_point(&mut self, tick: impl FnOnce() -> u64, heap: &Heap) {
        if self.history.is_due() {
            self.history.add_point(tick(), heap.profile(), errors_of(heap));
        }
    }

    /// Returns the number of sites that had grown at the last check.
    pub fn growing(&self) -> u64 {
        self.growing
    }

    /// Returns the memory that the history takes, in bytes.
    pub fn memory(&self) -> u64 {
        self.history.memory()
    }

    /// Returns the history of the sites that grow, if it is long enough, with the standard errors
    /// of sampled sums.
    pub fn history(&self, heap: &Heap) -> Option<(tape::History, Option<tape::HistoryErrors>)> {
        let history = self.history.record(heap.profile())?;
        let errors = errors_of(heap).map(|now| self.history.errors(&history, now));
        Some((history, errors))
    }

    /// Forgets the history, since the sums are reset.
    pub fn reset_history(&mut self) {
        self.history = GrowthHistory::default();
    }
}
