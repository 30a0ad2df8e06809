//! `heaptape man`: shows or writes the manual pages.

use super::examples;
use crate::Outcome;
use anyhow::{Context, bail};
use clap_mangen::Man;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of `heaptape man`.
#[derive(clap::Args)]
pub struct Args {
    /// Command to show the page of [default: heaptape itself]
    command: Option<String>,
    /// Write all pages to this folder instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let heaptape = crate::command();
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        write(folder, &heaptape, "heaptape")?;
        for command in heaptape.get_subcommands() {
            write(folder, &with_examples(command), &format!("heaptape-{}", command.get_name()))?;
        }
        return Ok(Outcome::Done);
    }
    let text = match &args.command {
        None => page(&heaptape, "heaptape")?,
        Some(name) => match heaptape.find_subcommand(name) {
            Some(command) => page(&with_examples(command), &format!("heaptape-{name}"))?,
            None => bail!("unknown command '{name}'; heaptape --help lists all"),
        },
    };
    if !(std::io::stdout().is_terminal() && show(&text)) {
        std::io::stdout().lock().write_all(&text)?;
    }
    Ok(Outcome::Done)
}

/// Returns a command whose page has its examples after the options.
fn with_examples(command: &clap::Command) -> clap::Command {
    let examples = examples::of(command.get_name());
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    command.clone().after_long_help(format!("{examples}\n\n{after}"))
}

/// Returns the page of a command.
fn page(command: &clap::Command, name: &str) -> anyhow::Result<Vec<u8>> {
    // The title of a page is one word (heaptape-leaks); its synopsis has the command line.
    let typed = name.replacen('-', " ", 1);
    let command = command.clone().name(name.to_string()).bin_name(typed).disable_help_subcommand(true);
    let mut text = Vec::new();
    Man::new(command).source(format!("heaptape {}", env!("CARGO_PKG_VERSION"))).manual("heaptape").render(&mut text)?;
    Ok(String::from_utf8_lossy(&text)
        .replace(".SH EXTRA\n", ".SH EXAMPLES\n")
        .replace("\nExamples:\n", "\n")
        .replace("\nExit status:\n", "\n.SH EXIT STATUS\n")
        .into_bytes())
}

fn write(folder: &Path, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, page(command, name)?).with_context(|| path.display().to_string())?;
    eprintln!("{}", path.display());
    Ok(())
}

/// Shows a page with the system's `man`. Returns false where there is none.
fn show(text: &[u8]) -> bool {
    let Ok(mut man) = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn() else { return false };
    // The pipe is closed when the user leaves the pager early.
    let _ = man.stdin.take().map(|mut to| to.write_all(text));
    man.wait().is_ok_and(|status| status.success())
}
