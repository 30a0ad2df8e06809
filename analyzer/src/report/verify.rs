//! `heaptape verify`: checks that a recording is complete and that its files agree. Reads
//! everything, and prints the accounting.

use super::{Error, Outcome};
use crate::event::{Event, Kind, Span};
use crate::load::tape::TraceRange;
use crate::load::{self, Accounting, Events, Process, RecordedEvents};
use crate::missing::{self, Missing};
use crate::model::Model;
use crate::model::call_sites::CallSites;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::progress::Progress;
use crate::replay::replay;
use crate::report::Unanswerable;
use crate::sort::SortRows;
use crate::text::{Screen, Style, count, counted};
use crate::unpack;
use heaptape_formats::mptl::Profile;
use heaptape_formats::recording::{Accounting as Sums, PROFILE};
use heaptape_formats::tape::{self, SiteSums};
use std::error::Error as _;
use std::io::{self, Write};
use std::path::Path;

/// Checks of the order of events, beyond those that a replay makes.
#[derive(Debug, Default)]
struct Checks {
    next_index: u64,
    last_tick: u64,
    backwards: u64,
    out_of_order: u64,
}

impl Checks {
    #[inline]
    fn event(&mut self, event: &Event) {
        self.backwards += u64::from(event.tick < self.last_tick);
        self.last_tick = event.tick;
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
    let recording = load::open_separately(path)?;
    let readable = |process: &Process| !matches!(process.events, Events::None);
    if !recording.processes.is_empty() && !recording.processes.iter().any(readable) {
        return Err(Unanswerable::NoReadableProcess(path.to_path_buf()).into());
    }
    let progress = Progress::new("verifying");
    let mut screen = Screen::new(out, style);
    let mut wrong: Vec<String> = recording.missing.iter().map(ToString::to_string).collect();
    for process in &recording.processes {
        let found = verify(process, &progress, &mut screen)?;
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", process.about.folder)));
    }
    drop(progress);
    wrong.iter().try_for_each(|what| screen.warning(&format!("! {what}")))?;
    recording.crash_note().iter().try_for_each(|note| screen.line(&format!("note: {note}")))?;
    match wrong.len() {
        0 => screen.line("complete")?,
        several => screen.line(&format!("readable, with {several} things missing or wrong"))?,
    }
    Ok(Outcome::of(wrong.len()))
}

/// Checks a process and prints its accounting. Returns what is missing or wrong.
fn verify(process: &Process, progress: &Progress, screen: &mut Screen) -> io::Result<Vec<String>> {
    let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
    let mut checks = Checks::default();
    let models = &mut (&mut totals, &mut sites, &mut peak, &mut checks);
    let outcome = replay(process, Span::ALL, progress, models);
    let missing = [&process.missing[..], &outcome.missing[..]].concat();
    let mut wrong: Vec<String> = missing::lines(&missing);
    let totals = match process.ready_sums() {
        Some(summary) if matches!(process.events, Events::Profile) => summary.totals,
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
        print_accounting(process, &accounting, None, screen, &mut expect)?;
        check_sums(summary, &mut expect);
        let totals = &summary.totals;
        screen.line(&format!(
            "{}: sums of {}, {}, {}, without events; {} at the end",
            process.about.folder,
            counted(totals.allocs, "allocation"),
            counted(totals.resizes, "resize"),
            counted(totals.frees, "free"),
            counted(totals.live_blocks, "live block")
        ))?;
        check_profile(process, totals, intact, &mut wrong);
        return Ok(wrong);
    }
    if let Events::Taped { .. } = process.events {
        // The real free came after its address was used again. It is counted, and the trace has it
        // as an implied free.
        let stated =
            process.tape.summary.as_ref().filter(|_| process.tape.summary_is_last && process.tape.inherited.is_none());
        let late = stated.map_or(0, |stated| totals.implied_frees.saturating_sub(stated.totals.implied_frees));
        print_accounting(process, &accounting, Some((&outcome.recorded, late)), screen, &mut expect)?;
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
    screen.line(&format!(
        "{}: {}, {}, {}, {} unmatched; {} at the end",
        process.about.folder,
        counted(totals.allocs, "allocation"),
        counted(totals.resizes, "resize"),
        counted(totals.frees, "free"),
        count(outcome.unmatched),
        counted(totals.live_blocks, "live block")
    ))?;
    check_profile(process, &totals, intact, &mut wrong);
    Ok(wrong)
}

/// Prints the accounting and checks the recorder's own: `emitted = recorded + lost + sampled out`
/// for each thread, and `recorded` against the events that were read. `late` of them may be missing
/// in total, because the trace has them as frees that were not recorded.
fn print_accounting(
    process: &Process,
    accounting: &Accounting,
    read: Option<(&RecordedEvents, u64)>,
    screen: &mut Screen,
    expect: &mut impl FnMut(&str, u64, u64),
) -> io::Result<()> {
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
    let mut accounts: Vec<&tape::Account> = accounting.threads.iter().collect();
    accounts.sort_rows_by_key(|account| std::cmp::Reverse(account.emitted));
    let row = |account: &tape::Account| {
        let tape::Account { thread, emitted, recorded, lost, sampled_out } = account;
        let name = process.tape.threads.get(thread).map(|thread| thread.name.lossy().into_owned()).unwrap_or_default();
        let who = if *thread == 0 { "no thread".to_string() } else { format!("thread {thread} {name}") };
        vec![count(*emitted), count(*recorded), count(*lost), count(*sampled_out), who]
    };
    let more = accounts.len().saturating_sub(MAX_THREADS);
    let mut rows: Vec<Vec<String>> = accounts.into_iter().take(MAX_THREADS).map(row).collect();
    let Sums { emitted, recorded, lost, sampled_out } = accounting.all();
    let all = if more > 0 { format!("all, {more} threads more among them") } else { "all".into() };
    rows.push(vec![count(emitted), count(recorded), count(lost), count(sampled_out), all]);
    screen.table(&["emitted", "recorded", "lost", "sampled out", "accounting"], &rows)?;
    if !accounting.is_exact {
        screen.line("more may be lost: the number of events in what is missing is unknown")?;
    }
    Ok(())
}

/// Maximum number of threads that are printed one by one.
const MAX_THREADS: usize = 20;

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
