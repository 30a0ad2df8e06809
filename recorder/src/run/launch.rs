//! `heaptape record -- PROG`: runs a program and records it. For the parent of the command nothing
//! changes: input, output, terminal, signals and exit status are the program's own.

use crate::inject::static_program::{self, StaticProgram, Tracee};
use crate::os::crash::{self, Destination};
use crate::os::signals::Signals;
use crate::os::spawn::{self, ExecAttributes, HeldChild, Program};
use crate::os::start_again;
use crate::os::sys;
use crate::run::recorder::Outcome;
pub use crate::run::recording_lock::has_recorder;
use crate::run::survivor::{Plan, ProgramEnd, Progress, Summary, Survivor};
use crate::session::options::Options;
use crate::session::socket_dir::{SocketDir, SocketDirError};
use crate::target::name_saver::Work;
use crate::target::proc::{self, End, sanitized_name};
use crate::target::sanitizer;
use crate::target::untraced;
use formats::recording::{Accounting, Exit, RECORDING, Recording};
use formats::tape::END_SIGNALLED;
use nix::libc::{EAGAIN, WIFEXITED, WIFSTOPPED, WSTOPSIG};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use wire::hello::UntracedReason;
use wire::limits::{ENV_ATTACH_MS, ENV_FILTERS, ENV_SOCKET, RECORD_ATTACH_MS};

/// What to run, and how to record it.
#[derive(Debug)]
pub struct Launch {
    /// The program: a path, or a name to find in PATH.
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// Folder of the recording; by default `heaptape.PROG.PID` in the working directory.
    pub dir: Option<PathBuf>,
    pub library: PathBuf,
    /// Further libraries that are preloaded into the program, after that.
    pub preloads: Vec<PathBuf>,
    /// How the program is recorded.
    pub options: Options,
    /// Whether the recorder is a process of its own, which survives the caller. The caller must
    /// have one thread.
    pub separate: bool,
    /// Whether to wait until all recorded processes have ended.
    pub wait: bool,
    /// How function names are looked up that the recording stores; only used with a separate
    /// recorder.
    pub symbols: Option<Work>,
}

/// The outcome of a recorded run.
#[derive(Debug)]
pub struct Finished {
    /// Folder of the recording.
    pub dir: PathBuf,
    /// Contents of the recording.
    pub outcome: Outcome,
    /// Exit code of the program, or 128 + N when signal N ended it.
    pub status: u8,
    /// Why the program itself is not in the recording; `None` if it is.
    pub unrecorded: Option<String>,
    /// The recorder, which may still be waiting for function names. Its drop waits for it.
    pub recorder: Option<Survivor>,
}

/// An error because of which the program was not run.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LaunchError {
    /// The error message, in one line.
    pub message: String,
    /// Exit code of the command: 127 for a program that does not exist, 126 for one that cannot be
    /// run, 2 for any other error.
    pub status: u8,
    /// The program, when it can run without being recorded because no further process could be
    /// started.
    pub unrecorded: Option<Box<UnrecordedProgram>>,
}

impl LaunchError {
    /// Creates an error after which nothing is run.
    pub fn new(message: String, status: u8) -> LaunchError {
        LaunchError { message, status, unrecorded: None }
    }
}

/// A program that replaces the command and runs without being recorded.
#[derive(Debug)]
pub struct UnrecordedProgram {
    program: Program,
    attributes: ExecAttributes,
}

impl UnrecordedProgram {
    /// Replaces this process by the program. Returns only if that fails.
    pub fn run(&self) -> io::Error {
        self.program.exec(&self.attributes)
    }
}

impl From<SocketDirError> for LaunchError {
    fn from(error: SocketDirError) -> LaunchError {
        LaunchError::new(error.to_string(), 2)
    }
}

/// Creates an error about a path.
fn path_error(path: &Path, error: &io::Error) -> LaunchError {
    LaunchError::new(format!("{}: {error}", path.display()), 2)
}

/// Creates the folder of the recording: `dir`, or `heaptape.PROG.PID` in the working directory.
///
/// # Errors
/// It exists already, or cannot be created.
pub fn make_dir(dir: Option<&Path>, program: &OsStr, pid: u32) -> Result<PathBuf, LaunchError> {
    const MAX_NUMBER: u32 = 100;
    let name = Path::new(program).file_name().unwrap_or(OsStr::new("program"));
    let name = sanitized_name(name.as_bytes());
    for number in 1..=MAX_NUMBER {
        let path = dir.map(Path::to_owned).unwrap_or_else(|| {
            let suffix = if number == 1 { String::new() } else { format!(".{number}") };
            PathBuf::from(format!("heaptape.{name}.{pid}{suffix}"))
        });
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let message = format!("{}: {error}: choose another folder with -o", path.display());
                return Err(LaunchError::new(message, 2));
            }
            Err(_) if dir.is_none() && number < MAX_NUMBER => {}
            Err(_) => {
                let message = format!("{} exists already: choose another folder with -o", path.display());
                return Err(LaunchError::new(message, 2));
            }
        }
    }
    Err(LaunchError::new("all default names for the recording exist: choose a folder with -o".into(), 2))
}

