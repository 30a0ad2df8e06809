//! Separates the sites of each group of threads. The models below it receive a number for each pair
//! of a group and a site instead of the site, so any model by site becomes one by thread and site.

use super::live_set::Block;
use crate::event::{Event, Kind};
use crate::model::Model;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Maximum number of groups. Threads that have no group share the last one.
pub const GROUPS: usize = 32;

/// Threads that are one entry of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub threads: Vec<u32>,
}

/// Groups threads by name, in the order of their numbers. A thread that has no name, or the name of
/// the first thread, which new threads inherit, is a group for itself.
pub fn groups<'a>(threads: impl Iterator<Item = (u32, &'a str)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    let mut inherited = None;
    for (number, name) in threads {
        let first = *inherited.get_or_insert(name);
        let is_named = !name.is_empty() && (groups.is_empty() || name != first);
        let known = by_name.get(name).copied().filter(|_| is_named);
        match known {
            Some(group) => groups[group].threads.push(number),
            None if groups.len() + 1 == GROUPS => {
                groups.push(Group { name: "other threads".into(), threads: vec![number] });
            }
            None if groups.len() == GROUPS => groups[GROUPS - 1].threads.push(number),
            None => {
                let own = if is_named { name.to_string() } else { format!("thread {number}") };
                by_name.extend(is_named.then_some((name, groups.len())));
                groups.push(Group { name: own, threads: vec![number] });
            }
        }
    }
    groups
}

/// The numbers of the pairs of a group and a site.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Group of each thread; empty if there is one group, where sites keep their numbers.
    groups: FxHashMap<u32, u32>,
    numbers: FxHashMap<(u32, u32), u32>,
    /// Group and site of each number.
    pairs: Vec<(u32, u32)>,
}

impl Numbers {
    /// Returns the group and the site that a number represents.
    pub fn pair(&self, number: u32) -> (u32, u32) {
        if self.groups.is_empty() {
            return (0, number);
        }
        self.pairs.get(number as usize).copied().unwrap_or_default()
    }

    /// Returns a block with the number of its thread's group and its site instead of the site.
    #[inline]
    pub fn block(&mut self, block: &Block) -> Block {
        Block { site: self.number(block.thread, block.site), ..*block }
    }

    #[inline]
    fn event(&mut self, event: &Event) -> Event {
        Event { site: self.number(event.thread, event.site), ..*event }
    }

    #[inline]
    fn number(&mut self, thread: u32, site: u32) -> u32 {
        if self.groups.is_empty() {
            return site;
        }
        let pair = (self.groups.get(&thread).copied().unwrap_or(0), site);
        let pairs = &mut self.pairs;
        *self.numbers.entry(pair).or_insert_with(|| {
            pairs.push(pair);
            pairs.len() as u32 - 1
        })
    }
}

/// The model that passes events on by group and site.
#[derive(Debug)]
pub struct ByThread<M> {
    /// The model that receives the numbers of pairs.
    pub model: M,
    pub numbers: Numbers,
}

impl<M> ByThread<M> {
    /// Creates a model that separates these groups. Threads of no group count as the first one.
    pub fn new(groups: &[Group], model: M) -> Self {
        let mut known = FxHashMap::default();
        if groups.len() > 1 {
            for (number, group) in (0..).zip(groups) {
                known.extend(group.threads.iter().map(|&thread| (thread, number)));
            }
        }
        ByThread { model, numbers: Numbers { groups: known, ..Numbers::default() } }
    }
}

impl<M: Model> Model for ByThread<M> {
    #[inline]
    fn alloc(&mut self, event: &Event, block: &Block) {
        let (event, block) = (self.numbers.event(event), self.numbers.block(block));
        self.model.alloc(&event, &block);
    }

    #[inline]
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        let old = old.map(|old| self.numbers.block(old));
        let (event, block) = (self.numbers.event(event), self.numbers.block(block));
        self.model.resize(&event, old.as_ref(), &block);
    }

    #[inline]
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        // The site of a free is where it was called, and no pair.
        let old = old.map(|old| self.numbers.block(old));
        self.model.free(event, old.as_ref());
    }

    #[inline]
    fn unmatched(&mut self, event: &Event) {
        self.model.unmatched(event);
    }

    #[inline]
    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        let block = self.numbers.block(block);
        self.model.inherited(&block, gone);
    }

    #[inline]
    fn prefetch(&self, site: u32, freed: bool) {
        if self.numbers.groups.is_empty() {
            self.model.prefetch(site, freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(groups: &[Group]) -> Vec<(&str, &[u32])> {
        groups.iter().map(|group| (group.name.as_str(), &group.threads[..])).collect()
    }

    #[test]
    fn threads_of_one_name_are_one_group() {
        let threads = [(1, "server"), (2, "worker"), (3, "server"), (4, "worker"), (5, "")];
        let expected: [(&str, &[u32]); 4] =
            [("server", &[1]), ("worker", &[2, 4]), ("thread 3", &[3]), ("thread 5", &[5])];
        assert_eq!(names(&groups(threads.into_iter())), expected);
        let many = groups((1..1000).map(|number| (number, "server")));
        assert_eq!((many.len(), many[GROUPS - 1].threads.len()), (GROUPS, 999 - (GROUPS - 1)));
        assert_eq!(many[GROUPS - 1].name, "other threads");
    }

    #[test]
    fn a_block_counts_for_the_thread_that_allocated_it() {
        #[derive(Debug, Default)]
        struct Seen(Vec<(Kind, u32)>);
        impl Model for Seen {
            fn alloc(&mut self, event: &Event, block: &Block) {
                self.0.push((event.kind, block.site));
            }
            fn free(&mut self, event: &Event, old: Option<&Block>) {
                self.0.push((event.kind, old.map_or(0, |old| old.site)));
            }
        }
        let groups = groups([(1, "a"), (2, "b")].into_iter());
        let mut model = ByThread::new(&groups, Seen::default());
        let event = |kind, thread, site| Event { thread, site, size: 8, ..Event::of(kind) };
        let block = |thread, site| Block { thread, site, ..Block::default() };
        model.alloc(&event(Kind::Alloc, 1, 7), &block(1, 7));
        model.alloc(&event(Kind::Alloc, 2, 7), &block(2, 7));
        model.free(&event(Kind::Free, 2, 9), Some(&block(1, 7)));
        let seen: Vec<(u32, u32)> = model.model.0.iter().map(|(_, number)| model.numbers.pair(*number)).collect();
        assert_eq!(seen, [(0, 7), (1, 7), (0, 7)]);
        // One group costs nothing: sites keep their numbers.
        let alone = ByThread::new(&groups[..1], Seen::default());
        assert_eq!(alone.numbers.pair(7), (0, 7));
    }
}
