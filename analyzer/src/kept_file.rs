//! Files that are read now and then as long as a recording is open: those of its processes, and the
//! programs and libraries that name its addresses. There may be more of them than a process may have
//! open. So some stay open, and the rest are opened for each read.

use heaptape_formats::regular;
use heaptape_formats::tape::Source;
use nix::sys::resource::{Resource, getrlimit};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// How many of these files stay open: half of what this process may open. One that stays open
/// can be read even after it was removed, e.g. by a daemon.
static MOST_OPEN: LazyLock<u64> = LazyLock::new(|| getrlimit(Resource::RLIMIT_NOFILE).map_or(512, |limit| limit.0) / 2);
/// How many are open.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// A regular file that can be read until this is dropped.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile(File);

impl OpenFile {
    /// Keeps a file open, unless as many are as may be.
    fn keep(file: File, most: u64) -> Option<OpenFile> {
        let kept = OpenFile(file);
        (OPEN.fetch_add(1, Relaxed) < most).then_some(kept)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

fn id(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

impl KeptFile {
    /// Opens a file to be read until the end of the command.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or is not a regular file.
    pub(crate) fn open(path: &Path) -> io::Result<KeptFile> {
        KeptFile::open_within(path, *MOST_OPEN)
    }

    /// Returns a file without a name, which stays open.
    pub(crate) fn unnamed(file: File) -> io::Result<KeptFile> {
        Ok(KeptFile { path: PathBuf::new(), id: id(&file.metadata()?), open: OpenFile::keep(file, u64::MAX) })
    }

    fn open_within(path: &Path, most: u64) -> io::Result<KeptFile> {
        let file = regular::open(path)?;
        Ok(KeptFile { path: path.to_path_buf(), id: id(&file.metadata()?), open: OpenFile::keep(file, most) })
    }

    fn with<T>(&self, read: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        if let Some(OpenFile(file)) = &self.open {
            return read(file);
        }
        let file = regular::open(&self.path)?;
        if id(&file.metadata()?) != self.id {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it was replaced meanwhile"));
        }
        read(&file)
    }
}

impl Source for KeptFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.with(|file| Source::read_at(file, offset, into))
    }

    fn length(&self) -> io::Result<u64> {
        self.with(Source::length)
    }
}

/// Reads a file from a position on.
pub(crate) struct Cursor {
    pub(crate) file: Arc<KeptFile>,
    pub(crate) at: u64,
}

impl Read for Cursor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(self.at, into)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.length()?.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(file: &KeptFile) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file.read_up_to(0, 100, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn files_are_read_whether_they_stay_open_or_not() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        std::fs::write(&path, "first")?;
        let [open, closed] = [KeptFile::open_within(&path, u64::MAX)?, KeptFile::open_within(&path, 0)?];
        assert_eq!([open.open.is_some(), closed.open.is_some()], [true, false]);
        assert_eq!([content(&open)?, content(&closed)?], [b"first", b"first"]);

        // Another one in its place is not what was opened.
        let other = folder.path().join("other");
        std::fs::write(&other, "second")?;
        std::fs::rename(&other, &path)?;
        assert_eq!(content(&open)?, b"first");
        let why = content(&closed).map_err(|error| error.to_string());
        assert_eq!(why, Err("it was replaced meanwhile".into()));
        Ok(())
    }
}
