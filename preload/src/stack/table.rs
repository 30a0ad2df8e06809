//! The stack table: finds the number of a call stack, and appends nodes to the shared prefix tree.
//!
//! Nodes are dense and in shared memory. A node is found by a private index of words `tag 36 | node
//! 28`, hashed by (caller's node, address, flags). The index is a cache: an entry that is lost, by
//! a race or while the index grows, costs a second node for the same stack, which the recorder
//! merges. (Nodes at hashed positions in the shared file were measured first: each new one touched
//! a new page.)

use super::modules;
use crate::elf::objects;
use crate::session::private::{self, FIRST_INDEX_LOG2};
use crate::session::{self, Area};
use crate::sys::{self, Need};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heaptape_wire::area::STACKS_CALLER;
use heaptape_wire::event;
use heaptape_wire::limits::MAX_FRAMES;
use heaptape_wire::nodes::{NodeValue, RETIRED, WRITTEN};

/// Number of nodes that are mapped before the program enters a sandbox: 1 MiB.
const NODES_AHEAD: u32 = 65_536;
/// Number of entries that are probed from the hashed one on.
const PROBES: usize = 8;

static CAPACITY: AtomicU32 = AtomicU32::new(0);
/// Address of the index, with the binary logarithm of its number of entries in the low bits.
static INDEX: AtomicU64 = AtomicU64::new(0);
static GROWING: AtomicBool = AtomicBool::new(false);
static SETTINGS: AtomicU32 = AtomicU32::new(MAX_FRAMES as u32);

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// The most frames of a stack.
    pub max_frames: usize,
    /// Whether only the return address is recorded, without a walk.
    pub caller_only: bool,
}

/// Returns the current settings.
#[inline(always)]
pub(crate) fn settings() -> Settings {
    let word = SETTINGS.load(Relaxed);
    Settings { max_frames: (word & 0xffff) as usize, caller_only: word >> 16 != 0 }
}

/// Starts with an empty index for the nodes of an area. Returns false if there is no memory for it.
pub(crate) fn start(area: &Area) -> bool {
    let header = area.header();
    let frames = header.max_frames.load(Relaxed).clamp(2, MAX_FRAMES as u32);
    let caller_only = header.stacks.load(Relaxed) == STACKS_CALLER;
    SETTINGS.store(frames | u32::from(caller_only) << 16, Relaxed);
    CAPACITY.store(area.params().nodes.min(event::STACK_LIMIT), Relaxed);
    GROWING.store(false, Relaxed);
    header.nodes_used.0.fetch_max(1, Relaxed);
    modules::announce_again(area);
    let Some(first) = private::index(FIRST_INDEX_LOG2) else { return false };
    INDEX.store(first as u64 | u64::from(FIRST_INDEX_LOG2), Release);
    true
}

#[inline(always)]
fn index_and_log2() -> (*const AtomicU64, u32) {
    let word = INDEX.load(Acquire);
    ((word & !0xfff) as *const AtomicU64, (word & 0xfff) as u32)
}

