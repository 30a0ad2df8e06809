//! Call sites and the modules of their addresses. A site is a frame that refers to its caller, so it
//! stands for a whole call stack. Sites are numbered from 1, callers first.

use crate::saved_names::{ModuleName, SavedNames};
use heaptape_formats::tape;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A mapped ELF object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// First address of its mapping.
    pub start: u64,
    /// First address after its mapping.
    pub end: u64,
    /// Run-time address minus link-time address, modulo 2^64.
    pub bias: u64,
    /// Path according to the loader.
    pub path: Vec<u8>,
    /// Build-id, or empty if it has none.
    pub build_id: Vec<u8>,
    /// What is known of its file if it has no build-id.
    pub file: tape::FileId,
    /// Folder in which the file is searched first, instead of `/`.
    pub root: Option<Arc<Path>>,
    /// The names that are stored in the recording.
    pub saved: Option<Arc<SavedNames>>,
    /// Start of the recording in nanoseconds since 1970, or 0 if it is unknown.
    pub since_unix_ns: u64,
    /// File name by which the program was called, if that is a link of another name.
    pub called: Option<Arc<str>>,
    /// What of its file is mapped, for a module of another tool's file: `bias` depends on that file.
    pub mapped: Option<FilePart>,
}

/// The part of a file that begins at the start of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePart {
    /// The whole file, with all of its segments.
    Whole,
    /// The code from this offset on.
    From(u64),
}

/// A frame whose names are in the file, so that no address is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Named {
    /// Name of the function, or empty if it is unknown.
    pub function: Vec<u8>,
    /// Path of the source file, or empty if it is unknown.
    pub file: Vec<u8>,
    /// Line number, or 0 if it is unknown.
    pub line: u64,
}

/// A call site in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// Number of the caller's site, or 0 for the outermost.
    pub parent: u32,
    /// Index in [`Stacks::modules`] plus 1, or 0 if the address is in no module.
    pub module: u32,
    /// Index in [`Stacks::named`] plus 1, or 0 if the file does not name the frame. If the site
    /// also has a module, that is not a file.
    pub named: u32,
    /// Sum of the tape's `SITE_` bits.
    pub flags: u8,
    /// The return address, or 0 if it is unknown.
    pub address: u64,
}

/// All call sites of a process.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    sites: Vec<Site>,
    /// The modules, in order of appearance.
    pub modules: Vec<Module>,
    /// The frames whose names are in the file.
    pub named: Vec<Named>,
}

impl Module {
    /// Returns what distinguishes its file from others at the same path: the build-id, or else what
    /// is known of the file.
    pub fn identity(&self) -> Vec<u8> {
        if self.build_id.is_empty() { self.file.key() } else { self.build_id.clone() }
    }

    /// Returns what the names that recordings store are found by.
    pub fn name(&self) -> ModuleName<'_> {
        ModuleName { path: &self.path, build_id: &self.build_id, file: &self.file }
    }

    /// Returns what is the same for all modules with this object: the build-id, or else the path
    /// and what is known of the file.
    pub(crate) fn object_key(&self) -> Vec<u8> {
        if self.build_id.is_empty() {
            return [&self.path[..], &self.file.key()].concat();
        }
        self.build_id.clone()
    }
}

impl Stacks {
    /// Returns the number of sites, which is the highest site number.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Returns whether there are no sites.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Returns the site with a number, or an unknown one (all zeros) if there is none.
    pub fn site(&self, number: u32) -> Site {
        let index = (number as usize).wrapping_sub(1);
        self.sites.get(index).copied().unwrap_or_default()
    }

    /// Returns whether a stack has outer frames that are not in the recording.
    pub fn is_truncated(&self, number: u32) -> bool {
        self.stack(number).last().is_some_and(|(_, site)| site.flags & tape::SITE_TRUNCATED != 0)
    }

