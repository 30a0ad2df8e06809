//! `--fail-if` and its options: thresholds that make a command fail, for CI.

use crate::Outcome;
use crate::exit::FAILED;
use anyhow::Context;
use heaptape_analyzer::report::{Query, leaks};
use heaptape_analyzer::text::Style;
use heaptape_reports::threshold::{self, DiffRequest, Expression, METRICS};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// Options for thresholds.
#[derive(clap::Args)]
#[command(next_help_heading = "Thresholds")]
pub(super) struct Thresholds {
    /// Fail when this holds, and print the result instead: 'leaked > 0', 'peak > 200MiB',
    /// 'diff.live > 5%'; may be repeated. --fail-if list prints the metrics
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Expression>,
    /// Exit status when a condition holds
    #[arg(long, hide_short_help = true, value_name = "STATUS", default_value_t = FAILED, value_parser = clap::value_parser!(u8).range(1..))]
    fail_code: u8,
    /// Write the results as JUnit XML
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "fail_if")]
    junit: Option<PathBuf>,
    /// Write the results as SARIF
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "fail_if")]
    sarif: Option<PathBuf>,
    /// With --sarif: write the paths of source files below this folder relative to it, as code
    /// scanning needs them
    #[arg(long, hide_short_help = true, value_name = "DIR", requires = "sarif")]
    source_root: Option<PathBuf>,
}

/// Returns whether the command line has `--fail-if list`, which needs no recording.
pub(crate) fn is_list_request(args: &[OsString]) -> bool {
    // After other subcommands it may be an argument of the recorded program.
    let has_option = args.get(1).is_some_and(|name| name == "leaks" || name == "report" || name == "diff");
    let is_joined = args.iter().any(|arg| arg == "--fail-if=list");
    has_option && (is_joined || args.windows(2).any(|pair| pair[0] == "--fail-if" && pair[1] == "list"))
}

/// Prints the metrics that conditions can name.
pub(crate) fn print_metrics() -> anyhow::Result<Outcome> {
    let mut out = std::io::stdout().lock();
    for metric in METRICS {
        writeln!(out, "{:24} {}", metric.name, metric.meaning)?;
    }
    Ok(Outcome::Done)
}

impl Thresholds {
    /// Returns whether there is a condition.
    pub(crate) fn is_given(&self) -> bool {
        !self.fail_if.is_empty()
    }

    /// Evaluates the conditions, prints the results and writes the files.
    ///
    /// # Errors
    /// The recordings cannot be read, or a file cannot be written.
    pub(super) fn check(
        &self,
        query: &Query,
        against: Option<&DiffRequest>,
        options: &leaks::Options,
        strict: bool,
    ) -> anyhow::Result<Outcome> {
        let mut out = std::io::stdout().lock();
        let results = threshold::evaluate(&self.fail_if, query, options, against)?;
        // The program may have been built on another machine, where the folder exists.
        let root = self.source_root.as_ref().map(|root| root.canonicalize().unwrap_or_else(|_| root.clone()));
        let sarif = threshold::sarif(&results, root.as_deref());
        for (file, text) in [(&self.junit, threshold::junit(&results)), (&self.sarif, sarif)] {
            if let Some(file) = file {
                std::fs::write(file, text).with_context(|| file.display().to_string())?;
            }
        }
        threshold::print(&results, query.view.json, &mut out, Style::of_stdout())?;
        Ok(match (results.failed(), results.missing.is_empty()) {
            (true, _) => Outcome::ThresholdFailed(self.fail_code),
            // It may hold for what was not seen.
            (false, _) if results.unseen && !strict => Outcome::NoAnswer,
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Incomplete { strict },
        })
    }
}
