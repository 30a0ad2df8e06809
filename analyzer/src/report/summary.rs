//! The summary of a run on one screen, printed by `heaptape record` and `heaptape report`.

mod text;

use super::coverage::{self, Coverage};
use super::frames::{CallSite, SourceLines, call_site, call_site_line};
use super::mapped::{self, MappedRow, OfProcess, ReturnedRow};
use super::segments::segment_notes;
use super::{Error, Outcome, Query, Scope, hints, json};
use crate::annotations::{self, NamedSums};
use crate::early_ends::EarlyEnds;
use crate::load::{MappingSums, Process, Recording};
use crate::missing::{self, Missing};
use crate::progress::Progress;
use crate::sums::{Sums, sums, sums_of_new_process};
use crate::symbols::{Detail, Symbolizer};
use crate::text::{Screen, Style};
use heaptape_formats::recording::{Accounting, Allocator, Exit, Kept, LastMemory, NotTraced, STREAM};
use heaptape_formats::tape::{HEAP_PREFIX, LABEL_PREFIX, SiteSums};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::Write;
use text::print;

/// Maximum number of rows of each ranking.
const MAX_ROWS: usize = 5;
/// Maximum number of sites of a ranking that are named and grouped after a recording, when the user
/// waits for the prompt: 20,000 take 30 ms.
const MAX_QUICK_SITES: usize = 20_000;
/// Maximum number of events that are read for the coverage after a recording: some 50 ms.
const MAX_QUICK_EVENTS: u64 = 1 << 20;
/// Maximum number of events that `heaptape report` reads for the coverage: some seconds.
const MAX_EVENTS: u64 = 64 << 20;
/// Number of innermost program frames by which sites are grouped.
const FRAMES: usize = 3;

/// A process in JSON. Names are stable, and fields are only ever added.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessSummary {
    pub pid: u32,
    /// ProcessSummary id of the parent.
    pub ppid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Name of the program, which may be that of a link to the executable.
    #[serde(skip)]
    pub name: String,
    pub folder: String,
    /// `start`, `fork`, `exec` or `attach`.
    pub origin: String,
    /// Folder of the process that it was forked or executed from.
    pub parent: Option<String>,
    /// Whether nothing is missing from the recording of the process.
    pub complete: bool,
    /// How the process ended, if that was recorded.
    pub exit: Option<Exit>,
    /// Nanoseconds from the attachment to the last recorded event or state.
    pub duration_ns: u64,
    /// Nanoseconds that the process had run before this recording. That time is in another
    /// recording, or not recorded.
    pub earlier_ns: u64,
    /// Whether the program has its own `malloc`, so that only what it passes on is recorded.
    pub own_malloc: bool,
    /// Allocators inside the program, found by their symbols.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allocators: Vec<Allocator>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heaps: Vec<NamedSums>,
    /// Labels that the program sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<NamedSums>,
    /// Event counts and heap sizes.
    #[serde(flatten)]
    pub numbers: Numbers,
    /// Folders of the segments of the process, oldest first; absent if it has one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Folders of earlier segments in another mode, which are not included; absent if there are
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// When and why the flight recording of the process was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// The memory of the process when the daemon last saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_memory: Option<LastMemory>,
    /// The resident memory at the snapshots of the pages, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<ResidentSummary>,
    /// The calls by which the program mapped memory, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mappings: Option<MappingSums>,
    /// Why the calls that map memory are not recorded; absent if they are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unseen_mappings: String,
    /// How much of its memory was ever a recorded block, where that is in doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// The stacks whose callers are not known; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_ends: Option<EarlyEnds>,
    pub missing: Vec<String>,
    /// Whether `lost_events` counts all lost events: nothing is missing whose number of events is
    /// unknown.
    pub lost_is_exact: bool,
}

/// The resident memory of a process at the snapshots of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResidentSummary {
    /// Resident bytes at the last snapshot.
    pub last_bytes: u64,
    /// Time of that snapshot in nanoseconds after the start; `null` without times.
    pub last_ns: Option<u64>,
    /// Most resident bytes of a snapshot.
    pub most_bytes: u64,
    /// Number of snapshots of the pages.
    pub snapshots: u64,
    /// Time that the recorder needed to read the pages of all snapshots, in nanoseconds.
    pub read_ns: u64,
}

