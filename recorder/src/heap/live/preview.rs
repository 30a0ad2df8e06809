//! What waiting calls do if nothing follows: the journal carries it, for the case that the recorder
//! is killed before it is known.

use super::{Effect, Live};
use crate::heap::index::Index;

impl Live {
    /// Returns the effects of all waiting calls as if the recording ended now. Nothing changes.
    pub(crate) fn preview(&self) -> Vec<Effect> {
        let mut rest = Live {
            inherited: self.inherited.iter().map(|_| Index::default()).collect(),
            inherited_blocks: self.inherited_blocks,
            inherited_bytes: self.inherited_bytes,
            next_index: self.next_index,
            open_resizes: self.open_resizes.clone(),
            queues: self.queues.clone(),
            ahead: self.ahead.clone(),
            repeated: self.repeated,
            is_unusual: true,
            ..Live::default()
        };
        // Only these addresses matter.
        let open = self.open_resizes.iter().map(|open| open.address);
        for address in self.waiting().map(|call| call.address).chain(open) {
            let indexes = [&self.index].into_iter().chain(&self.inherited);
            for (index, copy) in indexes.zip([&mut rest.index].into_iter().chain(&mut rest.inherited)) {
                if let Some(block) = index.get(address) {
                    copy.insert(address, block);
                }
            }
        }
        let mut effects = Vec::new();
        rest.settle(u64::MAX, &mut effects);
        effects
    }
}
