//! The files of a process's modules, opened while it lives. At its end they may be deleted,
//! rebuilt, or gone with the process's container.
//!
//! `/proc/PID/maps` names the file of each mapping, with its inode. The file is opened through
//! `map_files` where that is permitted, otherwise by its path in the process's root directory or in
//! ours, and accepted only if it has that inode.

use crate::symbols::{Opened, Saver};
use formats::tape;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat, stat};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of bytes of `maps` that are read: 100,000 mappings.
const MAX_MAPS_BYTES: u64 = 10 << 20;

/// A file that is mapped.
#[derive(Debug)]
struct MappedFile {
    start: u64,
    file: Opened,
}

/// The open files of one process.
#[derive(Debug, Default)]
struct OpenFiles {
    mapped: Vec<MappedFile>,
    /// Separate debug information, by build-id.
    debug: Vec<(Vec<u8>, Opened)>,
}

/// The files of one process.
#[derive(Debug)]
pub struct ModuleFiles {
    pid: u32,
    saver: Option<Arc<Saver>>,
    /// Whether the process has another root directory, so that paths mean something else there.
    has_other_root: bool,
    open_files: Mutex<OpenFiles>,
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    range: &'a str,
    start: u64,
    device: &'a str,
    inode: u64,
    path: &'a str,
}

impl Line<'_> {
    /// Parses a line; returns `None` unless it maps code of a file.
    fn read(line: &str) -> Option<Line<'_>> {
        let mut fields = line.splitn(6, ' ');
        let (range, access, _offset) = (fields.next()?, fields.next()?, fields.next()?);
        let (device, inode, path) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.trim_start());
        let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
        let is_code = access.as_bytes().get(2) == Some(&b'x') && inode != 0 && path.starts_with('/');
        is_code.then_some(Line { range, start, device, inode, path: path.strip_suffix(" (deleted)").unwrap_or(path) })
    }
}

impl ModuleFiles {
    /// Opens the files that a live process has mapped. Without a saver nothing is opened, since
    /// nobody needs the files.
    pub fn of(pid: u32, saver: Option<Arc<Saver>>) -> ModuleFiles {
        let has_other_root = saver.is_some() && !has_our_root(pid);
        let files = ModuleFiles { pid, saver, has_other_root, open_files: Mutex::default() };
        files.open_new_mappings();
        files
    }

    /// Returns the connection to the helper that stores the names.
    pub fn saver(&self) -> Option<&Arc<Saver>> {
        self.saver.as_ref()
    }

    fn open_files(&self) -> std::sync::MutexGuard<'_, OpenFiles> {
        self.open_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the files that were mapped since the last call.
    fn open_new_mappings(&self) {
        let Some(saver) = &self.saver else { return };
        let Some(maps) = read_maps(self.pid) else { return };
        let mut open_files = self.open_files();
        for line in maps.lines().filter_map(Line::read) {
            if open_files.mapped.iter().any(|mapped| mapped.start == line.start) {
                continue;
            }
            let file = saver.opened((line.device.to_owned(), line.inode), || self.open(&line));
            open_files.mapped.extend(file.map(|file| MappedFile { start: line.start, file }));
        }
    }

    fn open(&self, line: &Line<'_>) -> Option<OwnedFd> {
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        if let Some(file) = open_file(&process.join("map_files").join(line.range)) {
            return Some(file);
        }
        let inside = process.join("root").join(line.path.trim_start_matches('/'));
        let candidates = [inside, line.path.into(), process.join("exe")];
        let has_inode = |file: &OwnedFd| fstat(file).is_ok_and(|status| status.st_ino == line.inode);
        candidates.iter().find_map(|path| open_file(path).filter(has_inode))
    }

    /// Ensures that the file of an announced module is open, and its separate debug information
    /// where our paths do not reach it.
    pub fn announced(&self, module: &tape::Module) {
        if self.saver.is_none() || !module.path.0.starts_with(b"/") {
            return;
        }
        if self.file(module).is_none() {
            self.open_new_mappings();
        }
        if let (true, [first, rest @ ..]) = (self.has_other_root, &module.build_id.0[..]) {
            let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
            let root = PathBuf::from(format!("/proc/{}", self.pid)).join("root");
            let file = open_file(&root.join(format!("usr/lib/debug/.build-id/{first:02x}/{rest}.debug")));
            self.open_files().debug.extend(file.map(|file| (module.build_id.0.clone(), Arc::new(file))));
        }
    }

    /// Returns the file of a module, if it is open.
    pub fn file(&self, module: &tape::Module) -> Option<Opened> {
        let open_files = self.open_files();
        let mapped = open_files.mapped.iter().find(|mapped| (module.start..module.end).contains(&mapped.start))?;
        Some(Arc::clone(&mapped.file))
    }

    /// Returns the separate debug information of a module, if it is open.
    pub fn debug(&self, module: &tape::Module) -> Option<Opened> {
        let open_files = self.open_files();
        let (_, file) = open_files.debug.iter().find(|(build_id, _)| *build_id == module.build_id.0)?;
        Some(Arc::clone(file))
    }
}

fn read_maps(pid: u32) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(format!("/proc/{pid}/maps")).ok()?.take(MAX_MAPS_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether a process has the same root directory and mount namespace as this one.
fn has_our_root(pid: u32) -> bool {
    let theirs = format!("/proc/{pid}");
    ["root", "ns/mnt"].iter().all(|name| {
        let of = |process: &str| stat(&*format!("{process}/{name}")).map(|status| (status.st_dev, status.st_ino));
        of(&theirs) == of("/proc/self")
    })
}

/// Opens a regular file for reading. O_NONBLOCK: opening a pipe or a device could block.
pub(crate) fn open_file(path: &Path) -> Option<OwnedFd> {
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