/// Returns the resident memory of a process at its snapshots.
fn resident(process: &Process) -> Option<ResidentSummary> {
    let all = || process.tape.snapshots.iter().map(|snapshot| &snapshot.sums).filter(|sums| sums.resident_bytes > 0);
    let last = all().max_by_key(|sums| sums.tick)?;
    Some(ResidentSummary {
        last_bytes: last.resident_bytes,
        last_ns: process.has_times().then(|| process.clock.nanos(last.tick)),
        most_bytes: all().map(|sums| sums.resident_bytes).max().unwrap_or(0),
        snapshots: all().count() as u64,
        read_ns: all().map(|sums| process.clock.span_nanos(sums.end_tick.saturating_sub(sums.tick))).sum(),
    })
}

/// Event counts and heap sizes of a process, or of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Numbers {
    /// Number of recorded allocations.
    pub allocs: u64,
    /// Number of recorded reallocations.
    pub resizes: u64,
    /// Number of recorded frees.
    pub frees: u64,
    /// Requested bytes of allocations, and new bytes of reallocations.
    pub bytes_allocated: u64,
    /// Number of the process's own blocks that are live at the end.
    pub live_blocks: u64,
    /// Number of bytes in `live_blocks`.
    pub live_bytes: u64,
    /// Peak of the live bytes; in the totals, the largest peak of any process.
    pub peak_bytes: u64,
    /// Peak number of live blocks; in the totals, the largest peak of any process.
    pub peak_blocks: u64,
    /// Number of events that happened: recorded, lost and sampled out together.
    pub emitted_events: u64,
    /// Number of events that are recorded and can be read.
    pub recorded_events: u64,
    /// Number of events that were dropped or cannot be read. It is a lower bound if something else
    /// is missing.
    pub lost_events: u64,
    /// Number of events that sampling skipped.
    pub sampled_out_events: u64,
    /// Number of blocks inherited from the parent by fork and not freed.
    pub inherited_blocks: u64,
    /// Number of bytes in `inherited_blocks`.
    pub inherited_bytes: u64,
    /// Number of frees and reallocations of unknown addresses.
    pub unknown_frees: u64,
    /// Number of frees that were not recorded, and are known because their address was allocated
    /// again.
    pub implied_frees: u64,
}

impl Numbers {
    /// Adds the numbers of another process.
    pub(crate) fn add(&mut self, other: &Numbers) {
        let Numbers {
            allocs, resizes, frees, bytes_allocated, live_blocks, live_bytes, peak_bytes, peak_blocks, ..
        } = other;
        self.allocs += allocs;
        self.resizes += resizes;
        self.frees += frees;
        self.bytes_allocated = self.bytes_allocated.saturating_add(*bytes_allocated);
        self.live_blocks += live_blocks;
        self.live_bytes = self.live_bytes.saturating_add(*live_bytes);
        self.peak_bytes = self.peak_bytes.max(*peak_bytes);
        self.peak_blocks = self.peak_blocks.max(*peak_blocks);
        self.emitted_events += other.emitted_events;
        self.recorded_events += other.recorded_events;
        self.lost_events += other.lost_events;
        self.sampled_out_events += other.sampled_out_events;
        self.inherited_blocks += other.inherited_blocks;
        self.inherited_bytes = self.inherited_bytes.saturating_add(other.inherited_bytes);
        self.unknown_frees += other.unknown_frees;
        self.implied_frees += other.implied_frees;
    }
}

/// A row of a ranking: a call site with its blocks.
#[derive(Clone, Debug, Serialize)]
pub struct RankedSite {
    /// Names of the innermost program frames, innermost first.
    pub functions: Vec<String>,
    /// The innermost frame with its line, and its callers, as text reports show it.
    #[serde(rename = "place")]
    pub call_site: String,
    /// Number of blocks: live at the end, live at the peak, or allocated.
    pub blocks: u64,
    /// Number of bytes in these blocks.
    pub bytes: u64,
}

/// The three rankings of call sites.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rankings {
    /// By bytes that are live at the end.
    pub live: Vec<RankedSite>,
    /// By bytes that are live at the peak of each process.
    pub peak: Vec<RankedSite>,
    /// By number of allocations.
    pub allocs: Vec<RankedSite>,
}

