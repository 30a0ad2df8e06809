//! `heaptape verify`: checks that a recording is complete and that its files agree. Reads
//! everything, and prints the accounting.

mod text;

use super::{Error, Outcome, coverage};
use crate::early_ends::EarlyEnds;
use crate::event::{Event, Kind, Span};
use crate::load::tape::TraceRange;
use crate::load::{self, Accounting, Events, Process, RecordedEvents};
use crate::missing::{self, Missing};
use crate::model::Model;
use crate::model::call_sites::CallSites;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::processes::ProcessFilter;
use crate::progress::Progress;
use crate::replay::replay;
use crate::report::Unanswerable;
use crate::text::{Screen, Style, count};
use crate::unpack;
use heaptape_formats::mptl::Profile;
use heaptape_formats::recording::{Accounting as Sums, PROFILE};
use heaptape_formats::tape::{self, SiteSums};
use serde::Serialize;
use std::error::Error as _;
use std::io::Write;
use std::path::Path;

/// Checks of the order of events, beyond those that a replay makes.
#[derive(Debug, Default)]
struct Checks {
    next_index: u64,
    last_tick: u64,
    backwards: u64,
    /// Number of events without a timestamp.
    interpolated: u64,
    out_of_order: u64,
}

impl Checks {
    #[inline]
    fn event(&mut self, event: &Event) {
        self.backwards += u64::from(event.tick < self.last_tick);
        self.last_tick = event.tick;
        self.interpolated += u64::from(event.tick_error > 0);
    }

    #[inline]
    fn index(&mut self, index: u64) {
        self.out_of_order += u64::from(index != self.next_index + 1);
        self.next_index = index;
    }
}

impl Model for Checks {
    fn alloc(&mut self, event: &Event, _: &Block) {
        self.event(event);
        self.index(event.index);
    }
    fn resize(&mut self, event: &Event, _: Option<&Block>, _: &Block) {
        self.event(event);
    }
    fn free(&mut self, event: &Event, _: Option<&Block>) {
        if event.kind == Kind::Free {
            self.event(event);
        }
    }
    fn unmatched(&mut self, event: &Event) {
        self.event(event);
    }
    fn inherited(&mut self, _: &Block, gone: Option<Kind>) {
        if gone.is_none() {
            self.next_index += 1;
        }
    }
}

/// What the check of a recording found.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Path of the recording or file.
    pub path: String,
    /// Whether nothing is missing and nothing is wrong.
    pub complete: bool,
    pub processes: Vec<CheckedProcess>,
    /// What is missing from the recording as a whole, as sentences.
    pub missing: Vec<String>,
    /// Notes that do not make the recording incomplete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Checked {
    /// Returns the number of things that are missing or wrong.
    fn faults(&self) -> usize {
        self.missing.len() + self.processes.iter().map(|process| process.missing.len()).sum::<usize>()
    }

    /// Returns what the command answers with.
    pub fn outcome(&self) -> Outcome {
        Outcome::of(self.faults())
    }
}

#[derive(Debug, Serialize)]
pub struct CheckedProcess {
    /// Id of the process; 0 if it is not known.
    pub pid: u32,
    /// Folder in the recording, or the name of the file.
    pub folder: String,
    /// Whether nothing is missing and nothing is wrong.
    pub complete: bool,
    /// Whether there are only sums, without events.
    pub only_sums: bool,
    /// Number of allocations in all.
    pub allocs: u64,
    /// Number of reallocations in all.
    pub resizes: u64,
    pub frees: u64,
    /// Number of events about blocks that are not known.
    pub unmatched: u64,
    /// Number of events that have no timestamp of their own: their time is interpolated.
    pub interpolated_times: u64,
    /// The stacks whose callers are not known; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_ends: Option<EarlyEnds>,
    /// Number of blocks that are live at the end.
    pub live_blocks: u64,
    /// The accounting; absent for files without one.
    #[serde(flatten)]
    pub accounting: Option<CheckedAccounting>,
    /// What is missing or wrong, as sentences.
    pub missing: Vec<String>,
}

