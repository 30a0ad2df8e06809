//! The handshake: one message in each direction over a `SOCK_SEQPACKET` Unix socket. The reply
//! carries the area's descriptor. Descriptors are passed from the recorder to the preload only.

use crate::{WIRE_MINOR, WIRE_VERSION};

/// The first four bytes of both messages.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HTPE");
/// Size of an encoded [`Hello`] in bytes.
pub const HELLO_BYTES: usize = 64;
/// Size of an encoded [`Reply`] in bytes.
pub const REPLY_BYTES: usize = 32;

/// The process started its program. After an exec the recorder already knows the pid.
pub const ORIGIN_START: u32 = 0;
/// The process was forked from a traced one.
pub const ORIGIN_FORK: u32 = 1;

/// The message is not a hello but a [`Notice`]: a program that cannot be traced is about to run.
/// The recorder sends no reply.
pub const ORIGIN_NOTICE: u32 = 2;

/// The message is not a hello: the process is about to end, and waits until the recorder has read
/// which of its pages are in memory. The recorder then sends a byte, or closes the connection. Only
/// a process whose header has [`crate::Header::announce_exit`] sends it.
pub const ORIGIN_EXIT: u32 = 3;

/// The message is not a hello: the process has called `exit`, or returned from `main`, and waits
/// until the recorder has read which block holds which. No destructor of a global object has run
/// yet. Only a process whose header has [`crate::area::ANNOUNCE_REFERENCES`] sends it.
pub const ORIGIN_BEFORE_EXIT: u32 = 4;

/// The message is not a hello, and of no recorded process: a command asks for the references of the
/// running process with this pid. Only the recorder's own user gets an answer.
pub const ORIGIN_REFERENCES: u32 = 5;

/// The same, of a command that only asks to write what is known of the process.
pub const ORIGIN_SNAPSHOT: u32 = 6;

/// How long a process waits after [`ORIGIN_BEFORE_EXIT`], in milliseconds. It goes on at once if
/// the recorder is gone.
pub const REFERENCES_MS: u64 = 30_000;

/// Maximum length of the texts after a [`Notice`], in bytes: the path of the program and, after a
/// zero, the value of `LD_PRELOAD` where that was replaced. A longer value is cut.
pub const MAX_NOTICE_PATH: usize = 1024;

/// Why a program cannot be traced, as found by the library in the process that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum UntracedReason {
    /// It has no interpreter (dynamic linker), so nothing loads the library.
    Static = 1,
    /// It gets another user's or group's rights, or capabilities, so the loader ignores
    /// `LD_PRELOAD`.
    Rights = 2,
    /// It is a 32-bit program.
    ThirtyTwoBit = 3,
    /// `LD_PRELOAD` is not in the environment of the program, or is empty.
    Environment = 4,
    /// The root or mount namespace of the program does not contain the recorder's socket or the
    /// library.
    Unreachable = 5,
    /// It could not open a socket.
    Descriptors = 6,
    /// The sandbox of the process may kill it for the system calls of an attach.
    Sandbox = 7,
    /// The queue of the recorder's socket was full until the process stopped waiting.
    Busy = 8,
    /// It was built with a sanitizer, whose run-time library must come before all others.
    Sanitizer = 9,
    /// The process has no memory left under its limits for what the library needs.
    Memory = 10,
    /// `LD_PRELOAD` names other libraries. The notice has its value.
    Replaced = 11,
    /// The environment names the library, and not the socket.
    Socket = 12,
    /// The process was forked from one that gave up its attach.
    Parent = 13,
}

impl UntracedReason {
    /// Returns the reason with this number, or `None` for an unknown number.
    pub const fn from_number(number: u32) -> Option<UntracedReason> {
        match number {
            1 => Some(UntracedReason::Static),
            2 => Some(UntracedReason::Rights),
            3 => Some(UntracedReason::ThirtyTwoBit),
            4 => Some(UntracedReason::Environment),
            5 => Some(UntracedReason::Unreachable),
            6 => Some(UntracedReason::Descriptors),
            7 => Some(UntracedReason::Sandbox),
            8 => Some(UntracedReason::Busy),
            9 => Some(UntracedReason::Sanitizer),
            10 => Some(UntracedReason::Memory),
            11 => Some(UntracedReason::Replaced),
            12 => Some(UntracedReason::Socket),
            13 => Some(UntracedReason::Parent),
            _ => None,
        }
    }

