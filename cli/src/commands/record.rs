//! `heaptape record`: runs a program and records its heap.

use super::{allocators, record_live, replace};
use crate::live::Live;
use crate::{Outcome, library, log};
use anyhow::Context;
use clap::ValueEnum;
use heaptape_analyzer::report;
use heaptape_analyzer::symbols::{Detail, Symbolizer};
use heaptape_analyzer::text::{self, Style, with_causes};
use heaptape_formats::pattern::Pattern;
use heaptape_formats::quantity::Size;
use heaptape_recorder::os::{Compression, crash};
use heaptape_recorder::run::launch::{Finished, Launch, open_program, record, resume};
use heaptape_recorder::session::options::{self, Options, RING_SIZES, STACKS_CALLER, STACKS_FULL, is_ring};
use heaptape_recorder::target::untraced::remedy;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Environment variable with the time that a program's start may wait for the search of its
/// symbols, in milliseconds.
const ENV_SEARCH_MS: &str = "HEAPTAPE_SEARCH_MS";
/// Maximum value of [`ENV_SEARCH_MS`].
const MAX_SEARCH_MS: u64 = 8000;

/// What a thread does when its ring is full.
#[derive(Clone, Copy, ValueEnum)]
enum Overflow {
    /// Wait for space: no event is lost
    Wait,
    /// Drop the event and count it as lost
    Drop,
}

/// How much of the call stack is recorded.
#[derive(Clone, Copy, ValueEnum)]
enum Stacks {
    /// Every frame
    Full,
    /// Only the caller
    None,
}

/// Options of `heaptape record`.
#[derive(clap::Args)]
#[command(
    after_help = "The exit status is the program's; 128+N when signal N ended it. HEAPTAPE_LOG=debug prints more messages."
)]
pub(crate) struct Args {
    /// Print no summary
    #[arg(short, long)]
    quiet: bool,
    /// Folder of the recording [default: heaptape.PROG.PID]; - writes only the trace (MTRC), live,
    /// to standard output, and sends the program's output to standard error
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace the recording DIR
    #[arg(short, long)]
    force: bool,
    /// What a thread does when its ring is full
    #[arg(hide_short_help = true, long, value_enum, default_value = "wait")]
    overflow: Overflow,
    /// Frames of each stack to record
    #[arg(hide_short_help = true, long, value_enum, default_value = "full")]
    stacks: Stacks,
    /// Maximum number of frames of a stack
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_frames: u32,
    /// When the program ends, read which block holds which, for `heaptape holds`
    #[arg(long)]
    references: bool,
    /// Read that once while the program runs, in a copy of it, as soon as it has so many live bytes
    /// (such as 500MiB); at its end if it never has
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    references_at: Option<Size>,
    /// Record the call stacks of frees as well
    #[arg(hide_short_help = true, long)]
    free_stacks: bool,
    /// Sample one block per this many bytes (such as 512KiB) instead of recording all
    #[arg(long, value_name = "SIZE")]
    sample: Option<Size>,
    /// Size of the ring of each thread, a power of two; by default that of the first thread is 2MiB
    #[arg(hide_short_help = true, long, value_name = "SIZE", default_value = "1MiB", value_parser = ring)]
    ring: u64,
    /// Compression of a trace above 1 MiB: columns, which takes the least space and time; or
    /// mpatrol's MTRC as plain, lz4, zstd, or zstd with a level (zstd:3)
    #[arg(hide_short_help = true, long, value_name = "CODEC", default_value_t = Compression::COLUMNS)]
    compress: Compression,
    /// Write mpatrol's plain MTRC while recording, whatever its size, for mptrace: the same as
    /// --compress plain
    #[arg(hide_short_help = true, long, conflicts_with = "compress")]
    mtrc: bool,
    /// Label to store in the recording
    #[arg(hide_short_help = true, long, value_name = "TEXT", default_value = "")]
    label: String,
    /// Do not record child processes
    #[arg(long)]
    no_children: bool,
    /// Record only child processes with these program names, separated by commas (* and ? are
    /// wildcards); PROG is always recorded
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<Pattern>,
    /// Do not record child processes with these program names
    #[arg(hide_short_help = true, long, value_name = "NAMES", value_delimiter = ',')]
    skip: Vec<Pattern>,
    /// Show the live call sites in the terminal while PROG runs, as top does. Its output goes to
    /// DIR/output.txt, and it has no standard input
    #[arg(long, conflicts_with_all = LIVE_CONFLICTS)]
    live: bool,
    /// Write the recording also to one file when it ends: DIR.heaptape
    #[arg(long, conflicts_with = "resume")]
    pack: bool,
    /// Record also an allocator inside the program whose functions have this prefix (PREFIXmalloc,
    /// PREFIXfree and so on), or which FILE describes (docs/allocators.md). Common allocators are
    /// known
    #[arg(hide_short_help = true, long, value_name = "PREFIX|FILE", value_parser = allocators::name)]
    allocator: Vec<String>,
    /// Preload also this library into the program, and not into heaptape: an allocator in a library
    /// that the program opens later, such as a module of Python, is hooked if it is there from the
    /// start. May be repeated
    #[arg(hide_short_help = true, long, value_name = "LIBRARY", value_parser = preloaded)]
    preload: Vec<PathBuf>,
    /// If PROG has no symbols, fetch them from the servers in DEBUGINFOD_URLS before it starts,
    /// with elfutils' debuginfod-find, to find allocators inside it
    #[arg(hide_short_help = true, long)]
    debuginfod: bool,
    /// Wait until all recorded processes have exited, also those that outlive PROG
    #[arg(long)]
    wait: bool,
    /// Wait for the end of a recording whose `heaptape record` was killed, and print its summary
    #[arg(hide_short_help = true, long, value_name = "DIR", conflicts_with = "command")]
    resume: Option<PathBuf>,
    /// Program to run, with its arguments
    #[arg(required_unless_present = "resume", trailing_var_arg = true, value_name = "PROG")]
    command: Vec<OsString>,
}

