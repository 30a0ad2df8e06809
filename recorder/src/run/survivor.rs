//! The survivor process: the recorder of `heaptape record` in a process of its own.
//!
//! The command itself starts the program, passes signals on and waits. The survivor process holds
//! the events, and no signal of the terminal reaches it. When the command is killed (by a time
//! limit, a person, a script that cleans up) nothing is lost: the survivor process records until
//! the last recorded process has ended, and then completes the recording.
//!
//! The command is its [keeper](crate::session::keeper). When the survivor process is
//! killed (SIGKILL, also by a system that is out of memory), the command starts another one, which
//! reads the rings from where the journal ends.

mod process;

use crate::os::crash::{self, Role};
use crate::os::spawn;
use crate::os::sys;
use crate::session::keeper::{FILES, Request, Store};
use crate::session::options::Options;
use crate::target::name_saver::{self, Side, Work};
use formats::recording::Accounting;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{self, MsgFlags};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use process::{SurvivorContext, run};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum length of a message, in bytes.
const MAX_MESSAGE_LEN: usize = 64 << 10;
/// Maximum number of killed survivor processes that are replaced in one recording.
const MAX_REPLACEMENTS: u32 = 20;

/// What the command knows of the end of the program.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProgramEnd {
    /// Wait status.
    pub status: i32,
    /// Page faults of its children that it had waited for.
    pub child_faults: u64,
    /// What these children read, if that is known.
    pub child_reads: Option<u64>,
    /// The kernel's name of it (`comm`) at the end, if it exited.
    pub name: Vec<u8>,
}

/// A message between the command and the survivor process.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// From the survivor process: it records.
    Started,
    /// From the survivor process: it cannot record. `errno` is the system's number of the error.
    StartFailed {
        errno: Option<i32>,
        error: String,
    },
    /// From the command: it stops, because the program with this pid has stopped.
    CommandStopped {
        program: u32,
    },
    CommandContinued,
    /// From the command: the program has ended with this wait status. `unrecorded` is the reason
    /// to report if the program was not recorded. With `wait` the recording stays open until all
    /// recorded processes have ended.
    ProgramEnded {
        pid: u32,
        end: ProgramEnd,
        program: PathBuf,
        unrecorded: Option<String>,
        wait: bool,
    },
    /// From the command: end the recording without waiting for further processes.
    StopWaiting,
    /// From the command: the program could not be started.
    ProgramNotStarted,
    /// From the survivor process, to its keeper. Descriptors may come with the message.
    Keep(Request),
    /// From the survivor process: the recording is complete.
    Finished(Summary),
}

/// What the survivor process reports when the recording is complete.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Errors of files that could not be written.
    pub errors: Vec<String>,
    /// Event counts of all processes: emitted, recorded, lost, sampled out.
    sums: [u64; 4],
    /// Why the program itself is not in the recording; `None` if it is.
    pub unrecorded: Option<String>,
    /// Pid and name of each recorded process that was still running.
    pub still_running: Vec<(u32, String)>,
    /// Whether the survivor process goes on alone, to search files for the next recording.
    goes_on: bool,
}

impl Summary {
    /// Returns the event counts of all processes.
    pub(crate) fn sums(&self) -> Accounting {
        let [emitted, recorded, lost, sampled_out] = self.sums;
        Accounting { emitted, recorded, lost, sampled_out }
    }
}

/// The options of the recording.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Folder of the recording.
    pub dir: PathBuf,
    pub socket: PathBuf,
    pub options: Options,
    /// Command line of the program.
    pub command: Vec<String>,
    /// Whether the recorder is a process of its own, for a caller that has one thread; otherwise it
    /// is a thread.
    pub separate: bool,
    /// Looks up the function names that a separate process stores.
    pub work: Option<Work>,
    /// Descriptors that are the program's. A separate process closes them.
    pub inherited: Vec<i32>,
    /// The program, if its symbol table is too large to be searched before its start.
    pub missed: Option<PathBuf>,
}

/// The command's end of the channel to the survivor process.
#[derive(Debug)]
pub struct Survivor {
    plan: Plan,
    channel: OwnedFd,
    /// Pid of the survivor process; `None` when the recorder is a thread, or has ended.
    process: Option<u32>,
    /// The recorded processes, for the next survivor process.
    store: Store,
    /// The message of the program's end, once that was sent.
    program_end: Option<Message>,
    replacements: u32,
    crash: Option<Signal>,
    is_gone: bool,
    /// Whether the survivor process goes on after the end of the recording.
    goes_on: bool,
}

