//! Names of the code that a process makes at run time, as it tells them in its perf map. They go
//! into the tape, since the map is gone when it is asked for: with the process, its container, the
//! next one of its number.
//!
//! A map is an untrusted file: it must be a plain file, the process's user's (another user could
//! have put it there might name what he likes), and no older than the process. It is read from its
//! end, since later lines hold over earlier ones, in blocks, up to a bound.

use crate::process;
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

/// Bytes that are read at once.
const BLOCK: usize = 256 << 10;
/// The most bytes of a map that are read, its latest lines: four million functions in a second of a
/// command's own programs; a quarter of a million in 60 ms where others' programs wait meanwhile.
pub const ALONE: u64 = 256 << 20;
/// See [`ALONE`].
pub const AMONG_OTHERS: u64 = 16 << 20;
/// The most bytes of a name that are kept.
const MOST_NAME: usize = 1024;
/// Generations of forks whose maps may name what a child got from them.
const GENERATIONS: u8 = 8;
/// What clocks may differ by: the kernel's of files runs behind by a tick, that of a process's
/// start counts hundredths.
const SLACK: Duration = Duration::from_secs(1);

/// A range, and the instructions of sites that it names.
pub type Named = (CodeRange, Vec<u64>);

/// For each of these instructions its place in the list.
pub fn by_instruction(named: &[Named]) -> FxHashMap<u64, usize> {
    let each = |(place, (_, held)): (usize, &Named)| held.iter().map(|at| (*at, place)).collect::<Vec<_>>();
    named.iter().enumerate().flat_map(each).collect()
}

/// Where maps lie: `/tmp` as the process sees it.
#[derive(Debug)]
enum Folder {
    /// The same as ours.
    Ours,
    /// Another one, which cannot be reached any more by a path once the process is gone.
    Its(OwnedFd),
    /// It could not be looked at.
    Unknown,
}

impl Folder {
    fn of(pid: u32) -> Folder {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = Path::new("/proc").join(pid.to_string()).join("root").join("tmp");
        let Ok(its) = open(&path, flags, Mode::empty()) else { return Folder::Unknown };
        match (fstat(&its), stat("/tmp")) {
            (Ok(there), Ok(here)) if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) => Folder::Ours,
            _ => Folder::Its(its),
        }
    }
}

/// Where a process tells what code it makes.
#[derive(Debug)]
pub struct CodeMap {
    name: String,
    uid: u32,
    /// Earlier files are another process's.
    since: SystemTime,
    folder: Folder,
    /// A fork child runs code that its parent made.
    parent: Option<Arc<CodeMap>>,
    generation: u8,
    most_bytes: u64,
}

/// By what a map that has not changed is known: bytes and time of the last change, of it and of the
/// parents'.
pub type Stamp = Vec<Option<(u64, SystemTime)>>;

impl CodeMap {
    /// The map of a process that knows itself as `own_pid`. It must be alive: of one that is gone
    /// nobody can say where its files are.
    pub fn of(pid: u32, own_pid: u32, uid: u32, most_bytes: u64) -> CodeMap {
        let since = SystemTime::now() - process::age(pid).unwrap_or_default() - SLACK;
        let (name, folder) = (format!("perf-{own_pid}.map"), Folder::of(pid));
        CodeMap { name, uid, since, folder, parent: None, generation: 0, most_bytes }
    }

    /// The same of a process that was forked from another.
    #[must_use]
    pub fn forked_from(self, parent: &Arc<CodeMap>) -> CodeMap {
        let generation = parent.generation + 1;
        let parent = (generation < GENERATIONS).then(|| Arc::clone(parent));
        CodeMap { parent, generation, ..self }
    }

