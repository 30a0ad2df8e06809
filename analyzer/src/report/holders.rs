//! Who holds the live blocks of a process, in words: roots with their names, blocks with their
//! types or call sites, and the paths between them, merged where they read the same.

use crate::load::Process;
use crate::load::references::ReferenceSnapshot;
use crate::model::references::{Held, NONE, Root};
use crate::model::retained::{of_sets, only_group};
use crate::report::frames::{call_site, call_site_line, frames_of};
use crate::short_name::NameLength;
use crate::stacks::Module;
use crate::symbols::{Symbolizer, demangle};
use crate::types::{phrase_of_class, type_of_stack};
use heaptape_formats::tape::{ROOT_DATA, ROOT_MAPPING, ROOT_REGISTERS, ROOT_STACK, ROOT_THREAD_LOCAL, ReferenceBlock};
use rustc_hash::FxHashMap;

/// A number of blocks, and their requested bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub blocks: u64,
    pub bytes: u64,
}

impl Amount {
    pub fn add(&mut self, block: &ReferenceBlock) {
        self.blocks += 1;
        self.bytes += block.size;
    }

    /// Adds another amount.
    pub fn join(&mut self, other: Amount) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
    }
}

/// Something outside of blocks that holds some.
#[derive(Clone, Debug)]
pub struct RootGroup {
    /// E.g. `global cache`.
    pub name: String,
    /// E.g. `global`.
    pub kind: &'static str,
    /// Path of the module that a global is in; empty for others.
    pub module: String,
    /// What it holds: the blocks whose nearest root it is.
    pub held: Amount,
    /// The blocks that only it leads to.
    pub only: Amount,
}

/// What a block is, in words.
#[derive(Clone, Debug)]
pub struct Label {
    /// Its type, or `block of` a function.
    pub text: String,
    pub is_type: bool,
    /// Whether it is a reference count of Rust or C++, and of which.
    pub counts: Counts,
}

impl Label {
    /// Returns the offset of a word in such a block, in words, if it is a field of a structure; 0
    /// for any element of an array.
    fn field(&self, word: u32) -> u32 {
        /// Number of words of a structure, where it is not known that it is none.
        const MOST_FIELDS: u32 = 32;
        let is_array = ["[] of ", "buckets of ", "table of ", "text of "].iter().any(|part| self.text.contains(part));
        if is_array || (!self.is_type && word >= MOST_FIELDS) { 0 } else { word }
    }
}

/// Whose counts of references a block begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    None,
    /// A control block of libstdc++, after its vtable.
    Libstdcxx,
    /// A control block of libc++, whose counts are one less.
    Libcxx,
    /// Rust's `Rc` and `Arc`.
    Rust,
}

/// A call site, as far as its blocks are concerned.
#[derive(Clone, Debug)]
struct SiteText {
    /// Function and place.
    line: String,
    /// Names of its functions, innermost first.
    functions: Vec<String>,
    label: u32,
}

/// Blocks that are held in the same way.
#[derive(Clone, Debug)]
pub struct Path {
    pub amount: Amount,
    /// From the blocks outwards; the last one is the root.
    pub steps: Vec<String>,
    /// A block that is held so.
    pub example: u32,
    /// Number of the root's group.
    pub root: u32,
}

/// One step of a path from a root: the label, and the step nearer to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Step {
    label: u32,
    /// Number of the outer step; for the outermost one, of the root's group.
    outer: u32,
    is_outermost: bool,
    /// Offset of the word in the outer block, in words; 0 for the outermost one.
    word: u32,
}

/// The references of a process, with names.
pub struct Holders<'a> {
    process: &'a Process,
    pub snapshot: ReferenceSnapshot,
    pub held: Held,
    pub groups: Vec<RootGroup>,
    /// Number of the group of each root.
    group_of: Vec<u32>,
    pub labels: Vec<Label>,
    /// Number of the label of each block.
    label_of: Vec<u32>,
    sites: FxHashMap<u32, SiteText>,
    steps: Vec<Step>,
    step_of: Vec<u32>,
}

/// What names are found with.
struct Namer<'a, 's> {
    process: &'a Process,
    symbols: &'s mut Symbolizer,
    labels: Vec<Label>,
    by_text: FxHashMap<(String, Counts), u32>,
    by_vtable: FxHashMap<u64, Option<(String, Counts)>>,
    sites: FxHashMap<u32, SiteText>,
}

