//! Allocators in a process that are known and not hooked: those without symbols, and those in
//! libraries that were opened after the start. What they allocate is not recorded, which the
//! recording says.

use super::file::{FileFunctions, Role};
use super::search::{FileKey, Search};
use super::{Plan, open_mapped, symbols};
use crate::inject::maps::{CodeMapping, Maps};
use crate::os::aside::{self, Owner};
use crate::target::module_files::open_file;
use formats::recording::{Allocator, Refused};
use formats::tape::Module;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Op;

/// Number of libraries that are opened later, after which no further ones are searched.
const MAX_LIBRARIES: usize = 1024;
/// Why an allocator without symbols is not hooked.
const NAMELESS: &str = "the file is stripped; keep its symbols, install its debug information, or use --debuginfod";
/// Why the `malloc` of a second C library is not hooked.
const SECOND_LIBC: &str = "the program has loaded it a second time (dlmopen), and what uses that copy was not seen";

/// Returns why an allocator in a library that was opened later is not hooked, and what helps.
fn opened_later(path: &str) -> String {
    format!("the library was opened after the start; run 'heaptape record --preload {path} …' to have it hooked")
}

/// What is known of the files of a process, besides the functions that are hooked.
#[derive(Clone, Debug, Default)]
struct Files {
    /// Files without known functions that were mapped at the start, with their paths.
    nameless: Vec<(String, Arc<FileFunctions>)>,
    /// Addresses of the code that was mapped at the start, with the paths of its files.
    present: Vec<(Range<u64>, String)>,
    /// First addresses of modules that were mapped since.
    opened: Vec<u64>,
    /// Libraries that were opened later, with their paths.
    later: Vec<(String, FileKey)>,
    /// Path of a second C library in the process.
    second_libc: Option<String>,
}

/// Opens the file at the path of a module, if it has the module's build-id.
fn open_same(module: &Module) -> Option<File> {
    let path = Path::new(OsStr::from_bytes(&module.path.0));
    let file = File::from(open_file(path).filter(|_| path.is_absolute())?);
    let build_id = symbols::headers(&file).ok()?.file.build_id;
    (!build_id.is_empty() && build_id == module.build_id.0).then_some(file)
}

/// The allocators of a process that are not hooked.
#[derive(Debug, Default)]
pub(super) struct Unhooked {
    /// The search for libraries that are opened later, and how they are searched.
    search: Option<(Search, Role)>,
    files: Mutex<Files>,
}

