//! ELF objects of a recording, over all its process images, and the frames of stacks at link-time
//! addresses in them.

use crate::load::Image;
use crate::stacks::Module;
use crate::symbols::{Symbolizer, link_address, module_of};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// An ELF object, wherever it was mapped.
#[derive(Clone, Debug)]
pub struct Object {
    /// Path as the loader knew it.
    pub path: String,
    /// Build-id; empty when it has none.
    pub build_id: Vec<u8>,
    /// Link-time addresses of its code; those of its mapping where the file cannot be read.
    pub code: Range<u64>,
    /// Whether its file is there, and still the one that was recorded.
    pub is_there: bool,
    module: Module,
}

impl Object {
    /// The file's name.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("unnamed")
    }

    /// The build-id in hexadecimal digits; `0` when it has none.
    pub fn identity(&self) -> String {
        if self.build_id.is_empty() {
            return "0".to_string();
        }
        self.build_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Start of one of its functions that is not `taken`.
    pub fn unused(&self, symbols: &mut Symbolizer, taken: impl Fn(u64) -> bool) -> Option<u64> {
        symbols.unused(&self.module, taken)
    }
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Place of its object in [`Objects::list`].
    pub object: usize,
    /// Link-time address of the call: the return address less one, so that it lies in the calling
    /// function.
    pub address: u64,
    /// Start of the function; the address itself where no function is known.
    pub start: u64,
    /// End of the function; 0 where none is known.
    pub end: u64,
}

/// The objects that were met.
#[derive(Debug, Default)]
pub struct Objects {
    /// Each once.
    pub list: Vec<Object>,
    /// By build-id, else by path.
    known: FxHashMap<Vec<u8>, usize>,
}

impl Objects {
    /// The frames of all sites of an image, by site number less one; none where an address lies in
    /// no object.
    pub fn frames(&mut self, symbols: &mut Symbolizer, image: &Image) -> Vec<Option<Frame>> {
        let stacks = image.stacks();
        // By place in the image's own list of modules.
        let mut places: Vec<Option<usize>> = vec![None; stacks.modules.len()];
        let mut frame = |number: u32| {
            let site = stacks.site(number);
            let module = module_of(stacks, &site)?;
            let place = places.get_mut((site.module as usize).wrapping_sub(1))?;
            let object = *place.get_or_insert_with(|| self.place(symbols, module));
            let address = link_address(module, &site);
            let (start, end) = symbols.extent(module, address).unwrap_or((address, 0));
            Some(Frame { object, address, start, end })
        };
        (1..=stacks.len() as u32).map(&mut frame).collect()
    }

    /// A name for each object's files: the file's, with the beginning of the build-id where others
    /// have the same.
    pub fn labels(&self) -> Vec<String> {
        let label = |(place, object): (usize, &Object)| {
            let same = |other: &&Object| other.file_name() == object.file_name();
            let rank = |object: &Object| !object.is_there;
            let first = self.list.iter().filter(same).min_by_key(|other| rank(other));
            let is_first = first.is_some_and(|first| std::ptr::eq(first, object));
            match object.identity().get(..8) {
                _ if is_first => object.file_name().to_string(),
                Some(id) => format!("{}-{id}", object.file_name()),
                None => format!("{}-{place}", object.file_name()),
            }
        };
        self.list.iter().enumerate().map(label).collect()
    }

    fn place(&mut self, symbols: &mut Symbolizer, module: &Module) -> usize {
        let mapping = module.start.wrapping_sub(module.bias)..module.end.wrapping_sub(module.bias);
        let is_there = symbols.is_there(module);
        let mut object = || Object {
            path: String::from_utf8_lossy(&module.path).into_owned(),
            build_id: module.build_id.clone(),
            is_there,
            code: symbols.code(module).unwrap_or(mapping.clone()),
            module: module.clone(),
        };
        let key = if module.build_id.is_empty() { &module.path } else { &module.build_id };
        match self.known.get(key).copied() {
            Some(place) => {
                // The same object may have been met under a path that is not its file's: a link, or
                // before it had a name.
                if is_there && !self.list[place].is_there {
                    self.list[place] = object();
                }
                place
            }
            None => {
                self.list.push(object());
                self.known.insert(key.clone(), self.list.len() - 1);
                self.list.len() - 1
            }
        }
    }
}
