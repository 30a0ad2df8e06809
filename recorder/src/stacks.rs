//! Stack nodes of the traced process -> site numbers of the recording: dense, callers first, in
//! order of appearance.
//!
//! The process may hold several nodes for one (caller, address): threads race, full tables forget.
//! They become one site, unless they lie in different generations of a module. Nodes are bytes of a
//! stranger: each is judged when it is read, and read once.

use crate::modules::Modules;
use crate::sys::Mapping;
use formats::tape::{self, SITE_GUESSED, SITE_SIGNAL, SITE_TRUNCATED, Site, Sites, instruction};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wire::nodes;

/// Most sites of one tape record.
const SITES_A_RECORD: usize = 1 << 16;

/// The sites of one process image.
#[derive(Debug)]
pub struct Stacks {
    mapping: Arc<Mapping>,
    /// Site of each node; 0 where none is known yet.
    of_node: Vec<u32>,
    /// (caller's site, address, module, flags) -> site.
    known: FxHashMap<(u32, u64, u32, u8), u32>,
    /// All sites; number 1 is the first.
    sites: Vec<Site>,
    /// The module of each, 0 for none.
    of_module: Vec<u32>,
    /// How many of them were written.
    written: usize,
    modules: Modules,
    /// What was announced about modules, and how many sites came before it.
    announced: Vec<(usize, tape::Record)>,
    /// Nodes below this were all looked at.
    looked_at: u32,
    /// Events whose node could not be.
    bad: u64,
    /// Instructions of sites that no file describes.
    unplaced: Vec<u64>,
}

fn site_flags(flags: u32) -> u8 {
    let bits = [(nodes::GUESSED, SITE_GUESSED), (nodes::TRUNCATED, SITE_TRUNCATED), (nodes::SIGNAL, SITE_SIGNAL)];
    bits.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, site)| site).sum()
}

impl Stacks {
    /// Reads nodes and modules of this area. `exe` and `cwd` make modules' paths absolute.
    pub fn new(mapping: Arc<Mapping>, exe: &[u8], cwd: &[u8]) -> Stacks {
        let modules = Modules::new(Arc::clone(&mapping), exe, cwd);
        let (of_node, known, sites, of_module, announced, unplaced) = Default::default();
        Stacks {
            mapping,
            of_node,
            known,
            sites,
            of_module,
            written: 0,
            modules,
            announced,
            looked_at: 1,
            bad: 0,
            unplaced,
        }
    }

    /// Everything that a new file must say about modules and sites, in the order in which it was
    /// said before; what is new is said too.
    pub fn all(&mut self, out: &mut Vec<tape::Record>) {
        self.announce(&mut Vec::new());
        self.written = 0;
        for (before, record) in std::mem::take(&mut self.announced) {
            self.flush_to(before, out);
            out.push(record.clone());
            self.announced.push((before, record));
        }
        self.flush(out);
    }

    /// The stack of a site, innermost first: the number of each frame's module, 0 for none, and its
    /// site.
    pub fn frames(&self, site: u32) -> Vec<(u32, &Site)> {
        let mut frames = Vec::new();
        let mut next = site;
        while let Some(site) = (next as usize).checked_sub(1).and_then(|place| self.sites.get(place)) {
            frames.push((self.module(next, site.address), site));
            next = site.parent;
        }
        frames
    }