    /// Returns the reason as a clause for messages and reports.
    pub const fn text(self) -> &'static str {
        match self {
            UntracedReason::Static => "it is statically linked",
            UntracedReason::Rights => "it runs with other rights (setuid), and then no library is preloaded",
            UntracedReason::ThirtyTwoBit => "it is a 32-bit program",
            UntracedReason::Environment => "LD_PRELOAD was removed from its environment",
            UntracedReason::Unreachable => {
                "it cannot reach the recorder, which is down, outside of its root and mount namespace, or forbidden to it"
            }
            UntracedReason::Descriptors => "it has no descriptor left with which to reach the recorder",
            UntracedReason::Sandbox => "its sandbox does not let it reach the recorder",
            UntracedReason::Busy => "it no longer waited for the recorder, which was busy (HEAPTAPE_ATTACH_MS)",
            UntracedReason::Sanitizer => "it was built with a sanitizer, which must be loaded first",
            UntracedReason::Memory => "its limit on memory leaves no space for the recording",
            UntracedReason::Replaced => "LD_PRELOAD was replaced in its environment",
            UntracedReason::Socket => "HEAPTAPE_SOCKET was removed from its environment",
            UntracedReason::Parent => "it was forked from a process that was not recorded",
        }
    }
}

/// What the sender of a [`Notice`] requests for a static program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LoadRequest {
    /// Nothing: the program runs unrecorded.
    #[default]
    No = 0,
    /// To load the standalone library into the program that the sending thread executes next. The
    /// sender waits for one of the `LOAD_` bytes, or until the recorder closes the connection.
    Exec = 1,
    /// The same for the program that a child executes, which the sending thread starts next.
    Spawn = 2,
}

/// Answer to a [`LoadRequest`]: the program runs unrecorded.
pub const LOAD_REFUSED: u8 = 0;
/// Answer to a [`LoadRequest`]: the recorder follows the thread to its exec.
pub const LOAD_FOLLOWS: u8 = 1;
/// Answer to a [`LoadRequest`]: the process has to permit the recorder to trace it
/// (`PR_SET_PTRACER`), and may then request it once more.
pub const LOAD_NOT_PERMITTED: u8 = 2;

/// In a [`Notice`] and on the board: the sender is about to start a child, whose pid nobody knows
/// yet.
pub const UNKNOWN_CHILD: u32 = u32::MAX;

/// Names a process that is about to run a program that cannot be traced. The texts follow the
/// [`HELLO_BYTES`] bytes of the message; see [`MAX_NOTICE_PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The pid of the process, as its parent sees it; 0 for the sender itself, or
    /// [`UNKNOWN_CHILD`].
    pub pid: u32,
    /// Why it cannot be traced.
    pub reason: UntracedReason,
    /// What is requested for it.
    pub load: LoadRequest,
    /// In a request: id of the thread that starts the program, as it sees itself. Otherwise the pid
    /// of the process that has attached with the sender's program, as it sees itself: the sender,
    /// or the one that it was forked from.
    pub thread: u32,
}

impl Notice {
    /// Encodes the notice. Its layout is that of a [`Hello`], with the reason (u32) where that has
    /// the page size, the thread where it has the parent, and the request where it has the fork
    /// tick.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let Notice { pid, reason, load, thread } = *self;
        let (page_size, parent_pid, fork_tick) = (reason as u32, thread, load as u64);
        Hello { pid, origin: ORIGIN_NOTICE, page_size, parent_pid, fork_tick, ..Hello::default() }.encode()
    }

    /// Decodes a notice. Returns `None` for anything that is not a notice of this version. The path
    /// follows the first [`HELLO_BYTES`] bytes.
    pub fn decode(bytes: &[u8]) -> Option<Notice> {
        let message = bytes.get(..HELLO_BYTES)?;
        let hello = Hello::decode_any(message).filter(|hello| hello.origin == ORIGIN_NOTICE)?;
        let load = match hello.fork_tick {
            1 => LoadRequest::Exec,
            2 => LoadRequest::Spawn,
            _ => LoadRequest::No,
        };
        let reason = UntracedReason::from_number(hello.page_size)?;
        Some(Notice { pid: hello.pid, reason, load, thread: hello.parent_pid })
    }
}

/// The message from the preload to the recorder. The recorder identifies the process by the
/// socket's credentials, never by this message; `pid` only helps a reader of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The pid as the process sees itself. In another pid namespace it is another number.
    pub pid: u32,
    /// One of the `ORIGIN_` values.
    pub origin: u32,
    /// Size of a memory page in bytes.
    pub page_size: u32,
    /// Bytes of address space that are left under the limit of the process; `u64::MAX` if it has no
    /// limit.
    pub address_space: u64,
    /// In a forked child: the ticks just before the fork, or those `fork_age` nanoseconds after it;
    /// 0 if they are not known.
    pub fork_tick: u64,
    /// In a child of a fork that was not intercepted: nanoseconds from the fork to `fork_tick`.
    pub fork_age: u64,
    /// In a forked child: the parent's pid as the parent sees itself.
    pub parent_pid: u32,
    /// Minor version of the protocol that the library speaks.
    pub minor: u16,
}

