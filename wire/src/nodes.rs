//! The prefix tree of stacks: node = (caller's node, return address). Appended by the preload,
//! dense from number 1, callers first; node 0 is the empty stack. A node is written before any
//! index or event names it, so a reader that got the number from an event finds it whole.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Mark of every written node, so that a hole (claimed but never written: its thread was killed) is
/// seen.
pub const WRITTEN: u32 = 0x80;
/// The step to this node's caller was guessed.
pub const GUESS: u32 = 1;
/// The stack goes on outwards but was cut here.
pub const CUT: u32 = 2;
/// The address was interrupted by a signal: the address of an instruction, not of a return.
pub const SIGNAL: u32 = 4;
/// The address lies in a module that has been unmapped since: not to be shared with later stacks.
pub const RETIRED: u32 = 8;

/// One node: `address`, then `parent | flags << 32`.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Node {
    address: AtomicU64,
    rest: AtomicU64,
}

/// A node's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The caller's node.
    pub parent: u32,
    /// Return address.
    pub address: u64,
    /// Sum of the flags of this module.
    pub flags: u32,
}

impl Node {
    /// Writes the node; only the thread that claimed its number does.
    #[inline(always)]
    pub fn write(&self, value: Value) {
        self.address.store(value.address, Relaxed);
        self.rest.store(u64::from(value.parent) | u64::from(value.flags | WRITTEN) << 32, Relaxed);
    }

    /// The values as they stand; a hole has no [`WRITTEN`] flag.
    #[inline(always)]
    pub fn read(&self) -> Value {
        let rest = self.rest.load(Relaxed);
        Value { parent: rest as u32, address: self.address.load(Relaxed), flags: (rest >> 32) as u32 }
    }

    /// Adds [`RETIRED`].
    pub fn retire(&self) {
        self.rest.fetch_or(u64::from(RETIRED) << 32, Relaxed);
    }
}

/// Reads node `number` of a table, judged as bytes of a stranger: `None` for a hole, a number out
/// of range, or a parent that is not smaller than its child (the tree would have a loop).
///
/// # Safety
/// `first` must be the start of `capacity` mapped, readable nodes. The recorder, which made the
/// area, upholds it.
pub unsafe fn read(first: *const Node, capacity: u32, number: u32) -> Option<Value> {
    if number == 0 || number >= capacity {
        return None;
    }
    // SAFETY: number < capacity, and the caller vouches for the table.
    let value = unsafe { &*first.add(number as usize) }.read();
    (value.flags & WRITTEN != 0 && value.parent < number).then_some(value)
}
