//! Pushes profiles of programs to a server, at intervals, by `heaptape daemon push`.

use super::config::{Config, PushConfig};
use super::helper_command::{self, Attempts, NICE};
use super::http;
use super::metrics::OwnMetric;
use heaptape_recorder::os::crash;
use heaptape_recorder::os::sys;
use serde::Deserialize;
use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Minimum time between the log messages about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The counts of what was pushed since the start of the daemon.
#[derive(Debug, Default)]
struct Counts {
    profiles: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    attempts: Attempts,
}

/// What `heaptape push --json` prints.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pushed {
    profiles: u64,
    bytes: u64,
    waiting: u64,
    dropped: u64,
    error: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Pusher {
    counts: Arc<Counts>,
}

/// Returns the arguments of the command that pushes once.
fn arguments(push: &PushConfig, to: &str, config: &Config) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        ["push", "--json", "--to", to, "--protocol", push.protocol.name()].map(OsString::from).into();
    arguments.extend(["--queue".into(), push.queue.to_string().into()]);
    arguments.extend(["--control".into(), config.control.clone().into_os_string()]);
    if let Some(file) = &push.token {
        arguments.extend(["--token-file".into(), file.clone().into_os_string()]);
    }
    arguments
}

impl Pusher {
    /// Starts the thread if the configuration has a server. It runs as long as the daemon.
    pub(crate) fn start(config: &Config) -> io::Result<Option<Pusher>> {
        let Some(to) = &config.push.to else { return Ok(None) };
        http::warn_of_open_token(config.push.token.as_deref());
        let (arguments, interval) = (arguments(&config.push, to, config), config.push.interval);
        let counts = Arc::new(Counts::default());
        let own = Arc::clone(&counts);
        crash::spawn("push", move || {
            sys::lower_priority(NICE);
            let mut logged: Option<Instant> = None;
            let mut next = Instant::now() + interval;
            loop {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                if let Some(error) = own.push(&mut helper_command::command(&arguments))
                    && logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL)
                {
                    logged = Some(Instant::now());
                    tracing::warn!("profiles cannot be pushed: {}", error.escape_debug());
                }
                // An interval that was missed is part of the next profile.
                next = (next + interval).max(Instant::now());
            }
        })?;
        Ok(Some(Pusher { counts }))
    }

    pub(crate) fn metrics(&self) -> [OwnMetric; 6] {
        let value = |count: &AtomicU64| count.load(Relaxed) as f64;
        let Counts { profiles, bytes, dropped, attempts } = &*self.counts;
        let Attempts { waiting, failures, succeeded } = attempts;
        [
            OwnMetric::counter("pushed_profiles_total", "Profiles that a server has taken", value(profiles)),
            OwnMetric::counter("pushed_bytes_total", "Bytes of these profiles", value(bytes)),
            OwnMetric::counter(
                "push_dropped_profiles_total",
                "Profiles that were dropped: the queue was full, or the server refused them",
                value(dropped),
            ),
            OwnMetric::counter("push_failures_total", "Pushes that failed", value(failures)),
            OwnMetric::gauge("push_waiting_profiles", "Profiles that wait to be pushed", value(waiting)),
            OwnMetric::gauge(
                "push_success_timestamp_seconds",
                "When everything was last pushed, in seconds since 1970",
                value(succeeded),
            ),
        ]
    }
}

impl Counts {
    /// Runs the command, and adds what it did. Returns the error of a push that failed.
    fn push(&self, command: &mut Command) -> Option<String> {
        let pushed: Pushed = helper_command::run(command).unwrap_or_else(|error| Pushed {
            waiting: self.attempts.waiting.load(Relaxed),
            error: Some(error),
            ..Pushed::default()
        });
        self.profiles.fetch_add(pushed.profiles, Relaxed);
        self.bytes.fetch_add(pushed.bytes, Relaxed);
        self.dropped.fetch_add(pushed.dropped, Relaxed);
        self.attempts.note(pushed.waiting, pushed.error.as_deref());
        if pushed.error.is_none() {
            tracing::debug!("{} profiles were pushed, {} bytes", pushed.profiles, pushed.bytes);
        }
        pushed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_command_are_counted() {
        let counts = Counts::default();
        let say = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "printf '%s' \"$1\"; echo complaint >&2", "sh", text]);
            counts.push(&mut command)
        };
        assert_eq!(say(r#"{"profiles": 2, "bytes": 70, "waiting": 0, "new": 1}"#), None);
        let failed = say(r#"{"profiles": 1, "bytes": 7, "waiting": 5, "dropped": 3, "error": "no route"}"#);
        assert_eq!(failed.as_deref(), Some("no route"));
        assert_eq!(say("no JSON").as_deref(), Some("complaint"));
        let value = |count: &AtomicU64| count.load(Relaxed);
        let Attempts { waiting, failures, succeeded } = &counts.attempts;
        let sums = [&counts.profiles, &counts.bytes, failures, waiting, &counts.dropped].map(value);
        assert_eq!(sums, [3, 77, 2, 5, 3]);
        assert!(value(succeeded) > 0);
    }
}
