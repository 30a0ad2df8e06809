//! The protocol between a traced process and the recorder: the layout of the memory that both map,
//! and the messages of the handshake.
//!
//! The preload writes events, stack nodes and modules. The recorder creates the memory, reads them,
//! and writes only its own fields (`tail`, `state`, `heartbeat`, the state of freed slots). Neither
//! side trusts the other: every number from the other side is bounded before use. The crate has no
//! dependencies and uses neither `std` nor `alloc`, since it is linked into the traced process.
//!
//! [`WIRE_VERSION`] rises whenever a layout, a number or a meaning changes, so that the other side
//! would misread it. The recorder refuses another version, and the program then runs untraced.
//! [`WIRE_MINOR`] rises when something is added that the other side may ignore. Hello and reply
//! carry both. Library and recorder of one version work together with any minor versions: both use
//! what the lower one has, which the reply names.
//!
//! With `--cfg loom` the crate has events and the ring alone, for `tests/ring.rs`.
#![warn(missing_docs)]
#![cfg_attr(not(loom), no_std)]

#[cfg(not(loom))]
pub mod area;
#[cfg(not(loom))]
pub mod board;
pub mod event;
#[cfg(not(loom))]
pub mod hello;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod modules;
#[cfg(not(loom))]
pub mod nodes;
#[cfg(not(loom))]
pub mod patches;
pub mod ring;
#[cfg(not(loom))]
pub mod sanitizer;
#[cfg(not(loom))]
pub mod search_tables;
#[cfg(not(loom))]
pub mod segments;
#[cfg(not(loom))]
pub mod standalone;

#[cfg(not(loom))]
pub use area::{Area, Header, Layout, Params, SlotControl};
pub use event::{Event, Op, Record};
#[cfg(not(loom))]
pub use nodes::Node;

/// Version of the protocol. 1: the first. 2: `activation`, [`Op::SAMPLE_INTERVAL`]. 3: timestamps
/// at the tail. 4: bounded waits. 5: the board, `own_malloc`. 6: rings of different sizes.
/// 7: patches, events of allocators inside the program. 8: annotations, reported events.
pub const WIRE_VERSION: u16 = 8;

/// Minor version of the protocol. 0: the first. 1: hello and reply name it. 2:
/// `first_ring_shift`. 3: requests to load the library into a static program. 4: `announce_exit`.
/// 5: `record_mappings`. 6: `madvise` and `mprotect` ([`mapping::RECORD_ALL`]). 7: `search_bytes`.
/// 8: [`hello::ORIGIN_BEFORE_EXIT`]. 9: [`area::CHILD`].
pub const WIRE_MINOR: u16 = 9;

/// The minor version from which on a library knows `first_ring_shift`.
pub const MINOR_FIRST_RING: u16 = 2;
