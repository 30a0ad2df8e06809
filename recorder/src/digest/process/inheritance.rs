//! Blocks that a forked child inherits from its parent.

use super::ProcessRecording;
use crate::heap::live::{Inheritance, WINDOW};
use crate::session::traced_process::Fork;
use formats::tape::{self, Record as TapeRecord};

impl ProcessRecording {
    /// Returns the blocks that a child forked at `tick` inherits from this process.
    pub(crate) fn inheritance_at(&mut self, tick: u64) -> Inheritance {
        match self.heap.take_inheritance(tick) {
            Some(kept) => kept,
            None => self.live_at(tick),
        }
    }

    /// Returns the blocks at `tick` (0: now). No call from before it waits any more.
    fn live_at(&mut self, tick: u64) -> Inheritance {
        self.heap.end_resizes_early();
        self.prepare_events();
        self.heap.add_effects(self.output.trace());
        self.settle(tick.saturating_add(WINDOW));
        self.heap.inheritance_at(tick)
    }

    /// Keeps the blocks that a child forked at `tick` inherits, as they are known now. With one
    /// thread not every event has a timestamp of its own, and later events of the parent could look
    /// older than the fork.
    pub(crate) fn store_inheritance(&mut self, tick: u64) {
        let inheritance = self.live_at(tick);
        self.heap.store_inheritance(tick, inheritance);
    }

    /// Adds the blocks that this process inherited as a forked child.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        if let Some(Fork { folder, tick, .. }) = &self.session.forked {
            let (blocks, bytes) = (inheritance.blocks, inheritance.bytes);
            let parent = folder.as_str().into();
            let inherited = tape::Inherited { parent, tick: *tick, blocks, bytes };
            self.segments.set_inherited(inherited.clone());
            self.output.push(TapeRecord::Inherited(inherited));
        }
        if !inheritance.exact {
            self.note("the parent had continued too far: the blocks inherited at the fork are not exact".into());
        }
        self.heap.inherit(inheritance);
    }
}
