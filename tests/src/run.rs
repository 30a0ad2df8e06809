//! Runs programs and keeps their results.

use crate::recording::Recording;
use crate::wait::{PATIENCE, until_some};
use crate::{is_full, test_env};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Returns the time limit of everything that a test starts, also on a busy machine.
fn longest() -> Duration {
    if is_full() { Duration::from_secs(2_000) } else { PATIENCE }
}

/// Result of a program.
#[derive(Clone)]
pub struct Outcome {
    pub status: ExitStatus,
    /// Bytes of standard output.
    pub stdout: Vec<u8>,
    /// Bytes of standard error.
    pub stderr: Vec<u8>,
    /// Time from start to end.
    pub wall: Duration,
}

impl Outcome {
    /// Returns the exit status as a shell reports it: 128 plus the number of the signal that ended
    /// the program.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns standard error as text.
    pub fn error(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Asserts that the exit status is 0.
    #[track_caller]
    pub fn success(self) -> Outcome {
        self.exits(0)
    }

    /// Asserts this exit status.
    #[track_caller]
    pub fn exits(self, code: i32) -> Outcome {
        assert_eq!(self.code(), code, "{self}");
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 4000;
        writeln!(out, "exit {} after {:?}", self.code(), self.wall)?;
        for (name, bytes) in [("standard output", &self.stdout), ("standard error", &self.stderr)] {
            let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MOST)..]);
            writeln!(out, "--- {name}, {} bytes\n{text}", bytes.len())?;
        }
        Ok(())
    }
}

/// A program with its arguments, environment and input.
#[derive(Clone)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    stdin: Vec<u8>,
    folder: Option<PathBuf>,
    options: Vec<OsString>,
}

impl Program {
    /// Creates a program from its path, or from its name in the search path.
    pub fn new(path: impl AsRef<Path>) -> Program {
        let path = path.as_ref();
        let path = match path.to_str() {
            Some(name) if !name.contains('/') => test_env::need(name),
            _ => path.to_owned(),
        };
        Program {
            path,
            arguments: Vec::new(),
            environment: Vec::new(),
            stdin: Vec::new(),
            folder: None,
            options: Vec::new(),
        }
    }

    /// Creates a shell that executes `line`.
    pub fn shell(line: &str) -> Program {
        Program::new("sh").arg("-c").arg(line)
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Program {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the program's environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Program {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Sets what the program reads from standard input.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Program {
        self.stdin = bytes.into();
        self
    }

    /// Sets the working directory of the program.
    pub fn folder(mut self, folder: impl AsRef<Path>) -> Program {
        self.folder = Some(folder.as_ref().to_owned());
        self
    }

    /// Adds an option of `heaptape record`.
    pub fn option(mut self, option: impl AsRef<OsStr>) -> Program {
        self.options.push(option.as_ref().to_owned());
        self
    }

    /// Returns the same program, started by `launcher` (`setarch -R`, `sh -c '…' sh`).
    pub fn launched_by(mut self, launcher: &[&str]) -> Program {
        let first = std::mem::replace(&mut self.path, test_env::need(launcher[0]));
        let mut arguments: Vec<OsString> = launcher[1..].iter().map(OsString::from).collect();
        arguments.push(first.into());
        arguments.append(&mut self.arguments);
        self.arguments = arguments;
        self
    }

    /// Returns the program, started by a shell that first executes `line` (sets limits, closes
    /// descriptors).
    pub fn after(self, line: &str) -> Program {
        let line = format!("{line}; exec \"$@\"");
        self.launched_by(&["bash", "-c", &line, "bash"])
    }

    /// Returns `other` with this program and its arguments as its last arguments.
    pub fn as_arguments_of(&self, other: Program) -> Program {
        let mut both = other.arg(&self.path).args(&self.arguments);
        both.environment.extend(self.environment.iter().cloned());
        both
    }

    fn command(&self, before: &[OsString]) -> Command {
        let own =
            std::iter::once(&self.path.as_os_str().to_owned()).chain(&self.arguments).cloned().collect::<Vec<_>>();
        let mut arguments = before.iter().chain(&own);
        let mut command = Command::new(arguments.next().expect("the program at least"));
        test_env::for_programs(&mut command);
        command.args(arguments).envs(self.environment.iter().cloned());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    /// Runs the program without heaptape.
    pub fn plain(&self) -> Outcome {
        finish(self.command(&[]), &self.stdin)
    }

    /// Runs the program with the library and no recorder: the socket does not exist.
    pub fn preloaded(&self) -> Outcome {
        self.preloaded_with("/nonexistent/heaptape.socket")
    }

    /// Runs the program with the library and this socket.
    pub fn preloaded_with(&self, socket: impl AsRef<OsStr>) -> Outcome {
        let mut command = self.command(&[]);
        command.env("LD_PRELOAD", test_env::library()).env("HEAPTAPE_SOCKET", socket);
        finish(command, &self.stdin)
    }

    /// Returns the command line that records the program into `folder`.
    fn record_into(&self, folder: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            vec![test_env::command().into(), "record".into(), "-q".into(), "-o".into(), folder.into()];
        arguments.extend(self.options.iter().cloned());
        arguments.push("--".into());
        arguments
    }

    /// Records the program as a user does: without `-o`, in a new working directory. A program that
    /// has a working directory is recorded with `-o`.
    pub fn recorded(&self) -> Recording {
        let directory = test_env::folder();
        let mut folder = directory.path().join("r");
        if self.folder.is_some() {
            let outcome = finish(self.command(&self.record_into(&folder)), &self.stdin);
            return Recording { outcome, folder, directory };
        }
        let mut arguments: Vec<OsString> = vec![test_env::command().into(), "record".into(), "-q".into()];
        arguments.extend(self.options.iter().cloned());
        arguments.push("--".into());
        let mut command = self.command(&arguments);
        command.current_dir(directory.path());
        let outcome = finish(command, &self.stdin);
        let entries = std::fs::read_dir(directory.path()).into_iter().flatten().flatten();
        let mut found = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("heaptape."));
        if let Some(entry) = found.next() {
            assert!(found.next().is_none(), "one recording was expected: {outcome}");
            folder = entry.path();
        }
        Recording { outcome, folder, directory }
    }

    /// Runs a program that counts its own events into `file` (`programs/own.h`) alone and recorded, and
    /// checks that it does and says the same. The file has the counts of the recorded run.
    pub fn recorded_counting(&self, file: &Path) -> Recording {
        let plain = self.plain().success();
        std::fs::remove_file(file).expect("own figures");
        let recording = self.recorded();
        same(&plain, &recording.outcome);
        recording
    }

    /// Runs the program alone, with the library but without a recorder, and recorded, and checks that
    /// it does and says the same each time. Returns the recording.
    pub fn undisturbed(&self) -> Recording {
        let plain = self.plain();
        same(&plain, &self.preloaded());
        let recording = self.recorded();
        same(&plain, &recording.outcome);
        recording
    }

    /// Records the program, and calls `meanwhile` with the process of the command and the folder of
    /// the recording.
    pub fn recorded_while(&self, meanwhile: impl FnOnce(&mut Child, &Path)) -> Recording {
        let directory = test_env::folder();
        let folder = directory.path().join("r");
        let outcome =
            finish_while(self.command(&self.record_into(&folder)), &self.stdin, |child| meanwhile(child, &folder));
        Recording { outcome, folder, directory }
    }
}

/// Waits for the survivor process of a command, which leads a process group.
#[track_caller]
pub fn survivor(command: &Child) -> Pid {
    let id = command.id();
    let own = std::fs::canonicalize(test_env::command()).expect("the command's path");
    until_some("the command has a survivor process", || {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let mut children = children.split_whitespace().filter_map(|word| word.parse::<i32>().ok());
        let is_survivor = |pid: &i32| {
            let leads = nix::unistd::getpgid(Some(Pid::from_raw(*pid))).is_ok_and(|group| group.as_raw() == *pid);
            leads && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own)
        };
        children.find(is_survivor).map(Pid::from_raw)
    })
}

