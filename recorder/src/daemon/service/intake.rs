//! How processes come and go: new processes, those of an earlier daemon, ends of processes.

use super::Service;
use crate::attach::Client as AttachRequest;
use crate::chunk_journal;
use crate::clock;
use crate::code::{MAX_MAP_BYTES_SHARED, PerfMap};
use crate::daemon::clients::{Client, Ended, is_bad};
use crate::daemon::config::{Choice, Death, MAX_INTERVAL, Sampling};
use crate::daemon::fd_store::{Held, Name};
use crate::drain::Command;
use crate::module_files::ModuleFiles;
use crate::options::Mode;
use crate::patch::{self, Plan};
use crate::process::{self, End, Process};
use crate::recorder::ticks_of;
use crate::release;
use crate::session::{Attached, Fork, Session, SessionBuilder, SessionId};
use crate::sys::{self, Mapping};
use crossbeam_channel::bounded;
use formats::tape::Origin;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::hello::{ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Timeout of fixing the state of the parent at a fork that the library did not see.
const PARENT_STATE_TIMEOUT: Duration = Duration::from_millis(20);

impl Service {
    /// Records a process that requests it, or refuses that.
    pub(super) fn admit(&mut self, request: AttachRequest) {
        let uid = request.uid;
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            self.registry.count_refused(1);
            return request.refuse(REFUSED_FILTER);
        }
        // The same process again: it executed another program, and its old area contains all events
        // that it published.
        for id in self.registry.select(|client| client.pid() == request.pid) {
            self.end(id, End::EXEC);
        }
        let of_user = self.registry.select(|client| client.uid == uid).len() as u64;
        if of_user >= self.config.budget.clients {
            self.budgets
                .hit("clients", &format!("user {uid}: {of_user} processes are recorded, the next runs unrecorded"));
            self.registry.count_refused(1);
            return request.refuse(REFUSED_FULL);
        }
        match self.attach(request) {
            Ok(()) => self.registry.count_accepted(),
            Err((request, error)) => {
                tracing::warn!("process {} runs unrecorded: {error}", request.pid);
                if sys::is_out_of_descriptors(&error) {
                    self.budgets.hit_by("descriptors", uid, 1);
                }
                self.registry.count_refused(1);
                request.refuse(REFUSED_FULL);
            }
        }
    }

    fn attach(&mut self, mut request: AttachRequest) -> Result<(), (AttachRequest, io::Error)> {
        let (start_tick, uid) = (self.clock.now(), request.uid);
        let process = Process::read(request.pid);
        let name = String::from_utf8_lossy(&process.comm).into_owned();
        let mut variables = process::variable(request.pid, &["HEAPTAPE_MODE", "HEAPTAPE_LABEL"]).into_iter();
        let (mode, label) = (variables.next().flatten(), variables.next().flatten());
        let choice = self.config.choose(&process.comm, mode.as_deref());
        let (cgroup, unit) = process::control_group(request.pid);
        let is_fork = request.hello.origin == ORIGIN_FORK;
        // A parent that has overwritten its environment left none to the child.
        let of_parent = || self.registry.client_of(process.ppid).filter(|_| is_fork).map(|parent| parent.label.clone());
        let label = label.or_else(of_parent).filter(|label| !label.is_empty());
        let label: String = label.or(unit).unwrap_or_default().chars().take(200).collect();
        let mut options = choice.options(&self.config, &label);
        let epoch = match self.epochs.of_user(uid) {
            Ok(epoch) => epoch,
            Err(error) => return Err((request, error)),
        };
        (options.reader, options.quota) = (epoch.reader, Some(self.epochs.quota(uid)));
        options.slots = self.config.budget.threads.clamp(1, wire::limits::SLOTS.into()) as u32;
        let options = Arc::new(options);
        let (mapping, area) = match request.area(&options, self.clock) {
            Ok(area) => area,
            Err(error) => return Err((request, error)),
        };
        let folder = self.epochs.folder(uid, &epoch, choice.mode, request.pid, &name);
        let age = std::mem::take(&mut request.hello.fork_age);
        if age != 0 {
            // The library did not see the fork, but knows the age of the process.
            let tick = request.hello.fork_tick.saturating_sub(ticks_of(age, self.ticks_per_second));
            request.hello.fork_tick = tick.max(1);
        }
        let parent = is_fork.then(|| self.parent(&request, process.ppid)).flatten();
        if let Some((parent, _)) = parent.as_ref().filter(|_| age != 0) {
            // The child waits for its reply: the current blocks of the parent are kept for it.
            let (done, is_done) = bounded(1);
            self.send(Command::PrepareFork(parent.id, request.hello.fork_tick, done));
            let _ = is_done.recv_timeout(PARENT_STATE_TIMEOUT);
        }
        let id = self.registry.new_id();
        let worker = parent.as_ref().map_or(id as usize % self.stages.workers, |(_, worker)| *worker);
        let hello = request.hello;
        let hooks = match &parent {
            _ if !is_fork => self.planner.plan(request.pid, patch::SHORT_BUDGET),
            Some((parent, _)) => Plan::inherited(&parent.hooks.outcome(&parent.mapping)),
            None => Plan::default(),
        };
        hooks.write(&mapping);
        let code = PerfMap::of(request.pid, hello.pid, uid, MAX_MAP_BYTES_SHARED);
        let code = match &parent {
            Some((parent_session, _)) => code.forked_from(&parent_session.code),
            None => code,
        };
        let fork = parent.map(|(session, _)| {
            let folder = session.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Fork { parent: session.id, folder, tick: hello.fork_tick }
        });
        let attached = Attached {
            pid: request.pid,
            hello_pid: hello.pid,
            uid,
            origin: if is_fork { Origin::Fork } else { Origin::Attach },
            page_size: hello.page_size,
            start_tick,
            process,
            mapping,
            code,
            files: ModuleFiles::of(request.pid, self.saver.clone()),
        };
        let carried_over = self.successor.carried_over_file(request.pid);
        let session = SessionBuilder::new(id, attached, folder, options, self.clock, self.ticks_per_second);
        let session = session.forked(fork).hooks(hooks).carried_over(carried_over.clone()).build();
        // Of an earlier process of this number.
        let _ = std::fs::remove_file(chunk_journal::link(&carried_over));
        let interval = choice.interval();
        session.limit.records.store(self.config.budget.events.saturating_mul(2), Relaxed);
        // The activation is set before the area is sent.
        if choice.mode == Mode::Off {
            session.mapping.header().activation.0.store(wire::area::ACTIVATION_DORMANT, Relaxed);
        }
        if !request.accept(&session.mapping, &area) {
            return Ok(());
        }
        self.successor.keep_label(request.pid, &label);
        self.epochs.list(&epoch, &session);
        self.send(Command::Start(Arc::clone(&session), worker));
        if let Some(mode) = mode.filter(|mode| self.config.asks_programs && mode.parse::<Choice>().is_err()) {
            let mode: String = mode.escape_debug().take(100).collect();
            let text = format!("HEAPTAPE_MODE is ignored: '{mode}' is no mode; its mode is {choice}");
            tracing::warn!("process {}: {text}", request.pid);
            self.note(id, text);
        }
        let client = Client {
            session,
            process: request.process,
            area,
            uid,
            hello_pid: hello.pid,
            worker,
            choice,
            interval,
            name,
            label,
            cgroup,
            epoch,
            since: Instant::now(),
            past: VecDeque::new(),
            ticks: 0,
            kept: None,
            held: None,
            memory: self.kernel_memory(request.pid),
        };
        self.successor.hold(&client);
        self.registry.add(client);
        Ok(())
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
        release::resume(&mapping, &chunk_journal::positions(&self.successor.carried_over_file(pid)));
        let process = Process::read(pid);
        let comm = String::from_utf8_lossy(&process.comm).into_owned();
        let own = || process::variable(pid, &["HEAPTAPE_LABEL"]).into_iter().next().flatten();
        let label = self.successor.label(pid).or_else(own);
        let (cgroup, unit) = process::control_group(pid);
        let label: String = label.or(unit).unwrap_or_default().chars().take(200).collect();
        let mut options = choice.options(&self.config, &label);
        let Ok(epoch) = self.epochs.of_user(uid) else { return };
        (options.reader, options.quota) = (epoch.reader, Some(self.epochs.quota(uid)));
        let folder = self.epochs.folder(uid, &epoch, choice.mode, pid, &comm);
        let header = mapping.header();
        options.overflow.set(header);
        // Threads report their interval when it changes. This change makes them report it to this
        // daemon.
        let interval = if interval == 0 { 0 } else { header.sample_bytes.load(Relaxed).clamp(2, MAX_INTERVAL) ^ 1 };
        header.sample_bytes.store(interval, Relaxed);
        options.sample_bytes = interval;
        let id = self.registry.new_id();
        let worker = id as usize % self.stages.workers;
        let attached = Attached {
            pid,
            hello_pid,
            uid,
            origin: Origin::Attach,
            page_size: wire::area::PAGE as u32,
            start_tick: self.clock.now(),
            process,
            mapping,
            code: PerfMap::of(pid, hello_pid, uid, MAX_MAP_BYTES_SHARED),
            files: ModuleFiles::of(pid, self.saver.clone()),
        };
        let began_unix_ns = process::age(pid).map_or(0, |age| clock::unix_ns().saturating_sub(age.as_nanos() as u64));
        let session = SessionBuilder::new(id, attached, folder, Arc::new(options), self.clock, self.ticks_per_second);
        let session = session.resumed(began_unix_ns).carried_over(self.successor.carried_over_file(pid)).build();
        tracing::info!("process {pid} ({}) is taken over", comm.escape_debug());
        self.epochs.list(&epoch, &session);
        self.send(Command::Start(Arc::clone(&session), worker));
        let (process, since) = (end, Instant::now());
        let client = Client {
            session,
            process,
            area,
            uid,
            hello_pid,
            worker,
            choice,
            interval,
            name: comm,
            label,
            cgroup,
            epoch,
            since,
            past: VecDeque::new(),
            ticks: 0,
            kept: None,
            held: None,
            memory: self.kernel_memory(pid),
        };
        self.registry.add(client);
    }

    /// Hands a process over to the next daemon.
    pub(super) fn hand_over(&mut self, id: SessionId) {
        if self.registry.end(id, Ended::RUNNING, false).is_some() {
            self.send(Command::Leave(id));
        }
    }

    /// Returns the process from which a forked child inherits its blocks; `None` when their shares
    /// are not known.
    fn parent(&self, request: &AttachRequest, ppid: u32) -> Option<(Arc<Session>, usize)> {
        let found = self.registry.parent(request.hello.parent_pid, ppid, request.hello.fork_tick)?;
        let is_complete =
            found.uid == request.uid && found.choice.mode != Mode::Off && found.choice.sampling == Sampling::All;
        is_complete.then(|| (Arc::clone(&found.session), found.worker))
    }

    /// Ends the recording of a process.
    pub(super) fn end(&mut self, id: SessionId, end: End) {
        self.read_boards(Some(id));
        let Some(client) = self.registry.client(id) else { return };
        self.successor.release(&client.held_as());
        let ended = Ended { exit: end.exit(), memory: self.last_memory(id, end) };
        let Some(client) = self.registry.client(id) else { return };
        let keeps = match self.config.triggers.death {
            Death::Never => false,
            Death::Bad => is_bad(&ended.exit),
            Death::Any => true,
        };
        if client.session.limit.hits.load(Relaxed) > 0 {
            self.budgets.hit("events", &format!("process {}: events were lost", client.pid()));
        }
        // Children that share the page of the activation attach by themselves.
        client.session.mapping.header().activation.0.store(wire::area::ACTIVATION_ENABLED, Relaxed);
        self.registry.end(id, ended, keeps);
        self.send(Command::End(id, end));
    }
}