/// What a message of the survivor process means for the command.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The recording continues until it is ended.
    Recording,
    /// The recording is complete.
    Finished(Summary),
    /// The survivor process was killed or crashed, and was not replaced.
    Gone,
}

fn send(channel: &OwnedFd, message: &Message) {
    if let Ok(bytes) = serde_json::to_vec(message) {
        let _ = socket::send(channel.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
    }
}

/// Sends the command what it is to keep. Returns false when the channel is full.
fn send_to_keeper(channel: &OwnedFd, request: &Request, files: &[BorrowedFd<'_>]) -> bool {
    let bytes = serde_json::to_vec(&Message::Keep(request.clone())).unwrap_or_default();
    !matches!(sys::send_files_with(sys::fd(channel), &bytes, files, false), Err(Errno::EAGAIN))
}

/// Waits for the next message and its descriptors; returns `None` when the peer has closed its end.
fn receive_with_files(channel: &OwnedFd) -> Option<(Message, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_MESSAGE_LEN];
    loop {
        match sys::receive_files::<FILES>(sys::fd(channel), &mut bytes) {
            Err(Errno::EINTR) => {}
            Ok((count, files)) if count > 0 => return Some((serde_json::from_slice(&bytes[..count]).ok()?, files)),
            _ => return None,
        }
    }
}

/// Waits for the next message; returns `None` when the peer has closed its end.
fn receive(channel: &OwnedFd) -> Option<Message> {
    receive_with_files(channel).map(|(message, _)| message)
}

/// Starts a recorder. Returns the channel to it, and its pid if it is a separate process. With
/// `replaced` it continues with the processes of a killed one.
fn launch(plan: &Plan, replaced: Option<&mut Store>) -> io::Result<(OwnedFd, Option<u32>)> {
    let flags = socket::SockFlag::SOCK_CLOEXEC;
    let pair = socket::socketpair(socket::AddressFamily::Unix, socket::SockType::SeqPacket, None, flags);
    let (channel, survivor_channel) = pair.map_err(sys::io)?;
    let mut process = None;
    if plan.separate {
        let command_pid = Some(std::process::id());
        process = sys::fork().map_err(sys::io)?;
        if process.is_none() {
            crash::set_role(Role::Survivor);
            // `kill -ABRT` of a recorder that hangs makes a core dump.
            spawn::swap_mask(spawn::ALL_SIGNALS & !spawn::fatal_signals());
            // A process group of its own keeps the terminal's signals away. Not a session of its
            // own: the scheduler would put that into a group of its own (sched(7), autogroup), and
            // on a busy machine such a group of three threads got no CPU for seconds while the
            // program beside it waited.
            let _ = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0));
            let replaced = replaced.map(std::mem::take);
            if replaced.is_none() {
                spawn::close_inherited(&plan.inherited, false);
            }
            drop(channel);
            let saver = match plan.work.map(|work| (work, name_saver::split())) {
                Some((work, Ok(Side::Helper(helper)))) => {
                    drop((survivor_channel, replaced));
                    helper.run(work);
                    std::process::exit(0);
                }
                Some((_, Ok(Side::Recorder(saver)))) => Some(Arc::new(saver)),
                Some((_, Err(_))) | None => None,
            };
            run(&survivor_channel, plan, SurvivorContext { command_pid, saver, replaced });
            std::process::exit(0);
        }
        // The end of the survivor process is only seen when nobody else holds its end of the
        // channel.
        drop(survivor_channel);
    } else {
        let plan = plan.clone();
        let context = SurvivorContext { command_pid: None, saver: None, replaced: None };
        crash::spawn("recorder", move || run(&survivor_channel, &plan, context))?;
    }
    match receive(&channel) {
        Some(Message::Started) => Ok((channel, process)),
        Some(Message::StartFailed { errno: Some(errno), .. }) => Err(io::Error::from_raw_os_error(errno)),
        Some(Message::StartFailed { errno: None, error }) => Err(io::Error::other(error)),
        _ if matches!(process.and_then(wait_for), Some(WaitStatus::Signaled(_, Signal::SIGKILL, _))) => {
            Err(io::Error::new(io::ErrorKind::Interrupted, "the recorder was killed while it started"))
        }
        _ => Err(io::Error::other("the recorder ended while it started")),
    }
}

