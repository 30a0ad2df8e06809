//! Runs a command of heaptape in a process of its own, which prints its result as JSON.

use heaptape_recorder::os::confine;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::process::{Command, Stdio};

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
