//! The files of a process's modules, opened while it lives: by the end they may be deleted, built
//! anew, or gone with the process's container.
//!
//! `/proc/PID/maps` says which file is mapped where, by inode. It is opened through `map_files`
//! where that is allowed, else by its path in the process's root or in ours, and taken only if it
//! is that inode.

use crate::symbols::{Opened, Saver};
use formats::tape;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat, stat};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes of `maps` that are read: 100,000 mappings.
const MOST_MAPS: u64 = 10 << 20;

/// A file that is mapped.
#[derive(Debug)]
struct Mapped {
    start: u64,
    file: Opened,
}

/// What is open of one process.
#[derive(Debug, Default)]
struct Known {
    mapped: Vec<Mapped>,
    /// Separate debug information, by build-id.
    debug: Vec<(Vec<u8>, Opened)>,
}

/// The files of one process.
#[derive(Debug)]
pub struct ModuleFiles {
    pid: u32,
    saver: Option<Arc<Saver>>,
    /// Its root is not ours: paths mean something else there.
    is_elsewhere: bool,
    known: Mutex<Known>,
}

/// A line of `maps`.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    range: &'a str,
    start: u64,
    device: &'a str,
    inode: u64,
    path: &'a str,
}

impl Line<'_> {
    /// Reads a line; none when no file is mapped there as code.
    fn read(line: &str) -> Option<Line<'_>> {
        let mut words = line.splitn(6, ' ');
        let (range, access, _offset) = (words.next()?, words.next()?, words.next()?);
        let (device, inode, path) = (words.next()?, words.next()?.parse().ok()?, words.next()?.trim_start());
        let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
        let is_code = access.as_bytes().get(2) == Some(&b'x') && inode != 0 && path.starts_with('/');
        is_code.then_some(Line { range, start, device, inode, path: path.strip_suffix(" (deleted)").unwrap_or(path) })
    }
}

impl ModuleFiles {
    /// Opens what a process has mapped. It must be alive. Without a saver nobody wants them.
    pub fn of(pid: u32, saver: Option<Arc<Saver>>) -> ModuleFiles {
        let is_elsewhere = saver.is_some() && !has_our_root(pid);
        let files = ModuleFiles { pid, saver, is_elsewhere, known: Mutex::default() };
        files.look();
        files
    }

    /// Who saves the names.
    pub fn saver(&self) -> Option<&Arc<Saver>> {
        self.saver.as_ref()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what was mapped since the last look.
    fn look(&self) {
        let Some(saver) = &self.saver else { return };
        let Some(maps) = read_maps(self.pid) else { return };
        let mut known = self.known();
        for line in maps.lines().filter_map(Line::read) {
            if known.mapped.iter().any(|mapped| mapped.start == line.start) {
                continue;
            }
            let file = saver.opened((line.device.to_owned(), line.inode), || self.open(&line));
            known.mapped.extend(file.map(|file| Mapped { start: line.start, file }));
        }
    }

    fn open(&self, line: &Line<'_>) -> Option<OwnedFd> {
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        if let Some(file) = open_file(&process.join("map_files").join(line.range)) {
            return Some(file);
        }
        let inside = process.join("root").join(line.path.trim_start_matches('/'));
        let places = [inside, line.path.into(), process.join("exe")];
        let is_it = |file: &OwnedFd| fstat(file).is_ok_and(|about| about.st_ino == line.inode);
        places.iter().find_map(|place| open_file(place).filter(is_it))
    }

    /// A module was announced: sees to it that its file is open, and its debug information where
    /// our paths do not reach it.
    pub fn announced(&self, module: &tape::Module) {
        if self.saver.is_none() || !module.path.0.starts_with(b"/") {
            return;
        }
        if self.file(module).is_none() {
            self.look();
        }
        if let (true, [first, rest @ ..]) = (self.is_elsewhere, &module.build_id.0[..]) {
            let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
            let root = PathBuf::from(format!("/proc/{}", self.pid)).join("root");
            let file = open_file(&root.join(format!("usr/lib/debug/.build-id/{first:02x}/{rest}.debug")));
            self.known().debug.extend(file.map(|file| (module.build_id.0.clone(), Arc::new(file))));
        }
    }

    /// The file of a module, if it is open.
    pub fn file(&self, module: &tape::Module) -> Option<Opened> {
        let known = self.known();
        let mapped = known.mapped.iter().find(|mapped| (module.start..module.end).contains(&mapped.start))?;
        Some(Arc::clone(&mapped.file))
    }

    /// The separate debug information of a module, if it is open.
    pub fn debug(&self, module: &tape::Module) -> Option<Opened> {
        let known = self.known();
        let (_, file) = known.debug.iter().find(|(build_id, _)| *build_id == module.build_id.0)?;
        Some(Arc::clone(file))
    }
}

fn read_maps(pid: u32) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(format!("/proc/{pid}/maps")).ok()?.take(MOST_MAPS).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a process's paths are ours.
fn has_our_root(pid: u32) -> bool {
    let theirs = format!("/proc/{pid}");
    ["root", "ns/mnt"].iter().all(|name| {
        let of = |process: &str| stat(&*format!("{process}/{name}")).map(|about| (about.st_dev, about.st_ino));
        of(&theirs) == of("/proc/self")
    })
}

/// A plain file, opened to be read. What else lies there (a pipe, a device) would keep us waiting.
fn open_file(path: &Path) -> Option<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = open(path, flags, Mode::empty()).ok()?;
    let kind = fstat(&file).ok()?.st_mode & nix::libc::S_IFMT;
    (kind == nix::libc::S_IFREG).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_code_is_found_in_maps() {
        let line = "55cd7c002000-55cd7c007000 r-xp 00002000 fd:01 1835024                    /usr/bin/my cat (deleted)";
        let read = Line::read(line).unwrap_or_else(|| panic!("no line"));
        assert_eq!((read.start, read.inode, read.device), (0x55cd_7c00_2000, 1_835_024, "fd:01"));
        assert_eq!((read.range, read.path), ("55cd7c002000-55cd7c007000", "/usr/bin/my cat"));
        for other in [
            "",
            "7ffd-7ffe r-xp 00000000 00:00 0                          [vdso]",
            "7f00-7f01 rw-p 00000000 fd:01 12                         /usr/lib/libc.so.6",
            "7f00-7f01 r-xp 00000000 00:00 0 ",
        ] {
            assert_eq!(Line::read(other), None, "{other:?}");
        }
    }
}
