//! The test harness: builds a program, runs it plain, recorded, and with the library but without a
//! recorder, and compares the results. A failure prints both.
//!
//! Tests use heaptape as you do: the command, the library inside it, the files. `HEAPTAPE` names the
//! command, `HEAPTAPE_LIBRARY` another library. Without them the harness builds the release, once in
//! each run.
#![forbid(unsafe_code)]

pub mod all_at_once;
pub mod browser;
pub mod cgroup;
pub mod conditions;
pub mod crash;
pub mod daemon;
pub mod disk;
pub mod exact;
pub mod handed_round;
pub mod harm;
pub mod lossy;
pub mod oracle;
pub mod own;
pub mod page;
pub mod plain;
pub mod random;
pub mod recording;
pub mod run;
pub mod target;
pub mod test_env;
pub mod torture;
pub mod wait;
pub mod waits;

pub use daemon::Daemon;
pub use recording::{Process, Recording, Report};
pub use run::{Outcome, Program, same};
pub use target::Target;

/// Returns whether the long forms of the tests are run (`scripts/dev test --full`).
pub fn is_full() -> bool {
    std::env::var_os("HEAPTAPE_FULL").is_some_and(|value| value != "0")
}

/// Returns whether the tests run as root, which some targets need.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns the option of a ring that is so many times as large as the smallest one: a page of the largest
/// size that the machine may have.
pub fn ring(times: u64) -> String {
    format!("--ring={}", times * heaptape_wire::area::PAGE)
}
