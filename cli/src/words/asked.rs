//! The options that all questions about a recording share, and how their answers become exit codes.

use crate::Outcome;
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::report::{self, Asked, Error};
use heaptape_analyzer::text::Style;
use std::io::Write;
use std::path::PathBuf;

/// What is asked of which recordings.
#[derive(clap::Args)]
pub struct Common {
    /// Recordings, folders of images, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT, Massif
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    /// Start of the part asked about: a time after the start (1.5s, 300ms, 2m), a share of the run (40%) or an event's number
    #[arg(long, value_name = "WHEN")]
    from: Option<Bound>,
    /// End of the part asked about, likewise
    #[arg(long, value_name = "WHEN")]
    to: Option<Bound>,
    /// Only this process: its pid, or its folder in the recording
    #[arg(long, value_name = "PID|FOLDER")]
    process: Option<String>,
    /// Rows of each table
    #[arg(long, value_name = "N")]
    top: Option<usize>,
}

impl Common {
    /// How many rows were asked for.
    pub fn top(&self) -> Option<usize> {
        self.top
    }

    /// The question, with so many rows unless others were asked for.
    pub fn asked(self, rows: usize) -> Asked {
        let Common { paths, json, from, to, process, top } = self;
        Asked { paths, json, range: Range { from, to }, top: top.unwrap_or(rows), process }
    }
}

/// Runs a report on stdout.
pub fn print(run: impl FnOnce(&mut dyn Write, Style) -> Result<report::Outcome, Error>) -> anyhow::Result<Outcome> {
    let style = Style::of_stdout();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let outcome = run(&mut out, style).map_err(|error| match error {
        // Bare, so that a reader who stops reading is recognised.
        Error::Io(error) => anyhow::Error::new(error),
        error => anyhow::Error::new(error),
    })?;
    out.flush()?;
    Ok(match outcome {
        report::Outcome::Complete => Outcome::Done,
        report::Outcome::Incomplete => Outcome::Incomplete,
    })
}
