//! The recorder's listening sockets: they receive the hello of each client and return the shared
//! memory area.
//!
//! A client is not trusted. It may send one message of a fixed length within a second, its
//! descriptors are not received, and nobody waits for it. The kernel identifies it (`SO_PEERCRED`),
//! not its message. Data that begins like a trace or a profile is not a message but a file that
//! follows. A user who leaves many connections silent loses the oldest of them, and no connection
//! of another user.
//!
//! A recorder calls [`Listener::wait`] and then [`Listener::incoming`], again and again. Whose
//! connections and requests are served is decided by its [`Policy`].

mod client;
mod policy;

use crate::inject::static_program::Follow;
use crate::os::poll;
use crate::os::sys::{self};
pub use client::Client;
use formats::{mptl, mtrc};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{self, SockType};
pub(crate) use policy::AdmitAll;
pub use policy::{Policy, RejectReason};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::WIRE_MINOR;
use wire::hello::{
    HELLO_BYTES, Hello, LoadRequest, MAX_NOTICE_PATH, Notice, ORIGIN_BEFORE_EXIT, REFUSED_FULL, Reply, UntracedReason,
};

/// Connections that the kernel queues until they are accepted. They are accepted within
/// microseconds, and the next program waits for all of them, so a longer queue would only help a
/// user who floods.
const BACKLOG: i32 = 512;
/// Maximum number of connections accepted before other work is done.
const ACCEPT_BATCH: usize = 256;
/// Time that a client has to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of the search for connections that were silent for too long.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of silent connections of one user to message sockets. The oldest is closed first.
const MAX_SILENT_OF_USER: usize = 256;
/// Maximum number of silent connections of all users.
const MAX_SILENT: usize = 1024;
/// Maximum number of silent connections of one user to stream sockets, where a person may be at the
/// other end.
const MAX_SILENT_STREAMS: usize = 16;
/// Permissions of the folder of an unlisted socket: other users can traverse it but not list it.
pub(crate) const TRAVERSABLE: u32 = 0o711;
/// Name of an unlisted socket until it accepts connections.
pub const INITIAL_NAME: &str = "socket";
/// Shortest wait for something that is due at a time.
pub(crate) const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// First event key of a connection; smaller keys are indexes of listening sockets.
const FIRST_CONNECTION_KEY: u64 = 16;

/// The listening sockets of a recorder, and the connections to them that are still silent. The
/// files of the sockets are removed on drop.
#[derive(Debug)]
pub struct Listener {
    epoll: Epoll,
    listeners: Vec<ListeningSocket>,
    /// Silent connections by event key, oldest first.
    silent: BTreeMap<u64, Connection>,
    /// Event keys of the silent connections of a user, oldest first. The flag separates those to
    /// stream sockets.
    by_user: HashMap<(u32, bool), VecDeque<u64>>,
    /// When to search next for connections that were silent for too long.
    next_silence_check: Instant,
    next_key: u64,
    /// A spare descriptor. It is closed to accept and refuse a connection when no other is left.
    spare: Option<File>,
}

#[derive(Debug)]
struct ListeningSocket {
    socket: OwnedFd,
    path: Option<PathBuf>,
    is_stream: bool,
    timeout: Duration,
    /// Whether its file was removed and could not be made again.
    is_lost: bool,
}

/// A connection that has not sent its first message.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    deadline: Instant,
    is_stream: bool,
}

/// A client that sends a trace or a profile. Nothing has been read from its socket.
#[derive(Debug)]
pub struct Sender {
    /// The socket from which the file is read.
    pub socket: OwnedFd,
    /// Process id of the sender, from the kernel.
    pub pid: u32,
    /// User id of the sender, from the kernel.
    pub uid: u32,
    /// Whether this is a stream socket, which keeps no message boundaries.
    pub is_stream: bool,
}

#[derive(Debug)]
pub enum Request {
    /// The client requests to be recorded.
    Start(Client),
    /// The client requests to store a trace or a profile.
    Stream(Sender),
}

