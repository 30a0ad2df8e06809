//! Names of the code that a process generates at run time, from its perf map. They are stored in
//! the tape, since the map may be gone when it is needed: with the process, with its container, or
//! overwritten by the next process with the same number.
//!
//! A map is an untrusted file. It must be a regular file that belongs to the process's user
//! (another user could have put it there), and not be older than the process. It is read from its
//! end, since later lines override earlier ones, in blocks, up to a limit.

use crate::os::regular_file;
use crate::target::proc;
use formats::perf_map::{Line, UnnamedAddresses};
use formats::tape::CodeRange;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat, stat};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Number of bytes that are read at once.
const BLOCK: usize = 256 << 10;
/// Maximum number of bytes of a map that are read, the latest lines, for the programs of a command:
/// four million functions in a second.
pub(crate) const MAX_MAP_BYTES: u64 = 256 << 20;
/// Maximum number of bytes of a map that are read in the daemon, where other programs wait
/// meanwhile: a quarter of a million functions in 60 ms.
pub const MAX_MAP_BYTES_SHARED: u64 = 16 << 20;
/// Maximum length of a name that is stored, in bytes.
const MAX_NAME_LEN: usize = 1024;
/// Number of generations of forks whose maps may name inherited code.
const MAX_GENERATIONS: u8 = 8;
/// Tolerance between clocks: the kernel's time for files is up to a tick late, and the start of a
/// process is counted in hundredths of a second.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct NamedRange {
    pub range: CodeRange,
    /// Addresses of the sites' instructions in the range.
    pub instructions: Vec<u64>,
}

/// Returns for each instruction the index of the range that names it.
pub(crate) fn by_instruction(named: &[NamedRange]) -> FxHashMap<u64, usize> {
    let indexed = |(index, named): (usize, &NamedRange)| -> Vec<(u64, usize)> {
        named.instructions.iter().map(|address| (*address, index)).collect()
    };
    named.iter().enumerate().flat_map(indexed).collect()
}

/// The folder of the maps: `/tmp` as the process sees it.
#[derive(Debug)]
enum Folder {
    /// The same folder as the recorder's `/tmp`.
    Ours,
    /// Another folder, held open, since no path leads to it once the process is gone.
    Other(OwnedFd),
    /// The folder could not be opened.
    Unknown,
}

impl Folder {
    fn of(pid: u32) -> Folder {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = Path::new("/proc").join(pid.to_string()).join("root").join("tmp");
        let Ok(folder) = open(&path, flags, Mode::empty()) else { return Folder::Unknown };
        match (fstat(&folder), stat("/tmp")) {
            (Ok(theirs), Ok(ours)) if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino) => Folder::Ours,
            _ => Folder::Other(folder),
        }
    }
}

/// The perf map of a process, in which it names the code that it generates.
#[derive(Debug)]
pub struct PerfMap {
    name: String,
    uid: u32,
    /// Start of the process: older files belong to another process.
    since: SystemTime,
    folder: Folder,
    /// The map of the parent, whose code a forked child executes.
    parent: Option<Arc<PerfMap>>,
    generation: u8,
    most_bytes: u64,
}

/// The version of a map and those of its parents: size and time of the last change of each. An
/// unchanged version means unchanged maps.
pub(crate) type MapVersion = Vec<Option<(u64, SystemTime)>>;

impl PerfMap {
    /// Returns the map of a live process whose pid is `own_pid` in its own namespace, and which
    /// started these clock ticks after the boot (0: it is not known). The location of a map can only
    /// be found while the process exists.
    pub fn of(pid: u32, own_pid: u32, uid: u32, start_ticks: u64, most_bytes: u64) -> PerfMap {
        let age = Some(start_ticks).filter(|ticks| *ticks != 0).map(proc::age_of);
        let since = SystemTime::now() - age.unwrap_or_default() - CLOCK_TOLERANCE;
        let (name, folder) = (format!("perf-{own_pid}.map"), Folder::of(pid));
        PerfMap { name, uid, since, folder, parent: None, generation: 0, most_bytes }
    }