impl Namer<'_, '_> {
    fn label(&mut self, text: String, is_type: bool, counts: Counts) -> u32 {
        let next = self.labels.len() as u32;
        let number = *self.by_text.entry((text.clone(), counts)).or_insert(next);
        if number == next {
            self.labels.push(Label { text, is_type, counts });
        }
        number
    }

    fn site(&mut self, site: u32) -> &SiteText {
        if !self.sites.contains_key(&site) {
            let text = self.new_site(site);
            self.sites.insert(site, text);
        }
        &self.sites[&site]
    }

    fn new_site(&mut self, site: u32) -> SiteText {
        if site == 0 {
            let label = self.label("block from before the fork".into(), false, Counts::None);
            return SiteText { line: "(allocated before the fork)".into(), functions: Vec::new(), label };
        }
        let stacks = self.process.stacks();
        let frames = frames_of(self.symbols, stacks, site);
        let functions: Vec<String> = frames.iter().filter_map(|frame| frame.function.clone()).collect();
        let blamed = call_site(self.symbols, stacks, site, 1);
        let line = call_site_line(&blamed, &Default::default(), self.symbols.names());
        let class = type_of_stack(functions.iter().map(String::as_str));
        let label = match class {
            Some(class) => {
                let is_counted = class.starts_with("Rc<") || class.starts_with("Arc<");
                let counts = if is_counted { Counts::Rust } else { Counts::None };
                self.label(class, true, counts)
            }
            None => {
                let function = self.symbols.names().of(&blamed.frame.title());
                // Without arguments in the names, the counts of Rust look the same.
                let is_counted =
                    functions.iter().take(8).any(|name| name.contains("::rc::Rc") || name.contains("::sync::Arc"));
                let counts = if is_counted { Counts::Rust } else { Counts::None };
                self.label(format!("block of {function}"), false, counts)
            }
        };
        SiteText { line, functions, label }
    }

    /// Returns the class whose vtable an address is in.
    fn vtable(&mut self, address: u64) -> Option<(String, Counts)> {
        if let Some(known) = self.by_vtable.get(&address) {
            return known.clone();
        }
        let found = self.new_vtable(address);
        self.by_vtable.insert(address, found.clone());
        found
    }

    fn new_vtable(&mut self, address: u64) -> Option<(String, Counts)> {
        let module = module_at(self.process, address)?;
        let data = self.symbols.data(module, address)?;
        // Itanium C++ ABI, 2.5.2: the offset to the top, the type information, then the functions.
        if !data.symbol.starts_with("_ZTV") || data.offset < 16 {
            return None;
        }
        let name = demangle(data.symbol.as_bytes());
        // Demanglers write it in two ways.
        let plain = name.strip_prefix("vtable for ");
        let class = plain.or_else(|| name.strip_prefix("{vtable(")?.strip_suffix(")}")).unwrap_or(&name);
        let counts = match class {
            _ if class.contains("std::_Sp_counted_") => Counts::Libstdcxx,
            _ if class.contains("::__shared_ptr_") => Counts::Libcxx,
            _ => Counts::None,
        };
        Some((phrase_of_class(class), counts))
    }

    fn label_of(&mut self, block: &ReferenceBlock) -> u32 {
        if block.first.pointer != 0
            && let Some((class, counts)) = self.vtable(block.first.pointer)
        {
            return self.label(class, true, counts);
        }
        self.site(block.site).label
    }
}

fn module_at(process: &Process, address: u64) -> Option<&Module> {
    process.stacks().modules.iter().rev().find(|module| (module.start..module.end).contains(&address))
}

