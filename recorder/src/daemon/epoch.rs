//! An epoch: a stretch of time and the folder with what was recorded in it. Folders of a user sort
//! in the order in which they began.

use crate::clock;
use crate::process::make_folder;
use formats::dcpi;
use formats::recording::is_epoch;
use std::io;
use std::path::{Path, PathBuf};

/// Characters of a name that say the minute.
const MINUTE: usize = 12;
/// Epochs that the names of one minute have room for.
const MOST: u32 = 9999;

/// An epoch as everybody names it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Whose.
    pub uid: u32,
    /// Who may read its files besides the daemon's own user.
    pub reader: Option<u32>,
    /// Its folder.
    pub dir: PathBuf,
    /// When it began.
    pub started_unix_ns: u64,
}

impl Epoch {
    /// Begins one: makes its folder.
    pub fn begin(state: &Path, uid: u32, reader: Option<u32>) -> io::Result<Epoch> {
        let own = state.join(uid.to_string());
        make_folder(&own, reader)?;
        let started_unix_ns = clock::unix_ns();
        let last = std::fs::read_dir(&own)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let last = last.filter(|name| is_epoch(name)).max();
        let name = name_after(last.as_deref(), &minute(started_unix_ns)).ok_or(io::ErrorKind::AlreadyExists)?;
        let dir = own.join(name);
        make_folder(&dir, reader)?;
        Ok(Epoch { uid, reader, dir, started_unix_ns })
    }
}

fn minute(unix_ns: u64) -> String {
    let dcpi::Epoch { year, month, day, hour, minute, .. } = dcpi::Epoch::from_unix(unix_ns / 1_000_000_000);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}")
}

/// The minute, or its next number. After the clock was set back it is the last epoch's minute: a
/// name that sorts before older epochs would be removed before them.
fn name_after(last: Option<&str>, minute: &str) -> Option<String> {
    let Some(last) = last.filter(|last| last.get(..MINUTE).is_some_and(|last| last >= minute)) else {
        return Some(minute.to_owned());
    };
    let (digits, number) = last.split_once('-').unwrap_or((last, "1"));
    let number = number.parse::<u32>().ok().filter(|number| *number < MOST)? + 1;
    Some(format!("{digits}-{number:04}"))
}

/// Seconds since 1970 that an epoch's name says.
pub fn begun(dir: &Path) -> Option<u64> {
    let name = dir.file_name()?.to_str()?;
    let part = |from: usize, to: usize| name.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute) = (part(8, 10)?, part(10, 12)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    // Days of the civil calendar, years from March on.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1;
    Some(((days - 719_468) * 24 + hour) * 3600 + minute * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_times() {
        for (name, seconds) in
            [("197001010000", 0), ("202611211130-0002", 1_795_260_600), ("200002291200", 951_825_600)]
        {
            assert_eq!(begun(Path::new(name)), Some(seconds), "{name}");
            assert!(is_epoch(name));
        }
        assert!(!is_epoch("flight") && !is_epoch("20261121113") && begun(Path::new("202613011130")).is_none());
    }

    #[test]
    fn later_epochs_sort_later() {
        let minute = "202611211735";
        assert_eq!(name_after(None, minute).as_deref(), Some(minute));
        assert_eq!(name_after(Some("202611211734-0024"), minute).as_deref(), Some(minute));
        assert_eq!(name_after(Some(minute), minute).as_deref(), Some("202611211735-0002"));
        assert_eq!(name_after(Some("202611211735-0009"), minute).as_deref(), Some("202611211735-0010"));
        assert_eq!(name_after(Some("202701010000"), minute).as_deref(), Some("202701010000-0002"), "set back");
        assert_eq!(name_after(Some("202611211735-9999"), minute), None);
    }

    #[test]
    fn a_name_that_was_removed_is_not_given_again() {
        let state = tempfile::tempdir().expect("a folder");
        let begin = || Epoch::begin(state.path(), 7, None).expect("an epoch");
        let epochs = [begin(), begin(), begin()];
        std::fs::remove_dir(&epochs[0].dir).expect("the first");
        let next = begin();
        assert!(epochs.iter().all(|epoch| epoch.dir < next.dir), "{next:?} after {epochs:?}");
    }
}
