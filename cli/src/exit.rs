//! The list of exit statuses. `heaptape help status`, a manual page and
//! `docs/exit-status.md` show [`TABLE`].

use std::process::ExitCode;

/// Result of a command that did not fail with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was answered or written.
    Done,
    /// A `--fail-if` condition holds. The number is that of `--fail-code`.
    ThresholdFailed(u8),
    /// Something is missing from what was read or written.
    Partial,
    /// There is no answer. The command has printed why.
    NoAnswer,
    /// The answer comes from an incomplete recording.
    Incomplete {
        /// Whether `--strict` asks for a status of its own.
        strict: bool,
    },
    /// The exit status of the recorded program.
    Status(u8),
}

/// Exit status of a complete answer.
const DONE: u8 = 0;
/// Exit status of a partial result, and by default of a threshold that is exceeded.
pub(crate) const FAILED: u8 = 1;
/// Exit status where there is no answer.
const NO_ANSWER: u8 = 2;
/// Exit status of an answer from an incomplete recording with `--strict`.
const INCOMPLETE: u8 = 3;

/// Each exit status with its meaning.
pub(crate) const TABLE: &[(&str, &str)] = &[
    ("0", "Done: answered, written, or no threshold exceeded. An incomplete recording is a warning on stderr."),
    (
        "1",
        "A --fail-if condition holds (or the status of --fail-code). `verify`: readable, but something is missing or wrong. \
     `export`, `convert`, `pack`, `dump`, `send`, `ship`, `push`, `stream` and the compat views: done, but something is missing. \
     `attach`: recorded, but functions of the process are still hooked.",
    ),
    (
        "2",
        "No answer: wrong arguments, an unreadable file, nothing recorded, an empty time range, a name that matches nothing, \
     or a --fail-if condition that does not hold for what was seen while a program was not seen.",
    ),
    ("3", "Only with --strict: answered from an incomplete recording, and no threshold was exceeded."),
    (
        "other",
        "`record` exits with the program's status: 128+N if signal N ended it, 127 if it was not found, 126 if it cannot be run.",
    ),
];

impl Outcome {
    /// Returns the exit status, and prints a warning about an incomplete recording.
    pub(crate) fn report(self) -> ExitCode {
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
            Outcome::ThresholdFailed(status) | Outcome::Status(status) => status,
        }
    }
}

/// Columns of the table that `heaptape help status` prints: those of a small terminal, where lines
/// that are longer would be wrapped again.
const WIDTH: usize = 79;

/// Returns the table as text.
pub(crate) fn help() -> String {
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
            (Outcome::ThresholdFailed(23), 23),
            (Outcome::NoAnswer, 2),
            (Outcome::Incomplete { strict: true }, 3),
            (Outcome::Status(137), 137),
        ];
        for (outcome, status) in outcomes {
            assert_eq!(outcome.status(), status, "{outcome:?}");
        }
    }
}
