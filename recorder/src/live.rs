//! Calls in order -> what they did to the live blocks: allocation indexes, halves of resizes
//! joined, frees matched.
//!
//! Every effect stands for one record of the trace (or one unmatched free), in order. The trace
//! that they make is always legal: an index is allocated before it is resized or freed, and no
//! address is live twice.

use crate::index::{Block, Index};
use crate::journal::Journal;
use formats::tape::Entry;
use wire::Op;

/// A call, or half of a resize, with its stack resolved.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What.
    pub op: Op,
    /// Thread number.
    pub thread: u32,
    /// Site; 0 for none.
    pub site: u32,
    /// The block.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Bytes that it stands for when sampled.
    pub weight: u64,
    /// When; never before the call before.
    pub tick: u64,
}

/// What a record of the trace says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `A`: a block of our own.
    Alloc,
    /// `R` of a block of our own.
    Resize,
    /// `F` of a block of our own.
    Free,
    /// `A` in hindsight: a block got from the parent by fork, or one never seen, is about to be
    /// freed or resized.
    Inherited,
    /// `R` of such a block.
    ForeignResize,
    /// `F` of such a block.
    ForeignFree,
    /// `F` in hindsight: the address was allocated again, so a free was not seen.
    Implied,
    /// No record: a free of an address that is not known.
    Unmatched,
}

/// One record of the trace that is not simply what a call did.
#[derive(Clone, Copy, Debug)]
pub struct Effect {
    /// What it says.
    pub kind: Kind,
    /// An [`Entry`] number.
    pub entry: u8,
    /// Allocation index.
    pub index: u64,
    /// What the block was before.
    pub old: Block,
    /// Block, site, thread and tick.
    pub call: Call,
}

/// What a call did, when it did the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// An allocation with this index.
    Alloc(u64),
    /// A resize of this block.
    Resize(Block),
    /// A free of this block.
    Free(Block),
    /// Nothing, or something else: see the effects.
    Else,
}

impl Done {
    /// The effect of a call that did the usual.
    pub fn effect(self, call: &Call) -> Option<Effect> {
        match self {
            Done::Alloc(index) => Some(call.effect(Kind::Alloc, index, Block::default())),
            Done::Resize(old) => Some(call.effect(Kind::Resize, old.index, old)),
            Done::Free(old) => Some(call.effect(Kind::Free, old.index, old)),
            Done::Else => None,
        }
    }
}

/// Ticks by which clocks of two processors may disagree; measured inversions were below 300.
const SKEW: u64 = 4096;
/// Open resizes of one thread (signal handlers nest them); more is a lie.
const MOST_OPEN: usize = 64;
/// Frees waiting for their allocation; a client whose threads' clocks agree has none.
const MOST_HELD: usize = 256;

/// Where a block came from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Own(Block),
    Inherited(Block),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    thread: u32,
    address: u64,
    origin: Origin,
}

/// A recent implied free: the real one may still come.
#[derive(Clone, Copy, Debug)]
struct Implied {
    address: u64,
    thread: u32,
    tick: u64,
}

/// The live blocks of one image.
#[derive(Debug, Default)]
pub struct Live {
    index: Index,
    journal: Journal,
    /// What was got from the parent by fork: the parent's own, then what it had got itself.
    inherited: Vec<Index>,
    inherited_blocks: u64,
    inherited_bytes: u64,
    next_index: u64,
    open: Vec<Open>,
    held: Vec<Call>,
    implied: Vec<Implied>,
    /// Whether calls must be looked at one by one: something is held, may be excused, or was
    /// inherited.
    is_unusual: bool,
    /// Frees and resizes of unknown addresses.
    pub unknown: u64,
    /// Implied frees whose real one came late and was the same.
    pub excused: u64,
    /// Blocks of the parent that must have been freed unseen.
    pub inherited_implied: u64,
}

/// What a forked child starts with.
#[derive(Debug, Default)]
pub struct Inheritance {
    indexes: Vec<Index>,
    /// Blocks in them.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the parent's past reached back to the fork.
    pub exact: bool,
}

/// The tape's number of the C function that was called.
#[inline(always)]
pub fn entry(op: Op) -> u8 {
    match op {
        Op::RESIZE | Op::RESIZE_FREED => Entry::Realloc as u8,
        Op::RESIZE_ARRAY => Entry::Reallocarray as u8,
        op => op.0,
    }
}

