//! Start-up: the process attaches to the recorder ([`attach`]), and a thread gets a state at its
//! first event and enables its hooks ([`claim`]). A forked child leaves its parent's session
//! ([`inherited`]). The attach hooks functions of allocators inside the program ([`patch`]).

pub(crate) mod attach;
pub(crate) mod claim;
pub(crate) mod inherited;
pub(crate) mod patch;
