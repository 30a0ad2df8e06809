//! Gathers what a page shows of each process in one pass over its events. The memory is that of the
//! models of one process, and of the rows and cells that a page can hold.

use super::data::{self, Leak};
use super::held::held;
use super::rows::{CELLS, Part, Row, STACKS, bound};
use crate::event::{Range, Span};
use crate::load::{Accounting, Process, Recording};
use crate::missing::Missing;
use crate::model::by_thread::{self, ByThread, Group, Numbers};
use crate::model::leaks::Leaks;
use crate::model::lifetimes::Lifetimes;
use crate::model::peak::Peak;
use crate::model::sizes::{self, Sizes};
use crate::model::slices::{Axis, Cell, Point, Slices, Sums as CellSums};
use crate::model::threads::Threads;
use crate::model::totals::Totals;
use crate::model::verdict::Verdict;
use crate::progress::Progress;
use crate::replay::replay;
use crate::report::bills::{self, OverTime};
use crate::report::grouping::GroupBy;
use crate::report::leaks::{self, Candidates, Evidence, Headline, JudgedLeak, Rules, judge_leaks};
use crate::report::{mapped, needs_frees, summary};
use crate::sums::{self, Sums};
use crate::symbols::Symbolizer;
use heaptape_formats::tape::Mark;

/// Maximum number of leaks that a page lists.
const LEAKS: usize = 200;
/// Maximum number of threads that a page lists of each process.
const THREADS: usize = 200;
/// Maximum number of gaps that a page lists of each process.
const GAPS: usize = 200;
/// Maximum number of snapshots of the pages that a page shows of each process.
const RESIDENTS: usize = 48;
/// Number of points of the line of the memory that a program maps itself.
const MAPPED: usize = 256;
/// Maximum number of marks of a process on the page.
const MARKS: usize = 200;
/// Maximum number of missing things that a page lists of each process.
const MISSING: usize = 20;
/// Number of points of a time line.
const SLICES: usize = 1024;
/// Number of points of a time line if there are many processes.
const FEW_SLICES: usize = 128;
/// Number of processes from which on time lines have fewer points.
const MANY_PROCESSES: usize = 256;
/// Initial number of slices of a slot, as a power of two.
const SHIFT: u32 = 2;
/// Maximum number of characters of a command line.
const COMMAND: usize = 2000;

/// What a page shows of all processes.
#[derive(Default)]
pub(super) struct Gathered<'a> {
    /// The axis that the processes share.
    pub axis: data::Axis,
    pub processes: Vec<data::PageProcess>,
    /// The rows of each group of threads of each process.
    pub parts: Vec<Part>,
    /// The time line of each process; empty for a profile.
    pub lines: Vec<Vec<Point>>,
    /// The most important leaks, and what was freed only at exit.
    pub leaks: Vec<Leak>,
    pub verdicts: Vec<(Verdict, data::VerdictSum)>,
    /// Bytes to which all grew together that was freed only at exit, of each process.
    pub grown_bytes: u64,
    /// Sums of the other leaks.
    pub more_leaks: data::MoreLeaks,
    /// Bytes and blocks that the runtime keeps on purpose. As in `heaptape leaks`, these are not
    /// leaks.
    pub kept: (u64, u64),
    /// What was found missing during the passes.
    pub missing: Vec<Missing>,
    /// What `heaptape leaks` says first, unless a profile does not count frees.
    pub headline: Option<Headline<'a>>,
}

/// Returns the command line, truncated if it is long.
pub(super) fn command(arguments: &[String]) -> String {
    let mut line: String = arguments.join(" ").chars().take(COMMAND + 1).collect();
    if line.chars().count() > COMMAND {
        line.pop();
        line.push('…');
    }
    line
}

/// Positions of a process on the axis.
#[derive(Clone, Copy)]
struct Scale {
    by_tick: bool,
    /// Start of the process, in units of the axis.
    offset: f64,
    /// Number of units in a slice.
    width: f64,
    slices: usize,
}

impl Scale {
    fn at(&self, process: &Process, tick: u64, number: u64) -> f64 {
        if self.by_tick { self.offset + process.clock.nanos(tick) as f64 } else { number as f64 }
    }