/// The JSON of `heaptape report`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    pub processes: Vec<ProcessSummary>,
    /// Numbers of all processes together.
    pub totals: Numbers,
    /// The command line that was recorded.
    pub command: Vec<String>,
    /// Processes of the tree that could not be recorded.
    pub not_traced: Vec<NotTraced>,
    /// What is missing from the recordings as a whole, as sentences.
    pub missing: Vec<String>,
    /// Whether nothing is missing from the recordings as a whole that hides an unknown number of
    /// events of recorded processes.
    #[serde(skip)]
    pub lost_is_exact: bool,
    /// Messages on files that are needed for names and are missing or changed.
    pub notes: Vec<String>,
    /// The rankings of call sites.
    pub top: Rankings,
    /// What is mapped at the end by the programs themselves, by call site.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) mapped: Vec<OfProcess<MappedRow>>,
    /// What the programs returned by `madvise`, by call site.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) returned: Vec<OfProcess<ReturnedRow>>,
}

impl Summary {
    /// Applies the choice of blocks and mappings. The call sites of mappings are in JSON, and in
    /// text that has nothing else.
    fn apply(&mut self, query: &Query, recordings: &[Recording]) {
        if !query.scope.mappings.has_mappings() {
            self.processes.iter_mut().for_each(|process| process.mappings = None);
        } else if query.view.json || !query.scope.mappings.has_blocks() {
            let mut symbols = query.view.symbolizer();
            for process in recordings.iter().flat_map(|recording| &recording.processes) {
                let pid = process.about.pid;
                let ranges = mapped::own(&process.tape.mappings.ranges);
                let rows = mapped::rows(query.grouping, process, &mut symbols, ranges);
                self.mapped.extend(rows.into_iter().map(|row| OfProcess { process: pid, row }));
                let rows = mapped::returned(query.grouping, process, &mut symbols, 0..u64::MAX);
                self.returned.extend(rows.into_iter().map(|row| OfProcess { process: pid, row }));
            }
            self.mapped.sort_by_key(|one| std::cmp::Reverse((one.row.bytes, one.row.reserved_bytes)));
            self.returned.sort_by_key(|one| std::cmp::Reverse(one.row.bytes));
        }
        if !query.scope.mappings.has_blocks() {
            self.top = Rankings::default();
        }
    }

    /// Returns the outcome of the report.
    fn outcome(&self) -> Outcome {
        if self.processes.is_empty() {
            return Outcome::NoAnswer;
        }
        Outcome::of(self.missing.len())
            .and(Outcome::of(self.processes.iter().filter(|process| !process.complete).count()))
    }
}

/// Returns the JSON of a process.
pub fn summarize_process(process: &Process, sums: &Sums) -> ProcessSummary {
    let Accounting { emitted, recorded, lost, sampled_out } = sums.accounting.all();
    let totals = &sums.totals;
    let about = &process.about;
    ProcessSummary {
        pid: about.pid,
        ppid: about.ppid,
        exe: about.exe.clone(),
        name: process.name(),
        folder: about.folder.clone(),
        origin: about.origin.clone(),
        parent: about.parent.clone(),
        complete: sums.missing.is_empty(),
        exit: about.exit,
        own_malloc: about.own_malloc,
        allocators: about.allocators.clone(),
        heaps: annotations::sums(process.stacks(), &sums.sites, HEAP_PREFIX),
        labels: annotations::sums(process.stacks(), &sums.sites, LABEL_PREFIX),
        duration_ns: process.clock.nanos(process.tape.last_tick),
        earlier_ns: if about.began_unix_ns == 0 {
            0
        } else {
            process.clock.start_unix_ns.saturating_sub(about.began_unix_ns)
        },
        numbers: Numbers {
            allocs: totals.allocs,
            resizes: totals.resizes,
            frees: totals.frees,
            bytes_allocated: totals.bytes_allocated,
            live_blocks: totals.live_blocks,
            live_bytes: totals.live_bytes,
            peak_bytes: totals.peak_bytes,
            peak_blocks: totals.peak_blocks,
            emitted_events: emitted,
            recorded_events: recorded,
            lost_events: lost,
            sampled_out_events: sampled_out,
            inherited_blocks: totals.inherited_blocks,
            inherited_bytes: totals.inherited_bytes,
            unknown_frees: totals.unknown_frees,
            implied_frees: totals.implied_frees,
        },
        segments: process.segments.clone(),
        left_out: process.left_out.clone(),
        kept: about.kept.clone(),
        last_memory: about.last_memory,
        resident: resident(process),
        mappings: process.tape.mappings.is_known().then_some(process.tape.mappings.sums),
        unseen_mappings: about.unseen_mappings.clone(),
        coverage: None,
        early_ends: Some(process.early_ends()).filter(|found| !found.is_empty()),
        missing: missing::lines(&sums.missing),
        lost_is_exact: sums.accounting.is_exact,
    }
}

