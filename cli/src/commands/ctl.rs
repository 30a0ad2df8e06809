//! `heaptape daemon status`, `list`, `show` and so on: queries and controls the daemon. Each
//! request returns when it has been carried out.

use super::attach::pid_of;
use super::frames::Frames;
use crate::control::{Control, growth, live_bytes, live_since, mode, resident, signed_bytes};
use crate::table::{self, Column};
use crate::{Outcome, terminal};
use heaptape_analyzer::report::json;
use heaptape_analyzer::text::{bytes, clean, count, counted, duration};
use heaptape_daemon::config::{self, Choice};
use heaptape_daemon::protocol::{
    Attached, Detached, Details, Entry, Identity, Late, Process, Reloaded, Request, Response, Status, Which,
};
use heaptape_formats::date::Date;
use heaptape_formats::pattern::Pattern;
use serde_json::Value;
use std::cmp::Reverse;
use std::io::Write;
use std::path::PathBuf;

/// The daemon that is asked.
#[derive(clap::Args)]
pub(super) struct Asked {
    /// Control socket of the daemon [default: control in $HEAPTAPE_DIR, else in
    /// /run/heaptape-control for root and in $XDG_RUNTIME_DIR/heaptape for others]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Columns by which the list is sorted.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Sort {
    /// Live bytes
    Live,
    /// Allocations per second
    Rate,
    /// Growth of the live bytes in the last minute
    Growth,
    /// Lost events
    Lost,
    /// Name, then pid
    Name,
}

/// Periods over which growth is shown.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Period {
    /// The last minute
    #[default]
    Minute,
    /// The last hour
    Hour,
    /// The last day
    Day,
    /// Since the start of the process
    Start,
    /// Since the last mark
    Mark,
}

impl Period {
    /// Returns the period's key in the answer of the daemon.
    fn key(self) -> &'static str {
        match self {
            Period::Minute => "minute",
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Start => "start",
            Period::Mark => "mark",
        }
    }
}

/// What the daemon is asked.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Show the state of the daemon: processes, events, memory, disk, budgets that were hit
    Status {
        #[command(flatten)]
        asked: Asked,
    },
    /// List the recorded processes and incoming streams
    List {
        /// Pid, name or label (* and ? are wildcards) [default: all]
        which: Option<String>,
        /// Only processes with this label (* and ? are wildcards)
        #[arg(long, value_name = "LABEL")]
        label: Option<String>,
        /// Column to sort by, largest first [default: order of arrival]
        #[arg(long, value_name = "COLUMN", value_enum)]
        sort: Option<Sort>,
        /// Period of the column GROWTH
        #[arg(long, value_name = "PERIOD", value_enum, default_value = "minute")]
        growth: Period,
        #[command(flatten)]
        asked: Asked,
    },
    /// Show one process and its call sites by live bytes
    Show {
        /// Pid, name or label that only this process has (* and ? are wildcards)
        which: String,
        /// Maximum number of call sites
        #[arg(long = "top", alias = "sites", value_name = "N", default_value_t = 20)]
        sites: u64,
        #[command(flatten)]
        asked: Asked,
    },
    /// Change what is recorded of running processes
    ///
    /// The modes are off (nothing), profile (live blocks and sums), trace (every event) and flight
    /// (every event of the last minutes). With :512KiB one block per 512 KiB is sampled, with :2%
    /// as many as cost 2 % of the program's CPU time. With ,overflow=wait:2s a thread waits for at
    /// most that time when its ring is full, with ,overflow=drop it loses the event; otherwise the
    /// daemon's configuration decides.
    Mode {
        /// Pid, name or label (* and ? are wildcards), or all
        which: String,
        /// New mode, such as trace, profile:512KiB, profile:2% or trace,overflow=wait:2s
        mode: Choice,
        #[command(flatten)]
        asked: Asked,
    },
    /// Write snapshots of processes to disk, and keep what flight recorders hold
    ///
    /// A snapshot has the resident pages, for `heaptape rss`.
    Snapshot {
        /// Pid, name or label (* and ? are wildcards), or all
        #[arg(default_value = "all")]
        which: String,
        /// Read which block holds which instead, for `heaptape holds NAME`: a process stands still
        /// while the kernel makes a copy of it, some 30 ms for a gigabyte
        #[arg(long)]
        references: bool,
        #[command(flatten)]
        asked: Asked,
    },
    /// Record a process that was started without the library
    ///
    /// It is recorded like the others, until it ends, or until `heaptape daemon detach` leaves it
    /// as it was.
    Attach {
        /// Pid of the process, or the name of its program
        #[arg(value_name = "PID|NAME")]
        process: String,
        /// What is recorded, such as trace or profile:2% [default: that of its rule]
        #[arg(long)]
        mode: Option<Choice>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Leave attached processes as they were
    Detach {
        /// Pid, name or label (* and ? are wildcards), or all
        which: String,
        #[command(flatten)]
        asked: Asked,
    },
    /// End the current epoch, which is a folder of recordings, and start the next one
    Epoch {
        #[command(flatten)]
        asked: Asked,
    },
    /// Set a mark, such as deploy-42, for `heaptape diff --since deploy-42 NAME`
    Mark {
        /// Name of the mark
        name: String,
        #[command(flatten)]
        asked: Asked,
    },
    /// Start new traces of processes in mode trace, within the epoch
    Rotate {
        /// Pid, name or label (* and ? are wildcards), or all
        #[arg(default_value = "all")]
        which: String,
        #[command(flatten)]
        asked: Asked,
    },
    /// Write all recorded events and sums to disk
    Flush {
        #[command(flatten)]
        asked: Asked,
    },
    /// Print the metrics in the format of Prometheus
    Metrics {
        #[command(flatten)]
        asked: Asked,
    },
    /// Read the configuration again, and show what changed
    ///
    /// Rules apply to programs that start from now on.
    Reload {
        #[command(flatten)]
        asked: Asked,
    },
    /// Stop the daemon
    Stop {
        #[command(flatten)]
        asked: Asked,
    },
}

