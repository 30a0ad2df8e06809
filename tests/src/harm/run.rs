//! Runs a case bare, recorded or otherwise, and reads what it saw.

use super::{Case, Linkage};
use crate::{Daemon, Target, test_env};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum duration of a case without the library. A longer one is left out.
const LONGEST_BARE: Duration = Duration::from_secs(10);
/// Maximum duration of a case with the library. A longer one hangs: the longest cases take a second
/// on an idle machine, and the machine may be thirty times busier.
const LONGEST: Duration = Duration::from_secs(45);

/// Duration of a case without the library from which on it may take the maximum with it.
const RUNAWAY: Duration = Duration::from_millis(250);

/// Size of `struct shared` of `harm_log.h`: a page, then the logs of the threads.
const LOG_HEADER: u64 = 4096;
const LOG_BYTES: u64 = LOG_HEADER + 128 * (128 << 10);

/// The kind of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Without the library.
    Bare,
    /// With the library, but without a recorder.
    Alone,
    /// By `heaptape record`, with these options.
    Recorded(&'static [&'static str]),
    /// Under a daemon, in this mode.
    Daemon(&'static str),
    /// With a library that does one kind of harm, to try the comparison itself.
    Planted(&'static str),
}

/// The observable results of a case, which must not depend on the kind of run.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The exit status as a shell shows it (`exit 0`), or that it did not end.
    pub end: String,
    /// Bytes of standard output.
    pub stdout: Vec<u8>,
    /// Bytes of standard error.
    pub stderr: Vec<u8>,
    /// Text of the program's log.
    pub log: Vec<String>,
    /// Counts of the program itself.
    pub counts: Counts,
    /// How long it took.
    pub took: Duration,
}

/// Counts of the program itself. They are not compared, since a signal may come between an action
/// and its count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Number of processes that libc's functions started.
    pub processes: u64,
    /// Number of allocations, without those inside libc.
    pub allocs: u64,
    /// Number of reallocations.
    pub resizes: u64,
    pub frees: u64,
}

impl Observation {
    /// Returns whether the program was still running after the maximum duration.
    pub fn is_stuck(&self) -> bool {
        self.end == "does not end"
    }

    /// Returns whether it takes long by itself, as a handler does that a fault calls again and again until its stack
    /// is full. With the library it takes that much longer.
    pub fn runs_away(&self) -> bool {
        self.took > RUNAWAY
    }

    /// Returns the standard error of another run without what is documented: a program that cannot start,
    /// since it has no free descriptor, cannot read the library either, and the loader says both.
    fn expected(&self, stderr: &[u8]) -> Vec<u8> {
        const NO_DESCRIPTOR: &str = "cannot open shared object file: Error 24";
        if !String::from_utf8_lossy(&self.stderr).contains(NO_DESCRIPTOR) {
            return stderr.to_vec();
        }
        let is_ours = |line: &&[u8]| {
            let line = String::from_utf8_lossy(line);
            line.starts_with("ERROR: ld.so: object '") && line.contains("libheaptape")
        };
        stderr.split_inclusive(|byte| *byte == b'\n').filter(|line| !is_ours(line)).flatten().copied().collect()
    }

    /// Returns a description of the first difference from `other`.
    pub fn difference(&self, other: &Observation) -> Option<String> {
        if let Some(line) =
            (0..self.log.len().max(other.log.len())).find(|&line| self.log.get(line) != other.log.get(line))
        {
            let from = line.saturating_sub(4);
            let show = |log: &[String]| {
                let lines = log.iter().skip(from).take(7).map(|line| format!("    {line}\n"));
                lines.collect::<String>()
            };
            let stderr = String::from_utf8_lossy(&other.stderr[..other.stderr.len().min(600)]);
            let ends = format!("bare: {}, other: {}, which says {stderr:?}", self.end, other.end);
            return Some(format!(
                "log, line {line} ({ends}):\n  bare:\n{}  other:\n{}",
                show(&self.log),
                show(&other.log)
            ));
        }
        if self.end != other.end {
            return Some(format!("end: {} bare, {} otherwise", self.end, other.end));
        }
        let stderr = self.expected(&other.stderr);
        for (name, one, two) in
            [("standard output", &self.stdout, &other.stdout), ("standard error", &self.stderr, &stderr)]
        {
            if one != two {
                let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned();
                return Some(format!("{name}:\n  bare: {:?}\n  other: {:?}", text(one), text(two)));
            }
        }
        None
    }
}

/// The programs, plugins, folder and daemons that all runs share.
pub struct Bench {
    programs: [PathBuf; 2],
    planted: PathBuf,
    folder: TempDir,
    daemon: Daemon,
}

impl Bench {
    /// Builds the programs and starts a daemon. Signal-safe cases have an allocator of their own,
    /// however the others are linked.
    pub fn new(linkage: Linkage) -> Bench {
        let folder = test_env::folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a folder that all may read");
        for kind in 0..4 {
            let name = format!("plug{kind}.so");
            let target = Target::library("harm_plugin.cpp").flag(format!("-DKIND={kind}")).flag("-Wl,--as-needed");
            test_env::copy(target.named(&name).build(), folder.path().join(&name));
        }
        let allocator = Target::library("signal_safe_allocator.c").build();
        let program = || Target::program("harm_steps.c").flag("-Wno-clobbered");
        Bench {
            programs: [
                linkage.link(program()).build(),
                program().named("harm_steps_safe").with(&allocator).libraries(&["-lm"]).build(),
            ],
            planted: Target::library("harm_planted.c").build(),
            folder,
            daemon: Daemon::start(&["--mode", "trace"]),
        }
    }

