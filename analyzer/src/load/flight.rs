//! What a daemon removes or moves while it is read: the oldest epochs, and segments of flight
//! recordings. It removes the oldest segment when there is one too many, and moves all of them to an
//! epoch when they are kept.

use super::{Failure, Recording};
use heaptape_formats::recording::{FLIGHTS, TAPE, is_epoch};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum age of the tape of a segment that is being written.
const MAX_AGE: Duration = Duration::from_secs(15);

/// Returns whether a folder is a segment of a flight recording that is in no epoch.
fn is_segment(folder: &Path) -> bool {
    folder.parent().and_then(Path::file_name).is_some_and(|parent| parent == FLIGHTS)
}

/// Returns whether a daemon writes this folder of a flight recording now. The folder is in no
/// epoch, so only the age of the tape tells: a daemon writes it before it is read.
pub(super) fn is_open(folder: &Path) -> bool {
    let written = std::fs::metadata(folder.join(TAPE)).and_then(|file| file.modified());
    is_segment(folder) && written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < MAX_AGE))
}

/// Returns whether a path is an epoch of a daemon, or in one. A user's folder has them.
pub(super) fn is_in_epoch(path: &Path) -> bool {
    let epoch = path.ancestors().take(2).find(|folder| folder.file_name().is_some_and(is_epoch_name));
    epoch.and_then(Path::parent).is_some_and(|user| user.is_dir() && user.file_name().is_some_and(is_user))
}

fn is_epoch_name(name: &OsStr) -> bool {
    is_epoch(&name.to_string_lossy())
}

fn is_user(name: &OsStr) -> bool {
    name.to_string_lossy().parse::<u32>().is_ok()
}

/// Opens a path with `open`. Returns `None` for an epoch, or the segment of a flight recording, that
/// was removed since it was listed; a segment that was moved to an epoch is opened there.
pub(super) fn open_if_there(
    path: &Path,
    open: impl Fn(&Path) -> Result<Recording, Failure>,
) -> Result<Option<Recording>, Failure> {
    let opened = open(path);
    // The daemon renames a segment or epoch before it removes its files. So all files of one that
    // still has its name were there when they were opened.
    if path.exists() || !(is_segment(path) || is_in_epoch(path)) {
        return opened.map(Some);
    }
    if !is_segment(path) {
        return Ok(None);
    }
    in_epoch(path).map(|moved| open(&moved)).transpose()
}

