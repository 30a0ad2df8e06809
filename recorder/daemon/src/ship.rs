//! Ships sealed epochs to another place, by `heaptape daemon ship`.

use super::config::Config;
use super::helper_command::{self, Attempts, NICE};
use super::http;
use super::metrics::OwnMetric;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use heaptape_recorder::os::crash;
use heaptape_recorder::os::sys;
use serde::Deserialize;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// First pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
/// Longest pause after a failure, and after a success without another epoch.
const LONGEST_PAUSE: Duration = Duration::from_secs(1800);

/// The counts of what was shipped since the start of the daemon.
#[derive(Debug, Default)]
struct Counts {
    epochs: AtomicU64,
    bytes: AtomicU64,
    removed: AtomicU64,
    attempts: Attempts,
}

/// What `heaptape ship --json` prints.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Shipped {
    epochs: u64,
    bytes: u64,
    waiting: u64,
    removed_unshipped: u64,
    error: Option<String>,
}

/// The thread that ships.
#[derive(Debug)]
pub(crate) struct Shipper {
    counts: Arc<Counts>,
}

impl Shipper {
    /// Starts the thread if the configuration has a destination. It ships what is waiting, and
    /// again at each message of `sealed`.
    pub(crate) fn start(config: &Config, sealed: impl FnOnce() -> Receiver<()>) -> io::Result<Option<Shipper>> {
        let Some(to) = &config.ship_to else { return Ok(None) };
        http::warn_of_open_token(config.ship_token.as_deref());
        let mut arguments = vec!["ship".into(), "--json".into(), "--to".into(), to.into()];
        arguments.extend(["--state".into(), config.state.clone().into_os_string()]);
        if let Some(file) = &config.ship_token {
            arguments.extend(["--token-file".into(), file.clone().into_os_string()]);
        }
        let counts = Arc::new(Counts::default());
        let (own, sealed) = (Arc::clone(&counts), sealed());
        crash::spawn("ship", move || {
            sys::lower_priority(NICE);
            run(&sealed, || own.ship(&mut helper_command::command(&arguments)), FIRST_PAUSE);
        })?;
        Ok(Some(Shipper { counts }))
    }

    /// Returns the metrics of what was shipped.
    pub(crate) fn metrics(&self) -> [OwnMetric; 6] {
        let value = |count: &AtomicU64| count.load(Relaxed) as f64;
        let Counts { epochs, bytes, removed, attempts } = &*self.counts;
        let Attempts { waiting, failures, succeeded } = attempts;
        [
            OwnMetric::counter("shipped_epochs_total", "Epochs that were shipped", value(epochs)),
            OwnMetric::counter("shipped_bytes_total", "Bytes of their tables", value(bytes)),
            OwnMetric::counter("ship_failures_total", "Attempts to ship that failed", value(failures)),
            OwnMetric::gauge("ship_waiting_epochs", "Sealed epochs that are not shipped yet", value(waiting)),
            OwnMetric::gauge(
                "ship_removed_epochs",
                "Epochs that were removed before they were shipped",
                value(removed),
            ),
            OwnMetric::gauge(
                "ship_success_timestamp_seconds",
                "When everything was last shipped, in seconds since 1970",
                value(succeeded),
            ),
        ]
    }
}

/// Calls `ship` at the start, at each message, and after a failure again and again with longer and
/// longer pauses.
fn run(sealed: &Receiver<()>, ship: impl Fn() -> bool, first_pause: Duration) {
    let mut pause = first_pause;
    loop {
        let wait = if ship() {
            pause = first_pause;
            LONGEST_PAUSE
        } else {
            let wait = pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
            wait
        };
        match sealed.recv_timeout(wait) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

impl Counts {
    /// Runs the command, and adds what it did. Returns whether everything was shipped.
    fn ship(&self, command: &mut Command) -> bool {
        let shipped: Shipped = helper_command::run(command).unwrap_or_else(|error| Shipped {
            waiting: self.attempts.waiting.load(Relaxed),
            removed_unshipped: self.removed.load(Relaxed),
            error: Some(error),
            ..Shipped::default()
        });
        self.epochs.fetch_add(shipped.epochs, Relaxed);
        self.bytes.fetch_add(shipped.bytes, Relaxed);
        self.attempts.note(shipped.waiting, shipped.error.as_deref());
        let removed = self.removed.swap(shipped.removed_unshipped, Relaxed);
        if shipped.removed_unshipped > removed {
            tracing::warn!("{} epochs were removed before they were shipped", shipped.removed_unshipped - removed);
        }
        match shipped.error {
            None => {
                tracing::debug!("{} epochs were shipped, {} bytes", shipped.epochs, shipped.bytes);
                true
            }
            Some(error) => {
                tracing::warn!("epochs cannot be shipped: {}", error.escape_debug());
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use std::cell::Cell;

    #[test]
    fn failures_are_tried_again_and_seals_are_shipped() {
        let (sender, sealed) = bounded(1);
        let (calls, mut held) = (Cell::new(0), Some(sender));
        let held = std::cell::RefCell::new(held.take());
        let ship = || {
            calls.set(calls.get() + 1);
            match calls.get() {
                // Two failures, without a message.
                1 | 2 => false,
                // A success, then an epoch.
                3 => held.borrow().as_ref().is_some_and(|sender| sender.send(()).is_ok()),
                _ => {
                    held.borrow_mut().take();
                    true
                }
            }
        };
        run(&sealed, ship, Duration::from_millis(1));
        assert_eq!(calls.get(), 4);
    }

    #[test]
    fn results_of_the_command_are_counted() {
        let counts = Counts::default();
        let say = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "printf '%s' \"$1\"; echo complaint >&2", "sh", text]);
            counts.ship(&mut command)
        };
        assert!(say(r#"{"epochs": 2, "bytes": 70, "waiting": 0, "new": 1}"#));
        assert!(!say(r#"{"epochs": 1, "bytes": 7, "waiting": 5, "removed_unshipped": 3, "error": "no route"}"#));
        assert!(!say("no JSON"));
        let value = |count: &AtomicU64| count.load(Relaxed);
        let Attempts { waiting, failures, succeeded } = &counts.attempts;
        let sums = [&counts.epochs, &counts.bytes, failures, waiting, &counts.removed].map(value);
        assert_eq!(sums, [3, 77, 2, 5, 3]);
        assert!(value(succeeded) > 0);
    }
}
