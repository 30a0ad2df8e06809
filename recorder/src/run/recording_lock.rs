//! The lock that shows that a recording has a recorder. It is held on a file that reserves disk
//! space for the end of the recording.
//!
//! Readers ask it of whatever has a `recording.json` without an end. So the recorder holds it before
//! it makes that file, and until it has written the end.

use formats::recording::RESERVE;
use nix::fcntl::posix_fallocate;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Size of the reserved space in bytes. When the disk is full, the end of the recording is written
/// into it.
const RESERVE_BYTES: i64 = 256 << 10;
/// How often the lock is tried, once a millisecond: a reader that looks has it for a moment, and a
/// killed recorder may still be ending.
const ATTEMPTS: u32 = 1000;

#[derive(Debug)]
pub(crate) struct RecordingLock {
    path: PathBuf,
    file: File,
}

impl RecordingLock {
    /// Makes and locks the file. Without it, on a full disk say, the recording goes on, and its
    /// readers take it for one that has no recorder any more.
    pub(crate) fn take(dir: &Path) -> Option<RecordingLock> {
        let path = dir.join(RESERVE);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).ok()?;
        let is_locked = (0..ATTEMPTS).any(|_| match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
            result => result.is_ok(),
        });
        if posix_fallocate(&file, 0, RESERVE_BYTES).is_err() {
            let _ = file.set_len(0);
        }
        is_locked.then_some(RecordingLock { path, file })
    }

    /// Returns the reserved space, which the end of the recording may need.
    pub(crate) fn free_space(&self) {
        let _ = self.file.set_len(0);
    }
}

/// The file goes with the lock.
impl Drop for RecordingLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns whether a recording has a recorder now.
pub fn has_recorder(dir: &Path) -> bool {
    let file = File::open(dir.join(RESERVE));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Waits until the recorder of a recording, if it has one, has completed the recording.
///
/// # Errors
/// When the lock file exists and cannot be opened or locked.
pub(crate) fn wait_for_end(dir: &Path) -> io::Result<()> {
    match File::open(dir.join(RESERVE)) {
        Ok(file) => file.lock_shared(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_taken_beside_a_reader_that_looks() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = File::create(dir.path().join(RESERVE)).expect("the file");
        file.lock_shared().expect("a reader");
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(file);
        });
        let lock = RecordingLock::take(dir.path()).expect("the lock, once the reader has gone");
        assert!(has_recorder(dir.path()));
        drop(lock);
        assert!(!has_recorder(dir.path()));
    }
}
