//! The recorder's door: sockets to connect to, the hello that comes in through one, and the area
//! that goes out.
//!
//! A client is not trusted: it gets one message of a fixed length, a second to send it, no
//! descriptors are taken, and nobody waits for it. The kernel says who it is (`SO_PEERCRED`), not
//! the client. What begins as a trace or a profile does is no message, but a file that follows. A
//! user who leaves many connections silent loses the oldest of them and takes no connection away
//! from another user.

use crate::cgroup;
use crate::clock::Clock;
use crate::options::Options;
use crate::sys::{self, Mapping};
use formats::{mptl, mtrc};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{self, SockType};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};
use wire::area::{LIVE, MAGIC, Params};
use wire::hello::{HELLO_BYTES, Hello, MAX_NOTICE_PATH, Notice, Reply, UntracedReason};
use wire::{Layout, WIRE_VERSION, limits};

/// Connections that the kernel holds until they are accepted. They are accepted in microseconds,
/// and the next program waits for all of them, so a longer queue only helps a user who floods.
const BACKLOG: i32 = 512;
/// Connections accepted before other work is done.
const BATCH: usize = 256;
/// Time for the hello.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often connections are looked for that were silent for too long.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that may be silent at once, of one user and of all; the oldest goes first.
const MOST_SILENT_OF_USER: usize = 256;
const MOST_SILENT: usize = 1024;
/// The same of connections to a stream socket, where a person may be at the other end.
const MOST_SILENT_STREAMS: usize = 16;
/// Access rights of an unlisted socket's folder: others can pass it and not list it.
pub const PASSABLE: u32 = 0o711;
/// Name of an unlisted socket until it listens.
pub const FIRST_NAME: &str = "socket";
/// First event key of a connection; smaller ones are listening sockets.
const FIRST_CALLER: u64 = 16;

/// The listening sockets; files that were made for them are removed with it.
#[derive(Debug)]
pub struct Door {
    epoll: Epoll,
    listeners: Vec<Listener>,
    /// Silent connections by number, oldest first.
    silent: BTreeMap<u64, Caller>,
    /// Numbers of a user's silent connections, oldest first; those to stream sockets apart.
    by_user: HashMap<(u32, bool), VecDeque<u64>>,
    /// When those that were silent for too long are looked for next.
    look: Instant,
    next: u64,
    /// Closed to accept and refuse a connection when no other descriptor is left.
    spare: Option<File>,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: Option<PathBuf>,
    is_stream: bool,
    patience: Duration,
}

/// A connection that has not sent anything yet.
#[derive(Debug)]
struct Caller {
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    until: Instant,
    is_stream: bool,
}

/// A client that said hello and waits for the answer.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    /// What it says.
    pub hello: Hello,
    /// Its process id, as the kernel says.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Becomes readable when it ends.
    pub process: OwnedFd,
}

/// A client that sends a trace or a profile; none of it has been taken.
#[derive(Debug)]
pub struct Sender {
    /// Where it comes from.
    pub socket: OwnedFd,
    /// Process id, as the kernel says.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Whether it came through a stream socket, which keeps no message borders.
    pub is_stream: bool,
}

/// Why a connection was closed unheard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unheard {
    /// The recorder has no descriptor left.
    Descriptors,
    /// Its user has too many silent connections.
    Silent,
    /// Its user was not admitted.
    Denied,
}

/// What somebody at the door wants.
#[derive(Debug)]
pub enum Visit {
    /// To be recorded.
    Hello(Client),
    /// To have a file kept.
    File(Sender),
    /// To say that a program runs which cannot be.
    Notice {
        /// The process that says it, as the kernel knows it.
        from: u32,
        /// Whom it means; 0 for itself.
        pid: u32,
        /// Why.
        why: UntracedReason,
        /// The program's path.
        path: Vec<u8>,
    },
    /// Nothing that could be heard: the connection was closed.
    Unheard(u32, Unheard),
}

impl Door {
    /// Listens at a path for programs and senders.
    pub fn open(path: &Path) -> io::Result<Door> {
        let mut door = Door::new()?;
        door.add(listen(path, SockType::SeqPacket)?, Some(path.to_owned()), PATIENCE)?;
        Ok(door)
    }

