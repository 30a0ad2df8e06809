//! Who holds the areas of live processes while no daemon runs, so that the next one goes on where
//! the last one stopped or was killed: systemd's descriptor store where there is one, else a small
//! process of our own that does nothing else.
//!
//! The fd store speaks in messages: `+NAME` with two descriptors (area, process) holds, `-NAME`
//! lets go, `?` asks for all (each comes as `NAME` with its two, then `.`), `!` ends it. A name
//! says all that the next daemon must know and cannot ask the kernel.

use super::config::Choice;
use super::notify::Notify;
use crate::crash::{self, Role};
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

/// So long the fd store waits for the next daemon; then the programs run on untraced.
const PATIENCE: Duration = Duration::from_secs(600);
/// And so long with those whose process has ended.
const PATIENCE_ENDED: Duration = Duration::from_secs(60);
/// Time for the fd store to start, and to answer.
const SOON: Duration = Duration::from_secs(5);
/// Most processes that are held.
const MOST: usize = 16_384;
/// A message has at most so many bytes.
const MESSAGE: usize = 256;

/// What a name says.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    /// Process id.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The process as it sees itself.
    pub hello_pid: u32,
    /// What is kept of it.
    pub choice: Choice,
    /// Mean bytes between its samples.
    pub interval: u64,
}

impl Name {
    fn text(&self) -> String {
        let Name { pid, uid, hello_pid, choice, interval } = self;
        // systemd separates names by colons.
        format!("{pid}-{uid}-{hello_pid}-{interval}-{}", choice.to_string().replace(':', "~"))
    }

    fn parse(text: &str) -> Option<Name> {
        let mut parts = text.splitn(5, '-');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (pid, uid) = (u32::try_from(number()?).ok()?, u32::try_from(number()?).ok()?);
        let (hello_pid, interval) = (u32::try_from(number()?).ok()?, number()?);
        let choice = parts.next()?.replace('~', ":").parse().ok()?;
        Some(Name { pid, uid, hello_pid, choice, interval })
    }
}

/// A process that was held.
#[derive(Debug)]
pub struct Held {
    /// Who.
    pub name: Name,
    /// Its area.
    pub area: OwnedFd,
    /// The process.
    pub process: OwnedFd,
}

/// The way to whoever holds.
#[derive(Debug)]
pub enum FdStore {
    /// systemd.
    Store(Notify),
    /// Our own fd store.
    Process(OwnedFd),
    /// Nobody.
    Nobody,
}

impl FdStore {
    /// Finds who holds, and gets what is held. `passed` are descriptors that systemd gave back.
    pub fn find(path: &Path, passed: Vec<(String, OwnedFd)>, has_store: bool) -> (FdStore, Vec<Held>) {
        if has_store {
            let mut pairs: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
            passed.into_iter().for_each(|(name, file)| pairs.entry(name).or_default().push(file));
            return (
                FdStore::Store(Notify::find()),
                pairs.into_iter().filter_map(|(name, files)| held(&name, files)).collect(),
            );
        }
        match connect(path).or_else(|_| start(path)).and_then(|fd_store| Ok((ask(&fd_store)?, fd_store))) {
            Ok((held, fd_store)) => (FdStore::Process(fd_store), held),
            Err(error) => {
                tracing::warn!("nobody holds what is recorded while the daemon is away: {error}");
                (FdStore::Nobody, Vec::new())
            }
        }
    }

    /// Holds a process.
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
            tracing::warn!("process {} is not held for the next daemon: {error}", name.pid);
        }
    }

    /// Lets go of it.
    pub fn release(&self, name: &Name) {
        match self {
            FdStore::Store(notify) => notify.tell(&format!("FDSTOREREMOVE=1\nFDNAME={}", name.text())),
            FdStore::Process(fd_store) => {
                let _ = sys::send_files(sys::fd(fd_store), format!("-{}", name.text()).as_bytes(), &[]);
            }
            FdStore::Nobody => {}
        }
    }

    /// Nothing is to be held any more.
    pub fn end(&self) {
        if let FdStore::Process(fd_store) = self {
            let _ = sys::send_files(sys::fd(fd_store), b"!", &[]);
        }
    }
}

/// Only an area has seals. systemd gives descriptors of one name back in any order.
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
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "somebody else's keeper"));
    }
    Ok(socket)
}