/// A message that arrived at a listening socket.
#[derive(Debug)]
pub enum Incoming {
    /// A request that waits for its reply.
    Request(Request),
    /// A client reports a program that cannot be recorded.
    Notice {
        /// Process id of the reporting process, from the kernel.
        from: u32,
        /// Process id that is reported; 0 for the reporting process itself.
        pid: u32,
        /// Why it cannot be recorded.
        why: UntracedReason,
        /// Path of the program that is not recorded.
        path: Vec<u8>,
        /// Value of `LD_PRELOAD`, where that was replaced.
        preload: Vec<u8>,
        /// Process id of the process that has attached with the sender's program, as it sees
        /// itself.
        attached: u32,
    },
    /// The process with this pid is about to end, and waits until the socket is closed.
    Exit {
        pid: u32,
        /// Whether no destructor of a global object has run yet.
        is_before: bool,
        socket: OwnedFd,
    },
    /// A client requests that a static program is recorded, which it is about to start.
    Load(Follow),
    /// A command of this user asks to write what is known of a process that runs.
    Question {
        pid: u32,
        /// Whether it asks which block holds which, too.
        of_references: bool,
        /// User id of the command, from the kernel.
        uid: u32,
        /// The socket on which it waits for the answer.
        socket: OwnedFd,
    },
}

impl Request {
    /// Returns the user of the process that sent the request.
    pub fn uid(&self) -> u32 {
        match self {
            Request::Start(client) => client.uid,
            Request::Stream(sender) => sender.uid,
        }
    }

    /// Refuses the request. A client then runs untraced.
    pub fn refuse(self) {
        match self {
            Request::Start(client) => client.refuse(REFUSED_FULL),
            Request::Stream(_) => {}
        }
    }
}

impl Listener {
    /// Listens at a path for programs and senders of files.
    pub fn open(path: &Path) -> io::Result<Listener> {
        let mut listener = Listener::new()?;
        listener.add(listen(path, SockType::SeqPacket)?, Some(path.to_owned()), HELLO_TIMEOUT)?;
        Ok(listener)
    }

    /// Listens at a path to which all users can connect who know it. The path appears once the
    /// socket accepts connections: a recorder that starts removes sockets of killed recorders,
    /// which accept none. `/proc/net/unix` shows only the initial name. The folder of the path must
    /// be the socket's own: other users can traverse it from here on.
    ///
    /// # Errors
    /// The error of the socket, of its permissions, or of the rename.
    pub(crate) fn open_unlisted(path: &Path) -> io::Result<Listener> {
        let first = path.with_file_name(INITIAL_NAME);
        let _ = std::fs::remove_file(&first); // Of a recorder that was killed before the rename.
        let mut listener = Listener::open(&first)?;
        std::fs::set_permissions(&first, Permissions::from_mode(0o666))?;
        std::fs::rename(&first, path)?;
        std::fs::set_permissions(path.parent().unwrap_or(Path::new("/")), Permissions::from_mode(TRAVERSABLE))?;
        listener.listeners.iter_mut().for_each(|listener| listener.path = Some(path.to_owned()));
        Ok(listener)
    }