    /// Listens at a path that all users can connect to who know it. The path appears once it can be
    /// connected to: a recorder that starts removes sockets of killed recorders, at which nobody
    /// listens. `/proc/net/unix` shows the first name only. The path's folder must be the socket's
    /// own: others can pass it from here on.
    pub fn open_unlisted(path: &Path) -> io::Result<Door> {
        let first = path.with_file_name(FIRST_NAME);
        let mut door = Door::open(&first)?;
        std::fs::set_permissions(&first, Permissions::from_mode(0o666))?;
        std::fs::rename(&first, path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::set_permissions(folder, Permissions::from_mode(PASSABLE))?;
        door.listeners.iter_mut().for_each(|listener| listener.path = Some(path.to_owned()));
        Ok(door)
    }

    /// A door without a socket.
    pub fn new() -> io::Result<Door> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(sys::io)?;
        let spare = File::open("/dev/null").ok();
        let (listeners, silent, by_user) = Default::default();
        Ok(Door { epoll, listeners, silent, by_user, look: Instant::now(), next: FIRST_CALLER, spare })
    }

    /// Adds a listening socket. `path` is a file to remove at the end; a socket that somebody else
    /// made has none. `patience` is the time that a connection may be silent.
    pub fn add(&mut self, socket: OwnedFd, path: Option<PathBuf>, patience: Duration) -> io::Result<()> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        // Whoever made it may have made it to wait.
        fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(sys::io)?;
        let is_stream = socket::getsockopt(&socket, socket::sockopt::SockType).map_err(sys::io)? == SockType::Stream;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, self.listeners.len() as u64);
        self.epoll.add(&socket, event).map_err(sys::io)?;
        self.listeners.push(Listener { socket, path, is_stream, patience });
        Ok(())
    }

    /// Whether its sockets were made by somebody else.
    pub fn is_passed(&self) -> bool {
        self.listeners.iter().any(|listener| listener.path.is_none())
    }

    /// What to wait for: readable when somebody has come or said something.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        std::iter::once(self.epoll.0.as_fd())
    }

    /// Time until the first silent caller is sent away.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.silent.is_empty()).then(|| self.look.saturating_duration_since(Instant::now()))
    }

    /// Accepts who waits outside. Returns what those want who have said so.
    pub fn visits(&mut self) -> Vec<Visit> {
        self.admitted_visits(&mut |_| true)
    }

    /// The same; a connection whose user is not admitted is closed unheard.
    pub fn admitted_visits(&mut self, admits: &mut dyn FnMut(u32) -> bool) -> Vec<Visit> {
        let mut events = [EpollEvent::empty(); BATCH];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let mut visits = Vec::new();
        for key in events[..count].iter().map(EpollEvent::data) {
            if key < FIRST_CALLER {
                self.accept(key as usize, admits, &mut visits);
            } else if let Some(caller) = self.take(key) {
                self.hear(caller, &mut visits);
            }
        }
        let now = Instant::now();
        if now >= self.look {
            self.look = now + LOOK;
            let over: Vec<u64> = self.silent.iter().filter(|(_, one)| one.until <= now).map(|(key, _)| *key).collect();
            over.into_iter().for_each(|key| drop(self.take(key)));
        }
        visits
    }

    fn accept(&mut self, place: usize, admits: &mut dyn FnMut(u32) -> bool, visits: &mut Vec<Visit>) {
        for _ in 0..BATCH {
            let Some(listener) = self.listeners.get(place) else { return };
            let (is_stream, patience) = (listener.is_stream, listener.patience);
            let socket = match sys::accept(sys::fd(&listener.socket)) {
                Ok(socket) => socket,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                    // Left in the queue, each would wait for its time limit: refused at once, by
                    // the spare descriptor.
                    if self.spare.take().is_none() {
                        return;
                    }
                    let refused = sys::accept(sys::fd(&listener.socket));
                    if let Some((_, uid)) = refused.as_ref().ok().and_then(peer) {
                        visits.push(Visit::Unheard(uid, Unheard::Descriptors));
                    }
                    let is_last = refused.is_err();
                    drop(refused);
                    self.spare = File::open("/dev/null").ok();
                    if is_last {
                        return;
                    }
                    continue;
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => continue,
                Err(_) => return,
            };
            let Some((pid, uid)) = peer(&socket) else { continue };
            if !admits(uid) {
                visits.push(Visit::Unheard(uid, Unheard::Denied));
                continue;
            }
            let until = Instant::now() + patience;
            self.hear(Caller { socket, pid, uid, until, is_stream }, visits);
        }
    }

    /// Forgets a silent connection.
    fn take(&mut self, key: u64) -> Option<Caller> {
        let caller = self.silent.remove(&key)?;
        // Closing would do it too, unless the descriptor has a copy.
        let _ = self.epoll.delete(&caller.socket);
        let own = (caller.uid, caller.is_stream);
        if let Some(keys) = self.by_user.get_mut(&own) {
            keys.iter().position(|one| *one == key).map(|place| keys.remove(place));
            if keys.is_empty() {
                self.by_user.remove(&own);
            }
        }
        Some(caller)
    }

    /// Takes what a connection says, or goes on waiting for it.
    fn hear(&mut self, caller: Caller, visits: &mut Vec<Visit>) {
        // One byte more than the longest message has, so that a longer one is seen to be longer. A
        // plain receive takes no descriptors.
        let mut bytes = [0; HELLO_BYTES + MAX_NOTICE_PATH + 1];
        let (socket, wait) = (caller.socket.as_raw_fd(), socket::MsgFlags::MSG_DONTWAIT);
        match socket::recv(socket, &mut bytes, wait | socket::MsgFlags::MSG_PEEK) {
            Err(Errno::EAGAIN | Errno::EINTR) => self.keep(caller, visits),
            Ok(count) if begins_file(&bytes[..count]) => visits.push(Visit::File(caller.sender())),
            Ok(count) if count > 0 && caller.is_stream => caller.answer_stranger(),
            Ok(count) if count > 0 && socket::recv(socket, &mut bytes, wait) == Ok(count) => {
                visits.extend(caller.introduce(&bytes[..count]));
            }
            _ => {}
        }
    }

    /// Waits for what a connection will say.
    fn keep(&mut self, caller: Caller, visits: &mut Vec<Visit>) {
        let most = if caller.is_stream { MOST_SILENT_STREAMS } else { MOST_SILENT_OF_USER };
        let own = (caller.uid, caller.is_stream);
        let keys = self.by_user.get(&own);
        let oldest = if keys.is_some_and(|keys| keys.len() >= most) {
            keys.and_then(|keys| keys.front()).copied()
        } else if self.silent.len() >= MOST_SILENT {
            // Somebody has to go: the oldest of whoever has most.
            self.by_user.values().max_by_key(|keys| keys.len()).and_then(|keys| keys.front()).copied()
        } else {
            None
        };
        if let Some(old) = oldest.and_then(|oldest| self.take(oldest)) {
            visits.push(Visit::Unheard(old.uid, Unheard::Silent));
        }
        let key = self.next;
        self.next += 1;
        if self.epoll.add(&caller.socket, EpollEvent::new(EpollFlags::EPOLLIN, key)).is_ok() {
            self.by_user.entry(own).or_default().push_back(key);
            self.silent.insert(key, caller);
        }
    }
}

