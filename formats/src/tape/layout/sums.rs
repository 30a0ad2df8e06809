//! What chunks sum up to, and how call sites grew over the run: the records [`Summary`], [`History`]
//! and [`HistoryErrors`].

use crate::tape::field::Added;
use crate::tape_record;

tape_record! {
    /// Totals of a process, or of one chunk of it.
    Totals {
        /// Number of allocations, including reallocations of null pointers.
        allocs: u64,
        /// Number of successful reallocations.
        resizes: u64,
        /// Number of frees, including reallocations to size 0 that free.
        frees: u64,
        /// Requested bytes of allocations, and new bytes of reallocations.
        bytes_allocated: u64,
        /// Number of live blocks, without inherited ones.
        live_blocks: u64,
        /// Bytes of the live blocks.
        live_bytes: u64,
        /// Maximum of the live bytes.
        peak_bytes: u64,
        /// Maximum of the live blocks, which may be at another point in time.
        peak_blocks: u64,
        /// First tick of `peak_bytes`.
        peak_tick: u64,
        /// Number of frees and reallocations of unknown addresses.
        unknown_frees: u64,
        /// Number of inherited blocks that were not freed.
        inherited_blocks: u64,
        /// Bytes of these inherited blocks.
        inherited_bytes: u64,
        /// Number of frees that were not seen, and follow from a later allocation at the address.
        implied_frees: u64,
    }
}

tape_record! {
    /// Sums of one call site, that is, of one whole call stack.
    SiteSums {
        /// Number of the site.
        site: u32,
        /// Number of allocations and reallocations with this stack.
        allocs: u64,
        /// Bytes of these blocks.
        bytes: u64,
        /// Number of these blocks that were freed or reallocated.
        frees: u64,
        /// Bytes of the blocks that were freed or reallocated.
        freed_bytes: u64,
        /// Number of these blocks that were live at the time of [`Totals::peak_bytes`].
        peak_blocks: u64,
        /// Bytes of the blocks that were live at that time.
        peak_bytes: u64,
    }
}

tape_record! {
    /// Kind 10: totals and sums of the chunks before it. With it, reports on the whole run need not
    /// read the events, and reports on a time range need not read those before it.
    Summary {
        /// Totals of the process.
        totals: Totals,
        /// Sums of each site that has allocations.
        sites: Vec<SiteSums>,
    }
}

tape_record! {
    /// The live blocks of one call site at the points in time of a [`History`].
    SiteHistory {
        /// Number of the site.
        site: u32,
        /// Number of live blocks at each point in time.
        blocks: Vec<u64>,
        /// Bytes of the live blocks at each point in time.
        bytes: Vec<u64>,
    }
}

tape_record! {
    /// Kind 14, in tapes without events: the live blocks of the sites that grew, over the run.
    History {
        /// Points in time, about equally far from each other.
        ticks: Vec<u64>,
        /// Sites that hold more at the end than in the middle, those that grew most first. The
        /// number of sites is limited.
        sites: Vec<SiteHistory>,
        /// Number of live blocks of all sites at each point in time; of sampled blocks, if blocks
        /// are sampled. Empty in tapes of older recorders.
        live_blocks: Added<Vec<u64>>,
        /// Bytes of the live blocks of all sites at each point in time; estimated if blocks are
        /// sampled.
        live_bytes: Added<Vec<u64>>,
    }
}

tape_record! {
    /// The standard errors of a call site's live bytes in a sampled profile.
    SiteErrors {
        /// Number of the site.
        site: u32,
        /// The standard error at each point in time of the [`History`], and at its end.
        bytes: Vec<u64>,
    }
}

tape_record! {
    /// Kind 18, of sampled sums without events: the standard errors of the [`History`] before it.
    HistoryErrors {
        /// Errors of the sites of the history, in the same order.
        sites: Vec<SiteErrors>,
    }
}
