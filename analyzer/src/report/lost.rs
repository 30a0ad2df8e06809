//! Live blocks that nothing outside of blocks leads to: lost ones, and cycles that hold themselves.
//!
//! That no pointer was found is one sign. A program may hide a pointer (XOR, compression, tags in
//! the high bits), so a second sign is needed before we call a block lost: it is old, or many of
//! its site are alike. Offsets in place of addresses are looked for, and in a core pointers in other
//! disguises. A cycle is proven if its counts of references are those that its own blocks have.

use super::holders::{Amount, Counts, Holders};
use crate::load::tape::TraceRange;
use crate::model::circles::circles;
use crate::model::disguised::{LEAST, OddWords};
use crate::text::counted;
use heaptape_formats::references::Memory;
use heaptape_formats::tape::Edge;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Number of lost blocks of one site from which on they are no chance.
const MANY: u64 = 10;
/// Share of the run after which a block is old: one in this number.
const OLD: u64 = 20;
/// Bytes of a core that are read at once.
const PIECE: usize = 1 << 20;
/// Most bytes of it that are searched for pointers in a disguise.
const MAX_READ: u64 = 16 << 30;
/// Number of kinds of blocks of a cycle that are listed.
const MAX_LISTED: usize = 8;

/// How sure it is that blocks are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Nothing else but the missing pointer says so.
    Possible,
    /// A second sign agrees.
    Likely,
    /// The counts of references of a cycle are all its own.
    Proven,
}

impl Confidence {
    /// Returns the word of reports.
    pub const fn word(self) -> &'static str {
        match self {
            Confidence::Possible => "possible",
            Confidence::Likely => "likely",
            Confidence::Proven => "proven",
        }
    }
}

/// Lost blocks that are alike.
#[derive(Clone, Debug)]
pub struct LostGroup {
    /// What they are, e.g. `Order`, or `2 Child, 1 Parent` for a cycle.
    pub text: String,
    /// Whether the blocks hold each other.
    pub is_cycle: bool,
    /// How often there are such blocks.
    pub times: u64,
    /// Those blocks, with all that only they hold.
    pub amount: Amount,
    pub confidence: Confidence,
    /// Why, as the end of a sentence.
    pub sign: String,
    /// Call site of the first one, and the number of one such block.
    pub site: u32,
    pub example: u32,
    /// Numbers of all those blocks.
    pub members: Vec<u32>,
    /// Numbers of those that no other one of them holds.
    heads: Vec<u32>,
}

#[derive(Debug, Default)]
pub struct Lost {
    pub groups: Vec<LostGroup>,
    pub amount: Amount,
    /// The part of it that cycles hold.
    pub in_cycles: Amount,
    /// What may be lost, or held by a register of a waiting thread, which cannot be read.
    pub undecided: Amount,
    /// Number of those registers.
    pub unseen_registers: u64,
    /// What only words in unused memory lead to: of vectors up to their capacity, and of texts.
    pub stale: Amount,
    /// The environment that the program made before `setenv` copied it: nobody frees that.
    pub replaced: Amount,
    /// What words lead to that are pointers in a disguise, and in which; empty if none do.
    pub hidden: Amount,
    pub disguise: &'static str,
    /// Why nothing is judged: references are missing. Empty if none are.
    pub lacks: String,
}

/// What holds itself, or is held by nothing, with all that only it holds.
struct Head {
    blocks: Vec<u32>,
    is_cycle: bool,
    is_proven: bool,
    amount: Amount,
    /// The blocks, and those that only they hold.
    members: Vec<u32>,
}

/// Finds what is lost. Of that, the holders forget the doubtful words that lead to it.
pub fn find(holders: &mut Holders<'_>) -> Lost {
    let found = found(holders);
    found.groups.iter().flat_map(|group| &group.members).for_each(|block| holders.forget(*block));
    found
}

fn found(holders: &Holders<'_>) -> Lost {
    let graph = &holders.snapshot.graph;
    let lost: Vec<u32> = (0..graph.blocks.len() as u32).filter(|block| !holders.is_held(*block)).collect();
    let mut found = Lost::default();
    if let Some(lacks) = holders.snapshot.lacks() {
        found.lacks = lacks;
        return found;
    }
    found.unseen_registers = holders.snapshot.unseen_registers();
    let mut heads = heads(holders, &lost);
    if let Some(number) = replaced_environment(holders, &heads) {
        found.replaced = heads.swap_remove(number).amount;
    }
    // The counts of a cycle prove that those words are stale.
    heads.retain(|head| {
        let is_kept = head.is_proven || !head.blocks.iter().any(|block| holders.is_perhaps_held(*block));
        if !is_kept {
            found.stale.join(head.amount);
        }
        is_kept
    });
    let mut words = None;
    for group in groups(holders, heads) {
        let as_offsets = is_held_by_offsets(holders, &group).then_some("offsets in place of addresses");
        if let Some(disguise) = as_offsets.or_else(|| disguise(holders, &group, &mut words)) {
            found.hidden.join(group.amount);
            found.disguise = disguise;
            continue;
        }
        // A register holds one block, and what that leads to.
        if group.confidence != Confidence::Proven && group.times <= found.unseen_registers {
            found.undecided.join(group.amount);
            continue;
        }
        found.amount.join(group.amount);
        if group.is_cycle {
            found.in_cycles.join(group.amount);
        }
        found.groups.push(group);
    }
    found
}

