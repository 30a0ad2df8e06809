//! What became of a program, on one screen: whether it is alive, how it ended, what grew, by how
//! much and since when, and which flight recordings of it were kept.

use heaptape_analyzer::Missing;
use heaptape_analyzer::Progress;
use heaptape_analyzer::epochs::{self, EpochQuery};
use heaptape_analyzer::model::verdict::Verdict;
use heaptape_analyzer::report::bills::Part;
use heaptape_analyzer::report::frames::{SourceLines, call_site, call_site_line};
use heaptape_analyzer::report::leaks::{self, Evidence};
use heaptape_analyzer::report::segments::{known_since, lower_bound};
use heaptape_analyzer::report::summary::{ending, summarize_process};
use heaptape_analyzer::report::{Error, Grouping, Outcome, Scope, Unanswerable, View, json, print_missing, resident};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, duration};
use heaptape_analyzer::{Process, Recording};
use heaptape_analyzer::{Sums, sums};
use heaptape_formats::date::Date;
use heaptape_formats::recording::{Exit, Kept};
use serde::Serialize;
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;

/// Maximum number of call sites of a process.
const MAX_SITES: usize = 5;
/// Maximum number of parts of the resident memory.
const MAX_PARTS: usize = 5;
/// Maximum number of running processes that are compared by their growth: those that hold most.
const MAX_COMPARED: usize = 8;
/// Maximum number of further processes in the text.
const MAX_OTHERS: usize = 8;
/// How often the recordings are read again when processes among them were merged meanwhile.
const MAX_TRIES: usize = 20;
/// Number of innermost program frames of a call site.
const FRAMES: usize = 3;

/// The question: which program, and where its recordings are.
pub struct WhyQuery<'a> {
    /// The recording, if the question is about one and not about what a daemon keeps.
    pub recording: Option<PathBuf>,
    /// State folder of the daemon.
    pub state: PathBuf,
    /// Id of the user whose processes are searched; `None` for all.
    pub user: Option<u32>,
    /// A pid, a pattern of program names, or a label.
    pub which: String,
    /// Whether to print JSON instead of text.
    pub json: bool,
    /// Returns the resident bytes of a process that runs on this machine: of this pid, started at
    /// this clock tick of the boot with this ID.
    pub resident: &'a dyn Fn(u32, u64, &str) -> Option<u64>,
}

impl<'a> WhyQuery<'a> {
    /// Creates an empty question.
    pub fn new(resident: &'a dyn Fn(u32, u64, &str) -> Option<u64>) -> WhyQuery<'a> {
        WhyQuery { recording: None, state: PathBuf::new(), user: None, which: String::new(), json: false, resident }
    }
}

/// A call site that grew.
#[derive(Debug, Serialize)]
struct Growth {
    verdict: Verdict,
    bytes: u64,
    blocks: u64,
    bytes_per_second: Option<f64>,
    since_unix_ns: Option<u64>,
    /// Time from which on it is judged, where events were lost before.
    #[serde(skip_serializing_if = "Option::is_none")]
    judged_since_unix_ns: Option<u64>,
    /// Names of the innermost program frames.
    functions: Vec<String>,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize)]
struct ProcessAnswer {
    pid: u32,
    program: String,
    label: String,
    alive: bool,
    exit: Option<Exit>,
    started_unix_ns: u64,
    /// End of the process, or of what is recorded of it.
    ended_unix_ns: u64,
    live_bytes: u64,
    live_blocks: u64,
    /// Time from which the live blocks are known, if that is not the start of the process.
    live_since_unix_ns: Option<u64>,
    peak_bytes: u64,
    /// Resident bytes of the process: now if it runs, else as the daemon last saw it, or at its
    /// last snapshot.
    resident_bytes: Option<u64>,
    /// The resident memory by use at the last snapshot of the pages.
    resident_parts: Vec<Part>,
    /// Memory limit of its control groups, if it has ended and had one.
    memory_limit_bytes: Option<u64>,
    /// Whether the kernel killed it because memory ran out.
    out_of_memory: bool,
    /// What grew, worst first; if nothing did, what holds most.
    grew: Vec<Growth>,
    /// When and why flight recordings were kept.
    flights: Vec<Kept>,
    /// Folder of the last segment.
    folder: PathBuf,
    #[serde(skip)]
    end: String,
    #[serde(skip)]
    missing: Vec<Missing>,
}

#[derive(Serialize)]
struct Answer {
    processes: Vec<ProcessAnswer>,
    /// Pids of further processes of the program that run.
    others: Vec<u32>,
    /// The same, with what the text says of them.
    #[serde(skip)]
    running: Vec<Other>,
}

