//! How processes come and go: a hello at the door, one that an earlier daemon had, the end.

use super::archive::Told;
use super::clients::{Client, is_bad};
use super::config::{Death, GREATEST_INTERVAL, Sampling};
use super::fd_store::{Held, Name};
use super::service::{CARRIED, Ending, Service};
use crate::attach::Client as Caller;
use crate::clock;
use crate::code::{AMONG_OTHERS, CodeMap};
use crate::drain::Command;
use crate::module_files::ModuleFiles;
use crate::options::Mode;
use crate::process::{self, Process};
use crate::recorder::ticks_of;
use crate::session::{End, Session, Stats};
use crate::sys::{self, Mapping};
use crossbeam_channel::bounded;
use formats::recording::{Exit, ProcessInfo};
use formats::tape::{self, field::Text};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::hello::{ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Time for the parent's state at a fork that was not seen.
const UNSEEN: Duration = Duration::from_millis(20);

impl Service {
    pub(super) fn take_in(&mut self, caller: Caller) {
        let uid = caller.uid;
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            self.counters.refused += 1;
            return caller.refuse(REFUSED_FILTER);
        }
        // The same process again: it went on with another program, and its old area has all that it
        // published.
        while let Some(place) = self.clients.iter().position(|client| client.pid() == caller.pid) {
            self.end(place, End::EXEC);
        }
        let of_user = self.clients.iter().filter(|client| client.uid == uid).count() as u64;
        if of_user >= self.config.budget.clients {
            self.guard.hit("clients", &format!("user {uid}: {of_user} processes are served, the next runs unrecorded"));
            self.counters.refused += 1;
            return caller.refuse(REFUSED_FULL);
        }
        match self.welcome(caller) {
            Ok(()) => self.counters.accepted += 1,
            Err((caller, error)) => {
                tracing::warn!("process {} runs unrecorded: {error}", caller.pid);
                if sys::is_out_of_descriptors(&error) {
                    self.guard.hit_by("descriptors", uid, 1);
                }
                self.counters.refused += 1;
                caller.refuse(REFUSED_FULL);
            }
        }
    }

    pub(super) fn welcome(&mut self, mut caller: Caller) -> Result<(), (Caller, io::Error)> {
        let start_tick = self.clock.now();
        let process = Process::read(caller.pid);
        let name = String::from_utf8_lossy(&process.comm).into_owned();
        let mut asked = process::variable(caller.pid, &["HEAPTAPE_MODE", "HEAPTAPE_LABEL"]).into_iter();
        let (mode, label) = (asked.next().flatten(), asked.next().flatten());
        let choice = self.config.choose(&process.comm, mode.as_deref());
        let (cgroup, unit) = process::control_group(caller.pid);
        let label: String = label.or(unit).unwrap_or_default().chars().take(200).collect();
        let mut options = choice.options(&self.config, &label);
        let epoch = match self.epoch(caller.uid) {
            Ok(epoch) => epoch,
            Err(error) => return Err((caller, error)),
        };
        (options.reader, options.quota) = (epoch.reader, Some(self.quota(caller.uid)));
        options.slots = self.config.budget.threads.clamp(1, wire::limits::SLOTS.into()) as u32;
        let options = Arc::new(options);
        let (mapping, area) = match caller.area(&options, self.clock) {
            Ok(area) => area,
            Err(error) => return Err((caller, error)),
        };
        let folder = self.folder(caller.uid, &epoch, choice.mode, caller.pid, &name);
        let is_fork = caller.hello.origin == ORIGIN_FORK;
        let age = std::mem::take(&mut caller.hello.fork_age);
        if age != 0 {
            // Made by a call that the library did not see: it knows its age.
            let tick = caller.hello.fork_tick.saturating_sub(ticks_of(age, self.ticks_per_second));
            caller.hello.fork_tick = tick.max(1);
        }
        let parent = is_fork.then(|| self.parent(&caller, process.ppid)).flatten();
        if let Some((parent, _)) = parent.as_ref().filter(|_| age != 0) {
            // The child waits for its answer: what the parent has now is kept for it.
            let (done, is_done) = bounded(1);
            let _ = self.stages.commands.send(Command::Bequeath(parent.id, caller.hello.fork_tick, done));
            let _ = is_done.recv_timeout(UNSEEN);
        }
        let unix_ns = clock::unix_ns();
        let id = self.next;
        self.next += 1;
        let worker = parent.as_ref().map_or(id as usize % self.stages.workers, |(_, worker)| *worker);
        let code = CodeMap::of(caller.pid, caller.hello.pid, caller.uid, AMONG_OTHERS);
        let code = match &parent {
            Some((maker, _)) => code.forked_from(&maker.code),
            None => code,
        };
        let forked = parent.map(|(session, _)| {
            let name = session.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (session.id, name, caller.hello.fork_tick)
        });
        let session = Arc::new(Session {
            id,
            mapping: Arc::new(mapping),
            process: tape::Process {
                pid: caller.pid,
                ppid: process.ppid,
                uid: caller.uid,
                origin: if is_fork { 1 } else { 3 },
                ticks_per_second: self.ticks_per_second,
                start_tick,
                start_unix_ns: unix_ns,
                page_size: caller.hello.page_size,
                exe: Text(process.exe.clone()),
                cwd: Text(process.cwd.clone()),
                argv: process.argv.iter().map(|argument| Text(argument.clone())).collect(),
                label: Text(label.clone().into_bytes()),
                recorder: env!("CARGO_PKG_VERSION").into(),
                sample_bytes: options.sample_bytes,
                free_sites: options.free_stacks,
            },
            folder,
            clock: self.clock,
            options,
            forked,
            is_namespaced: caller.hello.pid != caller.pid,
            stats: Arc::new(Stats::default()),
            limit: Arc::default(),
            resumed: false,
            began_unix_ns: 0,
            carried: Some(carried(&self.config.state, caller.pid)),
            code: Arc::new(code),
            files: Arc::new(ModuleFiles::of(caller.pid, self.saver.clone())),
        });
        let hello_pid = caller.hello.pid;
        let uid = caller.uid;
        let interval = choice.interval();
        session.limit.records.store(self.config.budget.events.saturating_mul(2), Relaxed);
        // The gate stands before the area is handed over.
        if choice.mode == Mode::Off {
            session.mapping.header().activation.0.store(wire::area::ACTIVATION_DORMANT, Relaxed);
        }
        if !caller.accept(&session.mapping, &area) {
            return Ok(());
        }
        let _ = self.archive.send(Told::Process(Arc::clone(&epoch), id, about(&session, &process)));
        let _ = self.stages.commands.send(Command::Start(Arc::clone(&session), worker));
        let (past, ticks, kept, held) = Default::default();
        self.clients.push(Client {
            session,
            process: caller.process,
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
            past,
            ticks,
            kept,
            held,
        });
        self.hold(self.clients.len() - 1);
        Ok(())
    }

    pub(super) fn hold(&self, place: usize) {
        if let Some(client) = self.clients.get(place) {
            self.holder.hold(&client.held_as(), &client.area, &client.process);
        }
    }

    /// Goes on with a process that another daemon had. What lived before is not known any more: its
    /// frees are of unknown blocks.
    pub(super) fn take_over(&mut self, held: Held) {
        let Held { name, area, process: end } = held;
        let known = name.clone();
        let Name { pid, uid, hello_pid, choice, interval } = name;
        let mapping = match Mapping::adopt(&area) {
            Ok(mapping) => mapping,
            Err(error) => {
                tracing::warn!("process {pid} cannot be taken over: {error}");
                return self.holder.release(&known);
            }
        };
        let process = Process::read(pid);
        let comm = String::from_utf8_lossy(&process.comm).into_owned();
        let label = process::variable(pid, &["HEAPTAPE_LABEL"]).into_iter().next().flatten();
        let (cgroup, unit) = process::control_group(pid);
        let label: String = label.or(unit).unwrap_or_default().chars().take(200).collect();
        let mut options = choice.options(&self.config, &label);
        let Ok(epoch) = self.epoch(uid) else { return };
        (options.reader, options.quota) = (epoch.reader, Some(self.quota(uid)));
        let folder = self.folder(uid, &epoch, choice.mode, pid, &comm);
        let header = mapping.header();
        options.overflow.set(header);
        // Threads tell their interval when it changes: so they tell this daemon.
        let interval =
            if interval == 0 { 0 } else { header.sample_bytes.load(Relaxed).clamp(2, GREATEST_INTERVAL) ^ 1 };
        header.sample_bytes.store(interval, Relaxed);
        options.sample_bytes = interval;
        let id = self.next;
        self.next += 1;
        let worker = id as usize % self.stages.workers;
        let argv = process.argv.iter().map(|argument| Text(argument.clone())).collect();
        let start_unix_ns = clock::unix_ns();
        let session = Arc::new(Session {
            id,
            mapping: Arc::new(mapping),
            process: tape::Process {
                pid,
                ppid: process.ppid,
                uid,
                origin: 3,
                ticks_per_second: self.ticks_per_second,
                start_tick: self.clock.now(),
                start_unix_ns,
                page_size: wire::area::PAGE as u32,
                exe: Text(process.exe.clone()),
                cwd: Text(process.cwd.clone()),
                argv,
                label: Text(label.clone().into_bytes()),
                recorder: env!("CARGO_PKG_VERSION").into(),
                sample_bytes: interval,
                free_sites: options.free_stacks,
            },
            folder,
            clock: self.clock,
            options: Arc::new(options),
            forked: None,
            is_namespaced: hello_pid != pid,
            // Until the blocks are read that the last daemon left.
            stats: Arc::new(Stats { live_since_unix_ns: start_unix_ns.into(), ..Stats::default() }),
            limit: Arc::default(),
            resumed: true,
            began_unix_ns: process::age(pid).map_or(0, |age| start_unix_ns.saturating_sub(age.as_nanos() as u64)),
            carried: Some(carried(&self.config.state, pid)),
            code: Arc::new(CodeMap::of(pid, hello_pid, uid, AMONG_OTHERS)),
            files: Arc::new(ModuleFiles::of(pid, self.saver.clone())),
        });
        tracing::info!("process {pid} ({}) is taken over", comm.escape_debug());
        let _ = self.archive.send(Told::Process(Arc::clone(&epoch), id, about(&session, &process)));
        let _ = self.stages.commands.send(Command::Start(Arc::clone(&session), worker));
        let (past, ticks, kept, held) = Default::default();
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
            past,
            ticks,
            kept,
            held,
        };
        self.clients.push(client);
    }

    /// Leaves a process to the next daemon.
    pub(super) fn leave(&mut self, place: usize) {
        let Client { epoch, label, session, name, .. } = self.clients.swap_remove(place);
        let (part, stats) = (session.folder.clone(), Arc::clone(&session.stats));
        self.ending.insert(session.id, Ending { epoch, label, exit: Exit::Running, keeps: false, part, stats, name });
        let _ = self.stages.commands.send(Command::Leave(session.id));
    }

    /// The process that a fork child has its blocks from; `None` when their shares are not known.
    pub(super) fn parent(&self, caller: &Caller, ppid: u32) -> Option<(Arc<Session>, usize)> {
        let is_old = |client: &&Client| {
            caller.hello.fork_tick == 0 || client.session.process.start_tick <= caller.hello.fork_tick
        };
        let named = self.clients.iter().filter(is_old).find(|client| client.hello_pid == caller.hello.parent_pid);
        let found = named.or_else(|| self.clients.iter().filter(is_old).find(|client| client.pid() == ppid))?;
        let knows_all =
            found.uid == caller.uid && found.choice.mode != Mode::Off && found.choice.sampling == Sampling::All;
        knows_all.then(|| (Arc::clone(&found.session), found.worker))
    }

    pub(super) fn end(&mut self, place: usize, end: End) {
        let client = self.clients.swap_remove(place);
        self.holder.release(&client.held_as());
        let exit = end.exit();
        let keeps = match self.config.triggers.death {
            Death::Never => false,
            Death::Bad => is_bad(&exit),
            Death::Any => true,
        };
        if client.session.limit.hits.load(Relaxed) > 0 {
            self.guard.hit("events", &format!("process {}: events were lost", client.pid()));
        }
        let Client { epoch, label, session, name, .. } = client;
        // Children that share the gate's page attach for themselves.
        session.mapping.header().activation.0.store(wire::area::ACTIVATION_ENABLED, Relaxed);
        let (part, stats) = (session.folder.clone(), Arc::clone(&session.stats));
        self.ending.insert(session.id, Ending { epoch, label, exit, keeps, part, stats, name });
        let _ = self.stages.commands.send(Command::End(session.id, end));
    }
}

/// Where the live blocks of a process wait for the next daemon.
fn carried(state: &Path, pid: u32) -> PathBuf {
    state.join(CARRIED).join(pid.to_string())
}

/// A process as its epoch lists it.
pub(super) fn about(session: &Session, process: &Process) -> ProcessInfo {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ProcessInfo {
        folder: session.folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        pid: session.process.pid,
        ppid: process.ppid,
        origin: if session.process.origin == 1 { "fork" } else { "attach" }.into(),
        parent: session.forked.as_ref().map(|(_, folder, _)| folder.clone()),
        exe: text(&process.exe),
        argv: process.argv.iter().map(|argument| text(argument)).collect(),
        started_unix_ns: session.process.start_unix_ns,
        began_unix_ns: session.began_unix_ns,
        own_malloc: session.mapping.has_own_malloc(),
        ..ProcessInfo::default()
    }
}

/// The same when it goes on.
pub(super) fn about_again(session: &Session) -> ProcessInfo {
    let tape::Process { exe, argv, ppid, .. } = &session.process;
    let argv = argv.iter().map(|argument| argument.0.clone()).collect();
    about(session, &Process { ppid: *ppid, exe: exe.0.clone(), argv, ..Process::default() })
}
