//! Translates stack nodes of the traced process to site numbers of the recording, which are dense,
//! callers first, in order of appearance.
//!
//! The process may have several nodes for one (caller, address), since threads race and full tables
//! evict entries. They become one site, unless they belong to different generations of a module.
//! Nodes are untrusted: each is validated when it is read, and read once.

use crate::os::sys::Mapping;
use crate::target::module_files::ModuleFiles;
use crate::target::modules::Modules;
use formats::tape::{self, SITE_GUESSED, SITE_LOST, SITE_SIGNAL, SITE_TRUNCATED, Site, Sites, instruction};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wire::nodes;

/// Maximum number of sites in one tape record.
const SITES_PER_RECORD: usize = 1 << 16;

/// The call sites of one process.
#[derive(Debug)]
pub(crate) struct Stacks {
    mapping: Arc<Mapping>,
    /// Site of each node; 0 where it is not known yet.
    site_of_node: Vec<u32>,
    /// Site of each return address.
    known: FxHashMap<SiteKey, u32>,
    /// All sites; the first has number 1.
    sites: Vec<Site>,
    /// Module of each site; 0 for none.
    module_of_site: Vec<u32>,
    /// Number of sites that were written.
    written: usize,
    modules: Modules,
    /// The announcements of modules, each with the number of sites before it.
    announced: Vec<(usize, tape::Record)>,
    /// All nodes below this one have their site.
    resolved_below: u32,
    /// Number of events whose node was invalid.
    invalid_stacks: u64,
    /// Instructions of sites that no file describes.
    instructions_without_file: Vec<u64>,
    /// Site of a stack below another site (see [`Stacks::below`]), by that and the stack's own.
    below: FxHashMap<(u32, u32), u32>,
}

/// What distinguishes a site from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SiteKey {
    /// Site of the caller.
    parent: u32,
    address: u64,
    module: u32,
    flags: u8,
}

fn site_flags(flags: u32) -> u8 {
    let bits = [
        (nodes::GUESSED, SITE_GUESSED),
        (nodes::TRUNCATED, SITE_TRUNCATED),
        (nodes::SIGNAL, SITE_SIGNAL),
        (nodes::LOST, SITE_LOST),
    ];
    bits.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, site)| site).sum()
}

impl Stacks {
    /// Creates the sites of a process from the nodes and modules of its area. `exe` and `cwd` make
    /// the paths of modules absolute; `files` identifies them.
    pub(crate) fn new(mapping: Arc<Mapping>, files: Arc<ModuleFiles>, exe: &[u8], cwd: &[u8]) -> Stacks {
        let modules = Modules::new(Arc::clone(&mapping), files, exe, cwd);
        Stacks {
            mapping,
            site_of_node: Vec::new(),
            known: FxHashMap::default(),
            sites: Vec::new(),
            module_of_site: Vec::new(),
            written: 0,
            modules,
            announced: Vec::new(),
            resolved_below: 1,
            invalid_stacks: 0,
            instructions_without_file: Vec::new(),
            below: FxHashMap::default(),
        }
    }

    /// Appends all records about modules and sites for a new file, in their original order, and
    /// announces new modules.
    pub(crate) fn all(&mut self, out: &mut Vec<tape::Record>) {
        self.announce(&mut Vec::new());
        self.written = 0;
        for (sites_before, record) in std::mem::take(&mut self.announced) {
            self.flush_to(sites_before, out);
            out.push(record.clone());
            self.announced.push((sites_before, record));
        }
        self.flush(out);
    }

    /// Returns the stack of a site, innermost frame first: the number of each frame's module, 0 for
    /// none, and its site.
    pub(crate) fn frames(&self, site: u32) -> Vec<(u32, &Site)> {
        let mut frames = Vec::new();
        let mut next = site;
        while let Some(site) = (next as usize).checked_sub(1).and_then(|index| self.sites.get(index)) {
            frames.push((self.module(next, site.address), site));
            next = site.parent;
        }
        frames
    }

