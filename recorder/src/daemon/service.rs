//! The thread of the service: accepts processes, follows them to their end, starts and ends epochs.
//! It never waits for a disk, since starting programs wait for its replies.

use super::archive::{Archive, ArchiveCommand, Disk};
use super::budget::BudgetMonitor;
use super::clients::{Client, LOOK};
use super::config::Config;
use super::control::{self, ControlRequest, Wake};
use super::entrance::{Entrance, Request};
use super::epoch::{Epoch, FLIGHTS};
use super::fd_store::FdStore;
use super::metrics;
use super::notify::{self, Notify};
use super::streams::Streams;
use crate::access::make_folder;
use crate::attach::{self, Listener};
use crate::clock::Clock;
use crate::crash::{self, Destination, Role};
use crate::options::Mode;
use crate::process::{self, End};
use crate::readiness;
use crate::session::{SessionId, Stats};
use crate::stages::Stages;
use crate::store::Callback;
use crate::symbols::{self, Saver, Side, Work};
use crate::sync;
use crate::sys;
use crossbeam_channel::{Receiver, Sender, unbounded};
use formats::recording::Exit;
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

/// Maximum time between two rounds of the loop.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between two rounds while a process or an epoch is being ended.
const ENDING_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of requests of programs and senders that are served in one round.
const REQUESTS_PER_ROUND: usize = 16;
/// Time in which the last answers to `ctl` must be sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Name of the folder with the live blocks that one daemon hands over to the next.
pub(super) const CARRIED: &str = "carried";
/// Minimum time between two times that the same flight recording is kept because of a trigger.
const FLIGHT_INTERVAL: Duration = Duration::from_secs(60);

/// The epoch to which the processes of a user are written.
#[derive(Debug)]
pub(super) struct CurrentEpoch {
    pub(super) epoch: Arc<Epoch>,
    pub(super) names: HashMap<String, u32>,
    pub(super) until: Instant,
    /// Number of streams that were started in the epoch, and of their bytes.
    pub(super) streams: u64,
    pub(super) streamed: Arc<AtomicU64>,
    /// Registers the folder for the report of a crash of this process.
    pub(super) _crash: Destination,
}

/// An epoch that has ended and is not completely written.
#[derive(Debug)]
pub(super) struct ClosingEpoch {
    pub(super) epoch: Arc<Epoch>,
    /// The processes that are not completely written, each with its segment: a process that has
    /// ended may have continued in further segments.
    pub(super) pending: HashMap<SessionId, PathBuf>,
    pub(super) on_done: Vec<Callback>,
}

/// A process that has ended and is not completely written.
#[derive(Debug)]
pub(super) struct EndingProcess {
    pub(super) epoch: Arc<Epoch>,
    pub(super) label: String,
    pub(super) exit: Exit,
    pub(super) keeps: bool,
    pub(super) segment: PathBuf,
    pub(super) stats: Arc<Stats>,
    pub(super) name: String,
}

/// Counts since the start of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Number of processes that were accepted.
    pub accepted: u64,
    /// Number of processes that were refused.
    pub refused: u64,
    /// Number of recorded events, of processes that have ended.
    pub recorded: u64,
    /// Number of lost events, of processes that have ended.
    pub lost: u64,
    /// Number of events that sampling skipped, of processes that have ended.
    pub sampled_out: u64,
    /// Number of segments that could not be written.
    pub errors: u64,
    /// Number of flight recordings that were kept.
    pub kept: u64,
    /// Number of epochs that have ended.
    pub epochs: u64,
}

