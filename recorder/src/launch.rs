//! `heaptape record -- PROG`: runs a program recorded. To whoever started it nothing changes: its input, output, terminal, signals and
//! exit status are the program's own.

use crate::attach;
use crate::keeper::Keeper;
use crate::options::Options;
use crate::process::sanitised;
use crate::recorder::Outcome;
use crate::sanitizer;
use crate::session::End;
use crate::store::Sums;
use crate::sys;
use formats::recording::{Exit, RECORDING, Recording};
use formats::tape::END_SIGNALLED;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use wire::limits::{ENV_ATTACH, ENV_SOCKET, RECORD_ATTACH_MS};

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
    /// Whether the recorder is a process of its own, which outlives the caller: for a caller that has one thread.
    pub apart: bool,
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
}

/// The program was not run.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Why, in one line.
    pub message: String,
    /// The exit code that belongs to it: 127 no such program, 126 one that cannot be run, 2 anything else.
    pub status: u8,
}

fn refuse(path: &Path, error: &io::Error) -> Refused {
    Refused { message: format!("{}: {error}", path.display()), status: 2 }
}

/// A folder for the socket that nobody else can look into; goes away with its content.
#[derive(Debug)]
struct Nest(PathBuf);

/// Start of a nest's name; eight hexadecimal digits follow.
const NEST: &str = "heaptape-";
const SOCKET: &str = "socket";

impl Nest {
    fn make() -> Result<Nest, Refused> {
        let places = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
        let mut last = None;
        for place in places.chain([PathBuf::from("/tmp")]) {
            sweep(&place);
            let random = RandomState::new().hash_one(std::process::id());
            let path = place.join(format!("{NEST}{:08x}", random as u32));
            // The socket's address holds 107 bytes.
            if !path.is_absolute() || path.as_os_str().len() > 96 {
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Nest(path)),
                Err(error) => last = Some(refuse(&path, &error)),
            }
        }
        Err(last.unwrap_or(Refused { message: "no folder for the socket".into(), status: 2 }))
    }

    fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }
}

/// Removes the nests in a folder that recorders left behind when they were killed: our own folders of that name, with a socket that nobody
/// listens at. One without a socket belongs to a recorder that is just starting, unless it is old.
fn sweep(place: &Path) {
    const STARTING: Duration = Duration::from_secs(60);
    let ours = nix::unistd::geteuid().as_raw();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.as_bytes().strip_prefix(NEST.as_bytes()).unwrap_or_default();
        let Ok(meta) = entry.metadata() else { continue };
        let is_nest = number.len() == 8 && number.iter().all(u8::is_ascii_hexdigit) && meta.is_dir();
        if !is_nest || meta.uid() != ours || meta.mode() & 0o777 != 0o700 {
            continue;
        }
        let socket = entry.path().join(SOCKET);
        let is_old = meta.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > STARTING);
        let is_dead = match attach::knock(&socket) {
            Err(Errno::ECONNREFUSED) => true,
            Err(Errno::ENOENT) => is_old,
            _ => false,
        };
        if is_dead {
            // Nothing but the socket: a folder that holds anything else is not a nest.
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Signals that end programs are read, not suffered, in this thread and all that it starts; as before when this goes.
struct Signals {
    file: SignalFd,
    /// The mask that we were started with, and the program is to be.
    mask: SigSet,
}

impl Signals {
    fn hold() -> io::Result<Signals> {
        let mut held = SigSet::empty();
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGXFSZ];
        ends.into_iter().for_each(|signal| held.add(signal));
        let mask = held.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let file = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { file, mask })
    }

    /// From the terminal a signal came to the program too; from another process it came to us in the program's place.
    fn pass_on(&self, program: BorrowedFd<'_>) {
        while let Ok(Some(signal)) = self.file.read_signal() {
            if signal.ssi_code <= 0 && signal.ssi_signo != Signal::SIGXFSZ as u32 {
                sys::signal(program, signal.ssi_signo as i32);
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        while let Ok(Some(_)) = self.file.read_signal() {}
        let _ = self.mask.thread_set_mask();
    }
}

/// The recording's folder. Until the program's number is known a default one has another name.
fn make_dir(launch: &Launch, name: &str) -> Result<PathBuf, Refused> {
    let path = match &launch.dir {
        Some(dir) => dir.clone(),
        None => PathBuf::from(format!("heaptape.{name}.starting-{}", std::process::id())),
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let message = format!("{} exists already; give another folder with -o", path.display());
            Err(Refused { message, status: 2 })
        }
        Err(error) => Err(refuse(&path, &error)),
    }
}

