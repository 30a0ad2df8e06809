//! The files of a process's modules, opened while they are mapped. Later they may be deleted,
//! rebuilt, or gone with the process's container, and another file may be mapped at the address.
//!
//! `/proc/PID/maps` names the file of each mapping, with device and inode. What it has at a
//! module's address is the module's file only if the module was announced before, and is still
//! mapped afterwards. The file is opened through `map_files` where that is permitted, otherwise by
//! its path in the process's root directory or in ours, and accepted only if it has that inode.

use crate::os::aside::{self, Owner};
use crate::os::clock;
use crate::os::regular_file::open_regular;
use crate::target::kept_file::{self, Version};
use crate::target::maps;
use crate::target::name_saver::{FileKey, Opened, Saver};
use formats::tape::{self, FileId};
use nix::sys::stat::{fstat, stat};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Code that was mapped when the process was admitted.
#[derive(Debug)]
struct MappedFile {
    start: u64,
    which: FileKey,
    file: Opened,
}

#[derive(Debug, Default)]
struct OpenFiles {
    /// What was mapped at the start: all that is left of a process that has ended already. It says
    /// nothing about an address once a module was unmapped.
    first: Vec<MappedFile>,
    /// The files of announced modules, with the build-id, by the number of the module.
    modules: HashMap<u32, (Vec<u8>, Opened)>,
    /// Separate debug information, by build-id.
    debug: Vec<(Vec<u8>, Opened)>,
    /// The mappings of files, and how many modules had been announced before they were read.
    maps: Option<(u32, Vec<Mapped>)>,
    /// How often a file that could not be identified for certain was loaded from a path.
    uncertain: HashMap<Vec<u8>, u32>,
    /// Whether the process has ended, so that nothing is opened any more.
    is_closed: bool,
}

#[derive(Debug)]
pub struct ModuleFiles {
    owner: Owner,
    saver: Option<Arc<Saver>>,
    /// Whether the process has another root directory, so that paths mean something else there.
    has_other_root: bool,
    /// When it was admitted, in nanoseconds since 1970.
    since: u64,
    open_files: Mutex<OpenFiles>,
}

/// A mapping of a file: a line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapped {
    /// Both addresses as the kernel writes them: a name in `map_files`.
    range: String,
    start: u64,
    end: u64,
    is_code: bool,
    file: FileKey,
    path: String,
}

impl Mapped {
    /// Parses a line; returns `None` unless it maps a file.
    fn read(line: &str) -> Option<Mapped> {
        let line = maps::parse(line)?;
        (line.inode != 0 && line.name.starts_with('/')).then(|| Mapped {
            range: line.range.to_owned(),
            start: line.start,
            end: line.end,
            is_code: line.is_executable(),
            file: FileKey { device: line.device.to_owned(), inode: line.inode },
            path: line.path().to_owned(),
        })
    }
}

impl ModuleFiles {
    /// Opens the files that a live process has mapped by its `maps`. Without a saver nothing is opened,
    /// since nobody needs the files. This may never return: see [`aside`].
    pub fn of(owner: Owner, saver: Option<Arc<Saver>>, maps: &[u8]) -> ModuleFiles {
        let has_other_root = saver.is_some() && !has_our_root(owner.pid);
        let files = ModuleFiles { has_other_root, ..ModuleFiles::none(owner, saver) };
        if files.saver.is_some() {
            let maps = parse(maps);
            let code = maps.iter().filter(|mapped| mapped.is_code);
            let first = code.filter_map(|mapped| {
                let file = files.open(mapped, None)?;
                Some(MappedFile { start: mapped.start, which: mapped.file.clone(), file })
            });
            files.open_files().first = first.collect();
        }
        files
    }

    /// Returns the files of a process that have not been looked at.
    pub fn none(owner: Owner, saver: Option<Arc<Saver>>) -> ModuleFiles {
        let (has_other_root, open_files) = (false, Mutex::default());
        ModuleFiles { owner, saver, has_other_root, since: clock::unix_ns(), open_files }
    }

    /// Returns the process.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the connection to the helper that stores the names.
    pub fn saver(&self) -> Option<&Arc<Saver>> {
        self.saver.as_ref()
    }

