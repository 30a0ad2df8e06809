//! The options of gates: what makes a run of CI fail, and how that is told.

use super::leaks::Suppress;
use crate::Outcome;
use crate::exit::FAILED;
use anyhow::Context;
use heaptape_analyzer::report::gate::{self, Against, Expression, METRICS};
use heaptape_analyzer::report::{Asked, leaks};
use heaptape_analyzer::text::Style;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// Gates.
#[derive(clap::Args)]
#[command(next_help_heading = "Gates")]
pub struct Gates {
    /// Fail when this holds, and print that instead: 'leaked > 0', 'peak > 200MiB', 'diff.live > 5%'; may be given again.
    /// --fail-if list prints all that is measured
    #[arg(long, value_name = "GATE")]
    fail_if: Vec<Expression>,
    /// Exit status when a gate fails
    #[arg(long, value_name = "STATUS", default_value_t = FAILED, value_parser = clap::value_parser!(u8).range(1..))]
    fail_code: u8,
    /// Write the verdicts as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the verdicts as SARIF
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// With --sarif: name source files below this folder relative to it, as code scanning of a repository needs it
    #[arg(long, value_name = "DIR", requires = "sarif")]
    source_root: Option<PathBuf>,
}

/// Whether somebody asks what can be measured: that needs no recording.
pub fn asks_for_list(words: &[OsString]) -> bool {
    // Behind another word it may be an argument of a program.
    let has_gates = words.get(1).is_some_and(|word| word == "leaks" || word == "report" || word == "diff");
    let asks = words.iter().any(|word| word == "--fail-if=list");
    has_gates && (asks || words.windows(2).any(|pair| pair[0] == "--fail-if" && pair[1] == "list"))
}

/// Prints what can be measured.
pub fn list() -> anyhow::Result<Outcome> {
    let mut out = std::io::stdout().lock();
    for (name, _, meaning) in METRICS {
        writeln!(out, "{name:24} {meaning}")?;
    }
    Ok(Outcome::Done)
}

impl Gates {
    /// Whether there is one.
    pub fn are_asked(&self) -> bool {
        !self.fail_if.is_empty()
    }

    /// Judges them and tells it.
    pub fn check(
        &self,
        asked: &Asked,
        against: Option<&Against>,
        options: &leaks::Options,
        strict: bool,
    ) -> anyhow::Result<Outcome> {
        let mut out = std::io::stdout().lock();
        let verdicts = gate::judge(&self.fail_if, asked, options, against)?;
        // The folder may be that of another machine, where the program was built.
        let root = self.source_root.as_ref().map(|root| root.canonicalize().unwrap_or_else(|_| root.clone()));
        let sarif = gate::sarif(&verdicts, root.as_deref());
        for (file, text) in [(&self.junit, gate::junit(&verdicts)), (&self.sarif, sarif)] {
            if let Some(file) = file {
                std::fs::write(file, text).with_context(|| file.display().to_string())?;
            }
        }
        gate::print(&verdicts, asked.json, &mut out, Style::of_stdout())?;
        Ok(match (verdicts.failed(), verdicts.missing.is_empty()) {
            (true, _) => Outcome::GateFailed(self.fail_code),
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Incomplete { strict },
        })
    }
}

impl Suppress {
    /// For gates.
    pub fn options(self) -> leaks::Options {
        leaks::Options { suppressions: self.suppressions, built_in: !self.no_built_in, ..leaks::Options::default() }
    }
}