/// Starts a fd store: this program again, in a session of its own.
fn start(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let _ = std::fs::remove_file(path);
    let mut command = Command::new("/proc/self/exe");
    command.arg("daemon").arg("--keep-for-next").arg(path).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    // Somebody must hear of its end; it outlives us or ends when we want.
    crash::spawn("keeper", move || child.wait())?;
    let begun = Instant::now();
    loop {
        match connect(path) {
            Err(_) if begun.elapsed() < SOON => std::thread::sleep(Duration::from_millis(5)),
            connected => return connected,
        }
    }
}

fn ask(fd_store: &OwnedFd) -> io::Result<Vec<Held>> {
    sys::send_files(sys::fd(fd_store), b"?", &[])?;
    let mut all = Vec::new();
    loop {
        let mut wait = [PollFd::new(sys::fd(fd_store), PollFlags::POLLIN)];
        if nix::poll::poll(&mut wait, PollTimeout::from(SOON.as_millis() as u16))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; MESSAGE];
        let (count, files) = sys::receive_files(sys::fd(fd_store), &mut bytes)?;
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        if count == 0 || text == "." {
            return Ok(all);
        }
        all.extend(held(&text, files));
    }
}

/// The fd store's process: holds descriptors until it is asked to end, or until no daemon has come
/// for long.
///
/// # Errors
/// When it cannot listen.
pub fn keep(path: &PathBuf) -> io::Result<()> {
    crash::set_role(Role::FdStore);
    let listener = stream()?;
    socket::bind(listener.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    socket::listen(&listener, socket::Backlog::new(4).unwrap_or(socket::Backlog::MAXCONN))?;
    let mut held: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
    let mut daemon: Option<OwnedFd> = None;
    let mut alone = Instant::now();
    let own = nix::unistd::geteuid().as_raw();
    let outcome = loop {
        let mut waits = vec![PollFd::new(sys::fd(&listener), PollFlags::POLLIN)];
        waits.extend(daemon.as_ref().map(|daemon| PollFd::new(sys::fd(daemon), PollFlags::POLLIN)));
        match nix::poll::poll(&mut waits, PollTimeout::from(1000u16)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => break Err(error.into()),
        }
        let ready: Vec<bool> = waits.iter().map(|wait| wait.any().unwrap_or(false)).collect();
        drop(waits);
        if ready.get(1) == Some(&true)
            && let Some(socket) = daemon.take()
        {
            let mut bytes = [0; MESSAGE];
            let received = sys::receive_files(sys::fd(&socket), &mut bytes);
            let (count, files) = received.unwrap_or_default();
            match bytes[..count].split_first() {
                None => alone = Instant::now(),
                Some((b'!', _)) => break Ok(()),
                Some((kind, name)) => {
                    let name = String::from_utf8_lossy(name).into_owned();
                    match kind {
                        b'+' if held.len() < MOST => drop(held.insert(name, files)),
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
            // A second daemon is the one that counts: the first is about to find out.
            let _ = fcntl(&socket, FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()));
            daemon = Some(socket);
        }
        if daemon.is_none() && alone.elapsed() > PATIENCE_ENDED {
            held.retain(|_, files| files.get(1).is_some_and(|process| !has_ended(process)));
        }
        if daemon.is_none() && (held.is_empty() || alone.elapsed() > PATIENCE) && alone.elapsed() > SOON {
            break Ok(());
        }
    };
    // Nobody will read these any more.
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
    fn an_area_is_told_from_a_process() {
        let process = || sys::process(std::process::id()).unwrap_or_else(|error| panic!("{error}"));
        let params = wire::area::Params { ring_bytes: 4096, slots: 1, nodes: 16 };
        let area = || Mapping::create(params).unwrap_or_else(|error| panic!("{error}")).1;
        for files in [vec![area(), process()], vec![process(), area()]] {
            let held = held("7-0-7-0-trace", files).unwrap_or_else(|| panic!("nothing is held"));
            assert!(fcntl(&held.area, FcntlArg::F_GET_SEALS).is_ok());
            assert!(fcntl(&held.process, FcntlArg::F_GET_SEALS).is_err() && !has_ended(&held.process));
        }
        assert!(held("7-0-7-0-trace", vec![process(), process()]).is_none());
    }

    #[test]
    fn names_come_back() {
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
