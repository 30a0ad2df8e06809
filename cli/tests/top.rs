//! `heaptape top` and `record --live` on a terminal: what they draw, their keys, another size, and
//! a terminal that is left as it was found.

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Nothing that is waited for takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);
const LEAVE: &str = "\x1b[?1049l";

/// A daemon in a folder of its own that records one process.
struct Daemon {
    folder: tempfile::TempDir,
    daemon: Child,
    program: Child,
}

impl Daemon {
    fn start() -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let run = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_heaptape"));
            command.args(args).current_dir(folder.path()).stdin(Stdio::null()).stderr(Stdio::null());
            command
        };
        let daemon = run(&["daemon", "--socket", "run/socket", "--state", "state"]).spawn().unwrap();
        let library = run(&["library"]).output().unwrap().stdout;
        let list = || run(&["ctl", "list", "--control", "run/control"]).output().unwrap();
        until("the daemon answers", || list().status.success());
        let program = Command::new("sleep")
            .arg("600")
            .env("LD_PRELOAD", String::from_utf8(library).unwrap().trim())
            .env("HEAPTAPE_SOCKET", folder.path().join("run/socket"))
            .env("HEAPTAPE_ATTACH_MS", "10000")
            .spawn()
            .unwrap();
        until("the program is recorded", || String::from_utf8_lossy(&list().stdout).contains("sleep"));
        Daemon { folder, daemon, program }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let stop = ["ctl", "stop", "--control", "run/control"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptape"));
        let _ = command.args(stop).current_dir(self.folder.path()).stdout(Stdio::null()).status();
        for child in [&mut self.program, &mut self.daemon] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "waited for a minute, and still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A terminal on which `heaptape top` runs.
struct Terminal {
    keyboard: File,
    device: OwnedFd,
    before: Termios,
    drawn: Arc<Mutex<Vec<u8>>>,
    /// What a person sees: only changes are written.
    seen: Arc<Mutex<vt100::Parser>>,
    top: Child,
}

impl Terminal {
    /// Runs the command with these arguments.
    fn start(folder: &Path, arguments: &[&str], panic_file: &Path) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let top = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_heaptape")])
            .args(arguments)
            .current_dir(folder)
            .env("HEAPTAPE_TEST_PANIC", panic_file)
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (drawn, mut screen) = (Arc::default(), File::from(pty.master.try_clone().unwrap()));
        let seen = Arc::new(Mutex::new(vt100::Parser::new(24, 100, 0)));
        let all: Arc<Mutex<Vec<u8>>> = Arc::clone(&drawn);
        let parser = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..count]);
                all.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Terminal { keyboard: File::from(pty.master), device: pty.slave, before, drawn, seen, top }
    }

    fn drawn(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().screen().contents()
    }

    /// Waits until the text is on the screen, or was written to the terminal.
    #[track_caller]
    fn shows(&self, text: &str) {
        until(&format!("{text} in {}", self.seen()), || self.seen().contains(text) || self.drawn().contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.drawn.lock().unwrap().clear();
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        tcgetattr(&self.device).unwrap() != self.before
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.top.id() as i32), signal).unwrap();
    }

    /// Waits for the end of `top`, and checks that the terminal is as it was before.
    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let status = self.top.wait().unwrap();
        self.shows(LEAVE);
        assert!(self.drawn().contains("\x1b[?25h"), "the cursor is hidden: {:?}", self.drawn());
        assert!(!self.is_raw(), "the terminal is in another mode than before");
        status
    }
}

#[test]
fn top_draws_keys_and_sizes_and_leaves_the_terminal_as_found() {
    let daemon = Daemon::start();
    let requested = daemon.folder.path().join("panic");
    let start = || {
        let terminal = Terminal::start(daemon.folder.path(), &["top", "--control", "run/control"], &requested);
        terminal.shows("sleep");
        assert!(terminal.is_raw() && terminal.drawn().contains("\x1b[?1049h"));
        terminal
    };

    let mut top = start();
    top.shows("? help");
    top.press("?");
    top.shows("whole stack of a site");
    top.press("x\r");
    top.shows("CALL SITE");
    top.shows("site growth");
    top.press("w");
    top.shows("Held by");
    top.press("\x1b");
    top.shows("site growth");
    top.press("\x1b");
    top.shows("BYTES/S");
    top.press("/nothing\r");
    top.shows("0 processes");
    top.press("/\x1b");
    top.shows("1 process");
    top.drawn.lock().unwrap().clear();
    // A smaller terminal: `stty` makes the kernel send SIGWINCH.
    top.seen.lock().unwrap().screen_mut().set_size(3, 20);
    let device = Stdio::from(top.device.try_clone().unwrap());
    assert!(Command::new("stty").args(["cols", "20", "rows", "3"]).stdin(device).status().unwrap().success());
    until("lines are cut to the width", || {
        let seen = top.seen();
        let lines: Vec<&str> = seen.lines().map(str::trim_end).collect();
        lines.len() == 3 && lines[0] == "heaptape  1 process" && lines[2].starts_with("q quit")
    });
    top.press("q");
    assert_eq!(top.ends().code(), Some(0));

    // Signals end it as they end any program.
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut top = start();
        top.signal(signal);
        assert_eq!(top.ends().signal(), Some(signal as i32), "{signal}");
    }

    // While it is stopped, the terminal belongs to the shell.
    let mut top = start();
    top.press("\x1a");
    until("it has stopped", || !top.is_raw());
    top.shows(LEAVE);
    top.drawn.lock().unwrap().clear();
    top.signal(Signal::SIGCONT);
    top.shows("sleep");
    until("it has gone on", || top.is_raw());
    top.press("\x03");
    assert_eq!(top.ends().code(), Some(0));

    if cfg!(debug_assertions) {
        let mut top = start();
        std::fs::write(&requested, "Command").unwrap();
        assert_eq!(top.ends().signal(), Some(Signal::SIGABRT as i32));
        top.shows("end of the report");
        let drawn = top.drawn();
        let report = drawn.find("cause: panic").unwrap_or(0);
        assert!(drawn.find(LEAVE).is_some_and(|left| left < report), "reported before the screen was left: {drawn:?}");
    }
}

#[test]
fn record_live_shows_the_program_and_keeps_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    let start = |arguments: &[&str]| {
        Terminal::start(folder.path(), &[&["record", "--live", "-o"], arguments].concat(), Path::new("/nonexistent"))
    };
    let is_complete = |recording: &str| {
        let verified = Command::new(env!("CARGO_BIN_EXE_heaptape"))
            .args(["verify", recording])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    };

    let mut live = start(&["stopped", "--", "sleep", "600"]);
    live.shows("sleep (");
    live.shows("q stop");
    live.press("w");
    live.shows("Held by");
    live.press("q");
    assert_eq!(live.ends().code(), Some(128 + Signal::SIGINT as i32));
    live.shows("recorded in stopped");
    is_complete("stopped");

    let mut live = start(&["ended", "--", "sh", "-c", "echo from the program; sleep 1; exit 3"]);
    assert_eq!(live.ends().code(), Some(3));
    is_complete("ended");
    let output = std::fs::read_to_string(folder.path().join("ended/output.txt")).unwrap();
    assert_eq!(output, "from the program\n");
    assert!(!live.drawn().contains("from the program\r\n"));

    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
