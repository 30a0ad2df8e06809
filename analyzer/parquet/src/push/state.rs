//! What has been pushed to a server: a file in the state folder, of which only one process has the
//! lock at a time.

use super::delta::Known;
use crate::ids::Hash;
use anyhow::Context;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Name of the folder in the state folder.
const FOLDER: &str = "pushed";

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Content {
    /// Time of the first push, in nanoseconds since 1970.
    first: Option<u64>,
    /// Time of the last push, in nanoseconds since 1970.
    last: Option<u64>,
    processes: BTreeMap<i64, Known>,
}

/// What has been pushed to a server.
pub(super) struct State {
    folder: PathBuf,
    content: Content,
    _lock: Flock<File>,
}

impl State {
    /// Opens the state of a server, and waits until no other process has it.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub(super) fn open(state: &Path, server: &str) -> anyhow::Result<State> {
        let folder = state.join(FOLDER).join(format!("{:016x}", Hash::new().bytes(server.as_bytes()).finish()));
        // Profiles of all users are in it.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| folder.display().to_string())?;
        let lock_path = folder.join("lock");
        let lock = File::options().create(true).append(true).open(&lock_path);
        let lock = lock.with_context(|| lock_path.display().to_string())?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        // Without the file, or with a damaged one, the next interval begins now.
        let read = std::fs::read(folder.join("state.json")).ok();
        let content = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Ok(State { folder, content, _lock: lock })
    }

    /// Returns the folder of the state and the queue.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the time of the last push, in nanoseconds since 1970.
    pub(super) fn last(&self) -> Option<u64> {
        self.content.last
    }

    /// Returns the time of the first push, in nanoseconds since 1970.
    pub(super) fn first(&self) -> Option<u64> {
        self.content.first
    }

    /// Sets the time of the last push, which may be the first one.
    pub(crate) fn set_last(&mut self, unix_ns: u64) {
        self.content.first.get_or_insert(unix_ns);
        self.content.last = Some(unix_ns);
    }

    /// Returns all processes with their numbers.
    pub(super) fn processes(&self) -> Vec<(i64, &Known)> {
        self.content.processes.iter().map(|(key, known)| (*key, known)).collect()
    }

    pub(super) fn process(&self, key: i64) -> Option<&Known> {
        self.content.processes.get(&key)
    }

    /// Returns a process by its user and process ID, with its number.
    pub(super) fn of_pid(&self, uid: u32, pid: u32) -> Option<(i64, &Known)> {
        self.processes().into_iter().find(|(_, known)| (known.uid, known.pid) == (uid, pid))
    }

    /// Notes what has been pushed of a process.
    pub(crate) fn set_process(&mut self, key: i64, known: Known) {
        self.content.processes.insert(key, known);
    }

    /// Forgets a process that has ended.
    pub(super) fn forget(&mut self, key: i64) {
        self.content.processes.remove(&key);
    }

    /// Writes the file of the state.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let mut file =
            tempfile::NamedTempFile::new_in(&self.folder).with_context(|| self.folder.display().to_string())?;
        serde_json::to_writer(std::io::BufWriter::new(&mut file), &self.content)?;
        let path = self.folder.join("state.json");
        file.persist(&path).with_context(|| path.display().to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::delta::Values;
    use super::*;

    #[test]
    fn state_is_read_again_and_a_damaged_one_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let open = || State::open(folder.path(), "Otlp https://web1").unwrap();
        let mut state = open();
        assert_eq!(state.last(), None);
        let sites = BTreeMap::from([(-7, Values { live_bytes: u64::MAX, ..Values::default() })]);
        let known =
            Known { uid: 1, pid: 2, folder: "1/202611210000/2.x".into(), counted_ns: 3, sites, is_baseline: false };
        state.set_last(9);
        state.set_process(-5, known.clone());
        state.save().unwrap();
        let path = state.folder().join("state.json");
        drop(state);
        let mut state = open();
        assert_eq!((state.last(), state.of_pid(1, 2), state.of_pid(1, 3)), (Some(9), Some((-5, &known)), None));
        state.set_last(12);
        assert_eq!((state.first(), state.last()), (Some(9), Some(12)));
        state.forget(-5);
        assert!(state.processes().is_empty());
        drop(state);
        std::fs::write(path, "{\"last\": ").unwrap();
        assert_eq!(open().last(), None);
    }
}