    fn axis(&self, process: &Process) -> Axis {
        let (start, unit) = match self.by_tick {
            true => (process.clock.start_tick, 1e9 / process.clock.ticks_per_second.max(1) as f64),
            false => (0, 1.0),
        };
        let Scale { by_tick, offset, width, slices } = *self;
        Axis { by_tick, start, offset: offset / width, scale: unit / width, slices }
    }
}

fn scales(processes: &[(usize, &Process)]) -> (data::Axis, Vec<Scale>) {
    let with_events = || processes.iter().filter(|(_, process)| process.has_events());
    let by_tick = with_events().all(|(_, process)| process.has_times());
    let begins = |recording: usize| {
        let own = processes.iter().filter(|(of, process)| *of == recording && process.clock.start_unix_ns > 0);
        own.map(|(_, process)| process.clock.start_unix_ns).min().unwrap_or(0)
    };
    let starts = [begins(0), begins(1)];
    let offset = |of: usize, process: &Process| match by_tick {
        true => process.clock.start_unix_ns.saturating_sub(starts[of.min(1)]) as f64,
        false => 0.0,
    };
    let end = |of: usize, process: &Process| match by_tick {
        true => offset(of, process) + process.clock.nanos(process.tape.last_tick) as f64,
        false => process.tape.events as f64,
    };
    let length = with_events().map(|(of, process)| end(*of, process)).fold(1.0, f64::max);
    let slices = if processes.len() > MANY_PROCESSES { FEW_SLICES } else { SLICES };
    // A little longer, so that the last event is in the last slice.
    let width = length * (1.0 + 1e-9) / slices as f64;
    let scales =
        processes.iter().map(|(of, process)| Scale { by_tick, offset: offset(*of, process), width, slices }).collect();
    let unit = if by_tick { "ns" } else { "events" };
    (data::Axis { unit, length, slices, slots: 0, partial: false }, scales)
}

/// Reads all processes, each in one pass.
pub(super) fn gather<'a>(
    recordings: &[Recording],
    processes: &[&'a Process],
    range: &Range,
    symbols: &mut Symbolizer,
    progress: &Progress,
) -> Gathered<'a> {
    let of = |process: &Process| {
        let mine = |recording: &Recording| recording.processes.iter().any(|own| std::ptr::eq(own, process));
        recordings.iter().position(mine).unwrap_or(0)
    };
    let processes: Vec<(usize, &'a Process)> = processes.iter().map(|process| (of(process), *process)).collect();
    let parent = |process: usize, site: u32| processes[process].1.stacks().site(site).parent;
    let bound = |parts: &mut Vec<Part>, stacks: usize, cells: usize| {
        let of: Vec<usize> = parts.iter().map(|part| part.process).collect();
        bound(parts, stacks, cells, |part, site| parent(of[part], site));
    };
    let (axis, scales) = scales(&processes);
    let headline = (recordings.len() == 1).then(Headline::default);
    let mut gathered = Gathered { axis, headline, ..Gathered::default() };
    gathered.axis.partial = !range.is_all();
    for (&(recording, process), scale) in processes.iter().zip(scales) {
        let shift = gathered.parts.last().map_or(SHIFT, |part| part.shift);
        if process.has_events() {
            gathered.events(recording, process, scale, range, shift, (&mut *symbols, progress));
        } else {
            gathered.profile(recording, process, (&mut *symbols, progress));
        }
        // Between processes, more is kept than at the end, because the smallest rows are known only
        // then.
        let rows: usize = gathered.parts.iter().map(|part| part.rows.len()).sum();
        let cells: usize = gathered.parts.iter().map(|part| part.cells.len()).sum();
        if rows > 3 * STACKS || cells > 3 * CELLS {
            bound(&mut gathered.parts, 2 * STACKS, 2 * CELLS);
        }
    }
    // Each side of a comparison has the limits of a page of one recording.
    let sides = recordings.len().max(1);
    bound(&mut gathered.parts, STACKS * sides, CELLS * sides);
    let shift = gathered.parts.first().map_or(0, |part| part.shift);
    gathered.axis.slots = (gathered.axis.slices >> shift).max(1);
    gathered
}