    /// Returns the module of a site: the last one announced before it that contains its address and
    /// was not unmapped.
    pub(crate) fn module(&self, site: u32, address: u64) -> u32 {
        let mut found = 0;
        for (sites_before, record) in &self.announced {
            if *sites_before >= site as usize {
                break;
            }
            match record {
                tape::Record::Module(module) if (module.start..module.end).contains(&address) => found = module.number,
                tape::Record::ModuleGone(gone) if gone.number == found => found = 0,
                _ => {}
            }
        }
        found
    }

    /// Returns the module that was announced last of those that contain an address.
    pub(crate) fn module_at(&self, address: u64) -> Option<&tape::Module> {
        self.announced.iter().rev().find_map(|(_, record)| match record {
            tape::Record::Module(module) if (module.start..module.end).contains(&address) => Some(module),
            _ => None,
        })
    }

    /// Returns the announcements of modules that were mapped or unmapped, each with the number of
    /// sites before it.
    pub(crate) fn announced(&self) -> &[(usize, tape::Record)] {
        &self.announced
    }

    /// Returns all sites so far; the first has number 1.
    pub(crate) fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Returns the number of sites that were written.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Returns the number of the last site.
    pub(crate) fn last(&self) -> u32 {
        self.sites.len() as u32
    }

    /// Returns the modules that are files, each with the sorted link-time addresses of the
    /// instructions of its sites.
    pub(crate) fn instructions(&self) -> Vec<(&tape::Module, Vec<u64>)> {
        let modules = self.announced.iter().filter_map(|(_, record)| match record {
            tape::Record::Module(module) if module.path.0.starts_with(b"/") => Some(module),
            _ => None,
        });
        let mut modules: Vec<(&tape::Module, Vec<u64>)> = modules.map(|module| (module, Vec::new())).collect();
        let indexes: FxHashMap<u32, usize> = modules.iter().enumerate().map(|(at, (of, _))| (of.number, at)).collect();
        for (site, module) in self.sites.iter().zip(&self.module_of_site) {
            let holds = |(of, _): &(&tape::Module, Vec<u64>)| (of.start..=of.end).contains(&site.address);
            // A module that was announced late may contain sites without a module.
            let index =
                indexes.get(module).copied().or_else(|| modules.iter().position(holds).filter(|_| *module == 0));
            if let Some((of, found)) = index.and_then(|index| modules.get_mut(index)) {
                found.push(instruction(site.address, site.flags).wrapping_sub(of.bias));
            }
        }
        for (_, found) in &mut modules {
            found.sort_unstable();
            found.dedup();
        }
        modules.retain(|(_, found)| !found.is_empty());
        modules
    }