impl Call {
    fn effect(&self, kind: Kind, index: u64, old: Block) -> Effect {
        Effect { kind, entry: entry(self.op), index, old, call: *self }
    }
}

impl Live {
    /// Asks for the memory that a call for this address will need.
    #[inline(always)]
    pub fn prefetch(&self, address: u64) {
        self.index.prefetch(address);
    }

    /// Blocks and bytes got from the parent and still there.
    pub fn inherited(&self) -> (u64, u64) {
        (self.inherited_blocks, self.inherited_bytes)
    }

    /// Allocation indexes given so far.
    pub fn allocations(&self) -> u64 {
        self.next_index
    }

    /// Live blocks of our own, open resizes apart.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Whether a block of our own lives there.
    pub fn knows(&self, address: u64) -> bool {
        self.index.get(address).is_some()
    }

    /// Gives the live blocks new indexes from 1 on, in the order of the old ones, for a trace that
    /// begins with them; gives where each lies and what its index was. Blocks whose resize is under
    /// way are among them.
    pub fn renumber(&mut self) -> Vec<(u64, u64, Block)> {
        let mut all: Vec<(u64, u64, Block)> =
            self.index.iter().map(|(address, block)| (address, block.index, block)).collect();
        let open = self.open.iter().filter_map(|open| match open.origin {
            Origin::Own(block) => Some((open.address, block.index, block)),
            Origin::Inherited(_) | Origin::Unknown => None,
        });
        all.extend(open);
        all.sort_unstable_by_key(|(_, old, _)| *old);
        self.next_index = all.len() as u64;
        for ((address, old, block), index) in all.iter_mut().zip(1..) {
            block.index = index;
            let held = |open: &&mut Open| matches!(open.origin, Origin::Own(block) if block.index == *old);
            match self.open.iter_mut().find(held) {
                Some(open) => open.origin = Origin::Own(*block),
                None => drop(self.index.insert(*address, *block)),
            }
        }
        all
    }

    fn new_index(&mut self) -> u64 {
        self.next_index += 1;
        self.next_index
    }

    /// One call. Either it did the usual, or its effects are appended, in their order.
    #[inline(always)]
    pub fn apply(&mut self, call: &Call, many_threads: bool, out: &mut Vec<Effect>) -> Done {
        if self.is_unusual {
            return self.apply_carefully(call, many_threads, out);
        }
        if call.op.is_alloc() {
            let index = self.new_index();
            match self.index.insert(call.address, Block { index, size: call.size, site: call.site }) {
                None => {
                    self.journal.put(call.tick, call.address);
                    return Done::Alloc(index);
                }
                Some(old) => {
                    self.imply(call.address, old, call, out);
                    out.push(call.effect(Kind::Alloc, index, Block::default()));
                }
            }
        } else if call.op.is_free() {
            match self.index.remove(call.address) {
                Some(block) => {
                    self.journal.taken(call.tick, call.address, block);
                    return Done::Free(block);
                }
                None => self.free_other(call, many_threads, out),
            }
        } else {
            return self.resize(call, out);
        }
        Done::Else
    }

    /// The same while frees are held back, may be excused, or blocks were inherited.
    fn apply_carefully(&mut self, call: &Call, many_threads: bool, out: &mut Vec<Effect>) -> Done {
        self.give_up_held(call.tick.saturating_sub(SKEW), out);
        if call.op.is_alloc() {
            let index = self.new_index();
            self.settle(call.address, Block { index, size: call.size, site: call.site }, call, out);
            out.push(call.effect(Kind::Alloc, index, Block::default()));
            self.match_held(call, out);
        } else if !call.op.is_free() {
            let done = self.resize(call, out);
            match done {
                Done::Resize(old) => out.push(call.effect(Kind::Resize, old.index, old)),
                Done::Free(old) => out.push(call.effect(Kind::Free, old.index, old)),
                Done::Alloc(_) | Done::Else => {}
            }
        } else if !self.is_excused(call) {
            match self.index.remove(call.address) {
                Some(block) => {
                    self.journal.taken(call.tick, call.address, block);
                    out.push(call.effect(Kind::Free, block.index, block));
                }
                None => self.free_other(call, many_threads, out),
            }
        }
        self.is_unusual = !(self.held.is_empty() && self.implied.is_empty() && self.inherited.is_empty());
        Done::Else
    }