    /// Creates an empty set of listening sockets.
    pub fn new() -> io::Result<Listener> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(sys::io)?;
        let spare = File::open("/dev/null").ok();
        Ok(Listener {
            epoll,
            listeners: Vec::new(),
            silent: BTreeMap::new(),
            by_user: HashMap::new(),
            next_silence_check: Instant::now(),
            next_key: FIRST_CONNECTION_KEY,
            spare,
        })
    }

    /// Adds a listening socket. `path` is a file to remove on drop; a socket that was passed in has
    /// none. `timeout` is how long a connection may be silent.
    ///
    /// # Errors
    /// The error of a call that changes or queries the socket.
    pub fn add(&mut self, socket: OwnedFd, path: Option<PathBuf>, timeout: Duration) -> io::Result<()> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        // A socket that was passed in may be a blocking one.
        fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(sys::io)?;
        let is_stream = socket::getsockopt(&socket, socket::sockopt::SockType).map_err(sys::io)? == SockType::Stream;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, self.listeners.len() as u64);
        self.epoll.add(&socket, event).map_err(sys::io)?;
        self.listeners.push(ListeningSocket { socket, path, is_stream, timeout, is_lost: false });
        Ok(())
    }

    /// Listens again where the file of a socket was removed: without it no program finds the
    /// recorder, and nobody is told. Returns these paths, each with the error of `reopen`; one that
    /// failed is returned only once.
    pub fn restore_removed(
        &mut self,
        reopen: impl Fn(&Path, SockType) -> io::Result<OwnedFd>,
    ) -> Vec<(PathBuf, io::Result<()>)> {
        let is_gone = |path: &PathBuf| {
            std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let mut restored = Vec::new();
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let Some(path) = listener.path.clone().filter(is_gone) else {
                listener.is_lost = false;
                continue;
            };
            let kind = if listener.is_stream { SockType::Stream } else { SockType::SeqPacket };
            let opened = reopen(&path, kind).and_then(|socket| {
                self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, index as u64)).map_err(sys::io)?;
                listener.socket = socket;
                Ok(())
            });
            let is_first = !std::mem::replace(&mut listener.is_lost, opened.is_err());
            if opened.is_ok() || is_first {
                restored.push((path, opened));
            }
        }
        restored
    }

    /// Returns whether a socket was passed in by another process.
    pub fn is_passed(&self) -> bool {
        self.listeners.iter().any(|listener| listener.path.is_none())
    }

    /// Waits until a connection or a request arrives, until one of `others` is readable or closed,
    /// or until the time is over. With a timeout of zero it does not wait. Returns for each of
    /// `others`, in the same order, whether it is ready.
    pub fn wait<'fd>(
        &'fd self,
        others: impl Iterator<Item = BorrowedFd<'fd>>,
        timeout: Duration,
    ) -> io::Result<Vec<bool>> {
        let next_check = self.next_silence_check.saturating_duration_since(Instant::now());
        let timeout = if self.silent.is_empty() { timeout } else { timeout.min(next_check.max(SHORTEST_WAIT)) };
        let all = others.chain([self.epoll.0.as_fd()]);
        let mut ready = poll::wait(all, timeout)?;
        ready.pop();
        Ok(ready)
    }

    /// Accepts the connections that are queued, and returns the requests that have arrived and are
    /// to be served.
    pub fn incoming(&mut self, policy: &mut dyn Policy) -> Vec<Incoming> {
        let mut events = [EpollEvent::empty(); ACCEPT_BATCH];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let mut incoming = Vec::new();
        for key in events[..count].iter().map(EpollEvent::data) {
            if key < FIRST_CONNECTION_KEY {
                self.accept(key as usize, policy, &mut incoming);
            } else if let Some(connection) = self.remove_silent(key) {
                self.read_request(connection, policy, &mut incoming);
            }
        }
        let now = Instant::now();
        if now >= self.next_silence_check {
            self.next_silence_check = now + SILENCE_CHECK_INTERVAL;
            let expired = self.silent.iter().filter(|(_, one)| one.deadline <= now);
            let expired: Vec<u64> = expired.map(|(key, _)| *key).collect();
            expired.into_iter().for_each(|key| drop(self.remove_silent(key)));
        }
        let mut admitted = Vec::with_capacity(incoming.len());
        for message in incoming {
            match message {
                Incoming::Request(request) if !policy.admits_request(request.uid()) => {
                    policy.rejected(request.uid(), RejectReason::Request);
                    request.refuse();
                }
                other => admitted.push(other),
            }
        }
        admitted
    }

    /// Accepts the connections that are queued at the listening socket with this index.
    fn accept(&mut self, index: usize, policy: &mut dyn Policy, incoming: &mut Vec<Incoming>) {
        for _ in 0..ACCEPT_BATCH {
            let Some(listener) = self.listeners.get(index) else { return };
            let (is_stream, timeout) = (listener.is_stream, listener.timeout);
            let socket = match sys::accept(sys::fd(&listener.socket)) {
                Ok(socket) => socket,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                    // A connection that is left in the queue would wait for its timeout. The spare
                    // descriptor allows to refuse it at once.
                    if self.spare.take().is_none() {
                        return;
                    }
                    let refused = sys::accept(sys::fd(&listener.socket));
                    if let Some((_, uid)) = refused.as_ref().ok().and_then(peer) {
                        policy.rejected(uid, RejectReason::Descriptors);
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
            if !policy.admits_connection(uid) {
                policy.rejected(uid, RejectReason::Connection);
                continue;
            }
            let deadline = Instant::now() + timeout;
            self.read_request(Connection { socket, pid, uid, deadline, is_stream }, policy, incoming);
        }
    }

    fn remove_silent(&mut self, key: u64) -> Option<Connection> {
        let connection = self.silent.remove(&key)?;
        // Closing the socket would remove it too, unless its descriptor was duplicated.
        let _ = self.epoll.delete(&connection.socket);
        let owner = (connection.uid, connection.is_stream);
        if let Some(keys) = self.by_user.get_mut(&owner) {
            keys.iter().position(|one| *one == key).map(|index| keys.remove(index));
            if keys.is_empty() {
                self.by_user.remove(&owner);
            }
        }
        Some(connection)
    }

    /// Reads the first message of a connection, or holds the connection until the message arrives.
    fn read_request(&mut self, connection: Connection, policy: &mut dyn Policy, incoming: &mut Vec<Incoming>) {
        // The buffer has one byte more than the longest message, so that a longer message is
        // detected. A plain receive accepts no descriptors.
        let mut bytes = [0; HELLO_BYTES + MAX_NOTICE_PATH + 1];
        let (socket, wait) = (connection.socket.as_raw_fd(), socket::MsgFlags::MSG_DONTWAIT);
        match socket::recv(socket, &mut bytes, wait | socket::MsgFlags::MSG_PEEK) {
            Err(Errno::EAGAIN | Errno::EINTR) => self.hold(connection, policy),
            Ok(count) if begins_file(&bytes[..count]) => {
                incoming.push(Incoming::Request(Request::Stream(connection.into_sender())))
            }
            Ok(count) if count > 0 && connection.is_stream => connection.reject_unknown(),
            Ok(count) if count > 0 && socket::recv(socket, &mut bytes, wait) == Ok(count) => {
                incoming.extend(connection.decode_request(&bytes[..count], policy));
            }
            _ => {}
        }
    }

    /// Holds a silent connection until its first message arrives.
    fn hold(&mut self, connection: Connection, policy: &mut dyn Policy) {
        let limit = if connection.is_stream { MAX_SILENT_STREAMS } else { MAX_SILENT_OF_USER };
        let owner = (connection.uid, connection.is_stream);
        let keys = self.by_user.get(&owner);
        let oldest = if keys.is_some_and(|keys| keys.len() >= limit) {
            keys.and_then(|keys| keys.front()).copied()
        } else if self.silent.len() >= MAX_SILENT {
            // The limit of all users is reached: the user with most silent connections loses the
            // oldest one.
            self.by_user.values().max_by_key(|keys| keys.len()).and_then(|keys| keys.front()).copied()
        } else {
            None
        };
        if let Some(old) = oldest.and_then(|oldest| self.remove_silent(oldest)) {
            policy.rejected(old.uid, RejectReason::Silent);
        }
        let key = self.next_key;
        self.next_key += 1;
        if self.epoll.add(&connection.socket, EpollEvent::new(EpollFlags::EPOLLIN, key)).is_ok() {
            self.by_user.entry(owner).or_default().push_back(key);
            self.silent.insert(key, connection);
        }
    }
}

/// Creates a socket that listens at a path.
///
/// # Errors
/// The error of the socket, or of binding it to the path.
pub fn listen(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(socket::AddressFamily::Unix, kind, flags, None).map_err(sys::io)?;
    let address = socket::UnixAddr::new(path).map_err(sys::io)?;
    socket::bind(socket.as_raw_fd(), &address).map_err(sys::io)?;
    let backlog = socket::Backlog::new(BACKLOG).unwrap_or(socket::Backlog::MAXCONN);
    socket::listen(&socket, backlog).map_err(sys::io)?;
    Ok(socket)
}

/// Returns the process id and user id of the peer, from the kernel.
fn peer(socket: &OwnedFd) -> Option<(u32, u32)> {
    let peer = socket::getsockopt(socket, socket::sockopt::PeerCredentials).ok()?;
    Some((u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0)?, peer.uid()))
}

