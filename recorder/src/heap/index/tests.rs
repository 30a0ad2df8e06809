//! Tests of the table against a plain map.

use super::*;
use std::collections::HashMap;

/// A xorshift generator: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn assert_equal(index: &Index, map: &HashMap<u64, Block>) {
    assert_eq!(index.len(), map.len() as u64);
    assert_eq!(index.iter().collect::<HashMap<_, _>>(), *map);
    for (address, block) in map {
        assert_eq!(index.get(*address), Some(*block));
    }
}

fn run_against_map(seed: u64, steps: u64, address: impl Fn(&mut Random) -> u64) {
    let (mut random, mut map) = (Random(seed), HashMap::new());
    let mut index = Index::new(0x9e37_79b9_7f4a_7c15);
    for step in 1..=steps {
        let at = address(&mut random);
        // The table grows in the first half and shrinks in the second.
        if random.below(10) < if step < steps / 2 { 7 } else { 3 } {
            let block = Block { index: step, size: random.below(1 << 48), site: random.below(1 << 32) as u32 };
            assert_eq!(index.insert(at, block), map.insert(at, block));
        } else {
            assert_eq!(index.remove(at), map.remove(&at));
        }
    }
    assert_equal(&index, &map);
    for at in map.keys() {
        assert!(index.remove(*at).is_some());
    }
    assert!(index.len() == 0 && index.iter().next().is_none());
}

#[test]
fn equals_a_map_for_dense_sparse_and_unaligned_addresses() {
    run_against_map(1, 200_000, |random| 0x7f12_3400_0000 + 16 * random.below(20_000) + 16);
    run_against_map(2, 200_000, |random| 0x5555_0000_0000 + 4096 * random.below(50_000));
    run_against_map(3, 200_000, |random| 1 + random.below(30_000));
    run_against_map(4, 100_000, |random| (random.below(40_000) + 1) << 48);
    run_against_map(5, 100_000, |random| random.below(u64::MAX >> 12).max(1) << 3);
}

#[test]
fn extreme_values_are_stored() {
    let mut index = Index::default();
    let block = Block { index: (1 << 48) - 1, size: MAX_SIZE, site: u32::MAX };
    index.insert(u64::MAX, block);
    index.insert(1, Block::default());
    assert_eq!((index.get(u64::MAX), index.get(1)), (Some(block), Some(Block::default())));
    assert_eq!(index.insert(0, block), None);
    assert_eq!((index.get(0), index.len()), (Some(block), 3));
}

#[test]
fn snapshot_does_not_change() {
    let (mut random, mut index, mut map) = (Random(9), Index::default(), HashMap::new());
    for step in 0..30_000 {
        let block = Block { index: step, size: step, site: 7 };
        let at = 16 + 16 * random.below(100_000);
        index.insert(at, block);
        map.insert(at, block);
    }
    let mut child = index.snapshot();
    let mut child_map = map.clone();
    for step in 0..30_000 {
        let at = 16 + 16 * random.below(100_000);
        assert_eq!(index.remove(at), map.remove(&at));
        let at = 16 + 16 * random.below(100_000);
        let block = Block { index: step, size: 1, site: 8 };
        assert_eq!(child.insert(at, block), child_map.insert(at, block));
    }
    assert_equal(&index, &map);
    assert_equal(&child, &child_map);
    let grandchild = child.snapshot();
    drop(child);
    assert_equal(&grandchild, &child_map);
}

/// Blocks that no set can separate, or that are too large for one, are stored.
#[test]
fn blocks_that_fit_into_no_set_are_stored() {
    let mut random = Random(7);
    for seed in 0..4 {
        // A block at each byte of two regions, and sizes around 4 GiB.
        let (mut index, mut map) = (Index::new(1), HashMap::new());
        for step in 0..100_000 {
            let at = 1 + random.below(1 << 15);
            let block = Block { index: step, size: (1 << 32) - 3 + random.below(4 + seed), site: 1 };
            match random.below(3) {
                0 => assert_eq!(index.remove(at), map.remove(&at)),
                _ => assert_eq!(index.insert(at, block), map.insert(at, block)),
            }
        }
        assert!(!index.others.is_empty());
        assert_equal(&index, &map);
        let snapshot = index.snapshot();
        assert!(map.keys().all(|at| index.remove(*at).is_some()));
        assert!(index.len() == 0 && index.others.is_empty() && index.iter().next().is_none());
        assert_equal(&snapshot, &map);
    }
}

