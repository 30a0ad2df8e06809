//! `heaptape`: first word -> subcommand; outcome -> exit code; errors are printed here, once.
#![forbid(unsafe_code)]

mod library;
mod words;

use clap::{CommandFactory, FromArgMatches, Parser};
use std::process::ExitCode;

/// A tape recorder for the heap.
#[derive(Parser)]
#[command(name = "heaptape", version, about, max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    word: words::Word,
}

/// How a word ended, as the exit code tells scripts.
pub enum Outcome {
    /// 0: done.
    Done,
    /// 1: done, but something is missing or a gate failed.
    Incomplete,
    /// 2: could not; a message was printed already.
    Failed,
    /// Another program's exit status, passed on.
    Status(u8),
}

/// All words with their options and examples: what parses the command line, and what help, manual pages and completions are made of.
fn command() -> clap::Command {
    Cli::command().mut_subcommands(|word| {
        let examples = words::examples::of(word.get_name());
        let before = word.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        word.after_help(format!("{before}{examples}"))
    })
}

fn main() -> ExitCode {
    let words = words::spelled(std::env::args_os());
    let done = if words::asks_for_list(&words) {
        words::list()
    } else {
        let matches = command().get_matches_from(words);
        words::run(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).word)
    };
    match done {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Incomplete) => ExitCode::from(1),
        Ok(Outcome::Failed) => ExitCode::from(2),
        Ok(Outcome::Status(status)) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heaptape: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// A reader that stops reading (`heaptape report | head`) is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
