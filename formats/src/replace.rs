//! Replaces files atomically: a reader finds the old content or the new one, never part of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// When the content of the new file reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the file gets its name. After a loss of power the name leads to the old content or
    /// to the new one.
    BeforeRename,
    /// Whenever the caller or the kernel writes it. This is for a file that can be missed after a
    /// loss of power.
    Later,
}

/// Which processes may replace a file at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// One process only. The temporary file is the path with `.tmp` appended. One that a killed
    /// process left is overwritten.
    One,
    /// Any number of processes. The name of the temporary file contains the pid as well.
    Several,
}

/// Replaces a file atomically, and returns the new one open for reading and writing. `fill` writes
/// its content. Only the owner can read the new file, unless `fill` changes its permissions.
///
/// # Errors
/// Returns the error of `fill`, of a write, or of the rename. The old file is unchanged then, and
/// the temporary file is removed.
///
/// # Examples
///
/// ```
/// use heaptape_formats::replace::{Durability, Writers, replace_file};
/// use std::io::Write;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("file");
/// replace_file(&path, Writers::One, Durability::BeforeRename, |file| file.write_all(b"new"))?;
/// assert_eq!(std::fs::read(&path)?, b"new");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn replace_file(
    path: &Path,
    writers: Writers,
    durability: Durability,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    let temporary = temporary(path, writers);
    let create = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary);
    // A file that an earlier attempt left may have other permissions, or be a link.
    let mut file = create().or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => std::fs::remove_file(&temporary).and_then(|()| create()),
        _ => Err(error),
    })?;
    let replaced = fill(&mut file).and_then(|()| {
        if durability == Durability::BeforeRename {
            file.sync_data()?;
        }
        std::fs::rename(&temporary, path)
    });
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    replaced.map(|()| file)
}

fn temporary(path: &Path, writers: Writers) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    if writers == Writers::Several {
        name.push(format!(".{}", std::process::id()));
    }
    name.push(".tmp");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, Write};

    #[test]
    fn a_replaced_file_has_its_new_content_whatever_an_earlier_attempt_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "kept").expect("a file");
        for writers in [Writers::One, Writers::Several] {
            std::os::unix::fs::symlink(&elsewhere, temporary(&path, writers)).expect("a link");
            for (content, durability) in [("one, longer", Durability::BeforeRename), ("two", Durability::Later)] {
                let fill = |file: &mut File| file.write_all(content.as_bytes());
                replace_file(&path, writers, durability, fill).expect("a replacement");
                assert_eq!(std::fs::read_to_string(&path).expect("the file"), content);
            }
        }
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("the target of the link"), "kept");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "old").expect("a file");
        let fail = |file: &mut File| file.write_all(b"new").and(Err(Error::other("no space")));
        assert!(replace_file(&path, Writers::One, Durability::Later, fail).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "old");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1, "no temporary file is left");
        let nowhere = folder.path().join("none/file");
        assert!(replace_file(&nowhere, Writers::One, Durability::Later, |_| Ok(())).is_err());
    }

    #[test]
    fn processes_do_not_share_a_temporary_file() {
        let path = Path::new("folder/file");
        assert_eq!(temporary(path, Writers::One), Path::new("folder/file.tmp"));
        assert_eq!(temporary(path, Writers::Several), PathBuf::from(format!("folder/file.{}.tmp", std::process::id())));
    }
}
