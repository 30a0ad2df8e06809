//! Which epochs are kept: none that is too old, not more bytes than allowed, and in any case the newest three of each user and those that are
//! still written.

use super::epoch::begun;
use formats::recording::is_epoch;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Epochs of a user that stay whatever else is said.
pub const NEWEST: usize = 3;

/// What is kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// The age that an epoch may have.
    pub age: Duration,
    /// The bytes that all may have together.
    pub bytes: u64,
}

/// An epoch's folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Whose.
    pub uid: u32,
    /// Its folder.
    pub dir: PathBuf,
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Bytes that are left.
    pub bytes: u64,
    /// Epochs that are left.
    pub epochs: u64,
    /// Epochs that went.
    pub removed: u64,
}

/// All epochs, a user's in their order. Links are not followed and other names are left alone.
pub fn epochs(state: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for user in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let Some(uid) = user.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for epoch in std::fs::read_dir(user.path()).into_iter().flatten().flatten() {
            let is_folder = epoch.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && epoch.file_name().to_str().is_some_and(is_epoch) {
                found.push(Found { uid, dir: epoch.path() });
            }
        }
    }
    found.sort();
    found
}

/// Bytes that a folder takes on disk.
pub fn bytes(folder: &Path) -> u64 {
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

/// Removes what need not be kept and is not `open`: first what is too old, then the oldest as long as there is too much.
pub fn sweep(state: &Path, keep: Keep, open: &[&Path], now: u64) -> Swept {
    let all = epochs(state);
    let mut rest: Vec<(Found, u64, bool)> = Vec::new();
    for (place, found) in all.iter().enumerate() {
        let newer = all[place + 1..].iter().filter(|other| other.uid == found.uid).count();
        let may_go = newer >= NEWEST && !open.contains(&found.dir.as_path());
        rest.push((found.clone(), bytes(&found.dir), may_go));
    }
    let mut swept = Swept::default();
    let mut remove = |(found, _, may_go): &(Found, u64, bool)| {
        let gone = *may_go && std::fs::remove_dir_all(&found.dir).is_ok();
        swept.removed += u64::from(gone);
        gone
    };
    let is_old = |found: &Found| begun(&found.dir).is_some_and(|begun| now.saturating_sub(begun) > keep.age.as_secs());
    rest.retain(|row| !(is_old(&row.0) && remove(row)));
    rest.sort_by(|one, other| one.0.dir.file_name().cmp(&other.0.dir.file_name()));
    let mut sum: u64 = rest.iter().map(|(_, bytes, _)| bytes).sum();
    rest.retain(|row| {
        let goes = sum > keep.bytes && remove(row);
        sum -= if goes { row.1 } else { 0 };
        !goes
    });
    Swept { bytes: sum, epochs: rest.len() as u64, ..swept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ones_go_then_the_oldest_and_three_stay() {
        let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let make = |uid: &str, name: &str, size: usize| {
            let dir = place.path().join(uid).join(name);
            std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{error}"));
            std::fs::write(dir.join("file"), vec![1; size]).unwrap_or_else(|error| panic!("{error}"));
        };
        let left = || -> Vec<String> {
            let name =
                |found: Found| format!("{}/{}", found.uid, found.dir.file_name().unwrap_or_default().to_string_lossy());
            epochs(place.path()).into_iter().map(name).collect()
        };
        for hour in 0..6 {
            make("7", &format!("20261121{hour:02}00"), 100_000);
        }
        make("8", "202001010000", 100_000);
        std::fs::create_dir_all(place.path().join("7/flight")).unwrap_or_else(|error| panic!("{error}"));
        let now = begun(Path::new("202611210600")).unwrap_or(0);
        let keep = Keep { age: Duration::from_secs(5 * 3600), bytes: u64::MAX };
        let written = place.path().join("7/202611210000");
        assert_eq!(sweep(place.path(), keep, &[&written], now).removed, 0, "it is still written");
        let swept = sweep(place.path(), keep, &[], now);
        assert_eq!((swept.epochs, swept.removed), (6, 1), "one is too old, and another user's only one stays");
        let swept = sweep(place.path(), Keep { bytes: 450_000, ..keep }, &[], now);
        assert_eq!(left(), ["7/202611210300", "7/202611210400", "7/202611210500", "8/202001010000"]);
        assert!(swept.bytes >= 400_000 && swept.removed == 2, "{swept:?}");
        let swept = sweep(place.path(), Keep { bytes: 0, ..keep }, &[], now + 1_000_000);
        assert_eq!((swept.removed, left().len()), (0, 4));
        assert!(place.path().join("7/flight").is_dir());
    }
}
