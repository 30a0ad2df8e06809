//! The cost of reallocations: how often blocks move, how many bytes are copied, and how often the
//! same block is reallocated.

use super::live_set::{Block, LiveSet};
use super::row;
use crate::event::Event;
use crate::model::Model;

/// Number of classes of reallocation chains. Class n counts blocks that were reallocated 2^n times
/// or more, up to the next class.
pub(crate) const CHAINS: usize = 24;

/// The reallocations of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Total number of reallocations.
    pub resizes: u64,
    /// Number of reallocations that changed the address.
    pub moved: u64,
    /// Number of bytes that these copied: the smaller of old and new size.
    pub copied: u64,
    /// Number of reallocations to a larger size.
    pub grown: u64,
    /// Number of reallocations to a smaller size.
    pub shrunk: u64,
    /// Maximum number of reallocations of a block that was last reallocated here.
    pub longest: u64,
    /// Number of reallocations of unknown blocks.
    pub unknown: u64,
}

/// The model that counts reallocations.
#[derive(Debug, Default)]
pub struct Resizes {
    /// The rows by the site of the reallocation.
    pub rows: Vec<Row>,
    /// Number of blocks by the class of their chain.
    pub chains: [u64; CHAINS],
}

impl Resizes {
    fn end_chain(&mut self, block: &Block) {
        if let Some(class) = block.resizes.checked_ilog2() {
            self.chains[(class as usize).min(CHAINS - 1)] += 1;
        }
    }

    /// Counts the chains of the blocks that are live at the end.
    pub fn finish(&mut self, live: &LiveSet) {
        for (_, block) in live.iter() {
            self.end_chain(&block);
        }
    }
}

impl Model for Resizes {
    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        let row = row(&mut self.rows, block.site);
        row.resizes += 1;
        row.longest = row.longest.max(block.resizes.into());
        let Some(old) = old else {
            row.unknown += 1;
            return;
        };
        row.grown += u64::from(block.size > old.size);
        row.shrunk += u64::from(block.size < old.size);
        if block.address != old.address {
            row.moved += 1;
            row.copied = row.copied.saturating_add(old.size.min(block.size));
        }
    }

    fn free(&mut self, _: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.end_chain(old);
        }
    }
}
