//! Call sites and the modules that their addresses lie in. A site is a frame and, through its
//! parent, the whole stack of its callers; sites are numbered from 1 and a caller's number is
//! smaller.

use crate::symbols::saved::Saved;
use heaptape_formats::tape;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A mapped ELF object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// First address of its mapping.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Run-time address minus link-time address, modulo 2^64.
    pub bias: u64,
    /// Path as the loader knew it.
    pub path: Vec<u8>,
    /// Build-id; empty when it has none.
    pub build_id: Vec<u8>,
    /// Folder that stands for `/` where the file is looked for first.
    pub root: Option<Arc<Path>>,
    /// The names that its recording keeps.
    pub saved: Option<Arc<Saved>>,
    /// When the recording began, nanoseconds since 1970; 0 when not known.
    pub since_unix_ns: u64,
    /// File name by which the program was called, where that is a link of another name.
    pub called: Option<Arc<str>>,
}

/// A frame that a file names by itself, without addresses to look up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Named {
    /// Function; empty when not known.
    pub function: Vec<u8>,
    /// Source file; empty when not known.
    pub file: Vec<u8>,
    /// Line; 0 when not known.
    pub line: u64,
}

/// One call site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// The caller's site; 0 for the outermost.
    pub parent: u32,
    /// Place in [`Stacks::modules`] plus 1; 0 when the address lies in none.
    pub module: u32,
    /// Place in [`Stacks::named`] plus 1; 0 when the file does not name it. What has a module too
    /// is in one that is no file.
    pub named: u32,
    /// Sum of the tape's `SITE_` bits.
    pub flags: u8,
    /// The return address; 0 when not known.
    pub address: u64,
}

/// All call sites of an image.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    sites: Vec<Site>,
    /// The modules, in order of appearance.
    pub modules: Vec<Module>,
    /// Frames named by the file itself.
    pub named: Vec<Named>,
}

impl Stacks {
    /// Sites known; the highest number.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// The site of a number; an unknown one (all zeros) where there is none.
    pub fn site(&self, number: u32) -> Site {
        let place = (number as usize).wrapping_sub(1);
        self.sites.get(place).copied().unwrap_or_default()
    }

    /// The stack that ends in this site, innermost first: numbers and sites.
    pub fn stack(&self, number: u32) -> impl Iterator<Item = (u32, Site)> + '_ {
        let mut next = number;
        std::iter::from_fn(move || {
            if next == 0 {
                return None;
            }
            let at = next;
            let site = self.site(at);
            // A parent's number is smaller, or the walk ends: no file can make it endless.
            next = if site.parent < at { site.parent } else { 0 };
            Some((at, site))
        })
    }

    /// Adds a site behind the last.
    pub fn push(&mut self, site: Site) -> u32 {
        self.sites.push(site);
        self.sites.len() as u32
    }

    /// Sets site `number`, making room for it; `limit` bounds what a file may ask for.
    pub fn set(&mut self, number: u32, site: Site, limit: usize) -> bool {
        let place = (number as usize).wrapping_sub(1);
        if place >= limit {
            return false;
        }
        if place >= self.sites.len() {
            self.sites.resize(place + 1, Site::default());
        }
        self.sites[place] = site;
        true
    }

    /// Files of modules are looked for below this folder first.
    pub fn set_root(&mut self, root: &Path) {
        let root: Arc<Path> = root.into();
        self.modules.iter_mut().for_each(|module| module.root = Some(root.clone()));
    }

    /// The program at this path was called by another file name.
    pub fn set_called(&mut self, path: &str, called: &str) {
        let called: Arc<str> = called.into();
        let own = self.modules.iter_mut().filter(|module| module.path == path.as_bytes());
        own.for_each(|module| module.called = Some(called.clone()));
    }

    /// Names of modules are looked for there first; their files must not be younger than the
    /// recording.
    pub fn set_saved(&mut self, saved: Option<Saved>, since_unix_ns: u64) {
        let saved = saved.map(Arc::new);
        for module in &mut self.modules {
            (module.saved, module.since_unix_ns) = (saved.clone(), since_unix_ns);
        }
    }

    /// Looks again for modules of sites that had none when they appeared: their module may have
    /// been seen only later.
    pub fn settle(&mut self) {
        let mut by_start: Vec<(u64, u64, u32)> =
            self.modules.iter().enumerate().map(|(at, m)| (m.start, m.end, at as u32 + 1)).collect();
        by_start.sort_unstable();
        for site in self.sites.iter_mut().filter(|site| site.module == 0 && site.address != 0) {
            let behind = by_start.partition_point(|&(start, ..)| start < site.address);
            if let Some(&(_, end, module)) = behind.checked_sub(1).and_then(|at| by_start.get(at))
                && site.address <= end
            {
                site.module = module;
            }
        }
    }
}

/// The modules mapped at one moment of a tape.
#[derive(Debug, Default)]
pub struct Mapped {
    by_start: BTreeMap<u64, (u64, u32)>,
    by_number: BTreeMap<u32, u64>,
}

impl Mapped {
    /// A module was mapped; `place` is its place in [`Stacks::modules`]. Whatever lay there before
    /// is gone.
    pub fn add(&mut self, module: &tape::Module, place: usize) {
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
        self.by_start.insert(module.start, (module.end, place as u32 + 1));
        self.by_number.insert(module.number, module.start);
    }

    /// A module was unmapped.
    pub fn remove(&mut self, number: u32) {
        if let Some(start) = self.by_number.remove(&number) {
            self.by_start.remove(&start);
        }
    }

    /// The module of a return address: the byte before it counts, since a call may be the last
    /// instruction of a module.
    pub fn find(&self, address: u64) -> u32 {
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
    fn addresses_belong_to_what_is_mapped_now() {
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
