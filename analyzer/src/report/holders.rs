//! Who holds the live blocks of a process, in words: roots with their names, blocks with their
//! types or call sites, and the paths between them, merged where they read the same.

mod elements;
mod shared;
mod ways;

use super::core_references;
use crate::load::Process;
use crate::load::references::ReferenceSnapshot;
use crate::model::narrow::Narrow;
use crate::model::references::{NONE, Root, Via};
use crate::model::retained::{of_sets, only_group};
use crate::report::frames::{call_site, call_site_line, frames_of};
use crate::short_name::NameLength;
use crate::stacks::Module;
use crate::symbols::{Frame, Symbolizer, demangle};
use crate::types::{phrase_of_class, type_of_stack};
use heaptape_formats::tape::{
    ROOT_DATA, ROOT_EARLIER, ROOT_MAPPING, ROOT_REGISTERS, ROOT_STACK, ROOT_THREAD_LOCAL, ReferenceBlock,
};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

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
#[derive(Clone, Debug, Default)]
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
    /// The group that leads to most of what it holds as well, and to how much of that, once it was
    /// asked for ([`Holders::share`]); `None` if only it leads to nearly all, and for small ones.
    pub also: Option<(u32, Amount)>,
}

impl RootGroup {
    /// Returns the group of what another one leads to by words in unused memory only.
    fn stale(of: &RootGroup) -> RootGroup {
        let name = format!("unused memory under {}", of.name);
        RootGroup { name, kind: STALE, module: of.module.clone(), ..RootGroup::default() }
    }
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
    pub(crate) fn field(&self, word: u32) -> u32 {
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
    /// Number of the first call site whose stack has the same functions and lines: a compiler may have
    /// made several of one, e.g. when it unrolled a loop.
    alike: u32,
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

/// Kind of the groups of [`RootGroup`] that hold what only doubtful words lead to.
pub const STALE: &str = "stale";

/// One step of a path from a root: the label, and the step nearer to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Step {
    label: u32,
    /// Number of the outer step; for the outermost one, of the root's group.
    outer: u32,
    is_outermost: bool,
    /// Number of the root's group.
    root: u32,
    /// Offset of the word in the outer block, in words; 0 for the outermost one.
    word: u32,
}

/// The references of a process, with names.
pub struct Holders<'a> {
    process: &'a Process,
    pub snapshot: ReferenceSnapshot,
    pub groups: Vec<RootGroup>,
    /// Number of the group of each root.
    group_of: Vec<u32>,
    pub labels: Vec<Label>,
    /// Number of the label of each block.
    label_of: Narrow,
    sites: FxHashMap<u32, SiteText>,
    steps: Vec<Step>,
    /// Number of the step of each block, or [`NONE`] if nothing holds it.
    step_of: Narrow,
}

