//! The kernel's own account of all forks, programs and ends, in order and without a gap: the
//! process events of the connector. Whoever listens changes nothing for the processes, which is why
//! we ask it and not ptrace or a subreaper.
//!
//! Since Linux 6.6 every user may listen, in the first namespaces of users, processes and networks,
//! and the kernel stops when the socket is closed. Older kernels go on for ever after a SIGKILL of
//! the listener, so we do not ask them. The processors of this recorder are little-endian.

use crate::os::sys;
use nix::libc::{self, sock_filter};
use nix::sys::socket::{self, MsgFlags, NetlinkAddr, setsockopt, sockopt};
use std::os::fd::{AsRawFd, OwnedFd};

/// `CN_IDX_PROC`, also the group of the messages, and `CN_VAL_PROC`.
const CONNECTOR: u32 = 1;
/// `PROC_CN_MCAST_LISTEN`.
const LISTEN: u32 = 1;
/// `PROC_EVENT_NONE`, the answer to [`LISTEN`], and the events.
const NONE: u32 = 0;
const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 1 << 31;
/// Lengths of `nlmsghdr` and `cn_msg`.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
/// Offsets of `proc_event`, and of its fields.
const WHAT: usize = NETLINK_HEADER + CONNECTOR_HEADER;
const TIME: usize = WHAT + 8;
const DATA: usize = TIME + 8;
/// Events that the kernel keeps for us: 4 MiB have some 5,000.
const BUFFER_BYTES: usize = 4 << 20;
/// Maximum number of events that are read at once. A machine that makes more cannot keep us here.
const MOST: usize = 1 << 16;
/// The first kernel that lets everybody listen: major and minor version.
const FIRST_KERNEL: (u32, u32) = (6, 6);

/// What happened to a process. Threads are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Forked {
        parent: u32,
    },
    Executed,
    /// Its first thread has ended, with this wait status.
    Ended {
        status: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) pid: u32,
    pub(crate) what: What,
}

/// The kernel had no room for an event, or does not tell any more.
#[derive(Debug)]
pub(crate) struct Lost;

/// A listener to the events of all processes.
#[derive(Debug)]
pub(crate) struct ProcessEvents(OwnedFd);

impl ProcessEvents {
    /// Listens from here on; `None` where that is not permitted.
    pub(crate) fn listen() -> Option<ProcessEvents> {
        if kernel_version()? < FIRST_KERNEL {
            return None;
        }
        let connector = sys::connector(&mut filter()).ok()?;
        // Root may have more than `net.core.rmem_max`.
        let forced = setsockopt(&connector, sockopt::RcvBufForce, &BUFFER_BYTES);
        let _ = forced.or_else(|_| setsockopt(&connector, sockopt::RcvBuf, &BUFFER_BYTES));
        socket::bind(connector.as_raw_fd(), &NetlinkAddr::new(0, 1 << (CONNECTOR - 1))).ok()?;
        let ask = |words: &[u32]| socket::send(connector.as_raw_fd(), &request(words), MsgFlags::empty()).ok();
        // It answers who asks for all kinds of events.
        ask(&[LISTEN])?;
        ask(&[LISTEN, FORK | EXEC | EXIT])?;
        // The kernel has answered by now, unless it refuses.
        let events = ProcessEvents(connector);
        let mut is_permitted = false;
        while let Some(message) = events.receive().ok()? {
            is_permitted |= word(&message, WHAT) == Some(NONE);
        }
        is_permitted.then_some(events)
    }

    /// Reads what has happened since the last call.
    ///
    /// # Errors
    /// Events are missing.
    pub(crate) fn read(&self, mut each: impl FnMut(Event)) -> Result<(), Lost> {
        for _ in 0..MOST {
            match self.receive()? {
                Some(message) => event(&message).into_iter().for_each(&mut each),
                None => return Ok(()),
            }
        }
        Err(Lost)
    }

