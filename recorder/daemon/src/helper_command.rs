//! Runs a command of heaptape in a process of its own, which prints its result as JSON. What reads
//! files of programs, which may contain anything, or waits for a network, is done there.

use heaptape_recorder::os::clock;
use heaptape_recorder::os::confine;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Priority of the processes that nobody waits for.
pub(crate) const NICE: i32 = 10;

/// How the runs of a command that sends to another machine ended, since the start of the daemon.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// What the last run left, or the one before if it failed without a word.
    pub waiting: AtomicU64,
    pub failures: AtomicU64,
    /// When the last run without an error ended, in seconds since 1970.
    pub succeeded: AtomicU64,
}

impl Attempts {
    /// Counts a run.
    pub(crate) fn note(&self, waiting: u64, error: Option<&str>) {
        self.waiting.store(waiting, Relaxed);
        match error {
            None => self.succeeded.store(clock::unix_ns() / 1_000_000_000, Relaxed),
            Some(_) => {
                self.failures.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Returns the command with these arguments, by the executable of the daemon.
pub(crate) fn command(arguments: &[OsString]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// Returns the command with these arguments, confined: it reads files of programs, which may contain
/// anything.
pub(crate) fn confined(arguments: &[OsString]) -> Command {
    let mut command = command(arguments);
    command.env(confine::VARIABLE, "1");
    command
}

/// Runs the command, and returns what it printed.
///
/// # Errors
/// Why it could not be started, or its messages if it printed no result.
pub(crate) fn run<T: DeserializeOwned>(command: &mut Command) -> Result<T, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
}