/// What names are found with.
struct Namer<'a, 's> {
    process: &'a Process,
    symbols: &'s mut Symbolizer,
    labels: Vec<Label>,
    by_text: FxHashMap<(String, Counts), u32>,
    by_vtable: FxHashMap<u64, Option<(String, Counts)>>,
    sites: FxHashMap<u32, SiteText>,
    /// The first call site with the functions and lines of a stack, by their hash.
    by_stack: FxHashMap<u64, u32>,
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
            return SiteText { line: "(allocated before the fork)".into(), functions: Vec::new(), alike: 0, label };
        }
        let stacks = self.process.stacks();
        let frames = frames_of(self.symbols, stacks, site);
        let functions: Vec<String> = frames.iter().filter_map(|frame| frame.function.clone()).collect();
        let blamed = call_site(self.symbols, stacks, site, 1);
        let line = call_site_line(&blamed, &Default::default(), self.symbols.names());
        let place = |frame: &Frame| (frame.title(), frame.file.clone(), frame.line);
        let stack = FxBuildHasher.hash_one(frames.iter().map(place).collect::<Vec<_>>());
        let alike = *self.by_stack.entry(stack).or_insert(site);
        let class = type_of_stack(functions.iter().map(String::as_str));
        let label = match class {
            Some(class) => {
                let is_counted = class.starts_with("Rc<") || class.starts_with("Arc<");
                let counts = if is_counted { Counts::Rust } else { Counts::None };
                self.label(class, true, counts)
            }
            // The size stands for the site.
            None if self.process.core.is_some() && !self.process.has_events() => {
                self.label(line.clone(), false, Counts::None)
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
        SiteText { line, functions, alike, label }
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
    let modules = || process.stacks().modules.iter().rev().filter(|module| module.start <= address);
    // The loader lists a program up to the first gap between its segments.
    modules().find(|module| address < module.end).or_else(|| modules().max_by_key(|module| module.start))
}

impl<'a> Holders<'a> {
    /// Reads the references of a process and names them. Returns `None` if there are none.
    pub fn of(process: &'a Process, symbols: &mut Symbolizer) -> Result<Option<Holders<'a>>, String> {
        let Some(mut snapshot) = core_references::of(process)? else { return Ok(None) };
        let mut namer = Namer {
            process,
            symbols,
            labels: Vec::new(),
            by_text: FxHashMap::default(),
            by_vtable: FxHashMap::default(),
            sites: FxHashMap::default(),
            by_stack: FxHashMap::default(),
        };
        let mut label_of = Narrow::default();
        snapshot.graph.blocks.iter().for_each(|block| label_of.push(namer.label_of(&block)));
        for block in snapshot.graph.blocks.iter() {
            namer.site(block.site);
        }
        let Namer { labels, sites, .. } = namer;
        let (groups, group_of) = root_groups(process, symbols, &snapshot);
        let text = |block: u32| &*labels[label_of.get(block) as usize].text;
        snapshot
            .graph
            .doubt(|block| text(block).starts_with("text of "), |block| text(block).ends_with("[] of vector"));
        let (steps, step_of) = (Vec::new(), Narrow::default());
        let mut holders =
            Holders { process, snapshot, groups, group_of: Vec::new(), labels, label_of, sites, steps, step_of };
        holders.sum(&group_of);
        holders.join_elements();
        holders.group_of = group_of;
        Ok(Some(holders))
    }

    pub fn process(&self) -> &'a Process {
        self.process
    }

    /// Sums up what each root holds, and merges the paths. `group_of` has the group of each root.
    fn sum(&mut self, group_of: &[u32]) {
        let graph = &self.snapshot.graph;
        for (block, group) in graph.blocks.iter().zip(only_group(graph, group_of)) {
            self.groups.get_mut(group as usize).into_iter().for_each(|group| group.only.add(&block));
        }
        let mut known: FxHashMap<Step, u32> = FxHashMap::default();
        // The groups of what a root leads to by doubtful words only.
        let mut stale: FxHashMap<u32, u32> = FxHashMap::default();
        let (labels, label_of, groups) = (&self.labels, &self.label_of, &mut self.groups);
        let (steps, mut step_of) = (&mut self.steps, Narrow::none(graph.blocks.len()));
        // Outer blocks come before those that they hold.
        graph.walk(|number, via, is_sure| {
            let label = label_of.get(number);
            let step = match via {
                Via::Root(root) => {
                    let group = group_of[root as usize];
                    Step { label, outer: group, is_outermost: true, root: group, word: 0 }
                }
                Via::Block { block, word } => {
                    let outer = step_of.get(block);
                    let Step { label: holder, root, .. } = steps[outer as usize];
                    let root = if is_sure || groups[root as usize].kind == STALE {
                        root
                    } else {
                        *stale.entry(root).or_insert_with(|| {
                            groups.push(RootGroup::stale(&groups[root as usize]));
                            groups.len() as u32 - 1
                        })
                    };
                    let word = labels[holder as usize].field(word);
                    // A list of nodes is one step.
                    if holder == label && steps[outer as usize].root == root {
                        steps[outer as usize]
                    } else {
                        Step { label, outer, is_outermost: false, root, word }
                    }
                }
            };
            groups[step.root as usize].held.add(&graph.block(number));
            let next = steps.len() as u32;
            let found = *known.entry(step).or_insert(next);
            if found == next {
                steps.push(step);
            }
            step_of.set(number, found);
        });
        self.step_of = step_of;
    }

    /// Returns the step of a block, if anything leads to it.
    fn step(&self, block: u32) -> Option<&Step> {
        self.steps.get(self.step_of.get(block) as usize)
    }

    /// Forgets what leads to a block by doubtful words: it is lost for sure.
    pub(super) fn forget(&mut self, block: u32) {
        let Some(step) = self.step(block).copied() else { return };
        let held = &mut self.groups[step.root as usize].held;
        held.blocks -= 1;
        held.bytes -= self.snapshot.graph.block(block).size;
        self.step_of.set(block, NONE);
    }

    /// Returns whether a block is held by anything outside of blocks.
    pub fn is_held(&self, block: u32) -> bool {
        self.step(block).is_some_and(|step| self.groups[step.root as usize].kind != STALE)
    }

    /// Returns whether only doubtful words lead to a block.
    pub fn is_perhaps_held(&self, block: u32) -> bool {
        self.step(block).is_some_and(|step| self.groups[step.root as usize].kind == STALE)
    }

    /// Returns whether a root leads to a block at once.
    pub fn is_outermost(&self, block: u32) -> bool {
        self.step(block).is_some_and(|step| step.is_outermost)
    }

    pub fn label(&self, block: u32) -> &Label {
        &self.labels[self.label_of.get(block) as usize]
    }

    /// Returns the function and the place that allocated a block.
    pub fn site_line(&self, site: u32) -> &str {
        self.sites.get(&site).map_or("(no stack)", |text| &text.line)
    }

    /// Returns the first call site whose stack has the same functions and lines.
    pub fn alike(&self, site: u32) -> u32 {
        self.sites.get(&site).map_or(site, |text| text.alike)
    }

    /// Returns whether a function of a block's stack, or its type, has a text in its name.
    pub fn matches(&self, block: u32, text: &str) -> bool {
        let site = self.snapshot.graph.blocks.site(block);
        let has = |name: &String| name.contains(text);
        self.label(block).text.contains(text)
            || self.sites.get(&site).is_some_and(|text| text.functions.iter().any(has))
    }

    /// Returns the number of the group of a held block's root.
    pub fn group_number(&self, block: u32) -> Option<u32> {
        Some(self.step(block)?.root)
    }

    /// Returns the root that a held block has.
    pub fn group(&self, block: u32) -> Option<&RootGroup> {
        self.groups.get(self.group_number(block)? as usize)
    }

    /// Returns what holds a block next: what another block is, or its root, without what only this
    /// run has in its name. Lists are one step.
    pub fn holder(&self, block: u32) -> Option<String> {
        let step = self.step(block)?;
        if !step.is_outermost {
            return Some(self.labels[self.steps[step.outer as usize].label as usize].text.clone());
        }
        let group = &self.groups[step.root as usize];
        Some(match group.kind {
            "global" | "data" => group.name.clone(),
            "thread-local" => "thread-local data".into(),
            kind => kind.to_owned(),
        })
    }

    /// Returns the ways in which the blocks of some rows are held, those with the most bytes first.
    /// `blocks` has the row of each.
    pub fn paths(&self, rows: usize, blocks: impl Iterator<Item = (usize, u32)>) -> Vec<Vec<Path>> {
        let mut sums: Vec<FxHashMap<u32, (Amount, u32)>> = vec![FxHashMap::default(); rows];
        for (row, block) in blocks.filter(|(_, block)| self.is_held(*block)) {
            let sum = sums[row].entry(self.step_of.get(block)).or_insert((Amount::default(), block));
            sum.0.add(&self.snapshot.graph.block(block));
        }
        let path = |(step, (amount, example))| {
            let (steps, root) = self.text_of(step);
            Path { amount, steps, example, root }
        };
        let sorted = |sums: FxHashMap<u32, (Amount, u32)>| {
            let mut paths: Vec<Path> = sums.into_iter().map(path).collect();
            paths.sort_by(|a, b| (b.amount.bytes, &a.steps).cmp(&(a.amount.bytes, &b.steps)));
            paths
        };
        sums.into_iter().map(sorted).collect()
    }

    /// Returns the group and the block of each root.
    pub(crate) fn root_targets(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.group_of.iter().copied().zip(self.snapshot.graph.roots.iter().map(|root| root.target))
    }

    /// Returns what each of some sets of blocks retains: its held blocks, and those that are held
    /// only through them. `set_of` has the set of a block, or [`NONE`].
    pub fn retained(&self, sets: usize, set_of: impl Fn(u32) -> u32) -> Vec<Amount> {
        let graph = &self.snapshot.graph;
        let mut amounts = vec![Amount::default(); sets];
        of_sets(graph, set_of, sets, |set, block| amounts[set].add(&graph.block(block)));
        amounts
    }

    /// Returns the number of a block's label: labels of one number have one text.
    pub fn label_number(&self, block: u32) -> u32 {
        self.label_of.get(block)
    }

    /// Returns the lines of a path, and its root. Each line but the first holds the one before, and
    /// says at which offset.
    fn text_of(&self, step: u32) -> (Vec<String>, u32) {
        /// Lines that are shown of a path, from each end.
        const SHOWN: usize = 6;
        let (mut lines, mut next, mut word) = (Vec::new(), step, 0);
        let root = self.steps[step as usize].root;
        loop {
            let step = self.steps[next as usize];
            let text = &self.labels[step.label as usize].text;
            lines.push(if word == 0 { text.clone() } else { format!("{text} (+{})", 8 * u64::from(word)) });
            (next, word) = (step.outer, step.word);
            if step.is_outermost {
                lines.push(self.groups[root as usize].name.clone());
                if lines.len() > 2 * SHOWN + 1 {
                    let hidden = lines.len() - 2 * SHOWN;
                    lines.splice(SHOWN..SHOWN + hidden, [format!("… {hidden} more")]);
                }
                return (lines, root);
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
    let group =
        |name: String, kind, module: &str| RootGroup { name, kind, module: module.to_owned(), ..RootGroup::default() };
    let thread = || {
        let named = process.tape.threads.values().find(|thread| thread.tid == region.thread);
        let name = named.map(|thread| thread.name.lossy().into_owned()).filter(|name| !name.is_empty());
        name.map_or_else(|| format!("thread {}", region.thread), |name| format!("thread {} {name}", region.thread))
    };
    let whole = (u64::from(region.kind) << 32 | u64::from(region.thread), region.start);
    match region.kind {
        ROOT_DATA => {
            // The loader may have found it by a link: `/lib` for `/usr/lib`.
            let of_file = |module: &&Module| module.path.rsplit(|byte| *byte == b'/').next() == Some(file.as_bytes());
            let of_path = |module: &&Module| module.path == path.as_bytes();
            let module = module_at(process, root.address)
                .filter(of_file)
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
        ROOT_EARLIER => {
            let key = (u64::from(region.kind) << 32, 0);
            (key, group("blocks allocated before the recording".into(), "earlier", ""))
        }
        ROOT_MAPPING if path.is_empty() => (whole, group(format!("mapping at {:#x}", region.start), "mapping", "")),
        _ => (whole, group(format!("mapping {path} at {:#x}", region.start), "mapping", "")),
    }
}
