//! Replaces files atomically: a reader finds the old content or the new one, never a part of it.

use crate::access::let_read;
use crate::sync;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// When the content of the new file reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the file gets its name. After a loss of power the name leads to the old content or
    /// to the new one.
    BeforeRename,
    /// Within seconds after the file got its name, with the other files of the recording
    /// ([`sync`]), so that nobody waits for the disk. This is for a file that can be missed after a
    /// loss of power.
    Later,
}

/// Replaces a file atomically, and returns it open for reading and writing. Only its owner and
/// `reader` can read it.
///
/// # Errors
/// The error of the write, or of the rename. The old file is unchanged then.
pub fn replace_file(path: &Path, bytes: &[u8], reader: Option<u32>, durability: Durability) -> io::Result<File> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    // A file that an earlier attempt left may have other permissions.
    let _ = std::fs::remove_file(&temporary);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
    let_read(&file, reader)?;
    file.write_all(bytes)?;
    if durability == Durability::BeforeRename {
        file.sync_data()?;
    }
    std::fs::rename(&temporary, path)?;
    if durability == Durability::Later {
        sync::add_written(&mut 0, bytes.len(), std::iter::once(&file));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_has_its_new_content_whatever_an_earlier_attempt_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "kept").expect("a file");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("file.tmp")).expect("a link");
        for (content, durability) in [("one, longer", Durability::BeforeRename), ("two", Durability::Later)] {
            replace_file(&path, content.as_bytes(), None, durability).expect("a replacement");
            assert_eq!(std::fs::read_to_string(&path).expect("the file"), content);
        }
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("the target of the link"), "kept");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "no temporary file is left");
        assert!(replace_file(&folder.path().join("none/file"), b"", None, Durability::Later).is_err());
    }
}
