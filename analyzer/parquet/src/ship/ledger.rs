//! What has been shipped to a destination: a file in the state folder. It only saves work. The
//! names of the shipped files are the same in each attempt, so nothing is stored twice without it.

use crate::ids::Hash;
use anyhow::Context;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Name of the folder of the ledgers in the state folder.
const FOLDER: &str = "shipped";
/// Maximum number of stacks whose names are remembered.
const MAX_STACKS: usize = 1 << 20;

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Content {
    /// The destination as it was given.
    to: String,
    /// Epochs that are on disk and shipped, as `UID/EPOCH`.
    shipped: BTreeSet<String>,
    /// Epochs that are on disk and not shipped.
    waiting: BTreeSet<String>,
    /// Epochs that cannot be read, and are not shipped.
    unreadable: BTreeSet<String>,
    /// Number of epochs that were removed before they were shipped.
    removed_unshipped: u64,
    /// Day of the stacks.
    date: String,
    /// Stacks whose names were shipped on that day.
    stacks: Vec<i64>,
}

/// What has been shipped to a destination. Only one process has it at a time.
pub(crate) struct Ledger {
    path: PathBuf,
    content: Content,
    _lock: Flock<File>,
}

impl Ledger {
    /// Opens the ledger of a destination, and waits until no other process has it.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub(crate) fn open(state: &Path, to: &str) -> anyhow::Result<Ledger> {
        let folder = state.join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let name = format!("{:016x}", Hash::new().bytes(to.as_bytes()).finish());
        let lock_path = folder.join(format!("{name}.lock"));
        let lock = File::options().create(true).append(true).open(&lock_path);
        let lock = lock.with_context(|| lock_path.display().to_string())?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let path = folder.join(format!("{name}.json"));
        // Without the file, or with a damaged one, names of files decide what is there.
        let read = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let content = Content { to: to.to_owned(), ..read.unwrap_or_default() };
        Ok(Ledger { path, content, _lock: lock })
    }

    /// Compares with the epochs on disk. Returns those that are to be shipped, and the number of
    /// those that were removed since the last time without having been shipped.
    pub(crate) fn compare(&mut self, on_disk: &BTreeSet<String>) -> (Vec<String>, u64) {
        let content = &mut self.content;
        let removed = content.waiting.difference(on_disk).count() as u64;
        content.removed_unshipped += removed;
        content.shipped.retain(|epoch| on_disk.contains(epoch));
        content.unreadable.retain(|epoch| on_disk.contains(epoch));
        content.waiting = on_disk
            .iter()
            .filter(|epoch| !content.shipped.contains(*epoch) && !content.unreadable.contains(*epoch))
            .cloned()
            .collect();
        (content.waiting.iter().cloned().collect(), removed)
    }

    /// Returns the stacks whose names were shipped on a day.
    pub(crate) fn stacks(&self, date: &str) -> HashSet<i64> {
        if self.content.date == date { self.content.stacks.iter().copied().collect() } else { HashSet::new() }
    }

    /// Notes that an epoch is shipped, with the stacks whose names have been shipped on its day.
    pub(crate) fn shipped(&mut self, epoch: &str, date: &str, stacks: HashSet<i64>) {
        self.content.waiting.remove(epoch);
        self.content.shipped.insert(epoch.to_owned());
        self.content.date = date.to_owned();
        self.content.stacks = if stacks.len() > MAX_STACKS { Vec::new() } else { stacks.into_iter().collect() };
    }

    /// Notes that an epoch cannot be read.
    pub(crate) fn unreadable(&mut self, epoch: &str) {
        self.content.waiting.remove(epoch);
        self.content.unreadable.insert(epoch.to_owned());
    }

    /// Number of epochs that are to be shipped.
    pub(crate) fn waiting(&self) -> u64 {
        self.content.waiting.len() as u64
    }

    /// Number of epochs that were removed before they were shipped, since the first time.
    pub(crate) fn removed_unshipped(&self) -> u64 {
        self.content.removed_unshipped
    }

    /// Writes the file of the ledger.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub(crate) fn save(&self) -> anyhow::Result<()> {
        let folder = self.path.parent().context("a path in a folder")?;
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(|| folder.display().to_string())?;
        serde_json::to_writer(&mut file, &self.content)?;
        file.as_file().sync_all()?;
        file.persist(&self.path).with_context(|| self.path.display().to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ledger_continues_and_counts_what_was_removed() {
        let state = tempfile::tempdir().unwrap();
        let open = || Ledger::open(state.path(), "/tables").unwrap();
        let mut ledger = open();
        let (waiting, removed) = ledger.compare(&names(&["0/1", "0/2", "0/3"]));
        assert_eq!((waiting.len(), removed), (3, 0));
        ledger.shipped("0/1", "2026-11-23", HashSet::from([7]));
        ledger.save().unwrap();
        drop(ledger);
        let mut ledger = open();
        assert_eq!(ledger.stacks("2026-11-23"), HashSet::from([7]));
        assert!(ledger.stacks("2026-11-24").is_empty());
        // The shipped epoch and one that was not were removed.
        assert_eq!(ledger.compare(&names(&["0/3", "0/4"])), (vec!["0/3".into(), "0/4".into()], 1));
        ledger.unreadable("0/3");
        assert_eq!((ledger.waiting(), ledger.removed_unshipped()), (1, 1));
        assert_eq!(ledger.compare(&names(&["0/3", "0/4"])), (vec!["0/4".into()], 0));
        // Another destination knows of nothing.
        assert_eq!(Ledger::open(state.path(), "/others").unwrap().compare(&names(&["0/4"])).0, ["0/4"]);
    }

    #[test]
    fn damaged_ledger_begins_anew() {
        let state = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(state.path(), "/tables").unwrap();
        ledger.save().unwrap();
        let path = ledger.path.clone();
        drop(ledger);
        std::fs::write(&path, "{\"shipped\": 7").unwrap();
        assert_eq!(Ledger::open(state.path(), "/tables").unwrap().compare(&names(&["0/1"])).0, ["0/1"]);
    }
}
