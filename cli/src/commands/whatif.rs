//! `heaptape whatif`: replays the allocations of a recorded process under other allocators.

use super::common::ProcessArgs;
use super::newest;
use crate::Outcome;
use anyhow::Context;
use heaptape_analyzer::report::resident::recorded_heap;
use heaptape_analyzer::text::{Screen, Style};
use heaptape_analyzer::{Accounting, Process, Progress, open_all};
use heaptape_formats::tape::Totals;
use heaptape_whatif::{Allocator, Comparison, Row, installed, play, replay_under, write_operations};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::Command;

/// Options of `heaptape whatif`.
#[derive(clap::Args)]
#[command(
    after_help = "Each allocation, reallocation and free of the recording is performed again, in its order, by a process under the allocator: with the same \
sizes, alignments and threads. Each page of a block is written once when it is allocated, \
except for what the program did not write of blocks from 64 KiB on, as the snapshots of its pages show. Settings: glibc takes the tunables of glibc.malloc (arena_max=2), jemalloc the options of MALLOC_CONF (dirty_decay_ms=0), mimalloc \
and tcmalloc the variables that begin with MIMALLOC_ and TCMALLOC_ (purge_delay=0)."
)]
pub(crate) struct Args {
    /// Recordings, or folders of processes [default: the newest recording in this folder]
    #[arg(value_name = "DIR")]
    paths: Vec<PathBuf>,
    /// Allocators: glibc, jemalloc, mimalloc, tcmalloc, each with its settings after a colon
    /// (glibc:arena_max=2:tcache_count=0), or the path of a library [default: all that are
    /// installed]
    #[arg(long, value_name = "NAME[:SETTING=VALUE]", value_delimiter = ',')]
    allocator: Vec<Allocator>,
    #[command(flatten)]
    processes: ProcessArgs,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Performs a file of operations in this process
    #[arg(long, hide = true)]
    play: bool,
}

/// Returns the number of events that were recorded of a process.
fn events(process: &Process) -> u64 {
    Accounting::of(process, &Totals::default(), &process.missing, None).all().recorded
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    if let ([path], true) = (&args.paths[..], args.play) {
        let file = File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
        // The recording may be of a larger machine. If memory runs out, the kernel ends this
        // process, and no other one.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        serde_json::to_writer(std::io::stdout().lock(), &play(file)?)?;
        return Ok(Outcome::Done);
    }
    let mut allocators = args.allocator;
    if allocators.is_empty() {
        let (found, missing) = installed();
        missing.iter().for_each(|missing| eprintln!("heaptape: {missing}"));
        allocators = found;
    }
    let recordings = open_all(&newest::or_newest(args.paths)?)?;
    let chosen = args.processes.processes().select(&recordings)?;
    let process = *chosen.iter().max_by_key(|process| events(process)).context("nothing was recorded")?;
    if chosen.len() > 1 {
        let (name, pid) = (process.name(), process.about.pid);
        eprintln!(
            "heaptape: {name} (pid {pid}) has the most events of {} processes; --process chooses another",
            chosen.len()
        );
    }
    let file = tempfile::Builder::new().prefix("heaptape-").tempfile().context("no temporary file")?;
    let progress = Progress::new("reading the events");
    let (live, missing) = write_operations(process, &progress, file.as_file())?;
    let mut comparison = Comparison::of(process, live, recorded_heap(process, &progress), missing);
    for allocator in &allocators {
        if std::io::stderr().is_terminal() {
            eprint!("\rreplaying under {}\x1b[K", allocator.name);
        }
        let mut command = Command::new(std::env::current_exe().context("the path of this command")?);
        command.args(["whatif", "--play"]);
        comparison.allocators.push(Row::of(allocator, replay_under(allocator, command, file.path())));
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &comparison)?;
        writeln!(out)?;
    } else {
        comparison.print(&mut Screen::new(&mut out, Style::of_stdout()))?;
    }
    out.flush()?;
    let has_failed = comparison.allocators.iter().any(|row| row.error.is_some());
    Ok(match comparison.complete {
        _ if has_failed => Outcome::Partial,
        true => Outcome::Done,
        false => Outcome::Incomplete { strict: false },
    })
}
