//! Shows a progress bar on standard error, if that is a terminal and the work takes longer than a
//! second.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use terminal_size::{Width, terminal_size_of};

/// Time after which the bar appears.
const DELAY: Duration = Duration::from_secs(1);

/// Time between two drawings.
const INTERVAL: Duration = Duration::from_millis(100);

/// Clears the line of the terminal, and goes to its start.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Counts the steps of the work on all processes.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    shown: bool,
    started: Instant,
    total: Cell<u64>,
    done: Cell<u64>,
    /// Time of the last drawing since the start, if anything was drawn.
    drawn: Cell<Option<Duration>>,
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
            drawn: Cell::new(None),
        }
    }

    /// Adds steps that will be done.
    pub fn start(&self, steps: u64) {
        self.total.set(self.total.get() + steps);
    }

    /// Counts steps as done, and updates the bar.
    pub fn advance(&self, steps: u64) {
        self.done.set(self.done.get() + steps);
        if !self.shown {
            return;
        }
        let elapsed = self.started.elapsed();
        if elapsed < self.drawn.get().map_or(DELAY, |last| last + INTERVAL) {
            return;
        }
        self.drawn.set(Some(elapsed));
        let mut err = std::io::stderr().lock();
        let width = terminal_size_of(&err).map_or(80, |(Width(width), _)| usize::from(width));
        let line = drawing(self.what, self.done.get(), self.total.get(), elapsed, width);
        // The bar is for a person, and nothing depends on it.
        let _ = write!(err, "{CLEAR_LINE}{line}").and_then(|()| err.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.get().is_some() {
            let mut err = std::io::stderr().lock();
            let _ = err.write_all(CLEAR_LINE.as_bytes()).and_then(|()| err.flush());
        }
    }
}

/// Returns a bar of `width` columns with the share of the work that is done, and the time that the
/// rest takes at the same speed.
fn drawing(what: &str, done: u64, total: u64, elapsed: Duration, width: usize) -> String {
    let share = if total == 0 { 0.0 } else { (done as f64 / total as f64).min(1.0) };
    let rest = if share > 0.0 { elapsed.as_secs_f64() * (1.0 - share) / share } else { 0.0 };
    let numbers = format!("{:.0}% {rest:.0}s", share * 100.0);
    // One column remains free: a character in the last one may begin a new line.
    let columns = width.saturating_sub(what.len() + numbers.len() + 3);
    let filled = (columns as f64 * share) as usize;
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(columns - filled));
    format!("{what} {bar} {numbers}").chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::drawing;
    use std::time::Duration;

    #[test]
    fn bar_shows_share_and_rest_and_fits_into_the_line() {
        let at = Duration::from_secs(6);
        assert_eq!(drawing("reading", 3, 4, at, 24), "reading ██████░░ 75% 2s");
        assert_eq!(drawing("reading", 0, 0, at, 22), "reading ░░░░░░░ 0% 0s");
        // More can be done than was announced.
        assert!(drawing("reading", 9, 4, at, 24).ends_with("100% 0s"));
        for width in 0..40 {
            assert!(drawing("reading", 1, 2, at, width).chars().count() < width.max(1), "{width}");
        }
    }
}