/// Returns whether words of blocks that are held are the offsets of a group's blocks. A number may be one by
/// chance, and of blocks that are alike each may have the same one before it, such as its size. So of
/// many blocks nearly all must have it in the same word of blocks that are alike, at distances that differ.
fn is_held_by_offsets(holders: &Holders<'_>, group: &LostGroup) -> bool {
    /// Blocks that words of one kind lead to, and the distances.
    type Found = (FxHashSet<u64>, FxHashSet<u64>);
    let graph = &holders.snapshot.graph;
    if group.is_cycle {
        return false;
    }
    let looked_for: Vec<&[Edge]> = group.heads.iter().filter_map(|block| graph.offsets_of(*block)).collect();
    let mut by_word: FxHashMap<(u32, u64, u64), Found> = FxHashMap::default();
    for edge in looked_for.iter().copied().flatten().filter(|edge| holders.is_held(edge.source as u32)) {
        let [source, target] = [edge.source, edge.target].map(|block| graph.block(block as u32).address);
        let word = (holders.alike(graph.blocks.site(edge.source as u32)), edge.offset, edge.inside);
        let (found, distances) = by_word.entry(word).or_default();
        found.insert(edge.target);
        distances.insert(target.wrapping_sub(source));
    }
    let count = looked_for.len();
    if group.times < MANY {
        let all: FxHashSet<u64> = by_word.into_values().flat_map(|(found, _)| found).collect();
        return count > 0 && all.len() == count;
    }
    count > 0
        && by_word.values().any(|(found, distances)| 10 * found.len() >= 9 * count && 4 * distances.len() >= count)
}