/// Returns the value of `LD_PRELOAD`: the library, further ones, then what the variable held
/// before.
pub fn preload(library: &Path, further: &[PathBuf]) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let before = start_again::preloaded().filter(|others| !others.is_empty());
    for other in further.iter().map(|path| path.as_os_str()).chain(before.as_deref()) {
        value.push(":");
        value.push(other);
    }
    value
}

/// Returns why a program has to be started without the library, if so.
fn why_unsuited(launch: &Launch) -> Option<&'static str> {
    let path = find(&launch.program);
    if sanitizer::is_sanitized(&path) {
        return Some("it was built with a sanitizer, which must be loaded first; build it without one to record it");
    }
    let preloaded = start_again::preloaded().unwrap_or_default();
    let is_runtime =
        |libraries: &OsStr| wire::sanitizer::libraries(libraries.as_bytes()).any(wire::sanitizer::is_runtime);
    if is_runtime(&preloaded) || launch.preloads.iter().any(|path| is_runtime(path.as_os_str())) {
        return Some("LD_PRELOAD names a run-time library that must be loaded first: leave that out to record it");
    }
    // Its loader would complain about a 64-bit library.
    let is_small = untraced::why_not(&path).is_some_and(|why| why == UntracedReason::ThirtyTwoBit.text());
    is_small.then_some(UntracedReason::ThirtyTwoBit.text())
}

/// Returns how many seccomp filters apply to this process.
fn seccomp_filters() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    // Linux 5.9 counts them.
    value("Seccomp_filters:").or_else(|| value("Seccomp:"))
}

/// Returns how long a program waits for its attach, in milliseconds.
fn default_attach_ms(options: &Options) -> u64 {
    RECORD_ATTACH_MS + options.search_limit.map_or(0, |limit| limit.as_millis() as u64)
}

/// Returns the variables that make a program load the library, and find the recorder.
fn variables(launch: &Launch, socket: &Path) -> impl Iterator<Item = (&'static str, OsString)> {
    let attach_ms =
        std::env::var_os(ENV_ATTACH_MS).unwrap_or_else(|| default_attach_ms(&launch.options).to_string().into());
    let variables = [
        ("LD_PRELOAD", preload(&launch.library, &launch.preloads)),
        (ENV_SOCKET, socket.as_os_str().to_owned()),
        (ENV_ATTACH_MS, attach_ms),
    ];
    // The program has at least the filters of this command, which has not been harmed by them.
    let filters = seccomp_filters().filter(|count| *count > 0).map(|count| (ENV_FILTERS, count.to_string().into()));
    variables.into_iter().chain(filters)
}

/// Lets the program run. Into a static one the library is loaded first; returns why that failed.
fn release(
    held: HeldChild,
    loading: Option<Result<StaticProgram, String>>,
    library: &[u8],
) -> io::Result<Option<String>> {
    let Some(found) = loading else { return held.release(|| ()).map(|()| None) };
    let pid = held.pid;
    let tracee = found.and_then(|program| {
        let tracee = Tracee::seize(pid).map_err(|error| error.to_string())?;
        Ok((tracee, program))
    });
    let mut not_loaded = None;
    held.release(|| {
        let loaded =
            tracee.and_then(|(tracee, program)| tracee.load(&program, library).map_err(|error| error.to_string()));
        not_loaded = loaded.err();
    })?;
    Ok(not_loaded)
}

