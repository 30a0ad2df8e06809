//! Contents of a disk after a loss of power, made from the log of everything that was written
//! (`logs_writes.c`).
//!
//! The model is that of journaling file systems. Bytes that were not synced may be there or not,
//! sector by sector, in any order; what is missing inside a file reads as zeros. Names and lengths
//! change in order, and syncing a file also syncs every earlier change of names. Synced data stays.

use crate::random::Random;
use heaptape_formats::recording::{TAPE, TRACE};
use heaptape_formats::tape::{self, Codec, Record, Step};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Removes the bytes of traces that no chunk record names. Readers may find events there, but
/// guarantee none.
pub fn only_committed(folder: &Path) {
    for process_folder in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let bytes = fs::read(process_folder.join(TAPE)).unwrap_or_default();
        let mut ends = BTreeMap::new();
        if let Ok(mut tape) = tape::Reader::new(&bytes) {
            loop {
                match tape.step() {
                    Step::Record(_, Record::Chunk(chunk)) => {
                        ends.insert(chunk.codec, chunk.stored_offset + chunk.stored_length);
                    }
                    Step::End(_) => break,
                    _ => {}
                }
            }
        }
        for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd] {
            if let Ok(trace) =
                fs::OpenOptions::new().write(true).open(process_folder.join(format!("{TRACE}{}", codec.suffix())))
            {
                let end =
                    ends.get(&(codec as u8)).copied().unwrap_or(0).min(trace.metadata().map_or(0, |file| file.len()));
                trace.set_len(end).expect("it is cut");
            }
        }
    }
}

/// Number of bytes that the disk writes atomically.
const SECTOR: u64 = 512;

/// One change of the disk.
#[derive(Debug)]
enum Act {
    Create { inode: u64, path: PathBuf },
    Write { inode: u64, at: u64, bytes: Vec<u8> },
    Resize { inode: u64, length: u64 },
    Sync { inode: u64 },
    SyncAll,
    Rename { from: PathBuf, to: PathBuf },
    Remove { path: PathBuf },
    Folder { path: PathBuf },
}

/// All changes of the disk, in order.
pub struct Log {
    acts: Vec<Act>,
    root: PathBuf,
}

/// One file: its content on the disk, and the changes since then.
#[derive(Clone, Default)]
struct Body {
    kept: Vec<u8>,
    since: Vec<usize>,
}

impl Log {
    /// Reads a log about files below `root`.
    pub fn read(path: &Path, root: &Path) -> Log {
        let bytes = fs::read(path).expect("the log of what was written");
        let mut rest = bytes.as_slice();
        let mut acts = Vec::new();
        while !rest.is_empty() {
            let mut take = |count: usize| rest.split_off(..count).expect("a whole record");
            let head = take(40);
            let small = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
            let wide = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
            let mut name = |count: u32| PathBuf::from(String::from_utf8_lossy(take(count as usize)).into_owned());
            let (path, second) = (name(small(4)), name(small(8)));
            let (inode, offset, length) = (wide(16), wide(24), wide(32));
            let kind = small(0);
            acts.push(match kind {
                1 => Act::Create { inode, path },
                2 => Act::Write { inode, at: offset, bytes: take(length as usize).to_vec() },
                3 => Act::Resize { inode, length: offset },
                4 => Act::Sync { inode },
                5 => Act::SyncAll,
                6 => Act::Rename { from: path, to: second },
                7 | 9 => Act::Remove { path },
                8 => Act::Folder { path },
                _ => panic!("a record of kind {kind}"),
            });
        }
        Log { acts, root: root.to_owned() }.with_unique_inodes()
    }

    /// Numbers the files uniquely: the system uses the inode number of a removed file again.
    fn with_unique_inodes(mut self) -> Log {
        let (mut files, mut next) = (BTreeMap::new(), 0);
        for at in 0..self.acts.len() {
            let is_known = match &self.acts[at] {
                Act::Create { path, .. } => self.names(at).contains_key(path.as_path()),
                _ => true,
            };
            let (Act::Create { inode, .. }
            | Act::Write { inode, .. }
            | Act::Resize { inode, .. }
            | Act::Sync { inode }) = &mut self.acts[at]
            else {
                continue;
            };
            if !is_known {
                next += 1;
                files.insert(*inode, next);
            }
            *inode = files[inode];
        }
        self
    }

    /// Returns the number of points in time at which the power may fail: after each act.
    pub fn moments(&self) -> usize {
        self.acts.len()
    }

