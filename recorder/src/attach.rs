//! The recorder's door: a socket, the hello that comes in through it, and the area that goes out.
//!
//! A client is a stranger: one message of a fixed length, a second to send it, no descriptors taken, nobody waits for it. Who it is says
//! the kernel (`SO_PEERCRED`), not the client. What begins as a trace or a profile does is no message, but a file that follows.

use crate::clock::Clock;
use crate::options::Options;
use crate::sys::{self, Mapping};
use formats::{mptl, mtrc};
use nix::errno::Errno;
use nix::sys::socket;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use wire::area::{LIVE, MAGIC, Params};
use wire::hello::{HELLO_BYTES, Hello, NOTICE_PATH, Notice, Reply, Why};
use wire::{Layout, WIRE_VERSION, limits};

/// Connections that may wait to be taken.
const BACKLOG: i32 = 4096;
/// Time for the hello.
const PATIENCE: Duration = Duration::from_secs(1);
/// Clients that may be silent at once; the oldest goes first.
const MOST_SILENT: usize = 1024;

/// The listening socket; its file goes with it.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    path: Option<PathBuf>,
    silent: Vec<Caller>,
}

/// A connection whose hello has not come.
#[derive(Debug)]
pub struct Caller {
    socket: OwnedFd,
    since: Instant,
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
        why: Why,
        /// The program's path.
        path: Vec<u8>,
    },
}

impl Door {
    /// Listens at a path.
    pub fn open(path: &Path) -> io::Result<Door> {
        let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
        let family = socket::AddressFamily::Unix;
        let socket = socket::socket(family, socket::SockType::SeqPacket, flags, None).map_err(sys::io)?;
        let address = socket::UnixAddr::new(path).map_err(sys::io)?;
        socket::bind(socket.as_raw_fd(), &address).map_err(sys::io)?;
        let backlog = socket::Backlog::new(BACKLOG).unwrap_or(socket::Backlog::MAXCONN);
        socket::listen(&socket, backlog).map_err(sys::io)?;
        Ok(Door { socket, path: Some(path.to_owned()), silent: Vec::new() })
    }

    /// Listens at a path that appears once it can be connected to. Whoever clears up after killed recorders takes a socket that nobody listens at for one
    /// of theirs.
    pub fn open_at_once(path: &Path) -> io::Result<Door> {
        let mut starting = path.as_os_str().to_owned();
        starting.push(".new");
        let mut door = Door::open(starting.as_ref())?;
        std::fs::rename(&starting, path)?;
        door.path = Some(path.to_owned());
        Ok(door)
    }

    /// Serves a socket that somebody else listens with; its file stays. Whoever made it may have made it to wait.
    pub fn of(socket: OwnedFd) -> io::Result<Door> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(sys::io)?;
        Ok(Door { socket, path: None, silent: Vec::new() })
    }

    /// What to wait for: the door itself, then callers.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(sys::fd(&self.socket)).chain(self.silent.iter().map(|caller| sys::fd(&caller.socket)))
    }

    /// Time until the first silent caller is sent away.
    pub fn deadline(&self) -> Option<Duration> {
        self.silent.first().map(|caller| PATIENCE.saturating_sub(caller.since.elapsed()))
    }

    /// Takes in whoever stands outside; gives those who said what they want.
    pub fn visits(&mut self) -> Vec<Visit> {
        // EMFILE and the like: they wait outside until there is room.
        while let Ok(socket) = sys::accept(sys::fd(&self.socket)) {
            self.silent.push(Caller { socket, since: Instant::now() });
        }
        let too_many = self.silent.len().saturating_sub(MOST_SILENT);
        self.silent.drain(..too_many);
        let mut visits = Vec::new();
        for caller in std::mem::take(&mut self.silent) {
            // One byte more than the longest message has, so that a longer one is seen to be longer. A plain receive takes no descriptors.
            let mut bytes = [0; HELLO_BYTES + NOTICE_PATH + 1];
            let (socket, wait) = (caller.socket.as_raw_fd(), socket::MsgFlags::MSG_DONTWAIT);
            match socket::recv(socket, &mut bytes, wait | socket::MsgFlags::MSG_PEEK) {
                Err(Errno::EAGAIN | Errno::EINTR) if caller.since.elapsed() < PATIENCE => self.silent.push(caller),
                Ok(count) if begins_file(&bytes[..count]) => visits.extend(caller.sender().map(Visit::File)),
                Ok(count) if count > 0 && socket::recv(socket, &mut bytes, wait) == Ok(count) => {
                    visits.extend(caller.introduce(&bytes[..count]));
                }
                _ => {}
            }
        }
        visits
    }
}