    /// Returns no map of a process, since its files do not answer.
    pub fn none(own_pid: u32) -> PerfMap {
        let (name, since, folder) = (format!("perf-{own_pid}.map"), SystemTime::now(), Folder::Unknown);
        PerfMap { name, uid: u32::MAX, since, folder, parent: None, generation: 0, most_bytes: 0 }
    }

    /// Adds the map of the process from which this one was forked.
    #[must_use]
    pub(crate) fn forked_from(self, parent: &Arc<PerfMap>) -> PerfMap {
        let generation = parent.generation + 1;
        let parent = (generation < MAX_GENERATIONS).then(|| Arc::clone(parent));
        PerfMap { parent, generation, ..self }
    }

    fn open(&self) -> Option<File> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let place = match &self.folder {
            Folder::Ours => open(&*format!("/tmp/{}", self.name), flags, Mode::empty()),
            Folder::Other(folder) => openat(folder, &*self.name, flags, Mode::empty()),
            Folder::Unknown => return None,
        };
        let file = regular_file::opened(place.ok()?).ok()?;
        let metadata = file.metadata().ok()?;
        let is_valid = metadata.uid() == self.uid && metadata.modified().ok()? >= self.since;
        is_valid.then_some(file)
    }

    /// Returns the current version of the maps.
    pub fn version(&self) -> MapVersion {
        let own = self.open().and_then(|file| file.metadata().ok());
        let mut version = vec![own.and_then(|metadata| Some((metadata.len(), metadata.modified().ok()?)))];
        self.parent.iter().for_each(|parent| version.extend(parent.version()));
        version
    }

    /// Names addresses of code that the process or its parents generated. The names with the
    /// highest priority are first.
    pub fn name(&self, unnamed: &mut UnnamedAddresses, named: &mut Vec<NamedRange>) {
        if unnamed.is_empty() {
            return;
        }
        if let Some(file) = self.open() {
            lines_from_end(&file, self.most_bytes, |line| {
                if let Some(Line { start, length, name }) = Line::read(line) {
                    let addresses = unnamed.take(start, length);
                    if !addresses.is_empty() {
                        let name = name[..name.len().min(MAX_NAME_LEN)].into();
                        let range = CodeRange { start, length, name };
                        named.push(NamedRange { range, instructions: addresses });
                    }
                }
                !unnamed.is_empty()
            });
        }
        if let Some(parent) = &self.parent {
            parent.name(unnamed, named);
        }
    }
}

