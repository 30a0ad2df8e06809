//! Reports on one subject each, a file for each, as text for people and as JSON for scripts.
//!
//! Nothing here runs for each event. The models that do, their replay
//! ([`heaptape_analyzer::Replay`]), and the grouping and naming of call sites are in the analyzer.
#![forbid(unsafe_code)]

pub mod address;
pub mod callers;
pub mod core_file;
pub mod fragmentation;
pub mod free_sites;
pub mod holds;
pub mod inclusive;
pub mod lifetimes;
pub mod peak;
mod print;
pub mod realloc;
pub mod rss;
pub mod sites;
pub mod sizes;
pub mod source;
pub mod suspects;
pub mod temporary;
pub mod threads;
pub mod threshold;
pub mod timeline;
mod unknown_blocks;
pub mod why;