impl Command {
    fn asked(&self) -> &Asked {
        match self {
            Command::Status { asked }
            | Command::List { asked, .. }
            | Command::Show { asked, .. }
            | Command::Mode { asked, .. }
            | Command::Snapshot { asked, .. }
            | Command::Attach { asked, .. }
            | Command::Detach { asked, .. }
            | Command::Epoch { asked }
            | Command::Mark { asked, .. }
            | Command::Rotate { asked, .. }
            | Command::Flush { asked }
            | Command::Metrics { asked }
            | Command::Reload { asked }
            | Command::Stop { asked } => asked,
        }
    }

    fn request(&self) -> anyhow::Result<Request> {
        let which = |which: &str| Which(which.to_owned());
        Ok(match self {
            Command::Status { .. } => Request::Status,
            Command::List { .. } => Request::List,
            Command::Show { which: name, sites, .. } => Request::Show { which: which(name), sites: *sites },
            Command::Mode { which: name, mode, .. } => Request::Mode { which: which(name), mode: *mode },
            Command::Snapshot { which: name, references, .. } => {
                Request::Snapshot { which: which(name), leaves_flights: false, references: *references }
            }
            Command::Attach { process, mode, .. } => Request::Attach { pid: pid_of(process)?, mode: *mode },
            Command::Detach { which: name, .. } => Request::Detach { which: which(name) },
            Command::Epoch { .. } => Request::Epoch,
            Command::Mark { name, .. } => Request::Mark { name: name.clone() },
            Command::Rotate { which: name, .. } => Request::Rotate { which: which(name) },
            Command::Flush { .. } => Request::Flush,
            Command::Metrics { .. } => Request::Metrics,
            Command::Reload { .. } => Request::Reload,
            Command::Stop { .. } => Request::Stop,
        })
    }
}

pub(super) fn run(command: Command) -> anyhow::Result<Outcome> {
    config::check_own_folder().map_err(anyhow::Error::msg)?;
    let asked = command.asked();
    let (control, request) = (Control::at(asked.control.clone()), command.request()?);
    let mut answer = control.json(&request)?;
    if let Command::List { which, label, sort, growth, .. } = &command {
        let is_narrowed = which.is_some() || label.is_some();
        select(&mut answer, which.as_deref(), label.as_deref(), *sort, *growth);
        if is_narrowed && answer.as_array().is_some_and(Vec::is_empty) {
            if asked.json {
                println!("[]");
            }
            eprintln!("heaptape: no recorded process matches");
            return Ok(Outcome::NoAnswer);
        }
    }
    let period = match &command {
        Command::List { growth, .. } => *growth,
        _ => Period::default(),
    };
    let mut out = terminal::stdout();
    let response = control.read(&request, answer.clone())?;
    let errors = response.errors();
    if asked.json && request != Request::Metrics {
        json::print(&mut out, &answer)?;
    } else if errors.is_empty() {
        print(&request, &response, period, &mut out)?;
    }
    out.flush()?;
    for error in errors {
        eprintln!("heaptape: the daemon could not write everything: {}", clean(error));
    }
    Ok(if errors.is_empty() { Outcome::Done } else { Outcome::NoAnswer })
}