    fn receive(&self) -> Result<Option<[u8; 128]>, Lost> {
        let mut message = [0; 128];
        match socket::recv(self.0.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
            Ok(_) => Ok(Some(message)),
            Err(nix::errno::Errno::EAGAIN) => Ok(None),
            // ENOBUFS: there was no room.
            Err(_) => Err(Lost),
        }
    }
}

fn kernel_version() -> Option<(u32, u32)> {
    let name = nix::sys::utsname::uname().ok()?;
    let release = name.release().to_str()?;
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn request(words: &[u32]) -> Vec<u8> {
    const DONE: u16 = 3;
    let mut bytes = Vec::new();
    let length = 4 * words.len() as u16;
    bytes.extend((NETLINK_HEADER as u32 + CONNECTOR_HEADER as u32 + u32::from(length)).to_le_bytes());
    bytes.extend(DONE.to_le_bytes());
    bytes.extend([0; 10]);
    bytes.extend([CONNECTOR, CONNECTOR, 0, 0].map(u32::to_le_bytes).concat());
    bytes.extend([length, 0].map(u16::to_le_bytes).concat());
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

/// Returns a filter that drops the events of threads. Its loads swap the bytes, as for a network.
fn filter() -> [sock_filter; 15] {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IF_SAME: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X;
    const COPY: u32 = libc::BPF_MISC | libc::BPF_TAX;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    [
        step(LOAD, 0, 0, WHAT as u32),
        step(IF, 12, 0, NONE.swap_bytes()),
        step(IF, 11, 0, EXEC.swap_bytes()),
        step(IF, 5, 0, FORK.swap_bytes()),
        step(IF, 0, 8, EXIT.swap_bytes()),
        // An end: the number of the thread, and that of its process.
        step(LOAD, 0, 0, DATA as u32),
        step(COPY, 0, 0, 0),
        step(LOAD, 0, 0, DATA as u32 + 4),
        step(IF_SAME, 5, 4, 0),
        // A fork: the same of the child.
        step(LOAD, 0, 0, DATA as u32 + 8),
        step(COPY, 0, 0, 0),
        step(LOAD, 0, 0, DATA as u32 + 12),
        step(IF_SAME, 1, 0, 0),
        step(RETURN, 0, 0, 0),
        step(RETURN, 0, 0, u32::MAX),
    ]
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(message.get(at..at + 4)?.try_into().ok()?))
}

fn event(message: &[u8]) -> Option<Event> {
    let data = |index: usize| word(message, DATA + 4 * index);
    let (pid, what) = match word(message, WHAT)? {
        FORK => (data(3)?, What::Forked { parent: data(1)? }),
        EXEC => (data(1)?, What::Executed),
        EXIT => (data(1)?, What::Ended { status: data(2)? }),
        _ => return None,
    };
    Some(Event { pid, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_child_come_in_order_and_those_of_threads_do_not_come() {
        // A container has none.
        let Some(events) = ProcessEvents::listen() else { return };
        std::thread::spawn(|| ()).join().expect("a thread");
        let mut child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().expect("a child");
        let _ = child.wait();
        let (mut seen, mut forks) = (Vec::new(), Vec::new());
        let of = |event: Event| {
            seen.extend((event.pid == child.id()).then_some(event.what));
            forks.extend((event.what == What::Forked { parent: std::process::id() }).then_some(event.pid));
        };
        events.read(of).expect("few events");
        let parent = std::process::id();
        assert_eq!(seen, [What::Forked { parent }, What::Executed, What::Ended { status: 3 << 8 }]);
        assert!(forks.contains(&child.id()) && forks.iter().all(|pid| *pid != parent), "{forks:?}");
    }

    #[test]
    fn hostile_messages_are_no_events() {
        assert_eq!(event(&[]), None);
        assert_eq!(event(&[0; 128]), None);
        let exec: Vec<u8> = [vec![0; WHAT], EXEC.to_le_bytes().to_vec(), vec![7; 40]].concat();
        assert_eq!(event(&exec[..DATA]), None);
        assert_eq!(event(&exec).map(|event| event.what), Some(What::Executed));
    }
}