/// A new socket that listens at a path.
pub fn listen(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(socket::AddressFamily::Unix, kind, flags, None).map_err(sys::io)?;
    let address = socket::UnixAddr::new(path).map_err(sys::io)?;
    socket::bind(socket.as_raw_fd(), &address).map_err(sys::io)?;
    let backlog = socket::Backlog::new(BACKLOG).unwrap_or(socket::Backlog::MAXCONN);
    socket::listen(&socket, backlog).map_err(sys::io)?;
    Ok(socket)
}

/// Process and user at the other end, as the kernel says.
fn peer(socket: &OwnedFd) -> Option<(u32, u32)> {
    let peer = socket::getsockopt(socket, socket::sockopt::PeerCredentials).ok()?;
    Some((u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0)?, peer.uid()))
}

/// Whether a message is the first of a file: its first four bytes decide, or those that have come
/// of them. A line of JSON about the file may stand before it.
fn begins_file(message: &[u8]) -> bool {
    if message.first() == Some(&b'{') {
        return true;
    }
    let start = &message[..message.len().min(4)];
    !start.is_empty() && [mtrc::layout::MAGIC, mptl::layout::MAGIC].iter().any(|magic| magic.starts_with(start))
}

/// Whether somebody listens at a path: connects, without waiting, and leaves.
pub fn knock(path: &Path, kind: SockType) -> nix::Result<()> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(socket::AddressFamily::Unix, kind, flags, None)?;
    socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)
}

