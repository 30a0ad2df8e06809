//! Sums by site and thread.

use super::Source;
use crate::event::{Event, Span};
use crate::load::Process;
use crate::model::Model;
use crate::model::call_sites::CallSites;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::replay::replay;
use crate::sums::Sums;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Passes events on with the number of a pair of site and thread instead of the number of the site.
struct Paired<'a> {
    pairs: Vec<(u32, u32)>,
    known: FxHashMap<(u32, u32), u32>,
    inner: (&'a mut CallSites, &'a mut Peak),
}

impl Paired<'_> {
    fn block(&mut self, block: &Block) -> Block {
        let pair = (block.site, block.thread);
        let site = *self.known.entry(pair).or_insert_with(|| {
            self.pairs.push(pair);
            self.pairs.len() as u32 - 1
        });
        Block { site, ..*block }
    }
}

impl Model for Paired<'_> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        let block = self.block(block);
        self.inner.alloc(event, &block);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        let old = old.map(|old| self.block(old));
        let block = self.block(block);
        self.inner.resize(event, old.as_ref(), &block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        let old = old.map(|old| self.block(old));
        self.inner.free(event, old.as_ref());
    }
}

impl Source<'_> {
    /// Returns a process's sums by site and thread: pairs of site and thread, and sums whose site
    /// is an index among them. Threads are 0 if they are unknown. A recording of one thread needs
    /// no pass over its events for this.
    pub(crate) fn sums_by_thread(&mut self, process: &Process) -> (Vec<(u32, u32)>, Rc<Sums>) {
        let threads = &process.tape.threads;
        if threads.len() <= 1 || !process.has_events() {
            let only = threads.keys().next().copied().unwrap_or(0);
            return ((0..=process.stacks().len() as u32).map(|site| (site, only)).collect(), self.sums(process));
        }
        let (mut sites, mut peak) = (CallSites::default(), Peak::within(Span::ALL));
        let mut paired = Paired { pairs: Vec::new(), known: FxHashMap::default(), inner: (&mut sites, &mut peak) };
        let outcome = replay(process, process.span(&self.range()), self.progress(), &mut paired);
        let pairs = paired.pairs;
        self.found(&outcome.missing);
        let mut rows = sites.sums();
        for row in &mut rows {
            let held = peak.at_peak(row.site);
            (row.peak_blocks, row.peak_bytes) = (held.blocks, held.bytes);
        }
        (pairs, Rc::new(Sums { sites: rows, has_peak: true, ..Sums::default() }))
    }
}