/// Options that `--live` does not have: a daemon records then.
const LIVE_CONFLICTS: [&str; 16] = [
    "references",
    "references_at",
    "overflow",
    "stacks",
    "max_frames",
    "free_stacks",
    "compress",
    "mtrc",
    "label",
    "no_children",
    "only",
    "skip",
    "allocator",
    "preload",
    "debuginfod",
    "resume",
];

/// Returns the library that is to be preloaded: the absolute path of a file, since the program may
/// change its folder, or a name that the loader searches.
fn preloaded(text: &str) -> Result<PathBuf, String> {
    if text.contains([':', ' ']) {
        return Err("LD_PRELOAD cannot hold a path with a colon or a space".into());
    }
    if text.contains('/') { std::fs::canonicalize(text).map_err(|error| error.to_string()) } else { Ok(text.into()) }
}

fn ring(text: &str) -> Result<u64, String> {
    let bytes = text.parse().map(|Size(bytes)| bytes).ok().filter(|bytes| is_ring(*bytes));
    bytes.ok_or_else(|| RING_SIZES.to_owned())
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    log::start(tracing::Level::WARN, Style::of_stderr().color);
    if let Some(dir) = &args.resume {
        return wait_for_end(dir, args.quiet);
    }
    if let (Some(dir), Some(program)) =
        (args.output.as_ref().filter(|dir| dir.as_os_str() != "-"), args.command.first())
    {
        // A recording isn't given up for a program that can't run.
        if args.force && dir.exists() && !can_run(program) {
            let (program, dir) = (Path::new(program), dir.display());
            eprintln!("heaptape: {} cannot be run, so {dir} is kept", program.display());
            let is_there = program.components().count() > 1 && program.exists();
            return Ok(Outcome::Status(if is_there { 126 } else { 127 }));
        }
        replace::make_place(dir, args.force)?;
    }
    if args.live {
        return run_live(args);
    }
    let live = args.output.as_ref().filter(|dir| dir.as_os_str() == "-").map(|_| Live::start()).transpose()?;
    if let Some(program) = args.command.first().filter(|_| args.debuginfod) {
        allocators::fetch_symbols(&program.to_string_lossy(), open_program(program));
    }
    let (quiet, packs, misplaced) = (args.quiet, args.pack, misplaced(&args.command));
    let launch = launch(args, live.as_ref())?;
    let program = launch.program.to_string_lossy().into_owned();
    match record(launch) {
        Ok(finished) => {
            if let Some(why) = &finished.unrecorded {
                let remedy = remedy(why).map(|remedy| format!("; {remedy}")).unwrap_or_default();
                eprintln!("heaptape: {program} was not recorded: {why}{remedy}");
            }
            print_errors(&finished);
            if let Some(options) = misplaced.filter(|_| finished.status != 0) {
                eprintln!("heaptape: {options} was passed to {program}: put options of record before the program");
            }
            match live {
                Some(live) => end_live(live, &finished),
                None => {
                    finish(&finished, quiet);
                    if packs {
                        pack(&finished.dir);
                    }
                }
            }
            if !quiet {
                still_running(&finished);
            }
            Ok(Outcome::Status(finished.status))
        }
        Err(error) => {
            if let Some(unrecorded) = &error.unrecorded {
                let why = "the limit on processes is reached (RLIMIT_NPROC, or pids.max of the cgroup)";
                eprintln!("heaptape: {program} runs unrecorded: {why}");
                eprintln!("heaptape: {program}: {}", unrecorded.run());
                return Ok(Outcome::Status(126));
            }
            eprintln!("heaptape: {error}");
            Ok(Outcome::Status(error.status))
        }
    }
}

