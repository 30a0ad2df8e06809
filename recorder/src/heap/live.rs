//! Translates calls in order to effects on the live blocks: assigns allocation indexes, joins the
//! halves of resizes, matches frees.
//!
//! Every effect is one record of the trace (or one unmatched free), in order. The resulting trace
//! is always valid: an index is allocated before it is resized or freed, and no address is live
//! twice.

mod look_ahead;
mod preview;
mod queues;

use crate::heap::index::{Block, Index, Location};
use crate::heap::journal::{Changes, Journal};
use crate::heap::thread_number::ThreadNumber;
use formats::resident::Covered;
use formats::tape::Entry;
use look_ahead::LookAhead;
use queues::CallQueues;
pub(crate) use queues::WINDOW;
use wire::Op;

/// A call, or half of a resize, with its stack resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// The operation that was called.
    pub op: Op,
    pub thread: ThreadNumber,
    /// Number of the site; 0 for none.
    pub site: u32,
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Number of bytes that a sampled block represents.
    pub weight: u64,
    /// Time of the call. Never before that of the previous call.
    pub tick: u64,
}

/// The kind of a record of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `A`: allocation of a block by this process.
    Alloc,
    /// `R`: resize of a block that this process allocated.
    Resize,
    /// `F`: free of a block that this process allocated.
    Free,
    /// `A`, added later: a block that was inherited from the parent, or never seen, is about to be
    /// freed or resized.
    Inherited,
    /// `R` of an inherited or unknown block.
    ResizeUnknown,
    /// `F` of an inherited block.
    FreeUnknown,
    /// `F`, added later: the address was allocated again, so a free was not seen.
    Implied,
    /// No record: a free of an unknown address.
    Unmatched,
}

/// One record of the trace that is not the usual effect of its call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    pub kind: Kind,
    /// Number of the C function: an [`Entry`].
    pub entry: u8,
    /// Allocation index of the block.
    pub index: u64,
    /// The block before the call.
    pub old: Block,
    /// Address, size, site, thread and time.
    pub call: Call,
}

/// A live block that has a new index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renumbered {
    pub address: u64,
    pub old_index: u64,
    /// The block with its new index.
    pub block: Block,
}

/// The effect of a call, when it is the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// The call allocated a block with this index.
    Alloc(u64),
    /// The call resized this block.
    Resize(Block),
    /// The call freed this block.
    Free(Block),
    /// The call had no effect, or those that were appended to the list.
    Else,
}

impl Done {
    /// Returns the effect of a call that had the usual one.
    pub(crate) fn effect(self, call: &Call) -> Option<Effect> {
        match self {
            Done::Alloc(index) => Some(call.effect(Kind::Alloc, index, Block::default())),
            Done::Resize(old) => Some(call.effect(Kind::Resize, old.index, old)),
            Done::Free(old) => Some(call.effect(Kind::Free, old.index, old)),
            Done::Else => None,
        }
    }
}

/// Maximum number of open resizes of one thread (signal handlers nest them). Only a hostile client
/// has more.
const MAX_OPEN_RESIZES: usize = 64;
/// The origin of a block that is being resized.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Own(Block),
    Inherited(Block),
    Unknown,
    /// The resize was ended early: its second half is an allocation.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct OpenResize {
    thread: ThreadNumber,
    address: u64,
    origin: Origin,
}

/// The live blocks of one process.
#[derive(Debug, Default)]
pub(crate) struct Live {
    index: Index,
    journal: Journal,
    /// Blocks that were inherited by fork: the parent's own, then those that the parent had
    /// inherited itself.
    inherited: Vec<Index>,
    inherited_blocks: u64,
    inherited_bytes: u64,
    /// The pages on which blocks were freed, if they are to be known.
    freed: Option<Covered>,
    next_index: u64,
    open_resizes: Vec<OpenResize>,
    /// The calls that wait until they are legal.
    queues: CallQueues,
    /// The resize whose end all calls wait for.
    ahead: Option<LookAhead>,
    /// Number of calls that were looked at again since there was none.
    repeated: usize,
    /// Whether calls need the slow path: calls are waiting, or blocks were inherited.
    is_unusual: bool,
    /// Number of frees and resizes of unknown addresses.
    pub unknown: u64,
    /// Number of implied frees whose real one was recorded later.
    pub excused: u64,
    /// Number of inherited blocks that must have been freed unseen.
    pub inherited_implied: u64,
}