#[inline(always)]
const fn hash(value: &NodeValue) -> u64 {
    let key = value.address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (value.parent as u64 | (value.flags as u64) << 32);
    let mixed = (key ^ key >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

/// Returns the content of a node that has been used.
#[cfg(heaptape_verify)]
pub fn value(number: u32) -> NodeValue {
    session::node(number).map_or(NodeValue { parent: 0, address: 0, flags: 0 }, heaptape_wire::Node::read)
}

const NODE_BITS: u32 = 28;

/// A walk down the tree, from a node to those of the frames inside it.
#[derive(Clone, Copy)]
pub(crate) struct Descent {
    node: u32,
    /// Whether this walk has appended the node, so that it has no children.
    is_new: bool,
}

impl Descent {
    /// Begins at a node; 0 is the empty stack.
    #[inline(always)]
    pub(crate) fn from(node: u32) -> Descent {
        Descent { node, is_new: false }
    }

    /// Goes on to the node of (current node, address, flags), and appends it if it is new. Returns
    /// its number. If the table is full, the descent stays where it is, and the frame is counted.
    #[inline(always)]
    pub(crate) fn step(&mut self, address: u64, flags: u32) -> u32 {
        let value = NodeValue { parent: self.node, address, flags: flags | WRITTEN };
        if !self.is_new {
            if let Some(number) = successor(&value) {
                self.node = number;
                return number;
            }
            let hash = hash(&value);
            match find(&value, hash) {
                Ok(number) => self.node = number,
                Err(probe) => *self = Descent { node: append(&value, hash, Some(probe)), is_new: true },
            }
        } else {
            self.node = append(&value, hash(&value), None);
        }
        self.node
    }
}

/// Returns the node of (caller's node, address, flags), and appends it if it is new.
#[inline(always)]
pub(crate) fn node(parent: u32, address: u64, flags: u32) -> u32 {
    Descent::from(parent).step(address, flags)
}

/// Looks for a node in the index. Returns its number, or the probe at which to insert it.
#[inline(always)]
fn find(value: &NodeValue, hash: u64) -> Result<u32, usize> {
    let (index, log2) = index_and_log2();
    let (start, mask) = ((hash >> (64 - log2)) as usize, (1usize << log2) - 1);
    for probe in 0..PROBES {
        // SAFETY: the entry is masked, so it is inside the index, which stays mapped while the
        // session lives; replaced indexes stay mapped too.
        let word = unsafe { (*index.add((start + probe) & mask)).load(Acquire) };
        if word == 0 {
            return Err(probe);
        }
        if word >> NODE_BITS == hash & ((1 << (64 - NODE_BITS)) - 1) {
            let number = (word & ((1 << NODE_BITS) - 1)) as u32;
            // Numbers in the index were claimed and written before. One of the parent process may
            // not be mapped in a child.
            if session::node(number).is_some_and(|node| node.read() == *value) {
                return Ok(number);
            }
        }
    }
    Err(PROBES - 1)
}

/// Returns the node after the parent, if it is the wanted one. A walk appends the nodes of its new
/// frames one after the other, so most of them are the successor of their parent, in the same cache
/// line. The index is as large as the program has stacks, so each look at it is a cache miss.
#[inline(always)]
fn successor(value: &NodeValue) -> Option<u32> {
    let number = value.parent + 1;
    // Numbers up to the capacity are in the table; its segments are mapped as a whole.
    let node = if number < CAPACITY.load(Relaxed) { session::node(number)? } else { return None };
    (node.read() == *value).then_some(number)
}

#[cold]
#[inline(never)]
fn append(value: &NodeValue, hash: u64, probe: Option<usize>) -> u32 {
    sys::aligned(|| append_aligned(value, hash, probe))
}

#[inline(always)]
fn append_aligned(value: &NodeValue, hash: u64, probe: Option<usize>) -> u32 {
    let Some(area) = session::area() else { return 0 };
    if settings().caller_only {
        // No walk looks up the rules of its object in this mode.
        let _ = objects::find(value.address.wrapping_sub(1) as usize).is_some_and(|object| modules::note(&object));
    }
    let used = &area.header().nodes_used.0;
    let capacity = CAPACITY.load(Relaxed);
    let full = || {
        area.header().nodes_missing.fetch_add(1, Relaxed);
        value.parent
    };
    if used.load(Relaxed) >= capacity {
        return full();
    }
    let number = used.fetch_add(1, Relaxed);
    if number >= capacity || !area.map_nodes(number) {
        return full();
    }
    // This thread alone has claimed the number.
    let Some(node) = session::node(number) else { return full() };
    node.write(*value);
    let (index, log2) = index_and_log2();
    let entry = match probe {
        Some(probe) => retired_index(index, log2, hash).unwrap_or(probe),
        None => free_entry(index, log2, hash),
    };
    insert(index, log2, hash, number, entry);
    if number >= 1 << (log2 - 1) {
        grow(number + 1, log2);
    }
    number
}

/// Returns the entry of a node with this hash that can no longer be found, because its library was
/// unmapped.
fn retired_index(index: *const AtomicU64, log2: u32, hash: u64) -> Option<usize> {
    (0..PROBES).find(|probe| {
        let entry = ((hash >> (64 - log2)) as usize + probe) & ((1 << log2) - 1);
        // SAFETY: masked, so inside the index.
        let word = unsafe { (*index.add(entry)).load(Acquire) };
        let is_alike = word != 0 && word >> NODE_BITS == hash & ((1 << (64 - NODE_BITS)) - 1);
        let node = || session::node((word & ((1 << NODE_BITS) - 1)) as u32);
        is_alike && node().is_some_and(|node| node.read().flags & RETIRED != 0)
    })
}

/// Maps memory for more nodes while that is still allowed.
pub(crate) fn map_ahead() {
    let Some(area) = session::area() else { return };
    let used = area.header().nodes_used.0.load(Relaxed).min(CAPACITY.load(Relaxed) - 1);
    let more = used.saturating_add(NODES_AHEAD);
    area.map_nodes(more.min(CAPACITY.load(Relaxed) - 1));
    while 1 << (index_and_log2().1 - 1) < more {
        let (_, log2) = index_and_log2();
        grow(used, log2);
        if index_and_log2().1 == log2 {
            break;
        }
    }
}

fn insert(index: *const AtomicU64, log2: u32, hash: u64, number: u32, probe: usize) {
    let entry = ((hash >> (64 - log2)) as usize + probe) & ((1 << log2) - 1);
    // SAFETY: masked, so inside the index.
    unsafe { (*index.add(entry)).store(hash << NODE_BITS | u64::from(number), Release) };
}

/// Returns the probe of the first free entry for a hash, or else the last one, which is replaced.
fn free_entry(index: *const AtomicU64, log2: u32, hash: u64) -> usize {
    let (start, mask) = ((hash >> (64 - log2)) as usize, (1usize << log2) - 1);
    // SAFETY: masked, so inside the index.
    let is_free = |probe: &usize| unsafe { (*index.add((start + probe) & mask)).load(Relaxed) } == 0;
    (0..PROBES).find(is_free).unwrap_or(PROBES - 1)
}

/// Fills an index with all nodes that may be shared.
fn fill(index: *const AtomicU64, log2: u32, nodes: u32) {
    for number in 1..nodes {
        let Some(node) = session::node(number) else { break };
        // A hole, claimed and not yet written, reads as zeros.
        let value = node.read();
        if value.flags & WRITTEN == 0 || value.flags & RETIRED != 0 {
            continue;
        }
        let hash = hash(&value);
        insert(index, log2, hash, number, free_entry(index, log2, hash));
    }
}

/// Creates an index of twice the current size. The current one stays mapped for readers that still
/// use it, without its memory: they find no node there, and append another one.
fn grow(nodes: u32, log2: u32) {
    let word = INDEX.load(Acquire);
    let max_entries = (CAPACITY.load(Relaxed) as usize).next_power_of_two() * 2;
    if (word & 0xfff) as u32 != log2
        || !Need::MAP_MORE.is_allowed()
        || 1usize << (log2 + 1) > max_entries
        || GROWING.swap(true, Acquire)
    {
        return;
    }
    if let Some(new) = private::index(log2 + 1) {
        session::area().inspect(|area| private::publish(area.header()));
        // The thread that claimed the last node may not have mapped it yet; `fill` ends before that
        // node.
        fill(new, log2 + 1, nodes);
        INDEX.store(new as u64 | u64::from(log2 + 1), Release);
        private::release_index(log2);
    }
    GROWING.store(false, Release);
}