/// Waits for the end of a survivor process.
fn wait_for(process: u32) -> Option<WaitStatus> {
    waitpid(Pid::from_raw(i32::try_from(process).ok()?), None).ok()
}

impl Survivor {
    /// Starts or resumes recording.
    ///
    /// # Errors
    /// The error of the recorder, of the fork, or of the socket pair.
    pub fn start(plan: Plan) -> io::Result<Survivor> {
        let (channel, process) = launch(&plan, None)?;
        let (store, program_end) = (Store::default(), None);
        Ok(Survivor {
            plan,
            channel,
            process,
            store,
            program_end,
            replacements: 0,
            crash: None,
            is_gone: false,
            goes_on: false,
        })
    }

    /// Starts another survivor process if this one was killed, and another one if that is killed
    /// while it starts. Returns whether the recording goes on. One that crashed is not replaced:
    /// the next one would read the same and crash, too.
    fn replace(&mut self) -> bool {
        match self.process.take().and_then(wait_for) {
            Some(WaitStatus::Signaled(_, Signal::SIGKILL, _)) => {}
            Some(WaitStatus::Signaled(_, signal, _)) => {
                self.crash = Some(signal);
                return false;
            }
            _ => return false,
        }
        while self.replacements < MAX_REPLACEMENTS {
            self.replacements += 1;
            match launch(&self.plan, Some(&mut self.store)) {
                Ok((channel, process)) => {
                    (self.channel, self.process) = (channel, process);
                    self.program_end.iter().for_each(|message| send(&self.channel, message));
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!("{}: cannot start another recorder: {error}", self.plan.dir.display());
                    return false;
                }
            }
        }
        false
    }

    /// Handles one message of the survivor process, and waits for it if there is none.
    pub(crate) fn handle_message(&mut self) -> Progress {
        match receive_with_files(&self.channel) {
            Some((Message::Keep(request), files)) => self.store.obey(request, files),
            Some((Message::Finished(summary), _)) => {
                self.goes_on = summary.goes_on;
                return Progress::Finished(summary);
            }
            Some(_) => {}
            None if self.replace() => {}
            None => {
                self.is_gone = true;
                return Progress::Gone;
            }
        }
        Progress::Recording
    }

    /// Returns the signal that ended the survivor process, if that was no kill.
    pub fn crash(&self) -> Option<Signal> {
        self.crash
    }

    /// Returns how many killed survivor processes were replaced.
    pub fn replacements(&self) -> u32 {
        self.replacements
    }

    /// Returns the pid of the survivor process, if the recorder is not a thread.
    pub fn pid(&self) -> Option<u32> {
        self.process
    }

    /// Reports that the command stops because the program with this pid has stopped. The survivor
    /// process continues the command when the program continues.
    pub(crate) fn command_stopped(&self, program: u32) {
        send(&self.channel, &Message::CommandStopped { program });
    }

    /// Reports that the command was continued.
    pub(crate) fn command_continued(&self) {
        send(&self.channel, &Message::CommandContinued);
    }

    /// Reports that the program could not be started, and waits for the recorder to end.
    pub(crate) fn program_not_started(self) {
        send(&self.channel, &Message::ProgramNotStarted);
        while receive(&self.channel).is_some() {}
    }

    /// Reports that the program has ended. `unrecorded` is the reason to report if it was not recorded;
    /// `wait` keeps the recording open until all recorded processes have ended.
    pub(crate) fn program_ended(
        &mut self,
        pid: u32,
        end: ProgramEnd,
        program: &Path,
        unrecorded: Option<String>,
        wait: bool,
    ) {
        let program = program.to_owned();
        let message = Message::ProgramEnded { pid, end, program, unrecorded, wait };
        send(&self.channel, &message);
        self.program_end = Some(message);
    }

    /// Stops the wait for processes that outlive the program.
    pub(crate) fn stop_waiting(&self) {
        send(&self.channel, &Message::StopWaiting);
    }

    /// Returns the descriptor that becomes readable when there is a message to handle; `None` when
    /// the survivor process is gone.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_gone).then(|| sys::fd(&self.channel))
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        if self.goes_on {
            while receive(&self.channel).is_some() {}
        } else {
            self.process.take().and_then(wait_for);
        }
    }
}
