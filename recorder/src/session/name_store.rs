//! The function names of programs and libraries, by build-id, in the state folder of the daemon: at
//! the first sight of a build-id the symbols of its file are stored, once. A container that is gone
//! keeps its names so, also if the daemon was killed before it could look up those of a process.
//!
//! A user's store is a folder beside the epochs, with a folder for each build-id. The names are in
//! `symbols.tape`, as in the folder of a process.

use crate::os::permissions::make_folder;
use crate::target::module_files::ModuleFiles;
use crate::target::name_saver::Job;
use formats::recording::{NAMES, SYMBOLS, build_id_folder};
use formats::tape;
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Maximum number of build-ids of one user.
const MAX_BUILD_IDS: usize = 2048;
/// Maximum number of bytes of one user's store.
const MAX_BYTES: u64 = 256 << 20;

/// The stored names of the programs of one user.
#[derive(Debug)]
pub struct NameStore {
    root: PathBuf,
    /// User who may read the names, besides their owner.
    reader: Option<u32>,
    /// The build-ids that were seen since the start.
    seen: Mutex<HashSet<Vec<u8>>>,
}

impl NameStore {
    /// Returns the store in the folder of a user.
    pub fn of(user: &Path, reader: Option<u32>) -> NameStore {
        NameStore { root: user.join(NAMES), reader, seen: Mutex::default() }
    }

    /// Stores the symbols of a module whose build-id is seen for the first time.
    pub fn see(&self, module: &tape::Module, files: &ModuleFiles) {
        let build_id = &module.build_id.0;
        let (Some(saver), Some(file)) = (files.saver(), files.file(module)) else { return };
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if build_id.is_empty() || seen.len() >= MAX_BUILD_IDS || !seen.insert(build_id.clone()) {
                return;
            }
        }
        let folder = self.root.join(build_id_folder(build_id));
        if let Ok(stored) = File::open(folder.join(SYMBOLS)) {
            // The oldest ones are removed first.
            let _ = stored.set_modified(SystemTime::now());
            return;
        }
        let made = make_folder(&self.root, self.reader).and_then(|()| make_folder(&folder, self.reader));
        if let Err(error) = made {
            return tracing::debug!("{}: no names are stored: {error}", folder.display());
        }
        let mut job = Job { folders: vec![folder.clone()], reader: self.reader, ..Job::default() };
        // Without addresses, all functions are meant.
        job.ask(module, 0, [Some(file), files.debug(module)], Vec::new());
        if !saver.submit(job) {
            let _ = std::fs::remove_dir_all(&folder);
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&module.build_id.0);
        }
    }
}

/// Removes the names that are beyond the limits of one user's store, those that were not seen for
/// longest first. Returns the number of bytes that remain.
pub fn limit(user: &Path) -> u64 {
    limit_to(&user.join(NAMES), MAX_BUILD_IDS, MAX_BYTES)
}

fn limit_to(root: &Path, max_folders: usize, max_bytes: u64) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut stored: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let file = std::fs::metadata(entry.path().join(SYMBOLS));
        let bytes = file.as_ref().map_or(0, |file| file.blocks() * 512) + 4096;
        // Names that are being looked up are as new as their folder.
        let seen = file.or_else(|_| entry.metadata()).and_then(|found| found.modified());
        stored.push((seen.unwrap_or(SystemTime::UNIX_EPOCH), bytes, entry.path()));
    }
    stored.sort();
    let (mut count, mut sum) = (stored.len(), stored.iter().map(|(_, bytes, _)| bytes).sum::<u64>());
    for (_, bytes, folder) in stored {
        if (count > max_folders || sum > max_bytes) && std::fs::remove_dir_all(folder).is_ok() {
            (count, sum) = (count - 1, sum - bytes);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_that_were_not_seen_for_longest_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        for (name, age) in [("aa", 3), ("bb", 9), ("cc", 1), ("dd", 5)] {
            let folder = root.path().join(name);
            std::fs::create_dir(&folder).expect("a build-id");
            std::fs::write(folder.join(SYMBOLS), vec![1; 100_000]).expect("its names");
            let seen = SystemTime::now() - Duration::from_secs(age * 1000);
            File::open(folder.join(SYMBOLS)).and_then(|file| file.set_modified(seen)).expect("its time");
        }
        let left = || {
            let entries = std::fs::read_dir(root.path()).expect("the store").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().expect("a name")).collect();
            names.sort();
            names
        };
        assert!(limit_to(root.path(), 4, 1 << 20) > 400_000);
        assert_eq!(left().len(), 4);
        limit_to(root.path(), 3, 1 << 20);
        assert_eq!(left(), ["aa", "cc", "dd"]);
        let bytes = limit_to(root.path(), 3, 250_000);
        assert_eq!((left(), bytes < 250_000), (vec!["aa".to_owned(), "cc".to_owned()], true));
        assert_eq!(limit_to(&root.path().join("none"), 3, 0), 0);
    }
}
