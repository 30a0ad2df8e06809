//! What a process allocated between two pushes, from the sums of its segments.

use heaptape_formats::tape::SiteSums;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The sums of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Values {
    #[serde(rename = "a")]
    pub allocations: u64,
    #[serde(rename = "b")]
    pub allocated_bytes: u64,
    #[serde(rename = "l")]
    pub live_blocks: u64,
    #[serde(rename = "m")]
    pub live_bytes: u64,
}

impl Values {
    pub(super) fn add(&mut self, row: &SiteSums) {
        self.allocations = self.allocations.saturating_add(row.allocs);
        self.allocated_bytes = self.allocated_bytes.saturating_add(row.bytes);
        self.live_blocks = self.live_blocks.saturating_add(row.allocs.saturating_sub(row.frees));
        self.live_bytes = self.live_bytes.saturating_add(row.bytes.saturating_sub(row.freed_bytes));
    }
}

/// The sums of a segment of a process, by stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentSums {
    pub folder: PathBuf,
    /// Time from which the sums count, in nanoseconds since 1970.
    pub counted_ns: i64,
    /// Whether blocks were live at its start, which count as its allocations.
    pub is_carried: bool,
    /// Sums of each stack.
    pub sites: BTreeMap<i64, Values>,
}

/// What has been pushed of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Known {
    pub uid: u32,
    pub pid: u32,
    /// Folder of the newest segment of which something was pushed.
    pub folder: PathBuf,
    /// Time from which its sums count, in nanoseconds since 1970.
    pub counted_ns: i64,
    /// Sums of this segment at the last push, by stack.
    pub sites: BTreeMap<i64, Values>,
    /// Whether what it has allocated so far is not pushed.
    #[serde(skip)]
    pub is_baseline: bool,
}

/// Returns what was allocated since `known`, by stack, and makes the segment known. Segments must
/// be passed in the order of their starts.
///
/// A profile continues its sums from segment to segment, a trace begins anew, with the blocks that
/// were live at the end of the segment before.
pub(super) fn advance(known: &mut Known, segment: &SegmentSums) -> BTreeMap<i64, Values> {
    let is_first = known.folder.as_os_str().is_empty();
    let continues = !is_first && known.counted_ns == segment.counted_ns;
    let before = |stack: i64| {
        let old = known.sites.get(&stack).copied().unwrap_or_default();
        if continues {
            [old.allocations, old.allocated_bytes]
        } else if segment.is_carried {
            [old.live_blocks, old.live_bytes]
        } else {
            [0, 0]
        }
    };
    let mut deltas = BTreeMap::new();
    if !known.is_baseline {
        for (stack, sums) in &segment.sites {
            let [allocations, bytes] = before(*stack);
            let delta = Values {
                allocations: sums.allocations.saturating_sub(allocations),
                allocated_bytes: sums.allocated_bytes.saturating_sub(bytes),
                ..Values::default()
            };
            deltas.insert(*stack, delta);
        }
    }
    (known.folder, known.counted_ns) = (segment.folder.clone(), segment.counted_ns);
    known.sites.clone_from(&segment.sites);
    deltas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(folder: &str, counted_ns: i64, is_carried: bool, sums: &[(i64, [u64; 4])]) -> SegmentSums {
        let values = |&(stack, [allocations, allocated_bytes, live_blocks, live_bytes]): &(i64, [u64; 4])| {
            (stack, Values { allocations, allocated_bytes, live_blocks, live_bytes })
        };
        SegmentSums { folder: folder.into(), counted_ns, is_carried, sites: sums.iter().map(values).collect() }
    }

    fn allocated(deltas: &BTreeMap<i64, Values>) -> Vec<(i64, u64, u64)> {
        deltas.iter().map(|(stack, delta)| (*stack, delta.allocations, delta.allocated_bytes)).collect()
    }

    #[test]
    fn profile_continues_its_sums() {
        let mut known = Known::default();
        let first = advance(&mut known, &segment("0/1/7.x", 5, false, &[(1, [10, 100, 4, 40])]));
        assert_eq!(allocated(&first), [(1, 10, 100)]);
        let second = segment("0/2/7.x", 5, false, &[(1, [15, 150, 2, 20]), (2, [1, 8, 1, 8])]);
        assert_eq!(allocated(&advance(&mut known, &second)), [(1, 5, 50), (2, 1, 8)]);
        assert_eq!(allocated(&advance(&mut known, &second)), [(1, 0, 0), (2, 0, 0)]);
    }

    #[test]
    fn trace_counts_carried_blocks_once() {
        let mut known = Known::default();
        advance(&mut known, &segment("0/1/7.x", 5, false, &[(1, [10, 100, 4, 40])]));
        // The rest of the old segment, then the next one, which begins with the live blocks.
        let rest = advance(&mut known, &segment("0/1/7.x", 5, false, &[(1, [12, 120, 6, 60])]));
        let next = advance(&mut known, &segment("0/2/7.x", 9, true, &[(1, [7, 70, 3, 30])]));
        assert_eq!((allocated(&rest), allocated(&next)), (vec![(1, 2, 20)], vec![(1, 1, 10)]));
    }

    #[test]
    fn killed_daemon_begins_anew() {
        let mut known = Known::default();
        advance(&mut known, &segment("0/1/7.x", 5, false, &[(1, [10, 100, 4, 40])]));
        let next = advance(&mut known, &segment("0/2/7.x", 9, false, &[(1, [3, 30, 3, 30])]));
        assert_eq!(allocated(&next), [(1, 3, 30)]);
    }

    #[test]
    fn what_was_before_the_first_push_is_left_out() {
        let mut known = Known { is_baseline: true, ..Known::default() };
        let segment = segment("0/1/7.x", 5, false, &[(1, [10, 100, 4, 40])]);
        assert!(advance(&mut known, &segment).is_empty());
    }
}
