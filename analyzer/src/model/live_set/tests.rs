use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    /// Compares the set with a hash map: sequences of allocations as programs make them, and
    /// indexes that are far apart.
    #[test]
    fn behaves_like_a_map(
        steps in prop::collection::vec((0u8..8, 0u64..2000, 0u64..4), 0..60),
        max_frames in prop::sample::select(vec![2usize, 40, RESIDENT_FRAMES]),
    ) {
        let (mut live, mut expected_map, mut next) = (LiveSet::with_frame_limit(max_frames), HashMap::new(), 0);
        for (step, (kind, number, far)) in steps.into_iter().enumerate() {
            let index = number.wrapping_mul(37) % (next + 1) + [0, 0, 1 << 40, u64::MAX / 2][far as usize];
            let block = Block { size: step as u64, ..Block::default() };
            match kind {
                0..3 => for _ in 0..number {
                    prop_assert_eq!(live.insert(next, block), expected_map.insert(next, block));
                    next += 1;
                },
                3 => for index in (0..next).step_by(3) {
                    prop_assert_eq!(live.remove(index), expected_map.remove(&index));
                },
                4 => prop_assert_eq!(live.insert(index, block), expected_map.insert(index, block)),
                5 | 6 => prop_assert_eq!(live.remove(index), expected_map.remove(&index)),
                _ => prop_assert_eq!(live.get_mut(index).copied(), expected_map.get(&index).copied()),
            }
        }
        let mut left: Vec<(u64, Block)> = live.iter().collect();
        let mut expected: Vec<(u64, Block)> = expected_map.into_iter().collect();
        left.sort_by_key(|pair| pair.0);
        expected.sort_by_key(|pair| pair.0);
        prop_assert_eq!(left, expected);
    }
}

/// Frames beyond the limit are stored in the file and loaded again.
#[test]
fn frames_are_spilled_to_the_file_and_loaded() {
    let mut live = LiveSet::with_frame_limit(1000);
    for index in 0..1_000_000 {
        live.insert(
            index,
            Block {
                size: index * 3,
                address: !index,
                tick: 7,
                tick_error: 9,
                inherited: index % 2 == 0,
                ..Block::default()
            },
        );
    }
    assert!(live.frames.resident() <= 1000, "{} frames in memory", live.frames.resident());
    assert_eq!(live.iter().count(), 1_000_000);
    for index in (0..1_000_000).step_by(777) {
        let expected = Block {
            size: index * 3,
            address: !index,
            tick: 7,
            tick_error: 9,
            inherited: index % 2 == 0,
            ..Block::default()
        };
        assert_eq!(live.remove(index), Some(expected));
        assert_eq!(live.remove(index), None);
    }
    assert!(live.frames.resident() <= 1000);
    live.retain(|_, block| block.inherited);
    assert!(live.iter().all(|(index, block)| index % 2 == 0 && block.size == index * 3));
}

/// If one block in a hundred stays live, its page is shrunk.
#[test]
fn few_live_blocks_need_little_memory() {
    let mut live = LiveSet::default();
    for index in 0..1_000_000 {
        live.insert(index, Block::default());
        if index % 100 != 0 {
            live.remove(index);
        }
    }
    // 10,000 blocks of 15,600 old pages fit into 156 frames.
    assert!(live.frames.count() <= YOUNG_PAGES + 400, "{} frames", live.frames.count());
    assert_eq!(live.iter().count(), 10_000);
}
