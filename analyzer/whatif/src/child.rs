//! The process that performs the operations, under the allocator that is measured.

use crate::{Allocator, Measured};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Number of the signal.
const SIGKILL: i32 = 9;

/// Why a replay gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The process could not be started.
    #[error("the replay could not be started")]
    Start(#[source] io::Error),
    /// The process ended without a result.
    #[error("the replay ended with {status}: {message}")]
    Failed {
        /// How the process ended.
        status: ExitStatus,
        /// What it printed on standard error.
        message: String,
    },
    /// The process was killed.
    #[error("the replay was killed (SIGKILL), as the kernel does when memory runs out")]
    Killed,
    /// The process printed something else.
    #[error("the replay printed no result")]
    NoResult(#[source] serde_json::Error),
}

/// Runs `command`, which calls [`play`](crate::play) with the file that is its last argument and
/// prints the result as JSON, under an allocator.
///
/// # Errors
/// The process cannot be started, fails, or prints something else.
pub fn replay_under(allocator: &Allocator, mut command: Command, file: &Path) -> Result<Measured, ReplayError> {
    for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF", "HEAPTAPE_SOCKET"] {
        command.env_remove(name);
    }
    command.envs(allocator.variables.iter().map(|(name, value)| (name, value)));
    if let Some(library) = &allocator.library {
        command.env("LD_PRELOAD", library);
    }
    let output = command.arg(file).stdin(Stdio::null()).output().map_err(ReplayError::Start)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.signal() == Some(SIGKILL) {
        return Err(ReplayError::Killed);
    }
    // The loader says on standard error that it cannot preload a library, and goes on without it.
    if !output.status.success() || output.stderr.starts_with(b"ERROR: ld.so:") {
        return Err(ReplayError::Failed { status: output.status, message: text(&output.stderr) });
    }
    serde_json::from_slice(&output.stdout).map_err(ReplayError::NoResult)
}