/// Whether a message is the first of a file: its first four bytes decide, or those that have come of them.
fn begins_file(message: &[u8]) -> bool {
    let start = &message[..message.len().min(4)];
    !start.is_empty() && [mtrc::layout::MAGIC, mptl::layout::MAGIC].iter().any(|magic| magic.starts_with(start))
}

/// Whether somebody listens at a path: connects, without waiting, and leaves.
pub fn knock(path: &Path) -> nix::Result<()> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(socket::AddressFamily::Unix, socket::SockType::SeqPacket, flags, None)?;
    socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)
}

impl Drop for Door {
    fn drop(&mut self) {
        self.path.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Caller {
    /// Process and user, as the kernel says.
    fn peer(&self) -> Option<(u32, u32)> {
        let peer = socket::getsockopt(&self.socket, socket::sockopt::PeerCredentials).ok()?;
        Some((u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0)?, peer.uid()))
    }

    fn sender(self) -> Option<Sender> {
        let (pid, uid) = self.peer()?;
        Some(Sender { socket: self.socket, pid, uid })
    }

    fn introduce(self, bytes: &[u8]) -> Option<Visit> {
        let (pid, uid) = self.peer()?;
        if let Some(notice) = Notice::decode(bytes).filter(|_| bytes.len() <= HELLO_BYTES + NOTICE_PATH) {
            let path = bytes.get(HELLO_BYTES..).unwrap_or_default().to_vec();
            return Some(Visit::Notice { from: pid, pid: notice.pid, why: notice.why, path });
        }
        let Some(hello) = Hello::decode(bytes) else {
            // Not the program's doing, and nothing that its standard error should show.
            tracing::debug!("a client said something that is no hello of this version");
            let reply = Reply { status: wire::hello::REFUSED_VERSION, area_bytes: 0 };
            let _ = sys::send_with(sys::fd(&self.socket), &reply.encode(), None);
            return None;
        };
        let process = sys::process_of_peer(sys::fd(&self.socket), pid).ok()?;
        Some(Visit::Hello(Client { socket: self.socket, hello, pid, uid, process }))
    }
}

impl Client {
    /// Sends it away: it runs untraced.
    pub fn refuse(self, status: u32) {
        let _ = sys::send_with(sys::fd(&self.socket), &Reply { status, area_bytes: 0 }.encode(), None);
    }

    /// Makes its area. Smaller ones are tried when there is no room for the one that was asked for.
    pub fn area(&self, options: &Options, clock: Clock) -> io::Result<(Mapping, OwnedFd)> {
        let Some(wanted) = options.params(self.hello.address_room) else {
            return Err(io::Error::other("its limit on address space leaves none"));
        };
        let mut result = Err(io::Error::from(io::ErrorKind::OutOfMemory));
        for params in [wanted, wanted.within(1 << 30), wanted.within(1 << 27)] {
            if !params.is_sound() || self.hello.page_size != wire::area::PAGE as u32 {
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
    header.overflow.store(options.overflow, Relaxed);
    header.free_stacks.store(options.free_stacks.into(), Relaxed);
    header.max_frames.store(options.max_frames.min(limits::MAX_FRAMES as u32), Relaxed);
    header.sample_bytes.store(options.sample_bytes, Relaxed);
    header.wait_ms.store(limits::WAIT_MS, Relaxed);
    header.nodes_used.0.store(1, Relaxed);
    header.state.store(LIVE, Relaxed);
    header.magic.store(MAGIC, Release);
    debug_assert_eq!(mapping.bytes(), Layout::new(params).total);
}
