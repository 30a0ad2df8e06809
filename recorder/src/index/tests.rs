//! The table against a plain map.

use super::*;
use std::collections::HashMap;

/// xorshift: the same steps in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

fn same(index: &Index, map: &HashMap<u64, Block>) {
    assert_eq!(index.len(), map.len() as u64);
    assert_eq!(index.iter().collect::<HashMap<_, _>>(), *map);
    for (address, block) in map {
        assert_eq!(index.get(*address), Some(*block));
    }
}

fn play(seed: u64, steps: u64, address: impl Fn(&mut Dice) -> u64) {
    let (mut dice, mut map) = (Dice(seed), HashMap::new());
    let mut index = Index::new(0x9e37_79b9_7f4a_7c15);
    for step in 1..=steps {
        let at = address(&mut dice);
        // Growing, then shrinking.
        if dice.roll(10) < if step < steps / 2 { 7 } else { 3 } {
            let block = Block { index: step, size: dice.roll(1 << 48), site: dice.roll(1 << 32) as u32 };
            assert_eq!(index.insert(at, block), map.insert(at, block));
        } else {
            assert_eq!(index.remove(at), map.remove(&at));
        }
    }
    same(&index, &map);
    for at in map.keys() {
        assert!(index.remove(*at).is_some());
    }
    assert!(index.is_empty() && index.iter().next().is_none());
}

#[test]
fn equals_a_map_for_dense_sparse_and_odd_addresses() {
    play(1, 200_000, |dice| 0x7f12_3400_0000 + 16 * dice.roll(20_000) + 16);
    play(2, 200_000, |dice| 0x5555_0000_0000 + 4096 * dice.roll(50_000));
    play(3, 200_000, |dice| 1 + dice.roll(30_000));
    play(4, 100_000, |dice| (dice.roll(40_000) + 1) << 48);
    play(5, 100_000, |dice| dice.roll(u64::MAX >> 12).max(1) << 3);
}

#[test]
fn fields_keep_their_extremes() {
    let mut index = Index::default();
    let block = Block { index: (1 << 48) - 1, size: MAX_SIZE, site: u32::MAX };
    index.insert(u64::MAX, block);
    index.insert(1, Block::default());
    assert_eq!((index.get(u64::MAX), index.get(1)), (Some(block), Some(Block::default())));
    assert_eq!(index.insert(0, block), None);
    assert_eq!((index.get(0), index.len()), (Some(block), 3));
}

#[test]
fn a_snapshot_stands_still() {
    let (mut dice, mut index, mut map) = (Dice(9), Index::default(), HashMap::new());
    for step in 0..30_000 {
        let block = Block { index: step, size: step, site: 7 };
        let at = 16 + 16 * dice.roll(100_000);
        index.insert(at, block);
        map.insert(at, block);
    }
    let mut child = index.snapshot();
    let mut child_map = map.clone();
    for step in 0..30_000 {
        let at = 16 + 16 * dice.roll(100_000);
        assert_eq!(index.remove(at), map.remove(&at));
        let at = 16 + 16 * dice.roll(100_000);
        let block = Block { index: step, size: 1, site: 8 };
        assert_eq!(child.insert(at, block), child_map.insert(at, block));
    }
    same(&index, &map);
    same(&child, &child_map);
    let grandchild = child.snapshot();
    drop(child);
    same(&grandchild, &child_map);
}

#[test]
fn blocks_that_nothing_tells_apart_are_refused_not_grown_for() {
    // With this multiplier the leading 26 bits of all these hashes are alike.
    let mut index = Index::new(1);
    for block in 0..1 << 12 {
        index.insert(1 + block, Block { index: block, size: 1, site: 1 });
    }
    for block in 0..64 {
        assert!(index.get(1 + block).is_some());
    }
    assert!(index.refused() > 0 && index.len() + index.refused() == 1 << 12);
    assert!(index.directory.len() < 4096, "{}", index.directory.len());
    assert_eq!(index.iter().count() as u64, index.len());
}
