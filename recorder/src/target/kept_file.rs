//! Files of programs that are needed longer than the program needs them. An open file keeps its
//! file system busy, so that `mount; prog; umount` fails in a script. It does not keep its content
//! either: a library may be rewritten in place. Such files are copied into memory.

use crate::os::sys;
use nix::sys::stat::{FileStat, fstat, stat};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

/// Maximum size of a file that is copied, in bytes.
const MAX_COPY: u64 = 128 << 20;

/// Size and times of a file: when its content changed, and when it or its name did, in nanoseconds
/// since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub bytes: u64,
    /// When its content changed.
    pub changed: u64,
    /// When it or its name changed.
    pub renamed: u64,
}

impl Version {
    /// Returns the version of an open file.
    pub(crate) fn of(file: &OwnedFd) -> Option<Version> {
        fstat(file).ok().map(|status| Version::read(&status))
    }

    fn read(status: &FileStat) -> Version {
        let time = |seconds: i64, nanos: i64| (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanos as u64);
        let changed = time(status.st_mtime, status.st_mtime_nsec);
        let renamed = time(status.st_ctime, status.st_ctime_nsec).max(changed);
        Version { bytes: status.st_size as u64, changed, renamed }
    }
}

/// Returns whether a file belongs to a file system that may be unmounted as soon as the program
/// does not use it any more.
pub(crate) fn is_lent(file: &OwnedFd) -> bool {
    // The system, and this process, keep directories of these devices in use.
    static OWN: OnceLock<Vec<u64>> = OnceLock::new();
    let devices = || ["/", "/usr", "."].iter().filter_map(|path| stat(*path).ok()).map(|status| status.st_dev);
    let own = OWN.get_or_init(|| devices().collect());
    let is_own = fstat(file).is_ok_and(|status| own.contains(&status.st_dev));
    // A container's file system is detached, and not refused if it is busy.
    let is_overlay = || fstatfs(file).is_ok_and(|found| found.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
    !is_own && !is_overlay()
}

/// Copies a file of at most `limit` bytes into memory. The copy has the time of the file, by which
/// one without build-id is recognized.
pub(crate) fn copy(file: &OwnedFd, limit: u64) -> Option<OwnedFd> {
    let version = Version::of(file)?;
    (version.bytes <= limit.min(MAX_COPY)).then_some(())?;
    let copy = sys::memory_file(&[]).ok()?;
    let mut to = File::from(copy.try_clone().ok()?);
    let mut from = File::from(file.try_clone().ok()?);
    from.rewind().ok()?;
    let copied = io::copy(&mut from.take(version.bytes), &mut to).ok()?;
    to.set_modified(UNIX_EPOCH + Duration::from_nanos(version.changed)).ok()?;
    (copied == version.bytes && Version::of(file) == Some(version)).then_some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    #[test]
    fn copy_has_content_and_time_of_its_file() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"library").and_then(|()| file.set_modified(UNIX_EPOCH + Duration::from_nanos(7))).expect("it");
        let file = OwnedFd::from(file);
        let copy = File::from(copy(&file, 100).expect("a copy"));
        let mut bytes = [0; 7];
        copy.read_exact_at(&mut bytes, 0).expect("its bytes");
        assert_eq!(&bytes, b"library");
        assert_eq!(Version::of(&OwnedFd::from(copy)).map(|version| version.changed), Some(7));
        assert!(super::copy(&file, 6).is_none(), "it is too large");
    }
}
