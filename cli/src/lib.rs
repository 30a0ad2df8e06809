//! The command `heaptape`: parses the command line, runs the subcommand, and prints its error.
//! `exit.rs` has the exit statuses.
//!
//! It's a library because cargo compiles a library beside those that it uses; a binary waits for
//! all of them.
#![forbid(unsafe_code)]

#[macro_use]
mod terminal;

mod commands;
mod control;
mod exit;
mod full_screen;
mod library;
mod live;
mod log;
mod table;
mod typos;

use clap::{CommandFactory, FromArgMatches, Parser};
use heaptape_analyzer::text;
use heaptape_recorder::os::{confine, crash};
use std::ffi::OsString;
use std::process::ExitCode;

use commands::help;
use exit::Outcome;

/// Large tables are in huge pages, where the system has them.
#[global_allocator]
static ALLOCATOR: heaptape_recorder::os::HugePages = heaptape_recorder::os::HugePages;

/// Returns what `--version` prints: the version, and the versions of libraries, recorders and
/// recordings that it works with.
fn versions() -> &'static str {
    let (protocol, minor) = (heaptape_recorder::WIRE_VERSION, heaptape_recorder::WIRE_MINOR);
    let tape = heaptape_formats::tape::FILE_VERSION;
    format!(
        "{}\n\
         protocol {protocol}.{minor}: its library and its recorder work with those of all versions {protocol}.x\n\
         tape {tape}: reads recordings up to this version",
        env!("CARGO_PKG_VERSION")
    )
    .leak()
}

/// A tape recorder for the heap.
#[derive(Parser)]
#[command(name = "heaptape", version, long_version = versions(), about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    subcommand: commands::Subcommand,
}

/// Returns all subcommands with their options and help. The command line is parsed by it; help,
/// manual pages and completions are made from it.
fn command() -> clap::Command {
    help::complete(Cli::command())
}

/// Parses the command line. Exits on help and on errors, as clap does.
fn parse(args: Vec<OsString>) -> clap::ArgMatches {
    let typed: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    command().try_get_matches_from(args).unwrap_or_else(|error| {
        let all = command();
        let group = typed.get(1).filter(|name| help::GROUPS.contains(&name.as_str()));
        let known = group.and_then(|name| all.find_subcommand(name)).unwrap_or(&all).get_subcommands();
        let commands: Vec<String> = known.map(|subcommand| subcommand.get_name().to_owned()).collect();
        match typos::explain(&error, group.map(String::as_str), &commands, &typed) {
            Some(message) => {
                eprintln!("heaptape: {message}");
                std::process::exit(2)
            }
            None => {
                // clap quotes the arguments in its message. It must not see control characters.
                let cleaned = typed.iter().map(|arg| text::clean(arg).into_owned());
                command().try_get_matches_from(cleaned).err().unwrap_or(error).exit()
            }
        }
    })
}

/// Runs the command with the arguments of the process, and returns its exit status.
pub fn main() -> ExitCode {
    // Before there is any other thread.
    confine::confine_if_requested();
    crash::install();
    let args = commands::aliases::current(std::env::args_os().collect());
    let args = commands::with_long_options(args.into_iter());
    if args.len() < 2 {
        eprintln!("{}", help::first().trim_end());
        return Outcome::NoAnswer.report();
    }
    if let Some(page) = help::page(&args) {
        println!("{}", page.trim_end());
        return ExitCode::SUCCESS;
    }
    let result = if commands::is_list_request(&args) {
        commands::print_metrics()
    } else if let Some(record) = commands::parse_record(&args) {
        commands::run(record)
    } else {
        let matches = parse(args);
        commands::run(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).subcommand)
    };
    let style = text::Style::of_stderr();
    for line in heaptape_analyzer::symbols::unshown() {
        let line = format!("heaptape: {}", text::clean(&line));
        eprintln!("{}", if style.wraps { text::wrapped(&line, style.width) } else { line });
    }
    match result {
        Ok(outcome) => outcome.report(),
        Err(error) if is_broken_pipe(&error) => Outcome::Done.report(),
        Err(error) => {
            eprintln!("heaptape: {error:#}");
            Outcome::NoAnswer.report()
        }
    }
}

/// Returns whether the reader of a pipe has closed it (`heaptape report | head`), which is not a
/// failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use heaptape_formats::quantity;

    #[test]
    fn the_list_of_commands_describes_sizes_and_times_as_the_help_does() {
        let page = include_str!("../../docs/commands.md");
        for line in quantity::HELP.lines() {
            assert!(page.contains(line), "{line}");
        }
    }
}
