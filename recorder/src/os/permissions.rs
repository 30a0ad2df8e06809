//! Folders and files of a recording that one other user may read, the one whose program it is.

use crate::os::sys;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Creates a folder that only its owner and `reader` may read. A folder that exists is accepted.
///
/// # Errors
/// The error of the creation, or of the access list.
pub fn make_folder(path: &Path, reader: Option<u32>) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => let_read(&File::open(path)?, reader),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the segment of a flight recording. It is renamed first: a command that is reading it now
/// notices that it is gone, and does not take it for one that lacks files.
pub fn remove_segment(folder: &Path) {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    // The name begins with no process ID, so the folder belongs to no process. The next daemon
    // removes what a killed one leaves.
    let renamed = folder.with_file_name(format!("removed.{name}"));
    let is_renamed = std::fs::rename(folder, &renamed).is_ok();
    let _ = std::fs::remove_dir_all(if is_renamed { &renamed } else { folder });
}

/// Permits a user to read a file or a folder besides its owner. Ownership is not transferred: the
/// owner of a folder could replace the next file that is written there by a link, and make a daemon
/// of root write to any target of the link.
///
/// # Errors
/// The error of the access list. A file system without access lists is only logged.
pub fn let_read(file: &File, reader: Option<u32>) -> io::Result<()> {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    let Some(reader) = reader else { return Ok(()) };
    match sys::let_read(file, reader) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => {
            if !IS_LOGGED.swap(true, Relaxed) {
                tracing::warn!("the file system has no access lists: users cannot read their own recordings there");
            }
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_is_removed_with_its_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let segment = folder.path().join("7.shop@202611210800+1");
        std::fs::create_dir(&segment).expect("a segment");
        std::fs::write(segment.join("events.tape"), "").expect("a tape");
        remove_segment(&segment);
        remove_segment(&segment);
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }
}