    /// Puts a block where the program has one now. Whatever is known to be there was freed unseen.
    #[inline]
    fn settle(&mut self, address: u64, block: Block, call: &Call, out: &mut Vec<Effect>) {
        match self.index.insert(address, block) {
            None => self.journal.put(call.tick, address),
            Some(old) => self.imply(address, old, call, out),
        }
        if !self.inherited.is_empty()
            && let Some(_) = self.take_inherited(address)
        {
            self.inherited_implied += 1;
        }
    }

    #[cold]
    fn imply(&mut self, address: u64, old: Block, call: &Call, out: &mut Vec<Effect>) {
        self.journal.taken(call.tick, address, old);
        self.journal.put(call.tick, address);
        let (index, call_of_it) = (old.index, Call { site: 0, address, size: 0, ..*call });
        out.push(Effect { kind: Kind::Implied, entry: Entry::Implied as u8, index, old, call: call_of_it });
        self.is_unusual = true;
        self.implied.retain(|implied| implied.tick + SKEW >= call.tick);
        if self.implied.len() < MOST_HELD {
            self.implied.push(Implied { address, thread: call.thread, tick: call.tick });
        }
    }

    /// Whether a free is the late real one of an implied free: another thread's, within the clocks'
    /// skew.
    fn is_excused(&mut self, call: &Call) -> bool {
        self.implied.retain(|implied| implied.tick + SKEW >= call.tick);
        let late = |implied: &Implied| implied.address == call.address && implied.thread != call.thread;
        let found = self.implied.iter().position(late);
        if let Some(place) = found {
            self.implied.swap_remove(place);
            self.excused += 1;
        }
        found.is_some()
    }

    fn take_inherited(&mut self, address: u64) -> Option<Block> {
        let block = self.inherited.iter_mut().find_map(|index| index.remove(address))?;
        self.inherited_blocks -= 1;
        self.inherited_bytes -= block.size;
        Some(block)
    }

    /// Writes the allocation of a block that this image did not allocate.
    fn introduce(&mut self, call: &Call, address: u64, size: u64, out: &mut Vec<Effect>) -> u64 {
        let index = self.new_index();
        let (old, call) = (Block::default(), Call { site: 0, address, size, weight: 0, ..*call });
        out.push(Effect { kind: Kind::Inherited, entry: Entry::Inherited as u8, index, old, call });
        index
    }

    #[cold]
    fn free_other(&mut self, call: &Call, may_come: bool, out: &mut Vec<Effect>) {
        if let Some(block) = self.take_inherited(call.address) {
            let index = self.introduce(call, call.address, block.size, out);
            out.push(call.effect(Kind::ForeignFree, index, block));
        } else if may_come && self.held.len() < MOST_HELD {
            self.held.push(*call);
            self.is_unusual = true;
        } else {
            self.unknown += 1;
            out.push(call.effect(Kind::Unmatched, 0, Block::default()));
        }
    }

    /// An allocation came: was its free seen already?
    #[cold]
    fn match_held(&mut self, call: &Call, out: &mut Vec<Effect>) {
        let early = |held: &Call| held.address == call.address && held.thread != call.thread;
        if let Some(place) = self.held.iter().position(early) {
            let free = Call { tick: call.tick, ..self.held.remove(place) };
            if let Some(block) = self.index.remove(call.address) {
                self.journal.taken(call.tick, call.address, block);
                out.push(free.effect(Kind::Free, block.index, block));
            }
        }
    }

    /// Frees before `tick` found no allocation.
    #[cold]
    fn give_up_held(&mut self, tick: u64, out: &mut Vec<Effect>) {
        let gone = self.held.iter().take_while(|held| held.tick < tick).count();
        for held in self.held.drain(..gone) {
            self.unknown += 1;
            out.push(held.effect(Kind::Unmatched, 0, Block::default()));
        }
    }

