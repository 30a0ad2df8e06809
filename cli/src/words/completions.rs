//! `heaptape completions`: completions for shells, made of the table of words.

use crate::Outcome;
use clap_complete::Shell;
use std::io::Write;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "heaptape", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(Outcome::Done)
}
