//! The fd store, which holds the memory areas of live processes while no daemon runs, so that the
//! next daemon continues where the last one stopped or was killed. It is systemd's descriptor store
//! where there is one, otherwise a small process that does nothing else.
//!
//! The process receives [`Message`]s, each in one packet of its socket. A name contains everything
//! that the next daemon needs and cannot read from the kernel.

use super::config::Choice;
use super::notify::Notify;
use heaptape_recorder::os::crash::{self, Role};
use heaptape_recorder::os::poll;
use heaptape_recorder::os::sys::{self, Mapping};
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, sockopt};
use std::collections::BTreeMap;
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
/// Maximum number of processes in the store.
const MAX_PROCESSES: usize = 16_384;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE_LEN: usize = 256;

/// The name under which a process is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    /// Process id, in the daemon's pid namespace.
    pub pid: u32,
    /// User id of the process.
    pub uid: u32,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    /// What is kept of the process.
    pub choice: Choice,
    /// Mean number of bytes between samples.
    pub interval: u64,
}

impl Name {
    fn text(&self) -> String {
        let Name { pid, uid, hello_pid, choice, interval } = self;
        // systemd separates names by colons.
        format!("{pid}-{uid}-{hello_pid}-{interval}-{}", choice.to_string().replace(':', "~"))
    }

    fn parse(text: &str) -> Option<Name> {
        let mut fields = text.splitn(5, '-');
        let mut number = || fields.next()?.parse::<u64>().ok();
        let (pid, uid) = (u32::try_from(number()?).ok()?, u32::try_from(number()?).ok()?);
        let (hello_pid, interval) = (u32::try_from(number()?).ok()?, number()?);
        let choice = fields.next()?.replace('~', ":").parse().ok()?;
        Some(Name { pid, uid, hello_pid, choice, interval })
    }
}

/// A message from a daemon to the process of the fd store.
#[derive(Clone, Debug, PartialEq)]
enum Message {
    /// Store the two descriptors that come with the message, area and process, under a name.
    Hold(String),
    /// Remove the descriptors of a name.
    Release(String),
    /// Send everything: each name with its descriptors, and then [`END_OF_LIST`].
    List,
    /// End the process. Programs whose areas it still holds then run untraced.
    End,
}

/// The last reply to [`Message::List`].
const END_OF_LIST: &str = ".";

impl Message {
    fn text(&self) -> String {
        match self {
            Message::Hold(name) => format!("+{name}"),
            Message::Release(name) => format!("-{name}"),
            Message::List => "?".into(),
            Message::End => "!".into(),
        }
    }

    fn parse(text: &str) -> Option<Message> {
        let mut characters = text.chars();
        let (kind, name) = (characters.next()?, characters.as_str());
        match kind {
            '+' => Some(Message::Hold(name.into())),
            '-' => Some(Message::Release(name.into())),
            '?' => Some(Message::List),
            '!' => Some(Message::End),
            _ => None,
        }
    }

    /// Sends the message to the process of the fd store.
    fn send(&self, fd_store: &OwnedFd, files: &[BorrowedFd<'_>]) -> nix::Result<()> {
        sys::send_files(sys::fd(fd_store), self.text().as_bytes(), files)
    }
}

/// A process from the store.
#[derive(Debug)]
pub struct Held {
    /// Name of the process in the store.
    pub name: Name,
    /// Descriptor of the memory area.
    pub area: OwnedFd,
    pub process: OwnedFd,
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
    pub fn find(path: &Path, passed: Vec<(String, OwnedFd)>, has_store: bool) -> (FdStore, Vec<Held>) {
        if has_store {
            let mut pairs: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
            passed.into_iter().for_each(|(name, file)| pairs.entry(name).or_default().push(file));
            return (
                FdStore::Store(Notify::find()),
                pairs.into_iter().filter_map(|(name, files)| held(&name, files)).collect(),
            );
        }
        match connect(path).or_else(|_| start(path)).and_then(|fd_store| Ok((request_all(&fd_store)?, fd_store))) {
            Ok((held, fd_store)) => (FdStore::Process(fd_store), held),
            Err(error) => {
                tracing::warn!("no fd store: processes will not be recorded after a restart of the daemon: {error}");
                (FdStore::Nobody, Vec::new())
            }
        }
    }

    /// Stores the descriptors of a process.
    pub fn hold(&self, name: &Name, area: &OwnedFd, process: &OwnedFd) {
        let files = [sys::fd(area), sys::fd(process)];
        let result = match self {
            FdStore::Store(notify) => notify.store(&name.text(), &files),
            FdStore::Process(fd_store) => Message::Hold(name.text()).send(fd_store, &files),
            FdStore::Nobody => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!("process {} is not stored for the next daemon: {error}", name.pid);
        }
    }

    /// Removes the descriptors of a process.
    pub fn release(&self, name: &Name) {
        match self {
            FdStore::Store(notify) => notify.send_state(&format!("FDSTOREREMOVE=1\nFDNAME={}", name.text())),
            FdStore::Process(fd_store) => {
                let _ = Message::Release(name.text()).send(fd_store, &[]);
            }
            FdStore::Nobody => {}
        }
    }

