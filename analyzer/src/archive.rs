//! Recordings in one file: the directory of a recording as tar, compressed with zstd. `tar --zstd`
//! reads them, too.
//!
//! This module writes them, and [`crate::load`] reads them.

use crate::load::archive::MAX_DEPTH;
use crate::load::{self, Failure};
use heaptape_formats::recording::SYMBOLS;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Compression level of archives. The large files in a recording are compressed already.
const LEVEL: i32 = 6;
/// The error of [`write_archive`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recording cannot be read.
    #[error(transparent)]
    Load(#[from] Failure),
    /// The path is not that of a directory.
    #[error("{0}: not a directory; only the directory of a recording can be packed")]
    NotADirectory(String),
    /// A file cannot be read or written.
    #[error("{path}")]
    Io { path: String, source: io::Error },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    |source| Error::Io { path, source }
}

/// Returns whether each process of a recording has its names stored, so that an archive needs no
/// files of its programs.
///
/// # Errors
/// Returns an error if the recording cannot be read.
pub fn has_names(folder: &Path) -> Result<bool, Failure> {
    let recording = load::open(folder)?;
    Ok(recording.processes.iter().all(|process| process.path.join(SYMBOLS).is_file()))
}

/// Writes the directory of a recording to one file, which must not exist. Returns its size in
/// bytes.
///
/// # Errors
/// Returns an error if the directory is not a recording, if a file in it cannot be read, or if the
/// archive exists or cannot be written.
pub fn write_archive(folder: &Path, to: &Path) -> Result<u64, Error> {
    if !folder.is_dir() {
        return Err(Error::NotADirectory(folder.display().to_string()));
    }
    load::open(folder)?;
    let name = folder.canonicalize().map_err(failed(folder))?;
    let name = PathBuf::from(name.file_name().unwrap_or("recording".as_ref()));
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = NamedTempFile::new_in(parent).map_err(failed(to))?;
    let encoder = zstd::Encoder::new(file, LEVEL).map_err(failed(to))?;
    let mut archive = tar::Builder::new(encoder);
    append(&mut archive, folder, &name, 0)?;
    let file = archive.into_inner().and_then(zstd::Encoder::finish).map_err(failed(to))?;
    file.as_file().sync_all().map_err(failed(to))?;
    let file = file.persist_noclobber(to).map_err(|error| failed(to)(error.error))?;
    Ok(file.metadata().map_err(failed(to))?.len())
}

/// Adds the files of a folder in the order of their names. Hidden and temporary files belong to a
/// running recorder, may be gone a moment later, and are left out.
fn append(archive: &mut tar::Builder<impl Write>, folder: &Path, name: &Path, depth: usize) -> Result<(), Error> {
    let entries = std::fs::read_dir(folder).map_err(failed(folder))?;
    let names: io::Result<BTreeSet<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    for file_name in names.map_err(failed(folder))? {
        if file_name.as_bytes().starts_with(b".") || file_name.as_bytes().ends_with(b".tmp") {
            continue;
        }
        let (path, name) = (folder.join(&file_name), name.join(&file_name));
        let about = std::fs::symlink_metadata(&path).map_err(failed(&path))?;
        if about.is_dir() && depth < MAX_DEPTH {
            append(archive, &path, &name, depth + 1)?;
        } else if about.is_file() {
            let mut header = tar::Header::new_ustar();
            header.set_path(&name).map_err(failed(&path))?;
            header.set_size(about.len());
            header.set_mode(0o600);
            header.set_mtime(about.modified().ok().and_then(since_1970).unwrap_or(0));
            header.set_cksum();
            // A file of a running recorder may grow: what it had is taken.
            let mut content = File::open(&path).map_err(failed(&path))?.take(about.len());
            archive.append(&header, &mut content).map_err(failed(&path))?;
            if content.limit() > 0 {
                return Err(failed(&path)(io::Error::other("became shorter while it was read")));
            }
        }
    }
    Ok(())
}

