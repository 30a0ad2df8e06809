//! A small disk for one test.

use crate::{Program, is_root, test_env};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The name of a mount point: with the test's process ID.
const NAME: &str = "small-disk.";

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
        unmount_those_of_killed_tests();
        let disk = SmallDisk { folder: test_env::folder() };
        std::fs::create_dir(disk.at()).expect("a folder");
        let option = format!("size={size}");
        let mounted = Program::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(disk.at()).plain();
        (mounted.code() == 0).then_some(disk)
    }

    /// Returns the mount point.
    pub fn at(&self) -> PathBuf {
        self.folder.path().join(format!("{NAME}{}", std::process::id()))
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
        unmount(&self.at());
    }
}

/// Unmounts a disk, also if a process that is about to end has a file open on it.
fn unmount(at: &Path) {
    Program::new("umount").arg("-l").arg(at).plain();
}

/// A test that is killed drops nothing.
fn unmount_those_of_killed_tests() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for at in mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new) {
        let name = at.file_name().and_then(|name| name.to_str());
        let Some(pid) = name.and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            unmount(at);
            at.parent().map(std::fs::remove_dir_all);
        }
    }
}