/// A further process that runs.
#[derive(Debug)]
struct Other {
    pid: u32,
    program: String,
    live_bytes: u64,
}

impl ProcessAnswer {
    /// Returns the growth of the call sites that grow, in bytes per second.
    fn growth_rate(&self) -> u64 {
        let rates = self.grew.iter().filter(|growth| growth.since_unix_ns.is_some());
        rates.filter_map(|growth| growth.bytes_per_second).fold(0.0, |sum: f64, rate| sum + rate.max(0.0)) as u64
    }
}

/// Returns when a process began, and when it or its recording ended, in nanoseconds since 1970.
fn times(process: &Process) -> (u64, u64) {
    let about = &process.about;
    let start = if about.began_unix_ns == 0 { process.clock.start_unix_ns } else { about.began_unix_ns };
    let last = process.clock.start_unix_ns.saturating_add(process.clock.nanos(process.tape.last_tick));
    (start, last)
}

/// Answers what became of a process, a program or a label.
///
/// # Errors
/// Returns an error when the state folder or a recording cannot be read, when no process matches,
/// or when `out` fails.
pub fn run(query: &WhyQuery<'_>, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let mut tries = 0;
    let answer = loop {
        let paths = find(query)?;
        match answer(query, &paths) {
            // A short process has become part of the sums of its program meanwhile.
            Err(_) if tries < MAX_TRIES && paths.iter().any(|path| !path.exists()) => tries += 1,
            answered => break answered?,
        }
    };
    let missing = answer.processes.iter().map(|process| process.missing.len()).sum();
    if query.json {
        json::print(out, &answer)?;
    } else {
        print(&answer, &mut Screen::new(out, style))?;
    }
    Ok(Outcome::of(missing))
}

/// Answers from the recordings of the processes that match.
fn answer(query: &WhyQuery<'_>, paths: &[PathBuf]) -> Result<Answer, Error> {
    let recordings = heaptape_analyzer::open_all(paths)?;
    let mut all: Vec<&Process> = recordings.iter().flat_map(|recording| &recording.processes).collect();
    all.sort_by_key(|process| std::cmp::Reverse(times(process).1));
    let boot = |process: &Process| process.tape.segment.as_ref().map(|segment| segment.boot.lossy().into_owned());
    let ticks = |process: &Process| process.tape.segment.as_ref().map_or(0, |segment| segment.start_ticks);
    let resident = |process: &Process| match process.about.exit {
        Some(Exit::Running) | None => (query.resident)(process.about.pid, ticks(process), &boot(process)?),
        _ => None,
    };
    let is_bad = |process: &&&Process| matches!(process.about.exit, Some(Exit::Signal(_) | Exit::Code(1..)));
    let mut alive: Vec<&Process> = all.iter().copied().filter(|process| resident(process).is_some()).collect();
    // After a daemon was killed, the two recordings of a process are not joined.
    let mut known = HashSet::new();
    alive.retain(|process| known.insert(process.about.pid));
    let dead = all.iter().find(is_bad).copied();
    let mut symbols = View::default().symbolizer();
    // Of those that run, the one that grows most, else the one that holds most: a service may have
    // a wrapper, or workers, that are of no interest.
    alive.sort_by_key(|process| std::cmp::Reverse(live_bytes(process)));
    let mut first: Option<ProcessAnswer> = None;
    for process in alive.iter().take(MAX_COMPARED) {
        let described = describe(process, &recordings, resident(process), &mut symbols)?;
        if first.as_ref().is_none_or(|first| described.growth_rate() > first.growth_rate()) {
            first = Some(described);
        }
    }
    // That one and the last one that ended badly; else the last one that ended.
    let ended = dead.or(all.first().copied().filter(|_| first.is_none()));
    let chosen = first.as_ref().map(|first| first.pid);
    let others = alive.iter().filter(|process| Some(process.about.pid) != chosen);
    let others: Vec<Other> = others
        .map(|process| Other { pid: process.about.pid, program: process.name(), live_bytes: live_bytes(process) })
        .collect();
    let mut answer =
        Answer { processes: Vec::new(), others: others.iter().map(|other| other.pid).collect(), running: others };
    answer.processes.extend(first);
    if let Some(process) = ended {
        answer.processes.push(describe(process, &recordings, resident(process), &mut symbols)?);
    }
    Ok(answer)
}

/// Returns the live bytes of a process, as far as they are known without reading its events.
fn live_bytes(process: &Process) -> u64 {
    process.tape.summary.as_ref().map_or(0, |summary| summary.totals.live_bytes)
}

