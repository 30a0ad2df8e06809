//! `heaptape attach`: records a process that's already running; detaching restores it.

use crate::{Outcome, library, log};
use anyhow::Context;
use heaptape_analyzer::text::{self, Style};
use heaptape_formats::quantity::{Size, Time};
use heaptape_recorder::run::attach::{Attachment, Left};
use heaptape_recorder::run::launch::make_dir;
use heaptape_recorder::run::running_process::Target;
use heaptape_recorder::session::options::{self, Options};
use heaptape_recorder::target::proc::{Process, with_name};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Options of `heaptape attach`.
#[derive(clap::Args)]
#[command(
    after_help = "The recording ends with Ctrl-C, after --for, or with the process. Then the process is as it was: its \
                  code is restored, and the library is unmapped. It needs the right to trace the process (root, or the \
                  same user and kernel.yama.ptrace_scope=0).\n\n\
                  Every event from the attach on is recorded. Blocks from before it are not known: their frees are \
                  counted, as frees of unknown blocks, and verdicts are about blocks that were allocated since. Child \
                  processes are not recorded, nor are C++ operators of shared allocators other than that of the C \
                  library."
)]
pub(crate) struct Args {
    /// Print no summary
    #[arg(short, long)]
    quiet: bool,
    /// Folder of the recording [default: heaptape.NAME.PID]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace the recording DIR
    #[arg(short, long)]
    force: bool,
    /// End the recording after this time
    #[arg(long = "for", value_name = "TIME")]
    time: Option<Time>,
    /// Only say what would be done, and whether it can be done
    #[arg(long)]
    dry_run: bool,
    /// Drop events when a ring is full, and count them as lost, instead of waiting
    #[arg(hide_short_help = true, long)]
    drop: bool,
    /// Record the call stacks of frees as well
    #[arg(hide_short_help = true, long)]
    free_stacks: bool,
    /// Sample one block per this many bytes (such as 512KiB) instead of recording all
    #[arg(long, value_name = "SIZE")]
    sample: Option<Size>,
    /// At the end, read which block holds which, for `heaptape holds`
    #[arg(long)]
    references: bool,
    /// Read that once while the process runs, as soon as it has so many live bytes (such as 500MiB) of
    /// the recorded blocks; at the end if it never has
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    references_at: Option<Size>,
    /// Label to store in the recording
    #[arg(hide_short_help = true, long, value_name = "TEXT", default_value = "")]
    label: String,
    /// Record also an allocator whose functions have this prefix (PREFIXmalloc, PREFIXfree and so
    /// on), or which FILE describes (docs/allocators.md). Common allocators are known
    #[arg(hide_short_help = true, long, value_name = "PREFIX|FILE", value_parser = super::allocators::name)]
    allocator: Vec<String>,
    /// If the program has no symbols, fetch them from the servers in DEBUGINFOD_URLS, with
    /// elfutils' debuginfod-find, to find allocators inside it
    #[arg(hide_short_help = true, long)]
    debuginfod: bool,
    /// The process: its pid, or the name of its program
    #[arg(value_name = "PID|NAME")]
    process: String,
}

