//! What stands in a page as JSON, beside the packed columns. `html/*.js` reads it; names are those
//! of `--json` reports where the thing is the same.

use crate::report::leaks::Evidence;
use crate::report::summary::{Numbers, Process};
use heaptape_formats::recording::NotTraced;
use serde::Serialize;

/// Version of this shape; the page's own script always fits.
pub const VERSION: u32 = 1;

/// Everything.
#[derive(Debug, Default, Serialize)]
pub struct Page {
    /// [`VERSION`].
    pub version: u32,
    /// Version of heaptape that wrote it.
    pub heaptape: &'static str,
    /// What positions in the run mean.
    pub axis: Axis,
    /// One, or the two that are compared.
    pub recordings: Vec<About>,
    /// The process images of all recordings.
    pub processes: Vec<Image>,
    /// The leaks that matter most.
    pub leaks: Vec<Leak>,
    /// How many others there are, their blocks and bytes.
    pub more_leaks: (u64, u64, u64),
    /// Bytes and blocks that the run-time keeps on purpose, which are no leaks.
    pub kept: (u64, u64),
    /// Files that were needed for names and are not there.
    pub notes: Vec<String>,
    /// Name and length of each packed column.
    pub columns: Vec<(&'static str, usize)>,
}

/// The axis that all images share.
#[derive(Debug, Default, Serialize)]
pub struct Axis {
    /// `ns`, or `events` where there are no times.
    pub unit: &'static str,
    /// Its length.
    pub length: f64,
    /// Points of a time line.
    pub slices: usize,
    /// Slots of which a range is made.
    pub slots: usize,
    /// Whether only a part of the run is in the page.
    pub partial: bool,
}

/// A recording.
#[derive(Debug, Default, Serialize)]
pub struct About {
    /// What was opened.
    pub path: String,
    /// Command line.
    pub command: String,
    /// Working directory.
    pub cwd: String,
    /// The machine's name.
    pub host: String,
    /// Version of heaptape that recorded.
    pub heaptape: String,
    /// Milliseconds since 1970.
    pub started_ms: Option<f64>,
    /// Likewise.
    pub ended_ms: Option<f64>,
    /// As `report --json` has them.
    pub totals: Numbers,
    /// What is missing of it as a whole.
    pub missing: Vec<String>,
    /// Processes that ran unrecorded.
    pub not_traced: Vec<NotTraced>,
    /// How many of these are not listed.
    pub more_not_traced: usize,
}

/// A process image.
#[derive(Debug, Default, Serialize)]
pub struct Image {
    /// Which recording.
    pub recording: usize,
    /// As `report --json` has it.
    #[serde(flatten)]
    pub process: Process,
    /// Short name.
    pub name: String,
    /// Command line.
    pub command: String,
    /// How it ended, in words.
    pub ending: String,
    /// Start and end on the axis.
    pub span: (f64, f64),
    /// Where the peak lies on the axis; none in a profile.
    pub peak_at: Option<f64>,
    /// Whether there are events; else only sums.
    pub has_events: bool,
    /// Whether what was alive at the peak is known.
    pub has_peak: bool,
    /// Stacks that were folded into one row.
    pub folded: u64,
    /// By size.
    pub sizes: Vec<Size>,
    /// By lifetime.
    pub lifetimes: Lives,
    /// Threads, most bytes first.
    pub threads: Vec<Thread>,
    /// How many are not listed.
    pub more_threads: usize,
    /// Gaps, most events first.
    pub losses: Vec<Loss>,
}

/// Blocks of a power of two.
#[derive(Debug, Default, Serialize)]
pub struct Size {
    /// Smallest size.
    pub from: u64,
    /// Largest.
    pub to: u64,
    /// Allocations and resizes.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Alive at the end.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
}

/// How long blocks lived.
#[derive(Debug, Default, Serialize)]
pub struct Lives {
    /// `ns` or `events`.
    pub unit: &'static str,
    /// Deaths below 1, 10, 100, … units.
    pub classes: Vec<u64>,
    /// All deaths.
    pub died: u64,
    /// Sum of their lifetimes.
    pub sum: u64,
    /// The longest.
    pub longest: u64,
}

/// A thread.
#[derive(Debug, Default, Serialize)]
pub struct Thread {
    /// Its number.
    pub number: u32,
    /// The kernel's.
    pub tid: Option<u32>,
    /// Its name.
    pub name: String,
    /// Allocations.
    pub allocs: u64,
    /// Resizes.
    pub resizes: u64,
    /// Frees.
    pub frees: u64,
    /// Of these, of blocks of other threads.
    pub frees_of_others: u64,
    /// Bytes allocated.
    pub bytes: u64,
    /// Alive at the end.
    pub live_bytes: u64,
    /// Events that it made, where there is a ledger.
    pub emitted_events: Option<u64>,
    /// Events that found no room.
    pub lost_events: Option<u64>,
    /// First and last event on the axis.
    pub span: (f64, f64),
}

/// A gap.
#[derive(Debug, Serialize)]
pub struct Loss {
    /// Thread number.
    pub thread: u32,
    /// How many events.
    pub events: u64,
    /// Where on the axis.
    pub span: (f64, f64),
}

/// What was never freed at a stack.
#[derive(Debug, Serialize)]
pub struct Leak {
    /// Which process.
    pub process: usize,
    /// Its stack.
    pub node: u32,
    /// The site that the stack ends in.
    #[serde(skip)]
    pub site: u32,
    /// Place in the order of what matters.
    #[serde(skip)]
    pub weight: u64,
    /// Class, as `leaks --json` names it.
    pub verdict: serde_json::Value,
    /// Class for people.
    pub title: String,
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why; none for a profile.
    pub evidence: Option<Evidence>,
}
