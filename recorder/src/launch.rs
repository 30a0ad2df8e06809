//! `heaptape record -- PROG`: runs a program and records it. For its parent nothing changes: its
//! input, output, terminal, signals and exit status are the program's own.

use crate::crash::{self, Destination};
use crate::options::Options;
use crate::process::sanitised;
use crate::recorder::Outcome;
use crate::sanitizer;
use crate::session::End;
use crate::signals::Signals;
use crate::socket_dir::SocketDir;
use crate::spawn::{self, Held, Kept, Program};
use crate::store::Sums;
use crate::survivor::Survivor;
use crate::symbols::Work;
use crate::sys;
use crate::tree;
use formats::recording::{Exit, RECORDING, Recording};
use formats::tape::END_SIGNALLED;
use nix::libc::{EAGAIN, WIFSTOPPED, WSTOPSIG};
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use wire::limits::{ENV_ATTACH_MS, ENV_SOCKET, RECORD_ATTACH_MS};

/// What to run, and how.
#[derive(Debug)]
pub struct Launch {
    /// The program, as a shell would look for it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where the recording goes; by default `heaptape.PROG.PID` in the working directory.
    pub dir: Option<PathBuf>,
    /// The preload library.
    pub library: PathBuf,
    /// What was chosen.
    pub options: Options,
    /// Whether the recorder is a process of its own, which outlives the caller: for a caller that
    /// has one thread.
    pub apart: bool,
    /// Whether to stay until all recorded processes have ended.
    pub wait: bool,
    /// How names are looked up that the recording is to keep, with a recorder of its own process.
    pub symbols: Option<Work>,
}

/// A recorded run.
#[derive(Debug)]
pub struct Finished {
    /// The recording.
    pub dir: PathBuf,
    /// What is in it.
    pub outcome: Outcome,
    /// The program's exit code, or 128 + N when signal N ended it.
    pub status: u8,
    /// Why the program itself is not in the recording.
    pub unrecorded: Option<String>,
    /// The recorder, which may still be waiting for names: dropping this waits for it.
    pub recorder: Option<Survivor>,
}

/// The program was not run.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Why, in one line.
    pub message: String,
    /// The exit code that belongs to it: 127 no such program, 126 one that cannot be run, 2
    /// anything else.
    pub status: u8,
    /// The program, when it can run without being recorded: no further process may be started here.
    pub bare: Option<Box<Bare>>,
}

impl Refused {
    /// A refusal after which nothing is run.
    pub fn new(message: String, status: u8) -> Refused {
        Refused { message, status, bare: None }
    }
}

/// A program that takes the command's place.
#[derive(Debug)]
pub struct Bare {
    program: Program,
    kept: Kept,
}

impl Bare {
    /// Replaces this process by the program. Returns the error if there was one.
    pub fn run(&self) -> io::Error {
        self.program.exec(&self.kept)
    }
}

/// A refusal because of a file.
pub fn refuse(path: &Path, error: &io::Error) -> Refused {
    Refused::new(format!("{}: {error}", path.display()), 2)
}

/// Makes the recording's folder.
fn make_dir(launch: &Launch, name: &str, pid: u32) -> Result<PathBuf, Refused> {
    const MOST: u32 = 100;
    for number in 1..=MOST {
        let path = launch.dir.clone().unwrap_or_else(|| {
            let suffix = if number == 1 { String::new() } else { format!(".{number}") };
            PathBuf::from(format!("heaptape.{name}.{pid}{suffix}"))
        });
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(refuse(&path, &error)),
            Err(_) if launch.dir.is_none() && number < MOST => {}
            Err(_) => {
                let message = format!("{} exists already; give another folder with -o", path.display());
                return Err(Refused::new(message, 2));
            }
        }
    }
    Err(Refused::new("no name for the recording is free; give one with -o".into(), 2))
}

fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}

