//! `heaptape attach` and `heaptape detach`: processes that run already.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing that is waited for takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The figures of `attached.c`, for each thread and line.
const BLOCKS: u64 = 1000;
const LEAKED: u64 = 3;

/// Builds a program from its source in this folder.
fn build(name: &str, folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let built = folder.join(name);
    let compiled = Command::new("gcc")
        .args(["-O2", "-g", "-fno-builtin", "-fno-optimize-sibling-calls", "-D_GNU_SOURCE", "-pthread", "-o"])
        .args([&built, &source])
        .status();
    assert!(compiled.expect("gcc is installed").success());
    built
}

/// Runs the command, and expects this exit status. Returns both of its outputs.
#[track_caller]
fn heaptape(arguments: &[&str], status: i32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_heaptape")).args(arguments).output().expect("it starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    text
}

/// Returns the answer of a question about a recording.
#[track_caller]
fn answer(question: &str, recording: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_heaptape")).args([question, "--json"]).arg(recording).output();
    let output = output.expect("it starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Waits until something is so.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The program, which waits for lines.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Folder of the program, and of its recordings.
    folder: tempfile::TempDir,
}

impl Running {
    fn start(threads: u64) -> Running {
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

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    fn request(&mut self, what: &str) {
        writeln!(self.input, "{what}").expect("it reads");
        assert_eq!(self.line(), "done\n");
    }

    /// Lets all threads allocate once.
    fn work(&mut self) {
        self.request("go");
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Returns the mappings that an attach has made.
    fn mappings(&self) -> String {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("its mappings");
        maps.lines().filter(|line| line.contains("heaptape")).collect()
    }

    /// Ends the program, and expects that nothing has changed for it, but for interruptions of its
    /// wait.
    fn ends_unharmed_after(mut self, interruptions: &[u32]) {
        drop(self.input);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its last line");
        let possible = |count: &u32| rest == format!("0 functions changed, {count} waits interrupted\n");
        assert!(interruptions.iter().any(possible), "{rest}");
        assert!(self.child.wait().expect("its end").success());
    }

    /// Ends the program, and expects that nothing has changed for it.
    fn ends_unharmed(self) {
        self.ends_unharmed_after(&[0]);
    }
}

/// A `heaptape attach` that records.
struct Attach {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
    recording: PathBuf,
}

impl Attach {
    fn start(running: &Running, recording: &str) -> Attach {
        let recording = running.folder.path().join(recording);
        let mut child = Command::new(env!("CARGO_BIN_EXE_heaptape"))
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
    fn end(&mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("a signal");
        let mut text = String::new();
        self.errors.read_to_string(&mut text).expect("its messages");
        assert!(self.child.wait().expect("its end").success(), "{text}");
        text
    }
}

/// Everything from the attach on is recorded, with the stacks of the program, once and again.
/// Between and afterwards there is nothing of the library in the process.
#[test]
fn attached_process_is_recorded_exactly_and_left_as_it_was() {
    for threads in [1, 4] {
        let mut running = Running::start(threads);
        for round in 0..2 {
            let mut attach = Attach::start(&running, &round.to_string());
            assert_ne!(running.mappings(), "");
            running.work();
            let text = attach.end();
            assert!(text.contains("was left as it was; longest stop: "), "{text}");
            assert_eq!(running.mappings(), "", "{text}");
            running.work();
            let report = answer("report", &attach.recording);
            let process = &report["processes"][0];
            let unknown = if round == 0 { threads } else { 0 };
            let wanted = [
                ("allocs", threads * (BLOCKS + LEAKED)),
                ("resizes", threads * BLOCKS),
                ("frees", threads * BLOCKS + unknown),
                ("lost_events", 0),
                ("unknown_frees", unknown),
            ];
            for (name, count) in wanted {
                assert_eq!(process[name], count, "{name} of {threads} threads, round {round}: {process}");
            }
            let leaks = answer("leaks", &attach.recording);
            let leaks = leaks["leaks"].as_array().expect("a list");
            let found = leaks.iter().find(|leak| leak["blocks"] == threads * LEAKED).expect("the leak");
            let functions = found["stack"].to_string();
            assert!(functions.contains("\"leaks\"") && functions.contains("\"works\""), "{found}");
            assert_eq!(found["bytes"], threads * LEAKED * 107);
            // Each frame is in the file that it is really in.
            let module_of = |function: &str| {
                let mut frames = found["stack"].as_array().expect("a list").iter();
                let frame = frames.find(|frame| frame["function"].as_str().is_some_and(|name| name == function));
                frame.and_then(|frame| frame["module"].as_str()?.rsplit('/').next()).map(str::to_owned)
            };
            assert_eq!(module_of("leaks").as_deref(), Some("attached"), "{found}");
            let of_libc = found["stack"].to_string().contains("/libc.so");
            assert!(of_libc, "{found}");
        }
        running.ends_unharmed();
    }
}

/// The blocks that glibc keeps for a thread are freed by the program once, and by glibc at the end
/// of the thread once more.
#[test]
fn end_of_a_thread_is_no_free() {
    let mut running = Running::start(1);
    let mut attach = Attach::start(&running, "recording");
    running.request("end");
    attach.end();
    let report = answer("report", &attach.recording);
    let process = &report["processes"][0];
    assert!(process["allocs"].as_u64().is_some_and(|allocs| allocs >= 20), "{process}");
    assert_eq!((&process["unknown_frees"], &process["lost_events"]), (&0.into(), &0.into()), "{process}");
    running.ends_unharmed();
}

/// A process whose `heaptape attach` was killed goes on. It is not attached again before `heaptape
/// detach` has restored it.
#[test]
fn process_of_a_killed_attach_goes_on_and_is_restored() {
    let mut running = Running::start(2);
    let mut attach = Attach::start(&running, "first");
    attach.child.kill().expect("it runs");
    attach.child.wait().expect("its end");
    running.work();
    let pid = running.pid();
    let refused = heaptape(&["attach", &pid], 2);
    assert!(refused.contains(&format!("heaptape detach {pid} restores them")), "{refused}");
    let restored = heaptape(&["detach", &pid], 0);
    assert!(restored.contains("functions have their own code again"), "{restored}");
    let restored = heaptape(&["detach", &pid], 0);
    assert!(restored.contains("no function that heaptape has hooked"), "{restored}");
    let mut attach = Attach::start(&running, "second");
    running.work();
    attach.end();
    running.ends_unharmed();
}

/// A process that a signal has stopped is attached and left, and is still stopped then.
#[test]
fn stopped_process_stays_stopped() {
    let mut running = Running::start(2);
    let pid = Pid::from_raw(running.child.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("it runs");
    let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state").contains(") T ");
    wait_until(is_stopped);
    let mut attach = Attach::start(&running, "recording");
    wait_until(is_stopped);
    attach.end();
    wait_until(is_stopped);
    kill(pid, Signal::SIGCONT).expect("it is there");
    running.work();
    // SIGSTOP and SIGCONT interrupt the wait without heaptape, too.
    running.ends_unharmed_after(&[0, 1]);
}

/// A stop may meet a thread that is about to get a signal, also a real-time one, which it still
/// gets.
#[test]
fn process_under_real_time_signals_is_attached_again_and_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(build("runs_on", folder.path()))
        .args(["realtime", "4"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let pid = child.id().to_string();
    for round in 0..5 {
        let recording = folder.path().join(round.to_string());
        let text = heaptape(&["attach", "--drop", "--for", "20ms", "-o", &recording.to_string_lossy(), &pid], 0);
        assert!(text.contains("was left as it was; longest stop: "), "{text}");
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
    output.read_to_string(&mut line).expect("its last line");
    assert_eq!(line, "ready\n0 wrong\n");
    assert!(child.wait().expect("its end").success());
}

/// What cannot be attached is refused in one line, and `--dry-run` changes nothing.
#[test]
fn refusals_say_what_to_do() {
    let mut running = Running::start(1);
    let pid = running.pid();
    let dry = heaptape(&["attach", "--dry-run", &pid], 0);
    assert!(dry.contains("can be attached; nothing was changed") && dry.contains(" malloc: "), "{dry}");
    let refused = |pid: &str, why: &str| {
        let text = heaptape(&["attach", "--dry-run", pid], 2);
        assert!(text.contains(why) && text.lines().count() == 1, "{why}: {text}");
    };
    refused("2147483647", "there is no such process");
    refused("no-program-has-this-name", "no process has the name");
    let mut attach = Attach::start(&running, "recording");
    refused(&pid, "heaptape did and was killed");
    attach.end();
    let library = heaptape(&["library"], 0);
    let mut preloaded = Command::new("sleep").arg("60").env("LD_PRELOAD", library.trim_end()).spawn().expect("sleep");
    let sleeping = preloaded.id().to_string();
    let maps = format!("/proc/{sleeping}/maps");
    wait_until(|| std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("libheaptape")));
    refused(&sleeping, "it has heaptape's library already");
    preloaded.kill().expect("it sleeps");
    preloaded.wait().expect("its end");
    running.work();
    running.ends_unharmed();
}
