//! How call sites stood over a process's life: what lived of each at up to 16 moments, as far from
//! each other whatever the life's length. When all are taken every second one goes, and from then
//! on they come half as often. So sums alone can tell what grows.

use crate::profile::Profile;
use formats::tape::{self, SiteHistory};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Moments that are kept.
const MOMENTS: usize = 16;
/// Fewer say nothing.
const FEWEST: usize = 8;
/// Time between the first moments.
const FIRST: Duration = Duration::from_secs(1);
/// Sites that are followed, 16 bytes each a moment: the first that hold something.
const FOLLOWED: usize = 1 << 16;
/// Sites that are told of, those that grew most; a snapshot stays small.
const TOLD: usize = 1024;

/// What lived of a site.
#[derive(Clone, Copy, Debug)]
struct Live {
    site: u32,
    blocks: u32,
    bytes: u64,
}

/// What lived of all sites, in the order of their numbers.
#[derive(Debug)]
struct Moment {
    tick: u64,
    live: Vec<Live>,
}

/// The moments of a process.
#[derive(Debug)]
pub struct Course {
    every: Duration,
    next: Instant,
    moments: Vec<Moment>,
}

impl Default for Course {
    fn default() -> Self {
        Course { every: FIRST, next: Instant::now() + FIRST, moments: Vec::with_capacity(MOMENTS) }
    }
}

impl Course {
    /// Whether a moment has come.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Keeps how it stands.
    pub fn keep(&mut self, tick: u64, profile: &Profile) {
        let of = |(site, blocks, bytes): (u32, u64, u64)| {
            let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
            Live { site, blocks, bytes }
        };
        self.moments.push(Moment { tick, live: profile.live().take(FOLLOWED).map(of).collect() });
        if self.moments.len() == MOMENTS {
            let mut number = 0;
            self.moments.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.every *= 2;
        }
        // What comes late does not come twice in a row.
        self.next = (self.next + self.every).max(Instant::now() + self.every / 2);
    }

    /// Bytes that it takes.
    pub fn memory(&self) -> u64 {
        self.moments.iter().map(|moment| (moment.live.capacity() * size_of::<Live>()) as u64).sum()
    }

    /// The course of the sites that hold more now than in the middle; `None` while there are too
    /// few moments.
    pub fn record(&self, profile: &Profile) -> Option<tape::History> {
        let half = self.moments.get(self.moments.len() / 2).filter(|_| self.moments.len() >= FEWEST)?;
        let of = |moment: &Moment, site: u32| {
            let found = moment.live.binary_search_by_key(&site, |live| live.site);
            found.map_or((0, 0), |place| (u64::from(moment.live[place].blocks), moment.live[place].bytes))
        };
        let grew = |(site, _, bytes): (u32, u64, u64)| {
            let more = bytes.saturating_sub(of(half, site).1);
            (more > 0).then_some((Reverse(more), site))
        };
        let mut sites: Vec<(Reverse<u64>, u32)> = profile.live().take(FOLLOWED).filter_map(grew).collect();
        sites.sort_unstable();
        sites.truncate(TOLD);
        let row = |(_, site): (Reverse<u64>, u32)| {
            let (blocks, bytes) = self.moments.iter().map(|moment| of(moment, site)).unzip();
            SiteHistory { site, blocks, bytes }
        };
        let ticks = self.moments.iter().map(|moment| moment.tick).collect();
        Some(tape::History { ticks, sites: sites.into_iter().map(row).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_as_far_from_each_other_whatever_the_length() {
        let (mut course, mut profile) = (Course::default(), Profile::default());
        profile.grow(3);
        assert_eq!(course.record(&profile), None);
        for tick in 1..=100 {
            // Site 1 grows, site 2 stays, site 3 comes and goes.
            profile.alloc(1, 10, tick);
            if tick == 1 {
                profile.alloc(2, 99, tick);
            }
            profile.alloc(3, 7, tick);
            profile.free(3, 7);
            // A moment for each `every`.
            if tick % course.every.as_secs() == 0 {
                course.keep(tick, &profile);
            }
            assert!(course.moments.len() < MOMENTS);
        }
        let told = course.record(&profile).unwrap_or_default();
        assert_eq!(told.ticks, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96]);
        let sites: Vec<u32> = told.sites.iter().map(|site| site.site).collect();
        assert_eq!(sites, [1], "what stays and what comes and goes is not told of");
        assert_eq!((told.sites[0].blocks[3], told.sites[0].bytes[3]), (32, 320));
        assert!(course.memory() > 0);
    }
}