/// Returns the disguise in which pointers to the blocks of a group are in the memory of a core. Its words
/// are read once.
fn disguise(holders: &Holders<'_>, group: &LostGroup, words: &mut Option<OddWords>) -> Option<&'static str> {
    let core = holders.process().core.as_deref()?;
    if group.confidence == Confidence::Proven || group.heads.len() < LEAST {
        return None;
    }
    let words = words.get_or_insert_with(|| {
        let (mut found, mut piece) = (OddWords::default(), vec![0; PIECE]);
        // The holes of a sparse file are soon read, but a core may claim more than anybody has.
        let mut left = MAX_READ;
        for segment in core.file.segments.iter().filter(|segment| segment.is_writable()) {
            let stored = segment.stored.min(left);
            left -= stored;
            for at in (0..stored).step_by(PIECE) {
                let length = PIECE.min((stored - at) as usize);
                core.file.read(segment.start.saturating_add(at), &mut piece[..length]);
                found.add(&piece[..length]);
            }
        }
        found
    });
    let addresses: Vec<u64> = group.heads.iter().map(|block| holders.snapshot.graph.block(*block).address).collect();
    words.disguise(&addresses)
}

/// Finds the groups of lost blocks that no other lost block refers to, and assigns what they lead
/// to.
fn heads(holders: &Holders<'_>, lost: &[u32]) -> Vec<Head> {
    let graph = &holders.snapshot.graph;
    let components = circles(lost, |block, number| Some(graph.references(block).get(number)?.target));
    let mut component_of: FxHashMap<u32, u32> = FxHashMap::default();
    for (number, component) in (0..).zip(&components) {
        component_of.extend(component.iter().map(|block| (*block, number)));
    }
    let mut is_held = vec![false; components.len()];
    // References to the start of a block: a copy of a shared_ptr or an Rc has one to its counts.
    let mut starts: FxHashMap<u32, u64> = FxHashMap::default();
    for &block in lost {
        for reference in graph.references(block) {
            let Some(&target) = component_of.get(&reference.target) else { continue };
            if reference.is_at_start() {
                *starts.entry(reference.target).or_default() += 1;
            }
            is_held[target as usize] |= component_of[&block] != target;
        }
    }
    let mut taken: FxHashSet<u32> = FxHashSet::default();
    let mut heads = Vec::new();
    // Later components refer to earlier ones.
    for (number, component) in components.into_iter().enumerate().rev() {
        if is_held[number] {
            continue;
        }
        let proof = proof(holders, &component, &starts);
        let is_cycle = component.len() > 1 || proof == Some(true);
        let (mut amount, mut members) = (Amount::default(), Vec::new());
        let mut next = component.clone();
        taken.extend(&component);
        while let Some(block) = next.pop() {
            amount.add(&graph.block(block));
            members.push(block);
            for reference in graph.references(block) {
                if component_of.contains_key(&reference.target) && taken.insert(reference.target) {
                    next.push(reference.target);
                }
            }
        }
        let is_proven = proof == Some(true) && is_cycle;
        heads.push(Head { blocks: component, is_cycle, is_proven, amount, members });
    }
    heads
}

/// Names of the same variable of libc.
const ENVIRON: [&str; 3] = ["global environ", "global __environ", "global _environ"];

/// Returns which of the heads is an environment that the program made, as PostgreSQL does for its
/// title, before `setenv` copied it to memory of its own (glibc, stdlib/setenv.c): an array that has
/// most of its words in common with the one of `environ`. Of several such arrays, which a program
/// may make for its children and lose, none is.
fn replaced_environment(holders: &Holders<'_>, heads: &[Head]) -> Option<usize> {
    let graph = &holders.snapshot.graph;
    // libc has a second pointer to it, which may be the first one that is found.
    let is_environ = |group: u32| ENVIRON.contains(&&*holders.groups[group as usize].name);
    let (_, own) = holders.root_targets().find(|(group, _)| is_environ(*group))?;
    let words = |block: u32| graph.references(block).iter().map(|reference| (reference.word(), reference.target));
    let current: FxHashSet<(u32, u32)> = words(own).collect();
    let is_copied = |block: u32| {
        let shared = words(block).filter(|word| current.contains(word)).count();
        shared > 1 && 2 * shared > graph.references(block).len()
    };
    let mut copied = (0..).zip(heads).filter(|(_, head)| matches!(head.blocks[..], [block] if is_copied(block)));
    let (number, _) = copied.next()?;
    copied.next().is_none().then_some(number)
}

/// Returns whether all references that the counts in a component tell of are in lost blocks, or
/// `None` if it has no counts.
fn proof(holders: &Holders<'_>, component: &[u32], starts: &FxHashMap<u32, u64>) -> Option<bool> {
    let mut found = None;
    for &block in component {
        let (strong, weak) = holders.snapshot.graph.block(block).first.counts;
        let (strong, weak) = (u64::from(strong), u64::from(weak));
        // All strong references together are one weak one.
        let expected = match holders.label(block).counts {
            Counts::Libstdcxx | Counts::Rust if strong > 0 => strong + weak.saturating_sub(1),
            Counts::Libcxx => strong + 1,
            _ => continue,
        };
        let is_own = starts.get(&block).copied().unwrap_or(0) == expected;
        found = Some(found.unwrap_or(true) && is_own);
    }
    found
}

/// Returns how often each kind is there, with the first block of it.
fn kinds(blocks: impl Iterator<Item = (u32, u32)>) -> Vec<(u32, u64)> {
    let mut found: FxHashMap<u32, (u32, u64)> = FxHashMap::default();
    blocks.for_each(|(kind, block)| found.entry(kind).or_insert((block, 0)).1 += 1);
    found.into_values().collect()
}

/// Returns the kinds of blocks in words, sorted by their names, and the number of the blocks that are
/// not listed: those of the rarest kinds.
fn listed(of_text: BTreeMap<&str, u64>) -> (Vec<String>, u64) {
    let mut all: Vec<(&str, u64)> = of_text.into_iter().collect();
    all.sort_by_key(|(text, count)| (Reverse(*count), *text));
    let rest = all.iter().skip(MAX_LISTED).map(|(_, count)| count).sum();
    all.truncate(MAX_LISTED);
    all.sort_unstable();
    (all.into_iter().map(|(text, count)| format!("{count} {text}")).collect(), rest)
}

/// Merges what is alike.
fn groups(holders: &Holders<'_>, heads: Vec<Head>) -> Vec<LostGroup> {
    let graph = &holders.snapshot.graph;
    let ages = Ages::of(holders);
    let mut merged: FxHashMap<(bool, bool, String, u32), (LostGroup, u64)> = FxHashMap::default();
    for head in heads {
        let kinds = kinds(head.blocks.iter().map(|block| (holders.label_number(*block), *block)));
        let mut of_text: BTreeMap<&str, u64> = BTreeMap::new();
        for (block, count) in kinds {
            *of_text.entry(&holders.label(block).text).or_default() += count;
        }
        let (listed, rest) = listed(of_text);
        let first = head.blocks.iter().copied().min().unwrap_or_default();
        let mut text = if head.blocks.len() == 1 { holders.label(first).text.clone() } else { listed.join(", ") };
        if rest > 0 {
            text += &format!(", {}", counted(rest, "other block"));
        }
        // A cycle has several sites, and each of its blocks may be the first one.
        let site = holders.alike(graph.blocks.site(first));
        let key_site = if head.is_cycle { 0 } else { site };
        let age = head.blocks.iter().map(|block| ages.share(graph.block(*block).index)).max().unwrap_or(0);
        let new = LostGroup {
            text: text.clone(),
            is_cycle: head.is_cycle,
            times: 0,
            amount: Amount::default(),
            confidence: if head.is_proven { Confidence::Proven } else { Confidence::Possible },
            sign: String::new(),
            site,
            example: first,
            members: Vec::new(),
            heads: Vec::new(),
        };
        let entry = merged.entry((head.is_cycle, head.is_proven, text, key_site)).or_insert((new, 0));
        entry.0.times += 1;
        entry.0.amount.join(head.amount);
        entry.0.members.extend(head.members);
        entry.0.heads.extend(head.blocks);
        entry.1 = entry.1.max(age);
    }
    let mut groups: Vec<LostGroup> = merged.into_values().map(|(group, age)| judged(group, age)).collect();
    groups.sort_by(|a, b| (b.amount.bytes, &a.text, a.site).cmp(&(a.amount.bytes, &b.text, b.site)));
    groups
}

/// Adds the second sign to a group whose oldest block is so old, in thousandths of the run.
fn judged(mut group: LostGroup, age: u64) -> LostGroup {
    let is_old = age >= 1000 / OLD;
    group.sign = match () {
        () if group.confidence == Confidence::Proven => "their counts of references are those of the cycle".into(),
        () if group.times >= MANY => format!("no pointer to them, and {} are alike", group.times),
        () if is_old => "no pointer to it, and the program ran on since".into(),
        () => "no pointer to it, and no second sign: it is young and alone".into(),
    };
    if group.confidence != Confidence::Proven && (is_old || group.times >= MANY) {
        group.confidence = Confidence::Likely;
    }
    group
}

/// How old blocks are.
struct Ages {
    /// First allocation index, number of allocations, and the ticks of each chunk.
    chunks: Vec<(u64, u64, u64, u64)>,
    from: u64,
    to: u64,
}

impl Ages {
    fn of(holders: &Holders<'_>) -> Ages {
        let chunk = |range: &TraceRange| match range {
            TraceRange::Committed { chunk, .. } => {
                Some((chunk.first_index, chunk.allocations, chunk.first_tick, chunk.last_tick))
            }
            TraceRange::Salvage { .. } => None,
        };
        let tape = &holders.process().tape;
        Ages {
            chunks: tape.ranges.iter().filter_map(chunk).collect(),
            from: tape.process.start_tick,
            to: holders.snapshot.head.tick,
        }
    }

    /// Returns the age of a block in thousandths of the run until the snapshot, by its allocation
    /// index.
    fn share(&self, index: u64) -> u64 {
        let after = self.chunks.partition_point(|chunk| chunk.0 <= index);
        let Some(&(first, count, from, to)) = after.checked_sub(1).and_then(|at| self.chunks.get(at)) else {
            return 0;
        };
        if index == 0 || self.to <= self.from {
            return 0;
        }
        let within = u128::from(to.saturating_sub(from)) * u128::from((index - first).min(count));
        let tick = from + (within / u128::from(count.max(1))) as u64;
        (u128::from(self.to.saturating_sub(tick)) * 1000 / u128::from(self.to - self.from)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_of_a_cycle_are_counted() {
        let nodes = (0..100).map(|block| (u32::from(block >= 90), block));
        let mut found = kinds(nodes);
        found.sort_unstable();
        assert_eq!(found, [(0, 90), (90, 10)]);
        let few = BTreeMap::from([("block of node", 90), ("block of head", 10)]);
        assert_eq!(listed(few), (vec!["10 block of head".into(), "90 block of node".into()], 0));
        let names: Vec<String> = (0..10).map(|number| format!("kind {number}")).collect();
        let many = names.iter().zip(1..).map(|(name, count)| (name.as_str(), count)).collect();
        let (shown, rest) = listed(many);
        assert_eq!((shown.len(), rest), (MAX_LISTED, 1 + 2), "{shown:?}");
        assert_eq!(shown[0], "3 kind 2");
    }
}