/// Returns the folder in the epochs of the user to which a segment was moved.
fn in_epoch(segment: &Path) -> Option<PathBuf> {
    let (name, user) = (segment.file_name()?, segment.parent()?.parent()?);
    let epochs = std::fs::read_dir(user).ok()?.flatten().filter(|entry| is_epoch(&entry.file_name().to_string_lossy()));
    epochs.map(|epoch| epoch.path().join(name)).find(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::super::{open_all, open_separately};
    use super::*;
    use crate::epochs;
    use heaptape_formats::recording::RECORDING;

    /// A state folder with three segments of process 7 of user 5.
    struct State(tempfile::TempDir);

    impl State {
        fn new() -> State {
            let state = State(tempfile::tempdir().expect("a folder"));
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape/v1/trace");
            let recording = super::super::open(&golden).expect("the golden recording");
            for number in 1..=3 {
                let segment = state.segment(number);
                std::fs::create_dir_all(&segment).expect("a segment");
                for entry in std::fs::read_dir(&recording.processes[0].path).expect("a process").flatten() {
                    std::fs::copy(entry.path(), segment.join(entry.file_name())).expect("a copy");
                }
            }
            state
        }

        fn segment(&self, number: u32) -> PathBuf {
            self.0.path().join(format!("5/{FLIGHTS}/7.shop@202611210800+{number}"))
        }

        fn listed(&self) -> Vec<PathBuf> {
            epochs::flight(self.0.path(), 5, 7)
        }

        /// Moves a segment as the daemon does when the recording is kept.
        fn keep(&self, number: u32) -> PathBuf {
            let epoch = self.0.path().join("5/202611210900");
            std::fs::create_dir_all(&epoch).expect("an epoch");
            let segment = self.segment(number);
            let kept = epoch.join(segment.file_name().expect("its name"));
            std::fs::rename(segment, &kept).expect("it is moved");
            kept
        }
    }

    fn paths(recordings: &[Recording]) -> Vec<PathBuf> {
        recordings.iter().map(|recording| recording.path.clone()).collect()
    }

    #[test]
    fn segment_that_is_removed_after_the_listing_is_left_out() {
        let state = State::new();
        let listed = state.listed();
        assert_eq!(listed, [1, 2, 3].map(|number| state.segment(number)));
        std::fs::remove_dir_all(&listed[0]).expect("it is removed");
        assert_eq!(paths(&open_all(&listed).expect("the others")), listed[1..]);
        // If nothing is left, that is an error.
        listed[1..].iter().for_each(|segment| std::fs::remove_dir_all(segment).expect("it is removed"));
        assert!(matches!(open_all(&listed), Err(Failure::Io { path, .. }) if path == listed[2].display().to_string()));
        // A missing path of another kind is an error also beside others.
        let other = state.0.path().join("5/other/8.shop");
        let state = State::new();
        assert!(open_all(&[state.segment(1), other]).is_err());
    }

    #[test]
    fn epoch_that_is_removed_after_the_listing_is_left_out_and_noted() {
        let state = State::new();
        let epochs: Vec<PathBuf> = (1..=3)
            .map(|number| {
                let epoch = state.0.path().join(format!("5/20261121090{number}"));
                std::fs::create_dir_all(&epoch).expect("an epoch");
                std::fs::rename(state.segment(number), epoch.join("7.shop")).expect("it is moved");
                epoch
            })
            .collect();
        std::fs::remove_dir_all(&epochs[0]).expect("it is removed");
        let listed = [epochs[0].clone(), epochs[1].join("7.shop"), epochs[2].clone()];
        let opened = open_all(&listed).expect("the others");
        assert_eq!(paths(&opened), listed[1..]);
        let missing: Vec<String> = opened[1].missing.iter().map(ToString::to_string).collect();
        assert!(
            missing.iter().any(|one| one.contains("202611210901") && one.contains("has removed it")),
            "{missing:?}"
        );
        // While it is opened, too.
        let open = |path: &Path| {
            let opened = open_separately(path);
            std::fs::remove_dir_all(path).expect("it is removed");
            opened
        };
        assert!(open_if_there(&epochs[2], open).expect("no error").is_none());
        std::fs::remove_dir_all(&epochs[1]).expect("it is removed");
        assert!(open_all(&listed).is_err(), "nothing is left");
    }

    #[test]
    fn segment_that_is_moved_after_the_listing_is_read_in_its_epoch() {
        let state = State::new();
        let listed = state.listed();
        let kept = state.keep(1);
        assert_eq!(paths(&open_all(&listed).expect("all")), [kept.clone(), listed[1].clone(), listed[2].clone()]);
        // The epoch was listed after the move, too: the segment counts once.
        let twice = [listed, vec![kept]].concat();
        let opened = open_all(&twice).expect("all");
        assert_eq!(opened.iter().map(|recording| recording.processes.len()).sum::<usize>(), 3, "{opened:#?}");
    }

    /// The daemon renames a segment, and then removes its files, while they are being opened.
    #[test]
    fn segment_that_is_removed_while_it_is_opened_is_left_out() {
        let state = State::new();
        let removed = state.segment(1).with_file_name("removed.7");
        let open = |path: &Path| {
            std::fs::rename(path, &removed).expect("it is renamed");
            for entry in std::fs::read_dir(&removed).expect("its files").flatten() {
                if entry.file_name() != TAPE && entry.file_name() != RECORDING {
                    std::fs::remove_file(entry.path()).expect("a file");
                }
            }
            // The tape had been opened before.
            open_separately(&removed)
        };
        let opened = open(&state.segment(1)).expect("a process");
        assert!(!opened.is_complete(), "the trace is missing");
        std::fs::rename(&removed, state.segment(1)).expect("its name");
        assert!(open_if_there(&state.segment(1), open).expect("no error").is_none());
        // What remains has no process ID, so that it is not listed.
        assert_eq!(state.listed(), [2, 3].map(|number| state.segment(number)));
    }
}
