//! Reads a recording in one file: tar, compressed with zstd.
//!
//! An archive may come from anybody. It is unpacked into a temporary folder, in which it can only
//! create plain files and folders with bounded total size, number and depth.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use tempfile::TempDir;

/// Total size that an archive of any size may unpack to, in bytes.
const FREE_BYTES: u64 = 1 << 30;
/// An archive may unpack to [`FREE_BYTES`] and this multiple of its own size.
const MAX_RATIO: u64 = 64;
/// Maximum number of files and folders in an archive.
pub(crate) const MAX_ENTRIES: usize = 1 << 17;
/// Maximum number of folders above a file.
pub(crate) const MAX_DEPTH: usize = 64;
/// Offset of the magic bytes in the first header of a tar file.
const MAGIC_OFFSET: usize = 257;
/// The magic bytes of a tar file.
const MAGIC: &[u8] = b"ustar";

/// Returns whether the unpacked first bytes of a file are those of an archive.
pub(crate) fn is_archive(plain: &[u8]) -> bool {
    plain.get(MAGIC_OFFSET..MAGIC_OFFSET + MAGIC.len()) == Some(MAGIC)
}

pub(crate) fn is_archive_file(path: &Path) -> bool {
    let mut plain = Vec::new();
    let length = (MAGIC_OFFSET + MAGIC.len()) as u64;
    let read = super::bare::open(path).and_then(|reader| reader.take(length).read_to_end(&mut plain));
    read.is_ok() && is_archive(&plain)
}

/// An archive that was unpacked. Its files are removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) recording: PathBuf,
    _folder: TempDir,
}

/// Unpacks an archive into a temporary folder.
///
/// # Errors
/// Returns an error if the archive is damaged, if it contains anything but plain files with
/// harmless names, if it is too large, or if a file cannot be written.
pub(crate) fn unpack(path: &Path) -> io::Result<Unpacked> {
    let limit = std::fs::metadata(path)?.len().saturating_mul(MAX_RATIO).saturating_add(FREE_BYTES);
    let folder = tempfile::Builder::new().prefix("heaptape-unpacked-").tempdir()?;
    let mut archive = tar::Archive::new(super::bare::open(path)?);
    let (mut total, mut top) = (0u64, None);
    // Raw entries: extensions for long names and links would be read into memory, however long.
    for (number, entry) in archive.entries()?.raw(true).enumerate() {
        let mut entry = entry?;
        let size = entry.header().entry_size()?;
        total = total.saturating_add(size);
        if total > limit || number >= MAX_ENTRIES {
            return Err(invalid("it would unpack to too much"));
        }
        let name = entry.path()?.into_owned();
        let name = plain_name(&name).ok_or_else(|| invalid(&format!("invalid file name {}", name.display())))?;
        let first = PathBuf::from(name.components().next().map_or("".as_ref(), Component::as_os_str));
        if *top.get_or_insert_with(|| first.clone()) != first {
            return Err(invalid("it contains more than one folder"));
        }
        let target = folder.path().join(&name);
        match entry.header().entry_type() {
            tar::EntryType::Directory => std::fs::create_dir_all(&target)?,
            tar::EntryType::Regular => {
                std::fs::create_dir_all(target.parent().unwrap_or(folder.path()))?;
                let copied = io::copy(&mut entry, &mut File::create_new(&target)?)?;
                if copied != size {
                    return Err(invalid("it is truncated"));
                }
            }
            _ => return Err(invalid(&format!("{} is neither a file nor a folder", name.display()))),
        }
    }
    let top = top.ok_or_else(|| invalid("it is empty"))?;
    Ok(Unpacked { recording: folder.path().join(top), _folder: folder })
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid archive of a recording: {why}"))
}

/// Returns a name without `.` components, or `None` if it may lead out of the folder.
fn plain_name(name: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => plain.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    let depth = plain.components().count();
    (depth > 0 && depth <= MAX_DEPTH + 2).then_some(plain)
}