/// Returns the pid of a process that is named by its pid or its program.
pub(crate) fn pid_of(process: &str) -> anyhow::Result<u32> {
    if let Ok(pid) = process.parse() {
        return Ok(pid);
    }
    match with_name(process.as_bytes()).as_slice() {
        [] => anyhow::bail!("no process has the name {process}"),
        [pid] => Ok(*pid),
        several => {
            let pids: Vec<String> = several.iter().take(8).map(u32::to_string).collect();
            anyhow::bail!(
                "{} processes have the name {process}: choose one by its pid ({})",
                several.len(),
                pids.join(", ")
            )
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    log::start(tracing::Level::WARN, Style::of_stderr().color);
    let pid = pid_of(&args.process)?;
    let process = Process::read(pid);
    let name = text::clean(&String::from_utf8_lossy(&process.comm)).to_string();
    let not_attached = || match name.as_str() {
        "" => format!("process {pid} is not attached"),
        name => format!("{name} (pid {pid}) is not attached"),
    };
    let allocators = super::allocators::read(&args.allocator)?;
    if args.debuginfod {
        super::allocators::fetch_symbols(&name, File::open(format!("/proc/{pid}/exe")).ok());
    }
    let target = Target::find(pid, library::STANDALONE, &allocators).with_context(not_attached)?;
    if args.dry_run {
        print_plan(&target, &name);
        return Ok(Outcome::Done);
    }
    let options = Options {
        overflow: if args.drop { options::Overflow::Drop } else { options::Overflow::Wait },
        free_stacks: args.free_stacks,
        sample_bytes: args.sample.map_or(0, |Size(bytes)| bytes),
        label: args.label,
        references: args.references || args.references_at.is_some(),
        references_at: args.references_at.map_or(0, |Size(bytes)| bytes),
        allocators,
        ..Options::default()
    };
    // Before anything is changed in the process: from here on no signal ends this command.
    let (stop, stopping) = UnixStream::pair().context("cannot make a socket")?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        pipe::register(signal, stopping.try_clone()?).context("cannot handle signals")?;
    }
    if let Some(dir) = &args.output {
        super::replace::make_place(dir, args.force)?;
    }
    let dir = make_dir(args.output.as_deref(), OsStr::from_bytes(&process.comm), pid)?;
    let attachment = Attachment::begin(target, &dir, &options).inspect_err(|_| drop(std::fs::remove_dir_all(&dir)));
    let mut attachment = attachment.with_context(not_attached)?;
    if !args.quiet {
        let functions = attachment.target().plan().jumps().count();
        let until = if args.time.is_some() { "" } else { "; Ctrl-C ends it" };
        eprintln!("attached to {name} (pid {pid}): {functions} functions hooked{until}");
    }
    if let Err(error) = attachment.record(stop.as_fd(), args.time.map(|Time(time)| time)) {
        eprintln!("heaptape: {}: {error}", dir.display());
    }
    let left = attachment.end();
    left.outcome.errors.iter().for_each(|error| eprintln!("heaptape: {error}"));
    if let Some(why) = &left.no_references {
        eprintln!("heaptape: {name} (pid {pid}): which block holds which could not be read: {why}");
    }
    if let Some(remains) = &left.remains {
        eprintln!("heaptape: {name} (pid {pid}): {remains}");
    }
    let stops = stops_text(&left, &name, pid);
    if args.quiet {
        tracing::info!("{stops}");
    } else {
        eprintln!("{stops}");
        super::record::summary(&dir, false);
    }
    Ok(if left.is_hooked || left.no_references.is_some() { Outcome::Partial } else { Outcome::Done })
}

/// Prints what an attach would do.
fn print_plan(target: &Target, name: &str) {
    println!("{name} (pid {}) can be attached; nothing was changed", target.pid());
    for allocator in target.plan().allocators() {
        let module = text::clean(&allocator.module);
        println!("{}: {} functions in {module}", text::clean(&allocator.name), allocator.found);
        for refused in &allocator.refused {
            println!("  not hooked: {}: {}", text::clean(&refused.function), text::clean(&refused.why));
        }
    }
    for jump in target.plan().jumps() {
        println!("  {:#x} {}: a jump over {} bytes", jump.address, text::clean(jump.name), jump.original().len());
    }
}

/// Returns the longest stops as text.
fn stops_text(left: &Left, name: &str, pid: u32) -> String {
    let milliseconds = |time: std::time::Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
    let ended = match (&left.remains, left.outcome.still_running.is_empty()) {
        (None, true) => "has ended",
        (None, false) => "was left as it was",
        (Some(_), _) if left.is_hooked => "is still hooked",
        (Some(_), _) => "was left",
    };
    let stops = left.stops;
    format!(
        "{name} (pid {pid}) {ended}; longest stop: {} of all {} threads, {} of one",
        milliseconds(stops.all),
        stops.threads,
        milliseconds(stops.one)
    )
}
