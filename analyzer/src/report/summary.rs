//! The summary: what a run did with its heap, on one screen. `heaptape record` prints it, and
//! `heaptape report`.

use super::frames::{Lines, Place, place, place_line};
use super::questions::Query;
use super::sums::{Sums, sums, sums_of_new};
use super::{Error, Outcome, hints, json, say_lines, say_missing, say_own_malloc};
use crate::load::{Image, Recording};
use crate::missing::{self, Missing};
use crate::processes::{ProcessFilter, folded_line};
use crate::progress::Progress;
use crate::symbols::{Detail, Symbolizer};
use crate::text::{Screen, Style, bytes, count, counted, duration};
use heaptape_formats::recording::{Accounting, Exit, NotTraced, STREAM};
use heaptape_formats::tape::SiteSums;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};

/// Rows of each ranking.
const ROWS: usize = 5;
/// Sites of a ranking that are named and grouped when nobody may be kept waiting: 20,000 take 30
/// ms.
const QUICK: usize = 20_000;
/// Processes listed one by one.
const PROCESSES: usize = 8;
/// Notes about names that are printed.
const NOTES: usize = 3;
/// Frames of the program by which sites are grouped.
const FRAMES: usize = 3;

/// One process image in `--json`. Names are stable; fields are only ever added.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Folder in the recording.
    pub folder: String,
    /// `start`, `fork`, `exec` or `attach`.
    pub origin: String,
    /// Folder of the image that it was forked or exec'd from.
    pub parent: Option<String>,
    /// Whether nothing is missing.
    pub complete: bool,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Nanoseconds from attach to the last thing known.
    pub duration_ns: u64,
    /// Nanoseconds that the process had run before: its earlier part is in another recording, or in
    /// none.
    pub earlier_ns: u64,
    /// Whether the program has a `malloc` of its own, so that only what that passes on is recorded.
    pub own_malloc: bool,
    /// The numbers.
    #[serde(flatten)]
    pub numbers: Numbers,
    /// What is missing, in words.
    pub missing: Vec<String>,
    /// Whether `lost_events` are all that are lost: nothing is missing of which it is not known how
    /// many events are in it.
    pub lost_is_exact: bool,
}

/// The numbers of a process, and of all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Numbers {
    /// Allocations.
    pub allocs: u64,
    /// Resizes.
    pub resizes: u64,
    /// Frees.
    pub frees: u64,
    /// Requested bytes of allocations and new bytes of resizes.
    pub bytes_allocated: u64,
    /// Own blocks live at the end.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The most live bytes; in the totals, of any one process.
    pub peak_bytes: u64,
    /// The most live blocks; likewise.
    pub peak_blocks: u64,
    /// Events that happened: recorded, lost and sampled out together.
    pub emitted_events: u64,
    /// Events that are recorded and can be read.
    pub recorded_events: u64,
    /// Events that found no room or cannot be read; more may be, unless nothing else is missing.
    pub lost_events: u64,
    /// Events passed over by sampling.
    pub sampled_out_events: u64,
    /// Blocks got from the parent by fork and not freed.
    pub inherited_blocks: u64,
    /// Their bytes.
    pub inherited_bytes: u64,
    /// Frees and resizes of unknown addresses.
    pub unknown_frees: u64,
    /// Frees that were not seen, known because their address was allocated again.
    pub implied_frees: u64,
}

impl Numbers {
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

/// A row of a ranking.
#[derive(Clone, Debug, Serialize)]
pub struct Top {
    /// The innermost frames of the program, innermost first.
    pub functions: Vec<String>,
    /// The first of them with its line, and its callers, as text reports show it.
    pub place: String,
    /// Blocks: live, live at the peak, or allocated.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The three rankings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tops {
    /// Most bytes live at the end.
    pub live: Vec<Top>,
    /// Most bytes live at the peak (of each process).
    pub peak: Vec<Top>,
    /// Most allocations.
    pub allocs: Vec<Top>,
}

/// What `report --json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Every process image.
    pub processes: Vec<Process>,
    /// All together.
    pub totals: Numbers,
    /// The command line that was recorded.
    pub command: Vec<String>,
    /// Processes of the tree that could not be recorded.
    pub not_traced: Vec<NotTraced>,
    /// What is missing of the recordings as a whole.
    pub missing: Vec<String>,
    /// Files that were needed for names and are not there, or not what they were.
    pub notes: Vec<String>,
    /// The rankings.
    pub top: Tops,
}

impl Summary {
    fn outcome(&self) -> Outcome {
        if self.processes.is_empty() {
            return Outcome::NoAnswer;
        }
        Outcome::of(self.missing.len())
            .and(Outcome::of(self.processes.iter().filter(|process| !process.complete).count()))
    }
}