    fn open(&self) -> Option<File> {
        // A pipe or a device would keep us waiting.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match &self.folder {
            Folder::Ours => open(&*format!("/tmp/{}", self.name), flags, Mode::empty()),
            Folder::Its(folder) => openat(folder, &*self.name, flags, Mode::empty()),
            Folder::Unknown => return None,
        };
        let file = File::from(file.ok()?);
        let about = file.metadata().ok()?;
        let is_its_own = about.is_file() && about.uid() == self.uid && about.modified().ok()? >= self.since;
        is_its_own.then_some(file)
    }

    /// How the maps stand.
    pub fn stamp(&self) -> Stamp {
        let own = self.open().and_then(|file| file.metadata().ok());
        let mut stamp = vec![own.and_then(|about| Some((about.len(), about.modified().ok()?)))];
        self.parent.iter().for_each(|parent| stamp.extend(parent.stamp()));
        stamp
    }

    /// Names what the process made, and what it got from the one that it was forked from; strongest
    /// first.
    pub fn name(&self, unnamed: &mut UnnamedAddresses, named: &mut Vec<Named>) {
        if unnamed.is_empty() {
            return;
        }
        if let Some(file) = self.open() {
            lines_from_end(&file, self.most_bytes, |line| {
                if let Some(Line { start, length, name }) = Line::read(line) {
                    let addresses = unnamed.take(start, length);
                    if !addresses.is_empty() {
                        let name = name[..name.len().min(MOST_NAME)].into();
                        named.push((CodeRange { start, length, name }, addresses));
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

/// Gives the lines of a file, the last first, while more are wanted. Of a line longer than a block
/// its first part is given, two blocks at most.
fn lines_from_end(file: &File, most_bytes: u64, mut wants_more: impl FnMut(&[u8]) -> bool) {
    let length = file.metadata().map_or(0, |about| about.len());
    let first = length.saturating_sub(most_bytes);
    let (mut end, mut block) = (length, Vec::new());
    while end > first {
        let start = end.saturating_sub(BLOCK as u64).max(first);
        let fresh = (end - start) as usize;
        // Behind what is read lies the rest of the line that the block before it began in.
        block.splice(0..0, std::iter::repeat_n(0, fresh));
        if file.read_exact_at(&mut block[..fresh], start).is_err() {
            return;
        }
        end = start;
        while let Some(feed) = block.iter().rposition(|byte| *byte == b'\n') {
            let goes_on = wants_more(&block[feed + 1..]);
            block.truncate(feed);
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
        lines_of(bytes, ALONE)
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
    fn the_last_line_comes_first() {
        let text = |lines: &[&str]| lines.iter().map(|line| line.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(lines(b""), text(&[""]));
        assert_eq!(lines(b"a\nbc\n"), text(&["", "bc", "a"]));
        assert_eq!(lines(b"\n\nd"), text(&["d", "", ""]));
        // Lines that lie across blocks, against all lines of the same bytes at once.
        let mut bytes = Vec::new();
        for number in 0..90_000 {
            bytes.extend_from_slice(format!("{number:x} 10 function {}\n", "x".repeat(number % 7)).as_bytes());
        }
        assert!(bytes.len() > 4 * BLOCK);
        let plain: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').rev().map(<[u8]>::to_vec).collect();
        assert_eq!(lines(&bytes), plain);
        // Only the latest ones: what the bound cuts is no line.
        let few = lines_of(&bytes, 2 * BLOCK as u64 + 5);
        assert!(few.len() > 100 && few.len() < plain.len() / 2);
        assert_eq!(few, plain[..few.len()]);
    }

    #[test]
    fn a_line_longer_than_a_block_keeps_its_first_part() {
        let long = [&b"10 20 "[..], &vec![b'y'; 3 * BLOCK + 77]].concat();
        let found = lines(&[b"1 1 before\n", &long[..], b"\n2 2 behind\n"].concat());
        assert_eq!((found.len(), &*found[1], &*found[3]), (4, &b"2 2 behind"[..], &b"1 1 before"[..]));
        assert!(found[2].len() <= 2 * BLOCK && long.starts_with(&found[2]));
    }

    fn map(name: &str, since: SystemTime, uid: u32) -> CodeMap {
        CodeMap { name: name.into(), uid, since, folder: Folder::Ours, parent: None, generation: 0, most_bytes: ALONE }
    }

    fn names(map: &CodeMap, addresses: &[u64]) -> Vec<(String, Vec<u64>)> {
        let (mut unnamed, mut named) = (addresses.iter().copied().collect(), Vec::new());
        map.name(&mut unnamed, &mut named);
        named.into_iter().map(|(range, addresses)| (range.name.lossy().into_owned(), addresses)).collect()
    }

    #[test]
    fn later_lines_hold_and_only_the_process_s_own_file_counts() {
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