    /// The module that a site lies in: the last one announced before it that holds its address and
    /// had not gone.
    pub fn module(&self, site: u32, address: u64) -> u32 {
        let mut found = 0;
        for (before, record) in &self.announced {
            if *before >= site as usize {
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

    /// The modules that were announced, with how many sites came before each, and those that went.
    pub fn announced(&self) -> &[(usize, tape::Record)] {
        &self.announced
    }

    /// All sites so far; number 1 is the first.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Number of the last site.
    pub fn last(&self) -> u32 {
        self.sites.len() as u32
    }

    /// The modules that are files, each with the link-time addresses of the instructions that sites
    /// hold of it, in order.
    pub fn instructions(&self) -> Vec<(&tape::Module, Vec<u64>)> {
        let modules = self.announced.iter().filter_map(|(_, record)| match record {
            tape::Record::Module(module) if module.path.0.starts_with(b"/") => Some(module),
            _ => None,
        });
        let mut modules: Vec<(&tape::Module, Vec<u64>)> = modules.map(|module| (module, Vec::new())).collect();
        let places: FxHashMap<u32, usize> = modules.iter().enumerate().map(|(at, (of, _))| (of.number, at)).collect();
        for (site, module) in self.sites.iter().zip(&self.of_module) {
            let holds = |(of, _): &(&tape::Module, Vec<u64>)| (of.start..=of.end).contains(&site.address);
            // A module that was announced late holds sites that had none.
            let place = places.get(module).copied().or_else(|| modules.iter().position(holds).filter(|_| *module == 0));
            if let Some((of, found)) = place.and_then(|place| modules.get_mut(place)) {
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

    /// A node of each site that has one.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.of_node.iter().enumerate().filter(|(_, site)| **site != 0).map(|(node, site)| (*site, node as u32))
    }

    /// Instructions of sites that lie in no module, or in one that is no file.
    pub fn unplaced(&self) -> &[u64] {
        &self.unplaced
    }

    /// Events whose stack could not be read.
    pub fn bad(&self) -> u64 {
        self.bad
    }

    /// The site of a node; 0 for none.
    #[inline(always)]
    pub fn site(&mut self, node: u32, out: &mut Vec<tape::Record>) -> u32 {
        match self.of_node.get(node as usize) {
            Some(site) if *site != 0 => *site,
            _ if node == 0 => 0,
            _ => self.meet(node, out),
        }
    }

    #[cold]
    #[inline(never)]
    fn meet(&mut self, node: u32, out: &mut Vec<tape::Record>) -> u32 {
        if self.modules.has_news() {
            self.announce(out);
        }
        let site = self.resolve(node);
        self.bad += u64::from(site == 0);
        site
    }

    /// Gives the node and all its callers sites. Callers have smaller numbers, so this ends.
    fn resolve(&mut self, node: u32) -> u32 {
        let (mut chain, mut next, mut cut) = (Vec::new(), node, 0);
        let mut parent = loop {
            match self.of_node.get(next as usize) {
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
                // A hole: its thread was killed, and the outer frames with it.
                None => {
                    cut = nodes::TRUNCATED;
                    break 0;
                }
            }
        };
        for (number, value) in chain.into_iter().rev() {
            let flags = site_flags(value.flags | std::mem::take(&mut cut));
            let module = self.modules.at(value.address, number);
            let key = (parent, value.address, module, flags);
            let next = self.sites.len() as u32 + 1;
            let site = *self.known.entry(key).or_insert(next);
            if site == next {
                if !self.modules.is_file(module) {
                    self.unplaced.push(instruction(value.address, flags));
                }
                self.sites.push(Site { parent, address: value.address, flags });
                self.of_module.push(module);
            }
            if self.of_node.len() <= number as usize {
                let room = (number as usize + 1).next_power_of_two().max(1 << 10);
                self.of_node.resize(room.min(self.mapping.params().nodes as usize), 0);
            }
            self.of_node[number as usize] = site;
            parent = site;
        }
        parent
    }

    /// Appends the sites that were not written yet.
    pub fn flush(&mut self, out: &mut Vec<tape::Record>) {
        self.flush_to(self.sites.len(), out);
    }

    fn flush_to(&mut self, end: usize, out: &mut Vec<tape::Record>) {
        for sites in self.sites[self.written.min(end)..end].chunks(SITES_A_RECORD) {
            out.push(tape::Record::Sites(Sites { first: self.written as u32 + 1, sites: sites.to_vec() }));
            self.written += sites.len();
        }
    }

    /// Appends what is new about modules. Before one goes, every node that lies in it gets its
    /// site: later ones mean something else.
    pub fn announce(&mut self, out: &mut Vec<tape::Record>) {
        while let Some((record, nodes)) = self.modules.next_news() {
            for node in self.looked_at..nodes.min(self.mapping.params().nodes) {
                if self.of_node.get(node as usize).is_none_or(|site| *site == 0) {
                    self.resolve(node);
                }
            }
            self.looked_at = self.looked_at.max(nodes);
            self.flush(out);
            self.announced.push((self.written, record.clone()));
            out.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::{Relaxed, Release};
    use wire::area::Params;
    use wire::nodes::NodeValue;

    fn stacks() -> (Arc<Mapping>, Stacks) {
        let params = Params { ring_bytes: 4096, slots: 1, nodes: 1024 };
        let (mapping, _file) = Mapping::create(params).unwrap_or_else(|error| panic!("no area: {error}"));
        let mapping = Arc::new(mapping);
        (Arc::clone(&mapping), Stacks::new(mapping, b"/bin/prog", b"/opt"))
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
    fn hostile_nodes_end_the_stack() {
        let (mapping, mut stacks) = stacks();
        write(&mapping, 7, NodeValue { parent: 9, address: 1, flags: 0 });
        write(&mapping, 8, NodeValue { parent: 6, address: 800, flags: 0 });
        let mut out = Vec::new();
        for bad in [7, 6, 1023, 1024, u32::MAX] {
            assert_eq!(stacks.site(bad, &mut out), 0);
        }
        assert_eq!(stacks.site(8, &mut out), 1);
        assert_eq!((stacks.sites(), stacks.bad()), (&[site(0, 800, SITE_TRUNCATED)][..], 5));
    }

    #[test]
    fn a_module_at_the_address_of_another_has_its_own_sites() {
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
        // Node 2 had no event yet: it still belongs to the first module.
        assert_eq!(names, ["module 1 /opt/lib/one.so", "sites 1+2", "gone 1", "module 2 /bin/prog", "sites 3+1"]);
    }
}
