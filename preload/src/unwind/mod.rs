//! Return address -> frames. Laws:
//! * a capture is a pure function of (rip, rsp, rbp, the words read, the rules);
//! * every word that is read lies where the stack is known to be mapped;
//! * [`memo`] trusts what it remembers only after every word that the old walk read has been read again;
//! * a module that is unmapped takes its rules and all memos with it ([`rules::generation`]).
//!
//! What is particular to x86-64 stands in [`machine`]; another processor is another file of that shape and another `entry.rs`.

pub mod cfi;
pub mod expression;
pub mod machine;
mod maps;
pub mod memo;
pub mod objects;
pub mod rules;
pub mod tables;
pub mod walk;

use heaptape_wire::limits::MAX_FRAMES;

/// One frame of a captured stack, innermost first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Frame {
    /// Address of the word that held the return address.
    pub slot: u64,
    /// Return address (or the interrupted instruction, with [`SIGNAL`]).
    pub address: u64,
    /// Frame pointer in the caller's frame.
    pub bp: u64,
    /// Where the step to this frame read the frame pointer, in words from `slot`; 0 when it left it as it was.
    pub bp_words: i16,
    /// Sum of the flags below.
    pub flags: u16,
    /// Stack node of the stack from the outermost frame to this one.
    pub node: u32,
}

const _: () = assert!(size_of::<Frame>() == 32);

/// The node's flags ([`heaptape_wire::nodes`]) stand in the low bits.
pub const NODE_FLAGS: u16 = 0x0f;
/// The step to this frame read more than the two words that a `Frame` names: never trusted from memory, always stepped again.
pub const SPECIAL: u16 = 0x100;

/// Room for the frames of one capture.
pub type Frames = [Frame; MAX_FRAMES];