/// Returns whether a recording has a process.
pub fn has_events(folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| entry.path().join("events.tape").exists())
}

/// Returns the program that a command records, once it runs.
pub fn started(command: u32) -> Option<Pid> {
    let own = std::fs::read_link(format!("/proc/{command}/exe")).ok()?;
    let text = std::fs::read_to_string(format!("/proc/{command}/task/{command}/children")).ok()?;
    let mut children = text.split_whitespace().filter_map(|word| word.parse::<i32>().ok());
    let runs = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe != own);
    children.find(runs).map(Pid::from_raw)
}

/// Runs a command to its end.
pub fn finish(command: Command, stdin: &[u8]) -> Outcome {
    finish_while(command, stdin, |_| {})
}

/// Runs a command to its end, and calls `meanwhile` once it has started. A command that does not
/// end is killed with all that it started, and the test fails.
pub fn finish_while(mut command: Command, stdin: &[u8], meanwhile: impl FnOnce(&mut Child)) -> Outcome {
    let start = Instant::now();
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command.stdin(if stdin.is_empty() { Stdio::null() } else { Stdio::piped() });
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let pipe_in = child.stdin.take();
    let (pipe_out, pipe_error) = (child.stdout.take(), child.stderr.take());
    let (status, stdout, stderr) = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program may end without reading all.
            pipe_in.map(|mut pipe| pipe.write_all(stdin)).transpose().ok();
        });
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            let mut bytes = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut bytes)).transpose().ok();
            bytes
        };
        let out = scope.spawn(move || read(pipe_out.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)));
        let error = scope.spawn(move || read(pipe_error.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)));
        meanwhile(&mut child);
        let mut nap = Duration::from_micros(200);
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child can be waited for") {
                break Some(status);
            }
            if start.elapsed() > longest() {
                killpg(group, Signal::SIGKILL).ok();
                child.wait().ok();
                break None;
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        };
        (status, out.join().unwrap_or_default(), error.join().unwrap_or_default())
    });
    let wall = start.elapsed();
    let Some(status) = status else {
        panic!(
            "{command:?} did not end in {:?} and was killed; standard error:\n{}",
            longest(),
            String::from_utf8_lossy(&stderr)
        );
    };
    Outcome { status, stdout, stderr, wall }
}

/// Asserts that two runs have the same exit status, standard output and standard error, byte for
/// byte.
#[track_caller]
pub fn same(plain: &Outcome, other: &Outcome) {
    let alike = plain.code() == other.code() && plain.stdout == other.stdout && plain.stderr == other.stderr;
    assert!(alike, "the two runs differ\n======== plain: {plain}\n======== other: {other}");
}