impl Unhooked {
    /// Creates an empty list for a process that was just planned.
    pub(super) fn new(search: &Search, role: Role, maps: &Maps) -> Unhooked {
        let present = maps.code.iter().map(|mapping| (mapping.start..mapping.end, mapping.path.clone())).collect();
        Unhooked { search: Some((search.clone(), role)), files: Mutex::new(Files { present, ..Files::default() }) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file without known functions that was mapped at the start.
    pub(super) fn add(&self, path: &str, functions: &Arc<FileFunctions>) {
        self.files().nameless.push((path.to_owned(), Arc::clone(functions)));
    }

    /// Returns a copy for a forked child, which opens libraries of its own.
    pub(super) fn forked(&self) -> Unhooked {
        Unhooked { search: self.search.clone(), files: Mutex::new(self.files().clone()) }
    }

    /// Returns the path of the file whose code was mapped at an address at the start.
    pub(crate) fn path_at(&self, address: u64) -> Option<String> {
        let files = self.files();
        files.present.iter().find(|(code, _)| code.contains(&address)).map(|(_, path)| path.clone())
    }

    /// Searches modules of the process in the background, if they were opened after the start.
    pub(super) fn opened(self: &Arc<Self>, owner: Owner, modules: &[&Module]) {
        if self.search.is_none() {
            return;
        }
        let mut files = self.files();
        // A program may open and close libraries without end.
        if files.opened.len() >= MAX_LIBRARIES {
            return;
        }
        let starts: Vec<u64> = files.present.iter().map(|(code, _)| code.start).chain(files.opened.clone()).collect();
        let is_new = |module: &&&Module| !starts.iter().any(|start| (module.start..module.end).contains(start));
        let new: Vec<Module> =
            modules.iter().filter(is_new).take(MAX_LIBRARIES).map(|&module| module.clone()).collect();
        files.opened.extend(new.iter().map(|module| module.start));
        drop(files);
        if !new.is_empty() {
            let unhooked = Arc::clone(self);
            let _ = aside::call(owner, move || unhooked.search(owner.pid, &new));
        }
    }

    /// Hands the files of modules over to the search.
    fn search(&self, pid: u32, new: &[Module]) {
        let Some((search, role)) = &self.search else { return };
        let maps = Maps::of(pid);
        let process = PathBuf::from(format!("/proc/{pid}"));
        for module in new {
            let is_its = |mapping: &&CodeMapping| (module.start..module.end).contains(&mapping.start);
            let mapped = maps.code.iter().find(is_its);
            let file = match mapped {
                Some(mapping) => open_mapped(&process, mapping, false),
                // The process has ended.
                None => open_same(module),
            };
            let Some(file) = file else { continue };
            if let Ok(key) = search.later(file, *role) {
                let path = mapped.map_or_else(|| module.path.lossy().into_owned(), |mapping| mapping.path.clone());
                let mut files = self.files();
                if files.later.len() < MAX_LIBRARIES {
                    files.later.push((path, key));
                }
            }
        }
    }

    /// Returns whether all files have been searched.
    pub(super) fn is_settled(&self) -> bool {
        let files = self.files();
        let is_known = |functions: &FileFunctions| functions.nameless.get().is_some();
        let is_searched = |key: &FileKey| {
            self.search
                .as_ref()
                .and_then(|(search, _)| search.known(*key))
                .is_some_and(|functions| is_known(&functions))
        };
        files.nameless.iter().all(|(_, functions)| is_known(functions))
            && files.later.iter().all(|(_, key)| is_searched(key))
    }

    /// Returns the allocators that are known by now. Their number is that of no allocator in the
    /// entries of the tape.
    pub(super) fn allocators(&self) -> Vec<Allocator> {
        let files = self.files();
        let mut out = Vec::new();
        let mut add = |name: &str, path: &str, why: &str| {
            let refused = vec![Refused { function: "all".into(), why: why.into() }];
            let (name, module, number) = (name.to_owned(), path.to_owned(), Op::ALLOCATORS);
            out.push(Allocator { name, module, number, refused, ..Allocator::default() });
        };
        for (path, functions) in &files.nameless {
            functions.nameless.get().into_iter().flatten().for_each(|name| add(name, path, NAMELESS));
        }
        for (path, key) in &files.later {
            let Some(functions) = self.search.as_ref().and_then(|(search, _)| search.known(*key)) else { continue };
            functions.allocators().into_iter().for_each(|name| add(name, path, &opened_later(path)));
            functions.nameless.get().into_iter().flatten().for_each(|name| add(name, path, NAMELESS));
        }
        if let Some(path) = &files.second_libc {
            add(path.rsplit('/').next().unwrap_or_default(), path, SECOND_LIBC);
            out.last_mut().into_iter().for_each(|libc| (libc.found, libc.is_own_malloc) = (1, true));
        }
        out
    }
}

impl Plan {
    /// Notes modules of the process: those that were opened after the start are searched.
    pub fn opened(&self, owner: Owner, modules: &[&Module]) {
        self.unhooked.opened(owner, modules);
    }

    /// Notes that the process has a second C library, with a `malloc` of its own.
    pub fn has_second_libc(&self, path: String) {
        self.unhooked.files().second_libc = Some(path);
    }

    /// Returns the path of the file whose code was mapped at an address when the process was
    /// planned.
    pub(crate) fn path_at(&self, address: u64) -> Option<String> {
        self.unhooked.path_at(address)
    }

    /// Returns whether all that is known of the process's allocators is known by now.
    pub fn is_settled(&self) -> bool {
        self.unhooked.is_settled()
    }

    /// Replaces the allocators that are not hooked by those that are known by now.
    pub fn note_unhooked(&self, allocators: &mut Vec<Allocator>) {
        let unhooked = self.unhooked.allocators();
        allocators.retain(|known| !unhooked.iter().any(|one| (&one.name, &one.module) == (&known.name, &known.module)));
        allocators.extend(unhooked);
    }
}
