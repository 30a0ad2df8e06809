//! Numbers as mprof prints them.

use super::Amount;
use heaptape_formats::mptl::{Data, Sums};
use std::fmt;
use std::ops::AddAssign;

/// Amounts for each of the four size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes([Amount; 4]);

impl Classes {
    fn of(sums: &Sums) -> Classes {
        Classes(std::array::from_fn(|class| Amount {
            count: sums.counts[class].into(),
            bytes: sums.totals[class].into(),
        }))
    }

    pub fn all(&self) -> Amount {
        let mut all = Amount::default();
        for class in &self.0 {
            all.count += class.count;
            all.bytes += class.bytes;
        }
        all
    }

    fn minus(&self, other: &Classes) -> Classes {
        Classes(std::array::from_fn(|class| self.0[class].minus(&other.0[class])))
    }

    /// The four columns `s m l x`, each three wide: the class's share of `total`, in percent.
    pub fn columns(&self, counts: bool, total: i128) -> impl fmt::Display {
        let shares = self.0.map(|class| (class.get(counts), total));
        Columns(shares)
    }
}

impl AddAssign<&Classes> for Classes {
    fn add_assign(&mut self, other: &Classes) {
        for (class, more) in self.0.iter_mut().zip(&other.0) {
            class.count += more.count;
            class.bytes += more.bytes;
        }
    }
}

/// What a call stack, or several, allocated, and what of it was not freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub allocated: Classes,
    pub unfreed: Classes,
}

impl Figures {
    pub fn of(data: &Data) -> Figures {
        let allocated = Classes::of(&data.allocated);
        Figures { allocated, unfreed: allocated.minus(&Classes::of(&data.freed)) }
    }
}

impl AddAssign<&Figures> for Figures {
    fn add_assign(&mut self, other: &Figures) {
        self.allocated += &other.allocated;
        self.unfreed += &other.unfreed;
    }
}

struct Columns([(i128, i128); 4]);

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &(part, total) in &self.0 {
            let share = percent(part, total);
            if part == 0 || total == 0 {
                f.write_str("   ")?;
            } else if share >= 99.5 {
                f.write_str(" %%")?;
            } else if share.abs() <= 0.5 {
                f.write_str("  .")?;
            } else {
                write!(f, "{share:3.0}")?;
            }
        }
        Ok(())
    }
}

/// `part` of `total` in percent; 0 of 0 is 0, anything else of 0 is infinite.
pub fn percent(part: i128, total: i128) -> f64 {
    if part == 0 { 0.0 } else { part as f64 / total as f64 * 100.0 }
}

/// As [`percent`], but also 0 when there is no total.
pub fn percent_or_zero(part: i128, total: i128) -> f64 {
    if total == 0 { 0.0 } else { percent(part, total) }
}
