//! `heaptape record -- PROG`: runs a program recorded. To whoever started it nothing changes: its input, output, terminal, signals and
//! exit status are the program's own.

use crate::options::Options;
use crate::process::sanitised;
use crate::recorder::{Outcome, Recorder};
use crate::session::End;
use crate::sys;
use formats::tape::END_SIGNALLED;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use wire::limits::ENV_SOCKET;

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

impl Nest {
    fn make() -> Result<Nest, Refused> {
        let places = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
        let mut last = None;
        for place in places.chain([PathBuf::from("/tmp")]) {
            let random = RandomState::new().hash_one(std::process::id());
            let path = place.join(format!("heaptape-{:08x}", random as u32));
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
        self.0.join("socket")
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
    let mut recorder =
        Recorder::start(&dir, &nest.socket(), launch.options.clone(), command).map_err(|error| refuse(&dir, &error))?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.arguments);
    let sanitized = is_sanitized(&find(&launch.program));
    if !sanitized {
        command.env("LD_PRELOAD", preload(&launch.library)).env(ENV_SOCKET, nest.socket());
    }
    sys::with_mask(&mut command, signals.mask);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            drop(recorder.finish());
            let _ = std::fs::remove_dir_all(&dir);
            let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            return Err(Refused { message: format!("{}: {error}", launch.program.to_string_lossy()), status });
        }
    };
    let pid = child.id();
    let dir = name_dir(&launch, dir, &name, pid);
    recorder.moved(&dir);
    let process = sys::process(pid).map_err(|error| refuse(&dir, &error.into()))?;
    let mut failed = None;
    let status = loop {
        let ready = recorder.serve(&[sys::fd(&signals.file), sys::fd(&process)], Duration::from_secs(1));
        signals.pass_on(sys::fd(&process));
        // Whatever fails here (a full disk above all), the program runs on and its status is ours.
        if let Err(error) = &ready {
            failed.get_or_insert_with(|| format!("{}: {error}", dir.display()));
            std::thread::sleep(Duration::from_millis(20));
        }
        if ready.map_or(true, |ready| ready.get(1) == Some(&true))
            && let Ok(Some(status)) = child.try_wait()
        {
            break status.into_raw();
        }
    };
    let end = End::of_status(status);
    recorder.process_ended(pid, end);
    let mut unrecorded = None;
    if !recorder.images().iter().any(|image| image.pid == pid) {
        let path = find(&launch.program);
        let why = if sanitized {
            Some("it has a sanitizer, which takes no library before it".into())
        } else {
            why_not(&path)
        };
        let why = why.unwrap_or_else(|| "it did not load the library".into());
        if !recorder.knows_untraced(pid) {
            recorder.not_traced(pid, path.to_string_lossy().into_owned(), why.clone());
            unrecorded = Some(why);
        }
    }
    let mut outcome = recorder.finish();
    outcome.errors.extend(failed);
    let status = if end.reason == END_SIGNALLED { 128 + end.status } else { end.status };
    Ok(Finished { dir, outcome, status: status as u8, unrecorded })
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

/// Why a program cannot load the library, from the head of its file.
fn why_not(path: &Path) -> Option<String> {
    const PT_INTERP: u32 = 3;
    let mut file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    if meta.mode() & 0o6000 != 0 && meta.uid() != nix::unistd::geteuid().as_raw() {
        return Some("it runs with another user's rights (setuid), and then no library is preloaded".into());
    }
    let mut head = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut head).ok()?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let interpreter = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
        return why_not(Path::new(&OsString::from_vec(interpreter.to_vec())));
    }
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if head.get(4) != Some(&2) {
        return Some("it is a 32-bit program".into());
    }
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    let is_static = (0..count).all(|row| number(table.saturating_add(row * size), 4) != Some(u64::from(PT_INTERP)));
    is_static.then(|| "it is statically linked".into())
}

/// Whether a program carries or needs a sanitizer's run-time, which ends the program when another library stands before it.
fn is_sanitized(path: &Path) -> bool {
    /// Names are looked for in this much of the file; string tables of programs lie in front.
    const MOST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    read.is_ok()
        && bytes.starts_with(b"\x7fELF")
        && [&b"__asan_init"[..], b"__tsan_init", b"__msan_init", b"__hwasan_init"]
            .iter()
            .any(|name| holds(&bytes, name))
}

/// Whether a name stands in a string table.
fn holds(bytes: &[u8], name: &[u8]) -> bool {
    let (first, rest) = (name[0], &name[1..]);
    let mut places = bytes.iter().enumerate().filter(|(_, byte)| **byte == first).map(|(place, _)| place + 1);
    places.any(|place| bytes[place..].starts_with(rest) && bytes.get(place + rest.len()) == Some(&0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_judged() {
        assert_eq!(find(OsStr::new("/a/b")), Path::new("/a/b"));
        let shell = find(OsStr::new("sh"));
        assert!(shell.is_absolute() && why_not(&shell).is_none());
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let path = folder.path().join("program");
        let mut elf = vec![0u8; 120];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
        for (bytes, why) in [(&elf[..], Some("statically")), (b"\x7fELF\x01", Some("32-bit")), (b"text", None)] {
            std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{error}"));
            let found = why_not(&path);
            assert_eq!(found.is_some(), why.is_some());
            assert!(found.unwrap_or_default().contains(why.unwrap_or_default()));
        }
        elf[64] = 3;
        std::fs::write(&path, &elf).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(why_not(&path), None);
        elf[32..40].fill(255);
        std::fs::write(&path, &elf).unwrap_or_else(|error| panic!("{error}"));
        assert!(why_not(&path).is_some());
    }
}