/// Gives a default folder its final name.
fn name_dir(launch: &Launch, path: PathBuf, name: &str, pid: u32) -> PathBuf {
    if launch.dir.is_some() {
        return path;
    }
    for number in 1..100 {
        let suffix = if number == 1 { String::new() } else { format!(".{number}") };
        let wanted = PathBuf::from(format!("heaptape.{name}.{pid}{suffix}"));
        if !wanted.exists() && std::fs::rename(&path, &wanted).is_ok() {
            return wanted;
        }
    }
    path
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
    let nest = Nest::make()?;
    let dir = make_dir(&launch, &name)?;
    let signals = Signals::hold().map_err(|error| refuse(&dir, &error))?;
    let command: Vec<String> = std::iter::once(&launch.program)
        .chain(&launch.arguments)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let keeper = Keeper::start(&dir, &nest.socket(), launch.options.clone(), command, launch.apart);
    let keeper = keeper.map_err(|error| refuse(&dir, &error))?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.arguments);
    let sanitized = sanitizer::is_in(&find(&launch.program));
    if !sanitized {
        command.env("LD_PRELOAD", preload(&launch.library)).env(ENV_SOCKET, nest.socket());
        if std::env::var_os(ENV_ATTACH).is_none() {
            command.env(ENV_ATTACH, RECORD_ATTACH_MS.to_string());
        }
    }
    sys::with_mask(&mut command, signals.mask);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            keeper.never_mind();
            let _ = std::fs::remove_dir_all(&dir);
            let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            return Err(Refused { message: format!("{}: {error}", launch.program.to_string_lossy()), status });
        }
    };
    let pid = child.id();
    let dir = name_dir(&launch, dir, &name, pid);
    keeper.named(&dir);
    let process = sys::process(pid).map_err(|error| refuse(&dir, &error.into()))?;
    let status = loop {
        sys::wait_readable(&[sys::fd(&signals.file), sys::fd(&process)]);
        signals.pass_on(sys::fd(&process));
        if let Ok(Some(status)) = child.try_wait() {
            break status.into_raw();
        }
    };
    let end = End::of_status(status);
    let why = sanitized.then(|| "it has a sanitizer, which takes no library before it".into());
    let said = keeper.finish(pid, status, &find(&launch.program), why);
    let mut outcome = Outcome { recording: read_recording(&dir), errors: Vec::new(), sums: Sums::default() };
    let unrecorded = match said {
        Some(said) => {
            (outcome.sums, outcome.errors) = (said.sums(), said.errors);
            said.unrecorded
        }
        None => {
            outcome.errors.push(format!("{}: the recorder was killed: the recording is cut", dir.display()));
            None
        }
    };
    let status = if end.reason == END_SIGNALLED { 128 + end.status } else { end.status };
    Ok(Finished { dir, outcome, status: status as u8, unrecorded })
}

/// What `recording.json` says; nothing when it could not be written.
fn read_recording(dir: &Path) -> Recording {
    std::fs::read(dir.join(RECORDING)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// What came of a recording whose command was killed: waits for its recorder, if that is still at work.
pub fn resume(dir: &Path) -> io::Result<Finished> {
    crate::keeper::wait_for_end(dir)?;
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
    let outcome = Outcome { recording, errors, sums: Sums::default() };
    Ok(Finished { dir: dir.to_owned(), outcome, status, unrecorded: None })
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
        assert!(shell.is_absolute() && crate::tree::why_not(&shell).is_none());
        assert!(!sanitizer::is_in(&shell));
    }
}
