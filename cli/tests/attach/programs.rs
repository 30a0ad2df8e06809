//! The programs that are attached, and the command that does it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing that is waited for takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the command: the release in `HEAPTAPE`, as whole runs of the tests have it, which takes a
/// fifth of the time to search for functions.
pub(crate) fn binary() -> &'static str {
    static COMMAND: OnceLock<String> = OnceLock::new();
    COMMAND.get_or_init(|| std::env::var("HEAPTAPE").unwrap_or_else(|_| env!("CARGO_BIN_EXE_heaptape").to_owned()))
}

/// Builds a program from its source in the folder above.
pub(crate) fn build(name: &str, folder: &Path) -> PathBuf {
    build_with(name, folder, &[])
}

/// The same with more options for the compiler.
pub(crate) fn build_with(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let built = folder.join(name);
    let compiled = Command::new("gcc")
        .args(["-O2", "-g", "-fno-builtin", "-fno-optimize-sibling-calls", "-D_GNU_SOURCE", "-pthread"])
        .args(options)
        .arg("-o")
        .args([&built, &source])
        .status();
    assert!(compiled.expect("gcc is installed").success());
    built
}

/// Runs the command, and expects this exit status. Returns both of its outputs.
#[track_caller]
pub(crate) fn heaptape(arguments: &[&str], status: i32) -> String {
    let output = Command::new(binary()).args(arguments).output().expect("it starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    text
}

/// Returns the answer of a question about a recording.
#[track_caller]
pub(crate) fn answer(question: &str, recording: &Path) -> Value {
    let output = Command::new(binary()).args([question, "--json"]).arg(recording).output();
    let output = output.expect("it starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The program, which waits for lines.
pub(crate) struct Running {
    pub child: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
    /// Folder of the program, and of its recordings.
    pub folder: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start(threads: u64) -> Running {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(build("attached", folder.path()))
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut running = Running { child, input, output, folder };
        assert_eq!(running.line(), "ready\n");
        running
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    pub(crate) fn request(&mut self, what: &str) {
        writeln!(self.input, "{what}").expect("it reads");
        assert_eq!(self.line(), "done\n");
    }

    /// Lets all threads allocate once.
    pub(crate) fn work(&mut self) {
        self.request("go");
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Returns the mappings that an attach has made.
    pub(crate) fn mappings(&self) -> String {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("its mappings");
        maps.lines().filter(|line| line.contains("heaptape")).collect()
    }

    /// Ends the program, and expects that nothing has changed for it, but for interruptions of its
    /// wait.
    pub(crate) fn ends_unharmed_after(mut self, interruptions: &[u32]) {
        drop(self.input);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its last line");
        let possible = |count: &u32| rest == format!("0 functions changed, {count} waits interrupted\n");
        assert!(interruptions.iter().any(possible), "{rest}");
        assert!(self.child.wait().expect("its end").success());
    }

    /// Ends the program, and expects that nothing has changed for it.
    pub(crate) fn ends_unharmed(self) {
        self.ends_unharmed_after(&[0]);
    }
}

/// A `heaptape attach` that records.
pub(crate) struct Attach {
    pub child: Child,
    pub errors: BufReader<std::process::ChildStderr>,
    pub recording: PathBuf,
}

impl Attach {
    pub(crate) fn start(running: &Running, recording: &str) -> Attach {
        let recording = running.folder.path().join(recording);
        let mut child = Command::new(binary())
            .args(["attach", "-o"])
            .arg(&recording)
            .arg(running.pid())
            .stderr(Stdio::piped())
            .spawn()
            .expect("heaptape attach starts");
        let mut errors = BufReader::new(child.stderr.take().expect("its messages"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("a line");
        assert!(line.starts_with("attached to attached (pid "), "{line}");
        Attach { child, errors, recording }
    }

    /// Ends it as Ctrl-C does. Returns what it has printed since.
    pub(crate) fn end(&mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("a signal");
        let mut text = String::new();
        self.errors.read_to_string(&mut text).expect("its messages");
        assert!(self.child.wait().expect("its end").success(), "{text}");
        text
    }
}

/// A program of runs_on.c.
pub(crate) struct RunsOn {
    pub child: Child,
    pub output: BufReader<ChildStdout>,
}

impl RunsOn {
    /// Starts a command that ends in the program, and waits until it runs.
    pub(crate) fn start(command: &mut Command) -> RunsOn {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        RunsOn { child, output }
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Ends a process of the program, and expects that nothing has gone wrong in it.
    pub(crate) fn ends_unharmed(mut self, pid: u32) {
        kill(Pid::from_raw(pid as i32), Signal::SIGTERM).expect("it runs");
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its last line");
        assert_eq!(rest, "0 wrong\n");
        assert!(self.child.wait().expect("its end").success());
    }
}

impl Drop for RunsOn {
    fn drop(&mut self) {
        // After a failure it would run on for ever.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
