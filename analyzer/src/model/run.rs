//! What the judgement of each site needs to know about the whole run.

use super::axis::{Axis, SLICES, Slicing};

/// Minimum number of survivors for growth. Fewer are slow growth.
pub(crate) const MIN_GROWTH_BLOCKS: u64 = 8;
pub(super) const QUARTER_SLICES: usize = SLICES / 4;

/// The properties of a run on which the verdicts about all its sites depend.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The axis on which the run is measured.
    pub axis: Axis,
    /// When its slices began.
    pub slicing: Slicing,
    /// End of the run, in the unit of the axis.
    pub end: u64,
    /// Length of the run in seconds, or 0 if it is unknown.
    pub seconds: f64,
    /// Seconds from the start to the last allocation, or 0 if it is unknown. A process that waits
    /// before it ends shows no growth in that time.
    pub active_seconds: f64,
    /// Number of allocations and reallocations of all sites.
    pub allocs: u64,
    /// Peak of the live bytes of all sites together.
    pub peak_bytes: u64,
    /// Number of missing events, or `u64::MAX` if an unknown number is missing.
    pub hidden: u64,
    /// Last position at which events may be missing, in the unit of the axis.
    pub hidden_until: u64,
}
