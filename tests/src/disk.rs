//! A small disk of a test's own.

use crate::{Program, is_root, test_env};
use std::path::PathBuf;

/// Mounted in memory, unmounted when the value goes.
pub struct SmallDisk {
    /// Holds the mount point, and whatever a test puts beside it.
    pub folder: tempfile::TempDir,
}

impl SmallDisk {
    /// A disk of this size (`2m`); `None` where mounting is not permitted.
    pub fn mount(size: &str) -> Option<SmallDisk> {
        if !is_root() {
            return None;
        }
        let disk = SmallDisk { folder: test_env::folder() };
        std::fs::create_dir(disk.at()).expect("a folder");
        let option = format!("size={size}");
        let mounted = Program::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(disk.at()).plain();
        (mounted.code() == 0).then_some(disk)
    }

    /// Where it is.
    pub fn at(&self) -> PathBuf {
        self.folder.path().join("small-disk")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Program::new("umount").arg(self.at()).plain();
    }
}
