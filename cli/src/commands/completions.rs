//! `heaptape completions`: prints completions for shells.

use crate::Outcome;
use clap_complete::Shell;
use std::io::Write;

/// Options of `heaptape completions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shell to print completions for
    shell: Shell,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "heaptape", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(Outcome::Done)
}
