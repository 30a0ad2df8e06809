//! Addresses in ascending order, in four bytes each.

/// Addresses as distances from the last base. Those that are farther than 4 GiB from it make a new one,
/// which are few: the heap, and where mappings begin.
#[derive(Debug, Default)]
pub(super) struct Ascending {
    distances: Vec<u32>,
    /// Number of the first address of each, and that address.
    bases: Vec<(u32, u64)>,
}

impl Ascending {
    pub(super) fn push(&mut self, address: u64) {
        let distance = self.bases.last().and_then(|(_, base)| address.checked_sub(*base));
        let distance = distance.and_then(|distance| u32::try_from(distance).ok());
        if distance.is_none() {
            self.bases.push((self.distances.len() as u32, address));
        }
        self.distances.push(distance.unwrap_or(0));
    }

    pub(super) fn truncate(&mut self, count: usize) {
        self.distances.truncate(count);
        self.bases.truncate(self.bases.partition_point(|(first, _)| (*first as usize) < count));
    }

    pub(super) fn len(&self) -> usize {
        self.distances.len()
    }

    pub(super) fn get(&self, number: usize) -> Option<u64> {
        let distance = *self.distances.get(number)?;
        let base = self.bases.partition_point(|(first, _)| *first as usize <= number).checked_sub(1)?;
        Some(self.bases[base].1 + u64::from(distance))
    }

    /// Returns how many are not above an address.
    pub(super) fn up_to(&self, address: u64) -> usize {
        let after = self.bases.partition_point(|(_, base)| *base <= address);
        let Some((first, base)) = after.checked_sub(1).map(|at| self.bases[at]) else { return 0 };
        let end = self.bases.get(after).map_or(self.distances.len(), |(first, _)| *first as usize);
        let first = first as usize;
        first + self.distances[first..end].partition_point(|distance| base + u64::from(*distance) <= address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_come_out_and_are_found(
            gaps in proptest::collection::vec(prop_oneof![1u64..100, 1u64..1 << 33, Just(u64::from(u32::MAX))], 0..50),
            cut in 0usize..50,
        ) {
            let mut packed = Ascending::default();
            let mut given: Vec<u64> = gaps.iter().scan(0, |address, gap| { *address += gap; Some(*address) }).collect();
            given.iter().for_each(|address| packed.push(*address));
            packed.truncate(cut);
            given.truncate(cut);
            prop_assert_eq!((0..packed.len()).filter_map(|number| packed.get(number)).collect::<Vec<_>>(), given.clone());
            prop_assert_eq!(packed.get(given.len()), None);
            for address in given.iter().flat_map(|address| [address - 1, *address, address + 1]).chain([u64::MAX]) {
                prop_assert_eq!(packed.up_to(address), given.partition_point(|one| *one <= address));
            }
        }
    }
}
