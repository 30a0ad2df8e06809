//! The handshake: one message each way over a `SOCK_SEQPACKET` Unix socket. The reply carries the
//! area's descriptor; descriptors travel from recorder to preload only.

use crate::WIRE_VERSION;

/// Starts both messages.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HTPE");
/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 64;
/// Bytes of a [`Reply`].
pub const REPLY_BYTES: usize = 32;

/// The image started (or was exec'd: the recorder knows the pid).
pub const ORIGIN_START: u32 = 0;
/// The process was forked from a traced one.
pub const ORIGIN_FORK: u32 = 1;

/// Not a hello: the process is about to go on with a program that cannot be traced. Its [`Notice`]
/// follows; no answer is sent.
pub const ORIGIN_NOTICE: u32 = 2;

/// The most bytes of a path behind a [`Notice`].
pub const NOTICE_PATH: usize = 1024;

/// Why a program cannot be traced, as the library in its maker saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum UntracedReason {
    /// It has no interpreter, so nothing loads the library.
    Static = 1,
    /// It gets another user's or group's rights, or capabilities: the loader takes no library from
    /// its environment.
    Rights = 2,
    /// It is a 32-bit program.
    Narrow = 3,
    /// The environment that it is given names no library or no socket.
    Environment = 4,
    /// The program's root or mount namespace does not show the recorder's socket, or the library.
    Unreachable = 5,
    /// It could not open a socket.
    Descriptors = 6,
    /// The sandbox of the process may kill it for the system calls of an attach.
    Sandbox = 7,
    /// The recorder's queue was full for as long as the process waits.
    Busy = 8,
    /// It was built with a sanitizer, whose run-time must come before all other libraries.
    Sanitizer = 9,
}

impl UntracedReason {
    /// From its number.
    pub const fn of(number: u32) -> Option<UntracedReason> {
        match number {
            1 => Some(UntracedReason::Static),
            2 => Some(UntracedReason::Rights),
            3 => Some(UntracedReason::Narrow),
            4 => Some(UntracedReason::Environment),
            5 => Some(UntracedReason::Unreachable),
            6 => Some(UntracedReason::Descriptors),
            7 => Some(UntracedReason::Sandbox),
            8 => Some(UntracedReason::Busy),
            9 => Some(UntracedReason::Sanitizer),
            _ => None,
        }
    }

    /// For a person.
    pub const fn text(self) -> &'static str {
        match self {
            UntracedReason::Static => "it is statically linked",
            UntracedReason::Rights => "it runs with other rights (setuid), and then no library is preloaded",
            UntracedReason::Narrow => "it is a 32-bit program",
            UntracedReason::Environment => "its environment names no library to preload",
            UntracedReason::Unreachable => "it cannot reach the recorder from its root or mount namespace",
            UntracedReason::Descriptors => "it has no descriptor left with which to reach the recorder",
            UntracedReason::Sandbox => "its sandbox does not let it reach the recorder",
            UntracedReason::Busy => "it no longer waited for the recorder, which was busy (HEAPTAPE_ATTACH_MS)",
            UntracedReason::Sanitizer => "it was built with a sanitizer, which must be loaded first",
        }
    }
}

/// Says that `pid` (0: the sender) runs a program that is not traced. The program's path follows
/// the message's [`HELLO_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The process, as its maker knows it; 0 for the sender itself.
    pub pid: u32,
    /// Why.
    pub why: UntracedReason,
}

impl Notice {
    /// Layout: as a [`Hello`] up to `origin`; then why u32 in the place of the page size.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let hello = Hello { pid: self.pid, origin: ORIGIN_NOTICE, page_size: self.why as u32, ..Hello::default() };
        hello.encode()
    }

    /// `None` for anything that is not a notice of this version. The path is what lies behind
    /// [`HELLO_BYTES`] bytes.
    pub fn decode(bytes: &[u8]) -> Option<Notice> {
        let head = bytes.get(..HELLO_BYTES)?;
        let hello = Hello::decode_any(head).filter(|hello| hello.origin == ORIGIN_NOTICE)?;
        Some(Notice { pid: hello.pid, why: UntracedReason::of(hello.page_size)? })
    }
}

