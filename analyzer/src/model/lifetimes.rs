//! Lifetimes of blocks from allocation to free, including reallocations: histograms by powers of
//! ten, for all blocks and by site.

use super::live_set::Block;
use super::row;
use crate::event::Event;
use crate::model::Model;

/// Number of classes of a histogram. Class n counts lifetimes below 10^n units that are not in an
/// earlier class, and the last class all others.
pub const CLASSES: usize = 16;

/// The lifetimes of freed blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of freed blocks by class.
    pub classes: [u64; CLASSES],
    /// Number of freed blocks.
    pub freed: u64,
    /// Sum of their lifetimes.
    pub sum: u64,
    /// Longest of their lifetimes.
    pub longest: u64,
    /// Shortest of their lifetimes, or 0 if there is none.
    pub shortest: u64,
}

impl Histogram {
    fn add(&mut self, lifetime: u64) {
        let class = (lifetime + u64::from(lifetime == 0)).ilog10() as usize + usize::from(lifetime > 0);
        self.classes[class.min(CLASSES - 1)] += 1;
        self.shortest = if self.freed == 0 { lifetime } else { self.shortest.min(lifetime) };
        self.longest = self.longest.max(lifetime);
        self.freed += 1;
        self.sum = self.sum.saturating_add(lifetime);
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

    /// Returns the age of a block at an event, in the unit.
    pub fn age(&self, event: &Event, block: &Block) -> u64 {
        match self.nanos_per_tick {
            Some(nanos) => (event.tick.saturating_sub(block.tick) as f64 * nanos) as u64,
            None => event.number.saturating_sub(block.number),
        }
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
            lives.add(lifetime);
        }
        assert_eq!(lives.classes[..4], [1, 2, 2, 1]);
        assert_eq!(lives.classes[CLASSES - 1], 1);
        assert_eq!((lives.shortest, lives.longest, lives.freed), (0, u64::MAX, 7));
    }
}
