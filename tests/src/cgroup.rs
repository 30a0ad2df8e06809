//! A control group with a limit on memory or processors.

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
        let bytes = bytes.to_string();
        let group = Cgroup::with("memory", &[("memory.limit_in_bytes", &bytes)], &[("memory.max", &bytes)])?;
        // A program that may swap is not killed.
        let _ = std::fs::write(group.folder.join("memory.swap.max"), "0");
        Some(group)
    }

    /// Creates a group whose processes can always run, and get a thousandth of a processor
    /// together, as on a machine that is far too busy. Returns `None`, with a message on standard
    /// error, if it cannot be created.
    pub fn starved() -> Option<Cgroup> {
        let version_1 = [("cpu.cfs_period_us", "1000000"), ("cpu.cfs_quota_us", "1000")];
        Cgroup::with("cpu", &version_1, &[("cpu.max", "1000 1000000")])
    }

    /// Creates a group whose processes can make no further one. Returns `None`, with a message on standard
    /// error, if it cannot be created.
    pub fn full() -> Option<Cgroup> {
        Cgroup::with("pids", &[("pids.max", "1")], &[("pids.max", "1")])
    }

    /// Ends the limit of a starved group.
    pub fn feed(&self) {
        for (file, value) in [("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")] {
            if self.folder.join(file).exists() {
                std::fs::write(self.folder.join(file), value).expect("the end of the limit");
            }
        }
    }

    /// Creates a group with these values in its files, in version 1 or 2.
    fn with(controller: &str, version_1: &[(&str, &str)], version_2: &[(&str, &str)]) -> Option<Cgroup> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("heaptape-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let root = PathBuf::from("/sys/fs/cgroup");
        for (root, files) in [(root.join(controller), version_1), (root, version_2)] {
            let group = Cgroup { folder: root.join(&name) };
            let write = |(file, value): &(&str, &str)| {
                let path = group.folder.join(file);
                path.exists() && std::fs::write(path, value).is_ok()
            };
            if is_root() && std::fs::create_dir(&group.folder).is_ok() && files.iter().all(write) {
                return Some(group);
            }
        }
        eprintln!("skipped: no control group with a limit on {controller} can be made here");
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
