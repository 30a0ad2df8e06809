//! A daemon under test, with its own sockets and state folder, which are removed with the value.

use crate::recording::{Leak, Report, heaptape};
use crate::run::{Outcome, finish};
use crate::test_env;
use crate::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub struct Daemon {
    child: Child,
    directory: TempDir,
    control: PathBuf,
    options: Vec<String>,
    /// Capabilities that it lacks, as `setpriv` writes them.
    without: &'static str,
}

/// A program that runs under the daemon. It is killed when the value is dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Daemon {
    /// Starts a daemon with these further options.
    pub fn start(options: &[&str]) -> Daemon {
        Daemon::start_with(test_env::folder(), options)
    }

    /// Starts a daemon whose state folder and log are in this folder.
    pub fn start_in(folder: &Path, options: &[&str]) -> Daemon {
        let (directory, state) = (test_env::folder(), folder.join("state"));
        std::fs::create_dir(&state).expect("the state folder");
        for (target, name) in [(state, "state"), (folder.join("log"), "log")] {
            std::os::unix::fs::symlink(target, directory.path().join(name)).expect("a link to it");
        }
        Daemon::start_with(directory, options)
    }

    pub fn start_controlled_at(control: &Path, options: &[&str]) -> Daemon {
        let path = control.to_str().expect("text");
        Daemon::start_at(test_env::folder(), control.to_owned(), &[options, &["--control", path]].concat())
    }

    fn start_with(directory: TempDir, options: &[&str]) -> Daemon {
        let control = directory.path().join("run/control");
        Daemon::start_at(directory, control, options)
    }

    fn start_at(directory: TempDir, control: PathBuf, options: &[&str]) -> Daemon {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let child = spawn(directory.path(), &options, "");
        let daemon = Daemon { child, directory, control, options, without: "" };
        daemon.ready();
        daemon
    }

    fn ready(&self) {
        until("the daemon serves", || self.ctl(&["status"]).code() == 0);
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the daemon is there");
    }

    /// Kills the daemon and starts another one.
    pub fn restart(&mut self) {
        self.replace(Signal::SIGKILL);
    }

    /// Kills the daemon together with its fd store, as the runtime of a container does, and starts
    /// another one, which lacks these capabilities.
    pub fn restart_without_store(&mut self, without: &'static str) {
        let folder = self.socket().parent().expect("a folder").display().to_string();
        let is_store = |pid: &i32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("--keep-for-next") && line.contains(&folder)
        };
        let pids = std::fs::read_dir("/proc").expect("processes").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let stores: Vec<i32> = pids.filter(is_store).collect();
        assert!(!stores.is_empty(), "the daemon has a store");
        self.signal(Signal::SIGSTOP);
        stores.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("it runs"));
        self.without = without;
        self.restart();
    }

    /// Kills a daemon that cannot end, since one of its threads waits for ever, and starts another one.
    pub fn restart_stuck(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child = spawn(self.directory.path(), &self.options, self.without);
        self.ready();
    }

    /// Ends the daemon by a signal and starts another one.
    pub fn replace(&mut self, signal: Signal) {
        self.signal(signal);
        self.child.wait().expect("the daemon is ours");
        self.child = spawn(self.directory.path(), &self.options, self.without);
        self.ready();
    }

    /// Ends the daemon in good order, and starts another one after `meanwhile`.
    pub fn restart_after(&mut self, meanwhile: impl FnOnce(&Daemon)) {
        self.signal(Signal::SIGTERM);
        self.child.wait().expect("the daemon is ours");
        meanwhile(self);
        self.child = spawn(self.directory.path(), &self.options, self.without);
        self.ready();
    }

    /// Returns the path of the socket for programs.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/socket")
    }

    /// Returns the path of the stream socket for traces and profiles.
    pub fn stream_socket(&self) -> PathBuf {
        self.directory.path().join("run/streams")
    }

    /// Returns the state folder.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the path of the control socket.
    pub fn control(&self) -> PathBuf {
        self.control.clone()
    }

    /// Runs `heaptape ctl` with these arguments.
    pub fn ctl(&self, arguments: &[&str]) -> Outcome {
        let control = self.control();
        heaptape(
            [OsStr::new("ctl"), OsStr::new("--control"), control.as_os_str()]
                .into_iter()
                .chain(arguments.iter().map(OsStr::new)),
        )
    }

    /// Returns the answer of `heaptape ctl --json`, which must succeed.
    #[track_caller]
    pub fn query(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[&["--json"], arguments].concat());
        assert_eq!(output.code(), 0, "ctl {arguments:?}: {output}\n{}", self.log());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Returns the processes of this name that the daemon serves.
    pub fn list(&self, name: &str) -> Vec<Value> {
        let Value::Array(all) = self.query(&["list"]) else { panic!("a list was expected") };
        all.into_iter().filter(|one| one["name"] == name).collect()
    }

    /// Returns a command with the library and the socket in its environment.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        test_env::for_programs(&mut command);
        command.env("LD_PRELOAD", test_env::library()).env("HEAPTAPE_SOCKET", self.socket());
        // On a busy machine the daemon may answer later than after the default of 50 ms, which has
        // tests of its own.
        command.env("HEAPTAPE_ATTACH_MS", "10000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub fn run(&self, program: &Path, arguments: &[&str]) -> Outcome {
        let mut command = self.command(program);
        command.args(arguments);
        finish(command, b"")
    }

    /// Starts a program, which requests `mode` if there is one.
    pub fn spawn(&self, program: &Path, arguments: &[&str], mode: Option<&str>) -> Running {
        let mut command = self.command(program);
        command.args(arguments).envs(mode.map(|mode| ("HEAPTAPE_MODE", mode)));
        Running(command.spawn().expect("the program starts"))
    }

    /// Returns the paths that `heaptape epochs` prints.
    pub fn epochs(&self, arguments: &[&str]) -> Vec<PathBuf> {
        let state = self.state();
        let output = heaptape(
            [OsStr::new("epochs"), OsStr::new("--state"), state.as_os_str()]
                .into_iter()
                .chain(arguments.iter().map(OsStr::new)),
        );
        assert!(output.code() == 0 || output.error().contains("no epoch"), "{output}");
        output.text().lines().map(PathBuf::from).collect()
    }

    /// Runs a command of heaptape on these paths.
    pub fn heaptape(&self, arguments: &[&str], paths: &[PathBuf]) -> Outcome {
        heaptape(arguments.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str())))
    }

    /// Returns the answer of `heaptape report --json` about these paths.
    #[track_caller]
    pub fn report(&self, paths: &[PathBuf]) -> Report {
        let output = self.heaptape(&["report", "--json"], paths);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}\n{}", self.log()))
    }

    /// Returns the answer of `heaptape leaks --json` about these paths.
    #[track_caller]
    pub fn leaks(&self, paths: &[PathBuf]) -> Vec<Leak> {
        if paths.is_empty() {
            return Vec::new();
        }
        let output = self.heaptape(&["leaks", "--json"], paths);
        if output.code() == 2 && output.error().contains("nothing was recorded") {
            return Vec::new();
        }
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
        serde_json::from_value(value["leaks"].clone()).expect("leaks")
    }

    /// Asserts that all epochs are complete, and that every accounting balances.
    #[track_caller]
    pub fn assert_complete(&self) {
        let epochs = self.epochs(&[]);
        assert!(!epochs.is_empty(), "no epochs\n{}", self.log());
        for epoch in &epochs {
            let output = self.heaptape(&["verify"], std::slice::from_ref(epoch));
            assert_eq!(output.code(), 0, "{}: {output}\n{}", epoch.display(), self.log());
            for process in self.report(std::slice::from_ref(epoch)).processes {
                let accounted = process.recorded_events + process.lost_events + process.sampled_out_events;
                assert_eq!(process.emitted_events, accounted, "{}: {process:#?}", epoch.display());
            }
        }
    }

    /// Ends the daemon by `ctl stop`, and asserts that it succeeded.
    #[track_caller]
    pub fn stop(&mut self) {
        let answer = self.ctl(&["stop"]);
        let status = self.child.wait().expect("the daemon is ours");
        // The command waits for a minute. A disk that others keep busy may take longer.
        let is_told = answer.code() == 0 || answer.error().contains("within a minute");
        assert!(is_told && status.success(), "{answer}\n{status}\n{}", self.log());
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

fn spawn(directory: &Path, options: &[String], without: &str) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("log")).expect("a log");
    let mut command = match without {
        "" => Command::new(test_env::command()),
        _ => {
            let mut command = Command::new("setpriv");
            command.arg("--bounding-set").arg(without).arg(test_env::command());
            command
        }
    };
    command.arg("daemon").arg("--socket").arg(directory.join("run/socket")).arg("--state").arg(directory.join("state"));
    command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.env_remove("LD_PRELOAD").env_remove("HEAPTAPE_SOCKET");
    command.spawn().expect("the daemon starts")
}
