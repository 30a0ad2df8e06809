//! The service's thread: takes processes in, follows them to their end, begins and ends epochs.
//! Nothing here waits for a disk: a program that starts waits for its answer.

use super::archive::{Archive, Disk, Told};
use super::budget::Guard;
use super::clients::{Client, LOOK};
use super::config::Config;
use super::control::{self, Ask, Wake};
use super::entrance::{Entrance, Request};
use super::epoch::Epoch;
use super::fd_store::FdStore;
use super::metrics;
use super::notify::{self, Notify};
use super::streams::Streams;
use crate::attach::{self, Door};
use crate::clock::Clock;
use crate::crash::{self, Destination, Role};
use crate::options::Mode;
use crate::process::{self, make_folder};
use crate::session::{End, SessionId, Stats};
use crate::stages::Stages;
use crate::store::Then;
use crate::symbols::{self, Saver, Side, Work};
use crate::sync;
use crate::sys;
use crossbeam_channel::{Receiver, Sender, unbounded};
use formats::recording::Exit;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::SockType;
use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest time between two rounds of the loop.
const ROUND: Duration = Duration::from_secs(1);
/// The same while something is being ended.
const SOON: Duration = Duration::from_millis(20);
/// Requests of programs and senders that are served before the next round.
const PORTION: usize = 16;
/// Time for the last answers of `ctl` to be sent.
const ANSWERED: Duration = Duration::from_secs(2);
/// Name of the folder of flights, beside the epochs.
pub(super) const FLIGHTS: &str = "flight";
/// Name of the folder of what lives, from one daemon to the next.
pub(super) const CARRIED: &str = "carried";
/// A flight is kept for the same reason at most so often.
const KEPT: Duration = Duration::from_secs(60);

/// The epoch that a user's processes are written to.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) epoch: Arc<Epoch>,
    pub(super) names: HashMap<String, u32>,
    pub(super) until: Instant,
    /// Streams that were begun in it, and the bytes that came by them.
    pub(super) streams: u64,
    pub(super) streamed: Arc<AtomicU64>,
    /// It gets the report, should this process crash.
    pub(super) _crash: Destination,
}

/// An epoch that is over, and what is still to come of it.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) epoch: Arc<Epoch>,
    /// Processes, and the part of each that is to come: one that is over may have gone on in
    /// further segments.
    pub(super) pending: HashMap<SessionId, PathBuf>,
    pub(super) then: Vec<Then>,
}

/// A process that has ended, until its last byte is written.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) epoch: Arc<Epoch>,
    pub(super) label: String,
    pub(super) exit: Exit,
    pub(super) keeps: bool,
    pub(super) part: PathBuf,
    pub(super) stats: Arc<Stats>,
    pub(super) name: String,
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
    /// What processes that are over and written had counted, by program.
    pub(super) past: metrics::Programs,
    pub(super) disk: Arc<Disk>,
    pub(super) guard: Guard,
    pub(super) started: Instant,
    pub(super) clock: Clock,
    pub(super) ticks_per_second: u64,
    pub(super) stages: Stages,
    pub(super) entrance: Entrance,
    pub(super) epochs: HashMap<u32, Current>,
    pub(super) closing: Vec<Closing>,
    pub(super) ending: HashMap<SessionId, Ending>,
    pub(super) archive: Sender<Told>,
    pub(super) archivist: Option<JoinHandle<()>>,
    pub(super) asks: Receiver<Ask>,
    pub(super) woken: UnixStream,
    pub(super) wake: Wake,
    pub(super) streams: Streams,
    pub(super) notify: Notify,
    pub(super) holder: FdStore,
    /// Whether processes are left to the next daemon at the end.
    pub(super) leaves: bool,
    /// Connections of `ctl`.
    pub(super) talking: Arc<AtomicUsize>,
    pub(super) signals: SignalFd,
    pub(super) next: SessionId,
    pub(super) looked: Instant,
    pub(super) stopping: Option<Vec<Sender<()>>>,
    pub(super) saver: Option<Arc<Saver>>,
}

