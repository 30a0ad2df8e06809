//! The heap of one process as its events make it: which blocks are live ([`live`], [`index`]), which
//! call site allocated them ([`stacks`]), and the sums of each site ([`profile`]). [`journal`] and
//! [`history`] remember what changed.

pub(crate) mod annotations;
pub(crate) mod history;
pub(crate) mod index;
pub(crate) mod journal;
pub(crate) mod live;
pub mod profile;
pub mod profile_delta;
pub(crate) mod stacks;
pub mod thread_number;
