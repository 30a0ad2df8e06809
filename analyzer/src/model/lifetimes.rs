//! How long blocks live, from birth to death through any resizes: a histogram by powers of ten, in
//! all and by site.

use super::live_set::Block;
use super::row;
use crate::event::Event;
use crate::replay::Model;

/// Classes of a histogram: class n holds lifetimes below 10^n units that are in no class before;
/// the last holds the rest.
pub const CLASSES: usize = 16;

/// Lifetimes of blocks that died, and how many live on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Deaths by class.
    pub classes: [u64; CLASSES],
    /// Deaths.
    pub freed: u64,
    /// Sum of their lifetimes.
    pub sum: u64,
    /// The longest.
    pub longest: u64,
    /// The shortest, when there is any.
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

    /// Mean lifetime.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.freed).unwrap_or(0)
    }
}

/// Measures lifetimes in a unit of so many ticks, or in events.
#[derive(Debug)]
pub struct Lifetimes {
    nanos_per_tick: Option<f64>,
    /// Of all blocks.
    pub all: Histogram,
    /// By the site that allocated them last.
    pub sites: Vec<Histogram>,
}

impl Lifetimes {
    /// Lifetimes in nanoseconds when the rate of ticks is known, else in events.
    pub fn new(ticks_per_second: u64) -> Self {
        let nanos_per_tick = (ticks_per_second > 0).then(|| 1e9 / ticks_per_second as f64);
        Lifetimes { nanos_per_tick, all: Histogram::default(), sites: Vec::new() }
    }

    /// `ns` or `events`.
    pub const fn unit(&self) -> &'static str {
        if self.nanos_per_tick.is_some() { "ns" } else { "events" }
    }

    /// How long a block has lived at an event.
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
        // A death that was only inferred has no known moment.
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
