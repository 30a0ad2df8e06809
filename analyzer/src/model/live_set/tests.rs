use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    /// Against a plain map: runs of births as a program makes them, and indexes that lie far apart.
    #[test]
    fn behaves_like_a_map(
        steps in prop::collection::vec((0u8..8, 0u64..2000, 0u64..4), 0..60),
        budget in prop::sample::select(vec![2usize, 40, RESIDENT]),
    ) {
        let (mut live, mut plain, mut next) = (LiveSet::within(budget), HashMap::new(), 0);
        for (step, (kind, number, far)) in steps.into_iter().enumerate() {
            let index = number.wrapping_mul(37) % (next + 1) + [0, 0, 1 << 40, u64::MAX / 2][far as usize];
            let block = Block { size: step as u64, ..Block::default() };
            match kind {
                0..3 => for _ in 0..number {
                    prop_assert_eq!(live.insert(next, block), plain.insert(next, block));
                    next += 1;
                },
                3 => for index in (0..next).step_by(3) {
                    prop_assert_eq!(live.remove(index), plain.remove(&index));
                },
                4 => prop_assert_eq!(live.insert(index, block), plain.insert(index, block)),
                5 | 6 => prop_assert_eq!(live.remove(index), plain.remove(&index)),
                _ => prop_assert_eq!(live.get_mut(index).copied(), plain.get(&index).copied()),
            }
        }
        let mut left: Vec<(u64, Block)> = live.iter().collect();
        let mut expected: Vec<(u64, Block)> = plain.into_iter().collect();
        left.sort_by_key(|pair| pair.0);
        expected.sort_by_key(|pair| pair.0);
        prop_assert_eq!(left, expected);
    }
}

/// What does not fit into memory lies in the file, and comes back.
#[test]
fn pages_go_to_the_file_and_come_back() {
    let mut live = LiveSet::within(1000);
    for index in 0..1_000_000 {
        live.insert(
            index,
            Block { size: index * 3, address: !index, tick: 7, inherited: index % 2 == 0, ..Block::default() },
        );
    }
    assert!(live.frames.resident() <= 1000, "{} frames in memory", live.frames.resident());
    assert_eq!(live.iter().count(), 1_000_000);
    for index in (0..1_000_000).step_by(777) {
        let wanted = Block { size: index * 3, address: !index, tick: 7, inherited: index % 2 == 0, ..Block::default() };
        assert_eq!(live.remove(index), Some(wanted));
        assert_eq!(live.remove(index), None);
    }
    assert!(live.frames.resident() <= 1000);
    live.retain(|_, block| block.inherited);
    assert!(live.iter().all(|(index, block)| index % 2 == 0 && block.size == index * 3));
}

/// One block in a hundred lives on: their pages must not.
#[test]
fn few_survivors_take_little() {
    let mut live = LiveSet::default();
    for index in 0..1_000_000 {
        live.insert(index, Block::default());
        if index % 100 != 0 {
            live.remove(index);
        }
    }
    // 156 places of 16,000 old pages each hold one block.
    assert!(live.frames.count() <= YOUNG + 400, "{} frames", live.frames.count());
    assert_eq!(live.iter().count(), 10_000);
}