/// Regions that the directory cannot tell apart are stored, and it does not grow for them.
#[test]
fn colliding_regions_do_not_grow_the_directory() {
    let (mut index, mut map) = (Index::new(1), HashMap::new());
    // All bits of the hash that matter are equal, since the multiplier is known here.
    let address = |number: u64| number << (16 + 32);
    for number in 0..1 << 14 {
        let block = Block { index: number, size: 1, site: 1 };
        assert_eq!(index.insert(address(number), block), map.insert(address(number), block));
    }
    let (segments, numbers) = index.directory.sizes();
    assert!(numbers <= 2 * (64 * segments + 1024), "{numbers}");
    assert_equal(&index, &map);
    for number in (0..1 << 14).step_by(3) {
        let block = Block { index: number, size: 2, site: 2 };
        assert_eq!(index.insert(address(number), block), map.insert(address(number), block));
        assert_eq!(index.remove(address(number + 1)), map.remove(&address(number + 1)));
    }
    assert_equal(&index, &map);
}

/// Returns the bytes for a block in a table of these.
fn bytes_per_block(addresses: impl Iterator<Item = u64>) -> u64 {
    let mut index = Index::default();
    for (number, address) in addresses.enumerate() {
        index.insert(address, Block { index: number as u64, size: 16, site: 1 });
    }
    assert!(index.others.is_empty());
    index.memory() / index.len()
}

/// Dense and sparse heaps take little memory, also if each region is used at the same offset.
#[test]
fn memory_is_in_proportion() {
    let sizes = |most: u64| {
        let (mut random, mut at) = (Random(3), 0x7f00_0000_0010);
        std::iter::repeat_with(move || {
            at += 32 + 16 * random.below(most / 16);
            at
        })
    };
    for (most, bytes) in [(16, 20), (128, 45), (1 << 10, 45), (1 << 12, 45), (1 << 14, 60)] {
        let found = bytes_per_block(sizes(most).take(200_000));
        assert!(found <= bytes, "{found} bytes for a block of {most} bytes at most");
    }
    for log2 in [12, 14, 16, 20] {
        let found = bytes_per_block((0..200_000).map(|number| 0x7f00_0000_0010 + (number << log2)));
        assert!(found <= 112, "{found} bytes for a block of 2^{log2} bytes");
    }
}

/// The table of a heap that moves on does not grow.
#[test]
fn empty_regions_are_used_again() {
    let mut index = Index::default();
    for number in 0..2_000_000u64 {
        index.insert(0x7f00_0000_0010 + (number << 12), Block { index: number, size: 4080, site: 1 });
        if number >= 1000 {
            assert!(index.remove(0x7f00_0000_0010 + ((number - 1000) << 12)).is_some());
        }
    }
    assert!(index.memory() < 1 << 20, "{}", index.memory());
}

/// Each copy of a slab takes a slot of a huge page, and the snapshot that ends frees one.
#[test]
fn memory_of_ended_snapshots_is_used_again() {
    let (mut index, mut map) = (Index::default(), HashMap::new());
    for number in 0..200_000 {
        let block = Block { index: number, size: 32, site: 1 };
        index.insert(0x7f00_0000_0000 + 32 * number, block);
        map.insert(0x7f00_0000_0000 + 32 * number, block);
    }
    let bytes = index.memory();
    for round in 0..20 {
        let snapshot = index.snapshot();
        for (address, block) in &mut map {
            block.size = round;
            index.insert(*address, *block);
        }
        assert_eq!(snapshot.len(), index.len());
        assert!(snapshot.iter().all(|(_, block)| block.size != round));
    }
    assert_equal(&index, &map);
    assert!(index.memory() <= bytes, "{} of {bytes}", index.memory());
    assert!(index.pages() <= 2 * bytes as usize / (2 << 20) + 2, "{}", index.pages());
}