/// The accounting of a process: emitted = recorded + lost + sampled out.
#[derive(Debug, Serialize)]
pub struct CheckedAccounting {
    /// The counts of all threads together.
    #[serde(flatten)]
    pub all: Counts,
    /// Whether the number of lost events is exact. If not, more may be lost.
    pub lost_is_exact: bool,
    pub threads: Vec<CheckedThread>,
}

#[derive(Debug, Serialize)]
pub struct CheckedThread {
    /// Number of the thread in the process, from 1; 0 for events of no known thread.
    pub number: u32,
    /// Name of the thread; empty if it is not known.
    pub name: String,
    #[serde(flatten)]
    pub counts: Counts,
}

/// What became of the events.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counts {
    /// Number of events that happened.
    pub emitted_events: u64,
    /// Number of events that are recorded and can be read.
    pub recorded_events: u64,
    /// Number of events that were dropped or cannot be read.
    pub lost_events: u64,
    /// Number of events that sampling skipped.
    pub sampled_out_events: u64,
}

impl From<Sums> for Counts {
    fn from(sums: Sums) -> Counts {
        let Sums { emitted, recorded, lost, sampled_out } = sums;
        Counts {
            emitted_events: emitted,
            recorded_events: recorded,
            lost_events: lost,
            sampled_out_events: sampled_out,
        }
    }
}

/// Runs `heaptape verify`: prints the check of a recording.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::report::{Outcome, verify};
/// use heaptape_analyzer::text::Style;
///
/// let outcome = verify::run(path.as_ref(), &mut std::io::sink(), Style::PLAIN)?;
/// assert_eq!(outcome, Outcome::Complete);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error when nothing can be read, or when `out` fails.
pub fn run(path: &Path, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let checked = check(path)?;
    text::print(&checked, &mut Screen::new(out, style))?;
    Ok(checked.outcome())
}

/// Checks all processes of a recording.
///
/// # Errors
/// Returns an error when nothing can be read.
pub fn check(path: &Path) -> Result<Checked, Error> {
    let mut recording = load::open_separately(path)?;
    coverage::note_unseen(std::slice::from_mut(&mut recording), &ProcessFilter::default());
    let readable = |process: &Process| !matches!(process.events, Events::None);
    if !recording.processes.is_empty() && !recording.processes.iter().any(readable) {
        return Err(Unanswerable::NoReadableProcess(path.to_path_buf()).into());
    }
    let progress = Progress::new("verifying");
    let processes: Vec<_> = recording.processes.iter().map(|process| verify(process, &progress)).collect();
    let missing = missing::lines(&recording.missing);
    Ok(Checked {
        path: path.display().to_string(),
        complete: missing.is_empty() && processes.iter().all(|process| process.complete),
        processes,
        missing,
        notes: recording.crash_note().into_iter().collect(),
    })
}

fn verify(process: &Process, progress: &Progress) -> CheckedProcess {
    let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
    let mut checks = Checks::default();
    let models = &mut (&mut totals, &mut sites, &mut peak, &mut checks);
    let outcome = replay(process, Span::ALL, progress, models);
    let missing = [&process.missing[..], &outcome.missing[..]].concat();
    let mut wrong: Vec<String> = missing::lines(&missing);
    let totals = match process.ready_sums() {
        Some(summary) if matches!(process.events, Events::Profile | Events::Imported { .. }) => summary.totals,
        _ => totals.finish(process.tape.inherited.as_ref()),
    };
    let accounting = Accounting::of(process, &totals, &missing, Some(&outcome.recorded));
    let intact =
        !missing.iter().any(Missing::hides_events) && !missing.iter().any(|m| matches!(m, Missing::Salvaged { .. }));
    let mut expect = |what: &str, held: u64, stated: u64| {
        if intact && held != stated {
            wrong.push(format!("{what}: {} in the events, {} in the tape", count(held), count(stated)));
        }
    };
    let sums_alone = process.tape.summary.as_ref().filter(|_| process.tape.ranges.is_empty() && !process.has_events());
    if let Some(summary) = sums_alone {
        check_accounting(process, None, &mut expect);
        check_sums(summary, &mut expect);
        check_profile(process, &summary.totals, intact, &mut wrong);
        return found(process, &summary.totals, (None, 0), Some(&accounting), wrong);
    }
    let is_taped = matches!(process.events, Events::Taped { .. });
    if is_taped {
        // The real free came after its address was used again. It is counted, and the trace has it
        // as an implied free.
        let stated =
            process.tape.summary.as_ref().filter(|_| process.tape.summary_is_last && process.tape.inherited.is_none());
        let late = stated.map_or(0, |stated| totals.implied_frees.saturating_sub(stated.totals.implied_frees));
        check_accounting(process, Some((&outcome.recorded, late)), &mut expect);
        check_chunks(process, &mut expect);
        if let Some(summary) = process.tape.summary.as_ref().filter(|_| process.tape.summary_is_last) {
            // The free of a block of the parent that was not recorded has no event: the process
            // never held this block.
            let mut held = totals.clone();
            match process.tape.inherited {
                None => (held.frees, held.implied_frees) = (held.frees + late, held.implied_frees - late),
                Some(_) => held.implied_frees = summary.totals.implied_frees,
            }
            check_totals(&held, &summary.totals, &mut expect);
            check_sites(&sites, &peak, &summary.sites, &mut expect);
        }
        expect("events whose time runs backwards", checks.backwards, 0);
        expect("allocations out of order", checks.out_of_order, 0);
    }
    check_profile(process, &totals, intact, &mut wrong);
    found(process, &totals, (Some(outcome.unmatched), checks.interpolated), is_taped.then_some(&accounting), wrong)
}

