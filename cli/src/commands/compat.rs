//! `heaptape compat`: views like those of other tools.

use super::{dcpicat, dcpidiff, dcpilist, dcpiprof, dcpiscan, gprof, mleak, mprof, mptrace};
use crate::Outcome;

/// Options of `heaptape compat`: none.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show a profile (MPTL) as mprof does
    Mprof(mprof::Args),
    /// Show a trace (MTRC) as mptrace does
    Mptrace(Box<mptrace::Args>),
    /// Show the unfreed allocations of an mpatrol log, as mleak does
    Mleak(mleak::Args),
    /// Show gmon.out files as GNU gprof does
    Gprof(gprof::Args),
    /// Show a profile by procedure or image, as DCPI's dcpiprof does
    Dcpiprof(dcpiprof::Args),
    /// List a procedure with its samples, as DCPI's dcpilist does
    Dcpilist(dcpilist::Args),
    /// Print DCPI profiles as text, as dcpicat does
    Dcpicat(dcpicat::Args),
    /// Compare two sets of profiles, as DCPI's dcpidiff does
    Dcpidiff(dcpidiff::Args),
    /// List programs and libraries with the identities that profiles have, as DCPI's dcpiscan does
    Dcpiscan(dcpiscan::Args),
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Mprof(args) => mprof::run(args),
        Command::Mptrace(args) => mptrace::run(*args),
        Command::Mleak(args) => mleak::run(args),
        Command::Gprof(args) => gprof::run(args),
        Command::Dcpiprof(args) => dcpiprof::run(args),
        Command::Dcpilist(args) => dcpilist::run(args),
        Command::Dcpicat(args) => dcpicat::run(args),
        Command::Dcpidiff(args) => dcpidiff::run(args),
        Command::Dcpiscan(args) => dcpiscan::run(args),
    }
}
