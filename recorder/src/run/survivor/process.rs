//! What the survivor process does from its start to its end.

use super::{Message, Plan, ProgramEnd, Summary, receive, send, send_to_keeper};
use crate::os::crash::{self, Destination};
use crate::os::spawn;
use crate::os::sync;
use crate::os::sys;
use crate::run::recorder::{KILLED, Recorder};
use crate::session::keeper::{CommandLink, Held, Store};
use crate::target::name_saver::Saver;
use crate::target::proc::{self, End};
use crate::target::untraced::{self, why_not};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of errors that are reported one by one.
const MAX_ERRORS: usize = 50;
/// Maximum number of processes that are reported as still running.
const MAX_STILL_RUNNING: usize = 100;
/// How long the survivor process waits for the function names that the recording stores.
const SYMBOLS_TIMEOUT: Duration = Duration::from_millis(100);
/// How long no process must be recorded before a survivor process without its command ends. A
/// process that was just forked may not have attached yet.
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// How long the survivor process may go on after the end of the recording, for the symbols of large
/// files. Nobody waits for it.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of the checks for a program that has stopped, and for processes that have not attached
/// yet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What the survivor process has besides its recording, when it is a process of its own.
pub(super) struct SurvivorContext {
    pub command_pid: Option<u32>,
    /// The connection to the helper that looks up names.
    pub saver: Option<Arc<Saver>>,
    /// The processes of the killed survivor process that this one replaces.
    pub replaced: Option<Store>,
}

/// What the loop of the survivor process knows.
struct Watch<'a> {
    channel: &'a OwnedFd,
    recorder: Recorder,
    /// Pid of the command, if this is a process of its own.
    command_pid: Option<u32>,
    is_replacement: bool,
    /// Whether the command is gone.
    is_alone: bool,
    /// Whether the program has ended, and other processes are waited for.
    is_waiting: bool,
    /// Since when no process is recorded.
    quiet_since: Instant,
    /// The program, while the command has stopped with it.
    stopped_program: Option<u32>,
    /// Why the program is not recorded.
    unrecorded: Option<String>,
    /// The first error of the recording's files.
    error: Option<String>,
}

impl Watch<'_> {
    /// Records until nothing is left to be recorded.
    fn run(&mut self, dir: &Path) {
        while !self.is_over() {
            crash::panic_if_requested();
            let polls_often = self.stopped_program.is_some() || (self.is_waiting && !self.recorder.is_busy());
            let timeout = if polls_often { POLL_INTERVAL } else { Duration::from_secs(1) };
            let command = (!self.is_alone).then(|| sys::fd(self.channel));
            let ready = self.recorder.serve(command.as_slice(), timeout);
            if let Err(error) = &ready {
                // Any failure here (mostly a full disk) leaves the program running.
                self.error.get_or_insert_with(|| format!("{}: {error}", dir.display()));
                std::thread::sleep(Duration::from_millis(20));
            }
            if self.recorder.is_busy() {
                self.quiet_since = Instant::now();
            }
            self.continue_command();
            let may_have_message = !self.is_alone && ready.map_or(true, |ready| ready.first() == Some(&true));
            if may_have_message
                && sys::is_readable(sys::fd(self.channel))
                && self.obey(receive(self.channel)).is_break()
            {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        // A process that was just forked has not attached yet.
        let is_quiet = !self.recorder.is_busy() && self.quiet_since.elapsed() >= QUIET_PERIOD;
        let may_attach = || !is_quiet && self.recorder.candidates().next().is_some();
        match self.is_alone {
            true => is_quiet,
            false => self.is_waiting && !self.recorder.is_busy() && !may_attach(),
        }
    }

    /// Continues the command if it has stopped with the program, and that runs again.
    fn continue_command(&self) {
        if let Some(program) = self.stopped_program.filter(|_| !self.is_alone)
            && !proc::is_stopped(program)
            && let Some(command) = self.command_pid.filter(|command| proc::is_stopped(*command))
        {
            spawn::send_to(command, nix::libc::SIGCONT);
        }
    }

    /// Handles a message of the command; `None` if that is gone. Breaks at the end of the recording.
    fn obey(&mut self, message: Option<Message>) -> ControlFlow<()> {
        match message {
            Some(Message::CommandStopped { program }) => self.stopped_program = Some(program),
            Some(Message::CommandContinued) => self.stopped_program = None,
            Some(Message::ProgramEnded { pid, end, program, unrecorded, wait }) => {
                let ProgramEnd { status, child_faults, child_reads, name } = end;
                let unrecorded = unrecorded.or_else(|| why_not(&program));
                let unrecorded = unrecorded.or_else(|| self.is_replacement.then(|| KILLED.into()));
                self.unrecorded = note_program_end(&mut self.recorder, pid, status, &program, unrecorded);
                self.recorder.note_last_words(pid, child_faults, child_reads, name);
                if !wait {
                    return ControlFlow::Break(());
                }
                (self.is_waiting, self.quiet_since) = (true, Instant::now());
            }
            Some(Message::ProgramNotStarted | Message::StopWaiting) => return ControlFlow::Break(()),
            Some(_) => {}
            None => (self.is_alone, self.quiet_since) = (true, Instant::now()),
        }
        ControlFlow::Continue(())
    }
}

/// Raises the limit on open files of this process, which has some for each process that it records: up to the
/// hard limit, and further with the rights for that. The program keeps its own limit.
fn raise_limit_on_files() {
    const WANTED: u64 = 65_536;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    for wanted in [WANTED.max(hard), hard] {
        if soft >= wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
            return;
        }
    }
}

