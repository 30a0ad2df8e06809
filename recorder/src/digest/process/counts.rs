//! The counts of a process that other threads see. They never fall, also when the sums of the
//! process begin anew.

use super::ProcessRecording;
use formats::recording::Accounting;

/// Counts that users see as ever growing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of frees, of known blocks and of others.
    pub frees: u64,
    /// Number of bytes allocated.
    pub bytes: u64,
    pub accounting: Accounting,
}

impl Counts {
    fn with(&self, other: &Counts, of: fn(u64, u64) -> u64) -> Counts {
        let (own, accounting) = (&self.accounting, &other.accounting);
        Counts {
            allocs: of(self.allocs, other.allocs),
            frees: of(self.frees, other.frees),
            bytes: of(self.bytes, other.bytes),
            accounting: Accounting {
                emitted: of(own.emitted, accounting.emitted),
                recorded: of(own.recorded, accounting.recorded),
                lost: of(own.lost, accounting.lost),
                sampled_out: of(own.sampled_out, accounting.sampled_out),
            },
        }
    }

    fn plus(&self, other: &Counts) -> Counts {
        self.with(other, u64::saturating_add)
    }

    fn less(&self, other: &Counts) -> Counts {
        self.with(other, u64::saturating_sub)
    }

    fn at_least(&self, other: &Counts) -> Counts {
        self.with(other, u64::max)
    }
}

/// The counts of a process over all its segments.
#[derive(Debug, Default)]
pub(crate) struct PublishedCounts {
    /// By how much changes of mode have set the counts of the segment back.
    set_back: Counts,
    /// The counts that were last published.
    published: Counts,
}

impl PublishedCounts {
    /// Returns the counts to publish, from those of the segment.
    pub(super) fn publish(&mut self, segment: Counts) -> Counts {
        self.published = segment.plus(&self.set_back).at_least(&self.published);
        self.published
    }

    /// Notes that a segment begins with these counts, after `before` was published.
    pub(crate) fn set_back(&mut self, before: Counts, segment: Counts) {
        self.set_back = before.less(&segment);
    }
}

impl ProcessRecording {
    /// Returns the counts of this segment and the live blocks that it began with.
    pub(super) fn segment_counts(&self) -> Counts {
        let totals = self.heap.profile().totals();
        let allocs = self.heap.estimated_allocs().unwrap_or(totals.allocs + totals.resizes);
        Counts { allocs, frees: totals.frees, bytes: totals.bytes_allocated, accounting: self.sums_of_all() }
    }

    /// Returns the counts of all segments. They never fall: what a change of mode sets back is
    /// added to the counts of the segments before it.
    pub(super) fn counts_of_all(&mut self) -> Counts {
        let now = self.segment_counts();
        self.segments.counts.publish(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_fall() {
        let counts = |allocs, lost| Counts {
            allocs,
            accounting: Accounting { lost, ..Accounting::default() },
            ..Counts::default()
        };
        let mut published = PublishedCounts::default();
        let before = published.publish(counts(100, 7));
        // The next segment begins with 30 carried blocks.
        published.set_back(before, counts(30, 0));
        let now = published.publish(counts(30, 0));
        assert_eq!((now.allocs, now.accounting.lost), (100, 7));
        let now = published.publish(counts(35, 1));
        assert_eq!((now.allocs, now.accounting.lost), (105, 8));
        assert_eq!(published.publish(counts(0, 0)).allocs, 105, "also without a reason");
    }
}
