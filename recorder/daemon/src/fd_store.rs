//! The fd store, which holds the memory areas of live processes while no daemon runs, so that the
//! next daemon continues where the last one stopped or was killed. It is systemd's descriptor store
//! where there is one, otherwise a small process that does nothing else.
//!
//! The process receives [`Message`]s, each in one packet of its socket.

use super::notify::Notify;
use heaptape_recorder::os::crash::{self, Role};
use heaptape_recorder::os::poll;
use heaptape_recorder::os::sys::{self, Mapping};
use heaptape_recorder::session::keeper::{FILES, Held, Keeper, Request, Store};
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::Release;
use std::time::{Duration, Instant};

/// How long the fd store waits for the next daemon; then the programs run untraced.
const NO_DAEMON_TIMEOUT: Duration = Duration::from_secs(600);
/// How long it holds the areas of processes that have ended.
const ENDED_PROCESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which the fd store must start, and answer.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checking whether the store is still needed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const MAX_PROCESSES: usize = 16_384;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE_LEN: usize = 256;

/// A message from a daemon to the process of the fd store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Message {
    Keeper(Request),
    /// Send everything: each key with its descriptors, and then [`END_OF_LIST`].
    List,
    /// End the process. Programs whose areas it still holds then run untraced.
    End,
}

/// The last reply to [`Message::List`].
const END_OF_LIST: &str = ".";

impl Message {
    /// Sends the message to the process of the fd store.
    fn send(&self, fd_store: &OwnedFd, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        Ok(sys::send_files(sys::fd(fd_store), &serde_json::to_vec(self)?, files)?)
    }
}

#[derive(Debug)]
pub enum FdStore {
    /// The descriptor store of systemd.
    Store(Notify),
    Process(OwnedFd),
    /// There is no store.
    Nobody,
}

impl FdStore {
    /// Finds the fd store, or starts one, and returns the processes in it. `passed` are descriptors
    /// that systemd passed to this process.
    pub fn find<N: DeserializeOwned>(
        path: &Path,
        passed: Vec<(String, OwnedFd)>,
        has_store: bool,
    ) -> (FdStore, Vec<Held<N>>) {
        if has_store {
            let mut store = Store::default();
            passed.into_iter().for_each(|(name, file)| store.0.entry(name).or_default().push(file));
            return (FdStore::Store(Notify::find()), store.into_held());
        }
        match connect(path).or_else(|_| start(path)).and_then(|fd_store| Ok((request_all(&fd_store)?, fd_store))) {
            Ok((store, fd_store)) => (FdStore::Process(fd_store), store.into_held()),
            Err(error) => {
                tracing::warn!("no fd store: processes will not be recorded after a restart of the daemon: {error}");
                (FdStore::Nobody, Vec::new())
            }
        }
    }

    pub fn end(&self) {
        if let FdStore::Process(fd_store) = self {
            let _ = Message::End.send(fd_store, &[]);
        }
    }
}

impl Keeper for FdStore {
    fn is_there(&self) -> bool {
        !matches!(self, FdStore::Nobody)
    }

    fn send(&mut self, request: Request, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        match (self, request) {
            (FdStore::Store(notify), Request::Keep(key)) => notify.store(&key, files)?,
            (FdStore::Store(notify), Request::Release(key)) => {
                notify.send_state(&format!("FDSTOREREMOVE=1\nFDNAME={key}"));
            }
            (FdStore::Process(fd_store), request) => Message::Keeper(request).send(fd_store, files)?,
            (FdStore::Nobody, _) => {}
        }
        Ok(())
    }
}

fn stream() -> nix::Result<OwnedFd> {
    let (family, kind) = (socket::AddressFamily::Unix, socket::SockType::SeqPacket);
    socket::socket(family, kind, socket::SockFlag::SOCK_CLOEXEC, None)
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream()?;
    socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    let peer = socket::getsockopt(&socket, sockopt::PeerCredentials)?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the fd store belongs to another user"));
    }
    Ok(socket)
}

/// Starts the process of the fd store: this program, in a session of its own.
fn start(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let _ = std::fs::remove_file(path);
    let mut command = Command::new("/proc/self/exe");
    command.arg("daemon").arg("--keep-for-next").arg(path).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    // The thread reaps the process, which outlives this one or ends on request.
    crash::spawn("fd-store", move || child.wait())?;
    let start_time = Instant::now();
    loop {
        match connect(path) {
            Err(_) if start_time.elapsed() < START_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            connected => return connected,
        }
    }
}

