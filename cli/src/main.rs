//! `heaptape`: first word -> subcommand; outcome -> exit status (exit.rs); errors are printed here, once.
#![forbid(unsafe_code)]

#[macro_use]
mod terminal;

mod exit;
mod library;
mod live;
mod slips;
mod words;

use clap::{CommandFactory, FromArgMatches, Parser};
use heaptape_analyzer::text;
use heaptape_recorder::crash;
use std::ffi::OsString;
use std::process::ExitCode;

pub use exit::Outcome;

/// A tape recorder for the heap.
#[derive(Parser)]
#[command(name = "heaptape", version, about, max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    word: words::Word,
}

/// All words with their options and examples: what parses the command line, and what help, manual pages and completions are made of.
fn command() -> clap::Command {
    let command = Cli::command().mut_subcommands(|word| {
        let examples = words::examples::of(word.get_name());
        let before = word.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        // The short help of a command stays on one screen.
        let short = format!("{before}{examples}");
        word.after_long_help(format!("{short}\n\n{}", exit::help())).after_help(short)
    });
    command.after_help(exit::help())
}

/// Parses the command line. Ends the process where clap does: on help, and on errors.
fn matches(words: Vec<OsString>) -> clap::ArgMatches {
    let typed: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    command().try_get_matches_from(words).unwrap_or_else(|error| {
        let commands: Vec<String> = command().get_subcommands().map(|word| word.get_name().to_owned()).collect();
        match slips::explain(&error, &commands, &typed) {
            Some(message) => {
                eprintln!("heaptape: {message}");
                std::process::exit(2)
            }
            None => {
                // The parser quotes what was typed, so it sees that cleaned.
                let cleaned = typed.iter().map(|word| text::clean(word).into_owned());
                command().try_get_matches_from(cleaned).err().unwrap_or(error).exit()
            }
        }
    })
}

fn main() -> ExitCode {
    if crash::run_if_requested() {
        return ExitCode::SUCCESS;
    }
    crash::install();
    let words = words::spelled(std::env::args_os());
    let done = if words::asks_for_list(&words) {
        words::list()
    } else {
        let matches = matches(words);
        words::run(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).word)
    };
    for line in heaptape_analyzer::symbols::unshown() {
        eprintln!("heaptape: {}", text::clean(&line));
    }
    match done {
        Ok(outcome) => outcome.report(),
        Err(error) if is_broken_pipe(&error) => Outcome::Done.report(),
        Err(error) => {
            eprintln!("heaptape: {error:#}");
            Outcome::NoAnswer.report()
        }
    }
}

/// A reader that stops reading (`heaptape report | head`) is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
