//! The history of the call sites of a process: the live blocks and bytes of each at up to 16 points
//! in time. The points are equally spaced: when all are in use, every second one is removed, and
//! from then on the interval is doubled. So a profile without events shows which sites grow.
//!
//! After a loss of events only growth since then is certain, and a process that has run for a month
//! has a point every two days. So there are as many points again since the last loss.

use crate::heap::profile::{Profile, SiteLive};
use formats::tape::field::Added;
use formats::tape::{self, SiteErrors, SiteHistory};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of points at which every second one is removed.
const MAX_POINTS: usize = 16;
const MIN_POINTS: usize = 8;
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of sites in a point, 16 bytes each: the first ones with live blocks.
const MAX_SITES: usize = 1 << 16;
/// Maximum number of sites in a history, those that grew most, so that a snapshot stays small.
const MAX_REPORTED_SITES: usize = 1024;

/// The live blocks of a site at a point in time.
#[derive(Clone, Copy, Debug)]
struct LiveSite {
    site: u32,
    blocks: u32,
    bytes: u64,
}

/// The live blocks of all sites together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveSum {
    /// Number of blocks; of sampled ones, if blocks are sampled.
    pub blocks: u64,
    /// Sum of the bytes of the blocks.
    pub bytes: u64,
}

/// The live blocks of all sites at a point in time, in the order of the site numbers.
#[derive(Debug)]
struct Point {
    tick: u64,
    /// The live blocks of all sites.
    all: LiveSum,
    live: Vec<LiveSite>,
    /// Standard error of the bytes of each, if they are estimates; otherwise empty.
    errors: Vec<u64>,
}

/// Equally spaced points since some time.
#[derive(Debug)]
struct Series {
    interval: Duration,
    next: Instant,
    points: Vec<Arc<Point>>,
}

impl Default for Series {
    fn default() -> Self {
        Series { interval: FIRST_INTERVAL, next: Instant::now() + FIRST_INTERVAL, points: Vec::new() }
    }
}

impl Series {
    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    fn add(&mut self, point: &Arc<Point>) {
        self.points.push(Arc::clone(point));
        if self.points.len() == MAX_POINTS {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.interval *= 2;
        }
        // A late point is not followed by another one immediately.
        self.next = (self.next + self.interval).max(Instant::now() + self.interval / 2);
    }

    fn middle(&self) -> Option<&Point> {
        self.points.get(self.points.len() / 2).filter(|_| self.points.len() >= MIN_POINTS).map(Arc::as_ref)
    }
}

/// The history of the call sites of one process.
#[derive(Debug, Default)]
pub(crate) struct GrowthHistory {
    all: Series,
    /// What was added since the last loss of events, if there was one.
    since_loss: Option<Series>,
}

impl GrowthHistory {
    /// Returns whether the next point is due.
    pub(crate) fn is_due(&self) -> bool {
        self.all.is_due() || self.since_loss.as_ref().is_some_and(Series::is_due)
    }

    /// Notes that events are lost: the points since the last loss begin anew.
    pub(crate) fn note_loss(&mut self) {
        self.since_loss = Some(Series::default());
    }

    /// Returns all points, oldest first. Those since the last loss follow the second one at the
    /// earliest: the first two tell where the history begins.
    fn points(&self) -> Vec<&Point> {
        let mut points: Vec<&Point> = self.all.points.iter().map(Arc::as_ref).collect();
        if let Some(second) = points.get(1).map(|point| point.tick) {
            let more = self.since_loss.iter().flat_map(|series| &series.points);
            points.extend(more.map(Arc::as_ref).filter(|point| point.tick > second));
            points.sort_by_key(|point| point.tick);
            points.dedup_by_key(|point| point.tick);
        }
        points
    }

    /// Adds a point with the live blocks of all sites, of which `all` is the sum. `error` returns
    /// the standard error of a site's bytes, if they are estimates.
    pub(crate) fn add_point(&mut self, tick: u64, profile: &Profile, all: LiveSum, error: Option<impl Fn(u32) -> u64>) {
        let of = |SiteLive { site, blocks, bytes }: SiteLive| {
            let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
            LiveSite { site, blocks, bytes }
        };
        let live: Vec<LiveSite> = profile.live().take(MAX_SITES).map(of).collect();
        let errors = error.map(|error| live.iter().map(|one| error(one.site)).collect()).unwrap_or_default();
        let point = Arc::new(Point { tick, all, live, errors });
        let due = std::iter::once(&mut self.all).chain(&mut self.since_loss).filter(|series| series.is_due());
        due.for_each(|series| series.add(&point));
    }