impl<'a> Gathered<'a> {
    fn events(
        &mut self,
        recording: usize,
        process: &'a Process,
        scale: Scale,
        range: &Range,
        shift: u32,
        (symbols, progress): (&mut Symbolizer, &Progress),
    ) {
        let span = process.span(range);
        let axis = leaks::axis(process, span);
        let (mut totals, mut peak) = (Totals::default(), Peak::within(Span::ALL));
        let (mut threads, mut sizes) = (Threads::default(), Sizes::default());
        let mut lifetimes = Lifetimes::new(process.clock.ticks_per_second);
        let mut survivors = Leaks::new(axis, process.tape.process.free_sites);
        let mut slices = Slices::new(scale.axis(process), shift, CELLS);
        let known = process.tape.threads.iter();
        let names: Vec<_> = known.map(|(&number, thread)| (number, thread.name.lossy())).collect();
        let groups = by_thread::groups(names.iter().map(|(number, name)| (*number, &**name)));
        let mut over_time = OverTime::new(process, if scale.by_tick { RESIDENTS } else { 0 }, progress);
        let mut by_group = ByThread::new(&groups, (&mut peak, &mut lifetimes, &mut slices));
        let mut models = (&mut totals, &mut threads, &mut sizes, &mut survivors);
        let outcome = replay(process, span, progress, &mut (&mut models, &mut by_group, &mut over_time));
        let mut numbers = by_group.numbers;
        slices.finish(outcome.live.iter().map(|(_, block)| numbers.block(&block)));
        self.missing.extend(outcome.missing.iter().cloned());
        let mut missing = process.missing.clone();
        missing.extend(outcome.missing.iter().cloned());

        let candidates = Candidates::from_events(process, span, Span::ALL, survivors, &outcome.live, &missing);
        let held = self.leaks(&candidates, &missing, symbols);

        self.parts.extend(parts(
            self.processes.len(),
            groups.len(),
            &numbers,
            &slices,
            rows(&slices, &peak, &lifetimes),
        ));
        let has_peak = peak.peak().0.bytes > 0;
        let at = peak.peak().1;
        let inherited = if range.is_all() { process.tape.inherited.as_ref() } else { None };
        let totals = totals.finish(inherited);
        let recorded = range.is_all().then_some(&outcome.recorded);
        let accounting = Accounting::of(process, &totals, &missing, recorded);
        let sums = Sums { totals, sites: Vec::new(), has_peak, missing, accounting };
        let last = scale.at(process, process.tape.last_tick, process.tape.events);
        let mut shown = about(recording, process, &sums);
        shown.span = (scale.at(process, process.clock.start_tick, 0), last);
        shown.peak_at = has_peak.then(|| scale.at(process, at.tick, at.number));
        shown.held = held;
        shown.has_events = true;
        shown.has_peak = true;
        shown.sizes = size_rows(&sizes);
        shown.lifetimes = lives(&lifetimes);
        let position = |tick: u64| if scale.by_tick { scale.at(process, tick, 0) } else { 0.0 };
        (shown.threads, shown.more_threads) = thread_rows(process, &threads, &sums.accounting, position);
        let mut losses: Vec<data::Loss> = process
            .tape
            .losses
            .iter()
            .map(|loss| data::Loss {
                thread: loss.thread,
                events: loss.events,
                span: (position(loss.from_tick), position(loss.to_tick)),
            })
            .collect();
        losses.sort_by_key(|loss| std::cmp::Reverse(loss.events));
        losses.truncate(GAPS);
        shown.losses = losses;
        shown.residents = residents(&over_time.points, position);
        if scale.by_tick {
            shown.mapped = mapped_line(process, &scale);
            (shown.marks, shown.more_marks) = marks(process, position);
        }
        shown.groups = groups.into_iter().map(|Group { name, threads }| data::ThreadGroup { name, threads }).collect();
        self.processes.push(shown);
        self.lines.push(slices.line);
    }

