//! The unwinder: from a return address to the frames of the call stack. Its rules:
//! * A capture is a pure function of (the return address, the stack pointer, the frame pointer, the
//!   words read, the unwind rules).
//! * Every word that is read is where the stack is known to be mapped.
//! * The stack cache ([`super::cache`]) uses a remembered stack only after every word that the old
//!   walk read has been read again.
//! * When a module is unmapped, its rules and all stack caches are dropped ([`rules::generation`]).
//!
//! The registers that it follows are those of [`crate::arch::registers`].

mod cfi;
pub(crate) mod code;
mod dwarf;
mod expression;
pub(crate) mod memory;
pub(crate) mod other;
pub(crate) mod rule;
pub(crate) mod rules;
#[cfg(test)]
mod tests;
pub(crate) mod walk;

use crate::arch;
use crate::arch::registers::packed;
use heaptape_wire::limits::MAX_FRAMES;

/// One frame of a captured stack.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Frame {
    /// Address of the word that held the return address.
    pub slot: u64,
    /// The return address, or the address of the interrupted instruction with
    /// [`SIGNAL`](heaptape_wire::nodes::SIGNAL).
    pub address: u64,
    /// The frame pointer in the caller's frame. In a remembered frame it is valid only if the walk
    /// depends on it ([`LIVE_BP`]).
    pub bp: u64,
    /// Low half: how many words below `slot` the step to this frame read the frame pointer; 0 if
    /// the step left it unchanged; and the words between `slot` and the CFA ([`packed`]). High
    /// half: the flags below.
    pub step_info: u64,
}

impl Frame {
    /// Stores a frame as two halves, as it is copied later.
    #[inline(always)]
    pub(crate) fn put(target: &mut Frame, slot: u64, address: u64, bp: u64, step_info: u64) {
        // SAFETY: a frame is four words and aligned to 32 bytes.
        unsafe { arch::store_four((target as *mut Frame).cast(), [slot, address, bp, step_info]) };
    }

    /// Returns how many words below `slot` the frame pointer was read; 0 if it was not.
    #[inline(always)]
    pub(crate) const fn bp_distance(&self) -> u64 {
        self.step_info & ((1 << packed::DISTANCE_BITS) - 1)
    }
    /// Returns the stack pointer after the return: the caller's.
    #[inline(always)]
    pub(crate) const fn sp(&self) -> u64 {
        packed::sp(self.slot, self.step_info)
    }
    #[inline(always)]
    pub(crate) const fn flags(&self) -> u32 {
        (self.step_info >> 32) as u32
    }
    /// Returns whether the walk from the frame inside this one depends on its frame pointer because
    /// the walk from this frame does.
    #[inline(always)]
    pub(crate) const fn passes_live_bp(&self) -> bool {
        self.flags() & LIVE_BP != 0 && self.bp_distance() == 0
    }
    /// Adds a flag to the frame.
    #[inline(always)]
    pub(crate) fn mark(&mut self, flag: u32) {
        self.step_info |= u64::from(flag) << 32;
    }
}

/// Mask of the flags of a node ([`heaptape_wire::nodes`]), which are in the low bits.
pub(crate) const NODE_FLAGS: u32 = 0x1f;
/// Flag: the step to this frame read more than the two words that a `Frame` describes, so it is
/// never taken from the cache.
pub(crate) const SPECIAL: u32 = 0x100;

/// Flag: the return address was in a register of the kernel's signal frame, whose location tells
/// nothing of the caller's stack pointer. The walk goes on only with what the step to this frame
/// found.
pub(crate) const DETACHED: u32 = 0x800;

/// Flag: the step from this frame depends on its frame pointer.
pub(crate) const USES_BP: u32 = 0x200;
/// Flag: the walk from this frame outwards depends on its frame pointer. Either this step does, or
/// one further out before the pointer is replaced by a saved one. Optimized code keeps other values
/// in that register; they change all the time and do not matter then.
pub(crate) const LIVE_BP: u32 = 0x400;

/// Space for the frames of one capture.
pub(crate) type Frames = [Frame; MAX_FRAMES];
