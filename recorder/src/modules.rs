//! Which ELF objects are mapped, from which node on and until which.

use crate::sys::Mapping;
use formats::tape::{self, Module, ModuleGone};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::limits;
use wire::modules::{MAX_BUILD_ID, MAX_PATH, ModuleEntry};

#[derive(Clone, Copy, Debug)]
struct Known {
    start: u64,
    end: u64,
    first_node: u32,
    gone_told: bool,
    /// The kernel's own, mapped from no file.
    is_virtual: bool,
}

/// The modules of one process image as far as they were announced.
#[derive(Debug)]
pub struct Modules {
    mapping: Arc<Mapping>,
    known: Vec<Known>,
    /// The module that was found last: stacks stay in few.
    last: usize,
    exe: Vec<u8>,
    cwd: Vec<u8>,
}

impl Modules {
    /// Reads the module table of this area.
    pub fn new(mapping: Arc<Mapping>, exe: &[u8], cwd: &[u8]) -> Modules {
        Modules { mapping, known: Vec::new(), last: 0, exe: exe.to_vec(), cwd: cwd.to_vec() }
    }

    /// Whether a module was added that was not announced.
    pub fn has_news(&self) -> bool {
        let used = self.mapping.header().modules_used.0.load(Acquire).min(limits::MODULES);
        used as usize > self.known.len() && self.entry(self.known.len()).is_some_and(ModuleEntry::is_ready)
    }

    fn entry(&self, place: usize) -> Option<&ModuleEntry> {
        self.mapping.module(place as u32)
    }

    /// Number of the module in which `address` of this node lies; 0 for none.
    pub fn at(&mut self, address: u64, node: u32) -> u32 {
        let holds = |place: usize| {
            let inside = |module: &Known| (module.start..module.end).contains(&address) && module.first_node <= node;
            self.known.get(place).is_some_and(inside)
                && self.entry(place).is_some_and(|entry| match entry.unmapped_node.load(Acquire) {
                    0 => true,
                    gone => node < gone,
                })
        };
        if !holds(self.last) {
            match (0..self.known.len()).rev().find(|place| holds(*place)) {
                Some(place) => self.last = place,
                None => return 0,
            }
        }
        self.last as u32 + 1
    }

    /// Whether a file describes the code of this module.
    pub fn is_file(&self, number: u32) -> bool {
        let known = (number as usize).checked_sub(1).and_then(|place| self.known.get(place));
        known.is_some_and(|module| !module.is_virtual)
    }

    /// The next thing to announce, and the node before which it was so: nodes below it belong to
    /// what was announced before.
    pub fn next_news(&mut self) -> Option<(tape::Record, u32)> {
        for place in 0..self.known.len() {
            if self.known[place].gone_told {
                continue;
            }
            let gone = self.entry(place).map_or(0, |entry| entry.unmapped_node.load(Acquire));
            if gone != 0 {
                self.known[place].gone_told = true;
                return Some((tape::Record::ModuleGone(ModuleGone { number: place as u32 + 1 }), gone));
            }
        }
        if !self.has_news() {
            return None;
        }
        let place = self.known.len();
        let (module, first_node) = self.read(place)?;
        let (start, end, is_virtual) = (module.start, module.end, tape::is_virtual(&module.path.0));
        self.known.push(Known { start, end, first_node, gone_told: false, is_virtual });
        Some((tape::Record::Module(module), 0))
    }

    fn read(&self, place: usize) -> Option<(Module, u32)> {
        let entry = self.entry(place)?;
        let (mut path, mut build_id) = ([0; MAX_PATH], [0; MAX_BUILD_ID]);
        let (length, id_length) = (entry.path(&mut path), entry.build_id(&mut build_id));
        let module = Module {
            number: place as u32 + 1,
            start: entry.start.load(Relaxed),
            end: entry.end.load(Relaxed),
            bias: entry.bias.load(Relaxed),
            path: self.absolute(&path[..length]).into(),
            build_id: build_id[..id_length].into(),
        };
        Some((module, entry.first_node.load(Relaxed)))
    }

    /// The loader knows the program itself by no name, and others as they were asked for.
    fn absolute(&self, path: &[u8]) -> Vec<u8> {
        match path.first() {
            None => self.exe.clone(),
            Some(b'/') => path.to_vec(),
            Some(_) if path.contains(&b'/') => [&self.cwd, &b"/"[..], path].concat(),
            Some(_) => path.to_vec(),
        }
    }
}