    /// Adds a process of which only sums are known.
    fn profile(&mut self, recording: usize, process: &'a Process, (symbols, progress): (&mut Symbolizer, &Progress)) {
        let sums = sums::sums(process, progress);
        let rows = sums.sites.iter().map(|row| Row {
            site: row.site,
            sums: CellSums {
                allocs: row.allocs,
                bytes: row.bytes,
                frees: row.frees,
                freed_bytes: row.freed_bytes,
                left: row.allocs.saturating_sub(row.frees),
                left_bytes: row.bytes.saturating_sub(row.freed_bytes),
                ..CellSums::default()
            },
            peak_blocks: row.peak_blocks,
            peak_bytes: row.peak_bytes,
            ..Row::default()
        });
        let mut rows: Vec<Row> = rows.collect();
        rows.sort_by_key(|row| row.site);
        if needs_frees(&sums, process).is_err() {
            self.headline = None;
        }
        let held = self.leaks(&Candidates::from_sums(process, &sums), &sums.missing, symbols);
        self.missing.extend(sums.missing.iter().filter(|one| !process.missing.contains(one)).cloned());
        let mut shown = about(recording, process, &sums);
        shown.held = held;
        shown.has_peak = sums.has_peak;
        // The last snapshot that the recorder divided: there is no time line.
        shown.residents = residents(&OverTime::new(process, 1, progress).points, |_| 0.0);
        self.processes.push(shown);
        self.lines.push(Vec::new());
        let number = self.processes.len() - 1;
        let shift = self.parts.last().map_or(SHIFT, |part| part.shift);
        self.parts.push(Part { process: number, rows, shift, ..Part::default() });
    }

    /// Adds the leaks of a process, judged as `heaptape leaks` judges them. Returns what holds its
    /// blocks.
    fn leaks(
        &mut self,
        candidates: &Candidates<'a>,
        missing: &[Missing],
        symbols: &mut Symbolizer,
    ) -> Vec<data::HeldBy> {
        if let Some(headline) = &mut self.headline {
            headline.add(candidates, missing, symbols);
        }
        let mut rules = own_rules(candidates.process, symbols);
        let judged = judge_leaks(candidates, Some(GroupBy::Stack), &mut rules, symbols);
        if let Some((bytes, blocks)) = rules.kept {
            self.kept = (self.kept.0.saturating_add(bytes), self.kept.1 + blocks);
        }
        let number = self.processes.len();
        let own = judged.into_iter().filter(|leak| leak.kept.is_none());
        let mut found: Vec<(Leak, JudgedLeak)> = own.map(|judged| (leak(number, &judged), judged)).collect();
        for (_, judged) in &found {
            self.add(judged.verdict, judged.bytes, judged.blocks, judged.sites.len() as u64);
        }
        let at_exit = leaks::freed_at_exit(candidates, GroupBy::Function, symbols);
        self.grown_bytes = self.grown_bytes.saturating_add(at_exit.grown);
        let mut sites: Vec<Vec<u32>> = Vec::new();
        let of_process = self.leaks.len();
        for leak in at_exit.leaks {
            self.add(leak.verdict, leak.grown, 0, leak.stacks());
            sites.push(leak.sites.clone());
            self.leaks.push(exit_leak(number, leak));
        }
        // Only leaks that the page can hold get evidence.
        found.sort_by_key(|(leak, _)| (std::cmp::Reverse(leak.weight), leak.site));
        for (rank, (mut leak, judged)) in found.into_iter().enumerate() {
            if let Some(basis) = judged.basis.filter(|_| rank < LEAKS) {
                let evidence = candidates.evidence(judged.site, &basis, symbols);
                leak.evidence = evidence.map(|evidence| Evidence { trend: judged.trend, ..evidence });
            }
            sites.push(if rank < LEAKS { judged.sites } else { Vec::new() });
            self.leaks.push(leak);
        }
        let held = held(candidates.process, symbols);
        if let Some(held) = &held {
            let own = self.leaks[of_process..].iter_mut().zip(&sites);
            held.add_to(&mut own.map(|(leak, sites)| (leak, &**sites)).collect::<Vec<_>>());
        }
        self.bound_leaks();
        held.map(|held| held.roots()).unwrap_or_default()
    }

    /// Adds leaks to the sums of their verdict.
    fn add(&mut self, verdict: Verdict, bytes: u64, blocks: u64, stacks: u64) {
        let index = self.verdicts.iter().position(|(known, _)| *known == verdict).unwrap_or_else(|| {
            let name = serde_json::to_value(verdict).unwrap_or_default();
            self.verdicts.push((verdict, data::VerdictSum { verdict: name, bytes: 0, blocks: 0, stacks: 0 }));
            self.verdicts.len() - 1
        });
        let sum = &mut self.verdicts[index].1;
        (sum.bytes, sum.blocks, sum.stacks) =
            (sum.bytes.saturating_add(bytes), sum.blocks + blocks, sum.stacks + stacks);
    }

