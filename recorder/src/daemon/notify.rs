//! Messages to and from systemd, where it runs: readiness, watchdog, sockets that it holds
//! open. A few lines of a stable protocol.

use crate::sys;
use nix::sys::socket::{SockType, getsockopt, sockopt};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The first descriptor that systemd passes.
const FIRST: i32 = 3;

/// The way to systemd; goes nowhere when there is none.
#[derive(Debug)]
pub struct Notify(Option<UnixDatagram>);

impl Notify {
    /// Finds it in the environment.
    pub fn find() -> Notify {
        let connect = || {
            let path = std::env::var_os("NOTIFY_SOCKET")?;
            let address = match path.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
                [b'/', ..] => SocketAddr::from_pathname(&path).ok()?,
                _ => return None,
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect_addr(&address).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Notify(connect())
    }

    /// Tells `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `STATUS=…`.
    pub fn tell(&self, state: &str) {
        if let Some(socket) = &self.0 {
            let _ = socket.send(state.as_bytes());
        }
    }
}

impl Notify {
    /// Whether there is somebody.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Lets systemd hold descriptors for the next daemon, under a name.
    pub fn store(&self, name: &str, files: &[BorrowedFd<'_>]) -> nix::Result<()> {
        match &self.0 {
            Some(socket) => sys::send_files(sys::fd(socket), format!("FDSTORE=1\nFDNAME={name}").as_bytes(), files),
            None => Ok(()),
        }
    }
}

/// Whether systemd holds descriptors for this service (`FileDescriptorStoreMax=`).
pub fn has_store() -> bool {
    std::env::var("FDSTORE").is_ok_and(|most| most.parse::<u64>().is_ok_and(|most| most > 0))
}

/// How often the watchdog wants to hear from us: half of its patience.
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|usec| *usec > 0).map(|usec| Duration::from_micros(usec / 2))
}

/// Whether a descriptor is a listening socket of this kind; what the descriptor store holds is
/// none.
pub fn listens(socket: &OwnedFd, kind: SockType) -> bool {
    let is_kind = getsockopt(socket, sockopt::SockType).is_ok_and(|found| found == kind);
    is_kind && getsockopt(socket, sockopt::AcceptConn).is_ok_and(|accepts| accepts)
}

/// The sockets that systemd listens with, by the names in the unit; called once.
pub fn sockets() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("LISTEN_PID") != Some(u64::from(std::process::id())) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(32_768) as i32;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let mut found = Vec::new();
    for descriptor in FIRST..FIRST + count {
        let name = names.next().unwrap_or_default();
        found.extend(sys::inherited(descriptor).map(|socket| (name, socket)));
    }
    found
}
