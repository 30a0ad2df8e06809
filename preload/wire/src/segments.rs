//! Tables that a process maps only as far as it uses them. A table is contiguous in the area's file
//! and is mapped in segments. The number of entries of the first segment is a power of two; each
//! later segment has as many entries as all segments before it.

/// The division of a table into segments. The first segment has `1 << first_log2` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    first_log2: u32,
}

impl Segments {
    /// Maximum number of segments of a table.
    pub const MAX: usize = 22;

    /// Divides a table whose first segment has `first` entries, a power of two.
    ///
    /// # Panics
    /// Panics if `first` is not a power of two.
    pub const fn new(first: u32) -> Segments {
        assert!(first.is_power_of_two());
        Segments { first_log2: first.ilog2() }
    }

    /// Returns the segment that holds the entry `index`.
    #[inline(always)]
    pub const fn of(self, index: u32) -> usize {
        match index >> self.first_log2 {
            0 => 0,
            multiple => multiple.ilog2() as usize + 1,
        }
    }

    /// Returns the first entry of a segment, which equals the number of entries before it.
    #[inline(always)]
    pub const fn start(self, segment: usize) -> u64 {
        if segment == 0 { 0 } else { 1 << (segment as u32 - 1 + self.first_log2) }
    }

    /// Returns the first entry after a segment of a table with `entries` entries, or `None` if the
    /// table ends before the segment.
    pub const fn end(self, segment: usize, entries: u32) -> Option<u64> {
        if self.start(segment) >= entries as u64 {
            return None;
        }
        let (end, entries) = (self.start(segment + 1), entries as u64);
        Some(if end < entries { end } else { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_every_entry_once() {
        for (first, entries) in [(1, 1), (1, 5), (1, 1 << 20), (16, 16_384), (16, 7), (8_192, 1 << 20)] {
            let segments = Segments::new(first);
            let mut next = 0;
            for segment in 0..Segments::MAX {
                let Some(end) = segments.end(segment, entries) else { break };
                assert_eq!(segments.start(segment), next);
                assert_eq!((segments.of(next as u32), segments.of(end as u32 - 1)), (segment, segment));
                next = end;
            }
            assert_eq!(next, u64::from(entries));
        }
    }
}