/// The daemon and its state.
#[derive(Debug)]
pub struct Service {
    pub(super) config: Config,
    pub(super) clients: Vec<Client>,
    pub(super) counters: Counters,
    /// Final counters of ended processes, by program.
    pub(super) past: metrics::Programs,
    pub(super) disk: Arc<Disk>,
    pub(super) budgets: BudgetMonitor,
    pub(super) started: Instant,
    pub(super) clock: Clock,
    pub(super) ticks_per_second: u64,
    pub(super) stages: Stages,
    pub(super) entrance: Entrance,
    pub(super) epochs: HashMap<u32, CurrentEpoch>,
    pub(super) closing: Vec<ClosingEpoch>,
    pub(super) ending: HashMap<SessionId, EndingProcess>,
    pub(super) archive: Sender<ArchiveCommand>,
    pub(super) archive_thread: Option<JoinHandle<()>>,
    pub(super) requests: Receiver<ControlRequest>,
    pub(super) wake_receiver: UnixStream,
    pub(super) wake: Wake,
    pub(super) streams: Streams,
    pub(super) notify: Notify,
    pub(super) fd_store: FdStore,
    /// Whether processes are handed over to the next daemon at the end.
    pub(super) hands_over: bool,
    /// Number of connections of `ctl`.
    pub(super) open_connections: Arc<AtomicUsize>,
    pub(super) signals: SignalFd,
    pub(super) next: SessionId,
    pub(super) last_check: Instant,
    pub(super) stopping: Option<Vec<Sender<()>>>,
    pub(super) saver: Option<Arc<Saver>>,
}

/// Runs the daemon until a stop is requested. `work` looks up the names that its epochs store. The
/// caller must have one thread.
///
/// # Errors
/// When a socket or a folder cannot be created.
pub fn run(config: Config, work: Work) -> io::Result<()> {
    crash::set_role(Role::Daemon);
    // Before any thread is started, and any descriptor is opened that the helper should not have.
    let saver = match symbols::split() {
        Ok(Side::Helper(helper)) => {
            helper.run(work);
            return Ok(());
        }
        Ok(Side::Recorder(saver)) => Some(Arc::new(saver)),
        Err(error) => {
            tracing::warn!("epochs store no function names: {error}");
            None
        }
    };
    let mut service = Service::start(config, saver)?;
    // Starting programs wait for this thread. The threads that do the work were started before, and
    // have no priority.
    sys::prefer_thread();
    service.notify.send_state("READY=1");
    let watchdog = notify::watchdog();
    let mut last_notification = Instant::now();
    while service.stopping.is_none() {
        crash::panic_if_requested();
        service.poll_once(watchdog.map_or(MAX_POLL_INTERVAL, |every| every.min(MAX_POLL_INTERVAL)))?;
        if watchdog.is_some_and(|every| last_notification.elapsed() >= every / 2) {
            service.notify.send_state("WATCHDOG=1");
            last_notification = Instant::now();
        }
    }
    service.finish();
    Ok(())
}

fn make_parent_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if let Some(above) = folder.parent() {
        std::fs::create_dir_all(above)?;
    }
    make_folder(folder, None)
}

/// How long a connection to the programs' socket may be silent; the library never is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the listening sockets: those of systemd, or new ones.
fn listener(config: &Config, passed: &mut Vec<(String, OwnedFd)>) -> io::Result<Listener> {
    let mut listener = Listener::new()?;
    for (path, kind, timeout) in [
        (&config.socket, SockType::SeqPacket, HELLO_TIMEOUT),
        (&config.stream_socket, SockType::Stream, config.budget.stream_idle),
    ] {
        let is_wanted = |(name, socket): &(String, OwnedFd)| name != "control" && notify::listens(socket, kind);
        match passed.iter().position(is_wanted) {
            Some(index) => listener.add(passed.swap_remove(index).1, None, timeout)?,
            // A parent that passes sockets decides which there are.
            None if kind == SockType::Stream && listener.is_passed() => {}
            None => listener.add(own_socket(config, path, kind)?, Some(path.clone()), timeout)?,
        }
    }
    Ok(listener)
}