fn request_all(fd_store: &OwnedFd) -> io::Result<Store> {
    Message::List.send(fd_store, &[])?;
    let mut all = Store::default();
    loop {
        let mut wait = [PollFd::new(sys::fd(fd_store), PollFlags::POLLIN)];
        if nix::poll::poll(&mut wait, PollTimeout::from(START_TIMEOUT.as_millis() as u16))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; MAX_MESSAGE_LEN];
        let (count, files) = sys::receive_files::<FILES>(sys::fd(fd_store), &mut bytes)?;
        let key = String::from_utf8_lossy(&bytes[..count]).into_owned();
        if count == 0 || key == END_OF_LIST {
            return Ok(all);
        }
        all.0.insert(key, files);
    }
}

/// The process of the fd store: holds descriptors until it is requested to end, or until no daemon
/// has come for a long time.
///
/// # Errors
/// When it cannot listen.
pub fn run(path: &Path) -> io::Result<()> {
    crash::set_role(Role::FdStore);
    let listener = stream()?;
    socket::bind(listener.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    socket::listen(&listener, socket::Backlog::new(4).unwrap_or(socket::Backlog::MAXCONN))?;
    let mut server = Server { listener, daemon: None, daemon_gone: Instant::now(), store: Store::default() };
    let outcome = server.serve();
    // No daemon will read these areas any more.
    for mapping in server.store.0.values().flatten().filter_map(|file| Mapping::adopt(file).ok()) {
        mapping.header().state.store(wire::area::CLOSED, Release);
    }
    let _ = std::fs::remove_file(path);
    outcome
}

/// The state of the process of the fd store.
#[derive(Debug)]
struct Server {
    listener: OwnedFd,
    /// Connection to the daemon that runs.
    daemon: Option<OwnedFd>,
    /// When the last daemon ended.
    daemon_gone: Instant,
    store: Store,
}

impl Server {
    /// Serves daemons until the process is not needed any more.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let all = std::iter::once(sys::fd(&self.listener)).chain(self.daemon.as_ref().map(sys::fd));
            let ready = poll::wait(all, CHECK_INTERVAL)?;
            if ready.get(1) == Some(&true) && self.receive().is_break() {
                return Ok(());
            }
            if ready[0] {
                self.accept();
            }
            if self.daemon.is_none() && !self.waits_for_daemon() {
                return Ok(());
            }
        }
    }

    /// Receives a message from the daemon, and obeys it. Breaks when the process is to end.
    fn receive(&mut self) -> ControlFlow<()> {
        let Some(daemon) = self.daemon.take() else { return ControlFlow::Continue(()) };
        let mut bytes = [0; MAX_MESSAGE_LEN];
        let (count, files) = sys::receive_files::<FILES>(sys::fd(&daemon), &mut bytes).unwrap_or_default();
        if count == 0 {
            self.daemon_gone = Instant::now();
            return ControlFlow::Continue(());
        }
        match serde_json::from_slice(&bytes[..count]) {
            Ok(Message::Keeper(Request::Keep(_))) if self.store.0.len() >= MAX_PROCESSES => {}
            Ok(Message::Keeper(request)) => self.store.obey(request, files),
            Ok(Message::List) => self.list(&daemon),
            Ok(Message::End) => return ControlFlow::Break(()),
            Err(_) => {}
        }
        self.daemon = Some(daemon);
        ControlFlow::Continue(())
    }

    /// Sends all keys with their descriptors.
    fn list(&self, daemon: &OwnedFd) {
        for (key, files) in &self.store.0 {
            let files: Vec<_> = files.iter().map(sys::fd).collect();
            let _ = sys::send_files(sys::fd(daemon), key.as_bytes(), &files);
        }
        let _ = sys::send_files(sys::fd(daemon), END_OF_LIST.as_bytes(), &[]);
    }

    /// Accepts a daemon of the same user. It replaces the one before, which is about to notice it.
    fn accept(&mut self) {
        let own = nix::unistd::geteuid().as_raw();
        if let Ok(socket) = sys::accept(sys::fd(&self.listener))
            && socket::getsockopt(&socket, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == own)
        {
            let _ = fcntl(&socket, FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()));
            self.daemon = Some(socket);
        }
    }

    /// Returns whether the process waits for a daemon, while none runs.
    fn waits_for_daemon(&mut self) -> bool {
        let gone = self.daemon_gone.elapsed();
        if gone > ENDED_PROCESS_TIMEOUT {
            // In the order in which a recorder sends them, the process is the second one.
            self.store.0.retain(|_, files| files.get(1).is_some_and(|process| !has_ended(process)));
        }
        gone <= START_TIMEOUT || (!self.store.0.is_empty() && gone <= NO_DAEMON_TIMEOUT)
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(sys::fd(process), PollFlags::POLLIN)];
    nix::poll::poll(&mut wait, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