    /// Returns the memory that the history takes, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let of = |point: &Point| point.live.capacity() * size_of::<LiveSite>() + point.errors.capacity() * 8;
        self.points().into_iter().map(|point| of(point) as u64).sum()
    }

    /// Returns the history of the sites that hold more now than at the middle point, of all or of
    /// those since the last loss; `None` while there are too few points.
    pub(crate) fn record(&self, profile: &Profile) -> Option<tape::History> {
        let middle = self.all.middle()?;
        let since_loss = self.since_loss.as_ref().and_then(Series::middle).unwrap_or(middle);
        let points = self.points();
        let of = |point: &Point, site: u32| {
            let found = point.live.binary_search_by_key(&site, |live| live.site);
            found.map_or((0, 0), |index| (u64::from(point.live[index].blocks), point.live[index].bytes))
        };
        let grew = |SiteLive { site, bytes, .. }: SiteLive| {
            let before = of(middle, site).1.min(of(since_loss, site).1);
            let more = bytes.saturating_sub(before);
            (more > 0).then_some((Reverse(more), site))
        };
        let mut sites: Vec<(Reverse<u64>, u32)> = profile.live().take(MAX_SITES).filter_map(grew).collect();
        sites.sort_unstable();
        sites.truncate(MAX_REPORTED_SITES);
        let row = |(_, site): (Reverse<u64>, u32)| {
            let (blocks, bytes) = points.iter().map(|point| of(point, site)).unzip();
            SiteHistory { site, blocks, bytes }
        };
        let ticks = points.iter().map(|point| point.tick).collect();
        let (live_blocks, live_bytes) = points.iter().map(|point| (point.all.blocks, point.all.bytes)).unzip();
        Some(tape::History {
            ticks,
            sites: sites.into_iter().map(row).collect(),
            live_blocks: Added(live_blocks),
            live_bytes: Added(live_bytes),
        })
    }

    /// Returns the standard errors of a history; `now` returns those of the current live bytes.
    pub(crate) fn errors(&self, history: &tape::History, now: impl Fn(u32) -> u64) -> tape::HistoryErrors {
        let at = |point: &Point, site: u32| {
            let found = point.live.binary_search_by_key(&site, |live| live.site).ok();
            found.and_then(|index| point.errors.get(index)).copied().unwrap_or(0)
        };
        let points = self.points();
        let errors = |site: u32| {
            let bytes = points.iter().map(|point| at(point, site)).chain([now(site)]).collect();
            SiteErrors { site, bytes }
        };
        tape::HistoryErrors { sites: history.sites.iter().map(|row| errors(row.site)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::profile::CountedBlock;

    /// Adds a point that is due.
    fn add(history: &mut GrowthHistory, profile: &Profile, tick: u64) {
        for series in std::iter::once(&mut history.all).chain(&mut history.since_loss) {
            series.next = Instant::now();
        }
        let totals = profile.totals();
        let all = LiveSum { blocks: totals.live_blocks, bytes: totals.live_bytes };
        history.add_point(tick, profile, all, Some(|site: u32| u64::from(site) * tick));
    }

    /// A process that has run for long has few points, but some seconds after a loss it can be judged.
    #[test]
    fn points_since_a_loss_are_a_second_apart() {
        let (mut history, mut profile) = (GrowthHistory::default(), Profile::default());
        profile.grow(3);
        for day in 1..=10 {
            profile.alloc(CountedBlock::whole(1, 1000), day * 86_400);
            add(&mut history, &profile, day * 86_400);
        }
        for loss in [900_000, 900_100] {
            history.note_loss();
            for tick in loss + 1..=loss + 8 {
                profile.alloc(CountedBlock::whole(2, 10), tick);
                history.all.next = Instant::now() + Duration::from_secs(1000);
                let series = history.since_loss.as_mut().expect("there was a loss");
                series.next = Instant::now();
                let all = LiveSum::default();
                history.add_point(tick, &profile, all, Some(|site: u32| u64::from(site)));
            }
        }
        let recorded = history.record(&profile).expect("there are enough points");
        let days = (1..=10).map(|day| day * 86_400);
        assert_eq!(recorded.ticks, days.chain(900_101..=900_108).collect::<Vec<_>>(), "those of the last loss");
        let row = recorded.sites.iter().find(|row| row.site == 2).expect("it has grown since the loss");
        assert_eq!(row.blocks[9..], [0, 9, 10, 11, 12, 13, 14, 15, 16]);
        let errors = history.errors(&recorded, |_| 0);
        assert_eq!(errors.sites[0].bytes.len(), recorded.ticks.len() + 1);
    }

    #[test]
    fn points_are_equally_spaced_for_any_length() {
        let (mut history, mut profile) = (GrowthHistory::default(), Profile::default());
        profile.grow(3);
        assert_eq!(history.record(&profile), None);
        for tick in 1..=100 {
            // Site 1 grows, site 2 stays, site 3 is allocated and freed.
            profile.alloc(CountedBlock::whole(1, 10), tick);
            if tick == 1 {
                profile.alloc(CountedBlock::whole(2, 99), tick);
            }
            profile.alloc(CountedBlock::whole(3, 7), tick);
            profile.free(CountedBlock::whole(3, 7));
            // One point for each interval.
            if tick % history.all.interval.as_secs() == 0 {
                add(&mut history, &profile, tick);
            }
            assert!(history.points().len() < MAX_POINTS);
        }
        let recorded = history.record(&profile).unwrap_or_default();
        assert_eq!(recorded.ticks, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96]);
        let sites: Vec<u32> = recorded.sites.iter().map(|site| site.site).collect();
        assert_eq!(sites, [1], "only sites that grow are included");
        assert_eq!((recorded.sites[0].blocks[3], recorded.sites[0].bytes[3]), (32, 320));
        // Site 2 has 99 bytes at all times, and site 1 has 10 more with each tick.
        assert_eq!((recorded.live_blocks.0[3], recorded.live_bytes.0[3]), (33, 419));
        assert!(history.memory() > 0);
        let errors = history.errors(&recorded, |site| u64::from(site) + 1000);
        assert_eq!(errors.sites.iter().map(|row| row.site).collect::<Vec<_>>(), [1]);
        assert_eq!(errors.sites[0].bytes, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 1001]);
    }
}
