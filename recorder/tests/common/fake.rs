//! Plays the traced process: hello, area, rings, as the wire's comments say.

use heaptape_recorder::os::processor;
use heaptape_recorder::os::sys::{self, Mapping};
use heaptape_wire::area::{CLOCK_TSC, SLOT_CLAIMED, SLOT_FREE};
use heaptape_wire::event::DELTA_LIMIT;
use heaptape_wire::hello::{HELLO_BYTES, Hello, REPLY_BYTES, Reply};
use heaptape_wire::nodes::NodeValue;
use heaptape_wire::ring::Ring;
use heaptape_wire::{Event, Op, Params, Record, SlotControl};
use nix::sys::socket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

pub(crate) fn connect(path: &Path) -> OwnedFd {
    let flags = socket::SockFlag::SOCK_CLOEXEC;
    let family = socket::AddressFamily::Unix;
    let fd = socket::socket(family, socket::SockType::SeqPacket, flags, None).expect("a socket");
    socket::connect(fd.as_raw_fd(), &socket::UnixAddr::new(path).expect("a path")).expect("connects");
    fd
}

/// Sends a message and returns the answer.
pub(crate) fn say(fd: &OwnedFd, bytes: &[u8]) -> (Option<Reply>, Option<OwnedFd>) {
    socket::send(fd.as_raw_fd(), bytes, socket::MsgFlags::MSG_NOSIGNAL).expect("sends");
    let mut reply = [0; REPLY_BYTES];
    let (count, file) = sys::receive_with(sys::fd(fd), &mut reply).unwrap_or((0, None));
    (Reply::decode(&reply[..count]), file)
}

/// The traced process.
pub(crate) struct Process {
    pub mapping: Mapping,
}

pub(crate) fn hello() -> Hello {
    Hello { pid: std::process::id(), page_size: 4096, address_space: u64::MAX, ..Hello::default() }
}

impl Process {
    pub(crate) fn attach(path: &Path, hello: Hello) -> Arc<Process> {
        let bytes: [u8; HELLO_BYTES] = hello.encode();
        let socket = connect(path);
        let (reply, file) = say(&socket, &bytes);
        let reply = reply.expect("a reply");
        assert_eq!((reply.status, reply.minor), (0, hello.agreed()));
        let file = file.expect("an area");
        // The first page has the sizes. It is not mapped alone here, so they are the defaults.
        let header = nix::sys::stat::fstat(&file).expect("stat");
        assert_eq!(header.st_size as u64, reply.area_bytes);
        let mapping = mapped(&file);
        assert_eq!(mapping.bytes(), reply.area_bytes);
        mapping.header().attached.store(1, Release);
        drop(socket);
        Arc::new(Process { mapping })
    }

    pub(crate) fn now(&self) -> u64 {
        heaptape_recorder::os::clock::Clock::of(self.mapping.header().clock.load(Relaxed)).now()
    }

    /// Appends a node.
    pub(crate) fn node(&self, parent: u32, address: u64, flags: u32) -> u32 {
        let number = self.mapping.header().nodes_used.0.fetch_add(1, Relaxed);
        self.mapping.node_cell(number).expect("room").write(NodeValue { parent, address, flags });
        number
    }

    pub(crate) fn module(&self, start: u64, end: u64, path: &str) {
        let number = self.mapping.header().modules_used.0.fetch_add(1, AcqRel);
        let nodes = self.mapping.header().nodes_used.0.load(Relaxed);
        self.mapping.module(number).expect("room").publish(start, end, start, nodes, path.as_bytes(), b"\x12\x34");
    }
}

/// Maps an area.
pub(crate) fn mapped(file: &OwnedFd) -> Mapping {
    Mapping::of(file, params_of(file)).expect("maps")
}

fn params_of(file: &OwnedFd) -> Params {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(file.try_clone().expect("a descriptor"));
    const SHIFT: usize = std::mem::offset_of!(heaptape_wire::Header, first_ring_shift);
    let mut page = [0; SHIFT + 4];
    file.read_exact_at(&mut page, 0).expect("reads");
    let number = |at: usize, size: usize| page[at..at + size].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
    assert_eq!(&page[..8], b"HEAPAREA");
    let small = |at| number(at, 4) as u32;
    Params { ring_bytes: number(16, 8), first_ring_shift: small(SHIFT), slots: small(24), nodes: small(28) }
}

/// A thread of it. Does what the preload does, in the same order.
pub(crate) struct Thread {
    pub process: Arc<Process>,
    pub slot: u32,
    pub ring: Ring,
    pub head: u64,
    pub timestamp: u64,
    pub emitted: u64,
    pub lost: u64,
    pub lost_untold: u64,
    /// Drop instead of waiting.
    pub drops: bool,
    tsc: bool,
}

impl Thread {
    pub(crate) fn claim(process: &Arc<Process>) -> Thread {
        let mapping = &process.mapping;
        let header = mapping.header();
        let slot = (0..mapping.params().slots)
            .find(|slot| {
                let owner = &mapping.slot(*slot).expect("a slot").owner.0;
                owner.state.compare_exchange(SLOT_FREE, SLOT_CLAIMED, AcqRel, Relaxed).is_ok()
            })
            .expect("a free slot");
        let control = mapping.slot(slot).expect("a slot");
        control.owner.0.tid.store(nix::unistd::gettid().as_raw() as u32, Release);
        header.slots_used.0.fetch_max(slot + 1, AcqRel);
        Thread {
            slot,
            ring: mapping.ring(slot).expect("a ring"),
            head: control.producer.0.head.load(Acquire),
            timestamp: 0,
            emitted: 0,
            lost: 0,
            lost_untold: 0,
            drops: false,
            tsc: header.clock.load(Relaxed) == CLOCK_TSC,
            process: Arc::clone(process),
        }
    }

    pub(crate) fn control(&self) -> &SlotControl {
        self.process.mapping.slot(self.slot).expect("a slot")
    }

    pub(crate) fn put(&mut self, record: Record) {
        self.ring.put(self.head, record);
        self.head += 1;
    }

    pub(crate) fn publish(&self) {
        self.control().producer.0.head.store(self.head, Release);
    }

    fn has_room(&self) -> bool {
        self.head + 4 <= self.control().consumer.0.tail.load(Acquire) + self.ring.capacity()
    }

    /// One event (or half of a resize); false when it was lost.
    pub(crate) fn event(&mut self, op: Op, stack: u32, address: u64, size: u64) -> bool {
        if op.is_event() {
            self.emitted += 1;
            self.control().producer.0.emitted.store(self.emitted, Relaxed);
        }
        while !self.has_room() {
            if self.drops {
                self.lost += 1;
                self.lost_untold += 1;
                self.control().producer.0.dropped.store(self.lost, Release);
                return false;
            }
            std::thread::yield_now();
        }
        if self.lost_untold > 0 {
            let lost = std::mem::take(&mut self.lost_untold);
            self.put(Record::dropped(lost));
        }
        self.control().producer.0.reservation.store(self.head + 1, Relaxed);
        let now = if self.tsc { processor::tsc() } else { self.process.now() };
        let mut delta = now.saturating_sub(self.timestamp);
        if delta >= DELTA_LIMIT {
            self.put(Record::timestamp(now));
            delta = 0;
        }
        self.timestamp = self.timestamp.max(now);
        let event = Event { op, stack, address, size };
        if event.is_compact() {
            self.put(event.compact(delta));
        } else {
            event.extended(delta).into_iter().for_each(|record| self.put(record));
        }
        self.control().producer.0.reservation.store(self.head, Relaxed);
        self.publish();
        true
    }
}
