//! An epoch: a period of time, and the folder with its recordings. The names of a user's folders
//! sort in the order of their start.

use formats::date::Date;
use formats::recording::is_epoch;
use heaptape_recorder::os::clock;
use heaptape_recorder::os::permissions::make_folder;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of characters of a name that denote the minute.
const MINUTE_DIGITS: usize = 12;
/// Maximum number of epochs that start in the same minute.
const MAX_PER_MINUTE: u32 = 9999;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Epoch {
    /// User id of the owner of the recorded processes.
    pub uid: u32,
    /// User who may read the files besides the daemon's own user.
    pub reader: Option<u32>,
    /// Path of the epoch's folder.
    pub dir: PathBuf,
    /// Start of the epoch, in nanoseconds since 1970.
    pub started_unix_ns: u64,
}

impl Epoch {
    /// Starts an epoch: creates its folder. It is named by the time `named` since 1970 if the clock
    /// cannot be believed.
    pub(crate) fn begin(state: &Path, uid: u32, reader: Option<u32>, named: Option<Duration>) -> io::Result<Epoch> {
        let own = state.join(uid.to_string());
        make_folder(&own, reader)?;
        let started_unix_ns = clock::unix_ns();
        let last = std::fs::read_dir(&own)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let last = last.filter(|name| is_epoch(name)).max();
        let name = name_after(last.as_deref(), &minute(named.unwrap_or(Duration::from_nanos(started_unix_ns))))
            .ok_or(io::ErrorKind::AlreadyExists)?;
        let dir = own.join(name);
        make_folder(&dir, reader)?;
        Ok(Epoch { uid, reader, dir, started_unix_ns })
    }
}

fn minute(time: Duration) -> String {
    let Date { year, month, day, hour, minute, .. } = Date::from_unix(time.as_secs());
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}")
}

/// Returns the minute as a name, or its next number. After the clock was set back this is the
/// minute of the last epoch: a name that sorts before older epochs would be removed before them.
fn name_after(last: Option<&str>, minute: &str) -> Option<String> {
    let Some(last) = last.filter(|last| last.get(..MINUTE_DIGITS).is_some_and(|last| last >= minute)) else {
        return Some(minute.to_owned());
    };
    let (digits, number) = last.split_once('-').unwrap_or((last, "1"));
    let number = number.parse::<u32>().ok().filter(|number| *number < MAX_PER_MINUTE)? + 1;
    Some(format!("{digits}-{number:04}"))
}

/// Returns the start of an epoch from its name, in seconds since 1970.
pub(crate) fn start_of(dir: &Path) -> Option<u64> {
    let name = dir.file_name()?.to_str()?;
    let field = |from: usize, to: usize| name.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (field(0, 4)?, field(4, 6)?, field(6, 8)?);
    let (hour, minute) = (field(8, 10)?, field(10, 12)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    // Days of the civil calendar, with years that start in March.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1;
    Some(((days - 719_468) * 24 + hour) * 3600 + minute * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_denote_times() {
        for (name, seconds) in
            [("197001010000", 0), ("202611211130-0002", 1_795_260_600), ("200002291200", 951_825_600)]
        {
            assert_eq!(start_of(Path::new(name)), Some(seconds), "{name}");
            assert!(is_epoch(name));
        }
        assert!(!is_epoch("flight") && !is_epoch("20261121113") && start_of(Path::new("202613011130")).is_none());
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
    fn removed_name_is_not_used_again() {
        let state = tempfile::tempdir().expect("a folder");
        let begin = || Epoch::begin(state.path(), 7, None, None).expect("an epoch");
        let epochs = [begin(), begin(), begin()];
        std::fs::remove_dir(&epochs[0].dir).expect("the first");
        let next = begin();
        assert!(epochs.iter().all(|epoch| epoch.dir < next.dir), "{next:?} after {epochs:?}");
    }
}
