//! Which epochs are kept: none that is too old, and no more bytes than permitted, but in any case
//! the newest three of each user and those that are still written. Each user has a share of the
//! bytes. A user who exceeds it loses his own oldest epochs, never those of another user. Where the
//! file system has less free space than it should, the permitted bytes are fewer by as much.

use super::config::Keep;
use super::epoch::start_of;
use formats::recording::{FLIGHTS, is_epoch};
use heaptape_recorder::session::name_store;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Number of epochs of a user that are kept in any case.
pub(crate) const MIN_EPOCHS: usize = 3;
/// With this the name of an epoch begins that is being removed.
const REMOVED: &str = ".removed-";

/// A limit because of which epochs are removed or events are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    Age,
    Bytes,
    UserBytes,
    /// The free bytes of the file system.
    Free,
}

impl Limit {
    /// Returns the key of the limit in the configuration.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Limit::Age => "keep-age",
            Limit::Bytes => "keep-bytes",
            Limit::UserBytes => "user-keep-bytes",
            Limit::Free => "keep-free",
        }
    }
}

/// The share of the disk of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Number of bytes that are stored.
    pub used: u64,
    /// Maximum number of bytes that may be stored.
    pub limit: u64,
    /// The setting that determines `limit`.
    pub of: Limit,
}

impl Keep {
    /// Returns the limits that leave enough of the file system free. The epochs take `used` bytes,
    /// and `free` bytes are free now.
    pub(crate) fn leaving_free(self, used: u64, free: u64) -> Keep {
        if self.free == 0 {
            return self;
        }
        Keep { bytes: self.bytes.min(used.saturating_add(free).saturating_sub(self.free)), ..self }
    }

    /// Returns the shares of the users who store `used` bytes each, where `free` bytes are free.
    fn shares(&self, used: &BTreeMap<u32, u64>, free: u64) -> BTreeMap<u32, Share> {
        let own = self.limits(used);
        let all = used.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let limits = self.leaving_free(all, free).limits(used);
        let share = |(uid, limit): (u32, u64)| {
            let of = match own.get(&uid) {
                Some(own) if limit < *own => Limit::Free,
                _ if limit == self.user_bytes && limit < self.bytes => Limit::UserBytes,
                _ => Limit::Bytes,
            };
            (uid, Share { used: used.get(&uid).copied().unwrap_or(0), limit, of })
        };
        limits.into_iter().map(share).collect()
    }

    /// Returns the share of each user, given the bytes that are stored for each. Free space is
    /// available to every user, and nobody loses epochs because of others as long as he holds no
    /// more than an equal share.
    fn limits(&self, used: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
        let mut wanted: Vec<u64> = used.values().map(|bytes| (*bytes).min(self.user_bytes)).collect();
        wanted.sort_unstable();
        let (mut free, mut level) = (self.bytes, None);
        for (index, bytes) in wanted.iter().enumerate() {
            let equal = free / (wanted.len() - index) as u64;
            if *bytes > equal {
                level = Some(equal);
                break;
            }
            free -= bytes;
        }
        // Each user is entitled to an equal share even where others have used some of it: they lose
        // that when he needs it.
        let equal = self.bytes / wanted.len().max(1) as u64;
        let limit = |bytes: u64| level.unwrap_or_else(|| bytes.saturating_add(free)).max(equal).min(self.user_bytes);
        used.iter().map(|(uid, bytes)| (*uid, limit(*bytes))).collect()
    }

    /// Returns the share of a user for whom nothing is stored yet.
    pub fn first(&self, others: usize) -> u64 {
        (self.bytes / (others as u64 + 1)).min(self.user_bytes)
    }
}

/// The folder of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    /// User id of the owner.
    pub uid: u32,
    pub dir: PathBuf,
}

/// The outcome of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Number of bytes that remain.
    pub bytes: u64,
    /// Number of epochs that remain.
    pub epochs: u64,
    /// The epochs that were removed, each with the limit that it exceeded.
    pub removed: Vec<(Found, Limit)>,
    /// The share of each user, with the bytes that remain.
    pub users: BTreeMap<u32, Share>,
}

/// Sizes of epochs that do not change any more, in bytes.
pub(crate) type Sizes = HashMap<PathBuf, u64>;

/// Returns the folders of all users.
fn users(state: &Path) -> Vec<(u32, PathBuf)> {
    let folders = std::fs::read_dir(state).into_iter().flatten().flatten();
    folders.filter_map(|user| Some((user.file_name().to_str()?.parse().ok()?, user.path()))).collect()
}

/// Returns all epochs, those of a user in the order of their start. Links are not followed, and
/// other names are ignored.
pub(crate) fn epochs(state: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for (uid, path) in users(state) {
        for epoch in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let is_folder = epoch.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && epoch.file_name().to_str().is_some_and(is_epoch) {
                found.push(Found { uid, dir: epoch.path() });
            }
        }
    }
    found.sort();
    found
}