/// Returns what was found. `unmatched` is `None` if there are only sums.
fn found(
    process: &Process,
    totals: &tape::Totals,
    (unmatched, interpolated_times): (Option<u64>, u64),
    accounting: Option<&Accounting>,
    missing: Vec<String>,
) -> CheckedProcess {
    let thread = |account: &tape::Account| {
        let &tape::Account { thread: number, emitted, recorded, lost, sampled_out } = account;
        let known = process.tape.threads.get(&number);
        let name = known.map(|thread| thread.name.lossy().into_owned()).unwrap_or_default();
        CheckedThread { number, name, counts: Sums { emitted, recorded, lost, sampled_out }.into() }
    };
    CheckedProcess {
        pid: process.about.pid,
        early_ends: Some(process.early_ends()).filter(|found| !found.is_empty()),
        folder: process.about.folder.clone(),
        complete: missing.is_empty(),
        only_sums: unmatched.is_none(),
        allocs: totals.allocs,
        resizes: totals.resizes,
        frees: totals.frees,
        unmatched: unmatched.unwrap_or_default(),
        interpolated_times,
        live_blocks: totals.live_blocks,
        accounting: accounting.map(|accounting| CheckedAccounting {
            all: accounting.all().into(),
            lost_is_exact: accounting.is_exact,
            threads: accounting.threads.iter().map(thread).collect(),
        }),
        missing,
    }
}

/// Checks the recorder's accounting: `emitted = recorded + lost + sampled out` for each thread, and
/// `recorded` against the events that were read. `late` of them may be missing in total, because
/// the trace has them as frees that were not recorded.
fn check_accounting(process: &Process, read: Option<(&RecordedEvents, u64)>, expect: &mut impl FnMut(&str, u64, u64)) {
    for tape::Account { thread, emitted, recorded, lost, sampled_out } in &process.tape.accounts {
        let accounted = recorded.saturating_add(*lost).saturating_add(*sampled_out);
        // Emitted events that are not in a gap count as lost.
        expect(&format!("accounting of thread {thread}, emitted"), accounted.max(*emitted), *emitted);
        if let Some((read, late)) = read.filter(|_| process.tape.has_final_accounts()) {
            let held = read.of(*thread);
            let missing = recorded.saturating_sub(held).min(late);
            expect(&format!("accounting of thread {thread}, recorded"), held + missing, *recorded);
        }
    }
}

/// Checks that chunks follow one another without holes, in the trace and in their numbers.
fn check_chunks(process: &Process, expect: &mut impl FnMut(&str, u64, u64)) {
    let (mut number, mut stored, mut plain, mut index) = (0u64, 0u64, 0u64, 1u64);
    for range in &process.tape.ranges {
        let TraceRange::Committed { chunk, .. } = range else { continue };
        let of = format!("chunk {}", chunk.number);
        expect(&format!("{of}, number"), number + 1, chunk.number.into());
        expect(&format!("{of}, offset in the trace file"), stored, chunk.stored_offset);
        expect(&format!("{of}, offset in the plain trace"), plain, chunk.plain_offset);
        expect(&format!("{of}, first allocation index"), index, chunk.first_index);
        number = chunk.number.into();
        stored = chunk.stored_offset.saturating_add(chunk.stored_length);
        plain = chunk.plain_offset.saturating_add(chunk.plain_length);
        index = chunk.first_index.saturating_add(chunk.allocations);
    }
}

