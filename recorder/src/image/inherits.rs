//! What a forked child has from its parent: given by the one, taken by the other.

use super::Image;
use crate::live::Inheritance;
use formats::tape::{self, Record as TapeRecord};

/// Children that may be on their way at once; what is kept for one that never comes goes with the
/// next ones.
const LEGACIES: usize = 16;

impl Image {
    /// What a child forked at `tick` has from this image.
    pub fn bequeath(&mut self, tick: u64) -> Inheritance {
        match self.legacies.iter().position(|(kept, _)| *kept == tick) {
            Some(place) => self.legacies.swap_remove(place).1,
            None => self.live.bequeath(tick),
        }
    }

    /// Keeps what a child forked at `tick` has, as far as that is known now: with one thread not
    /// every event has a stamp of its own, and what the parent goes on to do could look older than
    /// the fork.
    pub fn keep_legacy(&mut self, tick: u64) {
        let legacy = self.live.bequeath(tick);
        if self.legacies.len() >= LEGACIES {
            self.legacies.remove(0);
        }
        self.legacies.push((tick, legacy));
    }

    /// Starts as a forked child.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        if let Some((_, parent, tick)) = &self.session.forked {
            let (blocks, bytes) = (inheritance.blocks, inheritance.bytes);
            let parent = parent.as_str().into();
            let inherited = tape::Inherited { parent, tick: *tick, blocks, bytes };
            self.parts.inherited = Some(inherited.clone());
            self.before.push(TapeRecord::Inherited(inherited));
        }
        if !inheritance.exact {
            self.note("the parent had gone on too far: what was inherited at the fork is not exact".into());
        }
        self.live.inherit(inheritance);
    }
}
