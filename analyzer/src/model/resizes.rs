//! What resizes cost: how often blocks move, how much is copied, and how long the chains of resizes
//! of one block get.

use super::live_set::{Block, LiveSet};
use super::row;
use crate::event::Event;
use crate::replay::Model;

/// Classes of chains: class n holds chains of 2^n resizes and more, up to the next class.
pub const CHAINS: usize = 24;

/// Resizes of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Resizes.
    pub resizes: u64,
    /// Of these, to another address.
    pub moved: u64,
    /// Bytes that those had to copy: the smaller of old and new size.
    pub copied: u64,
    /// Resizes to more bytes.
    pub grown: u64,
    /// Resizes to fewer.
    pub shrunk: u64,
    /// Most resizes of one block that was resized here last.
    pub longest: u64,
    /// Resizes whose old block is not known.
    pub unknown: u64,
}

/// Counts resizes.
#[derive(Debug, Default)]
pub struct Resizes {
    /// By the site that resizes.
    pub rows: Vec<Row>,
    /// Blocks by the length of their chain.
    pub chains: [u64; CHAINS],
}

impl Resizes {
    fn ended(&mut self, block: &Block) {
        if let Some(class) = block.resizes.checked_ilog2() {
            self.chains[(class as usize).min(CHAINS - 1)] += 1;
        }
    }

    /// Counts the chains of what is alive at the end.
    pub fn finish(&mut self, live: &LiveSet) {
        for (_, block) in live.iter() {
            self.ended(&block);
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
            self.ended(old);
        }
    }
}
