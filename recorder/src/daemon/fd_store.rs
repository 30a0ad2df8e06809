//! The fd store, which holds the memory areas of live processes while no daemon runs, so that the
//! next daemon continues where the last one stopped or was killed. It is systemd's descriptor store
//! where there is one, otherwise a small process that does nothing else.
//!
//! The process receives messages: `+NAME` with two descriptors (area, process) stores them, `-NAME`
//! removes them, `?` requests all (each is sent as `NAME` with its two descriptors, then `.`), `!`
//! ends the process. A name contains everything that the next daemon needs and cannot read from the
//! kernel.

use super::config::Choice;
use super::notify::Notify;
use crate::crash::{self, Role};
use crate::readiness;
use crate::sys::{self, Mapping};
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, sockopt};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
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

/// A process from the store.
#[derive(Debug)]
pub struct Held {
    /// Name of the process in the store.
    pub name: Name,
    /// Descriptor of the memory area.
    pub area: OwnedFd,
    /// Descriptor of the process.
    pub process: OwnedFd,
}

/// The connection to the fd store.
#[derive(Debug)]
pub enum FdStore {
    /// The descriptor store of systemd.
    Store(Notify),
    /// The process of heaptape.
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
            FdStore::Process(fd_store) => {
                sys::send_files(sys::fd(fd_store), format!("+{}", name.text()).as_bytes(), &files)
            }
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
                let _ = sys::send_files(sys::fd(fd_store), format!("-{}", name.text()).as_bytes(), &[]);
            }
            FdStore::Nobody => {}
        }
    }

    /// Ends the fd store.
    pub fn end(&self) {
        if let FdStore::Process(fd_store) = self {
            let _ = sys::send_files(sys::fd(fd_store), b"!", &[]);
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

/// Requests all processes in the store.
fn request_all(fd_store: &OwnedFd) -> io::Result<Vec<Held>> {
    sys::send_files(sys::fd(fd_store), b"?", &[])?;
    let mut all = Vec::new();
    loop {
        let mut wait = [PollFd::new(sys::fd(fd_store), PollFlags::POLLIN)];
        if nix::poll::poll(&mut wait, PollTimeout::from(START_TIMEOUT.as_millis() as u16))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; MAX_MESSAGE_LEN];
        let (count, files) = sys::receive_files(sys::fd(fd_store), &mut bytes)?;
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        if count == 0 || text == "." {
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
pub fn run(path: &PathBuf) -> io::Result<()> {
    crash::set_role(Role::FdStore);
    let listener = stream()?;
    socket::bind(listener.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    socket::listen(&listener, socket::Backlog::new(4).unwrap_or(socket::Backlog::MAXCONN))?;
    let mut held: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
    let mut daemon: Option<OwnedFd> = None;
    let mut daemon_gone = Instant::now();
    let own = nix::unistd::geteuid().as_raw();
    let outcome = loop {
        let all = std::iter::once(sys::fd(&listener)).chain(daemon.as_ref().map(sys::fd));
        let ready = match readiness::wait(all, CHECK_INTERVAL) {
            Ok(ready) => ready,
            Err(error) => break Err(error),
        };
        if ready.get(1) == Some(&true)
            && let Some(socket) = daemon.take()
        {
            let mut bytes = [0; MAX_MESSAGE_LEN];
            let received = sys::receive_files(sys::fd(&socket), &mut bytes);
            let (count, files) = received.unwrap_or_default();
            match bytes[..count].split_first() {
                None => daemon_gone = Instant::now(),
                Some((b'!', _)) => break Ok(()),
                Some((kind, name)) => {
                    let name = String::from_utf8_lossy(name).into_owned();
                    match kind {
                        b'+' if held.len() < MAX_PROCESSES => drop(held.insert(name, files)),
                        b'-' => drop(held.remove(&name)),
                        b'?' => {
                            for (name, files) in &held {
                                let files: Vec<_> = files.iter().map(sys::fd).collect();
                                let _ = sys::send_files(sys::fd(&socket), name.as_bytes(), &files);
                            }
                            let _ = sys::send_files(sys::fd(&socket), b".", &[]);
                        }
                        _ => {}
                    }
                    daemon = Some(socket);
                }
            }
        }
        if ready[0]
            && let Ok(socket) = sys::accept(sys::fd(&listener))
            && socket::getsockopt(&socket, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == own)
        {
            // A second daemon replaces the first, which is about to notice it.
            let _ = fcntl(&socket, FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()));
            daemon = Some(socket);
        }
        if daemon.is_none() && daemon_gone.elapsed() > ENDED_PROCESS_TIMEOUT {
            held.retain(|_, files| files.get(1).is_some_and(|process| !has_ended(process)));
        }
        if daemon.is_none()
            && (held.is_empty() || daemon_gone.elapsed() > NO_DAEMON_TIMEOUT)
            && daemon_gone.elapsed() > START_TIMEOUT
        {
            break Ok(());
        }
    };
    // No daemon will read these areas any more.
    for area in held.values().filter_map(|files| files.first()) {
        if let Ok(mapping) = Mapping::adopt(area) {
            mapping.header().state.store(wire::area::CLOSED, Release);
        }
    }
    let _ = std::fs::remove_file(path);
    outcome
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
        let params = wire::area::Params { ring_bytes: 4096, slots: 1, nodes: 16 };
        let area = || Mapping::create(params).unwrap_or_else(|error| panic!("{error}")).1;
        for files in [vec![area(), process()], vec![process(), area()]] {
            let held = held("7-0-7-0-trace", files).unwrap_or_else(|| panic!("no process was found"));
            assert!(fcntl(&held.area, FcntlArg::F_GET_SEALS).is_ok());
            assert!(fcntl(&held.process, FcntlArg::F_GET_SEALS).is_err() && !has_ended(&held.process));
        }
        assert!(held("7-0-7-0-trace", vec![process(), process()]).is_none());
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