/// Preload to recorder. Who is calling is never taken from here but from the socket's credentials;
/// `pid` only helps a reader of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The process as it sees itself (another number in another pid namespace).
    pub pid: u32,
    /// One of the `ORIGIN_` values.
    pub origin: u32,
    /// Bytes of a page.
    pub page_size: u32,
    /// Bytes of address space that its limit leaves it; `u64::MAX` without a limit.
    pub address_space: u64,
    /// For a fork child: ticks just before the fork, or `fork_age` after it; 0 when not known.
    pub fork_tick: u64,
    /// For a child of a fork that was not seen: nanoseconds from the fork to `fork_tick`.
    pub fork_age: u64,
    /// For a fork child: the parent as the parent saw itself.
    pub parent_pid: u32,
}

/// The recorder takes part; the area's descriptor comes along.
pub const ACCEPTED: u32 = 0;
/// Another wire version.
pub const REFUSED_VERSION: u32 = 1;
/// No more room for sessions, or no memory for the area.
pub const REFUSED_FULL: u32 = 2;
/// Not wanted by the configuration.
pub const REFUSED_FILTER: u32 = 3;

/// Recorder to preload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// [`ACCEPTED`] or one of the `REFUSED_` values.
    pub status: u32,
    /// Bytes of the area.
    pub area_bytes: u64,
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        out.copy_from_slice(found);
    }
    out
}

fn head_is_ours(bytes: &[u8]) -> bool {
    get(bytes, 0) == MAGIC.to_le_bytes() && get(bytes, 4) == WIRE_VERSION.to_le_bytes()
}

impl Hello {
    /// Layout: magic u32, version u16, 0 u16, pid u32, origin u32, page u32, parent u32, address
    /// room u64, fork tick u64, fork age u64, zeros.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &WIRE_VERSION.to_le_bytes());
        put(&mut out, 8, &self.pid.to_le_bytes());
        put(&mut out, 12, &self.origin.to_le_bytes());
        put(&mut out, 16, &self.page_size.to_le_bytes());
        put(&mut out, 20, &self.parent_pid.to_le_bytes());
        put(&mut out, 24, &self.address_space.to_le_bytes());
        put(&mut out, 32, &self.fork_tick.to_le_bytes());
        put(&mut out, 40, &self.fork_age.to_le_bytes());
        out
    }

    /// `None` for anything that is not a hello of this version.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        Hello::decode_any(bytes).filter(|hello| hello.origin != ORIGIN_NOTICE)
    }

    fn decode_any(bytes: &[u8]) -> Option<Hello> {
        (bytes.len() == HELLO_BYTES && head_is_ours(bytes)).then(|| Hello {
            pid: u32::from_le_bytes(get(bytes, 8)),
            origin: u32::from_le_bytes(get(bytes, 12)),
            page_size: u32::from_le_bytes(get(bytes, 16)),
            parent_pid: u32::from_le_bytes(get(bytes, 20)),
            address_space: u64::from_le_bytes(get(bytes, 24)),
            fork_tick: u64::from_le_bytes(get(bytes, 32)),
            fork_age: u64::from_le_bytes(get(bytes, 40)),
        })
    }
}

impl Reply {
    /// Layout: magic u32, version u16, 0 u16, status u32, 0 u32, area bytes u64, zeros.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut out = [0; REPLY_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &WIRE_VERSION.to_le_bytes());
        put(&mut out, 8, &self.status.to_le_bytes());
        put(&mut out, 16, &self.area_bytes.to_le_bytes());
        out
    }

    /// `None` for anything that is not a reply of this version.
    pub fn decode(bytes: &[u8]) -> Option<Reply> {
        (bytes.len() == REPLY_BYTES && head_is_ours(bytes)).then(|| Reply {
            status: u32::from_le_bytes(get(bytes, 8)),
            area_bytes: u64::from_le_bytes(get(bytes, 16)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        let (address_space, fork_tick, fork_age) = (u64::MAX, 9, 8);
        let hello = Hello { pid: 7, origin: 1, page_size: 4096, address_space, fork_tick, fork_age, parent_pid: 6 };
        assert_eq!((Hello::decode(&hello.encode()), Notice::decode(&hello.encode())), (Some(hello), None));
        for number in 0..10 {
            let Some(why) = UntracedReason::of(number) else { continue };
            let notice = Notice { pid: 5, why };
            let message = [&notice.encode()[..], b"/bin/x"].concat();
            assert_eq!((why as u32, Notice::decode(&message)), (number, Some(notice)));
            assert_eq!((Hello::decode(&notice.encode()), Notice::decode(&message[..63])), (None, None));
        }
        let reply = Reply { status: 2, area_bytes: 1 << 33 };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        let mut other = hello.encode();
        other[4] ^= 2;
        assert_eq!(Hello::decode(&other), None);
        assert_eq!(Hello::decode(&other[..63]), None);
    }
}