    /// Returns the pairs of a site and one of its nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.site_of_node.iter().enumerate().filter(|(_, site)| **site != 0).map(|(node, site)| (*site, node as u32))
    }

    /// Returns the instructions of sites that are in no module, or in one that is not a file.
    pub(crate) fn instructions_without_file(&self) -> &[u64] {
        &self.instructions_without_file
    }

    /// Returns the number of events whose stack could not be read.
    pub(crate) fn invalid_stacks(&self) -> u64 {
        self.invalid_stacks
    }

    /// Returns the site of a node; 0 for none.
    #[inline(always)]
    pub(crate) fn site(&mut self, node: u32, out: &mut Vec<tape::Record>) -> u32 {
        match self.site_of_node.get(node as usize) {
            Some(site) if *site != 0 => *site,
            _ if node == 0 => 0,
            _ => self.resolve_new(node, out),
        }
    }

    #[cold]
    #[inline(never)]
    fn resolve_new(&mut self, node: u32, out: &mut Vec<tape::Record>) -> u32 {
        if self.modules.has_unannounced() {
            self.announce(out);
        }
        let site = self.resolve(node);
        self.invalid_stacks += u64::from(site == 0);
        site
    }

    /// Assigns sites to the node and all its callers. Callers have smaller numbers, so this ends.
    fn resolve(&mut self, node: u32) -> u32 {
        let (mut chain, mut next, mut missing_frames) = (Vec::new(), node, 0);
        let mut parent = loop {
            match self.site_of_node.get(next as usize) {
                Some(site) if *site != 0 => break *site,
                _ if next == 0 => break 0,
                _ => {}
            }
            match self.mapping.node(next) {
                Some(value) => {
                    chain.push((next, value));
                    next = value.parent;
                }
                None if next == node => return 0,
                // A missing node: its thread was killed, and the outer frames are unknown.
                None => {
                    missing_frames = nodes::TRUNCATED;
                    break 0;
                }
            }
        };
        for (number, value) in chain.into_iter().rev() {
            let flags = site_flags(value.flags | std::mem::take(&mut missing_frames));
            let module = self.modules.at(value.address, number);
            let site = self.add(SiteKey { parent, address: value.address, module, flags });
            if self.site_of_node.len() <= number as usize {
                let capacity = (number as usize + 1).next_power_of_two().max(1 << 10);
                self.site_of_node.resize(capacity.min(self.mapping.params().nodes as usize), 0);
            }
            self.site_of_node[number as usize] = site;
            parent = site;
        }
        parent
    }

    /// Returns the number of a site, and adds it if it is new.
    fn add(&mut self, key: SiteKey) -> u32 {
        let next = self.sites.len() as u32 + 1;
        let site = *self.known.entry(key).or_insert(next);
        if site == next {
            let SiteKey { parent, address, module, flags } = key;
            if !self.modules.is_file(module) {
                self.instructions_without_file.push(instruction(address, flags));
            }
            self.sites.push(Site { parent, address, flags });
            self.module_of_site.push(module);
        }
        site
    }

    /// Returns the site of an address that is no code, below the site `parent`.
    pub(crate) fn annotation(&mut self, parent: u32, address: u64) -> u32 {
        self.add(SiteKey { parent, address, module: 0, flags: 0 })
    }

    /// Returns the site of the stack of `site`, with the frames of `outer` outside of it. There are
    /// at most as many such sites as the process may have nodes. Then it returns `site` itself.
    pub(crate) fn below(&mut self, outer: u32, site: u32) -> u32 {
        let (mut chain, mut next) = (Vec::new(), site);
        let mut parent = loop {
            match self.below.get(&(outer, next)) {
                Some(known) => break *known,
                None if next == 0 => break outer,
                None => chain.push(next),
            }
            next = self.sites.get(next as usize - 1).map_or(0, |site| site.parent);
        };
        if self.below.len() + chain.len() > self.mapping.params().nodes as usize {
            return site;
        }
        for number in chain.into_iter().rev() {
            let index = number as usize - 1;
            let Some((Site { address, flags, .. }, module)) =
                self.sites.get(index).cloned().zip(self.module_of_site.get(index).copied())
            else {
                return site;
            };
            parent = self.add(SiteKey { parent, address, module, flags });
            self.below.insert((outer, number), parent);
        }
        parent
    }

    /// Appends the sites that were not written yet.
    pub(crate) fn flush(&mut self, out: &mut Vec<tape::Record>) {
        self.flush_to(self.sites.len(), out);
    }

    fn flush_to(&mut self, end: usize, out: &mut Vec<tape::Record>) {
        for sites in self.sites[self.written.min(end)..end].chunks(SITES_PER_RECORD) {
            out.push(tape::Record::Sites(Sites { first: self.written as u32 + 1, sites: sites.to_vec() }));
            self.written += sites.len();
        }
    }

    /// Appends the announcements of modules that are new. Before a module is unmapped, every node
    /// in it gets its site: later nodes belong to another module.
    pub(crate) fn announce(&mut self, out: &mut Vec<tape::Record>) {
        while let Some((record, nodes)) = self.modules.next_change() {
            for node in self.resolved_below..nodes.min(self.mapping.params().nodes) {
                if self.site_of_node.get(node as usize).is_none_or(|site| *site == 0) {
                    self.resolve(node);
                }
            }
            self.resolved_below = self.resolved_below.max(nodes);
            self.flush(out);
            self.announced.push((self.written, record.clone()));
            out.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::aside::Owner;
    use std::sync::atomic::Ordering::{Relaxed, Release};
    use wire::area::Params;
    use wire::nodes::NodeValue;

    fn stacks() -> (Arc<Mapping>, Stacks) {
        let params = Params { ring_bytes: 4096, first_ring_shift: 0, slots: 1, nodes: 1024 };
        let (mapping, _file) = Mapping::create(params).unwrap_or_else(|error| panic!("no area: {error}"));
        let mapping = Arc::new(mapping);
        let files = Arc::new(ModuleFiles::none(Owner { pid: 0, uid: 0 }, None));
        (Arc::clone(&mapping), Stacks::new(mapping, files, b"/bin/prog", b"/opt"))
    }

    fn write(mapping: &Mapping, number: u32, value: NodeValue) {
        mapping.node_cell(number).unwrap_or_else(|| panic!("no node {number}")).write(value);
    }

    fn site(parent: u32, address: u64, flags: u8) -> Site {
        Site { parent, address, flags }
    }

    #[test]
    fn callers_come_first_and_equal_nodes_merge() {
        let (mapping, mut stacks) = stacks();
        let node = |parent, address| NodeValue { parent, address, flags: 0 };
        write(&mapping, 1, node(0, 100));
        write(&mapping, 2, node(1, 200));
        write(&mapping, 3, node(2, 300));
        write(&mapping, 4, node(1, 200));
        write(&mapping, 5, NodeValue { flags: nodes::GUESSED | nodes::SIGNAL, ..node(4, 300) });
        let mut out = Vec::new();
        assert_eq!(stacks.site(3, &mut out), 3);
        assert_eq!(stacks.site(4, &mut out), 2);
        assert_eq!(stacks.site(5, &mut out), 4);
        assert_eq!(stacks.site(0, &mut out), 0);
        let flags = SITE_GUESSED | SITE_SIGNAL;
        assert_eq!(stacks.sites(), [site(0, 100, 0), site(1, 200, 0), site(2, 300, 0), site(2, 300, flags)]);
        stacks.flush(&mut out);
        stacks.flush(&mut out);
        assert_eq!(out, [tape::Record::Sites(Sites { first: 1, sites: stacks.sites().to_vec() })]);
    }

    #[test]
    fn invalid_nodes_end_the_stack() {
        let (mapping, mut stacks) = stacks();
        write(&mapping, 7, NodeValue { parent: 9, address: 1, flags: 0 });
        write(&mapping, 8, NodeValue { parent: 6, address: 800, flags: 0 });
        let mut out = Vec::new();
        for invalid_stacks in [7, 6, 1023, 1024, u32::MAX] {
            assert_eq!(stacks.site(invalid_stacks, &mut out), 0);
        }
        assert_eq!(stacks.site(8, &mut out), 1);
        assert_eq!((stacks.sites(), stacks.invalid_stacks()), (&[site(0, 800, SITE_TRUNCATED)][..], 5));
    }

    #[test]
    fn module_at_the_address_of_another_has_its_own_sites() {
        let (mapping, mut stacks) = stacks();
        let header = mapping.header();
        let module = |number: u32| mapping.module(number).unwrap_or_else(|| panic!("no module {number}"));
        module(0).publish(1000, 2000, 1000, 1, b"lib/one.so", b"\x01");
        header.modules_used.0.store(1, Release);
        write(&mapping, 1, NodeValue { parent: 0, address: 1500, flags: 0 });
        write(&mapping, 2, NodeValue { parent: 1, address: 1600, flags: 0 });
        header.nodes_used.0.store(3, Relaxed);
        let mut out = Vec::new();
        assert_eq!(stacks.site(1, &mut out), 1);
        module(0).unmapped_node.store(3, Release);
        module(1).publish(1000, 2000, 1000, 3, b"", b"");
        header.modules_used.0.store(2, Release);
        write(&mapping, 3, NodeValue { parent: 0, address: 1500, flags: 0 });
        assert_eq!(stacks.site(3, &mut out), 3);
        stacks.flush(&mut out);
        let names: Vec<_> = out
            .iter()
            .map(|record| match record {
                tape::Record::Module(module) => format!("module {} {}", module.number, module.path.lossy()),
                tape::Record::ModuleGone(gone) => format!("gone {}", gone.number),
                tape::Record::Sites(sites) => format!("sites {}+{}", sites.first, sites.sites.len()),
                other => format!("{other:?}"),
            })
            .collect();
        // Node 2 had no event yet. It still belongs to the first module.
        assert_eq!(names, ["module 1 /opt/lib/one.so", "sites 1+2", "gone 1", "module 2 /bin/prog", "sites 3+1"]);
    }
}
