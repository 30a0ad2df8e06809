//! The list of subcommands. A new one is a file in `commands/` with `Args` (its options, documented
//! for `--help`) and `run`, and a line here. A report that has only the options of all reports
//! needs no file: its line ends with the default of `--top`, and the function of the report has its
//! name. Help, completions and manual pages are made from the list. The groups are those of
//! `heaptape help all`. `daemon` and `compat` are groups of commands themselves, in files of these
//! names.

use crate::Outcome;
use std::ffi::OsString;

pub(crate) use dcpiprof::with_long_options;
pub(crate) use thresholds::{is_list_request, print_metrics};

pub(crate) mod aliases;
mod allocators;
pub(crate) mod common;
mod ctl;
mod dcpicat;
mod dcpidiff;
mod dcpilist;
mod dcpiprof;
mod dcpiscan;
mod env;
mod epochs;
pub(crate) mod examples;
mod frames;
mod gprof;
pub(crate) mod help;
mod live;
mod mappings;
mod mleak;
mod mprof;
mod mptrace;
mod newest;
mod push;
mod record_live;
mod replace;
mod send;
mod ship;
mod since;
mod start;
mod thresholds;
mod verdicts;

/// Returns the subcommand if it is `record` with valid arguments. The table of all options of all
/// subcommands, which [`Subcommand`] needs, takes 3 ms, and a program waits for `record`.
pub(crate) fn parse_record(args: &[OsString]) -> Option<Subcommand> {
    let (_, args) = args.split_first().filter(|(_, args)| args.first().is_some_and(|name| name == "record"))?;
    let command = <record::Args as clap::Args>::augment_args(clap::Command::new("record"));
    let matches = command.try_get_matches_from(args).ok()?;
    <record::Args as clap::FromArgMatches>::from_arg_matches(&matches).ok().map(Subcommand::Record)
}

macro_rules! commands {
    ($($group:literal { $($(#[$meta:meta])* $name:ident $variant:ident $($rows:literal)?,)* })*) => {
        $($(commands!(@module $name $($rows)?);)*)*

        /// A subcommand with its options.
        #[derive(clap::Subcommand)]
        pub(crate) enum Subcommand { $($($(#[$meta])* $variant(commands!(@args $name $($rows)?))),*),* }

        /// The groups of subcommands with their names, in the order of `heaptape help all`. A name
        /// has `_` for `-`.
        pub(crate) const GROUPS: &[(&str, &[&str])] = &[$(($group, &[$(stringify!($name)),*])),*];

        /// Runs the subcommand of the command line.
        ///
        /// # Errors
        /// Wrong arguments, files that cannot be read or written, sockets that do not answer.
        pub(crate) fn run(subcommand: Subcommand) -> anyhow::Result<Outcome> {
            match subcommand { $($(Subcommand::$variant(args) => commands!(@run $name args $($rows)?)),*),* }
        }
    };
    (@module $name:ident) => { mod $name; };
    (@module $name:ident $rows:literal) => {};
    (@args $name:ident) => { $name::Args };
    (@args $name:ident $rows:literal) => { common::Common };
    (@run $name:ident $args:ident) => { $name::run($args) };
    (@run $name:ident $args:ident $rows:literal) => { $args.print($rows, heaptape_reports::$name::run) };
}

commands! {
    "Every day" {
        /// Run a program and record its heap allocations
        record Record,
        /// Record a process that's already running; detaching restores it
        attach Attach,
        /// List blocks that were never freed, by call site, with a verdict
        leaks Leaks,
        /// List the call sites of the live bytes at the peak
        peak Peak,
        /// List call sites by allocated bytes
        sites Sites,
        /// Compare two runs, builds, points in time or processes
        diff Diff,
        /// Show live bytes and blocks over the run
        timeline Timeline,
        /// Show what the resident memory consists of, and which blocks keep free memory in use
        rss Rss,
        /// Show a recording as a page in the browser
        open Open,
        /// Show live heaps, allocation rates and growth of the daemon's processes
        top Top,
    }
    "Look closer" {
        /// Summarize a recording on one screen
        report Report,
        /// Show what became of a program: how it ended, what grew, since when
        why Why,
        /// List the functions that call a function, by what is allocated below the calls
        callers Callers,
        /// List the functions that a function calls, by what they allocate for it
        callees Callees,
        /// Show the source of a function, with what each line allocates
        source Source,
        /// Show who holds the blocks that are live at the end, and which of them nobody holds
        holds Holds,
        /// Show which blocks contained an address, who allocated and who freed them
        address Address,
        /// Show what a crashed process did with its heap: uses after a free, double frees
        core Core,
        /// Show what each thread allocated and freed
        threads Threads 40,
        /// Show the distribution of block sizes
        sizes Sizes 16,
        /// Show the distribution of block lifetimes
        lifetimes Lifetimes 16,
        /// List call sites of short-lived blocks: freed after few events of the same thread
        temporary Temporary,
        /// Show the cost of reallocations, and call sites that reallocate repeatedly
        realloc Realloc 20,
        /// List call sites that free (of recordings made with --free-stacks)
        free_sites FreeSites 20,
        /// Show heap fragmentation, and call sites whose blocks hold nearly empty pages
        fragmentation Fragmentation 20,
        /// Replay a recording under other allocators, and compare the memory that they take
        whatif Whatif,
        /// Check a recording: status 0 complete, 1 readable with something missing, 2 unreadable
        verify Verify,
    }
    "Files" {
        /// Write a recording in the formats of other tools
        export Export,
        /// Convert files from one format to another
        convert Convert,
        /// Print a file of any known format as text, one record per line
        dump Dump,
        /// Copy the symbols of a recording into it, or write it to one file
        pack Pack,
        /// Write the trace (MTRC) of a process to standard output, while it runs or afterwards
        stream Stream,
    }
    "Around it" {
        /// Record the services of a machine for months: start, list, show, mode, epochs and so on
        daemon Daemon,
        /// Views like those of mpatrol, gprof and DCPI
        compat Compat,
        /// Restore a process whose `heaptape attach` was killed
        detach Detach,
        /// Print the path of the preload library
        library Library,
        /// Show or write the manual pages
        man Man,
        /// Print completions for a shell
        completions Completions,
    }
}
