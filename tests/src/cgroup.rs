//! A control group with a limit on memory.

use crate::{Program, is_root};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group, which is removed when the value is dropped.
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Creates a group whose processes may use `bytes` bytes together. Returns `None`, with a
    /// message on standard error, if it cannot be created.
    pub fn limited(bytes: u64) -> Option<Cgroup> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("heaptape-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, file) in kinds {
            let group = Cgroup { folder: PathBuf::from(root).join(&name) };
            let is_made = is_root()
                && std::fs::create_dir(&group.folder).is_ok()
                && group.folder.join(file).exists()
                && std::fs::write(group.folder.join(file), bytes.to_string()).is_ok();
            if is_made {
                // A program that may swap is not killed.
                let _ = std::fs::write(group.folder.join("memory.swap.max"), "0");
                return Some(group);
            }
        }
        eprintln!("skipped: no control group with a limit on memory can be made here");
        None
    }

    /// Returns the program, started inside the group.
    pub fn holds(&self, program: Program) -> Program {
        program.after(&format!("echo $$ > {}", self.processes().display()))
    }

    /// Returns the file to which a process writes its pid to enter the group.
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What was started by a test that failed may still be ending.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