    /// Returns the points in time right after something was synced.
    pub fn syncs(&self) -> Vec<usize> {
        let is_sync = |act: &Act| matches!(act, Act::Sync { .. } | Act::SyncAll);
        self.acts.iter().enumerate().filter(|(_, act)| is_sync(act)).map(|(at, _)| at + 1).collect()
    }

    /// Returns the files on the disk at a point in time, and the names that are certain.
    fn state(&self, moment: usize) -> (BTreeMap<u64, Body>, usize) {
        let mut bodies: BTreeMap<u64, Body> = BTreeMap::new();
        let mut certain = 0;
        for (at, act) in self.acts[..moment].iter().enumerate() {
            match act {
                Act::Write { inode, .. } | Act::Resize { inode, .. } => {
                    bodies.entry(*inode).or_default().since.push(at);
                }
                Act::Sync { inode } => {
                    certain = at;
                    bodies.entry(*inode).and_modify(|body| self.keep(body));
                }
                Act::SyncAll => {
                    certain = at;
                    bodies.values_mut().for_each(|body| self.keep(body));
                }
                _ => {}
            }
        }
        (bodies, certain)
    }

    fn keep(&self, body: &mut Body) {
        for at in std::mem::take(&mut body.since) {
            self.apply(&mut body.kept, at, |_| true);
        }
    }

    /// Applies a change to a file, for the sectors that reach the disk.
    fn apply(&self, file: &mut Vec<u8>, at: usize, mut gets_through: impl FnMut(u64) -> bool) {
        match &self.acts[at] {
            Act::Resize { length, .. } => file.resize(*length as usize, 0),
            Act::Write { at, bytes, .. } => {
                let end = at + bytes.len() as u64;
                let mut from = *at;
                while from < end {
                    let to = end.min((from / SECTOR + 1) * SECTOR);
                    if gets_through(from / SECTOR) {
                        file.resize(file.len().max(to as usize), 0);
                        file[from as usize..to as usize]
                            .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
                    }
                    from = to;
                }
            }
            _ => {}
        }
    }

    /// Returns the names after a number of acts.
    fn names(&self, moment: usize) -> BTreeMap<&Path, u64> {
        let mut names: BTreeMap<&Path, u64> = BTreeMap::new();
        for act in &self.acts[..moment] {
            match act {
                Act::Create { inode, path } => drop(names.insert(path, *inode)),
                Act::Rename { from, to } => {
                    if let Some(inode) = names.remove(from.as_path()) {
                        names.insert(to, inode);
                    }
                }
                Act::Remove { path } => drop(names.remove(path.as_path())),
                _ => {}
            }
        }
        names
    }

    fn put(&self, names: usize, to: &Path, content: impl Fn(u64) -> Vec<u8>) {
        fs::create_dir_all(to).expect("a folder");
        let moved = |path: &Path| to.join(path.strip_prefix(&self.root).expect("a path below the folder"));
        for act in &self.acts[..names] {
            if let Act::Folder { path } = act {
                fs::create_dir_all(moved(path)).expect("a folder");
            }
        }
        for (path, inode) in self.names(names) {
            fs::write(moved(path), content(inode)).expect("a file");
        }
    }

    /// Returns what is certainly on the disk at a point in time, and nothing else.
    pub fn certain(&self, moment: usize, to: &Path) {
        let (bodies, certain) = self.state(moment);
        self.put(certain, to, |inode| bodies.get(&inode).map(|body| body.kept.clone()).unwrap_or_default());
    }

    /// Returns a possible content of the disk when the power fails at a point in time: names up to
    /// a random later change, and random sectors.
    pub fn possible(&self, moment: usize, random: &mut Random, to: &Path) {
        let (bodies, certain) = self.state(moment);
        let names = certain + random.below((moment - certain + 1) as u64) as usize;
        let mut contents = BTreeMap::new();
        for (inode, body) in &bodies {
            // None, half, nearly all, all.
            let share = [0, 128, 250, 256][random.below(4) as usize];
            let mut file = body.kept.clone();
            let mut length = file.len();
            for &at in &body.since {
                self.apply(&mut file, at, |_| random.below(256) < share);
                if let Act::Write { at, bytes, .. } = &self.acts[at] {
                    length = length.max(*at as usize + bytes.len());
                }
            }
            // A length may reach the disk without its bytes.
            if random.below(2) == 0 {
                file.resize(file.len().max(length), 0);
            }
            contents.insert(*inode, file);
        }
        self.put(names, to, |inode| contents.get(&inode).cloned().unwrap_or_default());
    }
}
