//! `heaptape man`: manual pages, made of the table of words.

use crate::Outcome;
use anyhow::{Context, bail};
use clap_mangen::Man;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// A word; none: heaptape itself
    word: Option<String>,
    /// Write all pages into this folder instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "word")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let whole = crate::command();
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        write(folder, &whole, "heaptape")?;
        for word in whole.get_subcommands() {
            write(folder, word, &format!("heaptape-{}", word.get_name()))?;
        }
        return Ok(Outcome::Done);
    }
    let text = match &args.word {
        None => page(&whole, "heaptape")?,
        Some(name) => match whole.find_subcommand(name) {
            Some(word) => page(word, &format!("heaptape-{name}"))?,
            None => bail!("there is no word {name}"),
        },
    };
    if !(std::io::stdout().is_terminal() && shown(&text)) {
        std::io::stdout().lock().write_all(&text)?;
    }
    Ok(Outcome::Done)
}

/// A word's page.
fn page(command: &clap::Command, name: &str) -> anyhow::Result<Vec<u8>> {
    // The page's title is one word; how it is typed stands in its synopsis.
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

/// Shown by the system's own man, where there is one.
fn shown(text: &[u8]) -> bool {
    let Ok(mut man) = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn() else { return false };
    // Who leaves the pager early closes the pipe.
    let _ = man.stdin.take().map(|mut to| to.write_all(text));
    man.wait().is_ok_and(|status| status.success())
}