    fn bound_leaks(&mut self) {
        self.leaks.sort_by_key(|leak| (std::cmp::Reverse(leak.weight), leak.process, leak.site));
        for leak in self.leaks.drain(LEAKS.min(self.leaks.len())..) {
            let more = &mut self.more_leaks;
            more.stacks += 1;
            more.blocks += leak.blocks;
            more.bytes = more.bytes.saturating_add(leak.bytes);
        }
    }
}

/// Returns the rules for what `heaptape leaks` leaves out by itself: what the runtime keeps on
/// purpose, and what the program suppresses.
fn own_rules(process: &Process, symbols: &mut Symbolizer) -> Rules {
    let mut rules = Rules::built_in();
    rules.add_own(process, symbols);
    rules
}

fn leak(process: usize, judged: &JudgedLeak) -> Leak {
    let &JudgedLeak { site, verdict, is_probable, blocks, bytes, .. } = judged;
    Leak {
        process,
        node: 0,
        site,
        weight: bytes.saturating_mul(if is_probable { leaks::PROBABLE_WEIGHT } else { verdict.weight() }),
        verdict: serde_json::to_value(verdict).unwrap_or_default(),
        probably_growing: is_probable,
        title: if is_probable { leaks::PROBABLY_GROWING } else { verdict.name() }.to_string(),
        blocks,
        bytes,
        grown: 0,
        held: None,
        paths: Vec::new(),
        evidence: None,
    }
}

fn exit_leak(process: usize, leak: leaks::Leak) -> Leak {
    let leaks::Leak { verdict, site, grown, evidence, .. } = leak;
    Leak {
        process,
        node: 0,
        site,
        weight: grown.saturating_mul(verdict.weight()),
        verdict: serde_json::to_value(verdict).unwrap_or_default(),
        probably_growing: false,
        title: verdict.name().to_string(),
        blocks: 0,
        bytes: 0,
        grown,
        held: None,
        paths: Vec::new(),
        evidence,
    }
}

/// Returns the rows and cells of each group of threads that has any, and at least one part.
fn parts(process: usize, groups: usize, numbers: &Numbers, slices: &Slices, rows: Vec<Row>) -> Vec<Part> {
    let empty = |group| Part { process, group, shift: slices.shift, ..Part::default() };
    let mut parts: Vec<Part> = (0..groups.max(1) as u32).map(empty).collect();
    for row in rows {
        let (group, site) = numbers.pair(row.site);
        parts[group as usize].rows.push(Row { site, ..row });
    }
    for cell in &slices.cells {
        let (group, site) = numbers.pair(cell.site);
        parts[group as usize].cells.push(Cell { site, ..*cell });
    }
    parts.retain(|part| part.group == 0 || !part.rows.is_empty());
    for part in &mut parts {
        part.rows.sort_by_key(|row| row.site);
        part.cells.sort_by_key(|cell| (cell.site, cell.slot));
    }
    parts
}

/// Returns a row for each site with allocations, with the sums of the models.
fn rows(slices: &Slices, peak: &Peak, lifetimes: &Lifetimes) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for cell in &slices.cells {
        match rows.last_mut() {
            Some(row) if row.site == cell.site => row.sums.add(&cell.sums),
            _ => rows.push(Row { site: cell.site, sums: cell.sums, ..Row::default() }),
        }
    }
    for row in &mut rows {
        let held = peak.at_peak(row.site);
        (row.peak_blocks, row.peak_bytes) = (held.blocks, held.bytes);
        if let Some(lives) = lifetimes.sites.get(row.site as usize) {
            (row.died, row.lived) = (lives.freed, lives.sum);
        }
    }
    rows
}

fn about(recording: usize, process: &Process, sums: &Sums) -> data::PageProcess {
    let mut summary = summary::summarize_process(process, sums);
    let more = summary.missing.len().saturating_sub(MISSING);
    summary.missing.truncate(MISSING);
    if more > 0 {
        summary.missing.push(format!("{more} things more are missing"));
    }
    data::PageProcess {
        recording,
        name: process.name(),
        command: command(&process.about.argv),
        ending: summary::ending(&summary),
        summary,
        ..data::PageProcess::default()
    }
}

