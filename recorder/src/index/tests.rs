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
    assert!(index.is_empty() && index.iter().next().is_none());
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

/// Blocks that no division can separate are stored, and the directory does not grow for them.
#[test]
fn colliding_blocks_are_stored_without_growing_the_table() {
    let (mut index, mut map) = (Index::new(1), HashMap::new());
    // All leading bits of the first hashes are equal: two pages with a block at each byte.
    let addresses = |block: u64| if block < 1 << 13 { 1 + block } else { block << 12 };
    for block in 0..1 << 14 {
        let value = Block { index: block, size: 1, site: 1 };
        assert_eq!(index.insert(addresses(block), value), map.insert(addresses(block), value));
    }
    assert!(!index.crowded.is_empty());
    // The directory doubles while it is small for its segments.
    assert!(index.directory.len() <= 2 * (64 * index.segments.len() + 1024), "{}", index.directory.len());
    assert!(index.segments.len() < 32, "{}", index.segments.len());
    assert_equal(&index, &map);
    let mut snapshot = index.snapshot();
    for block in (0..1 << 14).step_by(3) {
        let value = Block { index: block, size: 2, site: 2 };
        assert_eq!(index.insert(addresses(block), value), map.insert(addresses(block), value));
        assert_eq!(index.remove(addresses(block + 1)), map.remove(&addresses(block + 1)));
    }
    assert_equal(&index, &map);
    assert_eq!(snapshot.len(), 1 << 14);
    assert!((0..1 << 14).all(|block| snapshot.remove(addresses(block)).is_some_and(|found| found.size == 1)));
    assert!(snapshot.is_empty() && snapshot.iter().next().is_none());
}

/// Blocks at the same offset of each page, as large blocks of glibc are, use all groups.
#[test]
fn blocks_of_pages_use_all_groups() {
    let mut index = Index::default();
    for page in 0..100_000 {
        index.insert(0x7f00_0000_0010 + (page << 12), Block { index: page, size: 4080, site: 1 });
    }
    assert!(index.crowded.is_empty());
    let full = index.segments.iter().flat_map(|segment| &segment.groups().0).filter(|group| group.overflowed > 0);
    assert!(full.count() < index.segments.len() * GROUPS / 4);
    assert!(index.segments.len() < 3 * 100_000 / SPLIT_ABOVE as usize, "{}", index.segments.len());
}

/// Each copy of a segment takes a slot of a huge page, and the snapshot that ends frees one.
#[test]
fn memory_of_ended_snapshots_is_used_again() {
    let (mut index, mut map) = (Index::default(), HashMap::new());
    for number in 0..200_000 {
        let block = Block { index: number, size: 32, site: 1 };
        index.insert(0x7f00_0000_0000 + 32 * number, block);
        map.insert(0x7f00_0000_0000 + 32 * number, block);
    }
    let pages = index.memory.pages();
    assert!(pages > 1, "{pages}");
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
    assert!(index.memory.pages() <= 2 * pages + 1, "{} of {pages}", index.memory.pages());
}