/// The blocks with which a forked child starts.
#[derive(Debug, Default)]
pub struct Inheritance {
    indexes: Vec<Index>,
    /// The pages on which blocks were freed, if they are known.
    freed: Option<Covered>,
    /// Number of inherited blocks.
    pub blocks: u64,
    /// Number of inherited bytes.
    pub bytes: u64,
    /// Whether the parent's journal reached back to the fork.
    pub exact: bool,
}

/// The blocks of a process, and how to find those of an earlier time.
#[derive(Debug)]
pub(crate) struct BlocksAt {
    /// The own blocks of the process, and then those that it has inherited.
    pub(crate) indexes: Vec<Index>,
    /// The changes of its own blocks since then.
    pub(crate) changes: Changes,
    /// Whether all changes are known.
    pub exact: bool,
}

/// What is live in a process.
#[derive(Debug)]
pub struct LiveMemory {
    pub(crate) blocks: BlocksAt,
    /// The ranges that the program has mapped itself, if all calls that map memory were seen.
    pub(crate) mapped: Option<Vec<(u64, u64)>>,
}

/// Returns the tape's number of the C function that was called.
#[inline(always)]
pub(crate) fn entry(op: Op) -> u8 {
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
    /// Returns the location of the block at this address, and prefetches its memory.
    #[inline(always)]
    pub(crate) fn location(&self, address: u64) -> Location {
        self.index.location(address)
    }

    /// Returns the number of inherited blocks that are live, and their bytes.
    pub(crate) fn inherited(&self) -> (u64, u64) {
        (self.inherited_blocks, self.inherited_bytes)
    }

    /// Returns the live blocks of this process, without those whose resize is open.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Returns whether a block of this process is live at an address.
    pub(crate) fn knows(&self, address: u64) -> bool {
        self.index.get(address).is_some()
    }

    /// Assigns new indexes from 1 on to the live blocks, in the order of the old ones, for a trace
    /// that begins with them. Blocks whose resize is open are included.
    pub(crate) fn renumber(&mut self) -> Vec<Renumbered> {
        let of = |address: u64, block: Block| Renumbered { address, old_index: block.index, block };
        let mut all: Vec<Renumbered> = self.index.iter().map(|(address, block)| of(address, block)).collect();
        let open = self.open_resizes.iter().filter_map(|open| match open.origin {
            Origin::Own(block) => Some(of(open.address, block)),
            Origin::Inherited(_) | Origin::Unknown | Origin::Over => None,
        });
        all.extend(open);
        all.sort_unstable_by_key(|renumbered| renumbered.old_index);
        self.next_index = all.len() as u64;
        for (Renumbered { address, old_index: old, block }, index) in all.iter_mut().zip(1..) {
            block.index = index;
            let held = |open: &&mut OpenResize| matches!(open.origin, Origin::Own(block) if block.index == *old);
            match self.open_resizes.iter_mut().find(held) {
                Some(open) => open.origin = Origin::Own(*block),
                None => drop(self.index.insert(*address, *block)),
            }
        }
        all
    }

    /// Notes that a block was removed.
    #[inline(always)]
    fn removed(&mut self, tick: u64, address: u64, block: Block) {
        self.journal.removed(tick, address, block);
        if let Some(freed) = &mut self.freed {
            freed.freed(address, block.size);
        }
    }

    /// Returns the pages on which blocks were freed.
    pub(crate) fn freed(&mut self) -> &mut Option<Covered> {
        &mut self.freed
    }

    fn new_index(&mut self) -> u64 {
        self.next_index += 1;
        self.next_index
    }

    /// Applies one call. Returns its effect if it is the usual one; otherwise appends its effects
    /// to `out`, in order. With many threads a call that is impossible so far waits.
    #[inline(always)]
    pub(crate) fn apply(&mut self, call: &Call, location: Location, many_threads: bool, out: &mut Vec<Effect>) -> Done {
        if self.is_unusual {
            return self.apply_carefully(call, many_threads, out);
        }
        if call.op.is_alloc() {
            if many_threads && !self.open_resizes.is_empty() && self.reused_by(call).is_some() {
                return self.apply_carefully(call, many_threads, out);
            }
            let index = self.new_index();
            match self.index.insert_at(location, call.address, Block { index, size: call.size, site: call.site }) {
                None => {
                    self.journal.inserted(call.tick, call.address);
                    return Done::Alloc(index);
                }
                Some(old) => self.allocate_live(call, old, many_threads, out),
            }
        } else if call.op.is_free() {
            match self.index.remove_at(location, call.address) {
                Some(block) => {
                    self.removed(call.tick, call.address, block);
                    return Done::Free(block);
                }
                None if many_threads => self.hold(call, out),
                None => self.free_unknown(call, out),
            }
        } else if many_threads && (self.is_illegal(call) || self.reused_by(call).is_some()) {
            return self.apply_carefully(call, many_threads, out);
        } else {
            return self.resize(call, out);
        }
        Done::Else
    }

    /// Applies an allocation whose address was live: its block has replaced `old`.
    #[cold]
    fn allocate_live(&mut self, call: &Call, old: Block, many_threads: bool, out: &mut Vec<Effect>) {
        if many_threads {
            self.index.insert(call.address, old);
            self.next_index -= 1;
            return self.hold(call, out);
        }
        self.imply_free(call.address, old, call, out);
        out.push(call.effect(Kind::Alloc, self.next_index, Block::default()));
    }

    /// Applies one call while calls are waiting, or blocks were inherited.
    #[cold]
    fn apply_carefully(&mut self, call: &Call, many_threads: bool, out: &mut Vec<Effect>) -> Done {
        if self.ahead.is_some() {
            self.apply_or_keep(call, out);
        } else {
            self.apply_now(call, many_threads, out);
        }
        self.is_unusual = !(self.queues.is_empty() && self.inherited.is_empty() && self.ahead.is_none());
        Done::Else
    }

    /// Applies one call while no end of a resize is awaited.
    fn apply_now(&mut self, call: &Call, many_threads: bool, out: &mut Vec<Effect>) {
        self.expire(call.tick, out);
        if let Some(ahead) = &mut self.ahead {
            ahead.keep(call);
        } else if !many_threads {
            self.perform(call, out);
        } else if self.must_wait(call) {
            self.hold(call, out);
        } else {
            if let Some(open) = self.reused_by(call) {
                self.look_ahead(open, call, out);
            }
            match &mut self.ahead {
                Some(ahead) => ahead.keep(call),
                None => {
                    self.perform(call, out);
                    self.wake(call, out);
                }
            }
        }
    }

    /// Applies a call, even if it is impossible: then a free is implied, or a block added.
    fn perform(&mut self, call: &Call, out: &mut Vec<Effect>) {
        if call.op.is_alloc() {
            let index = self.new_index();
            self.insert_block(call.address, Block { index, size: call.size, site: call.site }, call, out);
            out.push(call.effect(Kind::Alloc, index, Block::default()));
        } else if !call.op.is_free() {
            let done = self.resize(call, out);
            out.extend(done.effect(call));
        } else if let Some(block) = self.index.remove(call.address) {
            self.removed(call.tick, call.address, block);
            out.push(call.effect(Kind::Free, block.index, block));
        } else {
            self.free_unknown(call, out);
        }
    }

    /// Inserts a block that the program has now. A block that is known at its address was freed
    /// unseen.
    #[inline]
    fn insert_block(&mut self, address: u64, block: Block, call: &Call, out: &mut Vec<Effect>) {
        match self.index.insert(address, block) {
            None => self.journal.inserted(call.tick, address),
            Some(old) => self.imply_free(address, old, call, out),
        }
        if !self.inherited.is_empty()
            && let Some(_) = self.take_inherited(address)
        {
            self.inherited_implied += 1;
        }
    }

    #[cold]
    fn imply_free(&mut self, address: u64, old: Block, call: &Call, out: &mut Vec<Effect>) {
        self.removed(call.tick, address, old);
        self.journal.inserted(call.tick, address);
        let (index, call_of_it) = (old.index, Call { site: 0, address, size: 0, ..*call });
        out.push(Effect { kind: Kind::Implied, entry: Entry::Implied as u8, index, old, call: call_of_it });
    }

    fn take_inherited(&mut self, address: u64) -> Option<Block> {
        let block = self.inherited.iter_mut().find_map(|index| index.remove(address))?;
        self.inherited_blocks -= 1;
        self.inherited_bytes -= block.size;
        if let Some(freed) = &mut self.freed {
            freed.freed(address, block.size);
        }
        Some(block)
    }

    /// Emits the allocation of a block that this process did not allocate, and returns its index.
    /// `origin` is its block in the parent, or none if nothing is known of it.
    fn add_missing_block(&mut self, call: &Call, address: u64, origin: Option<Block>, out: &mut Vec<Effect>) -> u64 {
        let (index, size) = (self.new_index(), origin.map_or(0, |block| block.size));
        // A block of size 0 is one of unknown origin, unless its entry says that it is inherited.
        let entry = if origin.is_some() && size == 0 { Entry::InheritedEmpty } else { Entry::Inherited };
        let (old, call) = (Block::default(), Call { site: 0, address, size, weight: 0, ..*call });
        out.push(Effect { kind: Kind::Inherited, entry: entry as u8, index, old, call });
        index
    }

    #[cold]
    fn free_unknown(&mut self, call: &Call, out: &mut Vec<Effect>) {
        if let Some(block) = self.take_inherited(call.address) {
            let index = self.add_missing_block(call, call.address, Some(block), out);
            out.push(call.effect(Kind::FreeUnknown, index, block));
        } else {
            self.unknown += 1;
            out.push(call.effect(Kind::Unmatched, 0, Block::default()));
        }
    }

    fn resize(&mut self, call: &Call, out: &mut Vec<Effect>) -> Done {
        if call.op == Op::RESIZE_BEGIN {
            let origin = match self.index.remove(call.address) {
                Some(block) => {
                    self.removed(call.tick, call.address, block);
                    Origin::Own(block)
                }
                None => self.take_inherited(call.address).map_or(Origin::Unknown, Origin::Inherited),
            };
            if self.open_resizes.len() >= MAX_OPEN_RESIZES
                && self.open_resizes.iter().filter(|open| open.thread == call.thread).count() >= MAX_OPEN_RESIZES
            {
                self.undo_open_resizes(call.thread, call.tick, out);
            }
            self.open_resizes.push(OpenResize { thread: call.thread, address: call.address, origin });
            return Done::Else;
        }
        let index = self.open_resizes.iter().rposition(|open| open.thread == call.thread);
        let open = index.map(|index| self.open_resizes.remove(index));
        let open = open.unwrap_or(OpenResize { thread: call.thread, address: call.address, origin: Origin::Unknown });
        self.queues.address_changed(open.address);
        match (call.op, open.origin) {
            (_, Origin::Over) => self.allocate_late(call, out),
            (Op::RESIZE_FAILED, _) => self.undo_resize(open, call, out),
            (Op::RESIZE_FREED, Origin::Own(block)) => return Done::Free(block),
            (Op::RESIZE_FREED, Origin::Inherited(block)) => {
                let index = self.add_missing_block(call, open.address, Some(block), out);
                out.push(call.effect(Kind::FreeUnknown, index, block));
            }
            (Op::RESIZE_FREED, Origin::Unknown) => {
                self.unknown += 1;
                out.push(call.effect(Kind::Unmatched, 0, Block::default()));
            }
            (_, Origin::Own(old)) => {
                let before = out.len();
                self.insert_block(
                    call.address,
                    Block { index: old.index, size: call.size, site: call.site },
                    call,
                    out,
                );
                if out.len() == before {
                    return Done::Resize(old);
                }
                out.push(call.effect(Kind::Resize, old.index, old));
            }
            (_, origin) => {
                let old = if let Origin::Inherited(block) = origin { Some(block) } else { None };
                self.unknown += u64::from(old.is_none());
                let index = self.next_index + 1;
                self.insert_block(call.address, Block { index, size: call.size, site: call.site }, call, out);
                self.add_missing_block(call, open.address, old, out);
                out.push(call.effect(Kind::ResizeUnknown, index, old.unwrap_or_default()));
            }
        }
        Done::Else
    }

    /// Undoes a resize that failed: its block is live again.
    fn undo_resize(&mut self, open: OpenResize, call: &Call, out: &mut Vec<Effect>) {
        match open.origin {
            Origin::Own(block) => self.insert_block(open.address, block, call, out),
            Origin::Inherited(block) => {
                if let Some(index) = self.inherited.first_mut() {
                    index.insert(open.address, block);
                    self.inherited_blocks += 1;
                    self.inherited_bytes += block.size;
                }
            }
            Origin::Unknown | Origin::Over => {}
        }
    }

    /// Ends a thread: applies its waiting calls and undoes its open resizes.
    pub(crate) fn end_thread(&mut self, thread: ThreadNumber, tick: u64, out: &mut Vec<Effect>) {
        self.stop_looking_ahead(u64::MAX, out);
        self.apply_waiting(thread, out);
        self.stop_looking_ahead(u64::MAX, out);
        self.undo_open_resizes(thread, tick, out);
    }

    /// Undoes the open resizes of a thread: their blocks are live again.
    fn undo_open_resizes(&mut self, thread: ThreadNumber, tick: u64, out: &mut Vec<Effect>) {
        let (gone, rest) = self.open_resizes.iter().partition::<Vec<OpenResize>, _>(|open| open.thread == thread);
        self.open_resizes = rest;
        if !gone.is_empty() {
            self.queues.applied(tick);
        }
        for open in gone.into_iter().rev() {
            let (op, address) = (Op::RESIZE_FAILED, open.address);
            self.undo_resize(open, &Call { op, thread, site: 0, address, size: 0, weight: 0, tick }, out);
        }
    }

    /// Applies the calls that need not wait any more: all future calls are after `tick`. Returns
    /// whether there was one.
    pub(crate) fn settle(&mut self, tick: u64, out: &mut Vec<Effect>) -> bool {
        let before = self.waiting().count();
        loop {
            self.stop_looking_ahead(tick, out);
            self.expire(tick, out);
            // The call that was forced last may be an allocation for which we look ahead.
            if !self.ahead.as_ref().is_some_and(|ahead| ahead.is_late(tick)) {
                break;
            }
        }
        self.waiting().count() != before
    }

    /// Applies the calls that wait for the end of a resize.
    pub(crate) fn end_resizes_early(&mut self, out: &mut Vec<Effect>) {
        self.stop_looking_ahead(u64::MAX, out);
    }

    /// Returns the calls that wait until they are legal.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Call> {
        self.queues.calls().chain(self.ahead.iter().flat_map(LookAhead::calls))
    }

    /// Ends the recording: applies waiting calls and undoes open resizes.
    pub(crate) fn finish(&mut self, tick: u64, out: &mut Vec<Effect>) {
        self.settle(u64::MAX, out);
        while let Some(thread) = self.open_resizes.first().map(|open| open.thread) {
            self.undo_open_resizes(thread, tick, out);
        }
    }

    /// Returns the blocks and what leads back to those at `tick`, without a copy of the ones that
    /// do not change.
    pub(crate) fn blocks_at(&mut self, tick: u64) -> BlocksAt {
        let mut own = self.index.snapshot();
        for open in &self.open_resizes {
            if let Origin::Own(block) = open.origin {
                own.insert(open.address, block);
            }
        }
        let (changes, exact) = self.journal.changes_after(tick);
        let mut indexes = vec![own];
        indexes.extend(self.inherited.iter_mut().map(Index::snapshot));
        BlocksAt { indexes, changes, exact }
    }

    /// Returns the blocks that a child forked at `tick` (0: now) inherits from this process.
    pub(crate) fn inheritance_at(&mut self, tick: u64) -> Inheritance {
        let BlocksAt { mut indexes, changes, exact } = self.blocks_at(if tick == 0 { u64::MAX } else { tick });
        changes.undo(&mut indexes[0]);
        let sums = |sum: (u64, u64), index: &Index| {
            index.iter().fold(sum, |(blocks, bytes), (_, block)| (blocks + 1, bytes + block.size))
        };
        let (blocks, bytes) = indexes.iter().fold((0, 0), sums);
        Inheritance { indexes, freed: self.freed.clone(), blocks, bytes, exact }
    }

    /// Adds the blocks that this process inherited as a forked child.
    pub(crate) fn inherit(&mut self, inheritance: Inheritance) {
        self.inherited_blocks += inheritance.blocks;
        self.inherited_bytes += inheritance.bytes;
        self.inherited.extend(inheritance.indexes);
        if self.freed.is_some() && inheritance.freed.is_some() {
            self.freed = inheritance.freed;
        }
        self.is_unusual = true;
    }
}

#[cfg(test)]
mod tests;