fn size_rows(sizes: &Sizes) -> Vec<data::Size> {
    let used = sizes.classes.iter().enumerate().filter(|(_, row)| row.allocs > 0);
    used.map(|(class, row)| {
        let (from, to) = sizes::bounds(class);
        let &sizes::Row { allocs, bytes, live_blocks, live_bytes, .. } = row;
        data::Size { from, to, allocs, bytes, live_blocks, live_bytes }
    })
    .collect()
}

fn lives(lifetimes: &Lifetimes) -> data::Lives {
    let all = &lifetimes.all;
    let used = all.classes.iter().rposition(|&died| died > 0).map_or(0, |last| last + 1);
    let (died, sum, longest) = (all.freed, all.sum, all.longest);
    let (unit, classes) = (lifetimes.unit(), all.classes[..used].to_vec());
    data::Lives { unit, classes, died, sum, longest, interpolated: all.interpolated, mean_error: all.mean_error() }
}

/// Returns the first marks of the program, and the number of the others.
fn marks(process: &Process, position: impl Fn(u64) -> f64) -> (Vec<data::Mark>, usize) {
    let mut all: Vec<&Mark> = process.tape.marks.iter().collect();
    all.sort_by_key(|mark| mark.tick);
    let mark = |mark: &&Mark| data::Mark { at: position(mark.tick), name: mark.text.lossy().into_owned() };
    (all.iter().take(MARKS).map(mark).collect(), all.len().saturating_sub(MARKS))
}

/// Returns what the program had mapped itself at the end of each of equal parts of the axis; empty
/// if it mapped nothing.
fn mapped_line(process: &Process, scale: &Scale) -> Vec<u64> {
    let (start, length) = (process.clock.start_tick, scale.width * scale.slices as f64);
    let ticks = process.clock.ticks_per_second as f64 / 1e9;
    let edge = |part: usize| {
        let nanos = length * part as f64 / MAPPED as f64 - scale.offset;
        start.saturating_add((nanos.max(0.0) * ticks) as u64)
    };
    let edges: Vec<u64> = (0..=MAPPED).map(edge).collect();
    let ends = &edges[1..];
    let mapped = mapped::bytes_before(process, ends).into_iter().zip(&edges).zip(ends);
    // Before its start and after its end, the process has no memory.
    let runs = |from: u64, to: u64| to > start && from <= process.tape.last_tick;
    let line: Vec<u64> = mapped.map(|((bytes, from), to)| if runs(*from, *to) { bytes.used } else { 0 }).collect();
    if line.iter().any(|bytes| *bytes > 0) { line } else { Vec::new() }
}

/// Returns the resident memory by use at each point.
fn residents(points: &[bills::Point], position: impl Fn(u64) -> f64) -> Vec<data::Resident> {
    let of = |point: &bills::Point| {
        let parts = bills::parts(&point.bill, point.allocator).into_iter().filter(|part| part.bytes > 0);
        data::Resident { at: position(point.tick), parts: parts.map(|part| (part.name, part.bytes)).collect() }
    };
    points.iter().map(of).collect()
}

fn thread_rows(
    process: &Process,
    threads: &Threads,
    accounting: &Accounting,
    position: impl Fn(u64) -> f64,
) -> (Vec<data::Thread>, usize) {
    let rows = threads
        .largest_first()
        .into_iter()
        .take(THREADS)
        .map(|(number, row)| {
            let (tid, name) = process.thread(number);
            let account = accounting.thread(number);
            data::Thread {
                number,
                tid,
                name,
                allocs: row.allocs,
                resizes: row.resizes,
                frees: row.frees,
                frees_of_others: row.frees_of_others,
                bytes: row.bytes,
                live_bytes: row.live_bytes,
                emitted_events: account.map(|account| account.emitted),
                lost_events: account.map(|account| account.lost),
                span: (position(row.first_tick), position(row.last_tick)),
            }
        })
        .collect();
    (rows, threads.rows.len().saturating_sub(THREADS))
}
