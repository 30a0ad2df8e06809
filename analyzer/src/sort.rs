//! Sorting of rows. The standard library's stable sort is compiled again for each type and each
//! key, which made it a fifth of this crate's machine code. Reports have few rows, so that one
//! sort of their indices serves all of them.

use std::cmp::Ordering;

/// Sorts of slices that cost little machine code. They are stable. Use those of the standard
/// library where many elements are sorted.
pub trait SortRows<T> {
    /// Sorts rows by comparing two of them.
    fn sort_rows_by(&mut self, compare: impl Fn(&T, &T) -> Ordering);

    fn sort_rows_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K);
}

impl<T> SortRows<T> for [T] {
    fn sort_rows_by(&mut self, compare: impl Fn(&T, &T) -> Ordering) {
        let order = sorted_indices(self.len(), &|one, other| compare(&self[one], &self[other]));
        for_each_swap(order, &mut |one, other| self.swap(one, other));
    }

    fn sort_rows_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        self.sort_rows_by(|one, other| key(one).cmp(&key(other)));
    }
}

/// Returns the indices below `len` in the order of what they refer to.
fn sorted_indices(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|&one, &other| compare(one, other));
    order
}

/// Calls `swap` with the pairs of indices whose exchange, one after the other, moves the element
/// with the index `order[n]` to index `n` for each `n`.
fn for_each_swap(mut order: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for first in 0..order.len() {
        let mut index = first;
        // Follows the cycle that this index belongs to, until it is closed.
        while order[index] != first {
            let from = std::mem::replace(&mut order[index], index);
            swap(index, from);
            index = from;
        }
        order[index] = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_are_sorted_as_by_the_standard_library(rows: Vec<(u8, String)>) {
            let mut expected = rows.clone();
            expected.sort_by_key(|row| std::cmp::Reverse(row.0 / 16));
            let mut sorted = rows;
            sorted.sort_rows_by_key(|row| std::cmp::Reverse(row.0 / 16));
            prop_assert_eq!(sorted, expected);
        }
    }
}
