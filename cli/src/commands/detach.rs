//! `heaptape detach`: restores a process whose `heaptape attach` was killed.

use super::attach::pid_of;
use crate::Outcome;
use anyhow::Context;
use heaptape_recorder::run::running_process;

/// Options of `heaptape detach`.
#[derive(clap::Args)]
#[command(
    after_help = "This is for a process whose `heaptape attach` was killed: a running one is ended by Ctrl-C or SIGTERM. \
                  The functions get their own code back. The library stays mapped, and is not called any more."
)]
pub(crate) struct Args {
    /// The allocators that were given to attach
    #[arg(long, value_name = "PREFIX|FILE", value_parser = super::allocators::name)]
    allocator: Vec<String>,
    /// The process: its pid, or the name of its program
    #[arg(value_name = "PID|NAME")]
    process: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let pid = pid_of(&args.process)?;
    let restored = running_process::restore(pid, &super::allocators::read(&args.allocator)?);
    match restored.with_context(|| format!("process {pid} is not restored"))? {
        0 => println!("process {pid} has no function that heaptape has hooked"),
        count => println!("process {pid}: {count} functions have their own code again"),
    }
    Ok(Outcome::Done)
}
