//! Starts the daemon: its sockets, threads and folders, and what the last daemon left to it.

use super::Service;
use super::attaching::Attaches;
use crate::attacher::Attacher;
use crate::budget::Budgets;
use crate::config::Config;
use crate::control::{self, Controller, Wake};
use crate::entrance::Entrance;
use crate::epochs::Epochs;
use crate::folders::{close_folder_of, make_parent_folder, make_state_folder, open_folder_of};
use crate::http::{Server, Token};
use crate::incidents::Incidents;
use crate::inquiries::Inquiries;
use crate::late::LateStarts;
use crate::log_limit::LogLimit;
use crate::notify::{self, Notify};
use crate::orphans::Orphans;
use crate::out_of_memory::OutOfMemory;
use crate::pressure::Pressure;
use crate::push::Pusher;
use crate::registry::Registry;
use crate::reload::Reread;
use crate::ship::Shipper;
use crate::streams::Streams;
use crate::successor::Successor;
use crate::verdicts::Verdicts;
use crossbeam_channel::unbounded;
use heaptape_recorder::inject::Loader;
use heaptape_recorder::inject::patch::Planner;
use heaptape_recorder::os::clock::Clock;
use heaptape_recorder::os::crash;
use heaptape_recorder::pipeline::Stages;
use heaptape_recorder::run::admission::{self, Admissions};
use heaptape_recorder::session::Boards;
use heaptape_recorder::session::listener::{self, Listener};
use heaptape_recorder::target::name_saver::Saver;
use heaptape_recorder::target::proc;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::SockType;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// Folder of the symbols that were found in large programs, in the state folder.
const FOUND_SYMBOLS: &str = "symbols";

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
    control::clear(path, || Ok(listener::probe(path, kind)?))?;
    let socket = listener::listen(path, kind)?;
    // Programs of all users connect here; the kernel identifies them.
    let mode = if config.serves_all { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    open_folder_of(path, config)?;
    Ok(socket)
}

/// Blocks the signals that the service reads from the returned descriptor.
fn signals() -> io::Result<SignalFd> {
    let mut held = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGXFSZ]
        .into_iter()
        .for_each(|signal| held.add(signal));
    held.thread_block()?;
    Ok(SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Returns the socket of `ctl`: that of systemd, or a new one.
fn controller(config: &Config, passed: &mut Vec<(String, OwnedFd)>) -> io::Result<Controller> {
    match passed.iter().position(|(name, _)| name == "control") {
        Some(index) => Ok(Controller { listener: control::passed(passed.swap_remove(index).1), path: None }),
        None => {
            make_parent_folder(&config.control)?;
            let listener = control::listen(&config.control, 0o600)?;
            close_folder_of(&config.control, config);
            Ok(Controller { listener, path: Some(config.control.clone()) })
        }
    }
}

/// Returns the two ends of the socket pair by which other threads wake the service.
fn wake_pair() -> io::Result<(UnixStream, Wake)> {
    let (receiver, sender) = UnixStream::pair()?;
    receiver.set_nonblocking(true)?;
    sender.set_nonblocking(true)?;
    Ok((receiver, Arc::new(sender)))
}

impl Service {
    /// Starts the daemon, with the processes of the last one.
    pub(super) fn start(config: Config, reread: Reread, saver: Option<Arc<Saver>>) -> io::Result<Service> {
        let signals = signals()?;
        let mut passed = notify::sockets();
        make_state_folder(&config.state, config.serves_all)?;
        let controller = controller(&config, &mut passed)?;
        let listener = listener(&config, &mut passed)?;
        let (successor, held) = Successor::find(&config, passed)?;
        let clock = Clock::choose();
        let stages = Stages::start(clock)?;
        let epochs = Epochs::start(&config, saver.clone())?;
        let shipper = Shipper::start(&config, || epochs.disk().sealed())?;
        let (pusher, verdicts) = (Pusher::start(&config)?, Verdicts::start(&config)?);
        let (wake_receiver, wake) = wake_pair()?;
        let planner = Planner::new(&[]).stored_in(Some(&config.state.join(FOUND_SYMBOLS)));
        let loader = Loader::new(config.standalone, planner.clone());
        let reopen = {
            let config = config.clone();
            move |path: &Path, kind| own_socket(&config, path, kind)
        };
        let entrance =
            Entrance::open(listener, Box::new(reopen), config.budget, loader, Arc::clone(&wake), stages.pages())?;
        let attacher = Attacher::start(config.standalone, clock, Arc::clone(&wake))?;
        let (request_sender, requests) = unbounded();
        let open_connections = Arc::new(AtomicUsize::new(0));
        let busy = Arc::clone(&open_connections);
        if let Some(address) = &config.metrics {
            let token = config.metrics_token.as_deref().map(Token::read).transpose()?;
            let server = Server::listen(address, token, &config.control)?;
            let (requests, wake) = (request_sender.clone(), Arc::clone(&wake));
            crash::spawn("metrics", move || server.run(requests, wake))?;
        }
        let control_wake = Arc::clone(&wake);
        crash::spawn("control", move || control::run(controller, request_sender, control_wake, busy))?;
        tracing::info!("serving programs at {}, keeping {}", config.socket.display(), config.state.display());
        let mut service = Service {
            reread,
            admissions: Admissions::new(clock, planner, saver),
            registry: Registry::default(),
            epochs,
            budgets: Budgets::new(config.budget),
            out_of_memory: OutOfMemory::start(),
            pressure: Pressure::new(config.triggers.pressure, config.cgroups.as_deref()),
            next_memory: 0,
            streams: Streams::start(&config, Arc::clone(&wake))?,
            successor,
            shipper,
            pusher,
            verdicts,
            boards: Boards::default(),
            incidents: Incidents::default(),
            late: LateStarts::default(),
            orphans: Orphans::search(&config, held.iter().map(|held| held.about.info.pid).collect())?,
            adopted: 0,
            log: LogLimit::default(),
            started: Instant::now(),
            last_check: Instant::now(),
            stages,
            entrance,
            inquiries: Inquiries::new(wake),
            attaches: Attaches::new(attacher),
            requests,
            wake_receiver,
            notify: Notify::find(),
            open_connections,
            signals,
            flushes: Vec::new(),
            stopping: None,
            config,
        };
        // It takes a while to measure, in which a program would wait.
        service.admissions.ticks_per_second();
        // The others have ended, or are found by their mappings.
        let alive: Vec<u32> = held.iter().map(|held| held.about.info.pid).chain(proc::pids()).collect();
        service.epochs.clear_flights(&alive);
        if !held.is_empty() {
            tracing::info!("{} processes of the last daemon are taken over", held.len());
        }
        held.into_iter().for_each(|held| admission::resume(&mut service, held));
        service.successor.remove_files_except(&alive)?;
        Ok(service)
    }
}