/// Records a program and shows it meanwhile.
fn run_live(args: Args) -> anyhow::Result<Outcome> {
    let (quiet, packs) = (args.quiet, args.pack);
    anyhow::ensure!(
        args.output.as_deref() != Some(Path::new("-")),
        "--live shows a view on standard output: choose a folder with -o"
    );
    let mut command = args.command.into_iter();
    let plan = record_live::Plan {
        program: command.next().unwrap_or_default(),
        arguments: command.collect(),
        dir: args.output,
        library: library::path()?,
        mode: args.sample.map_or("trace".into(), |Size(bytes)| format!("trace:{bytes}")),
        ring: args.ring,
    };
    let recorded = record_live::run(plan)?;
    summary(&recorded.dir, quiet);
    if let Some(output) = recorded.output.filter(|_| !quiet) {
        eprintln!("the output of the program is in {}", output.display());
    }
    if packs {
        pack(&recorded.dir);
    }
    let status = recorded.status;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(2);
    Ok(Outcome::Status(code as u8))
}

/// Returns what is to be launched, and how it is recorded.
fn launch(args: Args, live: Option<&Live>) -> anyhow::Result<Launch> {
    let mut command = args.command.into_iter();
    let library = library::path()?;
    Ok(Launch {
        program: command.next().unwrap_or_default(),
        arguments: command.collect(),
        dir: live.map(Live::dir).or(args.output),
        library: library.clone(),
        preloads: args.preload,
        options: Options {
            overflow: match args.overflow {
                Overflow::Wait => options::Overflow::Wait,
                Overflow::Drop => options::Overflow::Drop,
            },
            stacks: match args.stacks {
                Stacks::Full => STACKS_FULL,
                Stacks::None => STACKS_CALLER,
            },
            max_frames: args.max_frames,
            free_stacks: args.free_stacks,
            sample_bytes: args.sample.map_or(0, |Size(bytes)| bytes),
            ring_bytes: args.ring,
            compression: if args.mtrc { Compression::PLAIN } else { args.compress },
            label: args.label,
            children: !args.no_children,
            only: args.only,
            skip: args.skip,
            allocators: allocators::read(&args.allocator)?,
            found_symbols: library::symbols_folder(),
            references: args.references || args.references_at.is_some(),
            references_at: args.references_at.map_or(0, |Size(bytes)| bytes),
            search_limit: search_limit()?,
            standalone: library::STANDALONE,
            ..Options::default()
        },
        separate: true,
        wait: args.wait,
        // The folder of a live trace is removed at the end.
        symbols: live.is_none().then_some(heaptape_analyzer::symbols::save),
    })
}

/// Returns how long a program's start may wait for the search of its symbols, if the user says so.
fn search_limit() -> anyhow::Result<Option<Duration>> {
    let Some(text) = std::env::var_os(ENV_SEARCH_MS) else { return Ok(None) };
    let millis = text.to_str().and_then(|text| text.parse().ok()).filter(|millis| *millis <= MAX_SEARCH_MS);
    let millis = millis.with_context(|| {
        let text = text.to_string_lossy();
        format!("invalid {ENV_SEARCH_MS} '{text}': must be a number of milliseconds, at most {MAX_SEARCH_MS}")
    })?;
    Ok(Some(Duration::from_millis(millis)))
}

/// Waits for the end of a recording whose command was killed.
fn wait_for_end(dir: &Path, quiet: bool) -> anyhow::Result<Outcome> {
    let finished = resume(dir).map_err(|error| anyhow::anyhow!("{}: {error}", dir.display()))?;
    print_errors(&finished);
    finish(&finished, quiet);
    let is_complete = finished.outcome.errors.is_empty();
    Ok(if is_complete { Outcome::Status(finished.status) } else { Outcome::Status(1) })
}

fn print_errors(finished: &Finished) {
    finished.outcome.errors.iter().for_each(|error| eprintln!("heaptape: {error}"));
}

/// Ends a live trace. Its folder is removed, so a crash report in it is printed.
fn end_live(live: Live, finished: &Finished) {
    let report = crash::report_of(&finished.dir).and_then(|path| std::fs::read_to_string(path).ok());
    report.iter().flat_map(|report| report.lines()).for_each(|line| eprintln!("{}", text::clean(line)));
    live.end();
}

