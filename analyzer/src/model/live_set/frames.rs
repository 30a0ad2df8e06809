//! Memory of the live set: frames of 64 blocks, divided into groups of 64, 16, 4 or 1. When more
//! frames are in use than memory is meant for, those that nobody touched lie in a temporary file.

use super::spill::Spill;
use super::{Block, PLACES};

/// Kinds of groups: the blocks of a group of kind k are 4^k.
pub const KINDS: usize = 4;

/// Blocks of a group.
pub const fn blocks(kind: u8) -> usize {
    1 << (2 * kind)
}

/// The smallest kind with room for so many blocks.
pub const fn kind_for(count: u32) -> u8 {
    match count {
        0..=1 => 0,
        2..=4 => 1,
        5..=16 => 2,
        _ => 3,
    }
}

#[derive(Debug)]
struct Frame {
    /// None while they lie in the file, or are of no use.
    blocks: Option<Box<[Block; PLACES]>>,
    /// Where they lie in the file, plus one; 0: not there.
    slot: u32,
    /// Whether it was used since the search for one to put away last passed it.
    touched: bool,
}

/// All frames.
#[derive(Debug)]
pub struct Frames {
    frames: Vec<Frame>,
    /// Groups that can be used, by kind: 64 times their frame, plus their first block in it.
    free: [Vec<u32>; KINDS],
    /// Frames that may be in memory, and that are.
    budget: usize,
    resident: usize,
    spill: Spill,
    /// Where the search for a frame to put away goes on.
    hand: usize,
}

const fn split(at: u32) -> (usize, usize) {
    (at as usize / PLACES, at as usize % PLACES)
}

impl Frames {
    /// With so many frames in memory at most.
    pub fn within(budget: usize) -> Self {
        Frames {
            frames: Vec::new(),
            free: [const { Vec::new() }; KINDS],
            budget: budget.max(2),
            resident: 0,
            spill: Spill::default(),
            hand: 0,
        }
    }

    /// A group.
    pub fn take(&mut self, kind: u8) -> u32 {
        let kind = usize::from(kind).min(KINDS - 1);
        if let Some(at) = self.free[kind].pop() {
            return at;
        }
        if kind + 1 == KINDS {
            self.make_room();
            self.resident += 1;
            let blocks = Some(Box::new([Block::default(); PLACES]));
            self.frames.push(Frame { blocks, slot: 0, touched: true });
            return (self.frames.len() as u32 - 1) * PLACES as u32;
        }
        let whole = self.take(kind as u8 + 1);
        let size = blocks(kind as u8) as u32;
        self.free[kind].extend([whole + 3 * size, whole + 2 * size, whole + size]);
        whole
    }

    /// Gives a group back.
    pub fn give(&mut self, at: u32, kind: u8) {
        self.free[usize::from(kind).min(KINDS - 1)].push(at);
    }

    /// A block.
    #[inline]
    pub fn block(&mut self, at: u32) -> &mut Block {
        let (frame, place) = split(at);
        if self.frames[frame].blocks.is_none() {
            self.fetch(frame);
        }
        let frame = &mut self.frames[frame];
        frame.touched = true;
        // `fetch` has just put it there, if it was not.
        &mut frame.blocks.get_or_insert_with(|| Box::new([Block::default(); PLACES]))[place]
    }

    /// A block, when it is in memory.
    #[inline]
    pub fn prefetch(&self, at: u32) -> Option<&Block> {
        let (frame, place) = split(at);
        self.frames.get(frame)?.blocks.as_ref().map(|blocks| &blocks[place])
    }

    /// Blocks of a group, wherever they lie.
    pub fn read(&self, at: u32, count: usize, into: &mut [Block; PLACES]) {
        let (frame, place) = split(at);
        let Some(frame) = self.frames.get(frame) else { return };
        match &frame.blocks {
            Some(blocks) => into[..count].copy_from_slice(&blocks[place..place + count]),
            None => self.spill.read(frame.slot, place, &mut into[..count]),
        }
    }

    /// Frames in memory.
    #[cfg(test)]
    pub const fn resident(&self) -> usize {
        self.resident
    }

    /// Frames in all.
    #[cfg(test)]
    pub const fn count(&self) -> usize {
        self.frames.len()
    }

    /// Brings a frame back from the file.
    #[cold]
    #[inline(never)]
    fn fetch(&mut self, at: usize) {
        self.make_room();
        let mut blocks = Box::new([Block::default(); PLACES]);
        let frame = &mut self.frames[at];
        self.spill.read(frame.slot, 0, &mut blocks[..]);
        self.spill.give(frame.slot);
        (frame.blocks, frame.slot) = (Some(blocks), 0);
        self.resident += 1;
    }

    /// Puts a frame away that was not touched of late, when there are as many in memory as may be.
    #[cold]
    fn make_room(&mut self) {
        if self.resident < self.budget || self.spill.is_broken() {
            return;
        }
        // Twice around: the first time takes away the marks.
        for _ in 0..2 * self.frames.len() {
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[self.hand];
            let Some(blocks) = frame.blocks.as_deref() else { continue };
            if std::mem::take(&mut frame.touched) {
                continue;
            }
            if let Some(slot) = self.spill.put(blocks) {
                (frame.slot, frame.blocks) = (slot, None);
                self.resident -= 1;
            }
            return;
        }
    }
}
