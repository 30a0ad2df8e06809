//! ELF objects of a recording, over all its processes, and frames of stacks at link-time addresses
//! in them.

use crate::load::Process;
use crate::stacks::Module;
use crate::symbols::{Symbolizer, link_address, module_of};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// An ELF object at any mapping address.
#[derive(Clone, Debug)]
pub struct Object {
    /// Path under which the loader mapped it.
    pub path: String,
    /// Build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// Link-time addresses of its code; those of its mapping if the file cannot be read.
    pub code: Range<u64>,
    /// Whether its file exists and is still the recorded one.
    pub is_there: bool,
    module: Module,
}

impl Object {
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("unnamed")
    }

    /// Returns the build id in hexadecimal digits; `0` if it has none.
    pub fn identity(&self) -> String {
        if self.build_id.is_empty() {
            return "0".to_string();
        }
        self.build_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the start of one of its functions that is not `taken`.
    pub fn unused(&self, symbols: &mut Symbolizer, taken: impl Fn(u64) -> bool) -> Option<u64> {
        symbols.unused(&self.module, taken)
    }
}

/// A frame of a stack in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Index of its object in [`Objects::list`].
    pub object: usize,
    /// Link-time address of the call: the return address less one, so that it is in the calling
    /// function.
    pub address: u64,
    /// Start of the function; the address itself if the function is unknown.
    pub start: u64,
    /// End of the function; 0 if it is unknown.
    pub end: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub list: Vec<Object>,
    /// Indexes of the objects by build id, or by path without one.
    known: FxHashMap<Vec<u8>, usize>,
}

impl Objects {
    /// Returns the frames of all sites of a process, by site number less one; `None` for an address
    /// that is in no object.
    pub(crate) fn frames(&mut self, symbols: &mut Symbolizer, process: &Process) -> Vec<Option<Frame>> {
        let stacks = process.stacks();
        // By index in the process's own list of modules.
        let mut indexes: Vec<Option<usize>> = vec![None; stacks.modules.len()];
        let mut frame = |number: u32| {
            let site = stacks.site(number);
            let module = module_of(stacks, &site)?;
            let index = indexes.get_mut((site.module as usize).wrapping_sub(1))?;
            let object = *index.get_or_insert_with(|| self.object_index(symbols, module));
            let address = link_address(module, &site);
            let (start, end) = symbols.extent(module, address).unwrap_or((address, 0));
            Some(Frame { object, address, start, end })
        };
        (1..=stacks.len() as u32).map(&mut frame).collect()
    }

    /// Returns a name for the files of each object: its file name, with the beginning of the build
    /// id if others have the same.
    pub(crate) fn labels(&self) -> Vec<String> {
        let label = |(index, object): (usize, &Object)| {
            let same = |other: &&Object| other.file_name() == object.file_name();
            let rank = |object: &Object| !object.is_there;
            let first = self.list.iter().filter(same).min_by_key(|other| rank(other));
            let is_first = first.is_some_and(|first| std::ptr::eq(first, object));
            match object.identity().get(..8) {
                _ if is_first => object.file_name().to_string(),
                Some(id) => format!("{}-{id}", object.file_name()),
                None => format!("{}-{index}", object.file_name()),
            }
        };
        self.list.iter().enumerate().map(label).collect()
    }

    fn object_index(&mut self, symbols: &mut Symbolizer, module: &Module) -> usize {
        let mapping = module.start.wrapping_sub(module.bias)..module.end.wrapping_sub(module.bias);
        let is_there = symbols.is_there(module);
        let mut object = || Object {
            path: String::from_utf8_lossy(&module.path).into_owned(),
            build_id: module.build_id.clone(),
            is_there,
            code: symbols.code(module).unwrap_or(mapping.clone()),
            module: module.clone(),
        };
        let key = module.object_key();
        match self.known.get(&key).copied() {
            Some(index) => {
                // The same object may have been met under a path that is not its file's: a link, or
                // before it had a name.
                if is_there && !self.list[index].is_there {
                    self.list[index] = object();
                }
                index
            }
            None => {
                self.list.push(object());
                self.known.insert(key, self.list.len() - 1);
                self.list.len() - 1
            }
        }
    }
}