    fn open_files(&self) -> std::sync::MutexGuard<'_, OpenFiles> {
        self.open_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file of a mapping. `held` is the same file, opened earlier, for the case that it was
    /// removed meanwhile.
    fn open(&self, mapped: &Mapped, held: Option<&Opened>) -> Option<Opened> {
        let process = PathBuf::from(format!("/proc/{}", self.owner.pid));
        let find = || {
            let inside = process.join("root").join(mapped.path.trim_start_matches('/'));
            let candidates = [
                process.join("map_files").join(&mapped.range),
                inside,
                mapped.path.clone().into(),
                process.join("exe"),
            ];
            let has_inode = |file: &OwnedFd| fstat(file).is_ok_and(|status| status.st_ino == mapped.file.inode);
            let found = candidates.iter().find_map(|path| open_file(path).filter(has_inode));
            found.or_else(|| held?.try_clone().ok())
        };
        match &self.saver {
            Some(saver) => saver.opened(&mapped.file, self.since, find),
            None => find().map(Arc::new),
        }
    }

    /// Returns the file of a mapping, which is open already in most cases. Where it lies on a mount
    /// that does not answer there is none.
    fn opened(self: &Arc<Self>, mapped: &Mapped, held: Option<Opened>, wants_identity: bool) -> Option<Found> {
        let saver = self.saver.as_ref();
        if let Some(file) = saver.and_then(|saver| saver.known(&mapped.file, self.since)) {
            return Some(Found::of(file, wants_identity));
        }
        let (files, mapped) = (Arc::clone(self), mapped.clone());
        let open = move || files.open(&mapped, held.as_ref()).map(|file| Found::of(file, wants_identity));
        aside::call(self.owner, open).unwrap_or_default()
    }

