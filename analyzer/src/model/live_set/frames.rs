//! The memory of the live set: frames of 64 blocks, divided into groups of 64, 16, 4 or 1. If there
//! are more frames than the limit, those that were not used recently are stored in a temporary
//! file.

use super::spill::Spill;
use super::{BLOCKS_PER_PAGE, Block};

/// Number of kinds of groups. A group of kind k has 4^k blocks.
pub(super) const KINDS: usize = 4;

/// Returns the number of blocks of a group of a kind.
pub(super) const fn group_size(kind: u8) -> usize {
    1 << (2 * kind)
}

/// Returns the smallest kind whose groups have at least `count` blocks.
pub(super) const fn kind_for(count: u32) -> u8 {
    match count {
        0..=1 => 0,
        2..=4 => 1,
        5..=16 => 2,
        _ => 3,
    }
}

/// Memory of 64 blocks.
#[derive(Debug)]
struct Frame {
    /// Index of the blocks in [`Frames::memory`], or `None` while they are in the file.
    blocks: Option<u32>,
    /// Number of the slot in the file plus one, or 0 if the frame is in memory.
    slot: u32,
    /// Whether the frame was used since the clock hand last passed it.
    referenced: bool,
}

/// All frames of a live set. Blocks have an index: 64 times the number of their frame, plus their
/// offset in it. Frames are evicted with the CLOCK algorithm.
#[derive(Debug)]
pub(super) struct Frames {
    frames: Vec<Frame>,
    /// The blocks of the frames in memory. They are used at random, and so are in one allocation: a
    /// large one is in huge pages.
    memory: Vec<[Block; BLOCKS_PER_PAGE]>,
    /// Unused indexes in `memory`.
    unused: Vec<u32>,
    /// Free groups by kind, as the index of their first block.
    free: [Vec<u32>; KINDS],
    /// Maximum number of frames in memory.
    max_resident: usize,
    spill: Spill,
    /// The clock hand: number of the frame at which the search for a victim continues.
    hand: usize,
}

/// Splits the index of a block into frame number and offset.
const fn split(index: u32) -> (usize, usize) {
    (index as usize / BLOCKS_PER_PAGE, index as usize % BLOCKS_PER_PAGE)
}

impl Frames {
    /// Creates frames of which at most `max_resident` are in memory, at least two.
    pub(super) fn with_limit(max_resident: usize) -> Self {
        Frames {
            frames: Vec::new(),
            memory: Vec::new(),
            unused: Vec::new(),
            free: [const { Vec::new() }; KINDS],
            max_resident: max_resident.max(2),
            spill: Spill::default(),
            hand: 0,
        }
    }

    /// Allocates a group and returns the index of its first block.
    pub(super) fn allocate(&mut self, kind: u8) -> u32 {
        let kind = usize::from(kind).min(KINDS - 1);
        if let Some(index) = self.free[kind].pop() {
            return index;
        }
        if kind + 1 == KINDS {
            let blocks = Some(self.take());
            self.frames.push(Frame { blocks, slot: 0, referenced: true });
            return (self.frames.len() as u32 - 1) * BLOCKS_PER_PAGE as u32;
        }
        let parent = self.allocate(kind as u8 + 1);
        let size = group_size(kind as u8) as u32;
        self.free[kind].extend([parent + 3 * size, parent + 2 * size, parent + size]);
        parent
    }

    /// Frees a group of a kind.
    pub(super) fn release(&mut self, index: u32, kind: u8) {
        self.free[usize::from(kind).min(KINDS - 1)].push(index);
    }

    /// Returns a block. Loads its frame if it is in the file.
    #[inline]
    pub(super) fn block(&mut self, index: u32) -> &mut Block {
        let (frame, offset) = split(index);
        if self.frames[frame].blocks.is_none() {
            self.load(frame);
        }
        let frame = &mut self.frames[frame];
        frame.referenced = true;
        // `load` ensures that the blocks are in memory.
        &mut self.memory[frame.blocks.unwrap_or(0) as usize][offset]
    }

    /// Returns a block if it is in memory.
    #[inline]
    pub(super) fn prefetch(&self, index: u32) -> Option<&Block> {
        let (frame, offset) = split(index);
        self.frames.get(frame)?.blocks.map(|blocks| &self.memory[blocks as usize][offset])
    }

    /// Copies the first `count` blocks of a group. A frame in the file stays there.
    pub(super) fn read(&self, index: u32, count: usize, into: &mut [Block; BLOCKS_PER_PAGE]) {
        let (frame, offset) = split(index);
        let Some(frame) = self.frames.get(frame) else { return };
        match frame.blocks {
            Some(blocks) => into[..count].copy_from_slice(&self.memory[blocks as usize][offset..offset + count]),
            None => self.spill.read(frame.slot, offset, &mut into[..count]),
        }
    }

    /// Returns the number of frames in memory.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> usize {
        self.memory.len() - self.unused.len()
    }

    #[cfg(test)]
    pub(crate) const fn count(&self) -> usize {
        self.frames.len()
    }

    /// Loads a frame from the file.
    #[cold]
    #[inline(never)]
    fn load(&mut self, index: usize) {
        let blocks = self.take();
        let frame = &mut self.frames[index];
        self.spill.read(frame.slot, 0, &mut self.memory[blocks as usize]);
        self.spill.release(frame.slot);
        (frame.blocks, frame.slot) = (Some(blocks), 0);
    }

    /// Returns the index of unused memory. Its blocks are of any value.
    fn take(&mut self) -> u32 {
        self.evict_one();
        self.unused.pop().unwrap_or_else(|| {
            self.memory.push([Block::default(); BLOCKS_PER_PAGE]);
            self.memory.len() as u32 - 1
        })
    }

    /// Writes a frame that was not used recently to the file, if the limit is reached.
    #[cold]
    fn evict_one(&mut self) {
        if self.memory.len() - self.unused.len() < self.max_resident || self.spill.is_broken() {
            return;
        }
        // Two rounds, because the first one clears the reference bits.
        for _ in 0..2 * self.frames.len() {
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[self.hand];
            let Some(blocks) = frame.blocks else { continue };
            if std::mem::take(&mut frame.referenced) {
                continue;
            }
            if let Some(slot) = self.spill.write(&self.memory[blocks as usize]) {
                (frame.slot, frame.blocks) = (slot, None);
                self.unused.push(blocks);
            }
            return;
        }
    }
}