/// Checks that sums without events agree with their totals.
fn check_sums(summary: &tape::Summary, expect: &mut impl FnMut(&str, u64, u64)) {
    let totals = &summary.totals;
    let sum = |of: fn(&SiteSums) -> u64| summary.sites.iter().fold(0u64, |sum, row| sum.saturating_add(of(row)));
    // Events without a stack are not counted at any site.
    if summary.sites.iter().all(|row| row.site != 0) {
        expect("allocations and resizes by site", sum(|row| row.allocs), totals.allocs.saturating_add(totals.resizes));
        expect("bytes allocated by site", sum(|row| row.bytes), totals.bytes_allocated);
        expect("live blocks by site", sum(|row| row.allocs.saturating_sub(row.frees)), totals.live_blocks);
        expect("live bytes by site", sum(|row| row.bytes.saturating_sub(row.freed_bytes)), totals.live_bytes);
    }
}

/// Checks the totals of the events against those of the tape.
fn check_totals(held: &tape::Totals, stated: &tape::Totals, expect: &mut impl FnMut(&str, u64, u64)) {
    expect("allocations", held.allocs, stated.allocs);
    expect("resizes", held.resizes, stated.resizes);
    expect("frees", held.frees, stated.frees);
    expect("bytes allocated", held.bytes_allocated, stated.bytes_allocated);
    expect("live blocks", held.live_blocks, stated.live_blocks);
    expect("live bytes", held.live_bytes, stated.live_bytes);
    expect("peak bytes", held.peak_bytes, stated.peak_bytes);
    expect("peak blocks", held.peak_blocks, stated.peak_blocks);
    expect("unknown frees", held.unknown_frees, stated.unknown_frees);
    expect("implied frees", held.implied_frees, stated.implied_frees);
}

/// Checks the sums by site of the events against those of the tape.
fn check_sites(held: &CallSites, peak: &Peak, stated: &[SiteSums], expect: &mut impl FnMut(&str, u64, u64)) {
    let rows = held.sums();
    expect("sites with allocations", rows.len() as u64, stated.len() as u64);
    let different = stated.iter().filter(|row| {
        let mut own =
            rows.binary_search_by_key(&row.site, |row| row.site).map_or(SiteSums::default(), |at| rows[at].clone());
        let share = peak.at_peak(row.site);
        (own.peak_blocks, own.peak_bytes) = (share.blocks, share.bytes);
        own != **row
    });
    expect("sites whose sums differ", 0, different.count() as u64);
}

/// Checks that the profile is complete and counts the same allocations.
fn check_profile(process: &Process, totals: &tape::Totals, intact: bool, wrong: &mut Vec<String>) {
    let Events::Taped { .. } = process.events else { return };
    let path = load::profile_file(&process.path).unwrap_or_else(|| process.path.join(PROFILE));
    let why = |error: unpack::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let read = unpack::open(&path).map_err(why);
    let profile = read.and_then(|opened| Profile::read(&opened.bytes).map_err(|error| error.to_string()));
    match profile {
        // It is written at the end, and by a snapshot.
        Err(_) if process.is_being_written() && !path.exists() => {}
        Err(why) => wrong.push(format!("{PROFILE}: {why}")),
        Ok((_, ending)) if !ending.is_complete() => wrong.push(format!("{PROFILE} is truncated")),
        Ok((profile, _)) => {
            let allocated = profile.bins.allocated.iter().fold(0u64, |sum, &count| sum.saturating_add(count));
            let expected = totals.allocs + totals.resizes;
            if intact && process.tape.end.is_some() && allocated != expected {
                wrong.push(format!(
                    "{PROFILE} counts {} allocations, the events {}",
                    count(allocated),
                    count(expected)
                ));
            }
        }
    }
}