    /// Returns the daemon of [`Way::Daemon`].
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Returns the recording of the last [`Way::Recorded`].
    pub fn recording(&self) -> PathBuf {
        self.folder.path().join("recording")
    }

    fn command(&self, case: &Case, way: &Way) -> Command {
        let mut arguments: Vec<PathBuf> = Vec::new();
        if let Some(signal) = case.ignored {
            let line = format!("trap '' {signal}; exec \"$@\"");
            arguments.extend(["/bin/sh".into(), "-c".into(), line.into(), "sh".into()]);
        }
        if let Way::Recorded(options) = way {
            arguments.extend([
                test_env::command().to_owned(),
                "record".into(),
                "-q".into(),
                "-o".into(),
                self.recording(),
            ]);
            arguments.extend(options.iter().map(PathBuf::from));
            arguments.push("--".into());
        }
        arguments.push(self.programs[usize::from(case.is_signal_safe)].clone());
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").env("LANG", "C.UTF-8");
        match way {
            Way::Bare | Way::Recorded(_) => {}
            Way::Alone => {
                command.env("LD_PRELOAD", test_env::library()).env("HEAPTAPE_SOCKET", "/nonexistent/socket");
            }
            Way::Daemon(mode) => {
                command.env("LD_PRELOAD", test_env::library()).env("HEAPTAPE_SOCKET", self.daemon.socket());
                // A busy machine may answer late.
                command.env("HEAPTAPE_ATTACH_MS", "10000").env("HEAPTAPE_MODE", mode);
            }
            Way::Planted(kind) => {
                command.env("LD_PRELOAD", &self.planted).env("HEAPTAPE_PLANTED", kind);
            }
        }
        command
    }

    pub fn run(&self, case: &Case, way: &Way) -> Observation {
        let path = |name: &str| self.folder.path().join(name);
        remove_recording(&self.recording());
        // New files instead of truncated ones, since a process of an earlier case may still write
        // to the old ones.
        for name in ["log", "stdout", "stderr"] {
            fs::remove_file(path(name)).ok();
        }
        File::create(path("log")).and_then(|log| log.set_len(LOG_BYTES)).expect("a log");
        let mut command = self.command(case, way);
        command.arg(path("log")).arg("-1").arg(self.folder.path()).args(case.arguments());
        command.stdin(Stdio::null()).process_group(0);
        command
            .stdout(File::create(path("stdout")).expect("a file"))
            .stderr(File::create(path("stderr")).expect("a file"));
        let start = Instant::now();
        let end = end(command, if matches!(way, Way::Bare) { LONGEST_BARE } else { LONGEST });
        let took = start.elapsed();
        let (log, counts) = read_log(&path("log"));
        let read = |name: &str| fs::read(path(name)).unwrap_or_default();
        Observation { end, stdout: read("stdout"), stderr: read("stderr"), log, counts, took }
    }
}

/// Removes a recording. The names of its functions may still be on their way into it.
fn remove_recording(folder: &Path) {
    let start = Instant::now();
    while let Err(error) = fs::remove_dir_all(folder) {
        if error.kind() == ErrorKind::NotFound {
            return;
        }
        assert!(start.elapsed() < LONGEST, "{}: {error}", folder.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command, and returns how it ended.
fn end(mut command: Command, longest: Duration) -> String {
    let start = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let mut nap = Duration::from_micros(200);
    let status: Option<ExitStatus> = loop {
        match child.try_wait().expect("the child can be waited for") {
            Some(status) => break Some(status),
            None if start.elapsed() > longest => break None,
            None => std::thread::sleep(nap),
        }
        nap = (nap * 2).min(Duration::from_millis(2));
    };
    if status.is_none() && longest > LONGEST_BARE {
        eprintln!("{command:?} does not end; its threads:\n{}", threads_of_group(group));
    }
    // What the program left running must not write into the next log.
    killpg(group, Signal::SIGKILL).ok();
    if status.is_none() {
        child.wait().ok();
    }
    match status.map(|status| (status.code(), status.signal())) {
        // `heaptape record` exits as a shell does.
        Some((code, signal)) => format!("exit {}", code.unwrap_or_else(|| 128 + signal.unwrap_or_default())),
        None => "does not end".to_owned(),
    }
}

/// Returns a line for each thread of a process group: its numbers, its name, its state, and the
/// function of the kernel in which it waits.
fn threads_of_group(group: Pid) -> String {
    let mut lines = String::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        for thread in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { continue };
            let Some((name, fields)) = stat.rsplit_once(") ") else { continue };
            let mut fields = fields.split(' ');
            let (state, in_group) = (fields.next().unwrap_or_default(), fields.nth(1));
            if in_group.and_then(|number| number.parse().ok()) == Some(group.as_raw()) {
                let waits = fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
                lines += &format!("  process {:?}, thread {name}): {state}, {waits}\n", process.file_name());
            }
        }
    }
    lines
}

/// Returns the log of the first thread, and the counts of the program.
fn read_log(path: &Path) -> (Vec<String>, Counts) {
    let mut bytes = Vec::new();
    let file = File::open(path).expect("the log");
    file.take(LOG_HEADER + (128 << 10)).read_to_end(&mut bytes).expect("the log");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let counts = Counts { processes: word(16), allocs: word(24), resizes: word(32), frees: word(40) };
    let first = &bytes[LOG_HEADER as usize..];
    let used = u32::from_le_bytes(first[..4].try_into().unwrap_or_default()) as usize;
    let text = String::from_utf8_lossy(&first[4..4 + used.min(first.len() - 4)]).into_owned();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // Where the kernel puts a library depends on what else is mapped.
    lines.chunk_by_mut(|one, two| one.starts_with("map ") && two.starts_with("map ")).for_each(<[String]>::sort);
    (lines, counts)
}