/// Returns whether a message is the first one of a file. Its first four bytes decide, or those of
/// them that have arrived. A line of JSON about the file may precede it.
fn begins_file(message: &[u8]) -> bool {
    if message.first() == Some(&b'{') {
        return true;
    }
    let start = &message[..message.len().min(4)];
    !start.is_empty() && [mtrc::layout::MAGIC, mptl::layout::MAGIC].iter().any(|magic| magic.starts_with(start))
}

/// Tests whether a socket is listening at a path: connects without waiting, and returns the
/// connection.
///
/// # Errors
/// The error of the connection: `ECONNREFUSED` when nothing listens at the path.
pub fn probe(path: &Path, kind: SockType) -> nix::Result<OwnedFd> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(socket::AddressFamily::Unix, kind, flags, None)?;
    socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    Ok(socket)
}

impl Drop for Listener {
    fn drop(&mut self) {
        let paths = self.listeners.iter().filter_map(|listener| listener.path.as_ref());
        paths.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Connection {
    fn into_sender(self) -> Sender {
        let Connection { socket, pid, uid, is_stream, .. } = self;
        Sender { socket, pid, uid, is_stream }
    }

    /// Tells the peer of a stream socket which data is accepted there.
    fn reject_unknown(self) {
        let text = b"{\"error\":\"this is neither a trace (MTRC) nor a profile (MPTL)\"}\n";
        let (socket, wait) = (self.socket.as_raw_fd(), socket::MsgFlags::MSG_DONTWAIT);
        let _ = socket::send(socket, text, wait | socket::MsgFlags::MSG_NOSIGNAL);
        // Unread data would make the kernel report a broken connection to the client.
        let _ = socket::shutdown(socket, socket::Shutdown::Read);
        let mut rest = [0; 4096];
        while socket::recv(socket, &mut rest, wait).is_ok_and(|count| count > 0) {}
    }

    fn decode_request(self, bytes: &[u8], policy: &mut dyn Policy) -> Option<Incoming> {
        let (pid, uid) = (self.pid, self.uid);
        if let Some(notice) = Notice::decode(bytes).filter(|_| bytes.len() <= HELLO_BYTES + MAX_NOTICE_PATH) {
            let mut texts =
                bytes.get(HELLO_BYTES..).unwrap_or_default().splitn(2, |byte| *byte == 0).map(<[u8]>::to_vec);
            let (path, preload) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
            if notice.load != LoadRequest::No
                && let Ok(process) = sys::process_of_peer(sys::fd(&self.socket), pid)
            {
                let (socket, thread, request) = (self.socket, notice.thread, notice.load);
                return Some(Incoming::Load(Follow { socket, process, pid, uid, thread, request, path }));
            }
            return Some(Incoming::Notice {
                from: pid,
                pid: notice.pid,
                why: notice.reason,
                path,
                preload,
                attached: notice.thread,
            });
        }
        if let Some(origin) = Hello::exit(bytes) {
            let is_before = origin == ORIGIN_BEFORE_EXIT;
            return Some(Incoming::Exit { pid, is_before, socket: self.socket });
        }
        if let Some((pid, of_references)) = Hello::question(bytes) {
            return Some(Incoming::Question { pid, of_references, uid, socket: self.socket });
        }
        let Some(hello) = Hello::decode(bytes) else {
            // The program did not cause this: its standard error does not show it.
            tracing::debug!("a client sent a message that is not a hello of this version");
            let reply = Reply { status: wire::hello::REFUSED_VERSION, minor: WIRE_MINOR, area_bytes: 0 };
            let _ = sys::send_with(sys::fd(&self.socket), &reply.encode(), None);
            return None;
        };
        match sys::process_of_peer(sys::fd(&self.socket), pid) {
            Ok(process) => {
                Some(Incoming::Request(Request::Start(Client { socket: self.socket, hello, pid, uid, process })))
            }
            Err(error) if sys::is_out_of_descriptors(&error.into()) => {
                let reply = Reply { status: REFUSED_FULL, minor: hello.agreed(), area_bytes: 0 };
                let _ = sys::send_with(sys::fd(&self.socket), &reply.encode(), None);
                policy.rejected(uid, RejectReason::Descriptors);
                None
            }
            // The client has ended.
            Err(_) => None,
        }
    }
}