/// Removes an epoch. It loses its name first, so that who reads it has all of its files or none.
fn remove_epoch(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let unnamed = dir.with_file_name(format!("{REMOVED}{name}"));
    std::fs::rename(dir, &unnamed).is_ok() && std::fs::remove_dir_all(unnamed).is_ok()
}

/// Removes what is left of epochs whose removal failed.
fn finish_removals(state: &Path) {
    for (_, path) in users(state) {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let removed = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(REMOVED));
        removed.for_each(|entry| drop(std::fs::remove_dir_all(entry.path())));
    }
}

/// Returns the disk space of a folder, in bytes.
pub(crate) fn bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        sum += meta.blocks() * 512;
        if meta.is_dir() {
            sum += bytes(&entry.path());
        }
    }
    sum
}

/// Removes epochs that need not be kept and are not `open`: first those that are too old, then the
/// oldest of each user who exceeds his share. A sixteenth of the share stays free for the epoch
/// that is being written. `free` is the number of free bytes of the file system, and `now` the time
/// in seconds since 1970.
pub(crate) fn sweep(state: &Path, keep: Keep, free: u64, open: &[&Path], now: u64, sizes: &mut Sizes) -> Swept {
    finish_removals(state);
    let all = epochs(state);
    let mut remaining: Vec<(Found, u64, bool)> = Vec::new();
    for (index, found) in all.iter().enumerate() {
        let newer = all[index + 1..].iter().filter(|other| other.uid == found.uid).count();
        let is_open = open.contains(&found.dir.as_path());
        let size = match sizes.get(&found.dir).filter(|_| !is_open) {
            Some(size) => *size,
            None => bytes(&found.dir),
        };
        if !is_open {
            sizes.insert(found.dir.clone(), size);
        }
        remaining.push((found.clone(), size, newer >= MIN_EPOCHS && !is_open));
    }
    let mut swept = Swept::default();
    let mut freed = 0_u64;
    let mut remove = |(found, size, is_removable): &(Found, u64, bool), limit: Limit| {
        let is_removed = *is_removable && remove_epoch(&found.dir);
        if is_removed {
            freed += size;
            swept.removed.push((found.clone(), limit));
        }
        is_removed
    };
    let is_old =
        |found: &Found| start_of(&found.dir).is_some_and(|started| now.saturating_sub(started) > keep.age.as_secs());
    let sum = |rows: &[(Found, u64, bool)]| rows.iter().fold(0, |sum: u64, (_, size, _)| sum.saturating_add(*size));
    let before = sum(&remaining);
    remaining.retain(|row| !(is_old(&row.0) && remove(row, Limit::Age)));
    // Kept flight recordings are not removed, but count, and so do the names.
    let beside = |path: &Path| bytes(&path.join(FLIGHTS)) + name_store::limit(path);
    let mut used: BTreeMap<u32, u64> = users(state).into_iter().map(|(uid, path)| (uid, beside(&path))).collect();
    for (found, size, _) in &remaining {
        *used.entry(found.uid).or_default() += size;
    }
    // What was removed because of its age is free again.
    let limits = keep.shares(&used, free.saturating_add(before.saturating_sub(sum(&remaining))));
    remaining.retain(|row| {
        let (Some(used), Some(share)) = (used.get_mut(&row.0.uid), limits.get(&row.0.uid)) else { return true };
        let is_removed = *used > share.limit - share.limit / 16 && remove(row, share.of);
        *used -= if is_removed { row.1 } else { 0 };
        !is_removed
    });
    sizes.retain(|dir, _| remaining.iter().any(|(found, ..)| found.dir == *dir));
    // The space of removed epochs is free again.
    let users = keep.shares(&used, free.saturating_add(freed));
    Swept { bytes: used.values().sum(), epochs: remaining.len() as u64, users, ..swept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn old_epochs_are_removed_first_and_three_are_kept() {
        let state = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let make = |uid: &str, name: &str, size: usize| {
            let dir = state.path().join(uid).join(name);
            std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{error}"));
            std::fs::write(dir.join("file"), vec![1; size]).unwrap_or_else(|error| panic!("{error}"));
        };
        let left = || -> Vec<String> {
            let name =
                |found: Found| format!("{}/{}", found.uid, found.dir.file_name().unwrap_or_default().to_string_lossy());
            epochs(state.path()).into_iter().map(name).collect()
        };
        for hour in 0..6 {
            make("7", &format!("20261121{hour:02}00"), 100_000);
        }
        make("8", "202001010000", 100_000);
        std::fs::create_dir_all(state.path().join("7/flight")).unwrap_or_else(|error| panic!("{error}"));
        let now = start_of(Path::new("202611210600")).unwrap_or(0);
        let keep = Keep { age: Duration::from_secs(5 * 3600), bytes: u64::MAX, user_bytes: u64::MAX, free: 0 };
        let sweep = |keep, open: &[&Path], now| sweep(state.path(), keep, u64::MAX, open, now, &mut Sizes::new());
        let written = state.path().join("7/202611210000");
        assert_eq!(sweep(keep, &[&written], now).removed.len(), 0, "it is still written");
        let swept = sweep(keep, &[], now);
        assert_eq!((swept.epochs, swept.removed.len()), (6, 1), "one is too old, and another user's only one stays");
        let swept = sweep(Keep { bytes: 450_000, ..keep }, &[], now);
        assert_eq!(left(), ["7/202611210300", "7/202611210400", "7/202611210500", "8/202001010000"]);
        assert!(swept.bytes >= 400_000 && swept.removed.len() == 2, "{swept:?}");
        let swept = sweep(Keep { bytes: 0, ..keep }, &[], now + 1_000_000);
        assert_eq!((swept.removed.len(), left().len()), (0, 4));
        assert!(state.path().join("7/flight").is_dir());
    }

    #[test]
    fn share_of_a_user_is_not_used_up_by_another() {
        let limits = |bytes, user_bytes, used: &[(u32, u64)]| -> Vec<u64> {
            let keep = Keep { age: Duration::MAX, bytes, user_bytes, free: 0 };
            keep.limits(&used.iter().copied().collect()).into_values().collect()
        };
        assert_eq!(limits(100, 100, &[(1, 10), (2, 20)]), [80, 90], "free space is available to all");
        assert_eq!(limits(100, 50, &[(1, 10), (2, 20)]), [50, 50], "up to the share of a user");
        assert_eq!(limits(100, 100, &[(1, 10), (2, 500), (3, 30)]), [60, 60, 60]);
        assert_eq!(limits(100, 100, &[(1, 400), (2, 500)]), [50, 50]);
        assert_eq!(limits(100, 40, &[(1, 400), (2, 500), (3, 20)]), [40, 40, 33]);
        let state = tempfile::tempdir().expect("a folder");
        for (uid, epochs, size) in [(7, 5, 40_000), (8, 6, 1_000_000)] {
            for hour in 0..epochs {
                let dir = state.path().join(format!("{uid}/20261121{hour:02}00"));
                std::fs::create_dir_all(&dir).expect("an epoch");
                std::fs::write(dir.join("file"), vec![1; size]).expect("a file");
            }
        }
        let keep = Keep { age: Duration::MAX, bytes: 2_000_000, user_bytes: u64::MAX, free: 0 };
        let open = state.path().join("8/202611210500");
        let swept = sweep(state.path(), keep, u64::MAX, &[&open], 0, &mut Sizes::new());
        let left = |uid| epochs(state.path()).iter().filter(|found| found.uid == uid).count();
        assert_eq!((left(7), left(8), swept.removed.len()), (5, 3, 3), "{swept:?}");
        let Share { used, limit, .. } = swept.users[&8];
        assert!(used > limit && limit < 2_000_000, "its own newest epochs are too much: {swept:?}");
        let Share { used, limit, .. } = swept.users[&7];
        assert!(used < limit, "{swept:?}");
    }

    #[test]
    fn file_system_keeps_its_free_space() {
        let state = tempfile::tempdir().expect("a folder");
        for hour in 0..8 {
            let dir = state.path().join(format!("7/20261121{hour:02}00"));
            std::fs::create_dir_all(&dir).expect("an epoch");
            std::fs::write(dir.join("file"), vec![1; 1_000_000]).expect("a file");
        }
        let keep = Keep { age: Duration::MAX, bytes: u64::MAX, user_bytes: u64::MAX, free: 5_000_000 };
        let sweep_once = |keep, free| sweep(state.path(), keep, free, &[], 0, &mut Sizes::new());
        let swept = sweep_once(keep, 6_500_000);
        assert_eq!((swept.removed.len(), swept.users[&7].of), (0, Limit::Free), "enough is free: {swept:?}");
        let swept = sweep_once(Keep { free: 0, ..keep }, 0);
        assert_eq!(swept.removed.len(), 0, "no such limit: {swept:?}");
        let swept = sweep_once(keep, 3_000_000);
        let limits: Vec<Limit> = swept.removed.iter().map(|(_, limit)| *limit).collect();
        assert_eq!(limits, [Limit::Free; 3], "{swept:?}");
        assert!(swept.removed[0].0.dir.ends_with("7/202611210000"), "the oldest first: {swept:?}");
        let Share { used, limit, .. } = swept.users[&7];
        assert!(used < limit && limit < used + 1_200_000, "what was removed is free again: {swept:?}");
        // Others fill the disk: the newest three stay, and nothing more is written.
        let swept = sweep_once(keep, 0);
        assert_eq!(swept.epochs, 3, "{swept:?}");
        let Share { used, limit, of } = swept.users[&7];
        assert!(used >= limit && of == Limit::Free, "{swept:?}");
    }
}
