//! Protection against power loss: a thread writes all data to the disk within 5 seconds or 16 MiB,
//! so that a slow disk delays nothing else.
//!
//! The trace is synchronized before the tape that refers to its chunks. A commit that reached the
//! disk before its bytes did is detected by its checksum. An error here means that data that the
//! kernel had accepted may be lost. It is reported once and never retried, since the kernel reports
//! it only once.

use crate::os::crash;
use std::fs::File;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum age of data that a power loss may destroy.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of bytes that a power loss may destroy.
const MAX_BYTES: usize = 16 << 20;
/// Maximum number of files that are synchronized one by one. With more, the whole file system is.
const MAX_FILES: usize = 64;

/// Data that was written and is not on the disk yet.
#[derive(Debug)]
struct PendingSync {
    /// Number of the current round; each synchronization starts a new one. The first is 1.
    round: u64,
    files: Vec<File>,
    /// A file of the file system to synchronize as a whole, when there are more than [`MAX_FILES`]
    /// files.
    file_system: Option<File>,
    bytes: usize,
    /// When the first pending byte was written.
    since: Option<Instant>,
    /// The last round that is on the disk, and the last one that a caller waits for.
    synced_round: u64,
    wanted_round: u64,
    has_worker: bool,
}

static PENDING: Mutex<PendingSync> = Mutex::new(PendingSync::new());
static CHANGED: Condvar = Condvar::new();

fn pending() -> MutexGuard<'static, PendingSync> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingSync {
    const fn new() -> PendingSync {
        PendingSync {
            round: 1,
            files: Vec::new(),
            file_system: None,
            bytes: 0,
            since: None,
            synced_round: 0,
            wanted_round: 0,
            has_worker: false,
        }
    }

    /// Returns the time until the next synchronization; `None` while nothing is pending.
    fn delay(&self) -> Option<Duration> {
        let now = self.bytes >= MAX_BYTES || self.wanted_round >= self.round;
        self.since.map(|since| if now { Duration::ZERO } else { MAX_DELAY.saturating_sub(since.elapsed()) })
    }

    fn add<'a>(&mut self, round: &mut u64, bytes: usize, files: impl Iterator<Item = &'a File>) {
        self.bytes += bytes;
        if *round == self.round {
            return;
        }
        self.since.get_or_insert_with(Instant::now);
        // Without a spare descriptor the files are added again with the next write.
        let Ok(files) = files.map(File::try_clone).collect::<Result<Vec<_>, _>>() else { return };
        *round = self.round;
        if self.files.len() + files.len() <= MAX_FILES {
            // New files are put at the front: a tape that was added before its trace was created
            // must not reach the disk before it.
            self.files.splice(0..0, files);
        } else {
            self.file_system = files.into_iter().next().or(self.file_system.take());
        }
    }

    /// Requests all pending data. Returns the last round that has data.
    fn want_all(&mut self) -> u64 {
        let last = if self.since.is_some() { self.round } else { self.round - 1 };
        self.wanted_round = self.wanted_round.max(last);
        last
    }

    /// Removes all pending files. Data that is written from here on belongs to the next round.
    fn take(&mut self) -> (Vec<File>, Option<File>) {
        (self.round, self.bytes, self.since) = (self.round + 1, 0, None);
        (std::mem::take(&mut self.files), self.file_system.take())
    }
}

/// Notes the number of bytes that were written to these files. The files are synchronized in this
/// order. `round` belongs to the writer: 0 at first, and again when it has other files.
pub(crate) fn add_written<'a>(round: &mut u64, bytes: usize, files: impl Iterator<Item = &'a File>) {
    let mut pending = pending();
    let was_idle = pending.since.is_none();
    pending.add(round, bytes, files);
    if !pending.has_worker {
        pending.has_worker = crash::spawn("sync", work).is_ok();
    }
    if was_idle || pending.bytes >= MAX_BYTES {
        CHANGED.notify_all();
    }
}

/// Does something while nobody begins to write the data of a round to the disk. Returns `None`, and
/// does nothing, if that data is on the disk already, or is being written to it.
pub(crate) fn unless_taken<T>(round: u64, act: impl FnOnce() -> T) -> Option<T> {
    let pending = pending();
    (pending.round <= round).then(act)
}

/// Starts to write all pending data to the disk.
pub fn start() {
    pending().want_all();
    CHANGED.notify_all();
}

/// Writes all pending data to the disk and waits for that.
pub fn finish() {
    let mut pending = pending();
    let last = pending.want_all();
    CHANGED.notify_all();
    while pending.synced_round < last && pending.has_worker {
        pending = CHANGED.wait(pending).unwrap_or_else(PoisonError::into_inner);
    }
}

fn work() {
    let mut pending = pending();
    loop {
        match pending.delay() {
            None => {
                pending = CHANGED.wait(pending).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Some(delay) if delay > Duration::ZERO => {
                pending = CHANGED.wait_timeout(pending, delay).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            Some(_) => {}
        }
        let (files, file_system) = pending.take();
        drop(pending);
        sync_files(&files, file_system.as_ref());
        pending = self::pending();
        pending.synced_round = pending.round - 1;
        CHANGED.notify_all();
    }
}

fn sync_files(files: &[File], file_system: Option<&File>) {
    let one_by_one = files.iter().map(File::sync_data);
    let all = file_system.map(|file| nix::unistd::syncfs(file).map_err(crate::os::sys::io));
    if let Some(Err(error)) = one_by_one.chain(all).find(Result::is_err) {
        tracing::warn!("the disk could not keep what was written before: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_is_due_by_bytes_and_by_time() {
        let files = [tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file")];
        let (mut pending, mut round) = (PendingSync::new(), 0);
        assert_eq!((pending.delay(), pending.want_all()), (None, 0));
        pending.add(&mut round, MAX_BYTES - 1, files.iter());
        assert!(pending.delay().is_some_and(|delay| delay > MAX_DELAY / 2));
        pending.add(&mut round, 1, files.iter());
        assert_eq!((pending.delay(), pending.files.len()), (Some(Duration::ZERO), 2), "named once");
        pending.take();
        assert_eq!(pending.delay(), None);
        pending.add(&mut round, 1, files.iter());
        let last = pending.want_all();
        assert_eq!((pending.delay(), last), (Some(Duration::ZERO), pending.round), "at the end of a recording");
        pending.take();
        pending.add(&mut round, 1, files.iter());
        pending.since = pending.since.map(|since| since - MAX_DELAY);
        assert_eq!((pending.delay(), pending.files.len()), (Some(Duration::ZERO), 2), "named again");
    }

    #[test]
    fn data_that_is_being_written_is_known() {
        let file = tempfile::tempfile().expect("a file");
        let mut round = 0;
        let is_waiting = || PENDING.try_lock().is_err();
        add_written(&mut round, 1, std::iter::once(&file));
        assert_eq!(unless_taken(round, is_waiting), Some(true), "the thread that writes waits meanwhile");
        finish();
        assert_eq!(unless_taken(round, is_waiting), None);
    }

    #[test]
    fn many_files_are_synced_as_one_file_system() {
        let file = tempfile::tempfile().expect("a file");
        let mut pending = PendingSync::new();
        (0..MAX_FILES + 9).for_each(|_| pending.add(&mut 0, 1, std::iter::once(&file)));
        let (files, file_system) = pending.take();
        assert_eq!((files.len(), file_system.is_some()), (MAX_FILES, true));
        sync_files(&files, file_system.as_ref());
    }
}
