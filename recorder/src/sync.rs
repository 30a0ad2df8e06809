//! Power loss: what is written is brought to the disk within 5 seconds or 16 MiB, by a thread of
//! its own, so that a slow disk holds nobody up.
//!
//! The trace goes before the tape that names its chunks; a commit that got to the disk before its
//! bytes did is known by its checksum. An error here means that what the kernel had taken may be
//! gone: it is reported once and never tried again, for the kernel forgets it.

use crate::crash;
use std::fs::File;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most time that power loss may cost.
const EVERY: Duration = Duration::from_secs(5);
/// Most bytes.
const BYTES: usize = 16 << 20;
/// Files that are brought one by one; with more than these the whole file system is.
const ONE_BY_ONE: usize = 64;

/// What was written and is not on the disk yet.
#[derive(Debug)]
struct Waiting {
    /// Counts how often everything was taken; the first is 1.
    round: u64,
    files: Vec<File>,
    /// One for all that `files` has no room for.
    more: Option<File>,
    bytes: usize,
    /// When the first of them was written.
    since: Option<Instant>,
    /// The last round that is on the disk, and the one that somebody waits for.
    brought: u64,
    wanted: u64,
    has_worker: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting::new());
static NEWS: Condvar = Condvar::new();

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiting {
    const fn new() -> Waiting {
        Waiting {
            round: 1,
            files: Vec::new(),
            more: None,
            bytes: 0,
            since: None,
            brought: 0,
            wanted: 0,
            has_worker: false,
        }
    }

    /// How long what waits may wait on; `None` while nothing does.
    fn rest(&self) -> Option<Duration> {
        let now = self.bytes >= BYTES || self.wanted >= self.round;
        self.since.map(|since| if now { Duration::ZERO } else { EVERY.saturating_sub(since.elapsed()) })
    }

    fn add<'a>(&mut self, round: &mut u64, bytes: usize, files: impl Iterator<Item = &'a File>) {
        self.bytes += bytes;
        if *round == self.round {
            return;
        }
        self.since.get_or_insert_with(Instant::now);
        // Without a descriptor to spare they are tried again with what is written next.
        let Ok(files) = files.map(File::try_clone).collect::<Result<Vec<_>, _>>() else { return };
        *round = self.round;
        if self.files.len() + files.len() <= ONE_BY_ONE {
            // To the front: a tape that was named before its trace began must not get there before
            // it.
            self.files.splice(0..0, files);
        } else {
            self.more = files.into_iter().next().or(self.more.take());
        }
    }

    /// Everything that waits. What is written from here on belongs to the next round.
    fn take(&mut self) -> (Vec<File>, Option<File>) {
        (self.round, self.bytes, self.since) = (self.round + 1, 0, None);
        (std::mem::take(&mut self.files), self.more.take())
    }
}

/// Notes the number of bytes that were written to these files, in whose order they go to the disk.
/// `round` is the writer's, at first 0, and again when it has other files.
pub fn wrote<'a>(round: &mut u64, bytes: usize, files: impl Iterator<Item = &'a File>) {
    let mut waiting = waiting();
    let was_idle = waiting.since.is_none();
    waiting.add(round, bytes, files);
    if !waiting.has_worker {
        waiting.has_worker = crash::spawn("sync", work).is_ok();
    }
    if was_idle || waiting.bytes >= BYTES {
        NEWS.notify_all();
    }
}

/// Whether what was written in a round is on the disk, or on its way.
pub fn was_taken(round: u64) -> bool {
    waiting().round > round
}

/// Brings everything that waits to the disk, and waits for that.
pub fn finish() {
    let mut waiting = waiting();
    let last = if waiting.since.is_some() { waiting.round } else { waiting.round - 1 };
    waiting.wanted = waiting.wanted.max(last);
    NEWS.notify_all();
    while waiting.brought < last && waiting.has_worker {
        waiting = NEWS.wait(waiting).unwrap_or_else(PoisonError::into_inner);
    }
}

fn work() {
    let mut waiting = waiting();
    loop {
        match waiting.rest() {
            None => {
                waiting = NEWS.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Some(rest) if rest > Duration::ZERO => {
                waiting = NEWS.wait_timeout(waiting, rest).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            Some(_) => {}
        }
        let (files, more) = waiting.take();
        drop(waiting);
        bring(&files, more.as_ref());
        waiting = self::waiting();
        waiting.brought = waiting.round - 1;
        NEWS.notify_all();
    }
}

fn bring(files: &[File], more: Option<&File>) {
    let one_by_one = files.iter().map(File::sync_data);
    let all = more.map(|file| nix::unistd::syncfs(file).map_err(crate::sys::io));
    if let Some(Err(error)) = one_by_one.chain(all).find(Result::is_err) {
        tracing::warn!("the disk could not keep what was written before: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_by_bytes_and_by_time() {
        let files = [tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file")];
        let (mut waiting, mut round) = (Waiting::new(), 0);
        assert_eq!(waiting.rest(), None);
        waiting.add(&mut round, BYTES - 1, files.iter());
        assert!(waiting.rest().is_some_and(|rest| rest > EVERY / 2));
        waiting.add(&mut round, 1, files.iter());
        assert_eq!((waiting.rest(), waiting.files.len()), (Some(Duration::ZERO), 2), "named once");
        waiting.take();
        assert_eq!(waiting.rest(), None);
        waiting.add(&mut round, 1, files.iter());
        waiting.since = waiting.since.map(|since| since - EVERY);
        assert_eq!((waiting.rest(), waiting.files.len()), (Some(Duration::ZERO), 2), "named again");
    }

    #[test]
    fn many_files_go_as_one_file_system() {
        let file = tempfile::tempfile().expect("a file");
        let mut waiting = Waiting::new();
        (0..ONE_BY_ONE + 9).for_each(|_| waiting.add(&mut 0, 1, std::iter::once(&file)));
        let (files, more) = waiting.take();
        assert_eq!((files.len(), more.is_some()), (ONE_BY_ONE, true));
        bring(&files, more.as_ref());
    }
}
