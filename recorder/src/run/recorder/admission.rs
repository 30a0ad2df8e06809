//! The admission of processes: what each is offered, its area, and its session once it uses that.

use super::{Parent, Recorder, Running, text, ticks_of};
use crate::inject::patch::{self, Plan};
use crate::os::clock;
use crate::os::sys::Mapping;
use crate::pipeline::drain::Command;
use crate::session::listener::Client;
use crate::session::traced_process::{Attached, Fork};
use crate::target::jit_names::{self, PerfMap};
use crate::target::module_files::ModuleFiles;
use crate::target::proc::{End, Process, sanitized_name};
use crate::target::untraced;
use crossbeam_channel::bounded;
use formats::recording::ProcessInfo;
use formats::tape::Origin;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};
use wire::hello::{Hello, ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Maximum number of sessions at once.
const MAX_SESSIONS: usize = 4096;
/// Time in which a process must start to use its area.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of fixing the state of the parent at a fork that the library did not see.
const PARENT_STATE_TIMEOUT: Duration = Duration::from_millis(100);

/// A process that has received its area and does not use it yet: it may have stopped waiting.
#[derive(Debug)]
pub(super) struct PendingAttach {
    pub(super) client: Client,
    pub(super) process: Process,
    program: Option<(u64, u64)>,
    code: PerfMap,
    files: ModuleFiles,
    folder: String,
    mapping: Mapping,
    plan: Plan,
    area: OwnedFd,
    start_tick: u64,
    since: Instant,
}

/// A process that ran before it was attached, and uses its area now.
#[derive(Debug)]
pub struct RunningProcess {
    pub client: Client,
    /// The shared memory area of the process.
    pub mapping: Mapping,
    pub area: OwnedFd,
    /// The functions that were hooked.
    pub plan: Plan,
    pub start_tick: u64,
}

impl Recorder {
    /// Records a process from its attach on.
    ///
    /// # Errors
    /// Its folder cannot be created.
    pub fn admit_running(&mut self, running: RunningProcess) -> io::Result<()> {
        let RunningProcess { client, mapping, area, plan, start_tick } = running;
        let (process, program) = (Process::read(client.pid), untraced::program(client.pid));
        self.first_pid.get_or_insert(client.pid);
        let folder = self.make_folder(&format!("{}.{}", client.pid, sanitized_name(&process.comm)))?;
        let code = PerfMap::of(client.pid, client.hello.pid, client.uid, jit_names::MAX_MAP_BYTES);
        let files = ModuleFiles::of(client.pid, self.saver.clone());
        let since = Instant::now();
        let pending =
            PendingAttach { client, process, program, code, files, folder, mapping, plan, area, start_tick, since };
        self.start_session(pending);
        Ok(())
    }

    /// Starts the sessions of processes that use their areas now, and drops those that have stopped
    /// waiting.
    pub(super) fn start_attached(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            let is_attached = |pending: &PendingAttach| pending.mapping.header().attached.load(Acquire) != 0;
            // In this order: a process sets its flag before it disconnects.
            let has_disconnected = pending.client.has_disconnected();
            if is_attached(&pending) {
                self.start_session(pending);
            } else if has_disconnected || pending.since.elapsed() > ATTACH_TIMEOUT {
                self.note_gave_up(&pending.client, &pending.process, &pending.folder, &pending.mapping);
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// Offers a process that sent its hello an area, or refuses it.
    pub(super) fn admit(&mut self, mut client: Client) {
        self.attaches(client.pid);
        let (process, program) = (Process::read(client.pid), untraced::program(client.pid));
        self.descendants.know_child_of([process.ppid, 0]);
        // The launched program is always recorded; a program that it executes later is selected by
        // name, like children.
        let is_launched = self.first_pid.is_none();
        let is_child = *self.first_pid.get_or_insert(client.pid) != client.pid;
        if (is_child && !self.options.children) || (!is_launched && !self.is_selected(&process)) {
            return client.refuse(REFUSED_FILTER);
        }
        if self.running.len() + self.pending.len() >= MAX_SESSIONS {
            self.not_traced(client.pid, text(&process.exe), "too many processes at once".into());
            return client.refuse(REFUSED_FULL);
        }
        let start_tick = self.clock.now();
        let (mapping, file) = match client.area(&self.options, self.clock) {
            Ok(area) => area,
            Err(error) => {
                self.not_traced(client.pid, text(&process.exe), format!("no memory for its rings: {error}"));
                return client.refuse(REFUSED_FULL);
            }
        };
        let folder = match self.make_folder(&format!("{}.{}", client.pid, sanitized_name(&process.comm))) {
            Ok(folder) => folder,
            Err(error) => {
                self.errors.push(format!("{}: {error}", self.dir.display()));
                tracing::error!("{}: {error}", self.dir.display());
                return client.refuse(REFUSED_FULL);
            }
        };
        // The same process again: it executed another program, and its old area contains all events
        // that it published.
        self.process_ended(client.pid, End::EXEC);
        if client.hello.fork_age != 0 {
            self.fix_parent_state(&mut client, process.ppid);
        }
        let code = PerfMap::of(client.pid, client.hello.pid, client.uid, jit_names::MAX_MAP_BYTES);
        // The process waits for its reply, so it has not ended.
        let files = ModuleFiles::of(client.pid, self.saver.clone());
        let info = ProcessInfo {
            folder: folder.clone(),
            pid: client.pid,
            ppid: process.ppid,
            exe: text(&process.exe),
            argv: process.argv.iter().map(|argument| text(argument)).collect(),
            started_unix_ns: clock::unix_ns(),
            ..ProcessInfo::default()
        };
        let plan = self.plan(&client, process.ppid, &mapping, &file);
        // Before the process has the area: what it publishes survives this recorder.
        self.hand_over(&client, info, &file);
        if client.accept(&mapping, &file) {
            let since = Instant::now();
            let area = file;
            let pending =
                PendingAttach { client, process, program, code, files, folder, mapping, plan, area, start_tick, since };
            self.pending.push(pending);
        } else {
            self.note_gave_up(&client, &process, &folder, &mapping);
        }
    }

    /// Plans the hooks of allocators inside the program of a new process, and writes them into its
    /// area. A forked child has those of its parent.
    fn plan(&self, client: &Client, ppid: u32, mapping: &Mapping, file: &OwnedFd) -> Plan {
        if client.hello.origin == ORIGIN_FORK {
            let parent = self.parent(client, ppid);
            let is_parent = |info: &&ProcessInfo| parent.as_ref().is_some_and(|parent| parent.folder == info.folder);
            let info = self.recording.processes.iter().rev().find(is_parent);
            let running =
                parent.as_ref().and_then(|parent| self.running.iter().find(|one| one.session.id == parent.session));
            return match running {
                Some(Running { session, .. }) => session.hooks.forked(&session.mapping),
                None => info.map_or_else(Plan::default, Plan::inherited),
            };
        }
        // While the first process waits, no other one does.
        let budget = if self.is_busy() { patch::MEDIUM_BUDGET } else { patch::LONG_BUDGET };
        let plan = self.planner.plan(client.pid, budget);
        plan.write(mapping, file);
        plan
    }

    /// Fixes the parent's state for a child of a fork that the library did not see (a direct system
    /// call of the program). The child reports its age, and waits for its reply.
    fn fix_parent_state(&mut self, client: &mut Client, ppid: u32) {
        let ticks_per_second = self.ticks_per_second();
        let tick = client.hello.fork_tick.saturating_sub(ticks_of(client.hello.fork_age, ticks_per_second));
        (client.hello.fork_tick, client.hello.fork_age) = (tick.max(1), 0);
        if let Some(Parent { session: parent, .. }) = self.parent(client, ppid) {
            let (done, is_done) = bounded(1);
            let _ = self.stages.commands.send(Command::PrepareFork(parent, tick.max(1), done));
            let _ = is_done.recv_timeout(PARENT_STATE_TIMEOUT);
        }
    }

    /// Returns the process from which a new one was forked, or which it was before.
    fn parent(&self, client: &Client, ppid: u32) -> Option<Parent> {
        let parent = |running: &Running| Parent {
            session: running.session.id,
            folder: self.recording.processes[running.index].folder.clone(),
            worker: running.worker,
        };
        let ended = |pid: u32| self.ended.iter().rev().find(|ended| ended.pid == pid).map(|ended| ended.parent.clone());
        let Hello { origin, parent_pid: named, fork_tick, .. } = client.hello;
        if origin == ORIGIN_FORK {
            // A session that started after the fork is another program in the parent's process.
            let is_old = |running: &&Running| fork_tick == 0 || running.session.process.start_tick <= fork_tick;
            let by_name = self.running.iter().filter(is_old).find(|running| running.hello_pid == named);
            let by_kernel = || self.running.iter().filter(is_old).find(|running| running.session.process.pid == ppid);
            return by_name.or_else(by_kernel).map(parent).or_else(|| ended(named));
        }
        // The process was recorded before with another program, or was started by a recorded
        // process, directly or through processes that are not recorded.
        let alive = |pid: u32| self.running.iter().find(|running| running.session.process.pid == pid);
        let known = |pid: u32| alive(pid).map(parent).or_else(|| ended(pid));
        ended(client.pid).or_else(|| known(ppid)).or_else(|| untraced::ancestors(client.pid).find_map(known))
    }

    /// Starts the session of a process that uses its area.
    fn start_session(&mut self, pending: PendingAttach) {
        let PendingAttach { client, process, program, code, files, folder, mapping, plan, area, start_tick, .. } =
            pending;
        let (pid, hello) = (client.pid, client.hello);
        let parent = self.parent(&client, process.ppid);
        let origin = self.origin(&client, parent.is_some());
        let is_fork = origin == Origin::Fork;
        let id = self.new_id();
        let forked_from = parent.as_ref().filter(|_| is_fork);
        let worker = forked_from.map_or(id as usize % self.stages.workers, |parent| parent.worker);
        let running = forked_from.and_then(|parent| self.running.iter().find(|one| one.session.id == parent.session));
        let code = match running {
            Some(running) => code.forked_from(&running.session.code),
            None => code,
        };
        let fork = forked_from.map(|parent| Fork {
            parent: parent.session,
            folder: parent.folder.clone(),
            tick: hello.fork_tick,
        });
        let (hello_pid, uid, page_size) = (hello.pid, client.uid, hello.page_size);
        let (child_faults, comm) = (process.child_faults, process.comm.clone());
        let attached = Attached { pid, hello_pid, uid, origin, page_size, start_tick, process, mapping, code, files };
        let session = self.session(id, attached, &folder).forked(fork).hooks(plan).build();
        let info = ProcessInfo { parent: parent.map(|parent| parent.folder), ..session.info() };
        self.hand_over(&client, info.clone(), &area);
        let index = self.recording.processes.len();
        let process = client.process;
        let has_references = false;
        let running =
            Running { session, process, hello_pid, worker, index, program, child_faults, comm, has_references };
        self.begin(running, info);
    }

    /// Returns how a process began. Every process that knows the socket of a command's recorder got
    /// it from the first process.
    fn origin(&self, client: &Client, has_parent: bool) -> Origin {
        let is_of_command = !self.recording.command.is_empty();
        match client.hello.origin == ORIGIN_FORK {
            true => Origin::Fork,
            false if has_parent => Origin::Exec,
            false if is_of_command && self.first_pid == Some(client.pid) => Origin::Start,
            false if is_of_command => Origin::Exec,
            false => Origin::Attach,
        }
    }
}
