//! The handshake: one message each way over a `SOCK_SEQPACKET` Unix socket. The reply carries the area's descriptor; descriptors travel
//! from recorder to preload only.

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

/// Preload to recorder. Who is calling is never taken from here but from the socket's credentials; `pid` only helps a reader of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The process as it sees itself (another number in another pid namespace).
    pub pid: u32,
    /// One of the `ORIGIN_` values.
    pub origin: u32,
    /// Bytes of a page.
    pub page_size: u32,
    /// Soft limit on address space in bytes; `u64::MAX` for none.
    pub address_space: u64,
    /// For a fork child: ticks just before the fork; 0 when not known.
    pub fork_tick: u64,
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
    /// Layout: magic u32, version u16, 0 u16, pid u32, origin u32, page u32, parent u32, address space u64, fork tick u64, zeros.
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
        out
    }

    /// `None` for anything that is not a hello of this version.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        (bytes.len() == HELLO_BYTES && head_is_ours(bytes)).then(|| Hello {
            pid: u32::from_le_bytes(get(bytes, 8)),
            origin: u32::from_le_bytes(get(bytes, 12)),
            page_size: u32::from_le_bytes(get(bytes, 16)),
            parent_pid: u32::from_le_bytes(get(bytes, 20)),
            address_space: u64::from_le_bytes(get(bytes, 24)),
            fork_tick: u64::from_le_bytes(get(bytes, 32)),
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
        let hello = Hello { pid: 7, origin: 1, page_size: 4096, address_space: u64::MAX, fork_tick: 9, parent_pid: 6 };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let reply = Reply { status: 2, area_bytes: 1 << 33 };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        let mut other = hello.encode();
        other[4] ^= 2;
        assert_eq!(Hello::decode(&other), None);
        assert_eq!(Hello::decode(&other[..63]), None);
    }
}
