//! Blocks that a forked child inherits from its parent.

use super::ProcessRecording;
use crate::live::{Inheritance, WINDOW};
use crate::session::Fork;
use formats::tape::{self, Record as TapeRecord};

/// Maximum number of children for which blocks are kept at once. Those of a child that never
/// attaches are dropped by later ones.
const MAX_INHERITANCES: usize = 16;

impl ProcessRecording {
    /// Returns the blocks that a child forked at `tick` inherits from this process.
    pub fn inheritance_at(&mut self, tick: u64) -> Inheritance {
        match self.inheritances.iter().position(|(kept, _)| *kept == tick) {
            Some(index) => self.inheritances.swap_remove(index).1,
            None => self.live_at(tick),
        }
    }

    /// Returns the blocks at `tick` (0: now). No call from before it waits any more.
    fn live_at(&mut self, tick: u64) -> Inheritance {
        self.settle(tick.saturating_add(WINDOW));
        self.live.inheritance_at(tick)
    }

    /// Keeps the blocks that a child forked at `tick` inherits, as they are known now. With one
    /// thread not every event has a timestamp of its own, and later events of the parent could look
    /// older than the fork.
    pub fn store_inheritance(&mut self, tick: u64) {
        let inheritance = self.live_at(tick);
        if self.inheritances.len() >= MAX_INHERITANCES {
            self.inheritances.remove(0);
        }
        self.inheritances.push((tick, inheritance));
    }

    /// Adds the blocks that this process inherited as a forked child.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        if let Some(Fork { folder, tick, .. }) = &self.session.forked {
            let (blocks, bytes) = (inheritance.blocks, inheritance.bytes);
            let parent = folder.as_str().into();
            let inherited = tape::Inherited { parent, tick: *tick, blocks, bytes };
            self.segments.inherited = Some(inherited.clone());
            self.before.push(TapeRecord::Inherited(inherited));
        }
        if !inheritance.exact {
            self.note("the parent had continued too far: the blocks inherited at the fork are not exact".into());
        }
        self.live.inherit(inheritance);
    }
}