/// Returns the folders of the processes that the question is about.
fn find(query: &WhyQuery<'_>) -> Result<Vec<PathBuf>, Error> {
    if let Some(recording) = &query.recording {
        return Ok(vec![recording.clone()]);
    }
    let which = &query.which;
    let base = EpochQuery { user: query.user, ..EpochQuery::default() };
    let queries = match which.parse::<u32>() {
        Ok(pid) => vec![EpochQuery { pid: Some(pid), ..base }],
        Err(_) => vec![
            EpochQuery { program: Some(which.clone()), ..base.clone() },
            EpochQuery { label: Some(which.clone()), ..base },
        ],
    };
    for one in queries {
        let found = epochs::find(&query.state, &one)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(Unanswerable::UnknownProcess { name: which.to_owned(), state: query.state.clone() }.into())
}

/// Describes a process with what grew in it.
fn describe(
    process: &Process,
    recordings: &[Recording],
    resident: Option<u64>,
    symbols: &mut Symbolizer,
) -> Result<ProcessAnswer, Error> {
    let sums = sums(process, &Progress::new("reading events"));
    let Sums { totals, missing, .. } = &sums;
    let (started_unix_ns, ended_unix_ns) = times(process);
    let about = &process.about;
    let all = recordings.iter().flat_map(|recording| &recording.processes);
    let same = all.filter(|one| one.about.pid == about.pid && one.about.exe == about.exe);
    let mut flights: Vec<Kept> = same.flat_map(Process::kept).collect();
    flights.sort_by_key(|kept| kept.unix_ns);
    flights.dedup();
    let end = ending(&summarize_process(process, &sums));
    let last = about.last_memory.filter(|_| resident.is_none());
    let snapshot = process.tape.snapshots.iter().max_by_key(|snapshot| snapshot.sums.tick);
    let bill = snapshot.and_then(|snapshot| process.page_snapshot(snapshot)).filter(|record| record.method != 0);
    let found = bill.map(|record| resident::find(process, &record, &Progress::new("reading events"))).transpose()?;
    let mut resident_parts = found.map(|found| found.parts()).unwrap_or_default();
    resident_parts.retain(|part| part.bytes > 0);
    Ok(ProcessAnswer {
        pid: about.pid,
        program: process.name(),
        label: process.tape.process.label.lossy().into_owned(),
        alive: resident.is_some(),
        exit: about.exit,
        started_unix_ns,
        ended_unix_ns,
        live_bytes: totals.live_bytes,
        live_blocks: totals.live_blocks,
        live_since_unix_ns: process.live_since_unix_ns(),
        peak_bytes: totals.peak_bytes,
        resident_bytes: resident
            .or(last.map(|last| last.resident_bytes).filter(|bytes| *bytes > 0))
            .or(snapshot.map(|snapshot| snapshot.sums.resident_bytes)),
        resident_parts,
        memory_limit_bytes: last.map(|last| last.limit_bytes).filter(|bytes| *bytes > 0),
        out_of_memory: last.is_some_and(|last| last.out_of_memory),
        grew: growth(process, symbols)?,
        flights,
        folder: process.path.clone(),
        end,
        missing: missing.iter().filter(|one| resident.is_none() || **one != Missing::NoEnd).cloned().collect(),
    })
}

/// Returns what grew in a process, worst first; if nothing did, what holds most.
fn growth(process: &Process, symbols: &mut Symbolizer) -> Result<Vec<Growth>, Error> {
    let found =
        leaks::find_in(vec![process], &Scope::default(), Grouping::default(), &leaks::Options::default(), symbols)?;
    let grew = |verdict: Verdict| matches!(verdict, Verdict::Growing | Verdict::Slow | Verdict::ContainerGrowth);
    let own = || found.leaks.iter().filter(|leak| leak.kept.is_none());
    let grown: Vec<_> = own().filter(|leak| grew(leak.verdict)).collect();
    let list = if grown.is_empty() { own().collect() } else { grown };
    let start = process.clock.start_unix_ns;
    let one = |leak: &leaks::Leak<'_>| {
        let site = call_site(symbols, process.stacks(), leak.site, FRAMES);
        let mut lines = SourceLines::default();
        lines.add(&site.frame);
        let since = |evidence: &Evidence| evidence.first.time_ns.map(|nanos| start.saturating_add(nanos));
        let judged = |evidence: &Evidence| Some(start.saturating_add(evidence.judged_since.as_ref()?.time_ns?));
        Growth {
            judged_since_unix_ns: leak.evidence.as_ref().and_then(judged),
            verdict: leak.verdict,
            bytes: leak.bytes,
            blocks: leak.blocks,
            bytes_per_second: leak.evidence.as_ref().and_then(|evidence| evidence.bytes_per_second),
            since_unix_ns: leak.evidence.as_ref().and_then(since).filter(|_| grew(leak.verdict)),
            text: call_site_line(&site, &lines, symbols.names()),
            functions: site.names,
        }
    };
    Ok(list.into_iter().take(MAX_SITES).map(one).collect())
}

