//! Return address -> frames. Laws:
//! * a capture is a pure function of (rip, rsp, rbp, the words read, the rules);
//! * every word that is read lies where the stack is known to be mapped;
//! * [`memo`] trusts what it remembers only after every word that the old walk read has been read
//!   again;
//! * a module that is unmapped takes its rules and all memos with it ([`rules::generation`]).
//!
//! What is particular to x86-64 stands in [`machine`]; another processor is another file of that
//! shape and another `entry.rs`.

pub mod cfi;
#[cfg(heaptape_verify)]
mod check;
pub mod expression;
pub mod machine;
mod maps;
pub mod objects;
pub mod other;
pub mod path_cache;
pub mod rules;
pub mod stack_cache;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod walk;

use core::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_store_si128};
use heaptape_wire::limits::MAX_FRAMES;

/// One frame of a captured stack.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Frame {
    /// Address of the word that held the return address.
    pub slot: u64,
    /// Return address (or the interrupted instruction, with
    /// [`SIGNAL`](heaptape_wire::nodes::SIGNAL)).
    pub address: u64,
    /// Frame pointer in the caller's frame. In a remembered frame it holds only where the walk
    /// depends on it ([`LIVE_BP`]).
    pub bp: u64,
    /// Low half: where the step to this frame read the frame pointer, in words below `slot` (0: it
    /// left it as it was). High half: sum of the flags below.
    pub step_info: u64,
}

impl Frame {
    /// Stores the frame in two halves, as it is copied later: a load of a half that was just stored
    /// as two words waits for both to reach the cache (measured: 24 % of a capture).
    #[inline(always)]
    pub fn put(place: &mut Frame, slot: u64, address: u64, bp: u64, step_info: u64) {
        let halves = (place as *mut Frame).cast::<__m128i>();
        // SAFETY: a frame is two aligned halves of 16 bytes; SSE2 is part of x86-64.
        unsafe {
            _mm_store_si128(halves, _mm_set_epi64x(address as i64, slot as i64));
            _mm_store_si128(halves.add(1), _mm_set_epi64x(step_info as i64, bp as i64));
        }
    }

    /// Words below `slot` where the frame pointer was read; 0: nowhere.
    #[inline(always)]
    pub const fn bp_words(&self) -> u64 {
        self.step_info & 0xffff_ffff
    }
    /// The flags.
    #[inline(always)]
    pub const fn flags(&self) -> u32 {
        (self.step_info >> 32) as u32
    }
    /// Whether the walk outwards from the frame inside this one depends on its frame pointer
    /// because it does from here.
    #[inline(always)]
    pub const fn passes_live_bp(&self) -> bool {
        self.flags() & LIVE_BP != 0 && self.bp_words() == 0
    }
    /// Adds a flag.
    #[inline(always)]
    pub fn mark(&mut self, flag: u32) {
        self.step_info |= u64::from(flag) << 32;
    }
}

/// The node's flags ([`heaptape_wire::nodes`]) stand in the low bits.
pub const NODE_FLAGS: u32 = 0x0f;
/// The step to this frame read more than the two words that a `Frame` names: never trusted from
/// memory, always stepped again.
pub const SPECIAL: u32 = 0x100;

/// The step from this frame depends on its frame pointer.
pub const USES_BP: u32 = 0x200;
/// The walk from this frame outwards depends on its frame pointer: this step does, or one further
/// out before a saved one takes its place. Optimised code keeps other things in that register, so
/// that elsewhere its value changes all the time and means nothing.
pub const LIVE_BP: u32 = 0x400;

/// Room for the frames of one capture.
pub type Frames = [Frame; MAX_FRAMES];
