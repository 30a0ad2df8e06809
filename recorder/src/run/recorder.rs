//! The recorder: accepts processes, follows them to their end, writes `recording.json`, runs the
//! stages.

mod census;
mod children;
mod descendants;
mod environment;
mod newborn;
mod policy;
mod references;
mod take_over;
mod unrecorded;

use crate::inject::patch::{Plan, Planner};
use crate::inject::static_program::{Loaded, Loader};
use crate::os::clock::{self, Clock};
use crate::os::replace_file::{Durability, replace_file};
use crate::os::sync;
use crate::os::sys;
use crate::pipeline::drain::Command;
use crate::pipeline::stages::Stages;
use crate::run::admission::{self, Admissions, Parent};
use crate::run::recording_lock::RecordingLock;
use crate::session::boards::{Boards, Found};
use crate::session::keeper::{self, CommandKeeper, Entry};
use crate::session::listener::{AdmitAll, Incoming, Listener, Request, SHORTEST_WAIT};
use crate::session::options::Options;
use crate::session::traced_process::{Session, SessionId};
use crate::store::writer::Callback;
use crate::target::name_saver::Saver;
use crate::target::proc::{self, End, Process, SeenEnd};
use crate::target::untraced::{self, Change, Watch};
use census::Census;
use children::Children;
use descendants::Descendants;
use formats::recording::{Accounting, Exit, ProcessInfo, README, README_TEXT, RECORDING, Recording};
use formats::tape::RESIDENCY_END;
use newborn::Newborn;
use references::{AT_INTERVAL, Reading};
pub use references::{Answer, Question, Silence, take_references};
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use take_over::KILLED;
use unrecorded::RefusedStart;
use wire::limits::ENV_SOCKET;

/// Minimum time between two writes of `recording.json`, except for the last one.
const REWRITE_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum time of reading the pages of the processes that outlive the recording.
const LAST_PAGES: Duration = Duration::from_secs(1);
/// Interval of the checks for results while static programs are loaded.
const LOAD_INTERVAL: Duration = Duration::from_millis(20);
/// The time that the end waits for the search of files for allocators that are not hooked.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Maximum number of ended processes whose files are still searched.
const MAX_UNSETTLED: usize = 1024;

#[derive(Debug)]
struct Running {
    session: Arc<Session>,
    process: OwnedFd,
    /// Its entry with the keeper.
    entry: Option<Entry>,
    hello_pid: u32,
    worker: usize,
    /// Index in the processes of the recording.
    index: usize,
    /// The program that it executes: device and inode.
    program: Option<(u64, u64)>,
    /// Page faults of its children before it attached.
    child_faults: u64,
    /// The kernel's name of it then.
    comm: Vec<u8>,
    /// Whether its references were read, so that it was before its end once.
    has_references: bool,
}

/// A process that is not completely written yet.
#[derive(Debug)]
struct Unwritten {
    /// Index in the processes of the recording.
    index: usize,
    hooks: Arc<Plan>,
}

#[derive(Debug)]
struct EndedSession {
    pid: u32,
    parent: Parent,
}

#[derive(Debug)]
pub struct Recorder {
    dir: PathBuf,
    /// Held from before there is a `recording.json` until it has its end.
    lock: Option<RecordingLock>,
    recording: Recording,
    written: Option<Instant>,
    dirty: bool,
    admissions: Admissions<(), ()>,
    options: Arc<Options>,
    listener: Listener,
    /// The variable in the environment of each process that knows the socket (`NAME=VALUE`).
    variable: Vec<u8>,
    running: Vec<Running>,
    watch: Watch,
    clients: AdmitAll,
    descendants: Descendants,
    newborn: Newborn,
    children: Children,
    census: Census,
    /// Pid of the process that was recorded first.
    first_pid: Option<u32>,
    /// Sessions that have ended recently, for children that name them as parents.
    ended: Vec<EndedSession>,
    boards: Boards,
    folders: HashMap<String, u32>,
    unwritten: HashMap<SessionId, Unwritten>,
    /// Ended processes whose files are still searched.
    unsettled: Vec<Unwritten>,
    stages: Stages,
    errors: Vec<String>,
    sums: Accounting,
    keeper: CommandKeeper,
    loader: Loader,
    /// Static programs with the library in them, which have not attached yet.
    loaded: Vec<Loaded>,
    /// Processes whose references are read while they run.
    readings: Vec<Reading>,
    /// Static programs that are not loaded, and whose children are not known yet.
    refused_starts: Vec<RefusedStart>,
}