fn since_1970(time: std::time::SystemTime) -> Option<u64> {
    time.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::archive::{MAX_ENTRIES, unpack};

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");

    /// Returns an archive with one entry that says it has `size` bytes, and has `content`.
    fn archive(name: &[u8], kind: tar::EntryType, size: u64, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o600);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn refused(tar: &[u8]) -> String {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), zstd::encode_all(tar, 1).unwrap()).unwrap();
        crate::text::with_causes(&load::open(file.path()).unwrap_err())
    }

    #[test]
    fn recording_in_an_archive_is_read_as_its_directory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.heaptape");
        assert_eq!(write_archive(GOLDEN.as_ref(), &file).unwrap(), file.metadata().unwrap().len());
        let (packed, plain) = (load::open(&file).unwrap(), load::open(GOLDEN.as_ref()).unwrap());
        assert_eq!(packed.path, file);
        assert_eq!(packed.about, plain.about);
        assert_eq!((packed.processes.len(), packed.missing), (plain.processes.len(), plain.missing));
        let events =
            |recording: &load::Recording| recording.processes.iter().map(|p| p.tape.events).collect::<Vec<_>>();
        assert_eq!(packed.processes[0].tape.events, events(&load::open(GOLDEN.as_ref()).unwrap())[0]);
        // An archive is never overwritten.
        assert!(crate::text::with_causes(&write_archive(GOLDEN.as_ref(), &file).unwrap_err()).contains("exists"));
        assert!(matches!(write_archive(&file, &folder.path().join("x")), Err(Error::NotADirectory(_))));
    }

    #[test]
    fn unpacked_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.heaptape");
        write_archive(GOLDEN.as_ref(), &file).unwrap();
        let unpacked = unpack(&file).unwrap();
        let path = unpacked.recording.clone();
        assert!(path.join("recording.json").is_file());
        drop(unpacked);
        assert!(!path.exists());
    }

    #[test]
    fn hostile_archives_are_refused() {
        use tar::EntryType;
        for name in [&b"../x"[..], b"a/../../x", b"/etc/x", b"a/../../../tmp/x"] {
            assert!(refused(&archive(name, EntryType::Regular, 1, b"x")).contains("invalid file name"), "{name:?}");
        }
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo, EntryType::GNULongName] {
            assert!(refused(&archive(b"a/x", kind, 0, b"")).contains("neither a file nor a folder"), "{kind:?}");
        }
        assert!(refused(&archive(b"a/x", EntryType::XHeader, 1 << 40, b"")).contains("too much"));
        assert!(refused(&archive(b"a/x", EntryType::Regular, 1 << 40, b"x")).contains("too much"));
        let twice =
            [archive(b"a/x", EntryType::Regular, 1, b"x"), archive(b"a/x", EntryType::Regular, 1, b"y")].concat();
        assert!(refused(&twice).contains("exists"), "{}", refused(&twice));
        let two = [archive(b"a/x", EntryType::Regular, 1, b"x"), archive(b"b/x", EntryType::Regular, 1, b"y")].concat();
        assert!(refused(&two).contains("more than one folder"));
        let deep = [&b"a/".repeat(40)[..], b"x"].concat();
        assert!(!refused(&archive(&deep, EntryType::Regular, 1, b"x")).contains("invalid file name"));
        // Bombs of many empty files end, too.
        let many: Vec<u8> = (0..MAX_ENTRIES + 1).flat_map(|_| archive(b"a", EntryType::Directory, 0, b"")).collect();
        assert!(refused(&many).contains("too much"));
    }

    #[test]
    fn truncated_archives_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let (file, cut) = (folder.path().join("trace.heaptape"), folder.path().join("cut.heaptape"));
        write_archive(GOLDEN.as_ref(), &file).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        for share in 0..20 {
            std::fs::write(&cut, &bytes[..bytes.len() * share / 20]).unwrap();
            assert!(load::open(&cut).is_err(), "{share} of 20");
        }
    }

    #[test]
    fn files_of_a_running_recorder_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path().join("1.a");
        std::fs::create_dir(&process).unwrap();
        for name in ["kept", ".lock", "symbols.tape.tmp"] {
            std::fs::write(process.join(name), name).unwrap();
        }
        let mut archive = tar::Builder::new(Vec::new());
        append(&mut archive, folder.path(), Path::new("r"), 0).unwrap();
        let bytes = archive.into_inner().unwrap();
        let mut read = tar::Archive::new(&bytes[..]);
        let names: Vec<_> = read.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
        assert_eq!(names, [PathBuf::from("r/1.a/kept")]);
    }
}