/// Runs the program recorded.
pub fn record(launch: Launch) -> Result<Finished, Refused> {
    let name = Path::new(&launch.program).file_name().unwrap_or(OsStr::new("program"));
    let name = sanitised(name.as_bytes());
    let inherited = if launch.apart { spawn::inherited() } else { Vec::new() };
    let sockets = SocketDir::make()?;
    let refuse_program = |error: &io::Error| {
        let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Refused::new(
            format!("{}: {}", launch.program.to_string_lossy(), why_not_started(&launch.program, error)),
            status,
        )
    };
    let plain = Program::new(&launch.program, &launch.arguments).map_err(|error| refuse_program(&error))?;
    let sanitized = sanitizer::is_in(&find(&launch.program));
    let mut program = plain.clone();
    if !sanitized {
        let attach_ms = std::env::var_os(ENV_ATTACH_MS).unwrap_or_else(|| RECORD_ATTACH_MS.to_string().into());
        let variables = [
            ("LD_PRELOAD", preload(&launch.library)),
            (ENV_SOCKET, sockets.socket().as_os_str().to_owned()),
            (ENV_ATTACH_MS, attach_ms),
        ];
        for (name, value) in variables {
            program.set(name, &value).map_err(|error| refuse_program(&error))?;
        }
    }
    let mut signals = Signals::hold().map_err(|error| Refused::new(format!("signals: {error}"), 2))?;
    let kept = Kept::take(signals.mask, signals.ignores_child);
    let bare = |refused: Refused, error: &io::Error| match error.raw_os_error() {
        Some(EAGAIN) => {
            let bare = Bare { program: plain.clone(), kept: kept.clone() };
            Refused { bare: Some(Box::new(bare)), ..refused }
        }
        _ => refused,
    };
    let held = Held::start(&program, &kept).map_err(|error| bare(refuse_program(&error), &error))?;
    let pid = held.pid;
    let process = sys::process(pid).map_err(|error| refuse_program(&error.into()))?;
    signals.start(sys::fd(&process));
    let dir = make_dir(&launch, &name, pid)?;
    let command: Vec<String> = std::iter::once(&launch.program)
        .chain(&launch.arguments)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let survivor = Survivor::start(
        &dir,
        sockets.socket(),
        launch.options.clone(),
        command,
        (launch.apart, launch.symbols),
        &inherited,
    );
    let survivor = survivor.map_err(|error| {
        let _ = std::fs::remove_dir_all(&dir);
        bare(refuse(&dir, &error), &error)
    })?;
    if launch.apart {
        spawn::close_inherited(&inherited, false);
    }
    if let Err(error) = held.release() {
        survivor.never_mind();
        let _ = std::fs::remove_dir_all(&dir);
        return Err(refuse_program(&error));
    }
    let _crash_report = Destination::of(&dir);
    let status = loop {
        crash::panic_if_requested();
        sys::wait_readable(&[signals.descriptor(), sys::fd(&process)]);
        signals.pass_on(sys::fd(&process), pid, survivor.pid());
        match spawn::child_status(pid) {
            Ok(None) => {}
            Ok(Some(status)) if WIFSTOPPED(status) => {
                // The parent of the command sees it stopped as the program is; the survivor
                // process wakes it when the program goes on.
                if launch.apart {
                    survivor.stopped(pid);
                    spawn::stop(WSTOPSIG(status));
                    survivor.resumed();
                }
            }
            Ok(Some(status)) => break status,
            Err(_) if sys::is_readable(sys::fd(&process)) => break sys::exit_status(sys::fd(&process)).unwrap_or(0),
            Err(_) => {}
        }
    };
    let end = End::of_status(status);
    let why = sanitized
        .then(|| "it was built with a sanitizer, which must be loaded first; build it without one to record it".into());
    survivor.ended(pid, status, &find(&launch.program), why, launch.wait);
    let said = loop {
        sys::wait_readable(&[signals.descriptor(), survivor.descriptor()]);
        if sys::is_readable(survivor.descriptor()) {
            break survivor.finish();
        }
        // The program is gone; what remains to be stopped is the waiting.
        if signals.asks_for_end() && launch.wait {
            survivor.enough();
        }
    };
    let mut outcome = Outcome {
        recording: read_recording(&dir),
        errors: Vec::new(),
        sums: Sums::default(),
        still_running: Vec::new(),
    };
    let unrecorded = match said {
        Some(said) => {
            (outcome.sums, outcome.errors, outcome.still_running) = (said.sums(), said.errors, said.still_running);
            said.unrecorded
        }
        None => {
            let why = crash::report_of(&dir).map_or_else(
                || format!("{}: the recorder was killed: the recording is truncated", dir.display()),
                |report| {
                    format!(
                        "the recorder crashed: the recording is truncated; please send its report: {}",
                        report.display()
                    )
                },
            );
            outcome.errors.push(why);
            None
        }
    };
    let status = if end.reason == END_SIGNALLED { 128 + end.status } else { end.status };
    Ok(Finished { dir, outcome, status: status as u8, unrecorded, recorder: Some(survivor) })
}

/// What `recording.json` says; nothing when it could not be written.
fn read_recording(dir: &Path) -> Recording {
    std::fs::read(dir.join(RECORDING)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// What came of a recording whose command was killed: waits for its recorder, if that is still at
/// work.
pub fn resume(dir: &Path) -> io::Result<Finished> {
    crate::survivor::wait_for_end(dir)?;
    let recording = read_recording(dir);
    let exit = recording.images.first().and_then(|image| image.exit);
    let status = match exit {
        Some(Exit::Code(code)) => code as u8,
        Some(Exit::Signal(signal)) => 128 + signal as u8,
        _ => 0,
    };
    let mut errors = Vec::new();
    if recording.ended_unix_ns.is_none() {
        errors.push(format!("{}: its recorder is gone: what it had written can be read", dir.display()));
    }
    let outcome = Outcome { recording, errors, sums: Sums::default(), still_running: Vec::new() };
    Ok(Finished { dir: dir.to_owned(), outcome, status, unrecorded: None, recorder: None })
}

/// Why a program could not be started, in words that name what is missing.
fn why_not_started(program: &OsStr, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::NotFound {
        return error.to_string();
    }
    let path = find(program);
    match tree::interpreter(&path) {
        Some(interpreter) if path.exists() => format!("its interpreter {} does not exist", interpreter.display()),
        _ if !program.as_bytes().contains(&b'/') => "not found in PATH".into(),
        _ => error.to_string(),
    }
}

/// The file that a shell would run.
fn find(program: &OsStr) -> PathBuf {
    if program.as_bytes().contains(&b'/') {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|place| place.join(program));
    let is_program = |place: &PathBuf| {
        std::fs::metadata(place).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    places.into_iter().find(is_program).unwrap_or_else(|| program.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_judged() {
        assert_eq!(find(OsStr::new("/a/b")), Path::new("/a/b"));
        let shell = find(OsStr::new("sh"));
        assert!(shell.is_absolute() && tree::why_not(&shell).is_none());
        assert!(!sanitizer::is_in(&shell));
    }
}
