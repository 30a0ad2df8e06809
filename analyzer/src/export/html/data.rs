//! The JSON in a page, beside the packed columns. `html/*.js` reads it. Names are those of the
//! `--json` reports where the values are the same.

use crate::report::leaks::{Evidence, Held};
use crate::report::summary::{Numbers, ProcessSummary};
use heaptape_formats::recording::NotTraced;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of this structure. It always fits the script of the page.
pub(super) const VERSION: u32 = 1;

#[derive(Debug, Default, Serialize)]
pub(super) struct Page {
    /// The version of the structure: [`VERSION`].
    pub version: u32,
    /// Version of heaptape that wrote the page.
    pub heaptape: &'static str,
    /// The axis of positions in the run.
    pub axis: Axis,
    /// The recording, or the two that are compared.
    pub recordings: Vec<About>,
    pub processes: Vec<PageProcess>,
    /// The first lines of `heaptape leaks`; none of a comparison.
    pub headline: Vec<String>,
    /// The most important leaks, and what was freed only at exit.
    pub leaks: Vec<Leak>,
    /// Sums of all of these by verdict, worst first, as `heaptape leaks` has them.
    pub verdicts: Vec<VerdictSum>,
    /// Bytes to which all grew together that was freed only at exit, of each process.
    pub grown_bytes: u64,
    /// Sums of the other leaks.
    pub more_leaks: MoreLeaks,
    /// Bytes and blocks that the runtime keeps on purpose, which are not leaks.
    pub kept: (u64, u64),
    /// Messages on files that are needed for names and are missing.
    pub notes: Vec<String>,
    /// Lines of source files by path, if asked for: number of the first line, and the lines.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Vec<(u32, Vec<String>)>>,
    /// Name and length of each packed column.
    pub columns: Vec<(&'static str, usize)>,
}

/// The axis that all processes share.
#[derive(Debug, Default, Serialize)]
pub(super) struct Axis {
    /// Unit of the axis: `ns`, or `events` without times.
    pub unit: &'static str,
    /// Length of the axis in its unit.
    pub length: f64,
    /// Number of points of a time line.
    pub slices: usize,
    /// Number of slots that a range consists of.
    pub slots: usize,
    /// Whether the page covers only a time range of the run.
    pub partial: bool,
}

/// A recording as the page describes it.
#[derive(Debug, Default, Serialize)]
pub(super) struct About {
    /// Path that was opened.
    pub path: String,
    /// Command line that was recorded.
    pub command: String,
    /// Working directory of the command.
    pub cwd: String,
    /// Name of the machine.
    pub host: String,
    /// Version of heaptape that recorded.
    pub heaptape: String,
    /// Start in milliseconds since 1970.
    pub started_ms: Option<f64>,
    /// End in milliseconds since 1970.
    pub ended_ms: Option<f64>,
    /// Totals as in `report --json`.
    pub totals: Numbers,
    /// What is missing from the recording as a whole.
    pub missing: Vec<String>,
    /// Whether nothing of that hides an unknown number of events of recorded processes.
    pub lost_is_exact: bool,
    /// Processes that ran unrecorded.
    pub not_traced: Vec<NotTraced>,
    /// Number of these that are not listed.
    pub more_not_traced: usize,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct PageProcess {
    pub recording: usize,
    /// The process as in `report --json`.
    #[serde(flatten)]
    pub summary: ProcessSummary,
    /// Short name of the process.
    pub name: String,
    /// Command line of the process.
    pub command: String,
    /// Description of how it ended.
    pub ending: String,
    /// Start and end on the axis.
    pub span: (f64, f64),
    /// Position of the peak on the axis; `None` in a profile.
    pub peak_at: Option<f64>,
    /// Whether there are events; otherwise only sums.
    pub has_events: bool,
    /// Whether the live blocks at the peak are known.
    pub has_peak: bool,
    /// Number of stacks that were folded into other rows.
    pub folded: u64,
    /// Classes of block sizes.
    pub sizes: Vec<Size>,
    /// Distribution of the lifetimes of blocks.
    pub lifetimes: Lives,
    /// Groups of threads that the rows distinguish.
    pub groups: Vec<ThreadGroup>,
    /// Threads, most bytes first.
    pub threads: Vec<Thread>,
    /// Number of threads that are not listed.
    pub more_threads: usize,
    /// Gaps, most events first.
    pub losses: Vec<Loss>,
    /// The resident memory by use, at some snapshots of the pages.
    pub residents: Vec<Resident>,
    /// Bytes that the program had mapped itself, without reserved memory, at the end of each of
    /// equal parts of the axis; empty if it mapped nothing.
    pub mapped: Vec<u64>,
    /// What holds the blocks that are live at the end, most bytes first, if that was recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldBy>,
    /// The first marks of the program, earliest first.
    pub marks: Vec<Mark>,
    /// Number of marks that are not listed.
    pub more_marks: usize,
}

/// Something outside of blocks, with the blocks whose nearest root it is; or nothing, with what is
/// lost.
#[derive(Debug, Serialize)]
pub(super) struct HeldBy {
    /// E.g. `global cache`.
    pub name: String,
    /// As in `holds --json`, or `lost`, `cycle` or `others`.
    pub kind: &'static str,
    pub blocks: u64,
    pub bytes: u64,
    /// Bytes that only it leads to.
    pub only_bytes: Option<u64>,
    /// The largest kinds of blocks.
    pub kinds: Vec<HeldPart>,
    /// The blocks that it leads to at once, each kind with all that it holds.
    pub parts: Vec<HeldPart>,
}

/// Blocks of one type, or of one function, with what they hold.
#[derive(Debug, Default, Serialize)]
pub(super) struct HeldPart {
    pub name: String,
    pub blocks: u64,
    pub bytes: u64,
    /// The largest ones of what they hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<HeldPart>,
}

/// Blocks of a leak that are held in one way.
#[derive(Debug, Serialize)]
pub(super) struct HeldPath {
    pub blocks: u64,
    pub bytes: u64,
    /// From the blocks outwards; the last one is the root.
    pub steps: Vec<String>,
}

/// A named point in time that the program reported.
#[derive(Debug, Serialize)]
pub(super) struct Mark {
    /// Position on the axis.
    pub at: f64,
    pub name: String,
}

/// The resident memory at a snapshot of the pages.
#[derive(Debug, Serialize)]
pub(super) struct Resident {
    /// Position on the axis.
    pub at: f64,
    /// Name and bytes of each part that is not empty.
    pub parts: Vec<(&'static str, u64)>,
}

/// Blocks of a power of two bytes.
#[derive(Debug, Default, Serialize)]
pub(super) struct Size {
    /// Smallest size of the class.
    pub from: u64,
    /// Largest size of the class.
    pub to: u64,
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of bytes that these allocated.
    pub bytes: u64,
    /// Number of blocks that are live at the end.
    pub live_blocks: u64,
    /// Number of bytes that are live at the end.
    pub live_bytes: u64,
}

/// The distribution of lifetimes.
#[derive(Debug, Default, Serialize)]
pub(super) struct Lives {
    /// Unit of the lifetimes: `ns` or `events`.
    pub unit: &'static str,
    /// Number of blocks that were freed in less than 1, 10, 100, … units.
    pub classes: Vec<u64>,
    /// Number of blocks that were freed.
    pub died: u64,
    /// Sum of their lifetimes.
    pub sum: u64,
    /// The longest of their lifetimes.
    pub longest: u64,
    /// Number of blocks whose lifetime is interpolated, and what those may be off by on average.
    pub interpolated: u64,
    pub mean_error: u64,
}

/// Threads that are one entry of the filter.
#[derive(Debug, Default, Serialize)]
pub(super) struct ThreadGroup {
    pub name: String,
    pub threads: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Thread {
    /// Number of the thread in the recording.
    pub number: u32,
    /// Thread id of the kernel.
    pub tid: Option<u32>,
    pub name: String,
    /// Number of its allocations.
    pub allocs: u64,
    /// Number of its reallocations.
    pub resizes: u64,
    pub frees: u64,
    /// Number of its frees of blocks that other threads allocated.
    pub frees_of_others: u64,
    /// Number of bytes that it allocated.
    pub bytes: u64,
    /// Number of bytes that are live at the end.
    pub live_bytes: u64,
    /// Number of events that it emitted, if that was recorded.
    pub emitted_events: Option<u64>,
    /// Number of its events that were dropped.
    pub lost_events: Option<u64>,
    /// First and last event on the axis.
    pub span: (f64, f64),
}

/// A gap in the events of a thread.
#[derive(Debug, Serialize)]
pub(super) struct Loss {
    pub thread: u32,
    /// Number of lost events.
    pub events: u64,
    /// Start and end on the axis.
    pub span: (f64, f64),
}

/// Sums of the leaks that the page does not list. The page has them as an array.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(into = "[u64; 3]")]
pub struct MoreLeaks {
    /// Number of call stacks.
    pub stacks: u64,
    /// Number of blocks never freed.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
}

impl From<MoreLeaks> for [u64; 3] {
    fn from(MoreLeaks { stacks, blocks, bytes }: MoreLeaks) -> Self {
        [stacks, blocks, bytes]
    }
}

/// The leaks with one verdict, summed up.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VerdictSum {
    /// Verdict, as in `leaks --json`.
    pub verdict: serde_json::Value,
    /// Number of bytes never freed; of what was freed at exit, the sum of the peaks.
    pub bytes: u64,
    /// Number of blocks never freed.
    pub blocks: u64,
    /// Number of call stacks.
    pub stacks: u64,
}

/// Blocks of a stack that were never freed.
#[derive(Debug, Serialize)]
pub(super) struct Leak {
    pub process: usize,
    pub node: u32,
    /// Site of the innermost frame of the stack.
    #[serde(skip)]
    pub site: u32,
    /// Rank in the order of importance: the sum of several leaks is that of all of them.
    pub weight: u64,
    /// Verdict, as in `leaks --json`.
    pub verdict: serde_json::Value,
    /// Whether it probably grows, as in `leaks --json`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub probably_growing: bool,
    /// Name of the verdict for people.
    pub title: String,
    /// Number of blocks never freed.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
    /// Bytes to which it grew that was freed only at exit; otherwise 0.
    pub grown: u64,
    /// Who holds its blocks, as in `leaks --json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The ways in which most of them are held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<HeldPath>,
    /// Evidence of the verdict; `None` for a profile.
    pub evidence: Option<Evidence>,
}
