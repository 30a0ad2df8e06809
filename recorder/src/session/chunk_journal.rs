//! Writes the journal of the open chunk ([`formats::tape::journal`]), so that SIGKILL of the
//! recorder loses no event that it has read: what was written to a file is in the page cache, which
//! outlives the process.

use crate::os::permissions::{let_read, make_folder};
use crate::session::disk_quota::Quota;
use crate::session::journal_files::JournalFiles;
use crate::session::traced_process::Session;
use formats::tape::journal::{self, Entry, PARTS, Position};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct ChunkJournal {
    folder: PathBuf,
    reader: Option<u32>,
    file: Option<OpenFile>,
    /// The open chunk, and its entries so far.
    chunk: u32,
    entries: u32,
    buffer: Vec<u8>,
    /// A link to the folder, for the next daemon, that is not created yet.
    link: Option<PathBuf>,
    /// Whether the folder is created with the first file.
    makes_folder: bool,
    /// Disk space that the files share.
    quota: Option<Arc<Quota>>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Offset of the next entry.
    end: u64,
    /// Length of the file, with entries of an earlier chunk.
    length: u64,
}

/// Returns the path of the link to the folder of a process's journal, beside the file in which its
/// live blocks wait for the next daemon.
pub fn link(carried: &Path) -> PathBuf {
    carried.with_extension("journal")
}

/// Returns how far the rings of a process were read according to the last daemon's journal.
pub fn positions(carried: &Path) -> Vec<Position> {
    std::fs::read_link(link(carried)).map_or(Vec::new(), |folder| journal::positions(&folder))
}

impl ChunkJournal {
    /// Creates the journal of a process. Files are created with the first entry.
    pub(crate) fn new(session: &Session) -> ChunkJournal {
        ChunkJournal {
            folder: session.folder.clone(),
            reader: session.options.reader,
            file: None,
            chunk: 0,
            entries: 0,
            buffer: Vec::new(),
            link: session.carried_over.as_deref().map(link),
            makes_folder: session.options.folds,
            quota: session.options.quota.clone(),
        }
    }

    /// Appends an entry, and sets its number.
    ///
    /// # Errors
    /// Returns an error if it cannot be written completely. Then it does not count, and the next
    /// one overwrites it.
    pub(crate) fn append(&mut self, mut entry: Entry, added: [&[u8]; PARTS], files: &JournalFiles) -> io::Result<()> {
        if entry.chunk.number != self.chunk {
            (self.chunk, self.entries, self.file) = (entry.chunk.number, 0, None);
        }
        if self.quota.as_ref().is_some_and(|quota| quota.left() == 0) {
            return Err(io::Error::other("its user's share of the disk is used up"));
        }
        let open = match &mut self.file {
            Some(open) => open,
            none => {
                if let Some(link) = &self.link {
                    let _ = std::fs::remove_file(link);
                    std::os::unix::fs::symlink(&self.folder, link)?;
                    self.link = None;
                }
                if std::mem::take(&mut self.makes_folder) {
                    make_folder(&self.folder, self.reader)?;
                }
                let number = files.reserve(self.chunk);
                let number = number.ok_or_else(|| io::Error::other("all files of the journal are in use"))?;
                let path = journal::path(&self.folder, number);
                let mut options = OpenOptions::new();
                // Not truncated: its pages are there already.
                let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
                let_read(&file, self.reader)?;
                let length = file.metadata()?.len();
                none.insert(OpenFile { file, end: 0, length })
            }
        };
        entry.number = self.entries;
        self.buffer.clear();
        journal::write(&mut entry, added, &mut self.buffer);
        open.file.write_all_at(&self.buffer, open.end)?;
        open.end += self.buffer.len() as u64;
        self.entries += 1;
        // A file that is used again takes no more space.
        self.quota.iter().for_each(|quota| quota.count(open.end.saturating_sub(open.length)));
        open.length = open.length.max(open.end);
        Ok(())
    }
}
