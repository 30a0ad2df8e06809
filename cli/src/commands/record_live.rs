//! `record --live`: the program runs under a daemon of its own, and `top` shows it meanwhile. The
//! recording is the daemon's epoch.

use super::top;
use crate::control::Control;
use anyhow::{Context, anyhow};
use heaptape_daemon::protocol::{Entry, Request, Response};
use heaptape_recorder::run::launch::{make_dir, preload};
use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long the daemon may take to answer, and the program to attach.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of the checks for the daemon, and for the program.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Name of the file with the output of the program, in the recording.
const OUTPUT: &str = "output.txt";

/// What is recorded, and how.
pub(super) struct Plan {
    /// The program: a path, or a name to find in PATH.
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// Folder of the recording; by default `heaptape.PROG.PID` in the working directory.
    pub dir: Option<PathBuf>,
    pub library: PathBuf,
    /// Mode of the daemon: `trace`, or `trace:SIZE` for samples.
    pub mode: String,
    /// Size of the ring of each thread, in bytes.
    pub ring: u64,
}

pub(super) struct Recorded {
    /// Folder of the recording.
    pub dir: PathBuf,
    /// How the program ended.
    pub status: ExitStatus,
    /// File with the program's output, if there was any.
    pub output: Option<PathBuf>,
}

/// Runs a program, shows it until it has ended, and returns its recording.
///
/// # Errors
/// There is no terminal, the program or the daemon cannot be started, or the recording has no
/// place.
pub(super) fn run(plan: Plan) -> anyhow::Result<Recorded> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(anyhow!(
            "--live needs a terminal; without it, `heaptape report DIR` reads a recording in progress"
        ));
    }
    // On the file system of the recording, which gets its name at the end.
    let beside = plan.dir.as_deref().and_then(Path::parent).filter(|path| !path.as_os_str().is_empty());
    let state = tempfile::Builder::new().prefix("heaptape-live-").tempdir_in(beside.unwrap_or(Path::new(".")));
    let state = state.context("cannot make a folder for the recording")?;
    let daemon = Daemon::start(&plan, state.path())?;
    let output = File::create(state.path().join(OUTPUT)).context("cannot write the program's output")?;
    let mut program = daemon.run(&plan, &output)?;
    let watched = watch(&plan, &daemon, &mut program);
    if watched.is_err() {
        let _ = program.kill();
    }
    let status = program.wait()?;
    daemon.stop()?;
    let dir = watched?;
    let epoch = epoch(state.path()).inspect_err(|_| drop(std::fs::remove_dir(&dir)))?;
    std::fs::rename(state.path().join(OUTPUT), epoch.join(OUTPUT)).context("cannot keep the program's output")?;
    // In place of the empty folder.
    std::fs::rename(&epoch, &dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let output = dir.join(OUTPUT);
    let output = output.metadata().is_ok_and(|file| file.len() > 0).then_some(output);
    Ok(Recorded { dir, status, output })
}

/// Shows the program until it has ended. Returns the folder of the recording, which is empty.
fn watch(plan: &Plan, daemon: &Daemon, program: &mut Child) -> anyhow::Result<PathBuf> {
    let dir = make_dir(plan.dir.as_deref(), &plan.program, program.id()).map_err(|error| anyhow!("{error}"))?;
    daemon.await_process(program)?;
    let watched = top::watch(&daemon.control, program);
    if watched.is_err() {
        let _ = std::fs::remove_dir(&dir);
    }
    watched.map(|()| dir)
}

/// A daemon for one program. It ends with the value, or when this process is killed.
struct Daemon {
    control: Control,
    child: Child,
    /// The daemon stops at the end of its standard input.
    lifeline: Option<ChildStdin>,
    /// Folder of the sockets. Their paths must be short.
    sockets: tempfile::TempDir,
}

impl Daemon {
    fn start(plan: &Plan, state: &Path) -> anyhow::Result<Daemon> {
        let sockets = tempfile::Builder::new().prefix("heaptape-").tempdir().context("cannot make a folder")?;
        let path = sockets.path().join("control");
        let log = File::create(sockets.path().join("log"))?;
        let ring = plan.ring.to_string();
        let mut command = Command::new("/proc/self/exe");
        command.args(["daemon", "--stop-at-end-of-input", "--mode", &plan.mode, "--ring", &ring]);
        // As `record` does: no event is lost, nothing is reduced, and one epoch has everything.
        command.args(["--overflow", "wait:30s", "--ask-programs", "false", "--epoch", "3650d"]);
        command.args(["--cpu", "100000", "--starts", "1000000", "--connections", "1000000"]);
        command.arg("--socket").arg(sockets.path().join("socket")).arg("--control").arg(&path);
        command.arg("--state").arg(state);
        // Keys of the terminal are for the view.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).process_group(0);
        let mut child = command.spawn().context("cannot start the daemon")?;
        let lifeline = child.stdin.take();
        let mut daemon = Daemon { control: Control::at(Some(path.clone())), child, lifeline, sockets };
        let start = Instant::now();
        while heaptape_daemon::ask(&path, &Request::Status).is_err() {
            if daemon.child.try_wait()?.is_some() || start.elapsed() > START_TIMEOUT {
                let log = std::fs::read_to_string(daemon.sockets.path().join("log")).unwrap_or_default();
                return Err(anyhow!("the daemon does not answer: {}", log.trim_end()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(daemon)
    }

    /// Starts the program with the library.
    fn run(&self, plan: &Plan, output: &File) -> anyhow::Result<Child> {
        let mut command = Command::new(&plan.program);
        command.args(&plan.arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        command
            .env("LD_PRELOAD", preload(&plan.library, &[]))
            .env("HEAPTAPE_SOCKET", self.sockets.path().join("socket"));
        command.env("HEAPTAPE_ATTACH_MS", START_TIMEOUT.as_millis().to_string());
        command.spawn().with_context(|| format!("cannot run {}", plan.program.to_string_lossy()))
    }

    /// Waits until the daemon records the program, or it has ended.
    fn await_process(&self, program: &mut Child) -> anyhow::Result<()> {
        let start = Instant::now();
        let pid = program.id();
        let is_listed = |entries: Vec<Entry>| {
            entries.iter().any(|entry| matches!(entry, Entry::Process(process) if process.pid == pid))
        };
        loop {
            let Response::List(entries) = self.control.ask(&Request::List)? else {
                return Err(self.control.unexpected("the answer is no list"));
            };
            if is_listed(entries) || program.try_wait()?.is_some() || start.elapsed() > START_TIMEOUT {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops the daemon. Its epoch is complete then.
    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.lifeline.take());
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the daemon failed: {status}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.child.wait();
    }
}

/// Returns the folder of the epoch: `USER/EPOCH`.
fn epoch(state: &Path) -> anyhow::Result<PathBuf> {
    let folders = |path: &Path| -> std::io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(path)?.flatten();
        Ok(entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect())
    };
    let mut epochs = Vec::new();
    for user in folders(state)? {
        epochs.extend(folders(&user)?.into_iter().filter(|path| path.join("recording.json").exists()));
    }
    epochs.into_iter().next().context("nothing was recorded: the program did not attach")
}
