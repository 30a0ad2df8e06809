//! THE list of exit statuses: how each command ends, as scripts see it. `--help`, the manual pages and `docs/exit-status.md` show [`TABLE`].

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did all that it was asked to do.
    Done,
    /// A `--fail-if` condition holds; with the status of `--fail-code`.
    GateFailed(u8),
    /// It did what it could: something is missing from what it read or wrote.
    Partial,
    /// There is no answer. A message is printed already.
    NoAnswer,
    /// It answered from an incomplete recording.
    Incomplete {
        /// Whether `--strict` was given.
        strict: bool,
    },
    /// The exit status of another program, passed on.
    Status(u8),
}

/// Status of an answer without any reservation.
const DONE: u8 = 0;
/// Status of what is partial, and by default of a gate that failed.
pub const FAILED: u8 = 1;
/// Status of no answer.
const NO_ANSWER: u8 = 2;
/// Status of an incomplete answer with `--strict`.
const INCOMPLETE: u8 = 3;

/// Status, and what it means.
pub const TABLE: &[(&str, &str)] = &[
    ("0", "Done: answered, written, or every gate passed. An incomplete recording is a warning on stderr."),
    (
        "1",
        "A --fail-if condition holds (or the status of --fail-code). `verify`: readable, but something is missing or wrong. \
     `export`, `convert`, `pack`, `dump`, `send`, `stream` and the views of other tools' formats: done, but something is missing.",
    ),
    (
        "2",
        "No answer: wrong arguments, an unreadable file, nothing recorded, an empty time range, or a name that matches nothing.",
    ),
    ("3", "Only with --strict: answered from an incomplete recording, and no gate failed."),
    (
        "other",
        "`record` passes on the program's status: 128+N if signal N ended it, 127 if it was not found, 126 if it cannot be run.",
    ),
];

impl Outcome {
    /// The exit status. Says on stderr what the status alone does not.
    pub fn report(self) -> ExitCode {
        if matches!(self, Outcome::Incomplete { .. }) {
            eprintln!("heaptape: warning: the recording is incomplete; `heaptape verify` lists what is missing");
        }
        ExitCode::from(self.status())
    }

    const fn status(self) -> u8 {
        match self {
            Outcome::Done | Outcome::Incomplete { strict: false } => DONE,
            Outcome::Partial => FAILED,
            Outcome::NoAnswer => NO_ANSWER,
            Outcome::Incomplete { strict: true } => INCOMPLETE,
            Outcome::GateFailed(status) | Outcome::Status(status) => status,
        }
    }
}

/// Columns of the table in `--help`.
const WIDTH: usize = 90;

/// The table for `--help`.
pub fn help() -> String {
    let mut text = "Exit status:".to_string();
    for (status, meaning) in TABLE {
        let mut line = format!("  {status:5}");
        for word in meaning.split(' ') {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                text += &format!("\n{line}");
                line = " ".repeat(7);
            }
            line += &format!(" {word}");
        }
        text += &format!("\n{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_table() {
        let page = include_str!("../../docs/exit-status.md");
        for (status, meaning) in TABLE {
            assert!(
                page.contains(&format!("| {status} | {meaning} |")),
                "docs/exit-status.md lacks the row of {status}: {meaning}"
            );
        }
    }

    #[test]
    fn statuses_are_those_of_the_table() {
        let outcomes = [
            (Outcome::Done, 0),
            (Outcome::Incomplete { strict: false }, 0),
            (Outcome::Partial, 1),
            (Outcome::GateFailed(23), 23),
            (Outcome::NoAnswer, 2),
            (Outcome::Incomplete { strict: true }, 3),
            (Outcome::Status(137), 137),
        ];
        for (outcome, status) in outcomes {
            assert_eq!(outcome.status(), status, "{outcome:?}");
        }
    }
}
