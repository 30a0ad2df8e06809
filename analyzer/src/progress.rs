//! Progress of long work on stderr: a bar when that is a terminal and the work takes longer than a
//! second, else nothing.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, OnceCell};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How long work may take before anybody is told.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts finished pieces of work, of all images together.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    shown: bool,
    started: Instant,
    total: Cell<u64>,
    done: Cell<u64>,
    bar: OnceCell<ProgressBar>,
}

impl Progress {
    /// Shows itself when stderr is a terminal.
    pub fn new(what: &'static str) -> Self {
        let mut progress = Progress::silent(what);
        progress.shown = std::io::stderr().is_terminal();
        progress
    }

    /// Never shows itself.
    pub fn silent(what: &'static str) -> Self {
        Progress {
            what,
            shown: false,
            started: Instant::now(),
            total: Cell::new(0),
            done: Cell::new(0),
            bar: OnceCell::new(),
        }
    }

    /// So many pieces more lie ahead.
    pub fn start(&self, pieces: u64) {
        self.total.set(self.total.get() + pieces);
    }

    /// So many pieces more are done.
    pub fn advance(&self, pieces: u64) {
        self.done.set(self.done.get() + pieces);
        if !self.shown || self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}") {
                bar.set_style(style);
            }
            bar.set_message(self.what);
            bar
        });
        bar.set_length(self.total.get());
        bar.set_position(self.done.get());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}
