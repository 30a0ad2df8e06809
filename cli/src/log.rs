//! The log of the recorder and the daemon, on standard error.

use tracing::Level;

/// Starts the log with the level of `HEAPTAPE_LOG`, or else `default`. Lines have no time: journald
/// adds it, and `record` is not used for long. Names in messages are escaped where the messages are
/// made.
pub(crate) fn start(default: Level, color: bool) {
    let level = std::env::var("HEAPTAPE_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(default);
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(color)
        .without_time()
        .with_target(false)
        // It reports a line that cannot be written to standard error, and panics if that fails:
        // a full disk with the log would end the daemon.
        .log_internal_errors(false)
        .try_init();
}
