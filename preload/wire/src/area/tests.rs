//! Tests of the division of the area.

use super::*;

#[test]
fn segments_fill_the_file() {
    let all =
        [(1 << 20, 0, 16_384, 1 << 24), (1 << 20, 1, 16_384, 1 << 24), (PAGE, 0, 1, 1024), (1 << 22, 1, 300, 70_000)];
    for (ring_bytes, first_ring_shift, slots, nodes) in all {
        let layout = Layout::new(Params { ring_bytes, first_ring_shift, slots, nodes });
        let mut next = layout.slots;
        for table in Table::ALL {
            for (offset, bytes) in (0..Segments::MAX).map_while(|segment| layout.segment(table, segment)) {
                assert_eq!((offset, bytes % PAGE), (next, 0), "{table:?} of {:?}", layout.params);
                next += bytes;
            }
        }
        assert_eq!((next, layout.total), (layout.patches, next + (96u64 << 10).next_multiple_of(PAGE)));
        let mut ring = layout.rings;
        for slot in 0..slots {
            assert_eq!(layout.ring(slot).map(|ring| ring.0), Some(ring));
            ring += layout.ring(slot).map_or(0, |ring| ring.1);
        }
        assert_eq!((ring, layout.ring(slots)), (layout.patches, None));
    }
}

#[test]
fn rings_of_many_threads_are_smaller() {
    let layout = Layout::new(Params::default());
    let all: u64 = (0..200).filter_map(|slot| layout.ring(slot)).map(|(_, bytes)| bytes).sum();
    assert_eq!(
        (layout.ring(3), layout.ring(16_383).map(|ring| ring.1)),
        (Some((layout.rings + (3 << 20), 1 << 20)), Some(limits::MIN_RING_BYTES))
    );
    let most = if PAGE == 4 << 10 { 17 << 20 } else { 22 << 20 };
    assert!(all < most, "{all} bytes");
    let doubled = Layout::new(Params { first_ring_shift: 1, ..Params::default() });
    let rings = [0, 1, 2].map(|slot| doubled.ring(slot).map(|(offset, bytes)| (offset - doubled.rings, bytes)));
    assert_eq!(rings, [Some((0, 2 << 20)), Some((2 << 20, 1 << 20)), Some((3 << 20, 1 << 20))]);
}
