//! The source files that debug information names. A hostile recording may name any path, so we read
//! regular files only, and no more than a limit.

use crate::text::bytes;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Maximum size of a source file that is read, in bytes: SQLite in one file has 9 MB.
const MAX_SOURCE: u64 = 16 << 20;
/// Extensions of source files. Nothing else is read, whatever a recording names.
#[rustfmt::skip]
const EXTENSIONS: &[&str] = &[
    "c", "cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx", "inl", "ipp", "tcc", "rs", "go", "py", "pyx", "js", "mjs", "cjs", "ts", "zig",
    "d", "f90", "nim", "swift", "m", "mm", "cu", "v", "s", "S",
];

/// Opening a pipe or a device never waits.
const O_NONBLOCK: i32 = 0o4000;

pub struct SourceFile {
    /// The content, which may be anything.
    pub text: String,
    /// When it was changed, in nanoseconds since 1970.
    pub changed_ns: u64,
}

/// Reads a source file of at most `most` bytes. It is searched below `roots`, then below `sysroot`,
/// then at its own path.
///
/// # Errors
/// Returns a message when the file is in none of the folders, or cannot be read.
pub fn read(file: &str, sysroot: Option<&Path>, roots: &[PathBuf], most: u64) -> Result<SourceFile, String> {
    let candidates = candidates(Path::new(file), sysroot, roots);
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        return Err(format!("{file}: not found; --source-root DIR names the folder with the source"));
    };
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(failed)?;
    let about = opened.metadata().map_err(failed)?;
    if !about.is_file() || about.len() > most {
        return Err(format!("{}: larger than {}", path.display(), bytes(most)));
    }
    let mut content = Vec::new();
    opened.take(most).read_to_end(&mut content).map_err(failed)?;
    let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let changed_ns = changed.map_or(0, |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    Ok(SourceFile { text: String::from_utf8_lossy(&content).into_owned(), changed_ns })
}

/// Reads a file that is source by its name and was not changed since the program started: the lines
/// of another version would be wrong.
pub(crate) fn read_unchanged(file: &str, sysroot: Option<&Path>, started_unix_ns: u64) -> Option<SourceFile> {
    let is_source = Path::new(file).extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known));
    let found = is_source.then(|| read(file, sysroot, &[], MAX_SOURCE).ok()).flatten();
    found.filter(|found| found.changed_ns <= started_unix_ns)
}

/// Returns the paths at which a source file may be: below the folders, with as much of its own path
/// as exists there, then at its own path.
fn candidates(file: &Path, sysroot: Option<&Path>, roots: &[PathBuf]) -> Vec<PathBuf> {
    let names: Vec<_> = file.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let mut found = Vec::new();
    for root in roots {
        let below = (0..names.len()).map(|skipped| root.join(names[skipped..].iter().collect::<PathBuf>()));
        found.extend(below);
    }
    found.extend(sysroot.map(|root| root.join(names.iter().collect::<PathBuf>())));
    found.push(file.to_path_buf());
    found
}
