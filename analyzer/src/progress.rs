//! Shows a progress bar on standard error, if that is a terminal and the work takes longer than a
//! second.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, OnceCell};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time after which the bar appears.
const DELAY: Duration = Duration::from_secs(1);

/// Counts the steps of the work on all processes.
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
    /// Creates a counter that shows a bar if standard error is a terminal. `what` describes the
    /// work.
    pub fn new(what: &'static str) -> Self {
        let mut progress = Progress::silent(what);
        progress.shown = std::io::stderr().is_terminal();
        progress
    }

    /// Creates a counter that never shows a bar.
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

    /// Adds steps that will be done.
    pub fn start(&self, steps: u64) {
        self.total.set(self.total.get() + steps);
    }

    /// Counts steps as done, and updates the bar.
    pub fn advance(&self, steps: u64) {
        self.done.set(self.done.get() + steps);
        if !self.shown || self.started.elapsed() < DELAY {
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