/// Passes signals on until the program has ended, and stops with it. Returns its wait status, and what
/// only its parent can know of its end.
fn wait_for_program(
    pid: u32,
    process: &OwnedFd,
    signals: &mut Signals,
    survivor: &mut Survivor,
    stops: bool,
) -> (i32, ProgramEnd) {
    let mut last = ProgramEnd::default();
    let status = loop {
        crash::panic_if_requested();
        let watched = [signals.descriptor(), sys::fd(process)];
        sys::wait_readable(&watched.into_iter().chain(survivor.descriptor()).collect::<Vec<_>>());
        if survivor.descriptor().is_some_and(sys::is_readable) {
            survivor.handle_message();
        }
        signals.forward(sys::fd(process), pid, survivor.pid());
        // The kernel forgets it once the program is waited for.
        if sys::is_readable(sys::fd(process)) {
            last.child_faults = proc::child_faults(pid).unwrap_or(last.child_faults);
            last.child_reads = proc::child_reads(pid);
            last.name = proc::name(pid);
        }
        match spawn::child_status(pid) {
            Ok(None) => {}
            Ok(Some(status)) if WIFSTOPPED(status) => {
                // The parent of the command sees it stopped like the program. The survivor process
                // continues it when the program continues.
                if stops {
                    survivor.command_stopped(pid);
                    spawn::stop(WSTOPSIG(status));
                    survivor.command_continued();
                }
            }
            Ok(Some(status)) => break status,
            Err(_) if sys::is_readable(sys::fd(process)) => break sys::exit_status(sys::fd(process)).unwrap_or(0),
            Err(_) => {}
        }
    };
    last.status = status;
    if !WIFEXITED(status) {
        last.name.clear();
    }
    (status, last)
}

/// Waits until the recording is complete. Returns `None` if its recorder was lost.
fn wait_for_recorder(signals: &mut Signals, survivor: &mut Survivor, waits_for_others: bool) -> Option<Summary> {
    loop {
        let channel = survivor.descriptor()?;
        sys::wait_readable(&[signals.descriptor(), channel]);
        if sys::is_readable(channel) {
            match survivor.handle_message() {
                Progress::Finished(summary) => return Some(summary),
                Progress::Recording | Progress::Gone => continue,
            }
        }
        // The program has ended: a signal now stops the wait for other processes.
        if signals.has_end_request() && waits_for_others {
            survivor.stop_waiting();
        }
    }
}

/// Returns what was recorded, and why the program itself was not.
fn outcome(dir: &Path, survivor: &Survivor, summary: Option<Summary>) -> (Outcome, Option<String>) {
    let recording = read_recording(dir);
    let Some(summary) = summary else {
        let error = match (crash::report_of(dir), survivor.crash()) {
            (Some(report), _) => format!(
                "the recorder crashed: the recording is truncated; please send its report: {}",
                report.display()
            ),
            (None, Some(signal)) => format!(
                "{}: the recorder crashed ({signal}): the recording is truncated; a core dump, where the system \
                 keeps them (coredumpctl), shows the cause",
                dir.display()
            ),
            (None, None) => format!("{}: the recorder was killed: the recording is truncated", dir.display()),
        };
        let (sums, still_running) = (Accounting::default(), Vec::new());
        return (Outcome { recording, errors: vec![error], sums, still_running }, None);
    };
    let replaced = (survivor.replacements() > 0).then(|| {
        format!("{}: the recorder was killed and replaced: the recording has its processes in parts", dir.display())
    });
    let (sums, still_running) = (summary.sums(), summary.still_running);
    let errors = replaced.into_iter().chain(summary.errors).collect();
    (Outcome { recording, errors, sums, still_running }, summary.unrecorded)
}

