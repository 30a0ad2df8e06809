//! A daemon under test: its own socket, folder and control, gone with the value.

use crate::recording::{Leak, Report, heaptape};
use crate::run::{Outcome, finish};
use crate::test_env;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing that is waited for takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// A running daemon.
pub struct Daemon {
    child: Child,
    place: TempDir,
    options: Vec<String>,
}

/// A program that runs under it; killed with the value.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Daemon {
    /// Starts one with these further options.
    pub fn start(options: &[&str]) -> Daemon {
        let place = test_env::folder();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let child = spawn(place.path(), &options);
        let daemon = Daemon { child, place, options };
        daemon.ready();
        daemon
    }

    fn ready(&self) {
        until("the daemon serves", || self.ctl(&["status"]).code() == 0);
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the daemon is there");
    }

    /// Kills it and starts another in its place.
    pub fn restart(&mut self) {
        self.replace(Signal::SIGKILL);
    }

    /// Ends it by a signal and starts another in its place.
    pub fn replace(&mut self, signal: Signal) {
        self.signal(signal);
        self.child.wait().expect("the daemon is ours");
        self.child = spawn(self.place.path(), &self.options);
        self.ready();
    }

    /// Ends it in good order, and starts another after `meanwhile`.
    pub fn away(&mut self, meanwhile: impl FnOnce(&Daemon)) {
        self.signal(Signal::SIGTERM);
        self.child.wait().expect("the daemon is ours");
        meanwhile(self);
        self.child = spawn(self.place.path(), &self.options);
        self.ready();
    }

    /// Where programs find it.
    pub fn socket(&self) -> PathBuf {
        self.place.path().join("run/socket")
    }

    /// Where traces and profiles can be sent by anything that knows stream sockets.
    pub fn stream_socket(&self) -> PathBuf {
        self.place.path().join("run/streams")
    }

    /// Where it keeps things.
    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// What it said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).unwrap_or_default()
    }

    /// Where it is controlled.
    pub fn control(&self) -> PathBuf {
        self.place.path().join("run/control")
    }

    /// `heaptape ctl …`.
    pub fn ctl(&self, words: &[&str]) -> Outcome {
        let control = self.control();
        heaptape(
            [OsStr::new("ctl"), OsStr::new("--control"), control.as_os_str()]
                .into_iter()
                .chain(words.iter().map(OsStr::new)),
        )
    }

    /// `heaptape ctl --json …`, which must succeed.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> Value {
        let said = self.ctl(&[&["--json"], words].concat());
        assert_eq!(said.code(), 0, "ctl {words:?}: {said}\n{}", self.log());
        serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// The processes that it serves, of this name.
    pub fn list(&self, name: &str) -> Vec<Value> {
        let Value::Array(all) = self.ask(&["list"]) else { panic!("a list was expected") };
        all.into_iter().filter(|one| one["name"] == name).collect()
    }

    /// A command with the library and the socket in its environment.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", test_env::library()).env("HEAPTAPE_SOCKET", self.socket());
        // A machine that has other work too may be late with its answer; what 50 ms mean is tested
        // where it is meant.
        command.env("HEAPTAPE_ATTACH_MS", "10000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs a program to its end.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> Outcome {
        let mut command = self.command(program);
        command.args(arguments);
        finish(command, b"")
    }

    /// Starts a program, which asks for this mode when one is given.
    pub fn spawn(&self, program: &Path, arguments: &[&str], mode: Option<&str>) -> Running {
        let mut command = self.command(program);
        command.args(arguments).envs(mode.map(|mode| ("HEAPTAPE_MODE", mode)));
        Running(command.spawn().expect("the program starts"))
    }

    /// `heaptape epochs …`: paths.
    pub fn epochs(&self, words: &[&str]) -> Vec<PathBuf> {
        let state = self.state();
        let said = heaptape(
            [OsStr::new("epochs"), OsStr::new("--state"), state.as_os_str()]
                .into_iter()
                .chain(words.iter().map(OsStr::new)),
        );
        assert!(said.code() == 0 || said.error().contains("no epoch"), "{said}");
        said.text().lines().map(PathBuf::from).collect()
    }

    /// A word of the command over paths.
    pub fn word(&self, words: &[&str], paths: &[PathBuf]) -> Outcome {
        heaptape(words.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str())))
    }

    /// `heaptape report --json` over paths.
    #[track_caller]
    pub fn report(&self, paths: &[PathBuf]) -> Report {
        let said = self.word(&["report", "--json"], paths);
        serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said}\n{}", self.log()))
    }

    /// `heaptape leaks --json` over paths.
    #[track_caller]
    pub fn leaks(&self, paths: &[PathBuf]) -> Vec<Leak> {
        if paths.is_empty() {
            return Vec::new();
        }
        let said = self.word(&["leaks", "--json"], paths);
        if said.code() == 2 && said.error().contains("nothing was recorded") {
            return Vec::new();
        }
        let value: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        serde_json::from_value(value["leaks"].clone()).expect("leaks")
    }

    /// Insists that all epochs are whole and every ledger balances.
    #[track_caller]
    pub fn whole(&self) {
        let epochs = self.epochs(&[]);
        assert!(!epochs.is_empty(), "no epochs\n{}", self.log());
        for epoch in &epochs {
            let said = self.word(&["verify"], std::slice::from_ref(epoch));
            assert_eq!(said.code(), 0, "{}: {said}\n{}", epoch.display(), self.log());
            for process in self.report(std::slice::from_ref(epoch)).processes {
                let accounted = process.recorded_events + process.lost_events + process.sampled_out_events;
                assert_eq!(process.emitted_events, accounted, "{}: {process:#?}", epoch.display());
            }
        }
    }

    /// Ends it as `ctl stop` does, and insists that it ended well.
    #[track_caller]
    pub fn stop(&mut self) {
        self.ask(&["stop"]);
        let status = self.child.wait().expect("the daemon is ours");
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A daemon that is only killed leaves its fd store running.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) && !std::thread::panicking() {
            self.ctl(&["stop"]);
        }
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("======== the daemon's log\n{}", self.log());
        }
    }
}

fn spawn(place: &Path, options: &[String]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(place.join("log")).expect("a log");
    let mut command = Command::new(test_env::command());
    command.arg("daemon").arg("--socket").arg(place.join("run/socket")).arg("--state").arg(place.join("state"));
    command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.env_remove("LD_PRELOAD").env_remove("HEAPTAPE_SOCKET");
    command.spawn().expect("the daemon starts")
}

/// Waits until something holds.
#[track_caller]
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONGEST, "waited for long, and still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