/// Creates a socket for programs or senders.
fn own_socket(config: &Config, path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    make_parent_folder(path)?;
    control::clear(path, || Ok(attach::probe(path, kind)?))?;
    let socket = attach::listen(path, kind)?;
    // Programs of all users connect here; the kernel identifies them.
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
            // The folders of the users are closed to all others.
            std::fs::set_permissions(&config.state, std::fs::Permissions::from_mode(0o711))?;
        }
        let controller = match passed.iter().position(|(name, _)| name == "control") {
            Some(index) => control::passed(passed.swap_remove(index).1),
            None => {
                make_parent_folder(&config.control)?;
                control::listen(&config.control, 0o600)?
            }
        };
        let listener = listener(&config, &mut passed)?;
        let (fd_store, held) = FdStore::find(&config.socket.with_file_name("fd-store"), passed, notify::has_store());
        let clock = Clock::choose();
        let stages = Stages::start(clock)?;
        let disk = Arc::new(Disk::default());
        let keep = config.keep();
        let archive = Archive::new(&config.state, keep, Arc::clone(&disk), saver.clone());
        clear_flights(&config.state);
        let (archive_commands, commands) = unbounded();
        let archive_thread = crash::spawn("archive", move || archive.run(&commands))?;
        let (wake_receiver, wake_sender) = UnixStream::pair()?;
        wake_receiver.set_nonblocking(true)?;
        wake_sender.set_nonblocking(true)?;
        let wake: Wake = Arc::new(wake_sender);
        let entrance = Entrance::open(listener, config.budget, Arc::clone(&wake))?;
        let (request_sender, requests) = unbounded();
        let open_connections = Arc::new(AtomicUsize::new(0));
        let busy = Arc::clone(&open_connections);
        if let Some(address) = config.metrics {
            let (listener, requests, wake) = (metrics::listen(address)?, request_sender.clone(), Arc::clone(&wake));
            crash::spawn("metrics", move || metrics::run(listener, requests, wake))?;
        }
        let control_wake = Arc::clone(&wake);
        crash::spawn("control", move || control::run(controller, request_sender, control_wake, busy))?;
        let ticks_per_second = clock.ticks_per_second();
        tracing::info!("serving programs at {}, keeping {}", config.socket.display(), config.state.display());
        let mut service = Service {
            config,
            clients: Vec::new(),
            counters: Counters::default(),
            past: metrics::Programs::default(),
            disk,
            budgets: BudgetMonitor::default(),
            started: Instant::now(),
            clock,
            ticks_per_second,
            stages,
            entrance,
            epochs: HashMap::new(),
            closing: Vec::new(),
            ending: HashMap::new(),
            archive: archive_commands,
            archive_thread: Some(archive_thread),
            requests,
            wake_receiver,
            wake,
            streams: Streams::default(),
            notify: Notify::find(),
            signals,
            next: 1,
            last_check: Instant::now(),
            stopping: None,
            fd_store,
            hands_over: false,
            open_connections,
            saver,
        };
        service.find_streams()?;
        let carried = service.config.state.join(CARRIED);
        make_folder(&carried, None)?;
        let pids: Vec<String> = held.iter().map(|held| held.name.pid.to_string()).collect();
        held.into_iter().for_each(|held| service.take_over(held));
        // Processes that are not in the fd store have ended meanwhile.
        for entry in std::fs::read_dir(&carried)?.flatten() {
            if !pids.iter().any(|pid| entry.path().file_stem().is_some_and(|name| name == pid.as_str())) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(service)
    }

    fn poll_once(&mut self, limit: Duration) -> io::Result<()> {
        let is_ending = !self.ending.is_empty() || !self.closing.is_empty();
        let limit = if is_ending { limit.min(ENDING_POLL_INTERVAL) } else { limit };
        let limit = limit.min(LOOK.saturating_sub(self.last_check.elapsed()));
        let limit = if self.entrance.has_more() { Duration::ZERO } else { limit };
        let own_files = [self.signals.as_fd(), self.wake_receiver.as_fd()];
        let processes = self.clients.iter().map(|client| sys::fd(&client.process));
        let all = own_files.into_iter().chain(processes);
        let ready = readiness::wait(all, limit)?;
        let ended: Vec<SessionId> = self
            .clients
            .iter()
            .zip(&ready[2..])
            .filter(|(_, ready)| **ready)
            .map(|(client, _)| client.session.id)
            .collect();
        // In small portions, so that ends and control requests do not wait.
        for request in std::iter::from_fn(|| self.entrance.next()).take(REQUESTS_PER_ROUND).collect::<Vec<_>>() {
            match request {
                Request::Start(client) => self.admit(client),
                Request::Stream(sender) => self.take_stream(sender),
            }
        }
        for id in ended {
            if let Some(index) = self.clients.iter().position(|client| client.session.id == id) {
                let end = process::end(self.clients[index].pid(), sys::fd(&self.clients[index].process));
                self.end(index, end);
            }
        }
        if ready[0] {
            self.handle_signals();
        }
        if ready[1] {
            let mut bytes = [0; 256];
            while (&self.wake_receiver).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        }
        self.take_streams();
        while let Ok(request) = self.requests.try_recv() {
            let answer = self.answer(&request.request);
            let _ = request.reply.send(answer);
        }
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.stored(stored);
        }
        if self.last_check.elapsed() >= LOOK {
            self.last_check = Instant::now();
            self.check_clients();
        }
        Ok(())
    }

    fn handle_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGTERM | Signal::SIGINT) => {
                    // The next daemon continues; only `ctl stop` ends the recordings.
                    self.hands_over = !matches!(self.fd_store, FdStore::Nobody);
                    self.stopping.get_or_insert_default();
                }
                Ok(Signal::SIGUSR1) => {
                    let flights: Vec<SessionId> = self.flights().collect();
                    flights.into_iter().for_each(|id| self.keep_flight(id, "a signal", Callback::new(|| {})));
                }
                Ok(Signal::SIGHUP) => self.rotate_all(&mut |_| Callback::new(|| {})),
                _ => {}
            }
        }
    }

    /// Returns the number of commands that the drain has not received.
    pub(super) fn commands_waiting(&self) -> usize {
        self.stages.commands.len()
    }

    /// Returns the number of processes that have ended and are not written yet.
    pub(super) fn ending_count(&self) -> usize {
        self.ending.len()
    }

    /// Checks rates, triggers, budgets and epochs. Called once a second.
    fn check_clients(&mut self) {
        let mut kept = Vec::new();
        let triggers = self.config.triggers;
        for client in &mut self.clients {
            client.measure();
            client.adapt();
            if client.choice.mode != Mode::Flight || client.kept.is_some_and(|kept| kept.elapsed() < FLIGHT_INTERVAL) {
                continue;
            }
            let (live, growth) = (client.now().live_bytes, client.growth());
            if triggers.live_bytes.is_some_and(|limit| live > limit) {
                kept.push((client.session.id, "its live bytes exceeded the limit"));
            } else if triggers.growth.is_some_and(|limit| growth > i64::try_from(limit).unwrap_or(i64::MAX)) {
                kept.push((client.session.id, "its live bytes grew too fast"));
            }
        }
        kept.into_iter().for_each(|(id, why)| self.keep_flight(id, why, Callback::new(|| {})));
        for ((what, uid), count) in self.entrance.refused() {
            self.counters.refused += count;
            self.budgets.hit_by(what, uid, count);
        }
        self.keep_budgets();
        let expired: Vec<u32> =
            self.epochs.iter().filter(|(_, current)| current.until <= Instant::now()).map(|(uid, _)| *uid).collect();
        expired.into_iter().for_each(|uid| self.rotate(uid, Callback::new(|| {})));
    }

    /// Ends the daemon: drains, writes and seals everything.
    fn finish(mut self) {
        self.notify.send_state("STOPPING=1");
        self.entrance.close();
        let waiting = self.stopping.take().unwrap_or_default();
        while !self.clients.is_empty() {
            if self.hands_over {
                self.hand_over(0);
            } else {
                self.end(0, End::RUNNING);
            }
        }
        self.end_streams();
        self.stages.stop();
        if !self.hands_over {
            self.fd_store.end();
        }
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.stored(stored);
        }
        // Without a sender of commands, the archive seals all epochs.
        self.archive = unbounded().0;
        if let Some(archive_thread) = self.archive_thread.take() {
            let _ = archive_thread.join();
        }
        self.saver.iter().for_each(|saver| saver.finish(ANSWER_TIMEOUT));
        sync::finish();
        clear_flights(&self.config.state);
        let _ = std::fs::remove_file(&self.config.control);
        tracing::info!("stopped after {} s", self.started.elapsed().as_secs());
        for done in waiting {
            let _ = done.send(());
        }
        // Another thread sends the answer to `ctl stop`.
        let start = Instant::now();
        while self.open_connections.load(Relaxed) > 0 && start.elapsed() < ANSWER_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes segments of flight recordings that can not be kept any more.
fn clear_flights(state: &Path) {
    for user in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir_all(user.path().join(FLIGHTS));
    }
}