/// Runs the daemon until a stop is requested. `work` looks up the names that its epochs keep. The
/// caller has one thread.
///
/// # Errors
/// When a socket or a folder cannot be made.
pub fn run(config: Config, work: Work) -> io::Result<()> {
    crash::set_role(Role::Daemon);
    // Before any thread is started, and any descriptor opened that the helper should not have.
    let saver = match symbols::split() {
        Ok(Side::Helper(helper)) => {
            helper.run(work);
            return Ok(());
        }
        Ok(Side::Recorder(saver)) => Some(Arc::new(saver)),
        Err(error) => {
            tracing::warn!("epochs keep no names: {error}");
            None
        }
    };
    let mut service = Service::start(config, saver)?;
    // Programs that start wait for this thread; those that do the work were started before, and are
    // not preferred.
    sys::prefer_thread();
    service.notify.tell("READY=1");
    let watchdog = notify::watchdog();
    let mut fed = Instant::now();
    while service.stopping.is_none() {
        crash::panic_if_requested();
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

/// Time that a connection to the programs' socket may be silent, which the library never is.
const SILENT: Duration = Duration::from_secs(1);

/// The door: systemd's sockets, or our own.
fn door(config: &Config, passed: &mut Vec<(String, OwnedFd)>) -> io::Result<Door> {
    let mut door = Door::new()?;
    for (path, kind, silent) in [
        (&config.socket, SockType::SeqPacket, SILENT),
        (&config.stream_socket, SockType::Stream, config.budget.stream_idle),
    ] {
        let is_it = |(name, socket): &(String, OwnedFd)| name != "control" && notify::listens(socket, kind);
        match passed.iter().position(is_it) {
            Some(place) => door.add(passed.swap_remove(place).1, None, silent)?,
            // Whoever starts us with sockets decides which there are.
            None if kind == SockType::Stream && door.is_passed() => {}
            None => door.add(own_socket(config, path, kind)?, Some(path.clone()), silent)?,
        }
    }
    Ok(door)
}

/// Makes a socket for programs or senders.
fn own_socket(config: &Config, path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    folder_of(path)?;
    control::clear(path, || Ok(attach::knock(path, kind)?))?;
    let socket = attach::listen(path, kind)?;
    // Programs of all users come through here; the kernel says who they are.
    let (mode, folder_mode) = if config.serves_all { (0o666, Some(0o755)) } else { (0o600, None) };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    if let Some(mode) = folder_mode {
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(socket)
}

impl Service {
    fn start(config: Config, saver: Option<Arc<Saver>>) -> io::Result<Service> {
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
        let (holder, held) = FdStore::find(&config.socket.with_file_name("keeper"), passed, notify::has_store());
        let clock = Clock::choose();
        let stages = Stages::start(clock)?;
        let disk = Arc::new(Disk::default());
        let keep = config.keep();
        let archive = Archive::new(&config.state, keep, Arc::clone(&disk), saver.clone());
        clear_flights(&config.state);
        let (told, hears) = unbounded();
        let archivist = crash::spawn("archive", move || archive.run(&hears))?;
        let (woken, wakes) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let wake: Wake = Arc::new(wakes);
        let entrance = Entrance::open(door, config.budget, Arc::clone(&wake))?;
        let (asks_out, asks) = unbounded();
        let talking = Arc::new(AtomicUsize::new(0));
        let busy = Arc::clone(&talking);
        if let Some(address) = config.metrics {
            let (listener, asks, wake) = (metrics::listen(address)?, asks_out.clone(), Arc::clone(&wake));
            crash::spawn("metrics", move || metrics::run(listener, asks, wake))?;
        }
        let woken_by = Arc::clone(&wake);
        crash::spawn("control", move || control::run(controller, asks_out, woken_by, busy))?;
        let ticks_per_second = clock.ticks_per_second();
        tracing::info!("serving programs at {}, keeping {}", config.socket.display(), config.state.display());
        let (clients, counters, epochs, closing, ending, guard) = Default::default();
        let mut service = Service {
            config,
            clients,
            counters,
            past: metrics::Programs::default(),
            disk,
            guard,
            started: Instant::now(),
            clock,
            ticks_per_second,
            stages,
            entrance,
            epochs,
            closing,
            ending,
            archive: told,
            archivist: Some(archivist),
            asks,
            woken,
            wake,
            streams: Streams::default(),
            notify: Notify::find(),
            signals,
            next: 1,
            looked: Instant::now(),
            stopping: None,
            holder,
            leaves: false,
            talking,
            saver,
        };
        service.find_streams()?;
        let carried = service.config.state.join(CARRIED);
        make_folder(&carried, None)?;
        let pids: Vec<String> = held.iter().map(|held| held.name.pid.to_string()).collect();
        held.into_iter().for_each(|held| service.take_over(held));
        // What nobody holds has ended meanwhile.
        for entry in std::fs::read_dir(&carried)?.flatten() {
            if !pids.iter().any(|pid| entry.file_name() == pid.as_str()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(service)
    }

    fn round(&mut self, most: Duration) -> io::Result<()> {
        let is_ending = !self.ending.is_empty() || !self.closing.is_empty();
        let most = if is_ending { most.min(SOON) } else { most };
        let most = most.min(LOOK.saturating_sub(self.looked.elapsed()));
        let most = if self.entrance.has_more() { Duration::ZERO } else { most };
        let own = [self.signals.as_fd(), self.woken.as_fd()];
        let processes = self.clients.iter().map(|client| sys::fd(&client.process));
        let all = own.into_iter().chain(processes);
        let mut polls: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(most.as_nanos().div_ceil(1_000_000) as i32).unwrap_or(PollTimeout::MAX);
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
        // In small portions: ends and questions are not kept waiting either.
        for request in std::iter::from_fn(|| self.entrance.next()).take(PORTION).collect::<Vec<_>>() {
            match request {
                Request::Start(client) => self.take_in(client),
                Request::Stream(sender) => self.take_stream(sender),
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
        self.take_streams();
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
                Ok(Signal::SIGTERM | Signal::SIGINT) => {
                    // Whoever is started next goes on; `ctl stop` is for good.
                    self.leaves = !matches!(self.holder, FdStore::Nobody);
                    self.stopping.get_or_insert_default();
                }
                Ok(Signal::SIGUSR1) => {
                    let flights: Vec<SessionId> = self.flights().collect();
                    flights.into_iter().for_each(|id| self.keep_flight(id, "a signal", Then::new(|| {})));
                }
                Ok(Signal::SIGHUP) => self.rotate_all(&mut |_| Then::new(|| {})),
                _ => {}
            }
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
        for ((what, uid), count) in self.entrance.refused() {
            self.counters.refused += count;
            self.guard.hit_by(what, uid, count);
        }
        self.keep_budgets();
        let over: Vec<u32> =
            self.epochs.iter().filter(|(_, current)| current.until <= Instant::now()).map(|(uid, _)| *uid).collect();
        over.into_iter().for_each(|uid| self.rotate(uid, Then::new(|| {})));
    }

    /// Everything is drained, written and sealed.
    fn finish(mut self) {
        self.notify.tell("STOPPING=1");
        self.entrance.close();
        let waiting = self.stopping.take().unwrap_or_default();
        while !self.clients.is_empty() {
            if self.leaves {
                self.leave(0);
            } else {
                self.end(0, End::RUNNING);
            }
        }
        self.end_streams();
        self.stages.stop();
        if !self.leaves {
            self.holder.end();
        }
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.stored(stored);
        }
        // Without anybody who tells, the archive seals what is open.
        self.archive = unbounded().0;
        if let Some(archivist) = self.archivist.take() {
            let _ = archivist.join();
        }
        self.saver.iter().for_each(|saver| saver.finish(ANSWERED));
        sync::finish();
        clear_flights(&self.config.state);
        let _ = std::fs::remove_file(&self.config.control);
        tracing::info!("stopped after {} s", self.started.elapsed().as_secs());
        for done in waiting {
            let _ = done.send(());
        }
        // The answer to `ctl stop` is sent by another thread.
        let begun = Instant::now();
        while self.talking.load(Relaxed) > 0 && begun.elapsed() < ANSWERED {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Segments of flights that nobody will keep any more.
fn clear_flights(state: &Path) {
    for user in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir_all(user.path().join(FLIGHTS));
    }
}