    /// Returns the numbers and sites of a stack, innermost first.
    pub fn stack(&self, number: u32) -> impl Iterator<Item = (u32, Site)> + '_ {
        let mut next = number;
        std::iter::from_fn(move || {
            if next == 0 {
                return None;
            }
            let at = next;
            let site = self.site(at);
            // The number of a parent must be smaller, so that the walk ends for any file.
            next = if site.parent < at { site.parent } else { 0 };
            Some((at, site))
        })
    }

    /// Adds a site and returns its number.
    pub fn push(&mut self, site: Site) -> u32 {
        self.sites.push(site);
        self.sites.len() as u32
    }

    /// Sets the site with a number, and adds all before it. Returns false if the number exceeds
    /// `limit`, which bounds the memory that a corrupt file can request.
    pub fn set(&mut self, number: u32, site: Site, limit: usize) -> bool {
        let index = (number as usize).wrapping_sub(1);
        if index >= limit {
            return false;
        }
        if index >= self.sites.len() {
            self.sites.resize(index + 1, Site::default());
        }
        self.sites[index] = site;
        true
    }

    /// Sets the folder in which the files of modules are searched first.
    pub(crate) fn set_root(&mut self, root: &Path) {
        let root: Arc<Path> = root.into();
        self.modules.iter_mut().for_each(|module| module.root = Some(root.clone()));
    }

    /// Sets the file name by which the program at a path was called.
    pub(crate) fn set_called(&mut self, path: &str, called: &str) {
        let called: Arc<str> = called.into();
        let own = self.modules.iter_mut().filter(|module| module.path == path.as_bytes());
        own.for_each(|module| module.called = Some(called.clone()));
    }

    /// Sets the stored names of the recording and its start time. Files of modules that are newer
    /// than the recording are not used.
    pub(crate) fn set_saved(&mut self, saved: Option<SavedNames>, since_unix_ns: u64) {
        let saved = saved.map(Arc::new);
        for module in &mut self.modules {
            (module.saved, module.since_unix_ns) = (saved.clone(), since_unix_ns);
        }
    }

    /// Searches the modules of sites that had none when they appeared, because the module may have
    /// been recorded later.
    pub fn settle(&mut self) {
        let mut by_start: Vec<(u64, u64, u32)> =
            self.modules.iter().enumerate().map(|(at, m)| (m.start, m.end, at as u32 + 1)).collect();
        by_start.sort_unstable();
        for site in self.sites.iter_mut().filter(|site| site.module == 0 && site.address != 0) {
            let next = by_start.partition_point(|&(start, ..)| start < site.address);
            if let Some(&(_, end, module)) = next.checked_sub(1).and_then(|at| by_start.get(at))
                && site.address <= end
            {
                site.module = module;
            }
        }
    }
}

/// The modules that are mapped at a position of a tape.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    by_start: BTreeMap<u64, (u64, u32)>,
    by_number: BTreeMap<u32, u64>,
}

impl Mapped {
    /// Adds a module that was mapped. `index` is its index in [`Stacks::modules`]. Modules that
    /// overlap it are removed.
    pub(crate) fn add(&mut self, module: &tape::Module, index: usize) {
        let overlapped: Vec<u64> = self
            .by_start
            .range(..module.end)
            .rev()
            .take_while(|(_, (end, _))| *end > module.start)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapped {
            self.by_start.remove(&start);
        }
        self.by_start.insert(module.start, (module.end, index as u32 + 1));
        self.by_number.insert(module.number, module.start);
    }

    /// Removes a module that was unmapped.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(start) = self.by_number.remove(&number) {
            self.by_start.remove(&start);
        }
    }

    /// Returns the index plus 1 of the module of a return address, or 0. The byte before the
    /// address counts, because a call may be the last instruction of a module.
    pub(crate) fn find(&self, address: u64) -> u32 {
        match self.by_start.range(..address).next_back() {
            Some((_, &(end, module))) if address <= end => module,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(number: u32, start: u64, end: u64) -> tape::Module {
        tape::Module { number, start, end, ..tape::Module::default() }
    }

    #[test]
    fn addresses_belong_to_the_modules_that_are_mapped() {
        let mut mapped = Mapped::default();
        mapped.add(&module(1, 0x1000, 0x2000), 0);
        mapped.add(&module(2, 0x2000, 0x3000), 1);
        assert_eq!([0x1000, 0x1001, 0x2000, 0x2001, 0x3000, 0x3001].map(|at| mapped.find(at)), [0, 1, 1, 2, 2, 0]);
        mapped.remove(1);
        assert_eq!(mapped.find(0x1800), 0);
        mapped.add(&module(3, 0x1800, 0x2800), 2);
        assert_eq!([0x1900, 0x2900].map(|at| mapped.find(at)), [3, 0]);
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let mut stacks = Stacks::default();
        stacks.push(Site { parent: 2, address: 1, ..Site::default() });
        stacks.push(Site { parent: 1, address: 2, ..Site::default() });
        assert_eq!(stacks.stack(2).count(), 2);
        assert_eq!(stacks.stack(1).count(), 1);
        assert_eq!(stacks.stack(99).count(), 1);
        assert_eq!(stacks.stack(0).count(), 0);
    }
}
