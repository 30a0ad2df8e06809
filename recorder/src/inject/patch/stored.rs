//! Symbols of allocators that were found in files, stored in a folder, so that a long search is
//! done once.
//!
//! An entry is a hint at which addresses functions are. It is used for a file with the same
//! build-id, owner, size and time of change only, and if the first bytes of each function are the
//! stored ones. The owner counts because a user can make a file with any build-id, and must not
//! choose what is hooked in another user's program. Everything else is read from the file again,
//! and is verified in the process before it is changed.

use super::names::Names;
use super::symbols::{self, ElfFile, Symbol};
use formats::replace::{Durability, Writers, replace_file};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const VERSION: u32 = 1;
/// Maximum size of an entry in bytes: a thousand functions.
const MAX_ENTRY_BYTES: u64 = 256 << 10;
/// Maximum number of entries in the folder.
const MAX_ENTRIES: usize = 256;
/// Maximum size of all entries in bytes.
const MAX_BYTES: u64 = 8 << 20;
/// Minimum length of a build-id that names a file, in bytes.
const MIN_BUILD_ID: usize = 8;
/// Number of bytes of a function that are compared.
const CODE_BYTES: usize = 32;
/// The end of an entry's file name.
const SUFFIX: &str = ".json";
/// The age from which on a file that is no entry was left by a killed process.
const OLD: Duration = Duration::from_secs(3600);

/// A folder with entries.
#[derive(Debug)]
pub(super) struct Stored {
    folder: PathBuf,
    /// Hash of the names that are searched for.
    names: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Identity {
    /// Build-id in hexadecimal digits.
    build_id: String,
    /// User who owns the file.
    owner: u32,
    /// Size of the file in bytes.
    bytes: u64,
    /// Time of the last change, in seconds since 1970.
    changed: i64,
    /// Nanoseconds after the second of the last change.
    changed_ns: i64,
}

/// A function that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Function {
    name: String,
    address: u64,
    size: u64,
    is_global: bool,
    is_indirect: bool,
    /// The first bytes of the function; fewer at the end of a segment.
    code: Vec<u8>,
}

/// What is stored of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    version: u32,
    file: Identity,
    /// Hash of the names that were searched for.
    names: u64,
    /// Whether neither the file nor another one had all symbols.
    is_stripped: bool,
    functions: Vec<Function>,
    imports: Vec<String>,
}

impl Stored {
    /// Returns the entries in a folder, for searches for these names. The folder need not exist.
    pub(super) fn new(folder: &Path, names: &Names) -> Stored {
        let mut sorted: Vec<&[u8]> = names.all().collect();
        sorted.sort_unstable();
        let mut hasher = DefaultHasher::new();
        sorted.hash(&mut hasher);
        Stored { folder: folder.to_owned(), names: hasher.finish() }
    }

    /// Returns what is to be stored of a file; `None` if it has no build-id, or too many symbols.
    pub(super) fn entry(&self, file: &File, elf: &ElfFile, is_stripped: bool) -> Option<Entry> {
        let text = |name: &[u8]| String::from_utf8(name.to_vec()).ok();
        let function = |symbol: &Symbol| {
            let Symbol { address, size, is_global, is_indirect, .. } = *symbol;
            let code = symbols::code(file, &elf.code, address, CODE_BYTES);
            Some(Function { name: text(&symbol.name)?, address, size, is_global, is_indirect, code })
        };
        Some(Entry {
            version: VERSION,
            file: identity(file, elf)?,
            names: self.names,
            is_stripped,
            functions: elf.symbols.iter().map(function).collect::<Option<_>>()?,
            imports: elf.imports.iter().map(|name| text(name)).collect::<Option<_>>()?,
        })
    }