impl<'a> Holders<'a> {
    /// Reads the references of a process and names them. Returns `None` if there are none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(process: &'a Process, symbols: &mut Symbolizer) -> Result<Option<Holders<'a>>, String> {
        let Some(snapshot) = process.references()? else { return Ok(None) };
        let held = snapshot.graph.held(|_| false);
        let mut namer = Namer {
            process,
            symbols,
            labels: Vec::new(),
            by_text: FxHashMap::default(),
            by_vtable: FxHashMap::default(),
            sites: FxHashMap::default(),
        };
        let label_of: Vec<u32> = snapshot.graph.blocks.iter().map(|block| namer.label_of(block)).collect();
        for block in &snapshot.graph.blocks {
            namer.site(block.site);
        }
        let Namer { labels, sites, .. } = namer;
        let (groups, group_of) = root_groups(process, symbols, &snapshot);
        let mut holders = Holders {
            process,
            snapshot,
            held,
            groups,
            group_of,
            labels,
            label_of,
            sites,
            steps: Vec::new(),
            step_of: Vec::new(),
        };
        holders.sum();
        Ok(Some(holders))
    }

    pub fn process(&self) -> &'a Process {
        self.process
    }

    /// Sums up what each root holds, and merges the paths.
    fn sum(&mut self) {
        let graph = &self.snapshot.graph;
        for (block, group) in graph.blocks.iter().zip(only_group(graph, &self.group_of)) {
            self.groups.get_mut(group as usize).into_iter().for_each(|group| group.only.add(block));
        }
        let mut known: FxHashMap<Step, u32> = FxHashMap::default();
        self.step_of = vec![NONE; graph.blocks.len()];
        // Outer blocks come before those that they hold.
        for &block in &self.held.order {
            let number = block as usize;
            let group = self.group_of[self.held.root[number] as usize];
            self.groups[group as usize].held.add(&graph.blocks[number]);
            let (label, parent) = (self.label_of[number], self.held.parent[number]);
            let step = if parent == NONE {
                Step { label, outer: group, is_outermost: true, word: 0 }
            } else {
                let outer = self.step_of[parent as usize];
                // A list of nodes is one step.
                if self.steps[outer as usize].label == label {
                    self.step_of[number] = outer;
                    continue;
                }
                let holder = &self.labels[self.steps[outer as usize].label as usize];
                Step { label, outer, is_outermost: false, word: holder.field(self.held.word[number]) }
            };
            let next = self.steps.len() as u32;
            let found = *known.entry(step).or_insert(next);
            if found == next {
                self.steps.push(step);
            }
            self.step_of[number] = found;
        }
    }

    /// Returns whether a block is held by anything outside of blocks.
    pub fn is_held(&self, block: u32) -> bool {
        self.held.root.get(block as usize).is_some_and(|root| *root != NONE)
    }

    pub fn label(&self, block: u32) -> &Label {
        &self.labels[self.label_of[block as usize] as usize]
    }

    /// Returns the function and the place that allocated a block.
    pub fn site_line(&self, site: u32) -> &str {
        self.sites.get(&site).map_or("(no stack)", |text| &text.line)
    }

    /// Returns whether a function of a block's stack, or its type, has a text in its name.
    pub fn matches(&self, block: u32, text: &str) -> bool {
        let site = self.snapshot.graph.blocks[block as usize].site;
        let has = |name: &String| name.contains(text);
        self.label(block).text.contains(text)
            || self.sites.get(&site).is_some_and(|text| text.functions.iter().any(has))
    }

    /// Returns the number of the group of a held block's root.
    pub(crate) fn group_number(&self, block: u32) -> Option<u32> {
        let root = *self.held.root.get(block as usize)?;
        self.group_of.get(root as usize).copied()
    }

    /// Returns the root that a held block has.
    pub fn group(&self, block: u32) -> Option<&RootGroup> {
        self.groups.get(self.group_number(block)? as usize)
    }

    /// Returns what holds a block next: what another block is, or its root, without what only this
    /// run has in its name. Lists are one step.
    pub fn holder(&self, block: u32) -> Option<String> {
        let step = self.steps.get(*self.step_of.get(block as usize)? as usize)?;
        if !step.is_outermost {
            return Some(self.labels[self.steps[step.outer as usize].label as usize].text.clone());
        }
        let group = &self.groups[step.outer as usize];
        Some(match group.kind {
            "global" | "data" => group.name.clone(),
            "thread-local" => "thread-local data".into(),
            kind => kind.to_owned(),
        })
    }

    /// Returns the ways in which some blocks are held, those with the most bytes first.
    pub fn paths(&self, blocks: impl Iterator<Item = u32>) -> Vec<Path> {
        let mut sums: FxHashMap<u32, (Amount, u32)> = FxHashMap::default();
        for block in blocks.filter(|block| self.is_held(*block)) {
            let sum = sums.entry(self.step_of[block as usize]).or_insert((Amount::default(), block));
            sum.0.add(&self.snapshot.graph.blocks[block as usize]);
        }
        let mut paths: Vec<Path> = sums
            .into_iter()
            .map(|(step, (amount, example))| {
                let (steps, root) = self.text_of(step);
                Path { amount, steps, example, root }
            })
            .collect();
        paths.sort_by(|a, b| (b.amount.bytes, &a.steps).cmp(&(a.amount.bytes, &b.steps)));
        paths
    }

    /// Returns what each of some sets of blocks retains: its held blocks, and those that are held
    /// only through them.
    pub fn retained<'b>(&self, sets: impl ExactSizeIterator<Item = &'b [u32]>) -> Vec<Amount> {
        let graph = &self.snapshot.graph;
        let (mut set_of, count) = (vec![NONE; graph.blocks.len()], sets.len());
        for (set, blocks) in (0..).zip(sets) {
            blocks.iter().for_each(|block| set_of[*block as usize] = set);
        }
        let sum = |blocks: Vec<u32>| {
            let mut amount = Amount::default();
            blocks.iter().for_each(|block| amount.add(&graph.blocks[*block as usize]));
            amount
        };
        of_sets(graph, &set_of, count).into_iter().map(sum).collect()
    }

    /// Returns the lines of a path, and its root. Each line but the first holds the one before, and
    /// says at which offset.
    fn text_of(&self, step: u32) -> (Vec<String>, u32) {
        /// Lines that are shown of a path, from each end.
        const SHOWN: usize = 6;
        let (mut lines, mut next, mut word) = (Vec::new(), step, 0);
        loop {
            let step = self.steps[next as usize];
            let text = &self.labels[step.label as usize].text;
            lines.push(if word == 0 { text.clone() } else { format!("{text} (+{})", 8 * u64::from(word)) });
            (next, word) = (step.outer, step.word);
            if step.is_outermost {
                lines.push(self.groups[step.outer as usize].name.clone());
                if lines.len() > 2 * SHOWN + 1 {
                    let hidden = lines.len() - 2 * SHOWN;
                    lines.splice(SHOWN..SHOWN + hidden, [format!("… {hidden} more")]);
                }
                return (lines, step.outer);
            }
        }
    }
}