/// Writes the recording to one file beside it. An error is printed and does not change the exit
/// status, since the recording exists.
fn pack(folder: &Path) {
    let mut name = folder.as_os_str().to_owned();
    name.push(".heaptape");
    match heaptape_analyzer::write_archive(folder, Path::new(&name)) {
        Ok(size) => eprintln!("packed in {} ({})", Path::new(&name).display(), text::bytes(size)),
        Err(error) => eprintln!("heaptape: cannot pack the recording: {}", with_causes(&error)),
    }
}

/// Prints the summary of a recording, or why nothing was recorded.
fn finish(finished: &Finished, quiet: bool) {
    if !finished.outcome.recording.processes.is_empty() || !finished.outcome.errors.is_empty() {
        summary(&finished.dir, quiet);
    } else if !quiet {
        nothing_recorded(finished);
    }
}

/// Names the functions in the profiles and prints the summary. An error here is printed and does
/// not change the exit status, since the recording exists.
pub(super) fn summary(dir: &Path, quiet: bool) {
    let recording = match heaptape_analyzer::open(dir) {
        Ok(recording) => [recording],
        Err(error) => return eprintln!("heaptape: {}; the recording: {}", with_causes(&error), dir.display()),
    };
    // Both read the same symbol tables.
    let mut symbols = Symbolizer::new(Detail::Quick);
    if let Err(error) = report::name_profile(&recording[0], report::PLAIN_LIMIT, &mut symbols) {
        eprintln!("heaptape: cannot name the functions in the profile: {}", with_causes(&error));
    }
    if !quiet {
        let mut out = std::io::stderr().lock();
        if let Err(error) = report::after_record(&recording, symbols, &mut out, Style::of_stderr()) {
            drop(out);
            eprintln!("heaptape: {}; the recording: {}", with_causes(&error), dir.display());
        }
    }
}

/// Prints why nothing was recorded, and what would help.
fn nothing_recorded(finished: &Finished) {
    eprintln!("nothing was recorded");
    let others = finished.outcome.recording.not_traced.iter();
    for process in others.filter(|process| finished.unrecorded.as_ref() != Some(&process.why)) {
        let name = process.exe.rsplit('/').next().unwrap_or_default();
        eprintln!("! {} (pid {}) was not recorded: {}", text::clean(name), process.pid, text::clean(&process.why));
    }
    eprintln!("{} has the reasons", text::clean(&finished.dir.to_string_lossy()));
}

/// Prints the processes that outlive the recording.
fn still_running(finished: &Finished) {
    const MAX_NAMES: usize = 8;
    let running = &finished.outcome.still_running;
    if running.is_empty() {
        return;
    }
    let names = running.iter().take(MAX_NAMES).map(|(pid, name)| format!("{} (pid {pid})", text::clean(name)));
    let mut names: Vec<String> = names.collect();
    if running.len() > MAX_NAMES {
        names.push(format!("{} more", running.len() - MAX_NAMES));
    }
    let names = names.join(", ");
    eprintln!("still running, and no longer recorded: {names}; record --wait waits until they exit");
}

/// Returns whether a program is a file that may be executed.
fn can_run(program: &OsStr) -> bool {
    let about = open_program(program).and_then(|file| file.metadata().ok());
    about.is_some_and(|about| about.is_file() && about.mode() & 0o111 != 0)
}

/// Returns the options of `record` among the program's arguments, if no `--` separates the two.
fn misplaced(command: &[OsString]) -> Option<String> {
    let all: Vec<OsString> = std::env::args_os().collect();
    let before = all.len().checked_sub(command.len() + 1)?;
    if all.get(before).is_some_and(|arg| arg == "--") {
        return None;
    }
    let table = <Args as clap::Args>::augment_args(clap::Command::new("record"));
    let is_option = |arg: &&str| {
        let long = |name: &str| table.get_arguments().any(|option| option.get_long() == Some(name));
        let short = |name: char| table.get_arguments().any(|option| option.get_short() == Some(name));
        match (arg.strip_prefix("--"), arg.strip_prefix('-')) {
            (Some(name), _) => long(name.split('=').next().unwrap_or(name)),
            (None, Some(names)) => names.chars().count() == 1 && names.chars().all(short),
            _ => false,
        }
    };
    let found: Vec<&str> = command.iter().skip(1).filter_map(|arg| arg.to_str()).filter(is_option).collect();
    (!found.is_empty()).then(|| found.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_parsed() {
        assert_eq!(ring("64KiB"), Ok(1 << 16));
        assert!(ring("65537").is_err() && ring("1k").is_err() && ring("2GiB").is_err() && ring("1MB").is_err());
    }
}
