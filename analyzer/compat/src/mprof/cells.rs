//! Amounts by size class, and the number formats of mprof.

use super::Amount;
use heaptape_formats::mptl::{Data, Sums};
use std::fmt;
use std::ops::AddAssign;

/// Amounts in each of the four size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Classes([Amount; 4]);

impl Classes {
    fn of(sums: &Sums) -> Classes {
        Classes(std::array::from_fn(|class| Amount {
            count: sums.counts[class].into(),
            bytes: sums.totals[class].into(),
        }))
    }

    /// Returns the sum over the size classes.
    pub(super) fn all(&self) -> Amount {
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

    /// Returns the four columns `s m l x`, each three characters wide: the share of each class in
    /// `total`, in percent.
    pub(super) fn columns(&self, counts: bool, total: i128) -> impl fmt::Display {
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

/// The amounts that one or several call stacks allocated and did not free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Amounts that were allocated.
    pub allocated: Classes,
    /// Amounts that were allocated and not freed.
    pub unfreed: Classes,
}

impl Figures {
    /// Returns the figures of one record of a profile.
    pub(super) fn of(data: &Data) -> Figures {
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
        for &(amount, total) in &self.0 {
            let share = percent(amount, total);
            if amount == 0 || total == 0 {
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

/// Returns the share of `amount` in `total` in percent. The share is 0 if `amount` is 0, else
/// infinite if `total` is 0.
pub(super) fn percent(amount: i128, total: i128) -> f64 {
    if amount == 0 { 0.0 } else { amount as f64 / total as f64 * 100.0 }
}

/// Returns the same as [`percent`], except that the share is always 0 if `total` is 0.
pub(super) fn percent_or_zero(amount: i128, total: i128) -> f64 {
    if total == 0 { 0.0 } else { percent(amount, total) }
}