/// Runs a program, records it, and waits for its end.
///
/// # Errors
/// Why the program was not run, or was not recorded.
pub fn record(launch: Launch) -> Result<Finished, LaunchError> {
    let inherited = if launch.separate { spawn::inherited() } else { Vec::new() };
    let sockets = SocketDir::make()?;
    let program_error = |error: &io::Error| {
        let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        LaunchError::new(
            format!("{}: {}", launch.program.to_string_lossy(), why_not_started(&launch.program, error)),
            status,
        )
    };
    let unrecorded = Program::new(&launch.program, &launch.arguments).map_err(|error| program_error(&error))?;
    let unsuited = why_unsuited(&launch);
    let mut program = unrecorded.clone();
    if unsuited.is_none() {
        for (name, value) in variables(&launch, sockets.socket()) {
            program.set(name, &value).map_err(|error| program_error(&error))?;
        }
    }
    let mut signals = Signals::block_all().map_err(|error| LaunchError::new(format!("signals: {error}"), 2))?;
    let attributes = ExecAttributes::capture(signals.mask, signals.ignores_child);
    let or_unrecorded = |failed: LaunchError, error: &io::Error| match error.raw_os_error() {
        Some(EAGAIN) => {
            let program = UnrecordedProgram { program: unrecorded.clone(), attributes: attributes.clone() };
            LaunchError { unrecorded: Some(Box::new(program)), ..failed }
        }
        _ => failed,
    };
    let planner = launch.options.planner().without_background();
    let loading = static_program::find(&find(&launch.program), &planner);
    let held = HeldChild::start(&program, &attributes).map_err(|error| or_unrecorded(program_error(&error), &error))?;
    let pid = held.pid;
    let process = sys::process(pid).map_err(|error| program_error(&error.into()))?;
    signals.start(sys::fd(&process));
    let dir = make_dir(launch.dir.as_deref(), &launch.program, pid)?;
    let command: Vec<String> = std::iter::once(&launch.program)
        .chain(&launch.arguments)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let survivor = Survivor::start(Plan {
        dir: dir.clone(),
        socket: sockets.socket().to_owned(),
        options: launch.options.clone(),
        command,
        separate: launch.separate,
        work: launch.symbols,
        missed: planner.has_missed().then(|| find(&launch.program)),
        inherited: inherited.clone(),
    });
    let mut survivor = survivor.map_err(|error| {
        let _ = std::fs::remove_dir_all(&dir);
        or_unrecorded(path_error(&dir, &error), &error)
    })?;
    if launch.separate {
        spawn::close_inherited(&inherited, false);
    }
    let not_loaded = match release(held, loading, launch.options.standalone) {
        Ok(not_loaded) => not_loaded,
        Err(error) => {
            survivor.program_not_started();
            let _ = std::fs::remove_dir_all(&dir);
            return Err(program_error(&error));
        }
    };
    // Deferred until the program runs, so that cleanup doesn't delay its start.
    sockets.remove_stale();
    let _crash_report = Destination::of(&dir);
    let (status, last) = wait_for_program(pid, &process, &mut signals, &mut survivor, launch.separate);
    let end = End::of_status(status);
    signals.program_ended();
    let why =
        unsuited.map(str::to_owned).or_else(|| not_loaded.map(|why| format!("it is statically linked, and {why}")));
    survivor.program_ended(pid, last, &find(&launch.program), why, launch.wait);
    let summary = wait_for_recorder(&mut signals, &mut survivor, launch.wait);
    let (outcome, unrecorded) = outcome(&dir, &survivor, summary);
    let status = if end.reason == END_SIGNALLED { 128 + end.status } else { end.status };
    Ok(Finished { dir, outcome, status: status as u8, unrecorded, recorder: Some(survivor) })
}

/// Reads `recording.json`; returns an empty recording when it could not be written.
fn read_recording(dir: &Path) -> Recording {
    std::fs::read(dir.join(RECORDING)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Waits for the recorder of a recording whose command was killed, if it still runs, and returns
/// the outcome.
///
/// # Errors
/// When the lock of the recording cannot be taken.
pub fn resume(dir: &Path) -> io::Result<Finished> {
    crate::run::recording_lock::wait_for_end(dir)?;
    let recording = read_recording(dir);
    let first = recording.processes.first().map(|image| image.pid);
    // The part of a killed recorder has no end.
    let exit = recording.processes.iter().filter(|image| Some(image.pid) == first).find_map(|image| image.exit);
    let status = match exit {
        Some(Exit::Code(code)) => code as u8,
        Some(Exit::Signal(signal)) => 128 + signal as u8,
        _ => 0,
    };
    let mut errors = Vec::new();
    if recording.ended_unix_ns.is_none() {
        errors.push(format!("{}: its recorder ended early: the recording is truncated", dir.display()));
    } else if recording.processes.iter().any(|image| image.exit.is_none()) {
        errors.push(format!(
            "{}: its recorder was killed and replaced: the recording has its processes in parts",
            dir.display()
        ));
    }
    let outcome = Outcome { recording, errors, sums: Accounting::default(), still_running: Vec::new() };
    Ok(Finished { dir: dir.to_owned(), outcome, status, unrecorded: None, recorder: None })
}

/// Returns why a program could not be started, with the name of what is missing.
fn why_not_started(program: &OsStr, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::NotFound {
        return error.to_string();
    }
    let path = find(program);
    match untraced::interpreter(&path) {
        Some(interpreter) if path.exists() => format!("its interpreter {} does not exist", interpreter.display()),
        _ if !program.as_bytes().contains(&b'/') => "not found in PATH".into(),
        _ => error.to_string(),
    }
}

/// Opens the file that is executed for a program: a path, or a name to find in PATH.
pub fn open_program(program: &OsStr) -> Option<File> {
    untraced::open_program(&find(program))
}

/// Returns the file that a shell would run.
fn find(program: &OsStr) -> PathBuf {
    if program.as_bytes().contains(&b'/') {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(program));
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    candidates.find(is_program).unwrap_or_else(|| program.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_classified() {
        assert_eq!(find(OsStr::new("/a/b")), Path::new("/a/b"));
        let shell = find(OsStr::new("sh"));
        assert!(shell.is_absolute() && untraced::why_not(&shell).is_none());
        assert!(!sanitizer::is_sanitized(&shell));
    }
}
