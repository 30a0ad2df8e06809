//! The harness: builds target programs, runs them plain, recorded, and with the library but without
//! a recorder, and holds one side against the other. A failure prints both.
//!
//! What is tested is used as a person would: the command, the library that it carries, the files.
//! `HEAPTAPE` names the command and `HEAPTAPE_LIBRARY` another library; without them the harness
//! builds the release, once a run.
#![forbid(unsafe_code)]

pub mod browser;
pub mod cgroup;
pub mod conditions;
pub mod crash;
pub mod daemon;
pub mod disk;
pub mod harm;
pub mod lossy;
pub mod oracle;
pub mod own;
pub mod plain;
pub mod recording;
pub mod run;
pub mod target;
pub mod test_env;
pub mod torture;

pub use daemon::Daemon;
pub use recording::{Process, Recording, Report};
pub use run::{Outcome, Program, same};
pub use target::Target;

/// Whether the long forms of the tests were asked for (`scripts/dev test --full`).
pub fn is_full() -> bool {
    std::env::var_os("HEAPTAPE_FULL").is_some_and(|value| value != "0")
}

/// Whether this is the superuser, whom some targets need.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