    /// Ends the fd store.
    pub fn end(&self) {
        if let FdStore::Process(fd_store) = self {
            let _ = Message::End.send(fd_store, &[]);
        }
    }
}

/// Returns a process from its name and descriptors. Only an area has seals: systemd returns
/// descriptors of the same name in arbitrary order.
fn held(name: &str, files: Vec<OwnedFd>) -> Option<Held> {
    let name = Name::parse(name)?;
    let (areas, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| fcntl(file, FcntlArg::F_GET_SEALS).is_ok());
    Some(Held { name, area: areas.into_iter().next()?, process: others.into_iter().next()? })
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

fn request_all(fd_store: &OwnedFd) -> io::Result<Vec<Held>> {
    Message::List.send(fd_store, &[])?;
    let mut all = Vec::new();
    loop {
        let mut wait = [PollFd::new(sys::fd(fd_store), PollFlags::POLLIN)];
        if nix::poll::poll(&mut wait, PollTimeout::from(START_TIMEOUT.as_millis() as u16))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; MAX_MESSAGE_LEN];
        let (count, files) = sys::receive_files(sys::fd(fd_store), &mut bytes)?;
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        if count == 0 || text == END_OF_LIST {
            return Ok(all);
        }
        all.extend(held(&text, files));
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
    let mut server = Server { listener, daemon: None, daemon_gone: Instant::now(), held: BTreeMap::new() };
    let outcome = server.serve();
    // No daemon will read these areas any more.
    for area in server.held.values().filter_map(|files| files.first()) {
        if let Ok(mapping) = Mapping::adopt(area) {
            mapping.header().state.store(wire::area::CLOSED, Release);
        }
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
    /// Descriptors by name: area and process.
    held: BTreeMap<String, Vec<OwnedFd>>,
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
        let (count, files) = sys::receive_files(sys::fd(&daemon), &mut bytes).unwrap_or_default();
        if count == 0 {
            self.daemon_gone = Instant::now();
            return ControlFlow::Continue(());
        }
        match Message::parse(&String::from_utf8_lossy(&bytes[..count])) {
            Some(Message::Hold(name)) if self.held.len() < MAX_PROCESSES => drop(self.held.insert(name, files)),
            Some(Message::Release(name)) => drop(self.held.remove(&name)),
            Some(Message::List) => self.list(&daemon),
            Some(Message::End) => return ControlFlow::Break(()),
            Some(Message::Hold(_)) | None => {}
        }
        self.daemon = Some(daemon);
        ControlFlow::Continue(())
    }

    /// Sends all names with their descriptors.
    fn list(&self, daemon: &OwnedFd) {
        for (name, files) in &self.held {
            let files: Vec<_> = files.iter().map(sys::fd).collect();
            let _ = sys::send_files(sys::fd(daemon), name.as_bytes(), &files);
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
            self.held.retain(|_, files| files.get(1).is_some_and(|process| !has_ended(process)));
        }
        gone <= START_TIMEOUT || (!self.held.is_empty() && gone <= NO_DAEMON_TIMEOUT)
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(sys::fd(process), PollFlags::POLLIN)];
    nix::poll::poll(&mut wait, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_is_distinguished_from_process() {
        let process = || sys::process(std::process::id()).unwrap_or_else(|error| panic!("{error}"));
        let params = wire::area::Params { ring_bytes: 4096, first_ring_shift: 0, slots: 1, nodes: 16 };
        let area = || Mapping::create(params).unwrap_or_else(|error| panic!("{error}")).1;
        for files in [vec![area(), process()], vec![process(), area()]] {
            let held = held("7-0-7-0-trace", files).unwrap_or_else(|| panic!("no process was found"));
            assert!(fcntl(&held.area, FcntlArg::F_GET_SEALS).is_ok());
            assert!(fcntl(&held.process, FcntlArg::F_GET_SEALS).is_err() && !has_ended(&held.process));
        }
        assert!(held("7-0-7-0-trace", vec![process(), process()]).is_none());
    }

    #[test]
    fn messages_are_parsed_as_written() {
        let name = || "7-0-7-0-trace".to_owned();
        for message in [Message::Hold(name()), Message::Release(name()), Message::List, Message::End] {
            assert_eq!(Message::parse(&message.text()), Some(message));
        }
        assert_eq!((Message::parse(""), Message::parse("*7"), Message::parse("é")), (None, None, None));
    }

    #[test]
    fn names_are_parsed_as_written() {
        for choice in ["off", "profile:2%", "trace:65536", "flight"] {
            let choice = choice.parse().unwrap_or_else(|error| panic!("{error}"));
            let name = Name { pid: 4711, uid: 1000, hello_pid: 7, choice, interval: 1 << 20 };
            assert!(!name.text().contains(':'));
            assert_eq!(Name::parse(&name.text()), Some(name));
        }
        for wrong in ["", "1-2-3-4", "1-2-3-4-on", "x-2-3-4-off", "99999999999-2-3-4-off"] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
    }
}