/// The recorder accepts the process. The area's descriptor comes with the reply.
pub const ACCEPTED: u32 = 0;
/// The recorder speaks another version of the protocol.
pub const REFUSED_VERSION: u32 = 1;
/// The recorder can hold no more sessions, or there is no memory for the area.
pub const REFUSED_FULL: u32 = 2;
/// The configuration excludes the process.
pub const REFUSED_FILTER: u32 = 3;

/// The message from the recorder to the preload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// [`ACCEPTED`] or one of the `REFUSED_` values.
    pub status: u32,
    /// Minor version of the protocol that both use: [`Hello::agreed`].
    pub minor: u16,
    /// Size of the area in bytes.
    pub area_bytes: u64,
}

fn put(out: &mut [u8], offset: usize, bytes: &[u8]) {
    if let Some(target) = out.get_mut(offset..offset + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

fn get<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(source) = bytes.get(offset..offset + N) {
        out.copy_from_slice(source);
    }
    out
}

fn has_our_header(bytes: &[u8]) -> bool {
    get(bytes, 0) == MAGIC.to_le_bytes() && get(bytes, 4) == WIRE_VERSION.to_le_bytes()
}

impl Hello {
    /// Returns the minor version that library and recorder use: the lower one of the two.
    pub fn agreed(&self) -> u16 {
        self.minor.min(WIRE_MINOR)
    }

    /// Encodes the message: magic u32, version u16, minor u16, pid u32, origin u32, page size u32,
    /// parent u32, address space u64, fork tick u64, fork age u64, zeros.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &WIRE_VERSION.to_le_bytes());
        put(&mut out, 6, &self.minor.to_le_bytes());
        put(&mut out, 8, &self.pid.to_le_bytes());
        put(&mut out, 12, &self.origin.to_le_bytes());
        put(&mut out, 16, &self.page_size.to_le_bytes());
        put(&mut out, 20, &self.parent_pid.to_le_bytes());
        put(&mut out, 24, &self.address_space.to_le_bytes());
        put(&mut out, 32, &self.fork_tick.to_le_bytes());
        put(&mut out, 40, &self.fork_age.to_le_bytes());
        out
    }

    /// Decodes a hello. Returns `None` for anything that is not a hello of this version.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        Hello::decode_any(bytes).filter(|hello| !matches!(hello.origin, ORIGIN_NOTICE..=ORIGIN_SNAPSHOT))
    }

    /// Returns about which process a command asks, and whether it asks for the references:
    /// [`ORIGIN_REFERENCES`] or [`ORIGIN_SNAPSHOT`].
    pub fn question(bytes: &[u8]) -> Option<(u32, bool)> {
        let hello = Hello::decode_any(bytes)?;
        let is_question = matches!(hello.origin, ORIGIN_REFERENCES | ORIGIN_SNAPSHOT);
        is_question.then_some((hello.pid, hello.origin == ORIGIN_REFERENCES))
    }

    /// Returns which end of its sender a message announces: [`ORIGIN_EXIT`] or
    /// [`ORIGIN_BEFORE_EXIT`].
    pub fn exit(bytes: &[u8]) -> Option<u32> {
        let origin = Hello::decode_any(bytes)?.origin;
        matches!(origin, ORIGIN_EXIT | ORIGIN_BEFORE_EXIT).then_some(origin)
    }

    fn decode_any(bytes: &[u8]) -> Option<Hello> {
        (bytes.len() == HELLO_BYTES && has_our_header(bytes)).then(|| Hello {
            pid: u32::from_le_bytes(get(bytes, 8)),
            origin: u32::from_le_bytes(get(bytes, 12)),
            page_size: u32::from_le_bytes(get(bytes, 16)),
            parent_pid: u32::from_le_bytes(get(bytes, 20)),
            address_space: u64::from_le_bytes(get(bytes, 24)),
            fork_tick: u64::from_le_bytes(get(bytes, 32)),
            fork_age: u64::from_le_bytes(get(bytes, 40)),
            minor: u16::from_le_bytes(get(bytes, 6)),
        })
    }
}

