//! The thread of the service: accepts processes, follows them to their end, starts and ends epochs.
//! It never waits for a disk, since starting programs wait for its replies.
//!
//! The state belongs to its owners: the processes to the [`Registry`], the files to the [`Epochs`],
//! the limits to the [`Budgets`], the files that others send to the [`Streams`], and what the next
//! daemon gets to the [`Successor`]. The service passes between them what concerns several.

mod answers;
mod attaching;
mod configuration;
mod flush;
mod intake;
mod measures;
mod memory;
mod rotation;
mod start;
mod unrecorded;

use super::budget::{self, Budgets, Reduction};
use super::clients::{LOOK, Note};
use super::config::{Choice, Config};
use super::control::ControlRequest;
use super::entrance::Entrance;
use super::epochs::Epochs;
use super::incidents::Incidents;
use super::inquiries::Inquiries;
use super::late::LateStarts;
use super::log_limit::LogLimit;
use super::notify::{self, Notify};
use super::orphans::Orphans;
use super::out_of_memory::OutOfMemory;
use super::pressure::Pressure;
use super::push::Pusher;
use super::registry::Registry;
use super::reload::Reread;
use super::ship::Shipper;
use super::streams::Streams;
use super::successor::Successor;
use super::verdicts::Verdicts;
use attaching::Attaches;
use crossbeam_channel::{Receiver, Sender};
use flush::PendingFlush;
use heaptape_recorder::digest::ProcessCommand;
use heaptape_recorder::os::crash::{self, Role};
use heaptape_recorder::os::{poll, sync, sys};
use heaptape_recorder::pipeline::{Command, Stages};
use heaptape_recorder::run::admission::{self, Admissions};
use heaptape_recorder::session::listener::Request;
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::session::{Boards, SessionId};
use heaptape_recorder::store::writer::Callback;
use heaptape_recorder::target::name_saver::{self, Side, Work};
use heaptape_recorder::target::proc::End;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum time between two rounds of the loop.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between two rounds while a process or an epoch is being ended.
const ENDING_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of requests of programs and senders that are served in one round.
const REQUESTS_PER_ROUND: usize = 16;
/// Time in which the last answers to `ctl` must be sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two times that the same flight recording is kept because of a trigger.
const FLIGHT_INTERVAL: Duration = Duration::from_secs(60);

/// The daemon and its state.
#[derive(Debug)]
pub(crate) struct Service {
    config: Config,
    reread: Reread,
    admissions: Admissions<intake::Decision, Note>,
    registry: Registry,
    epochs: Epochs,
    budgets: Budgets,
    out_of_memory: OutOfMemory,
    pressure: Pressure,
    /// Index of the process whose resident memory is read next.
    next_memory: usize,
    streams: Streams,
    successor: Successor,
    /// Ships sealed epochs, if there is a destination.
    shipper: Option<Shipper>,
    pusher: Option<Pusher>,
    verdicts: Verdicts,
    boards: Boards,
    /// What happened to programs, for the metrics.
    incidents: Incidents,
    /// Processes that no longer waited for an answer.
    late: LateStarts,
    orphans: Orphans,
    /// Number of orphans that are recorded again.
    adopted: u64,
    log: LogLimit,
    started: Instant,
    last_check: Instant,
    stages: Stages,
    entrance: Entrance,
    inquiries: Inquiries,
    attaches: Attaches,
    requests: Receiver<ControlRequest>,
    wake_receiver: UnixStream,
    notify: Notify,
    /// Number of connections of `ctl`.
    open_connections: Arc<AtomicUsize>,
    signals: SignalFd,
    /// Requests to write everything that wait for processes that have ended.
    flushes: Vec<PendingFlush>,
    stopping: Option<Vec<Sender<()>>>,
}

