//! Which files the journal of a process has, and which chunk each holds. The digest writes them
//! ([`crate::session::chunk_journal`]), and the store frees them.

use formats::tape::field::Text;
use formats::tape::journal::{self, Entry, FILES, PARTS};
use formats::tape::{self, Record, Writer};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Marks a file that is being removed.
const IN_REMOVAL: u32 = u32::MAX;

#[derive(Debug, Default)]
pub struct JournalFiles {
    /// Number of the last chunk whose file is not needed any more.
    stored: AtomicU32,
    /// Number of the chunk that each file holds; 0 for none.
    chunks: [AtomicU32; FILES],
}

impl JournalFiles {
    /// Returns the number of the last chunk that is in the tape. Chunks before it were stored or
    /// given up.
    pub(crate) fn stored(&self) -> u32 {
        self.stored.load(Acquire)
    }

    /// Marks all chunks up to this number as stored: their files may be used again.
    pub fn mark_stored(&self, chunk: u32) {
        self.stored.fetch_max(chunk, Release);
    }

    fn is_unused(&self, chunk: u32) -> bool {
        chunk != IN_REMOVAL && chunk <= self.stored()
    }

    /// Reserves a file for a chunk and returns its number; `None` if all files are in use.
    pub(crate) fn reserve(&self, chunk: u32) -> Option<usize> {
        let claims = |held: &AtomicU32| {
            let last = held.load(Acquire);
            self.is_unused(last) && held.compare_exchange(last, chunk, AcqRel, Relaxed).is_ok()
        };
        self.position(chunk).or_else(|| self.chunks.iter().position(claims))
    }

    /// Returns the number of the file that holds a chunk.
    fn position(&self, chunk: u32) -> Option<usize> {
        self.chunks.iter().position(|held| held.load(Acquire) == chunk)
    }

    /// Removes the files that are not needed any more. Returns whether there was one.
    pub(crate) fn free(&self, folder: &Path) -> bool {
        let mut found = false;
        for (number, held) in self.chunks.iter().enumerate() {
            let last = held.load(Acquire);
            if last != 0 && self.is_unused(last) && held.compare_exchange(last, IN_REMOVAL, AcqRel, Relaxed).is_ok() {
                found |= std::fs::remove_file(journal::path(folder, number)).is_ok();
                held.store(0, Release);
            }
        }
        found
    }

    /// Removes all files: the tape of the process has its end.
    pub(crate) fn remove(&self, folder: &Path) {
        let held = |(number, held): (usize, &AtomicU32)| (held.load(Acquire) != 0).then_some(number);
        for number in self.chunks.iter().enumerate().filter_map(held) {
            let _ = std::fs::remove_file(journal::path(folder, number));
        }
    }

    /// Replaces the events of a chunk that could not be stored by the number of lost events, for
    /// the case that the recorder is killed before the tape has it. `losses` are those of all
    /// chunks that were given up since the last write.
    pub(crate) fn give_up(&self, folder: &Path, chunk: u32, losses: &[Record]) {
        self.mark_stored(chunk.saturating_sub(1));
        self.free(folder);
        let Some(number) = self.position(chunk) else { return };
        let mut records = Vec::new();
        losses.iter().for_each(|loss| Writer::default().record(loss, &mut records));
        let chunk = tape::Chunk { number: chunk, ..tape::Chunk::default() };
        let mut entry = Entry { chunk, is_whole: true, records: Text(records), ..Entry::default() };
        let mut bytes = Vec::new();
        journal::write(&mut entry, [&[]; PARTS], &mut bytes);
        let path = journal::path(folder, number);
        let replace = || {
            // In place, which needs no space on a full disk.
            let file = OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(&bytes, 0)?;
            file.set_len(bytes.len() as u64)
        };
        if replace().is_err() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::tape::Loss;
    use formats::tape::journal::{Missing, open_chunks, path};

    fn write(folder: &Path, number: usize, chunk: u32) {
        let chunk = tape::Chunk { number: chunk, events: 3, plain_length: 5, ..tape::Chunk::default() };
        let trace = formats::mtrc::Columns::of(b"trace");
        let mut bytes = Vec::new();
        let mut entry = Entry { chunk, is_whole: true, ..Entry::default() };
        let added = journal::parts(trace.each_ref().map(Vec::as_slice), [b"e", b"", b"", b"", b"", b""]);
        journal::write(&mut entry, added, &mut bytes);
        std::fs::write(path(folder, number), bytes).unwrap();
    }

    #[test]
    fn files_of_stored_chunks_are_used_again() {
        let files = JournalFiles::default();
        let numbers: Vec<_> = (1..=FILES as u32).map(|chunk| files.reserve(chunk)).collect();
        assert_eq!(numbers, (0..FILES).map(Some).collect::<Vec<_>>());
        assert_eq!((files.reserve(20), files.reserve(3)), (None, Some(2)));
        files.mark_stored(2);
        files.mark_stored(1);
        assert_eq!(
            (files.stored(), files.reserve(20), files.reserve(21), files.reserve(22)),
            (2, Some(0), Some(1), None)
        );
    }

    #[test]
    fn free_removes_files_of_stored_chunks_only() {
        let temporary = tempfile::tempdir().unwrap();
        let (folder, files) = (temporary.path(), JournalFiles::default());
        for chunk in 1..=3 {
            write(folder, files.reserve(chunk).unwrap(), chunk);
        }
        assert!(!files.free(folder));
        files.mark_stored(2);
        assert!(files.free(folder) && !files.free(folder));
        let left: Vec<bool> = (0..3).map(|number| path(folder, number).exists()).collect();
        assert_eq!((left, files.reserve(4)), (vec![false, false, true], Some(0)));
    }

    /// The events of a chunk that was given up are lost, and not recorded as well.
    #[test]
    fn a_chunk_that_was_given_up_is_counted_once() {
        let temporary = tempfile::tempdir().unwrap();
        let (folder, files) = (temporary.path(), JournalFiles::default());
        let mut losses = Vec::new();
        for chunk in 1..=2 {
            write(folder, files.reserve(chunk).unwrap(), chunk);
            losses = vec![Record::Loss(Loss { thread: 1, events: 3 * u64::from(chunk), ..Loss::default() })];
            files.give_up(folder, chunk, &losses);
        }
        assert_eq!((files.stored(), files.reserve(3)), (1, Some(0)));
        let missing = Missing::of(None, &open_chunks(folder)).unwrap().unwrap();
        let mut expected = Vec::new();
        Writer::file_header(&mut expected);
        Writer::default().record(&losses[0], &mut expected);
        assert_eq!((missing.tape, missing.trace.len()), (expected, 0));
        files.mark_stored(2);
        assert_eq!(files.reserve(4), Some(1), "a chunk was stored since");
    }
}
