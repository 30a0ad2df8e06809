//! Messages to and from systemd: readiness, watchdog, sockets that it holds open. The protocol is
//! small and stable.

use heaptape_recorder::os::sys;
use nix::sys::socket::{SockType, getsockopt, sockopt};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Number of the first descriptor that systemd passes.
const FIRST_DESCRIPTOR: i32 = 3;

/// The connection to systemd; without systemd, messages are discarded.
#[derive(Debug)]
pub struct Notify(Option<UnixDatagram>);

impl Notify {
    /// Connects to the socket that is named in the environment.
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

    /// Sends a state: `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `STATUS=…`.
    pub(crate) fn send_state(&self, state: &str) {
        if let Some(socket) = &self.0 {
            let _ = socket.send(state.as_bytes());
        }
    }

    /// Stores descriptors for the next daemon in systemd, under a name.
    pub fn store(&self, name: &str, files: &[BorrowedFd<'_>]) -> nix::Result<()> {
        match &self.0 {
            Some(socket) => sys::send_files(sys::fd(socket), format!("FDSTORE=1\nFDNAME={name}").as_bytes(), files),
            None => Ok(()),
        }
    }
}

/// Returns whether systemd stores descriptors for this service (`FileDescriptorStoreMax=`).
pub(crate) fn has_store() -> bool {
    std::env::var("FDSTORE").is_ok_and(|maximum| maximum.parse::<u64>().is_ok_and(|maximum| maximum > 0))
}

/// Returns the interval at which the watchdog is to be notified: half of its timeout.
pub(crate) fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|usec| *usec > 0).map(|usec| Duration::from_micros(usec / 2))
}

/// Returns whether a descriptor is a listening socket of this kind. Descriptors from the descriptor
/// store are not.
pub(crate) fn listens(socket: &OwnedFd, kind: SockType) -> bool {
    let is_kind = getsockopt(socket, sockopt::SockType).is_ok_and(|found| found == kind);
    is_kind && getsockopt(socket, sockopt::AcceptConn).is_ok_and(|accepts| accepts)
}

/// Returns the sockets that systemd has opened, with their names in the unit. Must be called once.
pub(crate) fn sockets() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("LISTEN_PID") != Some(u64::from(std::process::id())) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(49_152) as i32;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let mut found = Vec::new();
    for descriptor in FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + count {
        let name = names.next().unwrap_or_default();
        found.extend(sys::inherited(descriptor).map(|socket| (name, socket)));
    }
    found
}
