//! The board, on which a process that cannot reach the recorder's socket leaves a notice: its root,
//! mount namespace, descriptors or sandbox may not let it connect. The board is in the area's first
//! page, which forked children share with their parent until they have an area of their own. The
//! recorder reads it from time to time.

use crate::hello::UntracedReason;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Maximum length of a path in an entry, in bytes. Of a longer path the end is kept, which has the
/// name of the program.
pub const MAX_PATH: usize = PATH_UNITS * size_of::<u64>();
const PATH_UNITS: usize = 22;
const ENTRIES: usize = 16;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const READY: u32 = 2;

/// A list of entries that processes write and the recorder removes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Board {
    /// Number of entries that did not fit on the board.
    missed: AtomicU32,
    entries: [Entry; ENTRIES],
}

#[derive(Debug, Default)]
#[repr(C)]
struct Entry {
    /// State of the entry: [`FREE`], [`CLAIMED`] by a process that writes it, or [`READY`] to be
    /// read.
    state: AtomicU32,
    pid: AtomicU32,
    reason: AtomicU32,
    length: AtomicU32,
    path: [AtomicU64; PATH_UNITS],
}

/// A process that runs without being recorded, as read from one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntracedProcess {
    /// The pid as the process sees itself.
    pub pid: u32,
    /// Why it is not recorded.
    pub reason: UntracedReason,
    path: [u8; MAX_PATH],
    length: usize,
}

impl UntracedProcess {
    /// Returns the path of the program that the process runs next. It is empty if the process goes
    /// on with the program that it was forked from.
    pub fn path(&self) -> &[u8] {
        self.path.get(..self.length).unwrap_or_default()
    }
}

impl Board {
    /// Writes an entry, or counts it if the board is full. Takes no lock and makes no system call.
    pub fn post(&self, pid: u32, reason: UntracedReason, path: &[u8]) {
        let is_claimed = |entry: &&Entry| entry.state.compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_ok();
        let Some(entry) = self.entries.iter().find(is_claimed) else {
            self.missed.fetch_add(1, Relaxed);
            return;
        };
        let path = path.get(path.len().saturating_sub(MAX_PATH)..).unwrap_or_default();
        entry.pid.store(pid, Relaxed);
        entry.reason.store(reason as u32, Relaxed);
        entry.length.store(path.len() as u32, Relaxed);
        for (bytes, word) in path.chunks(size_of::<u64>()).zip(&entry.path) {
            let mut value = [0; size_of::<u64>()];
            value.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(value), Relaxed);
        }
        entry.state.store(READY, Release);
    }

    /// Passes each entry to `each` and removes it. Returns how many entries did not fit on the
    /// board since the last call.
    pub fn drain(&self, mut each: impl FnMut(UntracedProcess)) -> u32 {
        for entry in self.entries.iter().filter(|entry| entry.state.load(Acquire) == READY) {
            let reason = UntracedReason::from_number(entry.reason.load(Relaxed));
            let length = (entry.length.load(Relaxed) as usize).min(MAX_PATH);
            let mut process = UntracedProcess {
                pid: entry.pid.load(Relaxed),
                reason: reason.unwrap_or(UntracedReason::Unreachable),
                path: [0; MAX_PATH],
                length,
            };
            for (word, bytes) in entry.path.iter().zip(process.path.chunks_mut(size_of::<u64>())) {
                bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            entry.state.store(FREE, Release);
            if reason.is_some() {
                each(process);
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
    fn entries_are_drained_once_and_counted_when_the_board_is_full() {
        let board = Board::default();
        let drain = || {
            let mut drained = Vec::new();
            let missed = board.drain(|process| drained.push((process.pid, process.reason, process.path().to_vec())));
            (drained, missed)
        };
        assert_eq!(drain(), (Vec::new(), 0));
        let long = [&[b'x'; 2 * MAX_PATH][..], b"/name"].concat();
        board.post(7, UntracedReason::Unreachable, b"/bin/sh");
        board.post(8, UntracedReason::Static, &long);
        let (found, missed) = drain();
        assert_eq!((&found[0], missed), (&(7, UntracedReason::Unreachable, b"/bin/sh".to_vec()), 0));
        assert!(found[1].2.len() == MAX_PATH && found[1].2.ends_with(b"x/name"));
        (0..ENTRIES as u32 + 3).for_each(|pid| board.post(pid, UntracedReason::Rights, b""));
        let (found, missed) = drain();
        assert_eq!((found.len(), missed), (ENTRIES, 3));
        assert_eq!(drain(), (Vec::new(), 0));
    }

    #[test]
    fn hostile_entries_are_bounded() {
        let board = Board::default();
        board.post(1, UntracedReason::Static, b"x");
        board.entries[0].length.store(u32::MAX, Relaxed);
        board.post(2, UntracedReason::Static, b"x");
        board.entries[1].reason.store(u32::MAX, Relaxed);
        let mut found = Vec::new();
        board.drain(|process| found.push((process.pid, process.path().len())));
        assert_eq!(found, [(1, MAX_PATH)]);
    }
}
