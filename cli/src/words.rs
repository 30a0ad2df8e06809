//! THE list of subcommands. A new one is a file in `words/` with `Args` (its option table, documented for `--help`) and
//! `run`, and a line here; help, completions and man pages follow from the list.

use crate::Outcome;

pub use dcpiprof::spelled;
pub use gates::{asks_for_list, list};

mod asked;
pub mod examples;
mod frames;
mod gates;

macro_rules! words {
    ($($(#[$meta:meta])* $name:ident $variant:ident,)*) => {
        $(mod $name;)*

        /// A subcommand and its options.
        #[derive(clap::Subcommand)]
        pub enum Word { $($(#[$meta])* $variant($name::Args)),* }

        /// Runs a subcommand.
        pub fn run(word: Word) -> anyhow::Result<Outcome> {
            match word { $(Word::$variant(args) => $name::run(args)),* }
        }
    };
}

words! {
    /// Run a program and record what it does with its heap
    record Record,
    /// Serve all programs that have the library preloaded, for months
    daemon Daemon,
    /// Ask the daemon, or tell it what to do
    ctl Ctl,
    /// What to put into a service's drop-in so that the daemon records it
    env Env,
    /// Give the daemon a trace (MTRC) or a profile (MPTL) to keep
    send Send,
    /// The trace (MTRC) of a process on standard output, while it runs or afterwards
    stream Stream,
    /// What programs hold, live
    top Top,
    /// The daemon's epochs, as paths for the other words
    epochs Epochs,
    /// What a recorded program did with its heap, on one screen
    report Report,
    /// What was never freed, by stack, with a verdict
    leaks Leaks,
    /// Who holds the most live bytes
    peak Peak,
    /// Where memory is allocated
    sites Sites,
    /// How large blocks are
    sizes Sizes,
    /// How long blocks live
    lifetimes Lifetimes,
    /// Blocks freed with nothing between
    temporary Temporary,
    /// Live bytes and blocks over the run
    timeline Timeline,
    /// What each thread allocated and freed
    threads Threads,
    /// What resizes cost, and who resizes again and again
    realloc Realloc,
    /// Where memory is given back (recordings made with --free-stacks)
    free_sites FreeSites,
    /// How live blocks lie in memory, and who keeps nearly empty pages
    fragmentation Fragmentation,
    /// What changed between two runs, builds, moments or processes
    diff Diff,
    /// Copy what names a recording's frames into it, for another machine
    pack Pack,
    /// A recording as files for other tools
    export Export,
    /// Files of one format as files of another
    convert Convert,
    /// Any file of any format as plain text, one record a line
    dump Dump,
    /// Whether a recording is whole: 0 whole, 1 readable with gaps or cut, 2 unreadable
    verify Verify,
    /// DCPI's profile by procedure or image
    dcpiprof Dcpiprof,
    /// DCPI's listing of a procedure with its samples
    dcpilist Dcpilist,
    /// DCPI profiles as plain text
    dcpicat Dcpicat,
    /// DCPI's comparison of two sets of profiles
    dcpidiff Dcpidiff,
    /// Print the library's path, for preloading by hand
    library Library,
    /// View gmon.out files as GNU gprof prints them
    gprof Gprof,
    /// Show an mpatrol log's unfreed allocations, as mleak does
    mleak Mleak,
    /// Show a profile (MPTL) as mprof does
    mprof Mprof,
    /// Show a trace (MTRC) as mptrace does
    mptrace Mptrace,
    /// Manual pages
    man Man,
    /// Completions for a shell
    completions Completions,
}