impl Drop for Door {
    fn drop(&mut self) {
        let paths = self.listeners.iter().filter_map(|listener| listener.path.as_ref());
        paths.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Caller {
    fn sender(self) -> Sender {
        let Caller { socket, pid, uid, is_stream, .. } = self;
        Sender { socket, pid, uid, is_stream }
    }

    /// Says to somebody at a stream socket what belongs there.
    fn answer_stranger(self) {
        let text = b"{\"error\":\"this is neither a trace (MTRC) nor a profile (MPTL)\"}\n";
        let (socket, wait) = (self.socket.as_raw_fd(), socket::MsgFlags::MSG_DONTWAIT);
        let _ = socket::send(socket, text, wait | socket::MsgFlags::MSG_NOSIGNAL);
        // What lay unread would make the kernel tell the client of a broken connection instead.
        let _ = socket::shutdown(socket, socket::Shutdown::Read);
        let mut rest = [0; 4096];
        while socket::recv(socket, &mut rest, wait).is_ok_and(|count| count > 0) {}
    }

    fn introduce(self, bytes: &[u8]) -> Option<Visit> {
        let (pid, uid) = (self.pid, self.uid);
        if let Some(notice) = Notice::decode(bytes).filter(|_| bytes.len() <= HELLO_BYTES + MAX_NOTICE_PATH) {
            let path = bytes.get(HELLO_BYTES..).unwrap_or_default().to_vec();
            return Some(Visit::Notice { from: pid, pid: notice.pid, why: notice.reason, path });
        }
        let Some(hello) = Hello::decode(bytes) else {
            // Not the program's doing, and nothing that its standard error should show.
            tracing::debug!("a client said something that is no hello of this version");
            let reply = Reply { status: wire::hello::REFUSED_VERSION, area_bytes: 0 };
            let _ = sys::send_with(sys::fd(&self.socket), &reply.encode(), None);
            return None;
        };
        match sys::process_of_peer(sys::fd(&self.socket), pid) {
            Ok(process) => Some(Visit::Hello(Client { socket: self.socket, hello, pid, uid, process })),
            Err(error) if sys::is_out_of_descriptors(&error.into()) => {
                let reply = Reply { status: wire::hello::REFUSED_FULL, area_bytes: 0 };
                let _ = sys::send_with(sys::fd(&self.socket), &reply.encode(), None);
                Some(Visit::Unheard(uid, Unheard::Descriptors))
            }
            // It has ended.
            Err(_) => None,
        }
    }
}

impl Client {
    /// Sends it away: it runs untraced.
    pub fn refuse(self, status: u32) {
        let _ = sys::send_with(sys::fd(&self.socket), &Reply { status, area_bytes: 0 }.encode(), None);
    }

    /// Makes its area. Smaller ones are tried when there is no room for the one that was asked for.
    pub fn area(&self, options: &Options, clock: Clock) -> io::Result<(Mapping, OwnedFd)> {
        let Some(wanted) = options.params(self.hello.address_space, cgroup::memory_limit(self.pid)) else {
            return Err(io::Error::other("its limit on address space leaves none"));
        };
        let mut result = Err(io::Error::from(io::ErrorKind::OutOfMemory));
        for params in [wanted, wanted.fit_into(1 << 30), wanted.fit_into(1 << 27)] {
            if !params.is_valid() || self.hello.page_size != wire::area::PAGE as u32 {
                return Err(io::Error::from(io::ErrorKind::Unsupported));
            }
            match Mapping::create(params) {
                Ok((mapping, file)) => {
                    prepare(&mapping, params, options, clock);
                    return Ok((mapping, file));
                }
                Err(error) => result = Err(sys::io(error)),
            }
        }
        result
    }

    /// Becomes readable when the client is done with the door.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        sys::fd(&self.socket)
    }

    /// Whether the client has closed its end.
    pub fn has_left(&self) -> bool {
        !matches!(
            socket::recv(self.socket.as_raw_fd(), &mut [0], socket::MsgFlags::MSG_DONTWAIT),
            Err(Errno::EAGAIN | Errno::EINTR)
        )
    }

    /// Hands the area over. False when the client is gone.
    pub fn accept(&self, mapping: &Mapping, file: &OwnedFd) -> bool {
        let reply = Reply { status: wire::hello::ACCEPTED, area_bytes: mapping.bytes() };
        sys::send_with(sys::fd(&self.socket), &reply.encode(), Some(sys::fd(file))).is_ok()
    }
}

/// Fills the header of a new area.
fn prepare(mapping: &Mapping, params: Params, options: &Options, clock: Clock) {
    let header = mapping.header();
    header.version.store(u32::from(WIRE_VERSION), Relaxed);
    header.clock.store(clock.kind(), Relaxed);
    header.ring_bytes.store(params.ring_bytes, Relaxed);
    header.slots.store(params.slots, Relaxed);
    header.nodes.store(params.nodes, Relaxed);
    header.stacks.store(options.stacks, Relaxed);
    options.overflow.set(header);
    header.free_stacks.store(options.free_stacks.into(), Relaxed);
    header.max_frames.store(options.max_frames.min(limits::MAX_FRAMES as u32), Relaxed);
    header.sample_bytes.store(options.sample_bytes, Relaxed);
    header.nodes_used.0.store(1, Relaxed);
    header.state.store(LIVE, Relaxed);
    header.magic.store(MAGIC, Release);
    debug_assert_eq!(mapping.bytes(), Layout::new(params).total);
}