/// Records until the end.
pub(super) fn run(channel: &OwnedFd, plan: &Plan, SurvivorContext { command_pid, saver, replaced }: SurvivorContext) {
    let Plan { dir, socket, .. } = plan;
    if command_pid.is_some() {
        raise_limit_on_files();
    }
    let started = match replaced {
        None => Recorder::start(dir, socket, plan.options.clone(), plan.command.clone()),
        Some(_) => Recorder::resume(dir, socket, plan.options.clone()),
    };
    let mut recorder = match started {
        Ok(recorder) => recorder,
        Err(error) => {
            let failed = Message::StartFailed { errno: error.raw_os_error(), error: error.to_string() };
            return send(channel, &failed);
        }
    };
    saver.iter().for_each(|saver| recorder.save_names(Arc::clone(saver)));
    let planner = recorder.planner().clone();
    if let Some(program) = plan.missed.as_ref().and_then(|program| untraced::open_program(program)) {
        planner.search_later(program);
    }
    let crash_report = command_pid.map(|_| Destination::of(dir));
    send(channel, &Message::Started);
    if let Some(channel) = command_pid.and_then(|_| channel.try_clone().ok()) {
        recorder.connect_command(CommandLink { channel, send: send_to_keeper });
    }
    let is_replacement = replaced.is_some();
    let held: Vec<Held<()>> = replaced.map(Store::into_held).unwrap_or_default();
    held.into_iter().for_each(|held| recorder.take_over(held));
    let mut watch = Watch {
        channel,
        recorder,
        command_pid,
        is_replacement,
        is_alone: false,
        is_waiting: false,
        quiet_since: Instant::now(),
        stopped_program: None,
        unrecorded: None,
        error: None,
    };
    watch.run(dir);
    let Watch { recorder, is_alone, unrecorded, error, .. } = watch;
    let outcome = recorder.finish();
    drop(crash_report);
    if is_alone {
        // The command, which would remove the folder of the socket, is gone.
        socket.parent().map(std::fs::remove_dir);
    }
    if command_pid.is_none() {
        sync::finish();
    }
    let goes_on = command_pid.is_some() && planner.is_working();
    let summary = Summary {
        errors: outcome.errors.into_iter().chain(error).take(MAX_ERRORS).collect(),
        sums: [outcome.sums.emitted, outcome.sums.recorded, outcome.sums.lost, outcome.sums.sampled_out],
        unrecorded,
        still_running: outcome.still_running.into_iter().take(MAX_STILL_RUNNING).collect(),
        goes_on,
    };
    send(channel, &Message::Finished(summary));
    // Names that take longer are written later: the helper continues alone.
    saver.iter().for_each(|saver| saver.finish(SYMBOLS_TIMEOUT));
    // The command makes its summary meanwhile, and ends after this process.
    sync::finish();
    if goes_on {
        // It must keep neither the command waiting, nor a pipe or a file system in use.
        let _ = socket::shutdown(channel.as_raw_fd(), socket::Shutdown::Both);
        sys::discard_stderr();
        let _ = std::env::set_current_dir("/");
        sys::lower_priority(10);
        planner.finish(SEARCH_TIMEOUT);
    }
}

/// Notes the end of the program. Returns why it was not recorded; `None` if it was, or if the
/// recording names the reason already.
fn note_program_end(
    recorder: &mut Recorder,
    pid: u32,
    status: i32,
    program: &Path,
    unrecorded: Option<String>,
) -> Option<String> {
    let _ = recorder.serve(&[], Duration::ZERO);
    recorder.process_ended(pid, End::of_status(status));
    if recorder.processes().iter().any(|info| info.pid == pid) {
        return None;
    }
    let why = unrecorded.unwrap_or_else(|| recorder.why_not_attached().into());
    if recorder.knows_untraced(pid) {
        return None;
    }
    recorder.not_traced(pid, program.to_string_lossy().into_owned(), why.clone());
    Some(why)
}