/// Keeps the entries of a list that match, in the order of a column.
fn select(answer: &mut Value, which: Option<&str>, label: Option<&str>, sort: Option<Sort>, period: Period) {
    let Some(entries) = answer.as_array_mut() else { return };
    let label = label.map(Pattern::whole);
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    entries.retain(|entry| label.as_ref().is_none_or(|label| label.matches(text(entry, "label"))));
    if let Some(which) = which {
        let chosen = Which(which.to_owned()).choose(entries, |entry| Identity {
            pid: entry["pid"].as_u64().and_then(|pid| pid.try_into().ok()).unwrap_or(0),
            name: entry["name"].as_str().unwrap_or_default(),
            label: entry["label"].as_str().unwrap_or_default(),
        });
        *entries = chosen.into_iter().cloned().collect();
    }
    let key = match sort {
        None => return,
        Some(Sort::Name) => {
            return entries.sort_by_key(|entry| (text(entry, "name"), entry["pid"].as_u64()));
        }
        Some(Sort::Live) => "live_bytes",
        Some(Sort::Rate) => "allocs_a_second",
        Some(Sort::Growth) => "growth",
        Some(Sort::Lost) => "lost",
    };
    if let (Some(Sort::Growth), Period::Hour | Period::Day | Period::Start | Period::Mark) = (sort, period) {
        let growth = |entry: &Value| entry["growths"][period.key()].as_i64();
        return entries.sort_by_key(|entry| (Reverse(growth(entry)), entry["pid"].as_u64()));
    }
    let number = |entry: &Value| entry[key].as_u64().map(i128::from).or(entry[key].as_i64().map(i128::from));
    entries.sort_by_key(|entry| (Reverse(number(entry)), entry["pid"].as_u64()));
}

/// Prints the answer to a request as text.
fn print(request: &Request, response: &Response, period: Period, out: &mut dyn Write) -> std::io::Result<()> {
    match response {
        Response::Status(found) => status(found, out),
        Response::List(entries) => list(entries, period, out),
        Response::Show(found) => show(found, out),
        Response::Metrics(text) => out.write_all(text.as_bytes()),
        Response::Mode(changed) => {
            writeln!(out, "{}: mode is now {}", counted(changed.processes, "process"), clean(&mode(&changed.mode)))
        }
        Response::Attached(found) => attached(found, out),
        Response::Detached(found) => detached(found, out),
        Response::Processes(count) if matches!(request, Request::Rotate { .. }) => {
            writeln!(out, "{} started anew", counted(count.processes, "trace"))
        }
        Response::Processes(count) if count.stop_us > 0 => {
            let stop = duration(count.stop_us * 1000);
            writeln!(out, "{} written; a stop took {stop} at most", counted(count.processes, "process"))
        }
        Response::Processes(count) => writeln!(out, "{} written", counted(count.processes, "process")),
        Response::Epochs(count) if matches!(request, Request::Mark { .. }) => {
            writeln!(out, "marked; {} sealed", counted(count.epochs, "epoch"))
        }
        Response::Epochs(count) => writeln!(out, "{} sealed", counted(count.epochs, "epoch")),
        Response::Reloaded(found) => reloaded(found, out),
        Response::Stopped(_) => writeln!(out, "stopped"),
        Response::Error(refusal) => writeln!(out, "{}", refusal.error),
    }
}

fn attached(found: &Attached, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{} (pid {}) is recorded in mode {}: {} hooked, all threads stopped for {:.2} ms",
        clean(&found.name),
        found.pid,
        clean(&mode(&found.mode)),
        counted(found.functions, "function"),
        found.stop_us as f64 / 1000.0
    )
}

fn detached(found: &Detached, out: &mut dyn Write) -> std::io::Result<()> {
    let processes = counted(found.processes, "process");
    writeln!(out, "{processes} left; all threads were stopped for {:.2} ms at most", found.stop_us as f64 / 1000.0)?;
    for remains in &found.remains {
        writeln!(out, "process {}: {}", remains.pid, clean(&remains.why))?;
    }
    Ok(())
}

fn reloaded(found: &Reloaded, out: &mut dyn Write) -> std::io::Result<()> {
    if found.changed.is_empty() && found.needs_restart.is_empty() {
        return writeln!(out, "nothing changed");
    }
    for (key, text) in &found.changed {
        writeln!(out, "{}: {}", clean(key), clean(text))?;
    }
    for (key, text) in &found.needs_restart {
        writeln!(out, "{}: {}, when the daemon is started again", clean(key), clean(text))?;
    }
    Ok(())
}

