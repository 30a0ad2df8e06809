//! Lifetimes of blocks from allocation to free, including reallocations: histograms by powers of
//! ten, for all blocks and by site.

use super::live_set::Block;
use super::row;
use crate::event::{Event, ticks_off};
use crate::model::Model;

/// Number of classes of a histogram. Class n counts lifetimes below 10^n units that are not in an
/// earlier class, and the last class all others.
pub const CLASSES: usize = 16;

/// Timestamps that are less apart may be equal. AMD's counter goes in steps of 10 ns.
const RESOLUTION_NS: u64 = 10;

/// How old a block was when it was freed.
#[derive(Clone, Copy, Debug)]
struct Age {
    lifetime: u64,
    /// What an interpolated lifetime may be off by, or 0.
    error: u64,
    /// The lifetime by which the block counts: the longest possible one, where no more is known.
    most: u64,
}

impl Age {
    fn new(lifetime: u64, error: u64) -> Age {
        let most = if error > lifetime { lifetime.saturating_add(error) } else { lifetime };
        Age { lifetime, error, most }
    }
}

/// The lifetimes of freed blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of freed blocks by class. A block whose lifetime is interpolated, and shorter than
    /// what it may be off by, counts by the longest lifetime that it may have had.
    pub classes: [u64; CLASSES],
    /// Number of freed blocks.
    pub freed: u64,
    pub sum: u64,
    pub longest: u64,
    /// Shortest of their lifetimes, or 0 if there is none. Interpolated ones count as in the
    /// classes.
    pub shortest: u64,
    /// Number of freed blocks whose lifetime is interpolated.
    pub interpolated: u64,
    /// Sum of what the interpolated lifetimes may be off by.
    error_sum: u64,
    /// Whether `shortest` is only a bound.
    pub shortest_is_bound: bool,
}

impl Histogram {
    fn add(&mut self, age: Age) {
        let Age { lifetime, most, .. } = age;
        let class = (most + u64::from(most == 0)).ilog10() as usize + usize::from(most > 0);
        self.classes[class.min(CLASSES - 1)] += 1;
        if self.freed == 0 || most < self.shortest {
            (self.shortest, self.shortest_is_bound) = (most, most > lifetime);
        }
        self.interpolated += u64::from(age.error > 0);
        self.error_sum = self.error_sum.saturating_add(age.error);
        self.longest = self.longest.max(lifetime);
        self.freed += 1;
        self.sum = self.sum.saturating_add(lifetime);
    }

    /// Returns by how much the interpolated lifetimes may be off, on average.
    pub fn mean_error(&self) -> u64 {
        self.error_sum.checked_div(self.interpolated).unwrap_or(0)
    }

    /// Returns the mean lifetime.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.freed).unwrap_or(0)
    }
}

/// The model that measures lifetimes.
#[derive(Debug)]
pub struct Lifetimes {
    nanos_per_tick: Option<f64>,
    /// The lifetimes of all blocks.
    pub all: Histogram,
    /// The lifetimes by the site of the last allocation or reallocation.
    pub sites: Vec<Histogram>,
}

impl Lifetimes {
    /// Creates a model that measures nanoseconds, or events if the tick rate is 0.
    pub fn new(ticks_per_second: u64) -> Self {
        let nanos_per_tick = (ticks_per_second > 0).then(|| 1e9 / ticks_per_second as f64);
        Lifetimes { nanos_per_tick, all: Histogram::default(), sites: Vec::new() }
    }

    /// Returns the name of the unit: `ns` or `events`.
    pub const fn unit(&self) -> &'static str {
        if self.nanos_per_tick.is_some() { "ns" } else { "events" }
    }

    fn age(&self, event: &Event, block: &Block) -> Age {
        let Some(nanos) = self.nanos_per_tick else {
            return Age::new(event.number.saturating_sub(block.number), 0);
        };
        let in_nanos = |ticks: u64| (ticks as f64 * nanos) as u64;
        let errors = [event.tick_error, block.tick_error];
        let error = if errors == [0, 0] { 0 } else { in_nanos(ticks_off(errors)).max(1) };
        let age = Age::new(in_nanos(event.tick.saturating_sub(block.tick)), error);
        Age { most: age.most.max(RESOLUTION_NS - 1), ..age }
    }
}

impl Model for Lifetimes {
    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        // The time of an inferred free is unknown.
        if let Some(old) = old
            && !event.is_implied()
        {
            let age = self.age(event, old);
            self.all.add(age);
            row(&mut self.sites, old.site).add(age);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_ten() {
        let mut lives = Histogram::default();
        for lifetime in [0, 1, 9, 10, 99, 100, u64::MAX] {
            lives.add(Age::new(lifetime, 0));
        }
        assert_eq!(lives.classes[..4], [1, 2, 2, 1]);
        assert_eq!(lives.classes[CLASSES - 1], 1);
        assert_eq!((lives.shortest, lives.longest, lives.freed), (0, u64::MAX, 7));
    }

    #[test]
    fn lifetimes_below_the_resolution_count_by_what_they_are_below_of() {
        let mut lives = Histogram::default();
        for (lifetime, error) in [(0, 5_000), (300, 5_000), (70_000, 5_000), (300, 0)] {
            lives.add(Age::new(lifetime, error));
        }
        assert_eq!(lives.classes[..6], [0, 0, 0, 1, 2, 1]);
        assert_eq!((lives.shortest, lives.shortest_is_bound), (300, false));
        assert_eq!((lives.interpolated, lives.mean_error()), (3, 5_000));
        assert_eq!(lives.mean(), (300 + 70_000 + 300) / 4, "the mean is that of the estimates");
        let mut bound = Histogram::default();
        bound.add(Age::new(0, 800));
        assert_eq!((bound.shortest, bound.shortest_is_bound), (800, true));
    }
}
