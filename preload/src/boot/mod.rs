//! Start-up: the process attaches to the recorder ([`attach`]), and a thread gets a state at its
//! first event and enables its hooks ([`claim`]). A forked child leaves its parent's session
//! ([`inherited`]).

pub mod attach;
pub mod claim;
pub mod inherited;
