//! `heaptape daemon`: the commands around the daemon.

use super::{ctl, env, epochs, push, send, ship, start, why};
use crate::Outcome;

/// Options of `heaptape daemon`: none.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Record all programs that preload the library, for months
    Start(Box<start::Args>),
    /// Print the environment that makes the daemon record a service
    Env(env::Args),
    #[command(flatten)]
    Ask(ctl::Command),
    /// Show what became of a program: how it ended, what grew, since when
    Why(why::Args),
    /// List the daemon's epochs, as paths for other commands
    Epochs(epochs::Args),
    /// Ship the tables of sealed epochs to one place for many hosts
    Ship(ship::Args),
    /// Push profiles of the daemon's programs to Pyroscope or an OTLP server
    Push(push::Args),
    /// Send a trace (MTRC) or a profile (MPTL) to the daemon
    Send(send::Args),
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Start(args) => start::run(*args),
        Command::Env(args) => env::run(args),
        Command::Ask(command) => ctl::run(command),
        Command::Why(args) => why::run(args),
        Command::Epochs(args) => epochs::run(args),
        Command::Ship(args) => ship::run(args),
        Command::Push(args) => push::run(args),
        Command::Send(args) => send::run(args),
    }
}
