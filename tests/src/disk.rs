//! A small disk for one test.

use crate::{Program, is_root, test_env};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file system in memory, which is unmounted when the value is dropped.
pub struct SmallDisk {
    /// Folder of the mount point, and of other files of the test.
    pub folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a disk of this size (`2m`). Returns `None` if mounting is not permitted.
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

    /// Returns the mount point.
    pub fn at(&self) -> PathBuf {
        self.folder.path().join("small-disk")
    }

    /// Fills the disk to its last byte, by a file that is created or gets longer.
    pub fn fill(&self, path: &Path) {
        let mut file = File::options().create(true).append(true).open(path).expect("a file on the small disk");
        let mut length = 1 << 20;
        while length > 0 {
            if file.write_all(&vec![1; length]).is_err() {
                length /= 2;
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Program::new("umount").arg(self.at()).plain();
    }
}
