//! The stack table: a prefix tree of call stacks, whose nodes are pairs of the caller's node and a
//! return address. The preload appends nodes, numbered from 1 without gaps, callers first. Node 0
//! is the empty stack. A node is written before any index or event refers to it, so a reader that
//! has its number from an event finds it complete.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Flag of every written node. A node without it is a hole: it was claimed and never written,
/// because its thread was killed.
pub const WRITTEN: u32 = 0x80;
/// Flag: the step to this node's caller was guessed.
pub const GUESSED: u32 = 1;
/// Flag: the stack has more outer frames, which were left out.
pub const TRUNCATED: u32 = 2;
/// Flag: the address is that of the next instruction, not a return address: a signal interrupted
/// the frame, or it was made by hand and returns to the start of a function.
pub const SIGNAL: u32 = 4;
/// Flag: the address belongs to a module that has been unmapped since. Later stacks do not share
/// the node.
pub const RETIRED: u32 = 8;

/// Flag, beside [`TRUNCATED`]: the callers could not be found. With [`GUESSED`] the code has no
/// unwind data, without it the stack could not be read. The depth limit does not set it.
pub const LOST: u32 = 16;

/// One node as stored in shared memory.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Node {
    address: AtomicU64,
    /// `parent | flags << 32`.
    parent_and_flags: AtomicU64,
}

/// The decoded content of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeValue {
    /// The number of the caller's node.
    pub parent: u32,
    /// The return address of the frame.
    pub address: u64,
    /// The union of the flags that this module defines.
    pub flags: u32,
}

impl Node {
    /// Writes the node. Only the thread that claimed its number may call this.
    #[inline(always)]
    pub fn write(&self, value: NodeValue) {
        self.address.store(value.address, Relaxed);
        self.parent_and_flags.store(u64::from(value.parent) | u64::from(value.flags | WRITTEN) << 32, Relaxed);
    }

    /// Returns the current content. A hole has no [`WRITTEN`] flag.
    #[inline(always)]
    pub fn read(&self) -> NodeValue {
        let packed = self.parent_and_flags.load(Relaxed);
        NodeValue { parent: packed as u32, address: self.address.load(Relaxed), flags: (packed >> 32) as u32 }
    }

    /// Adds the flag [`RETIRED`].
    pub fn retire(&self) {
        self.parent_and_flags.fetch_or(u64::from(RETIRED) << 32, Relaxed);
    }
}

/// Reads node `number` of a table that an untrusted process writes. Returns `None` for a hole, for
/// a number out of range, and for a parent that is not smaller than its child, which would make a
/// loop in the tree.
///
/// # Safety
/// `first` must point to the first of `capacity` mapped, readable nodes. The recorder, which
/// created the area, ensures it.
pub unsafe fn read(first: *const Node, capacity: u32, number: u32) -> Option<NodeValue> {
    if number == 0 || number >= capacity {
        return None;
    }
    // SAFETY: `number` is below `capacity`, and all nodes of the table are mapped.
    let value = unsafe { &*first.add(number as usize) }.read();
    (value.flags & WRITTEN != 0 && value.parent < number).then_some(value)
}
