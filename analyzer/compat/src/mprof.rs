//! mprof's view of a profile: allocation bins, direct allocations, memory leaks, and the call
//! graph.
//!
//! The output is byte for byte that of mprof 1.3, white space included. One difference: where mprof
//! prints a number that wrapped below zero, this view prints the negative number. `docs/mpatrol.md`
//! lists all differences.

mod bins;
mod call_graph;
mod cells;
mod direct;
mod dot;
mod graph;
mod leaks;
mod sites;

use heaptape_formats::mptl::{Profile, layout::FIRST_KNOWN};
use heaptape_formats::{Error, Kind};
use sites::Sites;
use std::io::{self, Write};

/// Returns the message that mprof prints for a file that cannot be read.
pub fn read_error_message(error: &Error) -> &'static str {
    match error.kind {
        Kind::Version(version) if version < FIRST_KNOWN => "Profiling file version too old",
        Kind::Version(_) => "Profiling file version too new",
        Kind::Truncated => "Error reading file",
        _ => "Invalid file format",
    }
}

/// Options of the view `mprof`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Distinguishes the call sites within a function, and shows their offsets from its start.
    pub addresses: bool,
    /// Sorts and weighs by counts instead of bytes.
    pub counts: bool,
    /// Labels the edges of the graph with the unfreed amounts.
    pub leaks: bool,
    /// Number of innermost frames by which the leak table distinguishes call stacks; 0 means all.
    pub stack_depth: usize,
    /// Whether to print the call graph, too.
    pub call_graph: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { addresses: false, counts: false, leaks: false, stack_depth: 1, call_graph: false }
    }
}

/// Prints the tables of a profile.
///
/// # Examples
///
/// ```
/// use heaptape_compat::mprof::{self, Options};
/// use heaptape_formats::mptl::Profile;
///
/// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mpatrol/basic.mpt"))?;
/// let (profile, _) = Profile::read(&bytes)?;
/// let mut text = Vec::new();
/// mprof::view(&profile, &Options::default(), &mut text)?;
/// assert_eq!(text, std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mpatrol/basic.mprof.txt"))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn view(profile: &Profile, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let sites = Sites::new(profile, options.addresses);
    let totals = bins::totals(&profile.bins);
    bins::print(&profile.bins, &totals, out)?;
    out.write_all(b"\n\n")?;
    direct::print(&sites, options.counts, &totals, out)?;
    out.write_all(b"\n\n")?;
    leaks::print(&sites, options, &totals, out)?;
    if options.call_graph {
        out.write_all(b"\n\n")?;
        call_graph::print(&sites, options.counts, out)?;
    }
    Ok(())
}

/// Prints the call graph for Graphviz. `source` is the name of the profile, for the comment in the
/// first line.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn graph(profile: &Profile, options: &Options, source: &str, out: &mut dyn Write) -> io::Result<()> {
    dot::print(&Sites::new(profile, options.addresses), options, source, out)
}

/// A number of blocks and bytes. Differences may be negative in inconsistent profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    count: i128,
    bytes: i128,
}

impl Amount {
    fn get(&self, counts: bool) -> i128 {
        if counts { self.count } else { self.bytes }
    }

    fn minus(&self, other: &Amount) -> Amount {
        Amount { count: self.count - other.count, bytes: self.bytes - other.bytes }
    }
}

/// Allocated and unfreed amounts of a whole profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    allocated: Amount,
    unfreed: Amount,
}