fn date(unix_ns: u64) -> Date {
    Date::from_unix(unix_ns / 1_000_000_000)
}

fn print(answer: &Answer, screen: &mut Screen) -> io::Result<()> {
    for (number, process) in answer.processes.iter().enumerate() {
        if number > 0 {
            screen.blank()?;
        }
        print_process(process, screen)?;
    }
    if !answer.running.is_empty() {
        let one = |other: &Other| format!("{} {} ({})", other.pid, other.program, bytes(other.live_bytes));
        let mut shown: Vec<String> = answer.running.iter().take(MAX_OTHERS).map(one).collect();
        let more = answer.running.len().saturating_sub(MAX_OTHERS);
        shown.extend((more > 0).then(|| format!("{more} more")));
        screen.line(&format!("also running: {} (heaptape why PID)", shown.join(", ")))?;
    }
    Ok(())
}

fn print_process(process: &ProcessAnswer, screen: &mut Screen) -> io::Result<()> {
    let ProcessAnswer { pid, program, label, started_unix_ns, ended_unix_ns, .. } = process;
    let label = if label.is_empty() { String::new() } else { format!(", {label}") };
    let lived = duration(ended_unix_ns.saturating_sub(*started_unix_ns));
    let state = match process.alive {
        true => format!("alive, since {}", date(*started_unix_ns)),
        false => format!("{} at {}, after {lived}", process.end, date(*ended_unix_ns)),
    };
    // Short processes of one program are kept as their sum.
    let who = if *pid == 0 { "processes that ended".to_owned() } else { format!("pid {pid}") };
    screen.heading(&format!("{program} ({who}{label}): {state}"))?;
    let known = lower_bound(process.live_since_unix_ns, bytes(process.live_bytes));
    let mut held = format!("live  {known} in {}", counted(process.live_blocks, "block"));
    if process.peak_bytes > 0 {
        held += &format!(", peak {}", bytes(process.peak_bytes));
    }
    if let Some(resident) = process.resident_bytes {
        held += &format!("; resident {}", bytes(resident));
        held += if process.alive { "" } else { " when last seen" };
    }
    if let Some(limit) = process.memory_limit_bytes {
        held += &format!(", limit {}", bytes(limit));
    }
    screen.line(&held)?;
    known_since(process.live_since_unix_ns).iter().try_for_each(|note| screen.line(note))?;
    let mut parts: Vec<&Part> = process.resident_parts.iter().collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    if !parts.is_empty() {
        let shown = parts.iter().take(MAX_PARTS).map(|part| format!("{} {}", bytes(part.bytes), part.short()));
        let shown: Vec<String> = shown.collect();
        screen.line(&format!("resident at its last snapshot: {} (heaptape rss)", shown.join(", ")))?;
    }
    let rows: Vec<Vec<String>> = process.grew.iter().map(row).collect();
    if !rows.is_empty() {
        screen.table(&["bytes", "blocks", "growth", "since", "verdict", "call site"], &rows)?;
    }
    if let Some(since) = process.grew.iter().find_map(|growth| growth.judged_since_unix_ns) {
        screen.line(&format!("growth is judged since {}: events were lost before", date(since)))?;
    }
    for Kept { unix_ns, why } in &process.flights {
        screen.line(&format!("flight kept at {}: {why}", date(*unix_ns)))?;
    }
    print_missing(screen, "", &process.missing)?;
    screen.line(&format!("recorded in {}", process.folder.display()))
}

fn row(growth: &Growth) -> Vec<String> {
    let rate = growth.bytes_per_second.filter(|_| growth.since_unix_ns.is_some()).map_or("–".into(), |rate| {
        let sign = if rate < 0.0 { '-' } else { '+' };
        format!("{sign}{}/s", bytes(rate.abs() as u64))
    });
    let since = growth.since_unix_ns.map_or("–".into(), |since| date(since).to_string());
    vec![bytes(growth.bytes), count(growth.blocks), rate, since, growth.verdict.name().into(), growth.text.clone()]
}
