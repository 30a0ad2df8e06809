//! The service's thread: takes processes in, follows them to their end, begins and ends epochs. Nothing here waits for a disk: a program
//! that starts waits for its answer.

use super::archive::{Archive, Disk, Epoch, Told};
use super::budget::Guard;
use super::clients::{Client, LOOK, is_bad};
use super::config::{Choice, Config, Death, Sampling};
use super::control::{self, Ask, Wake};
use super::metrics;
use super::notify::{self, Notify};
use super::retention::Keep;
use crate::attach::{Client as Caller, Door, Visit};
use crate::clock::{self, Clock};
use crate::drain::Command;
use crate::image::Tell;
use crate::options::Mode;
use crate::process::{self, Process, make_folder, sanitised};
use crate::session::{End, Session, SessionId, Stats};
use crate::stages::Stages;
use crate::store::{Stored, Then};
use crate::sys;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use formats::recording::{Exit, Image};
use formats::tape::{self, field::Text};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::hello::{ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// The longest time between two rounds of the loop.
const ROUND: Duration = Duration::from_secs(1);
/// The same while something is being ended.
const SOON: Duration = Duration::from_millis(20);
/// Name of the folder of flights, beside the epochs.
const FLIGHTS: &str = "flight";
/// A flight is kept for the same reason at most so often.
const KEPT: Duration = Duration::from_secs(60);

/// The epoch that a user's processes are written to.
#[derive(Debug)]
struct Current {
    epoch: Arc<Epoch>,
    names: HashMap<String, u32>,
    until: Instant,
}

/// An epoch that is over, and what is still to come of it.
#[derive(Debug)]
struct Closing {
    epoch: Arc<Epoch>,
    pending: HashSet<SessionId>,
    then: Vec<Then>,
}

/// A process that has ended, until its last byte is written.
#[derive(Debug)]
struct Ending {
    epoch: Arc<Epoch>,
    label: String,
    exit: Exit,
    keeps: bool,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Processes taken in.
    pub accepted: u64,
    /// Processes sent away.
    pub refused: u64,
    /// Events that were taken in, of processes that are over.
    pub recorded: u64,
    /// The same, lost.
    pub lost: u64,
    /// The same, passed over by sampling.
    pub sampled_out: u64,
    /// Parts that could not be written.
    pub errors: u64,
    /// Flights that were kept.
    pub kept: u64,
    /// Epochs that were ended.
    pub epochs: u64,
}

/// The daemon.
#[derive(Debug)]
pub struct Service {
    pub(super) config: Config,
    pub(super) clients: Vec<Client>,
    pub(super) counters: Counters,
    pub(super) disk: Arc<Disk>,
    pub(super) guard: Guard,
    pub(super) started: Instant,
    clock: Clock,
    ticks_per_second: u64,
    stages: Stages,
    door: Door,
    epochs: HashMap<u32, Current>,
    closing: Vec<Closing>,
    ending: HashMap<SessionId, Ending>,
    archive: Sender<Told>,
    archivist: Option<JoinHandle<()>>,
    asks: Receiver<Ask>,
    woken: UnixStream,
    notify: Notify,
    signals: SignalFd,
    next: SessionId,
    looked: Instant,
    pub(super) stopping: Option<Vec<Sender<()>>>,
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// When a socket or a folder cannot be made.
pub fn run(config: Config) -> io::Result<()> {
    let mut service = Service::start(config)?;
    service.notify.tell("READY=1");
    let watchdog = notify::watchdog();
    let mut fed = Instant::now();
    while service.stopping.is_none() {
        service.round(watchdog.map_or(ROUND, |every| every.min(ROUND)))?;
        if watchdog.is_some_and(|every| fed.elapsed() >= every / 2) {
            service.notify.tell("WATCHDOG=1");
            fed = Instant::now();
        }
    }
    service.finish();
    Ok(())
}

fn folder_of(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if let Some(above) = folder.parent() {
        std::fs::create_dir_all(above)?;
    }
    make_folder(folder, None)
}

/// The door: systemd's socket, or our own.
fn door(config: &Config, passed: &mut Vec<(String, std::os::fd::OwnedFd)>) -> io::Result<Door> {
    if let Some(place) = passed.iter().position(|(name, _)| name != "control") {
        return Ok(Door::of(passed.swap_remove(place).1));
    }
    let path = &config.socket;
    folder_of(path)?;
    control::clear(path, || {
        use nix::sys::socket;
        use std::os::fd::AsRawFd;
        let kind = socket::SockType::SeqPacket;
        let socket = socket::socket(socket::AddressFamily::Unix, kind, socket::SockFlag::SOCK_CLOEXEC, None)?;
        Ok(socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)?)
    })?;
    let door = Door::open(path)?;
    if config.serves_all {
        // Programs of all users come through here; who they are says the kernel.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    } else {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(door)
}

impl Service {
    fn start(config: Config) -> io::Result<Service> {
        let mut held = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGXFSZ]
            .into_iter()
            .for_each(|signal| held.add(signal));
        held.thread_block()?;
        let signals = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let mut passed = notify::sockets();
        if let Some(above) = config.state.parent() {
            std::fs::create_dir_all(above)?;
        }
        make_folder(&config.state, None)?;
        if config.serves_all {
            // Each user's folder below is closed to all others.
            std::fs::set_permissions(&config.state, std::fs::Permissions::from_mode(0o711))?;
        }
        let controller = match passed.iter().position(|(name, _)| name == "control") {
            Some(place) => control::passed(passed.swap_remove(place).1),
            None => {
                folder_of(&config.control)?;
                control::listen(&config.control, 0o600)?
            }
        };
        let door = door(&config, &mut passed)?;
        let clock = Clock::choose();
        let stages = Stages::start(clock)?;
        let disk = Arc::new(Disk::default());
        let keep = Keep { age: config.keep_age, bytes: config.keep_bytes };
        let archive = Archive::new(&config.state, keep, Arc::clone(&disk));
        clear_flights(&config.state);
        let (told, hears) = unbounded();
        let archivist = std::thread::Builder::new().name("archive".into()).spawn(move || archive.run(&hears))?;
        let (woken, wakes) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let wake: Wake = Arc::new(wakes);
        let (asks_out, asks) = unbounded();
        if let Some(address) = config.metrics {
            let (listener, asks, wake) = (metrics::listen(address)?, asks_out.clone(), Arc::clone(&wake));
            std::thread::Builder::new().name("metrics".into()).spawn(move || metrics::run(listener, asks, wake))?;
        }
        std::thread::Builder::new().name("control".into()).spawn(move || control::run(controller, asks_out, wake))?;
        let ticks_per_second = clock.ticks_per_second();
        tracing::info!("serving programs at {}, keeping {}", config.socket.display(), config.state.display());
        let (clients, counters, epochs, closing, ending, guard) = Default::default();
        Ok(Service {
            config,
            clients,
            counters,
            disk,
            guard,
            started: Instant::now(),
            clock,
            ticks_per_second,
            stages,
            door,
            epochs,
            closing,
            ending,
            archive: told,
            archivist: Some(archivist),
            asks,
            woken,
            notify: Notify::find(),
            signals,
            next: 1,
            looked: Instant::now(),
            stopping: None,
        })
    }

    fn round(&mut self, most: Duration) -> io::Result<()> {
        let is_ending = !self.ending.is_empty() || !self.closing.is_empty();
        let most = if is_ending { most.min(SOON) } else { most };
        let most = most.min(LOOK.saturating_sub(self.looked.elapsed()));
        let most = self.door.deadline().map_or(most, |deadline| deadline.min(most));
        let own = [self.signals.as_fd(), self.woken.as_fd()];
        let processes = self.clients.iter().map(|client| sys::fd(&client.process));
        let all = own.into_iter().chain(processes).chain(self.door.descriptors());
        let mut polls: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(most.as_millis().max(1) as i32).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut polls, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polls.iter().map(|poll| poll.any().unwrap_or(false)).collect();
        drop(polls);
        let gone: Vec<SessionId> = self
            .clients
            .iter()
            .zip(&ready[2..])
            .filter(|(_, ready)| **ready)
            .map(|(client, _)| client.session.id)
            .collect();
        if ready[2 + self.clients.len()..].contains(&true) || self.door.deadline().is_some() {
            for visit in self.door.visits() {
                match visit {
                    Visit::Hello(client) => self.take_in(client),
                    Visit::Notice { pid, why, .. } => tracing::debug!("process {pid} runs unrecorded: {}", why.text()),
                }
            }
        }
        for id in gone {
            if let Some(place) = self.clients.iter().position(|client| client.session.id == id) {
                let end = process::end(self.clients[place].pid(), sys::fd(&self.clients[place].process));
                self.end(place, end);
            }
        }
        if ready[0] {
            self.signalled();
        }
        if ready[1] {
            let mut bytes = [0; 256];
            while (&self.woken).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        }
        while let Ok(ask) = self.asks.try_recv() {
            let answer = self.answer(&ask.question);
            let _ = ask.reply.send(answer);
        }
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.stored(stored);
        }
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.look();
        }
        Ok(())
    }

    fn signalled(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGTERM | Signal::SIGINT) => drop(self.stopping.get_or_insert_default()),
                Ok(Signal::SIGUSR1) => {
                    let flights: Vec<SessionId> = self.flights().collect();
                    flights.into_iter().for_each(|id| self.keep_flight(id, "a signal", Then::new(|| {})));
                }
                Ok(Signal::SIGHUP) => self.rotate_all(&mut |_| Then::new(|| {})),
                _ => {}
            }
        }
    }

    /// Sessions of which the last while is kept.
    pub(super) fn flights(&self) -> impl Iterator<Item = SessionId> {
        self.clients.iter().filter(|client| client.choice.mode == Mode::Flight).map(|client| client.session.id)
    }

    /// The epoch of a user.
    fn epoch(&mut self, uid: u32) -> io::Result<Arc<Epoch>> {
        if let Some(current) = self.epochs.get(&uid) {
            return Ok(Arc::clone(&current.epoch));
        }
        let own = nix::unistd::geteuid().as_raw();
        let epoch = Arc::new(Epoch::begin(&self.config.state, uid, (uid != own).then_some(uid))?);
        let _ = self.archive.send(Told::Begin(Arc::clone(&epoch)));
        let until = Instant::now() + self.config.epoch;
        self.epochs.insert(uid, Current { epoch: Arc::clone(&epoch), names: HashMap::new(), until });
        Ok(epoch)
    }

    /// A folder of its own for a process: in the epoch, or among the flights.
    fn folder(&mut self, uid: u32, epoch: &Epoch, mode: Mode, pid: u32, name: &str) -> PathBuf {
        let stem = format!("{pid}.{}", sanitised(name.as_bytes()));
        let number = self.epochs.get_mut(&uid).map_or(1, |current| {
            let count = current.names.entry(stem.clone()).or_insert(0);
            *count += 1;
            *count
        });
        let name = if number == 1 { stem } else { format!("{stem}.{number}") };
        if mode != Mode::Flight {
            return epoch.dir.join(name);
        }
        let flights = epoch.dir.with_file_name(FLIGHTS);
        let _ = make_folder(&flights, epoch.owner);
        // The epoch's name makes it unlike those of other epochs.
        let of = epoch.dir.file_name().unwrap_or_default().to_string_lossy();
        flights.join(format!("{name}@{of}+1"))
    }

    fn take_in(&mut self, caller: Caller) {
        let uid = caller.uid;
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            self.counters.refused += 1;
            return caller.refuse(REFUSED_FILTER);
        }
        // The same process again: it went on with another program, and its old area has all that it published.
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
                self.counters.refused += 1;
                caller.refuse(REFUSED_FULL);
            }
        }
    }

    fn welcome(&mut self, caller: Caller) -> Result<(), (Caller, io::Error)> {
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
        options.owner = epoch.owner;
        options.slots = self.config.budget.threads.clamp(1, wire::limits::SLOTS.into()) as u32;
        let options = Arc::new(options);
        let (mapping, area) = match caller.area(&options, self.clock) {
            Ok(area) => area,
            Err(error) => return Err((caller, error)),
        };
        let folder = self.folder(caller.uid, &epoch, choice.mode, caller.pid, &name);
        let is_fork = caller.hello.origin == ORIGIN_FORK;
        let parent = is_fork.then(|| self.parent(&caller, process.ppid)).flatten();
        let unix_ns = clock::unix_ns();
        let id = self.next;
        self.next += 1;
        let worker = parent.as_ref().map_or(id as usize % self.stages.workers, |(_, worker)| *worker);
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
        });
        let hello_pid = caller.hello.pid;
        let uid = caller.uid;
        let interval = choice.interval();
        session.limit.records.store(self.config.budget.events.saturating_mul(2), Relaxed);
        // The gate stands before the area is handed over.
        if choice.mode == Mode::Off {
            session.mapping.header().gate.0.store(wire::area::GATE_DORMANT, Relaxed);
        }
        if !caller.accept(&session.mapping, &area) {
            return Ok(());
        }
        let _ = self.archive.send(Told::Process(Arc::clone(&epoch), id, about(&session, &process)));
        let _ = self.stages.commands.send(Command::Start(Arc::clone(&session), worker));
        let (past, ticks, growing, kept, held) = Default::default();
        self.clients.push(Client {
            session,
            process: caller.process,
            area: Some(area),
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
            growing,
            kept,
            held,
        });
        Ok(())
    }

    /// The process that a fork child has its blocks from; `None` when their shares are not known.
    fn parent(&self, caller: &Caller, ppid: u32) -> Option<(Arc<Session>, usize)> {
        let is_old = |client: &&Client| {
            caller.hello.fork_tick == 0 || client.session.process.start_tick <= caller.hello.fork_tick
        };
        let named = self.clients.iter().filter(is_old).find(|client| client.hello_pid == caller.hello.parent_pid);
        let found = named.or_else(|| self.clients.iter().filter(is_old).find(|client| client.pid() == ppid))?;
        let knows_all =
            found.uid == caller.uid && found.choice.mode != Mode::Off && found.choice.sampling == Sampling::All;
        knows_all.then(|| (Arc::clone(&found.session), found.worker))
    }

    fn end(&mut self, place: usize, end: End) {
        let client = self.clients.swap_remove(place);
        let exit = end.exit();
        let keeps = match self.config.triggers.death {
            Death::Never => false,
            Death::Bad => is_bad(&exit),
            Death::Any => true,
        };
        if client.session.limit.hits.load(Relaxed) > 0 {
            self.guard.hit("events", &format!("process {}: events were lost", client.pid()));
        }
        let Client { epoch, label, session, .. } = client;
        // Children that share the gate's page attach for themselves.
        session.mapping.header().gate.0.store(wire::area::GATE_OPEN, Relaxed);
        self.ending.insert(session.id, Ending { epoch, label, exit, keeps });
        let _ = self.stages.commands.send(Command::End(session.id, end));
    }

    /// The last byte of a part is written.
    fn stored(&mut self, stored: Stored) {
        let id = stored.session;
        self.counters.errors += u64::from(stored.error.is_some());
        if let Some(place) = self.closing.iter().position(|closing| closing.pending.contains(&id)) {
            let closing = &mut self.closing[place];
            closing.pending.remove(&id);
            let ending = self.ending.get(&id).filter(|_| stored.is_over);
            let label = ending.map(|ending| ending.label.clone());
            let exit = ending.map(|ending| ending.exit);
            let running =
                || self.clients.iter().find(|client| client.session.id == id).map(|client| client.label.clone());
            let label = label.or_else(running).unwrap_or_default();
            let epoch = Arc::clone(&closing.epoch);
            if stored.is_over {
                self.over(&epoch, &stored);
            }
            let _ = self.archive.send(Told::Part(epoch, stored, label, exit));
            self.seal_closed();
        } else if let Some(epoch) = self.ending.get(&id).map(|ending| Arc::clone(&ending.epoch)) {
            let label = self.ending.get(&id).map(|ending| ending.label.clone()).unwrap_or_default();
            let exit = self.ending.get(&id).filter(|_| stored.is_over).map(|ending| ending.exit);
            if stored.is_over {
                self.over(&epoch, &stored);
            }
            let _ = self.archive.send(Told::Part(epoch, stored, label, exit));
        } else if let Some(client) = self.clients.iter().find(|client| client.session.id == id) {
            let _ = self.archive.send(Told::Part(Arc::clone(&client.epoch), stored, client.label.clone(), None));
        }
    }

    /// A process is over and written.
    fn over(&mut self, epoch: &Arc<Epoch>, stored: &Stored) {
        let sums = stored.sums;
        self.counters.recorded += sums.recorded;
        self.counters.lost += sums.lost;
        self.counters.sampled_out += sums.sampled_out;
        let ending = self.ending.remove(&stored.session);
        if ending.is_some_and(|ending| ending.keeps) && !stored.segments.is_empty() {
            self.counters.kept += 1;
            tracing::info!("the flight of a process that died is kept in {}", epoch.dir.display());
            let told = Told::Adopt(Arc::clone(epoch), stored.session, stored.segments.clone(), Then::new(|| {}));
            let _ = self.archive.send(told);
        } else {
            stored.segments.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        }
    }

    fn seal_closed(&mut self) {
        for place in (0..self.closing.len()).rev() {
            if self.closing[place].pending.is_empty() {
                let Closing { epoch, then, .. } = self.closing.remove(place);
                let done = Then::new(move || then.into_iter().for_each(Then::call));
                let _ = self.archive.send(Told::Seal(epoch, done));
            }
        }
    }

    /// Ends the epochs of all users; `then` is called for each of them.
    pub(super) fn rotate_all(&mut self, then: &mut dyn FnMut(u32) -> Then) {
        let users: Vec<u32> = self.epochs.keys().copied().collect();
        for uid in users {
            let then = then(uid);
            self.rotate(uid, then);
        }
    }

    /// Epochs of users, for whoever wants to wait for each.
    pub(super) fn users(&self) -> usize {
        self.epochs.len()
    }

    /// Ends a user's epoch; the next one begins with whatever runs.
    fn rotate(&mut self, uid: u32, then: Then) {
        let Some(Current { epoch: old, .. }) = self.epochs.remove(&uid) else { return then.call() };
        self.counters.epochs += 1;
        let mut pending: HashSet<SessionId> =
            self.ending.iter().filter(|(_, ending)| ending.epoch == old).map(|(id, _)| *id).collect();
        let runs = self.clients.iter().any(|client| client.uid == uid);
        let new =
            if runs { self.epoch(uid).map_err(|error| tracing::error!("no new epoch: {error}")).ok() } else { None };
        if let Some(new) = new {
            for place in 0..self.clients.len() {
                if self.clients[place].uid == uid {
                    self.move_on(place, &new);
                    let client = &self.clients[place];
                    if client.choice.mode != Mode::Flight {
                        pending.insert(client.session.id);
                    }
                }
            }
        }
        self.closing.push(Closing { epoch: old, pending, then: vec![then] });
        self.seal_closed();
    }

    fn move_on(&mut self, place: usize, epoch: &Arc<Epoch>) {
        self.clients[place].epoch = Arc::clone(epoch);
        let choice = self.clients[place].choice;
        if choice.mode == Mode::Flight {
            let client = &self.clients[place];
            let told = Told::Process(Arc::clone(epoch), client.session.id, about_again(&client.session));
            let _ = self.archive.send(told);
        } else {
            self.part(place, choice, Then::new(|| {}));
        }
    }

    /// Goes on with a process in another folder, in the mode of the choice.
    fn part(&mut self, place: usize, choice: Choice, then: Then) {
        let (uid, epoch) = (self.clients[place].uid, Arc::clone(&self.clients[place].epoch));
        let (pid, name) = (self.clients[place].pid(), self.clients[place].name.clone());
        let folder = self.folder(uid, &epoch, choice.mode, pid, &name);
        let client = &mut self.clients[place];
        let mut options = choice.options(&self.config, &client.label);
        options.owner = epoch.owner;
        if choice.sampling == client.choice.sampling {
            options.sample_bytes = client.interval;
        } else {
            client.interval = choice.interval();
        }
        // A profile goes on counting from the attach; a trace begins anew.
        let starts = choice.mode.has_events().then(|| (self.clock.now(), clock::unix_ns()));
        let session = Arc::new(client.session.part(folder, Arc::new(options), starts));
        client.choice = choice;
        client.session = Arc::clone(&session);
        let _ = self.archive.send(Told::Process(epoch, session.id, about_again(&session)));
        let _ = self.stages.commands.send(Command::Tell(session.id, Tell::Turn(session, then)));
    }

    /// Changes what is kept of a process that runs.
    pub(super) fn change(&mut self, id: SessionId, choice: Choice, then: Then) {
        let Some(place) = self.clients.iter().position(|client| client.session.id == id) else { return then.call() };
        self.part(place, choice, then);
        self.clients[place].command();
    }

    /// Tells the digest of a process something.
    pub(super) fn tell(&self, id: SessionId, tell: Tell) {
        let _ = self.stages.commands.send(Command::Tell(id, tell));
    }

    /// Lets the archive write everything.
    pub(super) fn flush(&self, then: Then) {
        let _ = self.archive.send(Told::Flush(then));
    }

    /// Keeps the events of a flight.
    pub(super) fn keep_flight(&mut self, id: SessionId, why: &str, then: Then) {
        let Some(client) = self.clients.iter_mut().find(|client| client.session.id == id) else { return then.call() };
        client.kept = Some(Instant::now());
        self.counters.kept += 1;
        tracing::info!("the flight of {} ({}) is kept: {why}", client.name.escape_debug(), client.pid());
        let (archive, epoch) = (self.archive.clone(), Arc::clone(&client.epoch));
        let (reply, folders) = bounded::<Vec<PathBuf>>(1);
        // The reply comes from the stage that has written them.
        let adopt = move || {
            if let Ok(folders) = folders.recv() {
                let _ = archive.send(Told::Adopt(epoch, id, folders, then));
            }
        };
        if std::thread::Builder::new().name("keep".into()).spawn(adopt).is_ok() {
            self.tell(id, Tell::Keep(reply));
        }
    }

    /// Commands that the drain has not taken.
    pub(super) fn commands_waiting(&self) -> usize {
        self.stages.commands.len()
    }

    /// Processes that ended and are not written yet.
    pub(super) fn ending_count(&self) -> usize {
        self.ending.len()
    }

    /// Once a second: rates, triggers, budgets, epochs.
    fn look(&mut self) {
        let mut kept = Vec::new();
        let triggers = self.config.triggers;
        for client in &mut self.clients {
            client.look();
            client.adapt();
            if client.choice.mode != Mode::Flight || client.kept.is_some_and(|kept| kept.elapsed() < KEPT) {
                continue;
            }
            let (live, growth) = (client.now().live_bytes, client.growth());
            if triggers.live_bytes.is_some_and(|most| live > most) {
                kept.push((client.session.id, "its live bytes passed the bound"));
            } else if triggers.growth.is_some_and(|most| growth > i64::try_from(most).unwrap_or(i64::MAX)) {
                kept.push((client.session.id, "its live bytes grew too fast"));
            }
        }
        kept.into_iter().for_each(|(id, why)| self.keep_flight(id, why, Then::new(|| {})));
        self.keep_budgets();
        let over: Vec<u32> =
            self.epochs.iter().filter(|(_, current)| current.until <= Instant::now()).map(|(uid, _)| *uid).collect();
        over.into_iter().for_each(|uid| self.rotate(uid, Then::new(|| {})));
    }

    /// Everything is drained, written and sealed.
    fn finish(mut self) {
        self.notify.tell("STOPPING=1");
        let waiting = self.stopping.take().unwrap_or_default();
        while !self.clients.is_empty() {
            self.end(0, End::RUNNING);
        }
        self.stages.stop();
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.stored(stored);
        }
        // Without anybody who tells, the archive seals what is open.
        self.archive = unbounded().0;
        if let Some(archivist) = self.archivist.take() {
            let _ = archivist.join();
        }
        clear_flights(&self.config.state);
        let _ = std::fs::remove_file(&self.config.control);
        tracing::info!("stopped after {} s", self.started.elapsed().as_secs());
        for done in waiting {
            let _ = done.send(());
        }
        // The answer to `ctl stop` is sent by another thread.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn about(session: &Session, process: &Process) -> Image {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Image {
        folder: session.folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        pid: session.process.pid,
        ppid: process.ppid,
        origin: if session.process.origin == 1 { "fork" } else { "attach" }.into(),
        parent: session.forked.as_ref().map(|(_, folder, _)| folder.clone()),
        exe: text(&process.exe),
        argv: process.argv.iter().map(|argument| text(argument)).collect(),
        started_unix_ns: session.process.start_unix_ns,
        ..Image::default()
    }
}

fn about_again(session: &Session) -> Image {
    let tape::Process { exe, argv, ppid, .. } = &session.process;
    let argv = argv.iter().map(|argument| argument.0.clone()).collect();
    about(session, &Process { ppid: *ppid, exe: exe.0.clone(), argv, ..Process::default() })
}

/// Segments of flights that nobody will keep any more.
fn clear_flights(state: &Path) {
    for user in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir_all(user.path().join(FLIGHTS));
    }
}
