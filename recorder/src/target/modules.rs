//! The ELF objects that are mapped into a process, each with the range of stack table nodes for
//! which it is valid.

use crate::os::aside::Owner;
use crate::os::sys::Mapping;
use crate::target::maps;
use crate::target::module_files::ModuleFiles;
use formats::tape::field::Added;
use formats::tape::{self, FileId, Module, ModuleGone};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::limits;
use wire::modules::{MAX_BUILD_ID, MAX_PATH, ModuleEntry, UNNAMED};

#[derive(Clone, Copy, Debug)]
struct KnownModule {
    start: u64,
    end: u64,
    first_node: u32,
    gone_announced: bool,
    /// Whether the module is the kernel's own and not mapped from a file.
    is_virtual: bool,
}

/// The modules of one process that have been announced.
#[derive(Debug)]
pub(crate) struct Modules {
    mapping: Arc<Mapping>,
    known: Vec<KnownModule>,
    /// Index of the module that was found last: stacks have few modules.
    last: usize,
    files: Arc<ModuleFiles>,
    exe: Vec<u8>,
    cwd: Vec<u8>,
}

impl Modules {
    /// Creates a reader of the module table of an area.
    pub(crate) fn new(mapping: Arc<Mapping>, files: Arc<ModuleFiles>, exe: &[u8], cwd: &[u8]) -> Modules {
        Modules { mapping, known: Vec::new(), last: 0, files, exe: exe.to_vec(), cwd: cwd.to_vec() }
    }

    /// Returns whether a module was added that has not been announced.
    pub(crate) fn has_unannounced(&self) -> bool {
        self.used() as usize > self.known.len() && self.entry(self.known.len()).is_some_and(ModuleEntry::is_ready)
    }

    fn used(&self) -> u32 {
        self.mapping.header().modules_used.0.load(Acquire).min(limits::MODULES)
    }

    fn entry(&self, index: usize) -> Option<&ModuleEntry> {
        self.mapping.module(index as u32)
    }

    /// Returns the number of the module that contains `address` of this node; 0 for none.
    pub(crate) fn at(&mut self, address: u64, node: u32) -> u32 {
        let holds = |index: usize| {
            let inside =
                |module: &KnownModule| (module.start..module.end).contains(&address) && module.first_node <= node;
            self.known.get(index).is_some_and(inside)
                && self.entry(index).is_some_and(|entry| match entry.unmapped_node.load(Acquire) {
                    0 => true,
                    gone => node < gone,
                })
        };
        if !holds(self.last) {
            match (0..self.known.len()).rev().find(|index| holds(*index)) {
                Some(index) => self.last = index,
                None => return 0,
            }
        }
        self.last as u32 + 1
    }

    /// Returns whether a file describes the code of this module.
    pub(crate) fn is_file(&self, number: u32) -> bool {
        let known = (number as usize).checked_sub(1).and_then(|index| self.known.get(index));
        known.is_some_and(|module| !module.is_virtual)
    }

    /// Returns the next record to announce, and the first node for which it is valid: nodes below
    /// that one belong to what was announced before.
    pub(crate) fn next_change(&mut self) -> Option<(tape::Record, u32)> {
        for index in 0..self.known.len() {
            if self.known[index].gone_announced {
                continue;
            }
            let gone = self.entry(index).map_or(0, |entry| entry.unmapped_node.load(Acquire));
            if gone != 0 {
                self.known[index].gone_announced = true;
                self.files.unmapped();
                return Some((tape::Record::ModuleGone(ModuleGone { number: index as u32 + 1 }), gone));
            }
        }
        if !self.has_unannounced() {
            self.files.announced();
            return None;
        }
        let index = self.known.len();
        let (mut module, first_node) = self.read(index)?;
        let is_mapped = || self.entry(index).is_some_and(|entry| entry.unmapped_node.load(Acquire) == 0);
        self.files.identify(&mut module, self.ready(), &is_mapped);
        let (start, end, is_virtual) = (module.start, module.end, tape::is_virtual(&module.path.0));
        self.known.push(KnownModule { start, end, first_node, gone_announced: false, is_virtual });
        Some((tape::Record::Module(module), 0))
    }

    /// Returns how many modules are complete, of those in order.
    fn ready(&self) -> u32 {
        let is_ready = |index: &u32| self.mapping.module(*index).is_some_and(ModuleEntry::is_ready);
        (self.known.len() as u32..self.used()).take_while(is_ready).last().map_or(0, |index| index + 1)
    }

    fn read(&self, index: usize) -> Option<(Module, u32)> {
        let entry = self.entry(index)?;
        let (mut path, mut build_id) = ([0; MAX_PATH], [0; MAX_BUILD_ID]);
        let (length, id_length) = (entry.path(&mut path), entry.build_id(&mut build_id));
        let module = Module {
            number: index as u32 + 1,
            start: entry.start.load(Relaxed),
            end: entry.end.load(Relaxed),
            bias: entry.bias.load(Relaxed),
            path: self.absolute(&path[..length], entry.start.load(Relaxed)).into(),
            build_id: build_id[..id_length].into(),
            // A build-id says more.
            file: Added(FileId {
                head: if id_length == 0 { entry.head.load(Relaxed) } else { 0 },
                ..FileId::default()
            }),
        };
        Some((module, entry.first_node.load(Relaxed)))
    }

    /// Returns the absolute path of a module. For the loader the program itself has no name, and
    /// other modules have the name that was requested. Where the library knows no names (libcs
    /// without `_dl_find_object`, as musl), the kernel's map has them while the process lives.
    fn absolute(&self, path: &[u8], start: u64) -> Vec<u8> {
        match path.first() {
            None => path_at(self.files.owner(), start).unwrap_or_else(|| self.exe.clone()),
            Some(_) if path == UNNAMED => path_at(self.files.owner(), start).unwrap_or_default(),
            Some(b'/') => path.to_vec(),
            Some(_) if path.contains(&b'/') => [&self.cwd, &b"/"[..], path].concat(),
            Some(_) => path.to_vec(),
        }
    }
}

/// Returns the path of the file that is mapped at an address of a process, while that lives.
fn path_at(owner: Owner, address: u64) -> Option<Vec<u8>> {
    let text = maps::read_aside(owner);
    text.split(|byte| *byte == b'\n').find_map(|line| mapped_path(line, address)).map(<[u8]>::to_vec)
}

/// Returns the path in a line of `maps`, if the line is about an address.
fn mapped_path(line: &[u8], address: u64) -> Option<&[u8]> {
    // A path may have bytes that are no UTF-8; what stands before it is ASCII.
    let (fields, path) = line.split_at_checked(line.iter().position(|byte| *byte == b'/')?)?;
    let mapping = maps::parse(std::str::from_utf8(fields).ok()?)?;
    (mapping.start..mapping.end).contains(&address).then(|| path.strip_suffix(b" (deleted)").unwrap_or(path))
}
