//! Who is at the other end of the control socket, and what the daemon does for them.
//!
//! A user id alone says little: root of a container that shares the socket's folder is root for the
//! kernel, too, but may neither see nor trace the processes of the node. The daemon does nothing
//! for a peer that the peer's own namespaces and capabilities do not allow.

use super::protocol::Request;
use heaptape_recorder::os::sys;
use nix::sys::socket::{self, sockopt};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

/// Number of the capability CAP_SYS_PTRACE, see capabilities(7).
const CAP_SYS_PTRACE: u32 = 19;

/// A process that is connected to the control socket.
#[derive(Debug)]
pub(crate) struct Peer {
    /// User id, from the kernel.
    pub uid: u32,
    pid: u32,
    /// Tells that the process has ended, so that its number may be another one's.
    process: OwnedFd,
}

/// Returns what identifies a namespace of a process. It takes the right to trace the process.
fn namespace(pid: &str, kind: &str) -> io::Result<(u64, u64)> {
    std::fs::metadata(format!("/proc/{pid}/ns/{kind}")).map(|found| (found.dev(), found.ino()))
}

/// Returns the values of a line in `/proc/PID/status`.
fn status(pid: &str, key: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Returns whether a process has CAP_SYS_PTRACE in effect.
fn may_trace(pid: &str) -> bool {
    let effective = status(pid, "CapEff").and_then(|values| u64::from_str_radix(values.first()?, 16).ok());
    effective.is_some_and(|effective| effective >> CAP_SYS_PTRACE & 1 == 1)
}

/// Returns whether a process is in this one's namespaces of users and pids. One that may not be
/// looked into has rights that the daemon lacks: of that, the depth of its pids is known.
fn shares_namespaces(pid: &str) -> bool {
    let same = |kind: &str| Some(namespace(pid, kind).ok()? == namespace("self", kind).ok()?);
    match (same("user"), same("pid")) {
        (Some(user), Some(pid)) => user && pid,
        _ => !may_trace("self") && status(pid, "NSpid").is_some_and(|pids| pids.len() == 1),
    }
}

impl Peer {
    /// Returns the process at the other end.
    ///
    /// # Errors
    /// The kernel's, or `NotFound` for a process that this one cannot see or that has ended.
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Peer> {
        let peer = socket::getsockopt(stream, sockopt::PeerCredentials)?;
        // A process of a namespace that is not below ours has no number here.
        let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0).ok_or(io::ErrorKind::NotFound)?;
        let process = sys::process_of_peer(sys::fd(stream), pid)?;
        Ok(Peer { uid: peer.uid(), pid, process })
    }

    fn has_ended(&self) -> bool {
        sys::is_readable(sys::fd(&self.process))
    }

    /// Returns why this peer gets no answer at all; `None` if it does. `own` is the user of the
    /// daemon.
    pub(crate) fn refusal(&self, own: u32) -> Option<&'static str> {
        if self.uid != 0 && self.uid != own {
            return Some("only root and the daemon's own user may control this daemon");
        }
        let shares = shares_namespaces(&self.pid.to_string());
        // What was read is of the peer only if that is still there.
        (!shares || self.has_ended()).then_some(
            "only processes in the daemon's own namespaces of users and pids may control it, and this one is in others (a container)",
        )
    }

    /// Returns why a request is not carried out for this peer; `None` if it is.
    pub(crate) fn refusal_of(&self, request: &Request) -> Option<&'static str> {
        let traces = matches!(request, Request::Attach { .. } | Request::Detach { .. });
        // A daemon without the capability traces only what its own user may trace.
        let is_permitted = !traces || !may_trace("self") || may_trace(&self.pid.to_string());
        (!is_permitted || self.has_ended())
            .then_some("this needs the capability CAP_SYS_PTRACE, which the calling process does not have")
    }
}