fn status(status: &Status, out: &mut dyn Write) -> std::io::Result<()> {
    let number = |key: &str| status.own.get(key).copied().unwrap_or(0.0);
    let own = |key: &str| number(key) as u64;
    writeln!(out, "heaptape {}, process {}, running for {} s", status.version, status.pid, status.seconds)?;
    writeln!(out, "socket     {}", clean(&status.socket))?;
    let epochs = counted(own("epochs"), "epoch");
    writeln!(out, "epochs     {}: {} in {epochs}", clean(&status.state), bytes(own("disk_bytes")))?;
    let modes: Vec<String> = status.modes.iter().map(|(name, count)| format!("{count} {}", clean(name))).collect();
    writeln!(out, "processes  {} ({})", status.processes, modes.join(", "))?;
    writeln!(
        out,
        "events     {} recorded, {} lost, {} sampled out",
        count(own("recorded_events_total")),
        count(own("lost_events_total")),
        count(own("sampled_out_events_total"))
    )?;
    writeln!(
        out,
        "daemon     {} resident, {:.1} s of CPU time",
        bytes(own("resident_bytes")),
        number("cpu_seconds_total")
    )?;
    if own("streams") + own("streams_total") + own("streams_refused_total") > 0 {
        writeln!(
            out,
            "streams    {} incoming, {} stored ({} incomplete, {}), {} refused",
            own("streams"),
            own("streams_total"),
            own("streams_cut_total"),
            bytes(own("stream_bytes_total")),
            own("streams_refused_total")
        )?;
    }
    if let Some(error) = &status.write_error {
        writeln!(out, "disk       cannot be written: {}", clean(error))?;
    }
    for late in &status.late {
        let Late { pid, uid, name, unix_ns, reason } = late;
        let why = match reason.as_str() {
            "stalled" => "its memory or a file system that it uses did not answer",
            "orphaned" => "the daemon that recorded it ended without passing it on",
            _ => "the daemon answered too late",
        };
        let when = Date::from_unix(unix_ns / 1_000_000_000);
        let name = clean(name);
        writeln!(out, "unrecorded {name} ({pid}) of user {uid}: {why} ({when}); restart it")?;
    }
    for (what, times) in &status.budgets_hit {
        writeln!(out, "budget     {} was hit {}", clean(what), counted(*times, "time"))?;
    }
    Ok(())
}

const COLUMNS: [Column; 12] = [
    Column::Right("PID"),
    Column::Left("NAME"),
    Column::Left("MODE"),
    Column::Left("OVERFLOW"),
    Column::Right("RSS"),
    Column::Right("LIVE"),
    Column::Right("BLOCKS"),
    Column::Right("ALLOCS/S"),
    Column::Right("GROWTH"),
    Column::Right("LOST"),
    Column::Left("LABEL"),
    Column::Left("NOTE"),
];

fn list(entries: &[Entry], period: Period, out: &mut dyn Write) -> std::io::Result<()> {
    if entries.is_empty() {
        return writeln!(
            out,
            "no processes; programs are recorded that start in the environment of `heaptape daemon env`"
        );
    }
    let none = String::new;
    let cells = entries.iter().map(|entry| match entry {
        Entry::Process(process) => row(process, period),
        Entry::Stream(stream) => vec![
            stream.pid.to_string(),
            stream.name.clone(),
            stream.mode.clone(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            stream.label.clone(),
            format!("{} received", bytes(stream.received)),
        ],
    });
    table::lines(&COLUMNS, cells).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Returns the cells of a process.
fn row(process: &Process, period: Period) -> Vec<String> {
    let held = process.held.as_ref().map(|held| format!("held down: {held}"));
    let called = Some(&process.called).filter(|called| !called.is_empty()).map(|called| format!("started as {called}"));
    let attached = process.attached.then(|| "attached".to_owned());
    let notes: Vec<String> = held.into_iter().chain(attached).chain(live_since(process)).chain(called).collect();
    vec![
        process.pid.to_string(),
        process.name.clone(),
        mode(&process.mode),
        process.overflow.clone(),
        resident(process),
        live_bytes(process),
        count(process.live_blocks),
        count(process.allocs_a_second),
        match period {
            Period::Minute => growth(process),
            _ => match process.growths.get(period.key()) {
                // What it held before its blocks are known has grown since its start, too.
                Some(growth) if period == Period::Start && process.live_since_unix_ns.is_some() => {
                    format!("≥ {}", signed_bytes(*growth))
                }
                Some(growth) => signed_bytes(*growth),
                None => "–".into(),
            },
        },
        count(process.lost),
        process.label.clone(),
        notes.join(", "),
    ]
}

fn show(found: &Details, out: &mut dyn Write) -> std::io::Result<()> {
    list(&[Entry::Process(Box::new(found.process.clone()))], Period::default(), out)?;
    writeln!(out, "folder {}", clean(&found.process.folder))?;
    let mut frames = Frames::default();
    for site in &found.call_sites {
        writeln!(
            out,
            "{:>10} in {}, {} allocated{}",
            bytes(site.live_bytes),
            counted(site.live_blocks, "block"),
            bytes(site.bytes),
            site.growth
                .map(|growth| format!(", {} in {} s", signed_bytes(growth), site.growth_seconds))
                .unwrap_or_default()
        )?;
        for frame in frames.named(found.process.pid, site, 12) {
            writeln!(out, "             {}", clean(&frame))?;
        }
    }
    Ok(())
}