    /// Opens the file of a module that was just announced, and fills in what identifies it if it
    /// has no build-id. `announced` is the number of modules that the process had announced before
    /// this call; `is_mapped` returns whether the module is still mapped.
    pub fn identify(self: &Arc<Self>, module: &mut tape::Module, announced: u32, is_mapped: &dyn Fn() -> bool) {
        let has_build_id = !module.build_id.0.is_empty();
        if (has_build_id && self.saver.is_none()) || !module.path.0.starts_with(b"/") {
            return;
        }
        let mut open_files = self.open_files();
        if open_files.is_closed {
            return;
        }
        if open_files.maps.as_ref().is_none_or(|(before, _)| *before < module.number) {
            open_files.maps = Some((announced, parse(&maps::read_aside(self.owner))));
        }
        let maps = open_files.maps.as_ref().map(|(_, maps)| &maps[..]).unwrap_or_default();
        // Another library may lie in a gap of this one, so its first address decides.
        let first = maps.iter().find(|mapped| (mapped.start..mapped.end).contains(&module.start));
        let code = || maps.iter().find(|mapped| mapped.is_code && (module.start..module.end).contains(&mapped.start));
        let mapped = first.or_else(code).cloned();
        let file = match &mapped {
            Some(mapped) => {
                let held = open_files.first.iter().find(|first| first.which == mapped.file);
                let held = held.map(|first| Arc::clone(&first.file));
                self.opened(mapped, held, !has_build_id).filter(|_| is_mapped())
            }
            // The process has ended, maybe while its mappings were being read.
            None if is_mapped() => {
                let inside = |mapped: &&MappedFile| (module.start..module.end).contains(&mapped.start);
                open_files.first.iter().find(inside).map(|mapped| Found::of(Arc::clone(&mapped.file), !has_build_id))
            }
            None => None,
        };
        // A link to a descriptor of the process says nothing later.
        if let (true, Some(mapped)) = (module.path.0.starts_with(b"/proc/"), &mapped)
            && is_mapped()
        {
            module.path = mapped.path.as_str().into();
        }
        let head = module.file.0.head;
        // A module without build-id is compared by what the process has in memory.
        let is_its = |file: &Found| has_build_id || head == 0 || file.head == head;
        let found = file.filter(is_its).or_else(|| self.unchanged(module).filter(|file| !has_build_id && is_its(file)));
        let version = found.as_ref().and_then(|found| found.version).filter(|_| !has_build_id);
        let file = found.map(|found| found.file);
        if let Some(Version { bytes, changed: changed_unix_ns, .. }) = version {
            module.file.0 = FileId { bytes, changed_unix_ns, head, load: 0 };
        }
        // Files that were written within a tick of the kernel's clock have the same time.
        if !has_build_id && version.is_none_or(|version| version.changed > self.since) {
            let loads = open_files.uncertain.entry(module.path.0.clone()).or_default();
            module.file.0.load = *loads;
            *loads += 1;
        }
        let Some(file) = file else { return };
        if self.saver.is_some() {
            open_files.modules.insert(module.number, (module.build_id.0.clone(), file));
        }
        if let (true, [first, rest @ ..]) = (self.has_other_root, &module.build_id.0[..]) {
            let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
            let root = PathBuf::from(format!("/proc/{}", self.owner.pid)).join("root");
            let path = root.join(format!("usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
            let kept = |file: OwnedFd| match kept_file::is_lent(&file) {
                true => kept_file::copy(&file, u64::MAX),
                false => Some(file),
            };
            let file = aside::call(self.owner, move || open_file(&path).and_then(kept)).unwrap_or_default();
            open_files.debug.extend(file.map(|file| (module.build_id.0.clone(), Arc::new(file))));
        }
    }

    /// Returns the file at the path of a module that is not mapped any more, if it was not changed
    /// since the process was admitted.
    fn unchanged(&self, module: &tape::Module) -> Option<Found> {
        let path = std::str::from_utf8(&module.path.0).ok()?;
        let path = PathBuf::from(format!("/proc/{}/root", self.owner.pid)).join(path.trim_start_matches('/'));
        let since = self.since;
        let open = move || {
            let file = open_file(&path)?;
            let is_old = Version::of(&file)?.renamed <= since;
            (is_old && !kept_file::is_lent(&file)).then(|| Found::of(Arc::new(file), true))
        };
        aside::call(self.owner, open).unwrap_or_default()
    }

    /// Notes that a module was unmapped: what was mapped at the start may be at other addresses.
    pub fn unmapped(&self) {
        self.open_files().first.clear();
    }

    /// Forgets the mappings that were read for the last announcements.
    pub fn announced(&self) {
        self.open_files().maps = None;
    }

    /// Returns the file of a module, if it is open: its own, or that of a module with the same
    /// build-id.
    pub fn file(&self, module: &tape::Module) -> Option<Opened> {
        let open_files = self.open_files();
        let is_same = |(build_id, _): &&(Vec<u8>, Opened)| !build_id.is_empty() && *build_id == module.build_id.0;
        let known = open_files.modules.get(&module.number).or_else(|| open_files.modules.values().find(is_same));
        known.map(|(_, file)| Arc::clone(file))
    }

    /// Returns the separate debug information of a module, if it is open.
    pub fn debug(&self, module: &tape::Module) -> Option<Opened> {
        let open_files = self.open_files();
        let (_, file) = open_files.debug.iter().find(|(build_id, _)| *build_id == module.build_id.0)?;
        Some(Arc::clone(file))
    }

    /// Closes all files: the process has ended, and what names it is on its way. A file system that
    /// the process has used can be unmounted from now on.
    pub fn close(&self) {
        *self.open_files() = OpenFiles { is_closed: true, ..OpenFiles::default() };
    }
}

/// A file with what identifies it.
#[derive(Debug)]
struct Found {
    file: Opened,
    head: u32,
    version: Option<Version>,
}

impl Found {
    fn of(file: Opened, wants_identity: bool) -> Found {
        let (head, version) = if wants_identity { (head_of(&file), Version::of(&file)) } else { (0, None) };
        Found { file, head, version }
    }
}

fn head_of(file: &OwnedFd) -> u32 {
    let mut bytes = [0; 4096];
    let read = file.try_clone().and_then(|file| std::fs::File::from(file).read_at(&mut bytes, 0));
    tape::head(&bytes[..read.unwrap_or(0)])
}

fn parse(maps: &[u8]) -> Vec<Mapped> {
    String::from_utf8_lossy(maps).lines().filter_map(Mapped::read).collect()
}

/// Returns whether a process has the same root directory and mount namespace as this one.
fn has_our_root(pid: u32) -> bool {
    static OURS: OnceLock<[Option<(u64, u64)>; 2]> = OnceLock::new();
    let of = |process: &str| {
        ["root", "ns/mnt"]
            .map(|name| stat(&*format!("/proc/{process}/{name}")).map(|status| (status.st_dev, status.st_ino)).ok())
    };
    of(&pid.to_string()) == *OURS.get_or_init(|| of("self"))
}

/// Opens a regular file for reading.
pub(crate) fn open_file(path: &Path) -> Option<OwnedFd> {
    open_regular(path).ok().map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_are_found_in_maps() {
        let line = "55cd7c002000-55cd7c007000 r-xp 00002000 fd:01 1835024                    /usr/bin/my cat (deleted)";
        let read = Mapped::read(line).unwrap_or_else(|| panic!("no line"));
        assert_eq!((read.start, read.end, read.is_code), (0x55cd_7c00_2000, 0x55cd_7c00_7000, true));
        assert_eq!(read.file, FileKey { device: "fd:01".into(), inode: 1_835_024 });
        assert_eq!((&read.range[..], &read.path[..]), ("55cd7c002000-55cd7c007000", "/usr/bin/my cat"));
        let data = Mapped::read("7f00-7f01 rw-p 00000000 fd:01 12                         /usr/lib/libc.so.6");
        assert!(data.is_some_and(|mapped| !mapped.is_code));
        for other in
            ["", "7ffd-7ffe r-xp 00000000 00:00 0                          [vdso]", "7f00-7f01 r-xp 00000000 00:00 0 "]
        {
            assert_eq!(Mapped::read(other), None, "{other:?}");
        }
    }

    /// Removal changes the time by which a file is known to be unchanged.
    #[test]
    fn file_that_was_removed_is_the_one_that_was_opened_at_the_start() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let path = folder.path().join("library.so");
        std::fs::write(&path, b"content").unwrap_or_else(|error| panic!("{error}"));
        let (held, status) = (open_file(&path).map(Arc::new), stat(&path).unwrap_or_else(|error| panic!("{error}")));
        let mapped = Mapped {
            range: "1000-2000".into(),
            start: 0x1000,
            end: 0x2000,
            is_code: true,
            file: FileKey { device: "00:01".into(), inode: status.st_ino },
            path: path.display().to_string(),
        };
        let files = ModuleFiles::none(Owner { pid: std::process::id(), uid: 0 }, None);
        assert!(files.open(&mapped, None).is_some());
        std::fs::remove_file(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(files.open(&mapped, None).is_none());
        let found = files.open(&mapped, held.as_ref());
        assert_eq!(found.and_then(|file| fstat(&*file).ok()).map(|found| found.st_ino), Some(status.st_ino));
    }

    /// The module of this test, as its own process has mapped it.
    fn own_module(number: u32) -> tape::Module {
        let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let maps = parse(&maps::read(std::process::id()));
        let first = maps.iter().find(|mapped| Path::new(&mapped.path) == program).unwrap_or_else(|| panic!("no map"));
        let bytes = std::fs::read(&program).unwrap_or_else(|error| panic!("{error}"));
        let file = tape::field::Added(FileId { head: tape::head(&bytes), ..FileId::default() });
        let path = first.path.as_str().into();
        tape::Module { number, start: first.start, end: first.end, path, file, ..tape::Module::default() }
    }

    #[test]
    fn file_is_identified_by_what_the_process_has_in_memory() {
        let files = Arc::new(ModuleFiles::of(Owner { pid: std::process::id(), uid: 0 }, None, &[]));
        let mut module = own_module(1);
        files.identify(&mut module, 1, &|| true);
        assert!(module.file.0.bytes > 0 && module.file.0.changed_unix_ns > 0, "{:?}", module.file);
        // It was unmapped meanwhile, and the file at its path is older than the process.
        let mut gone = own_module(2);
        files.identify(&mut gone, 2, &|| false);
        assert_eq!(gone.file, module.file);
        for load in 0..3 {
            let mut other = own_module(3 + load);
            other.file.0.head ^= 1;
            files.identify(&mut other, 3 + load, &|| true);
            assert_eq!((other.file.0.bytes, other.file.0.load), (0, load), "the process has other bytes in memory");
        }
        files.close();
        let mut late = own_module(9);
        files.identify(&mut late, 9, &|| true);
        assert_eq!(late.file.0.bytes, 0);
    }
}