pub(crate) fn process(image: &Image, sums: &Sums) -> Process {
    let Accounting { emitted, recorded, lost, sampled_out } = sums.accounting.all();
    let totals = &sums.totals;
    let about = &image.about;
    Process {
        pid: about.pid,
        ppid: about.ppid,
        exe: about.exe.clone(),
        folder: about.folder.clone(),
        origin: about.origin.clone(),
        parent: about.parent.clone(),
        complete: sums.missing.is_empty(),
        exit: about.exit,
        own_malloc: about.own_malloc,
        duration_ns: image.clock.nanos(image.tape.last_tick),
        earlier_ns: if about.began_unix_ns == 0 {
            0
        } else {
            image.clock.start_unix_ns.saturating_sub(about.began_unix_ns)
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
        missing: missing::lines(&sums.missing),
        lost_is_exact: sums.accounting.is_exact,
    }
}

/// What a site counts for in a ranking: blocks, bytes, and what it is ranked by.
type Weigh = fn(&SiteSums) -> (u64, u64, u64);

fn live(row: &SiteSums) -> (u64, u64, u64) {
    let bytes = row.bytes.saturating_sub(row.freed_bytes);
    (row.allocs.saturating_sub(row.frees), bytes, bytes)
}

fn at_peak(row: &SiteSums) -> (u64, u64, u64) {
    (row.peak_blocks, row.peak_bytes, row.peak_bytes)
}

fn allocated(row: &SiteSums) -> (u64, u64, u64) {
    (row.allocs, row.bytes, row.allocs)
}

fn ranking(images: &[(&Image, &Sums)], symbols: &mut Symbolizer, weigh: Weigh) -> Vec<Top> {
    struct Group {
        place: Place,
        lines: Lines,
        blocks: u64,
        bytes: u64,
        rank: u64,
    }
    let mut rows: Vec<(u64, usize, &SiteSums)> = Vec::new();
    for (number, (_, sums)) in images.iter().enumerate() {
        rows.extend(sums.sites.iter().map(|row| (weigh(row).2, number, row)).filter(|row| row.0 > 0));
    }
    if symbols.detail() == Detail::Quick && rows.len() > QUICK {
        rows.select_nth_unstable_by_key(QUICK, |row| std::cmp::Reverse(row.0));
        rows.truncate(QUICK);
    }
    rows.sort_by_key(|&(rank, number, row)| (std::cmp::Reverse(rank), number, row.site));
    let mut groups: Vec<Group> = Vec::new();
    let mut known: FxHashMap<Vec<String>, usize> = FxHashMap::default();
    for (rank, number, row) in rows {
        let image = images[number].0;
        let place = place(symbols, image.stacks(), row.site, FRAMES);
        let (blocks, bytes, _) = weigh(row);
        let at = *known.entry(place.names.clone()).or_insert_with(|| {
            groups.push(Group { place: place.clone(), lines: Lines::default(), blocks: 0, bytes: 0, rank: 0 });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.lines.add(&place.frame);
        group.blocks += blocks;
        group.bytes = group.bytes.saturating_add(bytes);
        group.rank = group.rank.saturating_add(rank);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.rank));
    groups
        .into_iter()
        .take(ROWS)
        .map(|group| Top {
            place: place_line(&group.place, &group.lines),
            functions: group.place.names,
            blocks: group.blocks,
            bytes: group.bytes,
        })
        .collect()
}

/// Makes the summary of recordings, with what names their frames.
pub fn summarize(recordings: &[Recording], mut symbols: Symbolizer, progress: &Progress) -> Summary {
    let mut summary = Summary::default();
    let mut all: Vec<(&Image, Sums)> = Vec::new();
    for recording in recordings {
        if let Some(about) = &recording.about {
            summary.command.clone_from(&about.command);
            summary.not_traced.extend(about.not_traced.iter().cloned());
        }
        summary.missing.extend(recording.missing.iter().map(ToString::to_string));
        let sums = if symbols.detail() == Detail::Quick { sums_of_new } else { sums };
        all.extend(recording.images.iter().map(|image| (image, sums(image, progress))));
    }
    for (image, sums) in &all {
        let process = process(image, sums);
        summary.totals.add(&process.numbers);
        summary.processes.push(process);
    }
    let images: Vec<(&Image, &Sums)> = all.iter().map(|(image, sums)| (*image, sums)).collect();
    summary.top = Tops {
        live: ranking(&images, &mut symbols, live),
        peak: ranking(&images, &mut symbols, at_peak),
        allocs: ranking(&images, &mut symbols, allocated),
    };
    summary.notes = recordings.iter().filter_map(Recording::crash_note).collect();
    summary.notes.extend(all.iter().find_map(|(image, sums)| hints::of(image, &sums.sites, &mut symbols)));
    summary.notes.extend(symbols.take_notes());
    summary
}

/// `heaptape report`.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn report(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let mut recordings = query.open()?;
    let processes = &query.processes;
    let mut note = None;
    // A recording without any process says why, on the same screen.
    if !processes.is_all() {
        note = processes.note(&processes.select(&recordings).map_err(Error::Unanswerable)?);
        recordings.iter_mut().for_each(|recording| recording.images.retain(|image| processes.matches(image)));
    }
    let progress = Progress::new("reading events");
    let summary = summarize(&recordings, query.symbolizer(), &progress);
    drop(progress);
    if query.json {
        json::print(out, &summary)?;
    } else {
        let mut screen = Screen::new(out, style);
        print(&summary, &recordings, processes, &mut screen)?;
        note.iter().try_for_each(|note| screen.line(note))?;
    }
    Ok(summary.outcome())
}

/// What `heaptape record` prints at the end: the same, without anything that takes long.
///
/// # Errors
/// When `out` fails.
pub fn after_record(recording: &[Recording; 1], out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let summary = summarize(recording, Symbolizer::new(Detail::Quick), &Progress::new("reading events"));
    print(&summary, recording, &ProcessFilter::default(), &mut Screen::new(out, style))?;
    Ok(summary.outcome())
}

pub(crate) fn ending(process: &Process) -> String {
    match process.exit {
        Some(Exit::Code(code)) => format!("exit {code}"),
        Some(Exit::Signal(signal)) => format!("ended by signal {signal}"),
        Some(Exit::Exec) => "went on with another program".into(),
        Some(Exit::Running) => "still running when the recording ended".into(),
        Some(Exit::Unknown) => "ended, how is not known".into(),
        // A trace or a profile that was sent says nothing about the end of its program.
        None if process.origin == STREAM && process.complete => "sent whole".into(),
        None if process.origin == STREAM => "sent in part".into(),
        None => "end not recorded".into(),
    }
}

fn name(process: &Process) -> &str {
    let exe = process.exe.rsplit('/').next().unwrap_or_default();
    if exe.is_empty() { &process.folder } else { exe }
}

/// What was recorded: the command line, or an epoch's folder, since a daemon runs no command.
fn subject(summary: &Summary, recordings: &[Recording]) -> String {
    const MOST: usize = 3;
    if !summary.command.is_empty() {
        return summary.command.join(" ");
    }
    let name = |recording: &Recording| {
        let name = recording.path.file_name().unwrap_or(recording.path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = recordings.iter().take(MOST).map(name).collect();
    if recordings.len() > MOST {
        names.push(format!("{} more", recordings.len() - MOST));
    }
    names.join(", ")
}

fn print(summary: &Summary, recordings: &[Recording], query: &ProcessFilter, screen: &mut Screen) -> io::Result<()> {
    match &summary.processes[..] {
        [] => screen.heading("no process was recorded")?,
        [process] => {
            let mut head = name(process).to_string();
            if process.pid != 0 {
                head += &format!(" (pid {}), {} after {}", process.pid, ending(process), lifetime(process));
            }
            screen.heading(&head)?;
        }
        processes => {
            let number = counted(processes.len() as u64, "process image");
            screen.heading(&format!("{number} of {}", subject(summary, recordings)))?;
            processes_table(processes, recordings, query, screen)?;
        }
    }
    if !summary.processes.is_empty() {
        numbers(summary, screen)?;
    }
    rankings(&summary.top, screen)?;
    for process in &summary.not_traced {
        let name = process.exe.rsplit('/').next().unwrap_or_default();
        screen.warning(&format!("! {name} (pid {}) was not recorded: {}", process.pid, process.why))?;
    }
    let own_malloc = summary.processes.iter().filter(|process| process.own_malloc);
    say_own_malloc(screen, own_malloc.map(|process| (name(process), process.pid)))?;
    for recording in recordings {
        let several = if recordings.len() > 1 { format!("{}: ", recording.path.display()) } else { String::new() };
        let known = |one: &&Missing| **one != Missing::NoProcess || recordings.len() > 1;
        say_missing(screen, &several, &recording.missing.iter().filter(known).cloned().collect::<Vec<_>>())?;
    }
    for process in &summary.processes {
        let of = if summary.processes.len() > 1 { format!("{}: ", process.folder) } else { String::new() };
        say_lines(screen, &of, &process.missing)?;
    }
    for note in summary.notes.iter().take(NOTES) {
        screen.line(&format!("note: {note}"))?;
    }
    if let [recording] = recordings
        && recording.about.is_some()
        && !summary.processes.is_empty()
    {
        let path = recording.path.display();
        screen.line(&format!("recorded in {path}   next: heaptape leaks {path}"))?;
    }
    Ok(())
}

/// How long a process ran, and how much of that is recorded.
fn lifetime(process: &Process) -> String {
    match process.earlier_ns {
        0 => duration(process.duration_ns),
        earlier => format!(
            "{}, of which the last {} are recorded here",
            duration(earlier.saturating_add(process.duration_ns)),
            duration(process.duration_ns)
        ),
    }
}

fn numbers(summary: &Summary, screen: &mut Screen) -> io::Result<()> {
    let n = &summary.totals;
    let is_exact = summary.missing.is_empty() && summary.processes.iter().all(|process| process.lost_is_exact);
    let lost = match (n.lost_events, is_exact) {
        (0, true) => "none lost".to_string(),
        (0, false) => "how many are lost is not known".to_string(),
        (lost, true) => format!("{} LOST", count(lost)),
        (lost, false) => format!("at least {} LOST", count(lost)),
    };
    let events = format!("events     {} recorded, {lost}: ", count(n.recorded_events));
    let kinds =
        format!("{}, {}, {}", counted(n.allocs, "allocation"), counted(n.resizes, "resize"), counted(n.frees, "free"));
    screen.line(&(events + &kinds))?;
    let has_peak = n.peak_bytes > 0 || n.bytes_allocated == 0;
    let of_one = if summary.processes.len() > 1 { " (largest process)" } else { "" };
    let peak = if has_peak { format!(", peak {}{of_one}", bytes(n.peak_bytes)) } else { String::new() };
    screen.line(&format!("bytes      {} allocated{peak}", bytes(n.bytes_allocated)))?;
    let mut left = format!("at the end {} in {} still live", bytes(n.live_bytes), counted(n.live_blocks, "block"));
    if n.inherited_blocks > 0 {
        left += &format!(
            "; {} in {} inherited from parents",
            bytes(n.inherited_bytes),
            counted(n.inherited_blocks, "block")
        );
    }
    if n.unknown_frees > 0 {
        left += &format!("; {} of unknown addresses", counted(n.unknown_frees, "free"));
    }
    screen.line(&left)?;
    if n.sampled_out_events > 0 {
        screen.line(&format!(
            "sampled    {} events were passed over: bytes are estimates",
            count(n.sampled_out_events)
        ))?;
    }
    Ok(())
}

/// A number of lost events, which may be too small.
fn lost(events: u64, is_exact: bool) -> String {
    match (events, is_exact) {
        (0, false) => "?".to_string(),
        (_, false) => format!(">= {}", count(events)),
        (_, true) => count(events),
    }
}

fn processes_table(
    processes: &[Process],
    recordings: &[Recording],
    query: &ProcessFilter,
    screen: &mut Screen,
) -> io::Result<()> {
    let images: Vec<&Image> = recordings.iter().flat_map(|recording| &recording.images).collect();
    let (listed, folded) = query.fold(images.clone());
    let is_listed = |image: &Image| listed.iter().any(|listed| std::ptr::eq(*listed, image));
    let pairs = processes.iter().zip(images).filter(|(_, image)| is_listed(image));
    let mut order: Vec<&Process> = pairs.map(|(process, _)| process).collect();
    order.sort_by_key(|process| std::cmp::Reverse(process.numbers.recorded_events));
    let rows_shown = if query.all { usize::MAX } else { PROCESSES };
    let rows: Vec<Vec<String>> = order
        .iter()
        .take(rows_shown)
        .map(|process| {
            let n = &process.numbers;
            vec![
                process.pid.to_string(),
                count(n.recorded_events),
                lost(n.lost_events, process.lost_is_exact),
                bytes(n.bytes_allocated),
                bytes(n.peak_bytes),
                bytes(n.live_bytes),
                format!("{}, {}", name(process), ending(process)),
            ]
        })
        .collect();
    screen.table(&["pid", "events", "lost", "allocated", "peak", "live at end", "program"], &rows)?;
    if order.len() > rows_shown {
        screen.line(&format!("  and {} more (--all-processes)", order.len() - rows_shown))?;
    }
    if !folded.is_empty() {
        screen.line(&format!("  {}", folded_line(&folded)))?;
    }
    Ok(())
}

fn rankings(top: &Tops, screen: &mut Screen) -> io::Result<()> {
    let lists = [
        ("live at the end", "blocks", &top.live),
        ("live at the peak", "blocks", &top.peak),
        ("most allocations", "allocations", &top.allocs),
    ];
    for (heading, blocks, rows) in lists {
        if rows.is_empty() {
            continue;
        }
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| vec![bytes(row.bytes), count(row.blocks), row.place.clone()]).collect();
        screen.table(&["bytes", blocks, heading], &rows)?;
    }
    Ok(())
}
