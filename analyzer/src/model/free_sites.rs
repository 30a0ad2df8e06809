//! Frees by the site of the free and the site of the allocation.

use super::live_set::Block;
use crate::event::{Event, Kind};
use crate::model::Model;
use rustc_hash::FxHashMap;

/// Numbers of freed blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Total number of blocks.
    pub blocks: u64,
    /// Total number of bytes.
    pub bytes: u64,
    /// Number of blocks that another thread had allocated.
    pub others: u64,
}

/// The model that counts frees.
#[derive(Debug, Default)]
pub struct FreeSites {
    /// Numbers by the site of the free and the site of the allocation.
    pub pairs: FxHashMap<(u32, u32), Freed>,
    /// Number of frees without a site.
    pub unknown: u64,
}

impl Model for FreeSites {
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if event.kind != Kind::Free || event.is_implied() {
            return;
        }
        self.unknown += u64::from(event.site == 0);
        let Some(old) = old.filter(|_| event.site != 0) else { return };
        let freed = self.pairs.entry((event.site, old.site)).or_default();
        freed.blocks += 1;
        freed.bytes = freed.bytes.saturating_add(old.size);
        freed.others += u64::from(old.thread != event.thread);
    }
}