/// Runs the daemon until a stop is requested. `reread` reads the configuration again. `work` looks
/// up the names that its epochs store. The caller must have one thread.
///
/// # Errors
/// When a socket or a folder cannot be created.
pub fn run(config: Config, reread: Reread, work: Work) -> io::Result<()> {
    crash::set_role(Role::Daemon);
    // Before any thread is started, and any descriptor is opened that the helper should not have.
    let saver = match name_saver::split() {
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
    let mut service = Service::start(config, reread, saver)?;
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

impl Service {
    fn poll_once(&mut self, limit: Duration) -> io::Result<()> {
        let is_ending = self.registry.ending_count() > 0 || self.epochs.is_closing();
        let limit = if is_ending { limit.min(ENDING_POLL_INTERVAL) } else { limit };
        let limit = limit.min(LOOK.saturating_sub(self.last_check.elapsed()));
        let limit = match self.inquiries.deadline() {
            _ if self.inquiries.has_room() && self.entrance.has_more() => Duration::ZERO,
            deadline => deadline.map_or(limit, |deadline| deadline.min(limit)),
        };
        let own_files = [self.signals.as_fd(), self.wake_receiver.as_fd()];
        let processes = self.registry.clients().iter().map(|client| sys::fd(&client.process));
        let limit = self.admissions.deadline().map_or(limit, |deadline| deadline.min(limit));
        let all = own_files.into_iter().chain(processes).chain(self.admissions.descriptors());
        let ready = poll::wait(all, limit)?;
        let clients = self.registry.clients().iter().zip(&ready[own_files.len()..]);
        let ended: Vec<SessionId> = clients.filter(|(_, ready)| **ready).map(|(client, _)| client.session.id).collect();
        admission::look_at_waiting(self);
        // In small portions, so that ends and control requests do not wait.
        for _ in 0..REQUESTS_PER_ROUND {
            let Some(request) = self.inquiries.has_room().then(|| self.entrance.next()).flatten() else { break };
            match request {
                Request::Start(client) => self.look_at(client),
                Request::Stream(sender) => self.streams.take(sender, &mut self.epochs, &mut self.budgets),
            }
        }
        while let Some(answer) = self.inquiries.next() {
            self.admit(answer);
        }
        self.end_all(&ended);
        if ready[0] {
            self.handle_signals();
        }
        if ready[1] {
            let mut bytes = [0; 256];
            while (&self.wake_receiver).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        }
        self.streams.store_ended(&mut self.epochs, &mut self.budgets);
        self.handle_attaches();
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
                    self.successor.take_over_at_end();
                    self.stopping.get_or_insert_default();
                }
                Ok(Signal::SIGUSR1) => {
                    let flights = self.registry.flights();
                    flights.into_iter().for_each(|id| self.keep_flight(id, "signal", "a signal", Callback::new(|| {})));
                }
                Ok(Signal::SIGHUP) => {
                    // An error is in the log.
                    let _ = self.reload();
                    tracing::info!("SIGHUP: the epochs of all users end");
                    self.rotate_all(&mut |_| Callback::new(|| {}));
                }
                _ => {}
            }
        }
    }

    /// Checks rates, triggers, budgets and epochs. Called once a second.
    fn check_clients(&mut self) {
        let mut kept = Vec::new();
        let triggers = self.config.triggers;
        let flights = self.registry.clients().iter().filter(|client| client.choice.mode == Mode::Flight);
        self.pressure.look(flights.flat_map(|client| &client.memory.groups));
        for client in self.registry.clients_mut() {
            client.measure();
            client.adapt();
            if client.choice.mode != Mode::Flight || client.kept.is_some_and(|kept| kept.elapsed() < FLIGHT_INTERVAL) {
                continue;
            }
            let (live, growth) = (client.now().live_bytes, client.growth());
            if triggers.live_bytes.is_some_and(|limit| live > limit) {
                kept.push((client.session.id, "trigger", "its live bytes exceeded the limit".to_owned()));
            } else if triggers.growth.is_some_and(|limit| growth > i64::try_from(limit).unwrap_or(i64::MAX)) {
                kept.push((client.session.id, "trigger", "its live bytes grew too fast".into()));
            } else if let Some(reason) = self.pressure.reason(&client.memory.groups) {
                kept.push((client.session.id, "pressure", reason.to_string()));
            }
        }
        for (id, cause, why) in kept {
            self.keep_flight(id, cause, &why, Callback::new(|| {}));
        }
        for ((what, uid), count) in self.entrance.refused() {
            self.registry.count_refused(what, count);
            self.budgets.hit_by(what, uid, count);
        }
        self.read_boards(None);
        self.adopt_orphans();
        self.name_stalled();
        self.measure_memory();
        self.keep_budgets();
        self.check_attaches();
        self.admissions.saver.iter().for_each(|saver| saver.send_waiting());
        for uid in self.epochs.expired() {
            // An error is in the log; the next attempt is a second away.
            let _ = self.rotate(uid, Callback::new(|| {}));
        }
    }

    /// Checks all limits. Called once a second.
    fn keep_budgets(&mut self) {
        self.budgets.measure();
        self.budgets.share_events(&mut self.registry);
        let reductions = self.budgets.over_memory(&self.registry);
        reductions.into_iter().for_each(|reduction| self.reduce(reduction));
        if let Some(reduction) = self.budgets.over_cpu(&self.registry) {
            self.reduce(reduction);
        }
        if let Some((id, choice)) = self.budgets.come_back(&self.registry) {
            self.restore(id, choice);
        }
        let reductions = self.budgets.over_disk(&self.registry, self.epochs.disk());
        reductions.into_iter().for_each(|reduction| self.reduce(reduction));
    }

    /// Changes a process to a mode that costs less. What it does when a ring is full stays.
    fn reduce(&mut self, reduction: Reduction) {
        let Reduction { id, choice, what, why } = reduction;
        if let Some(client) = self.registry.client_mut(id) {
            client.held = Some(what);
            budget::note_reduction(client, what);
            let choice = Choice { overflow: client.choice.overflow, ..choice };
            let why = format!("{why}; {} ({})", client.name.escape_debug(), client.pid());
            self.budgets.hit(what, &why);
            self.change(id, choice, Callback::new(|| {}));
        }
    }

    /// Records a process again as it was recorded before a limit reduced it.
    fn restore(&mut self, id: SessionId, choice: Choice) {
        let Some(client) = self.registry.client_mut(id) else { return };
        client.held = None;
        let (name, pid) = (client.name.escape_debug().to_string(), client.pid());
        tracing::info!("there is room again: the mode of {name} ({pid}) becomes {choice}");
        self.change(id, choice, Callback::new(|| {}));
    }

    /// Sends a command to the drain.
    fn send(&self, command: Command) {
        let _ = self.stages.commands.send(command);
    }

    /// Sends a command to the recording of a process.
    fn send_command(&self, id: SessionId, process_command: ProcessCommand) {
        self.send(Command::ProcessSettled(id, process_command));
    }

    /// Ends the daemon: drains, writes and seals everything.
    fn finish(mut self) {
        self.notify.send_state("STOPPING=1");
        self.entrance.close();
        let waiting = self.stopping.take().unwrap_or_default();
        self.finish_attaches();
        for id in self.registry.select(|_| true) {
            if self.successor.takes_over() {
                self.hand_over(id);
            } else {
                self.end(id, End::RUNNING);
            }
        }
        self.streams.finish(&mut self.epochs, &mut self.budgets);
        self.stages.stop();
        self.successor.finish();
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.stored(stored);
        }
        // The archive ends when nobody can send to it any more.
        self.flushes.clear();
        self.epochs.finish();
        self.admissions.saver.iter().for_each(|saver| saver.finish(ANSWER_TIMEOUT));
        sync::finish();
        if !self.successor.takes_over() {
            self.epochs.clear_flights(&[]);
        }
        tracing::info!("stopped after {} s", self.started.elapsed().as_secs());
        for done in waiting {
            let _ = done.send(());
        }
        // Another thread sends the answer to `ctl stop`.
        let start = Instant::now();
        while self.open_connections.load(Relaxed) > 0 && start.elapsed() < ANSWER_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Last of all: the thread of the socket would make it again.
        let _ = std::fs::remove_file(&self.config.control);
    }
}
