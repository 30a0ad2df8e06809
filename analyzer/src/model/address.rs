//! The history of one address: each block that contained it.

use super::live_set::Block;
use crate::event::{Event, Kind, Position};
use crate::model::Model;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// How a block came to contain the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The block was allocated.
    Allocated,
    /// It was reallocated, and got its address or size by that.
    Resized,
    /// The process inherited it by fork.
    Inherited,
}

/// An event in the life of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The point in the run.
    pub position: Position,
    /// The function that was called, as a `tape::Entry` number, or 0 if it is unknown.
    pub entry: u8,
    /// Thread number, or 0 if it is unknown.
    pub thread: u32,
    /// Number of the call site, or 0 if it is unknown.
    pub site: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The event that ended the block.
    pub moment: Moment,
    /// Whether the block was reallocated, and not freed.
    pub is_resize: bool,
    /// Whether the free was not recorded, but inferred from the next use of the memory. Thread and
    /// time are not those of the free then.
    pub is_implied: bool,
}

/// A block that contained the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub address: u64,
    /// Size of the block in bytes.
    pub size: u64,
    /// How the block began.
    pub origin: Origin,
    /// First event of the block. That of an inherited block is not known.
    pub begin: Option<Moment>,
    /// End of the block, or `None` while it is live.
    pub end: Option<End>,
}

impl Holder {
    /// Returns the distance of an address to the block in bytes; 0 if the block contains it.
    pub const fn distance(&self, address: u64) -> u64 {
        if address < self.address {
            return self.address - address;
        }
        let offset = address - self.address;
        // A block of 0 bytes has an address, too.
        if offset == 0 || offset < self.size { 0 } else { offset - self.size + 1 }
    }
}

/// What identifies a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Index of an allocation of the process.
    Index(u64),
    /// Address of an inherited block.
    Inherited(u64),
}

/// The model that collects the blocks that contained an address.
#[derive(Debug)]
pub struct AddressHistory {
    address: u64,
    max_holders: usize,
    /// The newest blocks that contained the address, oldest first.
    pub holders: VecDeque<Holder>,
    /// Number of older blocks that are not in `holders`.
    pub older: u64,
    /// Number of frees and reallocations of exactly this address while no block was known there.
    pub unmatched: Vec<Moment>,
    /// The block that came nearest to the address, if none contained it.
    pub nearest: Option<Holder>,
    /// Index of the nearest block while it is live; its address if it was inherited.
    nearest_live: Option<Key>,
    /// Positions in `holders`, plus `older`, of live blocks by index.
    live: FxHashMap<u64, u64>,
    /// The same of live inherited blocks, by address.
    inherited: FxHashMap<u64, u64>,
}

pub(super) const fn moment(event: &Event) -> Moment {
    Moment { position: event.position(), entry: event.entry, thread: event.thread, site: event.site }
}

impl AddressHistory {
    /// Creates the model for an address. It keeps at most `max_holders` blocks, the newest ones.
    pub fn new(address: u64, max_holders: usize) -> Self {
        AddressHistory {
            address,
            max_holders: max_holders.max(1),
            holders: VecDeque::new(),
            older: 0,
            unmatched: Vec::new(),
            nearest: None,
            nearest_live: None,
            live: FxHashMap::default(),
            inherited: FxHashMap::default(),
        }
    }

    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Adds a block. Returns its number if it contains the address.
    fn begin(&mut self, key: Key, holder: Holder) -> Option<u64> {
        let distance = holder.distance(self.address);
        if distance > 0 {
            if self.nearest.is_none_or(|nearest| distance <= nearest.distance(self.address)) {
                self.nearest = Some(holder);
                self.nearest_live = Some(key);
            }
            return None;
        }
        let number = self.older + self.holders.len() as u64;
        self.holders.push_back(holder);
        if self.holders.len() > self.max_holders {
            self.holders.pop_front();
            self.older += 1;
        }
        Some(number)
    }

    fn end(&mut self, number: u64, end: End) {
        if let Some(position) = number.checked_sub(self.older)
            && let Some(holder) = self.holders.get_mut(position as usize)
        {
            holder.end = Some(end);
        }
    }

    /// Ends the nearest block, if it is the one with this key.
    fn end_nearest(&mut self, key: Key, end: End) {
        if self.nearest_live == Some(key)
            && let Some(nearest) = &mut self.nearest
        {
            nearest.end = Some(end);
            self.nearest_live = None;
        }
    }

