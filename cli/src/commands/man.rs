//! `heaptape man`: shows or writes the manual pages.

use super::examples;
use super::help;
use crate::{Outcome, exit};
use anyhow::{Context, bail};
use clap_mangen::Man;
use heaptape_formats::quantity;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of `heaptape man`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Command to show the page of, such as leaks or daemon list; filters for the options of all
    /// reports, status for the exit statuses [default: heaptape itself]
    command: Vec<String>,
    /// Write all pages to this folder instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let heaptape = crate::command();
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        return write_all(folder, &heaptape, "heaptape").map(|()| Outcome::Done);
    }
    let name = format!("heaptape-{}", args.command.join("-"));
    let pages = topics();
    let command = match args.command.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(heaptape.clone()),
        [topic] if pages.iter().any(|page| page.get_name() == topic) => {
            pages.into_iter().find(|page| page.get_name() == topic)
        }
        ref path => path.iter().try_fold(&heaptape, |command, name| command.find_subcommand(name)).cloned(),
    };
    let Some(command) = command else {
        bail!("unknown command '{}'; heaptape help all lists all", args.command.join(" "))
    };
    let text = page(&command, name.trim_end_matches('-'))?;
    if !(std::io::stdout().is_terminal() && show(&text)) {
        std::io::stdout().lock().write_all(&text)?;
    }
    Ok(Outcome::Done)
}

/// Returns the pages that are about no single command.
fn topics() -> [clap::Command; 2] {
    let filters = help::shared().about("Time ranges, processes, names and filters of all reports");
    let status = clap::Command::new("status").disable_help_flag(true).about("Exit statuses of all commands");
    [filters.after_long_help(quantity::HELP), status.after_long_help(exit::help())]
}

/// Writes the pages of a command and of those in it.
fn write_all(folder: &Path, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    write(folder, command, name)?;
    let commands = command.get_subcommands().filter(|below| below.get_name() != "help");
    commands.into_iter().try_for_each(|below| write_all(folder, below, &format!("{name}-{}", below.get_name())))?;
    if name == "heaptape" {
        topics().iter().try_for_each(|topic| write(folder, topic, &format!("{name}-{}", topic.get_name())))?;
    }
    Ok(())
}

fn page(command: &clap::Command, name: &str) -> anyhow::Result<Vec<u8>> {
    // The title of a page is one word (heaptape-leaks); its synopsis has the command line.
    let typed = name.replacen('-', " ", 1).replacen("daemon-", "daemon ", 1).replacen("compat-", "compat ", 1);
    let examples = examples::of(typed.trim_start_matches("heaptape").trim(), usize::MAX);
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    // Options of all reports are on a page of their own.
    let command = command.clone().mut_args(|arg| if arg.is_hide_long_help_set() { arg.hide(true) } else { arg });
    let mut command = command.name(name.to_string()).bin_name(&typed).disable_help_subcommand(true);
    command = command.before_long_help("").after_long_help(format!("{examples}\n\n{after}").trim().to_owned());
    let usage = command.render_usage().to_string();
    let man = Man::new(command).source(format!("heaptape {}", env!("CARGO_PKG_VERSION"))).manual("heaptape");
    let mut text = Vec::new();
    man.render(&mut text)?;
    let text = String::from_utf8_lossy(&text)
        .replace(".SH EXTRA\n", if examples.is_empty() { ".SH NOTES\n" } else { ".SH EXAMPLES\n" })
        .replace("\nExamples:\n", "\n")
        .replace("\nExit status:\n", "\n.SH EXIT STATUS\n");
    Ok(with_synopsis(&text, usage.trim_start_matches("Usage:").trim()).into_bytes())
}

/// Replaces the synopsis, which clap fills with each option, by the line of the help.
fn with_synopsis(page: &str, usage: &str) -> String {
    let Some((before, after)) = page.split_once(".SH SYNOPSIS\n") else { return page.to_owned() };
    let rest = after.find("\n.SH ").map_or("", |at| &after[at..]);
    let lines: Vec<String> = usage.lines().map(|line| line.trim().replace('\\', "\\\\").replace('-', "\\-")).collect();
    format!("{before}.SH SYNOPSIS\n{}{rest}", lines.join("\n.br\n"))
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
