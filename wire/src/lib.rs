//! What crosses from the traced process to the recorder, as bytes in memory that both map.
//!
//! The preload writes events, stack nodes and modules; the recorder makes the memory, reads them,
//! and writes only the words that are its own (`tail`, `state`, `heartbeat`, slots given back).
//! Neither trusts the other: every number read from the other side is bounded before use. No
//! dependency, no `std`, no `alloc`: this crate lives inside the traced process.
//!
//! [`WIRE_VERSION`] rises whenever a layout, a number or a meaning changes. The hello carries it; a
//! mismatch is refused and the program runs untraced.
#![no_std]

pub mod area;
pub mod board;
pub mod event;
pub mod hello;
pub mod limits;
pub mod modules;
pub mod nodes;
pub mod ring;
pub mod segments;

pub use area::{Area, Header, Layout, Params, SlotControl};
pub use event::{Event, Op, Record};
pub use nodes::Node;

/// Version of everything in this crate. 1: the first. 2: gate, [`Op::INTERVAL`]. 3: timestamps at
/// the tail. 4: bounded waits. 5: the board, `own_malloc`. 6: rings of different sizes.
pub const WIRE_VERSION: u16 = 6;
