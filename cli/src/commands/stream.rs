//! `heaptape stream`: writes the trace of a process to standard output while it is recorded.

use crate::Outcome;
use heaptape_analyzer::follow::{Ending, Failure, ProcessSelector, follow};
use heaptape_formats::recording::{RECORDING, TAPE};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Options of `heaptape stream`.
#[derive(clap::Args)]
#[command(
    after_help = "The trace has mpatrol's format (MTRC), uncompressed, with its end mark when the process ends. It is written once a second, or every 131,072 events. \
    Without --process it is the trace of the program that record started, or of the program that this one runs by exec."
)]
pub(crate) struct Args {
    /// Recording (finished or not), folder of one of its processes, or pid of a process that is
    /// being recorded
    #[arg(value_name = "DIR|PID")]
    what: PathBuf,
    /// Only this process: its pid, or its folder in the recording (PID.NAME)
    #[arg(long, value_name = "PID|FOLDER")]
    process: Option<String>,
    /// Wait until the recording exists, while the parent process lives: for `record -o -`
    #[arg(long, hide = true)]
    starting: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        anyhow::bail!("standard output is a terminal: send the trace to a file or a pipe");
    }
    let parent = std::os::unix::process::parent_id();
    let may_appear = || args.starting && std::os::unix::process::parent_id() == parent;
    let (dir, which) = find(&args)?;
    match follow(&dir, &which, &may_appear, &mut out) {
        Ok(Ending::Complete) => Ok(Outcome::Done),
        Ok(Ending::Truncated(why)) => {
            eprintln!("heaptape: {}: the trace is truncated: {why}", dir.display());
            Ok(Outcome::Partial)
        }
        // `record` prints what happened to the program.
        Err(_) if args.starting => Ok(Outcome::NoAnswer),
        Err(Failure::Io(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the recording and the process in it.
fn find(args: &Args) -> anyhow::Result<(PathBuf, ProcessSelector)> {
    let chosen = args.process.clone().map_or(ProcessSelector::Main, ProcessSelector::Process);
    let path = &args.what;
    if args.starting || path.join(RECORDING).exists() {
        return Ok((path.clone(), chosen));
    }
    if path.join(TAPE).exists() {
        return of_process(path);
    }
    let pid = path.to_str().and_then(|text| text.parse::<u32>().ok());
    match pid {
        Some(pid) if !path.exists() => match tape_of(pid) {
            Some(folder) => of_process(&folder),
            None => anyhow::bail!(
                "{pid}: no process with this pid is being recorded by a user whose files you can read; name the recording"
            ),
        },
        _ => anyhow::bail!("{}: not a recording", path.display()),
    }
}

/// Returns the recording that the folder of a process belongs to.
fn of_process(folder: &Path) -> anyhow::Result<(PathBuf, ProcessSelector)> {
    let folder = folder.canonicalize()?;
    let (Some(dir), Some(name)) = (folder.parent(), folder.file_name()) else {
        anyhow::bail!("{}: not the folder of a process in a recording", folder.display());
    };
    Ok((dir.to_owned(), ProcessSelector::Process(name.to_string_lossy().into_owned())))
}

/// Returns the folder that a recorder is writing for a process: one with this pid in its name,
/// whose tape a process has open.
fn tape_of(pid: u32) -> Option<PathBuf> {
    let is_number = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let processes = std::fs::read_dir("/proc").ok()?.flatten().filter(|entry| is_number(&entry.file_name()));
    let files =
        processes.flat_map(|process| std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten());
    let tapes = files.filter_map(|file| std::fs::read_link(file.path()).ok()).filter(|path| path.ends_with(TAPE));
    let folders = tapes.filter_map(|path| path.parent().map(Path::to_owned));
    let prefix = format!("{pid}.");
    let is_it = |folder: &PathBuf| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    let written = |folder: &PathBuf| std::fs::metadata(folder.join(TAPE)).and_then(|about| about.modified()).ok();
    folders.filter(is_it).max_by_key(written)
}
