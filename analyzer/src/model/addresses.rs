//! The histories of several addresses at once, and the frees of what was no block.

use super::Model;
use super::address::{AddressHistory, Moment, moment};
use super::live_set::Block;
use crate::event::{Event, Kind};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Number of wrong frees that are kept, the newest ones.
const MAX_WRONG: usize = 16;

/// A free, or a reallocation, of an address at which no block was live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongFree {
    pub address: u64,
    /// The event.
    pub moment: Moment,
}

/// The model that collects the blocks that contained one of several addresses.
#[derive(Debug)]
pub struct Addresses {
    pub histories: Vec<AddressHistory>,
    /// Frees of no block, oldest first.
    pub wrong: VecDeque<WrongFree>,
    /// Number of the last event of each thread.
    pub last: FxHashMap<u32, u64>,
}

impl Addresses {
    /// Creates the model for some addresses. It keeps at most `max_holders` blocks of each.
    pub fn new(addresses: &[u64], max_holders: usize) -> Addresses {
        let histories = addresses.iter().map(|address| AddressHistory::new(*address, max_holders)).collect();
        Addresses { histories, wrong: VecDeque::new(), last: FxHashMap::default() }
    }

    fn saw(&mut self, event: &Event) {
        self.last.insert(event.thread, event.number);
    }
}

impl Model for Addresses {
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.saw(event);
        self.histories.iter_mut().for_each(|history| history.alloc(event, block));
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.saw(event);
        self.histories.iter_mut().for_each(|history| history.resize(event, old, block));
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.saw(event);
        self.histories.iter_mut().for_each(|history| history.free(event, old));
    }

    fn unmatched(&mut self, event: &Event) {
        self.saw(event);
        self.histories.iter_mut().for_each(|history| history.unmatched(event));
        if self.wrong.len() == MAX_WRONG {
            self.wrong.pop_front();
        }
        self.wrong.push_back(WrongFree { address: event.address, moment: moment(event) });
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        self.histories.iter_mut().for_each(|history| history.inherited(block, gone));
    }
}