fn root_groups(
    process: &Process,
    symbols: &mut Symbolizer,
    snapshot: &ReferenceSnapshot,
) -> (Vec<RootGroup>, Vec<u32>) {
    let mut groups: Vec<RootGroup> = Vec::new();
    let mut known: FxHashMap<(u64, u64), u32> = FxHashMap::default();
    let mut group_of = Vec::with_capacity(snapshot.graph.roots.len());
    for root in &snapshot.graph.roots {
        let (key, group) = root_group(process, symbols, snapshot, root);
        let next = groups.len() as u32;
        let number = *known.entry(key).or_insert(next);
        if number == next {
            groups.push(group);
        }
        group_of.push(number);
    }
    (groups, group_of)
}

/// Returns the group of a root, with a key that no other group has.
fn root_group(
    process: &Process,
    symbols: &mut Symbolizer,
    snapshot: &ReferenceSnapshot,
    root: &Root,
) -> ((u64, u64), RootGroup) {
    let region = &snapshot.graph.regions[root.region as usize];
    let name = snapshot.head.names.get((region.name as usize).wrapping_sub(1));
    let path = name.map(|name| name.lossy().into_owned()).unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    let group = |name: String, kind, module: &str| RootGroup {
        name,
        kind,
        module: module.to_owned(),
        held: Amount::default(),
        only: Amount::default(),
    };
    let thread = || {
        let named = process.tape.threads.values().find(|thread| thread.tid == region.thread);
        let name = named.map(|thread| thread.name.lossy().into_owned()).filter(|name| !name.is_empty());
        name.map_or_else(|| format!("thread {}", region.thread), |name| format!("thread {} {name}", region.thread))
    };
    let whole = (u64::from(region.kind) << 32 | u64::from(region.thread), region.start);
    match region.kind {
        ROOT_DATA => {
            // The zeros of a module are after what the loader lists of its file.
            let of_path = |module: &&Module| module.path == path.as_bytes();
            let module = module_at(process, root.address)
                .filter(of_path)
                .or_else(|| process.stacks().modules.iter().rev().find(of_path));
            let data = module.and_then(|module| Some((module, symbols.data(module, root.address)?)));
            match data {
                Some((module, data)) => {
                    let full = demangle(data.symbol.as_bytes());
                    let short = if symbols.names() == NameLength::Full { full } else { phrase_of_class(&full) };
                    ((module.bias, data.start), group(format!("global {short}"), "global", &path))
                }
                None => ((u64::from(region.name), u64::MAX), group(format!("data of {file}"), "data", &path)),
            }
        }
        ROOT_THREAD_LOCAL => (whole, group(format!("thread-local data of {}", thread()), "thread-local", "")),
        ROOT_STACK => (whole, group(format!("stack of {}", thread()), "stack", "")),
        ROOT_REGISTERS => (whole, group(format!("registers of {}", thread()), "registers", "")),
        ROOT_MAPPING if path.is_empty() => (whole, group(format!("mapping at {:#x}", region.start), "mapping", "")),
        _ => (whole, group(format!("mapping {path} at {:#x}", region.start), "mapping", "")),
    }
}
