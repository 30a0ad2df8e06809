//! Debug information from the servers in `DEBUGINFOD_URLS`, by elfutils' `debuginfod-find`, which
//! keeps it in its cache.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Timeout of a server in seconds, unless `DEBUGINFOD_TIMEOUT` is set.
const DEFAULT_TIMEOUT: u64 = 30;

/// Limits of one file, unless the user sets others: seconds, and bytes.
const LIMITS: [(&str, &str); 2] = [("DEBUGINFOD_MAXTIME", "600"), ("DEBUGINFOD_MAXSIZE", "8589934592")];

/// Why no debug information was fetched.
#[derive(Debug, thiserror::Error)]
pub enum DebuginfodError {
    /// There is no server to query.
    #[error("DEBUGINFOD_URLS names no server")]
    NoServer,
    /// No server has answered in time.
    #[error("the debuginfod servers do not answer")]
    Timeout,
    /// The command cannot be run.
    #[error("debuginfod-find (elfutils): {0}")]
    NotRun(std::io::Error),
    /// No server has it, or it is too large.
    #[error("the debuginfod servers have no debug information of it")]
    NotFound,
}

/// Queries the servers for a build-id in hexadecimal digits, if there are any and none has timed
/// out (`silent`). Returns the path of the fetched file, which may be anything.
pub fn fetch(build_id: &str, silent: &AtomicBool) -> Result<PathBuf, DebuginfodError> {
    if std::env::var_os("DEBUGINFOD_URLS").is_none_or(|urls| urls.is_empty()) {
        return Err(DebuginfodError::NoServer);
    }
    if silent.load(Ordering::Relaxed) {
        return Err(DebuginfodError::Timeout);
    }
    let mut command = Command::new("debuginfod-find");
    command.args(["debuginfo", build_id]).stdin(Stdio::null()).stderr(Stdio::null());
    let timeout = std::env::var("DEBUGINFOD_TIMEOUT").ok().and_then(|seconds| seconds.parse().ok());
    let timeout = timeout.filter(|&seconds| seconds > 0).unwrap_or(DEFAULT_TIMEOUT);
    command.env("DEBUGINFOD_TIMEOUT", timeout.to_string());
    for (name, most) in LIMITS {
        if std::env::var_os(name).is_none() {
            command.env(name, most);
        }
    }
    let started = Instant::now();
    let output = command.output().map_err(DebuginfodError::NotRun)?;
    let candidate = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if output.status.success() && candidate.starts_with('/') {
        return Ok(candidate.into());
    }
    if started.elapsed() >= Duration::from_secs(timeout) {
        silent.store(true, Ordering::Relaxed);
        return Err(DebuginfodError::Timeout);
    }
    Err(DebuginfodError::NotFound)
}