#[derive(Debug)]
pub struct Outcome {
    /// The content of `recording.json`.
    pub recording: Recording,
    /// Errors of files that could not be written.
    pub errors: Vec<String>,
    /// Event counts of all processes.
    pub sums: Accounting,
    /// Pid and name of each recorded process that was still running.
    pub still_running: Vec<(u32, String)>,
}

impl Recorder {
    /// Starts recording into an existing folder, for programs that connect to `socket`.
    ///
    /// # Errors
    /// The error of the socket, of a thread, or of `recording.json`.
    pub fn start(dir: &Path, socket: &Path, options: Options, command: Vec<String>) -> io::Result<Recorder> {
        let recording = Recording {
            format: "heaptape recording".into(),
            version: 1,
            heaptape: env!("CARGO_PKG_VERSION").into(),
            command,
            cwd: std::env::current_dir().map(|cwd| cwd.to_string_lossy().into_owned()).unwrap_or_default(),
            host: proc::host(),
            started_unix_ns: clock::unix_ns(),
            ..Recording::default()
        };
        Recorder::with(dir, socket, options, recording)
    }

    fn with(dir: &Path, socket: &Path, options: Options, recording: Recording) -> io::Result<Recorder> {
        let listener = Listener::open_unlisted(socket)?;
        let clock = Clock::choose();
        let stages = Stages::start(clock)?;
        let planner = options.planner();
        let census = if options.children { Census::start() } else { Census::default() };
        let mut recorder = Recorder {
            dir: dir.to_owned(),
            lock: RecordingLock::take(dir),
            loader: Loader::new(options.standalone, planner.clone()),
            loaded: Vec::new(),
            readings: Vec::new(),
            refused_starts: Vec::new(),
            recording,
            written: None,
            dirty: true,
            admissions: Admissions::new(clock, planner, None),
            options: Arc::new(options),
            listener,
            variable: [ENV_SOCKET.as_bytes(), b"=", socket.as_os_str().as_bytes()].concat(),
            running: Vec::new(),
            watch: Watch::default(),
            clients: AdmitAll::default(),
            descendants: Descendants::default(),
            newborn: Newborn::new(),
            children: Children::default(),
            census,
            first_pid: None,
            ended: Vec::new(),
            boards: Boards::default(),
            folders: HashMap::new(),
            unwritten: HashMap::new(),
            unsettled: Vec::new(),
            stages,
            errors: Vec::new(),
            sums: Accounting::default(),
            keeper: CommandKeeper::default(),
        };
        recorder.write_recording()?;
        // On a full disk the recording goes without it.
        let _ = replace_file(&recorder.dir.join(README), README_TEXT.as_bytes(), None, Durability::Later);
        Ok(recorder)
    }

    /// Stores the function names of the modules from here on.
    pub fn save_names(&mut self, saver: Arc<Saver>) {
        self.admissions.saver = Some(saver);
    }

    /// Returns what plans the hooks of allocators inside programs.
    pub fn planner(&self) -> &Planner {
        &self.admissions.planner
    }

    /// Returns the processes recorded so far.
    pub fn processes(&self) -> &[ProcessInfo] {
        &self.recording.processes
    }

