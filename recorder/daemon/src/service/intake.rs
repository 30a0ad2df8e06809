//! How processes come and go: new processes, those of an earlier daemon, ends of processes.

use super::Service;
use crate::budget::EVENTS;
use crate::clients::{Client, Ended, FlightEnd, KernelMemory};
use crate::config::{Choice, MAX_INTERVAL, Sampling};
use crate::epoch::Epoch;
use crate::fd_store::{Held, Name};
use crate::growth::LiveHistory;
use crossbeam_channel::bounded;
use formats::tape::Origin;
use heaptape_recorder::inject::patch::{self, Plan};
use heaptape_recorder::os::clock;
use heaptape_recorder::os::sys::{self, Mapping};
use heaptape_recorder::pipeline::drain::Command;
use heaptape_recorder::rings::ring_space;
use heaptape_recorder::run::recorder::{RunningProcess, ticks_of};
use heaptape_recorder::session::chunk_journal;
use heaptape_recorder::session::event_rate::Limit;
use heaptape_recorder::session::listener::Client as AttachRequest;
use heaptape_recorder::session::options::{Mode, Options};
use heaptape_recorder::session::traced_process::{Attached, Fork, Ids, Session, SessionBuilder, SessionId};
use heaptape_recorder::target::jit_names::{MAX_MAP_BYTES_SHARED, PerfMap};
use heaptape_recorder::target::module_files::ModuleFiles;
use heaptape_recorder::target::proc::{self, End, Process};
use heaptape_recorder::target::untraced;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::hello::{ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Timeout of fixing the state of the parent at a fork that the library did not see.
const PARENT_STATE_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum length of a label, in characters.
const MAX_LABEL: usize = 200;

/// What the daemon decided about a process: what is recorded of it, and where.
#[derive(Debug)]
struct Admission {
    /// User id of the process.
    uid: u32,
    /// Name of the process, from the kernel.
    name: String,
    choice: Choice,
    label: String,
    cgroup: String,
    epoch: Arc<Epoch>,
    options: Options,
}

/// The descriptors of a process, which the next daemon receives.
#[derive(Debug)]
struct Handles {
    process: OwnedFd,
    area: OwnedFd,
}

impl Admission {
    fn into_client(
        self,
        session: Arc<Session>,
        handles: Handles,
        hello_pid: u32,
        worker: usize,
        interval: u64,
        memory: KernelMemory,
    ) -> Client {
        let Admission { uid, name, choice, label, cgroup, epoch, .. } = self;
        let Handles { process, area } = handles;
        Client {
            session,
            process,
            area,
            uid,
            hello_pid,
            worker,
            choice,
            interval,
            name,
            label,
            cgroup,
            epoch,
            since: Instant::now(),
            past: VecDeque::new(),
            history: LiveHistory::default(),
            ticks: 0,
            kept: None,
            held: None,
            reduced: None,
            earlier_hits: 0,
            memory,
            is_attached: false,
            program: None,
        }
    }
}

/// The process from which a child was forked.
#[derive(Debug)]
struct ForkParent {
    session: Arc<Session>,
    worker: usize,
}

impl ForkParent {
    fn fork(self, tick: u64) -> Fork {
        let folder = self.session.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Fork { parent: self.session.id, folder, tick }
    }
}

/// What became of a request.
enum Started {
    Accepted,
    /// The program no longer waited, and runs unrecorded.
    Late,
}

/// Maximum number of lines in a minute about one user's programs that run unrecorded.
const MAX_LOGGED: u32 = 16;

impl Service {
    /// Records a process that requests it, or refuses that.
    pub(super) fn admit(&mut self, request: AttachRequest) {
        let uid = request.uid;
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            self.registry.count_refused("other-user", 1);
            return request.refuse(REFUSED_FILTER);
        }
        // The same process again: it executed another program, and its old area contains all events
        // that it published.
        for id in self.registry.select(|client| client.pid() == request.pid) {
            self.end(id, End::EXEC);
        }
        // Those behind it wait for us, so nothing is done for a program that has gone on.
        if request.has_disconnected() {
            return self.count_late(request.pid, uid);
        }
        let of_user = self.registry.select(|client| client.uid == uid).len() as u64;
        if of_user >= self.config.budget.clients {
            self.budgets
                .hit("clients", &format!("user {uid}: {of_user} processes are recorded, the next runs unrecorded"));
            self.registry.count_refused("clients", 1);
            return request.refuse(REFUSED_FULL);
        }
        let pid = request.pid;
        match self.attach(request) {
            Ok(Started::Accepted) => {
                self.late.forget(pid);
                self.registry.count_accepted();
            }
            Ok(Started::Late) => self.count_late(pid, uid),
            Err((request, error)) => {
                if let Some(more) = self.log.permits("refused", uid, MAX_LOGGED) {
                    tracing::warn!("process {pid} runs unrecorded: {error}{more}");
                }
                if sys::is_out_of_descriptors(&error) {
                    self.budgets.hit_by("descriptors", uid, 1);
                }
                let reason = if sys::is_out_of_descriptors(&error) { "descriptors" } else { "error" };
                self.registry.count_refused(reason, 1);
                request.refuse(REFUSED_FULL);
            }
        }
    }

    /// Starts the recording of a process. Returns the request if that is not possible.
    fn attach(&mut self, mut request: AttachRequest) -> Result<Started, (AttachRequest, io::Error)> {
        let start_tick = self.clock.now();
        let process = Process::read(request.pid);
        let (admission, mode) = match self.admission(&request, &process) {
            Ok(decided) => decided,
            Err(error) => return Err((request, error)),
        };
        let (mapping, area) = match request.area(&admission.options, self.clock) {
            Ok(area) => area,
            Err(error) => return Err((request, error)),
        };
        let folder = self.folder(&admission, request.pid);
        let parent = self.prepare_fork(&mut request, process.ppid);
        let id = self.registry.new_id();
        let worker = parent.as_ref().map_or(id as usize % self.stages.workers, |parent| parent.worker);
        let hooks = self.hooks(&request, parent.as_ref());
        hooks.write(&mapping, &area);
        let attached = self.attached(&request, process, mapping, start_tick, parent.as_ref());
        let carried_over = self.successor.carried_over_file(request.pid);
        let session = self.session(id, attached, folder, &admission);
        let fork = parent.map(|parent| parent.fork(request.hello.fork_tick));
        let session = session.forked(fork).hooks(hooks).carried_over(carried_over.clone()).build();
        // Of an earlier process of this number.
        let _ = std::fs::remove_file(chunk_journal::link(&carried_over));
        // The activation is set before the area is sent.
        if admission.choice.mode == Mode::Off {
            session.mapping.header().activation.0.store(wire::area::ACTIVATION_DORMANT, Relaxed);
        }
        if !request.accept(&session.mapping, &area) {
            return Ok(Started::Late);
        }
        let (pid, choice) = (request.pid, admission.choice);
        self.start_client(admission, session, request, area, worker);
        self.note_unknown_mode(id, pid, mode, choice);
        Ok(Started::Accepted)
    }

    /// Counts a program that runs unrecorded since it no longer waited for the answer, and names it.
    fn count_late(&mut self, pid: u32, uid: u32) {
        let name = self.late.add(pid, uid, "late");
        self.registry.count_refused("late", 1);
        if let Some(more) = self.log.permits("late", uid, MAX_LOGGED) {
            let name = name.escape_debug();
            tracing::warn!(
                "process {pid} ({name}) runs unrecorded: it no longer waited for the daemon, which was busy (HEAPTAPE_ATTACH_MS){more}"
            );
        }
    }

    /// Decides what is recorded of a new process. Returns the mode that it requested, too.
    fn admission(&mut self, request: &AttachRequest, process: &Process) -> io::Result<(Admission, Option<String>)> {
        let mut variables = proc::variable(request.pid, &["HEAPTAPE_MODE", "HEAPTAPE_LABEL"]).into_iter();
        let (mode, label) = (variables.next().flatten(), variables.next().flatten());
        let choice = self.config.choose(&process.comm, mode.as_deref());
        let is_fork = request.hello.origin == ORIGIN_FORK;
        // A parent that has overwritten its environment left none to the child.
        let of_parent = || self.registry.client_of(process.ppid).filter(|_| is_fork).map(|parent| parent.label.clone());
        let label = label.or_else(of_parent).filter(|label| !label.is_empty());
        let mut admission = self.admission_as(choice, request.pid, request.uid, process, label)?;
        admission.options.slots = self.slots();
        Ok((admission, mode))
    }

    /// Returns the number of threads for which an area has space.
    pub(super) fn slots(&self) -> u32 {
        self.config.budget.threads.clamp(1, wire::limits::SLOTS.into()) as u32
    }

    /// Records a process that was attached, and that uses its area already.
    ///
    /// # Errors
    /// The error of the folder.
    pub(super) fn admit_running(&mut self, running: RunningProcess, choice: Choice) -> io::Result<SessionId> {
        let RunningProcess { client: request, mapping, area, plan, start_tick } = running;
        let process = Process::read(request.pid);
        let label = proc::variable(request.pid, &["HEAPTAPE_LABEL"]).into_iter().next().flatten();
        let label = label.filter(|label| !label.is_empty());
        let mut admission = self.admission_as(choice, request.pid, request.uid, &process, label)?;
        admission.options.slots = self.slots();
        let folder = self.folder(&admission, request.pid);
        let id = self.registry.new_id();
        let worker = id as usize % self.stages.workers;
        let attached = self.attached(&request, process, mapping, start_tick, None);
        let carried_over = self.successor.carried_over_file(request.pid);
        let session = self.session(id, attached, folder, &admission).hooks(plan).carried_over(carried_over).build();
        if choice.mode == Mode::Off {
            session.mapping.header().activation.0.store(wire::area::ACTIVATION_DORMANT, Relaxed);
        }
        self.start_client(admission, session, request, area, worker);
        if let Some(client) = self.registry.client_mut(id) {
            (client.is_attached, client.program) = (true, untraced::program(client.pid()));
            self.successor.keep_attached(client.pid(), true);
        }
        Ok(id)
    }

    /// Lists a process that uses its area, for this daemon and for the next one.
    fn start_client(
        &mut self,
        admission: Admission,
        session: Arc<Session>,
        request: AttachRequest,
        area: OwnedFd,
        worker: usize,
    ) {
        // Of an earlier process of this number.
        self.successor.keep_attached(request.pid, false);
        self.successor.keep_label(request.pid, &admission.label);
        self.successor.keep_program(request.pid, &session.process.exe.0);
        self.successor.keep_hooks(request.pid, &session.hooks);
        self.epochs.list(&admission.epoch, &session);
        self.send(Command::Start(Arc::clone(&session), worker));
        let handles = Handles { process: request.process, area };
        let interval = admission.choice.interval();
        let memory = self.kernel_memory(request.pid);
        let client = admission.into_client(session, handles, request.hello.pid, worker, interval, memory);
        self.successor.hold(&client);
        self.registry.add(client);
    }

    /// Decides where a process is recorded, and its label: without one of its own it has that of
    /// its systemd unit.
    fn admission_as(
        &mut self,
        choice: Choice,
        pid: u32,
        uid: u32,
        process: &Process,
        label: Option<String>,
    ) -> io::Result<Admission> {
        let (cgroup, unit) = proc::control_group(pid);
        let label: String = label.or(unit).unwrap_or_default().chars().take(MAX_LABEL).collect();
        let mut options = choice.options(&self.config, &label);
        let epoch = self.epochs.of_user(uid)?;
        (options.reader, options.quota) = (epoch.reader, Some(self.epochs.quota(uid)));
        options.names = Some(self.epochs.names(&epoch));
        let name = String::from_utf8_lossy(&process.comm).into_owned();
        Ok(Admission { uid, name, choice, label, cgroup, epoch, options })
    }

    fn folder(&mut self, admission: &Admission, pid: u32) -> PathBuf {
        self.epochs.folder(admission.uid, &admission.epoch, admission.choice.mode, pid, &admission.name)
    }

    /// Returns the builder of a session that is recorded with the options of an admission, within
    /// the limit of its user.
    fn session(&mut self, id: SessionId, attached: Attached, folder: PathBuf, admission: &Admission) -> SessionBuilder {
        let options = Arc::new(admission.options.clone());
        let limit = Limit::of(self.budgets.user_limit(admission.uid));
        SessionBuilder::new(id, attached, folder, options, self.clock, self.ticks_per_second).limit(limit)
    }

    /// Returns the parent of a forked child. If the library did not see the fork, the current
    /// blocks of the parent are kept for the child, which waits for its reply.
    fn prepare_fork(&mut self, request: &mut AttachRequest, ppid: u32) -> Option<ForkParent> {
        let age = std::mem::take(&mut request.hello.fork_age);
        if age != 0 {
            let tick = request.hello.fork_tick.saturating_sub(ticks_of(age, self.ticks_per_second));
            request.hello.fork_tick = tick.max(1);
        }
        if request.hello.origin != ORIGIN_FORK {
            return None;
        }
        let parent = self.parent(request, ppid)?;
        if age != 0 {
            let (done, is_done) = bounded(1);
            self.send(Command::PrepareFork(parent.session.id, request.hello.fork_tick, done));
            let _ = is_done.recv_timeout(PARENT_STATE_TIMEOUT);
        }
        Some(parent)
    }

    /// Plans the hooks of allocators inside the program of a new process. A forked child has those
    /// of its parent.
    fn hooks(&self, request: &AttachRequest, parent: Option<&ForkParent>) -> Plan {
        match parent {
            _ if request.hello.origin != ORIGIN_FORK => self.planner.plan(request.pid, patch::SHORT_BUDGET),
            Some(ForkParent { session, .. }) => session.hooks.forked(&session.mapping),
            None => Plan::default(),
        }
    }

    /// Collects what is known of a new process.
    fn attached(
        &self,
        request: &AttachRequest,
        process: Process,
        mapping: Mapping,
        start_tick: u64,
        parent: Option<&ForkParent>,
    ) -> Attached {
        let (pid, hello_pid, uid) = (request.pid, request.hello.pid, request.uid);
        let code = PerfMap::of(pid, hello_pid, uid, MAX_MAP_BYTES_SHARED);
        Attached {
            pid,
            hello_pid,
            uid,
            origin: if request.hello.origin == ORIGIN_FORK { Origin::Fork } else { Origin::Attach },
            page_size: request.hello.page_size,
            start_tick,
            process,
            mapping,
            code: match parent {
                Some(parent) => code.forked_from(&parent.session.code),
                None => code,
            },
            files: ModuleFiles::of(pid, self.saver.clone()),
        }
    }

    /// Notes that the mode which a process requested is none.
    fn note_unknown_mode(&mut self, id: SessionId, pid: u32, mode: Option<String>, choice: Choice) {
        if let Some(mode) = mode.filter(|mode| self.config.asks_programs && mode.parse::<Choice>().is_err()) {
            let mode: String = mode.escape_debug().take(100).collect();
            let text = format!("HEAPTAPE_MODE is ignored: '{mode}' is no mode; its mode is {choice}");
            let uid = self.registry.client(id).map_or(0, |client| client.uid);
            if let Some(more) = self.log.permits("mode", uid, 1) {
                tracing::warn!("process {pid}: {text}{more}");
            }
            self.note(id, text);
        }
    }

    /// Takes over a process from another daemon. Unless that has written the live blocks, they are
    /// not known, and frees of them are of unknown blocks.
    pub(super) fn take_over(&mut self, held: Held) {
        let Held { name, area, process: end } = held;
        let known = name.clone();
        let Name { pid, uid, hello_pid, choice, interval } = name;
        let mapping = match Mapping::adopt(&area) {
            Ok(mapping) => mapping,
            Err(error) => {
                tracing::warn!("process {pid} cannot be taken over: {error}");
                return self.successor.release(&known);
            }
        };
        let carried_over = self.successor.carried_over_file(pid);
        ring_space::resume(&mapping, &chunk_journal::positions(&carried_over));
        let mut process = Process::read(pid);
        if process.exe.is_empty() {
            // It has ended. What is left in its rings is recorded.
            process.exe = self.successor.program(pid);
            process.comm = process.exe.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
            tracing::info!("process {pid} ({}) has ended meanwhile", process.comm.escape_ascii());
        }
        let own = || proc::variable(pid, &["HEAPTAPE_LABEL"]).into_iter().next().flatten();
        let label = self.successor.label(pid).or_else(own);
        let Ok(mut admission) = self.admission_as(choice, pid, uid, &process, label) else { return };
        let folder = self.folder(&admission, pid);
        let header = mapping.header();
        admission.options.overflow.set(header);
        // Threads report their interval when it changes. This change makes them report it to this
        // daemon.
        let interval = if interval == 0 { 0 } else { header.sample_bytes.load(Relaxed).clamp(2, MAX_INTERVAL) ^ 1 };
        header.sample_bytes.store(interval, Relaxed);
        admission.options.sample_bytes = interval;
        let id = self.registry.new_id();
        let worker = id as usize % self.stages.workers;
        let (ids, start_tick, saver) = (Ids { pid, hello_pid, uid }, self.clock.now(), self.saver.clone());
        let attached = Attached::taken_over(ids, process, mapping, start_tick, MAX_MAP_BYTES_SHARED, saver);
        let began_unix_ns = proc::age(pid).map_or(0, |age| clock::unix_ns().saturating_sub(age.as_nanos() as u64));
        let session = self.session(id, attached, folder, &admission);
        let earlier = if choice.mode == Mode::Flight { self.epochs.flight_segments(uid, pid) } else { Vec::new() };
        let session = session.resumed(began_unix_ns).carried_over(carried_over).earlier(earlier);
        let session = session.hooks(self.successor.hooks(pid)).build();
        tracing::debug!("process {pid} ({}) is taken over", admission.name.escape_debug());
        self.epochs.list(&admission.epoch, &session);
        self.send(Command::Start(Arc::clone(&session), worker));
        let handles = Handles { process: end, area };
        let memory = self.kernel_memory(pid);
        let mut client = admission.into_client(session, handles, hello_pid, worker, interval, memory);
        if self.successor.is_attached(pid) {
            (client.is_attached, client.program) = (true, untraced::program(pid));
        }
        self.registry.add(client);
    }

    /// Hands a process over to the next daemon.
    pub(super) fn hand_over(&mut self, id: SessionId) {
        if self.registry.end(id, Ended::RUNNING, FlightEnd::Nothing).is_some() {
            self.send(Command::Leave(id));
        }
    }

    /// Returns the process from which a forked child inherits its blocks; `None` when their shares
    /// are not known.
    fn parent(&self, request: &AttachRequest, ppid: u32) -> Option<ForkParent> {
        let found = self.registry.parent(request.hello.parent_pid, ppid, request.hello.fork_tick)?;
        let is_complete =
            found.uid == request.uid && found.choice.mode != Mode::Off && found.choice.sampling == Sampling::All;
        is_complete.then(|| ForkParent { session: Arc::clone(&found.session), worker: found.worker })
    }

    /// Ends the recording of a process.
    pub(super) fn end(&mut self, id: SessionId, end: End) {
        self.read_boards(Some(id));
        let Some(client) = self.registry.client(id) else { return };
        self.successor.release(&client.held_as());
        if client.is_attached {
            self.attaches.forget(client.pid());
        }
        let ended = Ended { exit: end.exit(), memory: self.last_memory(id, end) };
        let Some(client) = self.registry.client(id) else { return };
        let keeps = FlightEnd::of(self.config.triggers.death, &ended.exit, client.session.lived());
        // What it lost is counted when its rings have been read to their ends.
        if client.session.limit.take_hits() + client.earlier_hits > 0 {
            let (uid, pid, name) = (client.uid, client.pid(), client.name.escape_debug());
            let why = format!("user {uid}, process {pid} ({name}): it ended, and was beyond the budget before");
            self.budgets.hit(EVENTS, &why);
        }
        // Children that share the page of the activation attach by themselves.
        client.session.mapping.header().activation.0.store(wire::area::ACTIVATION_ENABLED, Relaxed);
        let pid = client.pid();
        self.registry.end(id, ended, keeps);
        self.successor.forget(pid);
        self.send(Command::End(id, end));
    }
}