/// What a site contributes to a ranking.
struct Weight {
    blocks: u64,
    bytes: u64,
    /// The value that sites are ranked by.
    rank: u64,
}

/// Returns what a site contributes to a ranking.
type Weigh = fn(&SiteSums) -> Weight;

fn live(row: &SiteSums) -> Weight {
    let bytes = row.bytes.saturating_sub(row.freed_bytes);
    Weight { blocks: row.allocs.saturating_sub(row.frees), bytes, rank: bytes }
}

fn at_peak(row: &SiteSums) -> Weight {
    Weight { blocks: row.peak_blocks, bytes: row.peak_bytes, rank: row.peak_bytes }
}

fn allocated(row: &SiteSums) -> Weight {
    Weight { blocks: row.allocs, bytes: row.bytes, rank: row.allocs }
}

/// Returns the call sites with the highest ranks, grouped by their innermost program frames.
fn ranking(processes: &[(&Process, &Sums)], symbols: &mut Symbolizer, weigh: Weigh) -> Vec<RankedSite> {
    struct Group {
        call_site: CallSite,
        lines: SourceLines,
        blocks: u64,
        bytes: u64,
        rank: u64,
    }
    let mut rows: Vec<(u64, usize, &SiteSums)> = Vec::new();
    for (number, (_, sums)) in processes.iter().enumerate() {
        rows.extend(sums.sites.iter().map(|row| (weigh(row).rank, number, row)).filter(|row| row.0 > 0));
    }
    if symbols.detail() == Detail::Quick && rows.len() > MAX_QUICK_SITES {
        rows.select_nth_unstable_by_key(MAX_QUICK_SITES, |row| std::cmp::Reverse(row.0));
        rows.truncate(MAX_QUICK_SITES);
    }
    rows.sort_by_key(|&(rank, number, row)| (std::cmp::Reverse(rank), number, row.site));
    let mut groups: Vec<Group> = Vec::new();
    let mut known: FxHashMap<Vec<String>, usize> = FxHashMap::default();
    for (rank, number, row) in rows {
        let process = processes[number].0;
        let call_site = call_site(symbols, process.stacks(), row.site, FRAMES);
        let Weight { blocks, bytes, .. } = weigh(row);
        let index = *known.entry(call_site.names.clone()).or_insert_with(|| {
            groups.push(Group {
                call_site: call_site.clone(),
                lines: SourceLines::default(),
                blocks: 0,
                bytes: 0,
                rank: 0,
            });
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.lines.add(&call_site.frame);
        group.blocks += blocks;
        group.bytes = group.bytes.saturating_add(bytes);
        group.rank = group.rank.saturating_add(rank);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.rank));
    groups
        .into_iter()
        .take(MAX_ROWS)
        .map(|group| RankedSite {
            call_site: call_site_line(&group.call_site, &group.lines, symbols.names()),
            functions: group.call_site.names,
            blocks: group.blocks,
            bytes: group.bytes,
        })
        .collect()
}

/// Returns the summary of recordings. `symbols` names their frames.
pub fn summarize(recordings: &[Recording], mut symbols: Symbolizer, progress: &Progress) -> Summary {
    let mut summary = Summary { lost_is_exact: true, ..Summary::default() };
    let mut all: Vec<(&Process, Sums)> = Vec::new();
    for recording in recordings {
        if let Some(about) = &recording.about {
            summary.command.clone_from(&about.command);
            summary.not_traced.extend(about.not_traced.iter().cloned());
        }
        summary.missing.extend(missing::lines(&recording.missing));
        summary.lost_is_exact &= !recording.missing.iter().any(Missing::hides_more);
        let sums = if symbols.detail() == Detail::Quick { sums_of_new_process } else { sums };
        all.extend(recording.processes.iter().map(|process| (process, sums(process, progress))));
    }
    // Each coverage needs the events of its process.
    let mut events = if symbols.detail() == Detail::Quick { MAX_QUICK_EVENTS } else { MAX_EVENTS };
    for (process, sums) in &all {
        let mut summed = summarize_process(process, sums);
        let recorded = summed.numbers.recorded_events;
        if recorded <= events && coverage::is_in_doubt(process, summed.numbers.peak_bytes) {
            events -= recorded;
            summed.coverage = coverage::of(process, progress);
            // After a recording, nothing else has measured it.
            let coverage = summed.coverage.filter(|_| coverage::has_no_past(process));
            let unseen = coverage.and_then(|coverage| coverage.unseen(process));
            if let Some(unseen) = unseen.filter(|unseen| !sums.missing.contains(unseen)) {
                summed.missing.push(unseen.to_string());
                summed.complete = false;
            }
        }
        summary.totals.add(&summed.numbers);
        summary.processes.push(summed);
    }
    let processes: Vec<(&Process, &Sums)> = all.iter().map(|(process, sums)| (*process, sums)).collect();
    summary.top = Rankings {
        live: ranking(&processes, &mut symbols, live),
        peak: ranking(&processes, &mut symbols, at_peak),
        allocs: ranking(&processes, &mut symbols, allocated),
    };
    summary.notes = recordings.iter().filter_map(Recording::crash_note).collect();
    summary.notes.extend(all.iter().flat_map(|(process, _)| segment_notes(process)));
    let mut hints = all.iter().map(|(process, sums)| hints::find(process, &sums.sites, &mut symbols));
    summary.notes.extend(hints.find(|hints| !hints.is_empty()).unwrap_or_default());
    summary.notes.extend(all.iter().flat_map(|(process, _)| process.import_notes.iter().cloned()));
    summary.notes.extend(symbols.take_notes());
    summary
}

/// Runs `heaptape report`: prints the summary.
///
/// # Errors
/// Returns an error when a recording cannot be read, when no selected process is in it, or when
/// `out` fails.
pub fn report(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let mut recordings = query.open()?;
    let processes = &query.scope.processes;
    let mut note = None;
    // For a recording without processes, the summary shows why.
    if !processes.is_all() {
        note = processes.note(&processes.select(&recordings)?);
        recordings.iter_mut().for_each(|recording| recording.processes.retain(|process| processes.matches(process)));
    }
    let progress = Progress::new("reading events");
    let mut summary = summarize(&recordings, query.view.symbolizer(), &progress);
    drop(progress);
    summary.apply(query, &recordings);
    if query.view.json {
        json::print(out, &summary)?;
    } else {
        let mut screen = query.view.screen(out, style);
        print(&summary, &recordings, &query.scope, &mut screen)?;
        note.iter().try_for_each(|note| screen.line(note))?;
    }
    Ok(summary.outcome())
}

/// Prints the summary at the end of `heaptape record`, without anything that takes long.
///
/// # Errors
/// Returns an error when `out` fails.
pub fn after_record(
    recording: &[Recording; 1],
    symbols: Symbolizer,
    out: &mut dyn Write,
    style: Style,
) -> Result<Outcome, Error> {
    let summary = summarize(recording, symbols, &Progress::new("reading events"));
    print(&summary, recording, &Scope::default(), &mut Screen::new(out, style))?;
    Ok(summary.outcome())
}

/// Describes an exit.
pub fn ending_of(exit: Exit, is_out_of_memory: bool) -> String {
    match exit {
        Exit::Code(code) => format!("exit {code}"),
        Exit::Signal(signal) if is_out_of_memory => {
            format!("killed by the kernel because memory ran out (signal {signal})")
        }
        Exit::Signal(signal) => format!("ended by signal {signal}"),
        Exit::Exec => "replaced by another program".into(),
        Exit::Running => "still running when the recording ended".into(),
        Exit::Unknown => "ended in an unknown way".into(),
    }
}

/// Describes how a process ended.
pub fn ending(process: &ProcessSummary) -> String {
    match process.exit {
        Some(exit) => ending_of(exit, process.last_memory.is_some_and(|memory| memory.out_of_memory)),
        // A trace or profile that was sent to a daemon does not contain the end of its program.
        None if process.origin == STREAM && process.complete => "sent completely".into(),
        None if process.origin == STREAM => "sent in part".into(),
        None => "end not recorded".into(),
    }
}
