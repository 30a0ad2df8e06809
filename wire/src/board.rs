//! The board: what a process has to say to the recorder when it can reach no socket, because its
//! root, mount namespace, descriptors or sandbox do not let it. It is in the area's first page,
//! which forked children share with their parent until they have an area of their own. The recorder
//! reads it from time to time.

use crate::hello::UntracedReason;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Longest path that an entry holds. Of longer ones the end is kept, which has the name.
pub const PATH: usize = PATH_UNITS * size_of::<u64>();
const PATH_UNITS: usize = 22;
const ENTRIES: usize = 16;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const READY: u32 = 2;

/// Entries that processes write and the recorder takes away.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Board {
    /// Entries that found no room.
    missed: AtomicU32,
    entries: [Entry; ENTRIES],
}

#[derive(Debug, Default)]
#[repr(C)]
struct Entry {
    /// State of the entry: [`FREE`], [`TAKEN`] by a process that writes it, or [`READY`] to be
    /// read.
    state: AtomicU32,
    pid: AtomicU32,
    why: AtomicU32,
    length: AtomicU32,
    path: [AtomicU64; PATH_UNITS],
}

/// One entry: a process that runs without being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntracedProcess {
    /// The process, as it sees itself.
    pub pid: u32,
    /// Why it is not recorded.
    pub why: UntracedReason,
    path: [u8; PATH],
    length: usize,
}

impl UntracedProcess {
    /// Path of the program that the process goes on with; empty for the program that it was forked
    /// from.
    pub fn path(&self) -> &[u8] {
        self.path.get(..self.length).unwrap_or_default()
    }
}

impl Board {
    /// Writes an entry, or counts it where there is no room. Takes no lock and makes no system
    /// call.
    pub fn post(&self, pid: u32, why: UntracedReason, path: &[u8]) {
        let is_taken = |entry: &&Entry| entry.state.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok();
        let Some(entry) = self.entries.iter().find(is_taken) else {
            self.missed.fetch_add(1, Relaxed);
            return;
        };
        let path = path.get(path.len().saturating_sub(PATH)..).unwrap_or_default();
        entry.pid.store(pid, Relaxed);
        entry.why.store(why as u32, Relaxed);
        entry.length.store(path.len() as u32, Relaxed);
        for (bytes, word) in path.chunks(size_of::<u64>()).zip(&entry.path) {
            let mut value = [0; size_of::<u64>()];
            value.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(value), Relaxed);
        }
        entry.state.store(READY, Release);
    }

    /// Takes all entries away. Returns how many found no room since the last time.
    pub fn take(&self, mut each: impl FnMut(UntracedProcess)) -> u32 {
        for entry in self.entries.iter().filter(|entry| entry.state.load(Acquire) == READY) {
            let why = UntracedReason::of(entry.why.load(Relaxed));
            let length = (entry.length.load(Relaxed) as usize).min(PATH);
            let mut posted = UntracedProcess {
                pid: entry.pid.load(Relaxed),
                why: why.unwrap_or(UntracedReason::Unreachable),
                path: [0; PATH],
                length,
            };
            for (word, bytes) in entry.path.iter().zip(posted.path.chunks_mut(size_of::<u64>())) {
                bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            entry.state.store(FREE, Release);
            if why.is_some() {
                each(posted);
            }
        }
        if self.missed.load(Relaxed) == 0 { 0 } else { self.missed.swap(0, Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn entries_are_taken_once_and_counted_when_there_is_no_room() {
        let board = Board::default();
        let taken = || {
            let mut taken = Vec::new();
            let missed = board.take(|posted| taken.push((posted.pid, posted.why, posted.path().to_vec())));
            (taken, missed)
        };
        assert_eq!(taken(), (Vec::new(), 0));
        let long = [&[b'x'; 2 * PATH][..], b"/name"].concat();
        board.post(7, UntracedReason::Unreachable, b"/bin/sh");
        board.post(8, UntracedReason::Static, &long);
        let (found, missed) = taken();
        assert_eq!((&found[0], missed), (&(7, UntracedReason::Unreachable, b"/bin/sh".to_vec()), 0));
        assert!(found[1].2.len() == PATH && found[1].2.ends_with(b"x/name"));
        (0..ENTRIES as u32 + 3).for_each(|pid| board.post(pid, UntracedReason::Rights, b""));
        let (found, missed) = taken();
        assert_eq!((found.len(), missed), (ENTRIES, 3));
        assert_eq!(taken(), (Vec::new(), 0));
    }

    #[test]
    fn hostile_entries_are_bounded() {
        let board = Board::default();
        board.post(1, UntracedReason::Static, b"x");
        board.entries[0].length.store(u32::MAX, Relaxed);
        board.post(2, UntracedReason::Static, b"x");
        board.entries[1].why.store(u32::MAX, Relaxed);
        let mut found = Vec::new();
        board.take(|posted| found.push((posted.pid, posted.path().len())));
        assert_eq!(found, [(1, PATH)]);
    }
}
