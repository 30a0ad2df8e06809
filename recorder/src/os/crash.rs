//! Crash reports: the panic or signal that ended the process, its location, and the call stack, in
//! a file of each recording that the process writes, and on standard error. Only processes of
//! heaptape itself write one: the library in a recorded program installs no handler.
//!
//! A report is written in two steps, so that a second crash loses nothing. The crashed process
//! writes addresses, each with its module and its offset there, using static memory and system
//! calls only ([`handler`], [`report`]). When that is on the disk, this program is started again
//! and adds the functions' names ([`names`]): an intact process may allocate and read debug
//! information. Then the process ends by the same signal as without a report, with its core dump.

#[allow(unsafe_code)]
mod handler;
mod names;
mod report;
#[allow(unsafe_code)]
mod terminal;

pub use handler::{disarm, forward_faults, unblock_faults};
pub use names::run_if_requested;
pub use terminal::{keep_terminal, restore_terminal};

use formats::recording::CRASH_REPORT;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};

/// The role of a process of heaptape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A command, also the one that started the recorded program.
    Command,
    /// The process of `heaptape record` that records.
    Survivor,
    /// The daemon, which serves all programs.
    Daemon,
    /// The process that holds descriptors from one daemon to the next.
    FdStore,
}

const ROLES: [Role; 4] = [Role::Command, Role::Survivor, Role::Daemon, Role::FdStore];
static ROLE: AtomicUsize = AtomicUsize::new(0);

impl Role {
    fn now() -> Role {
        ROLES.get(ROLE.load(Relaxed)).copied().unwrap_or(Role::Command)
    }

    /// Returns the role as shown to users.
    const fn text(self) -> &'static str {
        match self {
            Role::Command => "the command",
            Role::Survivor => "the recorder of `heaptape record`",
            Role::Daemon => "the daemon",
            Role::FdStore => "the daemon's holder of descriptors",
        }
    }
}

/// Sets the role of this process from here on. Until then it is a command.
pub fn set_role(role: Role) {
    ROLE.store(ROLES.iter().position(|known| *known == role).unwrap_or(0), Relaxed);
}

/// Makes panics and fatal signals of this process write a report. Must be called once, by the
/// `main` of the command: this program is started again for the names.
pub fn install() {
    std::panic::set_hook(Box::new(handler::panicked));
    handler::install();
    handler::use_signal_stack().keep();
}

/// Starts a thread whose fatal signals are handled on a stack that is large enough, even when the
/// thread's own is full.
///
/// # Errors
/// When there can be no other thread.
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    spawn_in(Builder::new().name(name.into()), body)
}

/// Starts a thread with the properties of `builder`, whose fatal signals are handled on a stack of
/// their own.
///
/// # Errors
/// When there can be no other thread.
pub fn spawn_in<T: Send + 'static>(
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    builder.spawn(move || {
        let _stack = handler::use_signal_stack();
        body()
    })
}

/// Maximum number of folders that receive a report.
const MAX_DESTINATIONS: usize = 16;
/// Descriptors of the folders that receive a report; -1 for none.
static DESTINATIONS: [AtomicI32; MAX_DESTINATIONS] = [const { AtomicI32::new(-1) }; MAX_DESTINATIONS];

/// A recording that receives the report of a crash as long as this value lives.
#[derive(Debug)]
pub struct Destination {
    folder: Option<File>,
}

impl Destination {
    /// Registers the folder of a recording. If that is not possible, the report is only written to
    /// standard error.
    pub fn of(dir: &Path) -> Destination {
        let flags = nix::libc::O_DIRECTORY | nix::libc::O_CLOEXEC;
        let folder = File::options().read(true).custom_flags(flags).open(dir).ok();
        let folder = folder.filter(|folder| {
            let number = folder.as_raw_fd();
            DESTINATIONS.iter().any(|slot| slot.compare_exchange(-1, number, Relaxed, Relaxed).is_ok())
        });
        Destination { folder }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let number = folder.as_raw_fd();
            let _ = DESTINATIONS.iter().any(|slot| slot.compare_exchange(number, -1, Relaxed, Relaxed).is_ok());
        }
    }
}

fn destinations() -> impl Iterator<Item = RawFd> {
    DESTINATIONS.iter().map(|slot| slot.load(Relaxed)).filter(|number| *number >= 0)
}

/// Returns the path of the crash report of a recording, if it has one.
pub fn report_of(dir: &Path) -> Option<PathBuf> {
    Some(dir.join(CRASH_REPORT)).filter(|path| path.is_file())
}

/// Panics if `HEAPTAPE_TEST_PANIC` names a file that contains the role's name: for tests, in debug
/// builds only.
pub fn panic_if_requested() {
    #[cfg(debug_assertions)]
    if let Some(path) = std::env::var_os("HEAPTAPE_TEST_PANIC")
        && std::fs::read_to_string(path).is_ok_and(|text| text == format!("{:?}", Role::now()))
    {
        panic!("requested by a test, with \x1b in the message");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_registered_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let before = destinations().count();
        let many: Vec<Destination> = (0..MAX_DESTINATIONS + 3).map(|_| Destination::of(folder.path())).collect();
        assert_eq!(destinations().count(), MAX_DESTINATIONS, "more are left out");
        drop(many);
        assert_eq!(destinations().count(), before);
        let missing = Destination::of(&folder.path().join("none"));
        assert!(missing.folder.is_none() && destinations().count() == before);
    }
}