    fn end_of(&mut self, event: &Event, is_resize: bool) {
        let is_implied = !is_resize && event.is_implied();
        let end = End { moment: moment(event), is_resize, is_implied };
        self.end_nearest(Key::Index(event.index), end);
        if let Some(number) = self.live.remove(&event.index) {
            self.end(number, end);
        }
    }
}

impl Model for AddressHistory {
    fn alloc(&mut self, event: &Event, _: &Block) {
        let (address, size, begin) = (event.address, event.size, Some(moment(event)));
        let holder = Holder { address, size, origin: Origin::Allocated, begin, end: None };
        if let Some(number) = self.begin(Key::Index(event.index), holder) {
            self.live.insert(event.index, number);
        }
    }

    fn resize(&mut self, event: &Event, _: Option<&Block>, _: &Block) {
        self.end_of(event, true);
        let (address, size, begin) = (event.address, event.size, Some(moment(event)));
        let holder = Holder { address, size, origin: Origin::Resized, begin, end: None };
        if let Some(number) = self.begin(Key::Index(event.index), holder) {
            self.live.insert(event.index, number);
        }
    }

    fn free(&mut self, event: &Event, _: Option<&Block>) {
        self.end_of(event, false);
    }

    fn unmatched(&mut self, event: &Event) {
        if event.address == self.address && self.unmatched.len() < self.max_holders {
            self.unmatched.push(moment(event));
        }
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        let Block { address, size, .. } = *block;
        match gone {
            None => {
                let holder = Holder { address, size, origin: Origin::Inherited, begin: None, end: None };
                if let Some(number) = self.begin(Key::Inherited(address), holder) {
                    self.inherited.insert(address, number);
                }
            }
            Some(kind) => {
                let position = block.allocated();
                let moment = Moment { position, entry: 0, thread: 0, site: 0 };
                let end = End { moment, is_resize: kind == Kind::Resize, is_implied: false };
                self.end_nearest(Key::Inherited(address), end);
                if let Some(number) = self.inherited.remove(&address) {
                    self.end(number, end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, index: u64, address: u64, size: u64, number: u64) -> Event {
        Event { entry: 1, thread: 1, site: 1, number, index, address, size, tick: 10 * number, ..Event::of(kind) }
    }

    fn feed(history: &mut AddressHistory, event: Event) {
        let block = Block { address: event.address, size: event.size, ..Block::default() };
        match event.kind {
            Kind::Alloc => history.alloc(&event, &block),
            Kind::Resize => history.resize(&event, None, &block),
            Kind::Free => history.free(&event, None),
            _ => history.unmatched(&event),
        }
    }

    #[test]
    fn blocks_that_contain_the_address_are_kept_with_their_ends() {
        let mut history = AddressHistory::new(0x1010, 2);
        feed(&mut history, event(Kind::Alloc, 1, 0x1000, 32, 0));
        feed(&mut history, event(Kind::Free, 1, 0, 0, 1));
        feed(&mut history, event(Kind::Alloc, 2, 0x1010, 0, 2));
        feed(&mut history, event(Kind::Resize, 2, 0x1008, 9, 3));
        assert_eq!((history.holders.len(), history.older), (2, 1));
        let [first, second] = [history.holders[0], history.holders[1]];
        assert_eq!((first.address, first.end.map(|end| end.is_resize)), (0x1010, Some(true)));
        assert_eq!((second.address, second.origin, second.end), (0x1008, Origin::Resized, None));
        feed(&mut history, event(Kind::Resize, 2, 0x2000, 9, 4));
        assert!(history.holders[1].end.is_some(), "the block has left the address");
        feed(&mut history, event(Kind::Unmatched, 0, 0x1010, 0, 5));
        assert_eq!(history.unmatched.len(), 1);
    }

    #[test]
    fn the_nearest_block_is_known_where_none_contains_the_address() {
        let mut history = AddressHistory::new(0x1020, 2);
        feed(&mut history, event(Kind::Alloc, 1, 0x1000, 31, 0));
        feed(&mut history, event(Kind::Alloc, 2, 0x1000, 32, 1));
        feed(&mut history, event(Kind::Alloc, 3, 0x1030, 32, 2));
        assert!(history.holders.is_empty());
        let nearest = history.nearest.expect("a block near the address");
        assert_eq!((nearest.size, nearest.distance(0x1020)), (32, 1), "one byte after its end");
        assert_eq!(nearest.end, None);
        feed(&mut history, event(Kind::Free, 3, 0, 0, 3));
        assert_eq!(history.nearest, Some(nearest), "another block was freed");
        feed(&mut history, event(Kind::Free, 2, 0, 0, 4));
        assert_eq!(history.nearest.and_then(|nearest| nearest.end).map(|end| end.moment.position.number), Some(4));
    }
}