/// Passes the lines of a file to a function, the last first, while it returns true. Of a line
/// longer than a block only the beginning is passed, at most two blocks.
fn lines_from_end(file: &File, most_bytes: u64, mut wants_more: impl FnMut(&[u8]) -> bool) {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let first = length.saturating_sub(most_bytes);
    let (mut end, mut block) = (length, Vec::new());
    while end > first {
        let start = end.saturating_sub(BLOCK as u64).max(first);
        let new_bytes = (end - start) as usize;
        // The block is followed by the rest of the line that began in it.
        block.splice(0..0, std::iter::repeat_n(0, new_bytes));
        if file.read_exact_at(&mut block[..new_bytes], start).is_err() {
            return;
        }
        end = start;
        while let Some(newline) = block.iter().rposition(|byte| *byte == b'\n') {
            let goes_on = wants_more(&block[newline + 1..]);
            block.truncate(newline);
            if !goes_on {
                return;
            }
        }
        block.truncate(BLOCK);
    }
    if first == 0 {
        wants_more(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap_or_else(|error| panic!("no file: {error}"));
        file.write_all(bytes).unwrap_or_else(|error| panic!("not written: {error}"));
        file
    }

    fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
        lines_of(bytes, MAX_MAP_BYTES)
    }

    fn lines_of(bytes: &[u8], most_bytes: u64) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        lines_from_end(&file(bytes), most_bytes, |line| {
            lines.push(line.to_vec());
            true
        });
        lines
    }

    #[test]
    fn lines_are_read_from_the_end() {
        let text = |lines: &[&str]| lines.iter().map(|line| line.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(lines(b""), text(&[""]));
        assert_eq!(lines(b"a\nbc\n"), text(&["", "bc", "a"]));
        assert_eq!(lines(b"\n\nd"), text(&["d", "", ""]));
        // Lines that cross blocks, compared with all lines of the same bytes.
        let mut bytes = Vec::new();
        for number in 0..90_000 {
            bytes.extend_from_slice(format!("{number:x} 10 function {}\n", "x".repeat(number % 7)).as_bytes());
        }
        assert!(bytes.len() > 4 * BLOCK);
        let plain: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').rev().map(<[u8]>::to_vec).collect();
        assert_eq!(lines(&bytes), plain);
        // Only the latest lines: the line at the limit is not complete.
        let few = lines_of(&bytes, 2 * BLOCK as u64 + 5);
        assert!(few.len() > 100 && few.len() < plain.len() / 2);
        assert_eq!(few, plain[..few.len()]);
    }

    #[test]
    fn line_longer_than_a_block_keeps_its_beginning() {
        let long = [&b"10 20 "[..], &vec![b'y'; 3 * BLOCK + 77]].concat();
        let found = lines(&[b"1 1 before\n", &long[..], b"\n2 2 after\n"].concat());
        assert_eq!((found.len(), &*found[1], &*found[3]), (4, &b"2 2 after"[..], &b"1 1 before"[..]));
        assert!(found[2].len() <= 2 * BLOCK && long.starts_with(&found[2]));
    }

    fn map(name: &str, since: SystemTime, uid: u32) -> PerfMap {
        PerfMap {
            name: name.into(),
            uid,
            since,
            folder: Folder::Ours,
            parent: None,
            generation: 0,
            most_bytes: MAX_MAP_BYTES,
        }
    }

    fn names(map: &PerfMap, addresses: &[u64]) -> Vec<(String, Vec<u64>)> {
        let (mut unnamed, mut named) = (addresses.iter().copied().collect(), Vec::new());
        map.name(&mut unnamed, &mut named);
        named.into_iter().map(|named| (named.range.name.lossy().into_owned(), named.instructions)).collect()
    }

    #[test]
    fn later_lines_apply_and_files_of_others_are_ignored() {
        let uid = nix::unistd::geteuid().as_raw();
        let name = format!("perf-{}-heaptape-test.map", std::process::id());
        let path = Path::new("/tmp").join(&name);
        let bytes = b"1000 100 old\n1000 80 young\nnonsense\n2000 10 other\n";
        std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("not written: {error}"));
        let long_ago = SystemTime::now() - Duration::from_secs(60);
        let wanted = [("other".to_owned(), vec![0x200f]), ("young".into(), vec![0x1000]), ("old".into(), vec![0x1090])];
        let addresses = [0x1000, 0x1090, 0x200f, 0x2010];
        assert_eq!(names(&map(&name, long_ago, uid), &addresses), wanted);
        let child = map("perf-none.map", long_ago, uid).forked_from(&Arc::new(map(&name, long_ago, uid)));
        assert_eq!(names(&child, &addresses), wanted, "a fork child runs its parent's code");
        assert_eq!(names(&map(&name, long_ago, uid + 1), &addresses), [], "another user's");
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(names(&map(&name, later, uid), &addresses), [], "an earlier process's");
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap_or_else(|error| panic!("no link: {error}"));
        let linked = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        assert_eq!(names(&map(&linked, long_ago, uid), &addresses), [], "a link");
        let _ = std::fs::remove_file(link);
        let _ = std::fs::remove_file(&path);
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap_or_else(|error| panic!("no pipe: {error}"));
        assert_eq!(names(&map(&name, long_ago, uid), &addresses), [], "a pipe");
        let _ = std::fs::remove_file(&path);
    }
}