    /// Returns a file with its stored symbols, given the file without symbols. `is_stripped`
    /// returns whether it still has no other source of symbols.
    pub(super) fn find(
        &self,
        file: &File,
        headers: &ElfFile,
        names: &Names,
        is_stripped: impl Fn() -> bool,
    ) -> Option<ElfFile> {
        let identity = identity(file, headers)?;
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(self.path(&identity)).ok()?;
        let status = opened.metadata().ok()?;
        (status.is_file() && is_own(&status) && status.len() <= MAX_ENTRY_BYTES).then_some(())?;
        let mut bytes = Vec::new();
        opened.take(MAX_ENTRY_BYTES).read_to_end(&mut bytes).ok()?;
        let entry: Entry = serde_json::from_slice(&bytes).ok()?;
        let is_of_file = entry.version == VERSION && entry.file == identity && entry.names == self.names;
        (is_of_file && (!entry.is_stripped || is_stripped())).then_some(())?;
        let mut found = ElfFile { has_all_names: !entry.is_stripped, ..headers.clone() };
        let is_wanted = |name: &[u8]| names.meaning(name).is_some();
        for Function { name, address, size, is_global, is_indirect, code } in entry.functions {
            let name = name.into_bytes();
            (is_wanted(&name) && symbols::code(file, &headers.code, address, CODE_BYTES) == code).then_some(())?;
            found.symbols.push(Symbol { name, address, size, is_global, is_indirect });
        }
        found.imports = entry.imports.into_iter().map(String::into_bytes).filter(|name| is_wanted(name)).collect();
        found.symbols.sort();
        found.imports.sort();
        Some(found)
    }

    /// Stores an entry, and removes the oldest ones beyond the limits of the folder.
    ///
    /// # Errors
    /// The folder cannot be made or belongs to another user, or the file cannot be written.
    pub(super) fn store(&self, entry: &Entry) -> io::Result<()> {
        let bytes = serde_json::to_vec(entry)?;
        if bytes.len() as u64 > MAX_ENTRY_BYTES {
            return Ok(());
        }
        if let Some(above) = self.folder.parent() {
            std::fs::create_dir_all(above)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let status = std::fs::symlink_metadata(&self.folder)?;
        if !status.is_dir() || !is_own(&status) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "other users can write to this folder"));
        }
        let path = self.path(&entry.file);
        replace_file(&path, Writers::Several, Durability::Later, |file| file.write_all(&bytes))?;
        limit(&self.folder, MAX_ENTRIES, MAX_BYTES);
        Ok(())
    }

    fn path(&self, file: &Identity) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (file, self.names).hash(&mut hasher);
        self.folder.join(format!("{}-{:016x}{SUFFIX}", file.build_id, hasher.finish()))
    }
}

/// Returns whether only the user of this process can write to a file.
fn is_own(status: &Metadata) -> bool {
    status.uid() == geteuid().as_raw() && status.mode() & 0o022 == 0
}

/// Returns the identity of a file; `None` if it has no build-id.
fn identity(file: &File, elf: &ElfFile) -> Option<Identity> {
    let status = file.metadata().ok()?;
    (elf.build_id.len() >= MIN_BUILD_ID).then(|| Identity {
        build_id: elf.build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        owner: status.uid(),
        bytes: status.len(),
        changed: status.mtime(),
        changed_ns: status.mtime_nsec(),
    })
}

/// Removes the oldest entries beyond these limits, and what killed processes left.
fn limit(folder: &Path, max_entries: usize, max_bytes: u64) {
    let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(status) = entry.metadata() else { continue };
        let changed = status.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
            entries.push((changed, status.len(), entry.path()));
        } else if changed.elapsed().is_ok_and(|age| age > OLD) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    entries.sort();
    let (mut count, mut sum) = (entries.len(), entries.iter().map(|(_, bytes, _)| bytes).sum::<u64>());
    for (_, bytes, path) in entries {
        if (count > max_entries || sum > max_bytes) && std::fs::remove_file(path).is_ok() {
            (count, sum) = (count - 1, sum - bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_entries_are_removed_beyond_the_limits() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let now = SystemTime::now();
        for (name, age) in [("a.json", 3), ("b.json", 9), ("c.json", 1), ("d.json.7.tmp", 5000), ("e.json.8.tmp", 1)] {
            let path = folder.path().join(name);
            let file = File::create(&path).and_then(|mut file| file.write_all(&[7; 100]).map(|()| file));
            let aged = file.and_then(|file| file.set_modified(now - Duration::from_secs(age)));
            aged.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let left = || {
            let entries = std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
            let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.sort();
            names
        };
        limit(folder.path(), 2, 1000);
        assert_eq!(left(), ["a.json", "c.json", "e.json.8.tmp"]);
        limit(folder.path(), 2, 150);
        assert_eq!(left(), ["c.json", "e.json.8.tmp"]);
    }
}