impl Reply {
    /// Encodes the message: magic u32, version u16, minor u16, status u32, 0 u32, area bytes u64,
    /// zeros.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut out = [0; REPLY_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &WIRE_VERSION.to_le_bytes());
        put(&mut out, 6, &self.minor.to_le_bytes());
        put(&mut out, 8, &self.status.to_le_bytes());
        put(&mut out, 16, &self.area_bytes.to_le_bytes());
        out
    }

    /// Decodes a reply. Returns `None` for anything that is not a reply of this version.
    pub fn decode(bytes: &[u8]) -> Option<Reply> {
        (bytes.len() == REPLY_BYTES && has_our_header(bytes)).then(|| Reply {
            status: u32::from_le_bytes(get(bytes, 8)),
            minor: u16::from_le_bytes(get(bytes, 6)),
            area_bytes: u64::from_le_bytes(get(bytes, 16)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let (address_space, fork_tick, fork_age) = (u64::MAX, 9, 8);
        let hello =
            Hello { pid: 7, origin: 1, page_size: 4096, address_space, fork_tick, fork_age, parent_pid: 6, minor: 3 };
        assert_eq!((Hello::decode(&hello.encode()), Notice::decode(&hello.encode())), (Some(hello), None));
        for number in 0..14 {
            let Some(reason) = UntracedReason::from_number(number) else { continue };
            let load = [LoadRequest::No, LoadRequest::Exec, LoadRequest::Spawn][number as usize % 3];
            let notice = Notice { pid: 5, reason, load, thread: number };
            let message = [&notice.encode()[..], b"/bin/x"].concat();
            assert_eq!((reason as u32, Notice::decode(&message)), (number, Some(notice)));
            assert_eq!((Hello::decode(&notice.encode()), Notice::decode(&message[..63])), (None, None));
            assert_eq!((Hello::exit(&notice.encode()), Hello::exit(&hello.encode())), (None, None));
        }
        for origin in [ORIGIN_EXIT, ORIGIN_BEFORE_EXIT] {
            let exit = Hello { origin, ..hello }.encode();
            assert_eq!((Hello::exit(&exit), Hello::exit(&exit[..63])), (Some(origin), None));
            assert_eq!((Hello::decode(&exit), Notice::decode(&exit)), (None, None));
        }
        for origin in [ORIGIN_REFERENCES, ORIGIN_SNAPSHOT] {
            let asks = Hello { origin, ..hello }.encode();
            let found = Some((7, origin == ORIGIN_REFERENCES));
            assert_eq!((Hello::question(&asks), Hello::question(&asks[..63])), (found, None));
            assert_eq!((Hello::decode(&asks), Hello::exit(&asks)), (None, None));
        }
        assert_eq!(Hello::question(&hello.encode()), None);
        let reply = Reply { status: 2, minor: 1, area_bytes: 1 << 33 };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        let mut other = hello.encode();
        other[4] ^= 2;
        assert_eq!(Hello::decode(&other), None);
        assert_eq!(Hello::decode(&other[..63]), None);
    }

    /// The messages of a process with version 8.0, as they were sent before there were minor
    /// versions.
    const FROZEN_HELLO: &[u8; HELLO_BYTES] =
        b"HTPE\x08\0\0\0\x07\0\0\0\x01\0\0\0\0\x10\0\0\x06\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\
        \x09\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    const FROZEN_REPLY: &[u8; REPLY_BYTES] = b"HTPE\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0";

    #[test]
    fn one_minor_version_apart_is_understood_by_both_sides() {
        let old = Hello::decode(FROZEN_HELLO).unwrap();
        assert_eq!((old.pid, old.page_size, old.parent_pid, old.fork_tick), (7, 4096, 6, 9));
        assert_eq!((old.minor, old.agreed(), Hello { minor: 0, ..old }.encode()), (0, 0, *FROZEN_HELLO));
        let old = Reply::decode(FROZEN_REPLY).unwrap();
        assert_eq!(old, Reply { status: ACCEPTED, minor: 0, area_bytes: 1 << 20 });
        // Of a later minor version this one uses what it knows.
        let later = Hello { minor: WIRE_MINOR + 1, ..Hello::default() };
        assert_eq!(Hello::decode(&later.encode()).map(|hello| hello.agreed()), Some(WIRE_MINOR));
        let later = Reply { minor: WIRE_MINOR + 1, ..Reply::default() };
        assert_eq!(Reply::decode(&later.encode()), Some(later));
        // Another version is refused.
        for version in [7, 9] {
            let mut other = *FROZEN_HELLO;
            other[4] = version;
            assert_eq!(Hello::decode(&other), None);
        }
    }
}
