//! What a report needs and a recording does not hold.

use super::Error;
use super::filter::NEEDS_EVENTS;
use crate::load::Process;
use crate::sums::Sums;
use std::path::PathBuf;

/// The reason why the recording cannot answer a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    /// No stack passes through a function of this name.
    #[error("no stack passes through a function {name}{hint}")]
    UnknownFunction {
        /// Name that was requested.
        name: String,
        /// The similar names that exist, as the end of the message.
        hint: String,
    },
    /// No recorded block contained this address.
    #[error("no recorded block contained the address {0:#x}")]
    UnknownAddress(u64),
    /// No epoch has a process of this name, pid or label.
    #[error("no process, program or label '{name}' is recorded in {}", .state.display())]
    UnknownProcess {
        /// The requested name, pid or label.
        name: String,
        /// The folder of the daemon's epochs.
        state: PathBuf,
    },
    /// No process of the recording can be read.
    #[error("{}: none of its processes can be read", .0.display())]
    NoReadableProcess(PathBuf),
    /// The recording is a profile without the peak of each call site.
    #[error("the peak needs events, and there are none: a profile holds only sums")]
    NoPeak,
    /// The file counts no allocations, as those of Massif do not.
    #[error(
        "{}: the file counts no allocations: it holds the live bytes at some points in time (peak), not what was freed",
        .0.display()
    )]
    NoAllocations(PathBuf),
    /// The file is a profile, which cannot be divided by time or by a filter.
    #[error("{}: a profile holds only sums at the end", .0.display())]
    OnlySums(PathBuf),
    /// The recording is a profile that has no live bytes over time.
    #[error(
        "{NEEDS_EVENTS}, which `heaptape sites` lists. heaptape's own profiles have live bytes over time after 8 s, its \
         traces at any time"
    )]
    NoHistory,
    /// Frees were recorded without their stacks.
    #[error("frees were recorded without their stacks: record with --free-stacks")]
    NoFreeStacks,
    /// The recording is sampled, and the report needs every block.
    #[error("this needs every block, and the recording is sampled: how full pages are is unknown")]
    Sampled,
    /// No process has a snapshot of its pages.
    #[error(
        "no snapshot of the pages of a process is in the recording: it ended too early, or an older heaptape recorded it"
    )]
    NoPages,
    /// Which block holds which was not read, or not as far as the question goes.
    #[error("{why}: {remedy}")]
    NoReferences {
        why: String,
        /// What helps.
        remedy: String,
    },
    /// The question is about all blocks, and a filter selects some of them.
    #[error("rss explains the memory of all blocks: it takes no filters of blocks")]
    AllBlocks,
    /// The pages of a snapshot cannot be read.
    #[error("the pages of the snapshot cannot be read: {0}")]
    BadPages(String),
    /// A timeline would have too many values.
    #[error("{groups} groups with {slices} slices are too many: use fewer --slices, --by function or --by module")]
    TooManyGroups {
        /// Number of groups of sites.
        groups: usize,
        /// Number of slices of time.
        slices: usize,
    },
    /// A condition compares two recordings, and there is one.
    #[error("a condition on diff.… needs two sides: heaptape diff A B --fail-if …")]
    NoSecondSide,
    /// The recording holds only sums, which do not include the metric of a condition.
    #[error("{condition}: {metric} cannot be measured: the recording holds only sums, which do not include it")]
    NotMeasurable { condition: String, metric: String },
}

/// Checks that sums count frees.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when the sums hold only the live bytes at the peak and at other
/// points in time, as Massif's do.
pub(crate) fn needs_frees(sums: &Sums, process: &Process) -> Result<(), Error> {
    if sums.totals.allocs > 0 || sums.sites.iter().all(|row| row.peak_bytes == 0) {
        return Ok(());
    }
    Err(Unanswerable::NoAllocations(process.path.clone()).into())
}
