//! The views of the foreign tools, as those print them. Each is a function over the format's own tables.

pub mod dcpi;
pub mod gprof;
pub mod mleak;
pub mod mprof;
pub mod mptrace;
pub mod recorded;