    fn resize(&mut self, call: &Call, out: &mut Vec<Effect>) -> Done {
        if call.op == Op::RESIZE_BEGIN {
            let origin = match self.index.remove(call.address) {
                Some(block) => {
                    self.journal.taken(call.tick, call.address, block);
                    Origin::Own(block)
                }
                None => self.take_inherited(call.address).map_or(Origin::Unknown, Origin::Inherited),
            };
            if self.open.len() >= MOST_OPEN
                && self.open.iter().filter(|open| open.thread == call.thread).count() >= MOST_OPEN
            {
                self.put_back(call.thread, call.tick, out);
            }
            self.open.push(Open { thread: call.thread, address: call.address, origin });
            return Done::Else;
        }
        let place = self.open.iter().rposition(|open| open.thread == call.thread);
        let open = place.map(|place| self.open.remove(place));
        let open = open.unwrap_or(Open { thread: call.thread, address: call.address, origin: Origin::Unknown });
        match (call.op, open.origin) {
            (Op::RESIZE_FAILED, _) => self.reopen(open, call, out),
            (Op::RESIZE_FREED, Origin::Own(block)) => return Done::Free(block),
            (Op::RESIZE_FREED, Origin::Inherited(block)) => {
                let index = self.introduce(call, open.address, block.size, out);
                out.push(call.effect(Kind::ForeignFree, index, block));
            }
            (Op::RESIZE_FREED, Origin::Unknown) => {
                self.unknown += 1;
                out.push(call.effect(Kind::Unmatched, 0, Block::default()));
            }
            (_, Origin::Own(old)) => {
                let before = out.len();
                self.settle(call.address, Block { index: old.index, size: call.size, site: call.site }, call, out);
                if out.len() == before {
                    return Done::Resize(old);
                }
                out.push(call.effect(Kind::Resize, old.index, old));
            }
            (_, origin) => {
                let old = if let Origin::Inherited(block) = origin { block } else { Block::default() };
                self.unknown += u64::from(matches!(origin, Origin::Unknown));
                let index = self.next_index + 1;
                self.settle(call.address, Block { index, size: call.size, site: call.site }, call, out);
                self.introduce(call, open.address, old.size, out);
                out.push(call.effect(Kind::ForeignResize, index, old));
            }
        }
        Done::Else
    }

    /// The block of a resize that did not happen is where it was.
    fn reopen(&mut self, open: Open, call: &Call, out: &mut Vec<Effect>) {
        match open.origin {
            Origin::Own(block) => self.settle(open.address, block, call, out),
            Origin::Inherited(block) => {
                if let Some(index) = self.inherited.first_mut() {
                    index.insert(open.address, block);
                    self.inherited_blocks += 1;
                    self.inherited_bytes += block.size;
                }
            }
            Origin::Unknown => {}
        }
    }

    /// A thread ended inside its resizes: their blocks live on where they were.
    pub fn put_back(&mut self, thread: u32, tick: u64, out: &mut Vec<Effect>) {
        let (gone, rest) = self.open.iter().partition::<Vec<Open>, _>(|open| open.thread == thread);
        self.open = rest;
        for open in gone.into_iter().rev() {
            let (op, address) = (Op::RESIZE_FAILED, open.address);
            self.reopen(open, &Call { op, thread, site: 0, address, size: 0, weight: 0, tick }, out);
        }
    }

    /// The end: nothing more will come for what was held open.
    pub fn finish(&mut self, tick: u64, out: &mut Vec<Effect>) {
        self.give_up_held(u64::MAX, out);
        while let Some(thread) = self.open.first().map(|open| open.thread) {
            self.put_back(thread, tick, out);
        }
    }

    /// What a child forked at `tick` (0: now) has from this image.
    pub fn bequeath(&mut self, tick: u64) -> Inheritance {
        let mut own = self.index.snapshot();
        for open in &self.open {
            if let Origin::Own(block) = open.origin {
                own.insert(open.address, block);
            }
        }
        let exact = tick == 0 || self.journal.undo(tick, &mut own);
        let mut indexes = vec![own];
        indexes.extend(self.inherited.iter_mut().map(Index::snapshot));
        let sums = |sum: (u64, u64), index: &Index| {
            index.iter().fold(sum, |(blocks, bytes), (_, block)| (blocks + 1, bytes + block.size))
        };
        let (blocks, bytes) = indexes.iter().fold((0, 0), sums);
        Inheritance { indexes, blocks, bytes, exact }
    }

    /// Starts as a forked child.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        self.inherited_blocks += inheritance.blocks;
        self.inherited_bytes += inheritance.bytes;
        self.inherited.extend(inheritance.indexes);
        self.is_unusual = !self.inherited.is_empty();
    }
}

#[cfg(test)]
mod tests;