    /// Returns whether a process is recorded, or about to be.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.admissions.is_empty()
    }

    /// Waits for events for at most `timeout`, and handles them. `others` are descriptors of the
    /// caller; returns which of them are readable.
    ///
    /// # Errors
    /// The error of `poll`, or of `recording.json`.
    pub fn serve(&mut self, others: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
        let is_poll = timeout.is_zero();
        let timeout = self.watch.deadline().map_or(timeout, |deadline| deadline.min(timeout));
        let timeout = if self.dirty { timeout.min(REWRITE_INTERVAL) } else { timeout };
        let timeout = self.boards.deadline().map_or(timeout, |deadline| deadline.min(timeout));
        let timeout = self.admissions.deadline().map_or(timeout, |deadline| deadline.min(timeout));
        let watches_births = self.options.children && !self.running.is_empty();
        let timeout = if watches_births { timeout.min(self.newborn.deadline()) } else { timeout };
        let timeout = if self.loader.is_busy() { timeout.min(LOAD_INTERVAL) } else { timeout };
        let timeout = if self.watches_live_bytes() { timeout.min(AT_INTERVAL) } else { timeout };
        // Something that is due and cannot be done must not make the recorder busy.
        let timeout = if is_poll { timeout } else { timeout.max(SHORTEST_WAIT) };
        let processes = self.running.iter().map(|running| sys::fd(&running.process));
        let all = others.iter().copied().chain(processes).chain(self.admissions.descriptors());
        let ready = self.listener.wait(all, timeout)?;
        let (others_ready, rest) = ready.split_at(others.len());
        let processes_ready = &rest[..self.running.len()];
        let process_gone: Vec<SessionId> =
            self.running.iter().zip(processes_ready).filter(|(_, ready)| **ready).map(|(r, _)| r.session.id).collect();
        self.keeper.send_waiting();
        admission::look_at_waiting(self);
        for incoming in self.listener.incoming(&mut self.clients) {
            match incoming {
                Incoming::Request(Request::Start(client)) => admission::admit(self, client),
                // The recording of a program accepts no other files.
                Incoming::Request(Request::Stream(_)) => {}
                Incoming::Notice { from, pid, why, path, preload, attached } => {
                    self.children.know_child_of([from, attached]);
                    let why = self.why_untraced([from, attached], why, &preload);
                    self.note_untraced(from, pid, why, &path);
                }
                Incoming::Load(follow) => self.loader.follow(follow),
                Incoming::Exit { pid, is_before, socket } => self.about_to_exit(pid, is_before, socket),
                Incoming::Question { pid, of_references, uid, socket } => self.asked(pid, of_references, uid, socket),
            }
        }
        self.note_loaded();
        self.look_at_live_bytes();
        // Before the ends: a process that announced another program ends by executing it.
        self.read_boards();
        for id in process_gone {
            self.process_gone(id);
        }
        self.check_programs();
        self.look_at_newborn();
        self.check_descendants();
        self.take_stored();
        if self.dirty && self.written.is_none_or(|written| written.elapsed() >= REWRITE_INTERVAL) {
            self.write_recording()?;
        }
        Ok(others_ready.to_vec())
    }

    /// Handles the reports of processes that cannot reach the socket.
    fn read_boards(&mut self) {
        let running = self.running.iter().map(|running| (Arc::clone(&running.session), running.hello_pid));
        for Found { pid, is_owner, exe, why, .. } in self.boards.read(running) {
            if is_owner && self.running.iter().any(|running| running.session.process.pid == pid) {
                self.watch.leaves(pid);
            }
            self.not_traced(pid, exe, why);
        }
    }

    /// Returns why a program has not attached that could have loaded the library.
    pub(crate) fn why_not_attached(&self) -> &'static str {
        if self.clients.lacks_descriptors { untraced::NO_DESCRIPTOR } else { untraced::NOT_LOADED }
    }

    /// Checks for processes that continued with a program that is not recorded.
    fn check_programs(&mut self) {
        let running = self.running.iter().map(|running| (running.session.process.pid, running.program));
        for (pid, change) in self.watch.look(running) {
            match change {
                Change::Stayed => self.take_back(pid),
                Change::Left => {
                    if !self.knows_untraced(pid) {
                        let exe = format!("/proc/{pid}/exe");
                        let why = untraced::why_not(Path::new(&exe)).unwrap_or_else(|| untraced::NOT_LOADED.into());
                        let process = Process::read(pid);
                        self.watch.has_left(pid, &process);
                        self.not_traced(pid, text(&process.exe), why);
                    }
                    self.process_ended(pid, End::EXEC);
                }
            }
            self.dirty = true;
        }
    }

    fn take_stored(&mut self) {
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.errors.extend(stored.error);
            self.sums.add(stored.sums);
            self.boards.stored(stored.session);
            if let Some(Unwritten { index, hooks }) = self.unwritten.remove(&stored.session)
                && let Some(info) = self.recording.processes.get_mut(index)
            {
                info.accounting = Some(stored.sums);
                hooks.set_events(&mut info.allocators);
                hooks.note_unhooked(&mut info.allocators);
                if !hooks.is_settled() && self.unsettled.len() < MAX_UNSETTLED {
                    self.unsettled.push(Unwritten { index, hooks });
                }
                self.dirty = true;
            }
        }
    }

    /// Notes which allocators are not hooked, once the files have been searched, for processes that
    /// ended before.
    fn settle(&mut self) {
        if self.unsettled.is_empty() {
            return;
        }
        self.admissions.planner.finish(SETTLE_TIME);
        for Unwritten { index, hooks } in std::mem::take(&mut self.unsettled) {
            if let Some(info) = self.recording.processes.get_mut(index) {
                hooks.note_unhooked(&mut info.allocators);
            }
        }
    }

    fn process_gone(&mut self, id: SessionId) {
        if let Some(index) = self.running.iter().position(|running| running.session.id == id) {
            let running = &self.running[index];
            let end = proc::end(running.session.process.pid, sys::fd(&running.process));
            self.end(index, end);
        }
    }

    /// Ends the sessions of a process, whose end the caller knows.
    pub(crate) fn process_ended(&mut self, pid: u32, end: End) {
        let mut is_known = false;
        while let Some(index) = self.running.iter().position(|running| running.session.process.pid == pid) {
            self.end(index, end);
            is_known = true;
        }
        // Before Linux 6.15 the status is gone with the process, and the command waits for it as soon
        // as we do.
        let ended = self.recording.processes.iter_mut().rfind(|info| info.pid == pid);
        if let Some(info) = ended.filter(|info| !is_known && info.exit == Some(Exit::Unknown)) {
            info.exit = Some(end.exit());
            self.dirty = true;
        }
    }

    /// Reads the pages of the processes that are still running, and waits for that a short time.
    pub fn read_pages(&self) {
        let (done, dones) = crossbeam_channel::unbounded();
        for running in &self.running {
            let done = done.clone();
            let then = Callback::new(move || drop(done));
            self.stages.read_pages(running.session.id, RESIDENCY_END, then);
        }
        drop(done);
        // All senders are gone when all pages are read.
        let _: Result<(), _> = dones.recv_timeout(LAST_PAGES);
    }

    fn end(&mut self, index: usize, end: End) {
        let running = self.running.swap_remove(index);
        let left = self.watch.forget(running.session.process.pid);
        let end = if left { End::EXEC } else { end };
        let seen = SeenEnd::now(end, &running.session.clock);
        self.note_children(&running, end);
        self.note_silent_exit(&running, end);
        let _ = self.stages.commands.send(Command::End(running.session.id, seen));
        running.entry.iter().for_each(|entry| keeper::release(&mut self.keeper, entry));
        if let Some(info) = self.recording.processes.get_mut(running.index) {
            info.exit = Some(end.exit());
            info.lacks_references = self.options.references && !running.has_references && end != End::EXEC;
            info.ended_unix_ns = Some(clock::unix_ns());
            self.boards.keep((Arc::clone(&running.session), running.hello_pid));
            let parent = Parent { session: None, ..Parent::running(&running.session, running.worker) };
            self.ended.push(EndedSession { pid: running.session.process.pid, parent });
            let old = self.ended.len().saturating_sub(64);
            self.ended.drain(..old);
        }
        self.dirty = true;
    }

    fn write_recording(&mut self) -> io::Result<()> {
        let path = self.dir.join(RECORDING);
        let mut bytes = serde_json::to_vec_pretty(&self.recording)?;
        bytes.push(b'\n');
        replace_file(&path, &bytes, None, Durability::Later)?;
        (self.written, self.dirty) = (Some(Instant::now()), false);
        Ok(())
    }

    fn write_or_note(&mut self) {
        if let Err(error) = self.write_recording() {
            self.errors.push(format!("{}: {error}", self.dir.join(RECORDING).display()));
        }
    }

    /// Ends the recording: ended processes are drained, and running ones are not recorded any more.
    /// [`sync::finish`] waits until everything is on the disk.
    pub fn finish(mut self) -> Outcome {
        self.loader.finish();
        let _ = self.serve(&[], Duration::ZERO);
        admission::stop_waiting(&mut self);
        self.note_not_attached();
        self.read_boards();
        self.name_found();
        self.search_descendants();
        self.name_unseen_members();
        let unattached = self.search_unattached();
        let has_ended = |running: &&Running| sys::is_readable(sys::fd(&running.process));
        let ended: Vec<SessionId> = self.running.iter().filter(has_ended).map(|running| running.session.id).collect();
        ended.into_iter().for_each(|id| self.process_gone(id));
        self.finish_readings();
        self.read_pages();
        let name = |running: &Running| {
            let process = &running.session.process;
            (process.pid, process.exe.lossy().rsplit('/').next().unwrap_or_default().to_owned())
        };
        let still_running = self.running.iter().map(name).collect();
        while !self.running.is_empty() {
            self.end(0, End::RUNNING);
        }
        self.stages.stop();
        self.admissions.saver.iter().for_each(|saver| saver.close());
        self.take_stored();
        self.settle();
        self.note_unattached(&unattached);
        self.note_unseen_children();
        self.recording.ended_unix_ns = Some(clock::unix_ns());
        if let Some(lock) = &self.lock {
            lock.free_space();
        }
        self.write_or_note();
        drop(self.lock);
        sync::start();
        Outcome { recording: self.recording, errors: self.errors, sums: self.sums, still_running }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
