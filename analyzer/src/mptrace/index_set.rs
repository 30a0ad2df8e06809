//! The set of indexes that have ever been allocated. It stores ranges; real indexes grow by one, so
//! there are few.

use std::collections::BTreeMap;

/// A set of indexes. The map holds the first and the last index of each range.
#[derive(Debug, Default)]
pub(super) struct IndexSet(BTreeMap<u64, u64>);

impl IndexSet {
    /// Adds an index to the set.
    pub(super) fn insert(&mut self, index: u64) {
        let before = self.0.range(..=index).next_back().map(|(&first, &last)| (first, last));
        let first = match before {
            Some((_, last)) if last >= index => return,
            Some((first, last)) if last + 1 == index => first,
            _ => index,
        };
        let last = index.checked_add(1).and_then(|next| self.0.remove(&next)).unwrap_or(index);
        self.0.insert(first, last);
    }

    /// Returns whether an index has been added.
    pub(super) fn contains(&self, index: u64) -> bool {
        self.0.range(..=index).next_back().is_some_and(|(_, &last)| last >= index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn behaves_like_a_hash_set() {
        let (mut known, mut set, mut seed) = (IndexSet::default(), HashSet::new(), 1u64);
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let index = if seed >> 62 == 0 { u64::MAX - (seed >> 60) } else { seed >> 52 & 0x3ff };
            known.insert(index);
            set.insert(index);
        }
        assert!((0..1100).chain(u64::MAX - 40..=u64::MAX).all(|index| known.contains(index) == set.contains(&index)));
        let mut dense = IndexSet::default();
        (0..1000).rev().chain(1000..2000).for_each(|index| dense.insert(index));
        assert_eq!(dense.0.len(), 1);
    }
}
