//! A small cache for each thread of the inner parts of stacks: what the walk from a hook read for
//! its innermost [`LENGTH`] frames, and their nodes.
//!
//! Stepping is a chain: the address of a frame is known only when the frame inside it has been read
//! and its rule looked up (6 to 8 ns per frame). A remembered path has all addresses at once, so
//! they are read again in parallel (under 1 ns per frame). If the words are equal, the walk is the
//! remembered one. It does not matter how the path was found.
//!
//! Many paths lead to one call at one depth, so a few words of the stack are hashed to choose among
//! them: those where another walk from the same call found return addresses (the *shape*). With
//! frames of other sizes that hash is meaningless, which costs a miss. A path is stored when its
//! hash comes a second time, so that a stack that is seen once costs one word.

use super::unwind::{Frame, LIVE_BP, NODE_FLAGS, SPECIAL, USES_BP};
use crate::arch::registers::RETURN_ADDRESS;

/// Number of frames of a path, including the one that joins it to the stack cache.
pub(crate) const LENGTH: usize = 12;
/// Number of paths, a power of two. A path has 384 bytes.
const PATHS: usize = 256;
/// Number of shapes, a power of two.
const SHAPES: usize = 256;
/// Number of words of the stack that a shape selects.
const SHAPE_OFFSETS: usize = 7;
/// Number of misses after which a shape is replaced.
const MAX_MISSES: u32 = 32;
/// Multipliers without a factor of two, whose products spread over the high bits.
const MIX: [u64; SHAPE_OFFSETS + 2] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
    0x1d8e_4e27_c47d_124f,
];

#[repr(C, align(64))]
struct Shape {
    sp: u64,
    address: u64,
    offsets: [u32; SHAPE_OFFSETS],
    misses: u32,
}

/// Flag in [`Path::distances`], above any number of words.
const DEPENDS: u16 = 1 << 15;

/// The words that one walk read.
#[repr(C, align(64))]
pub(crate) struct Path {
    /// The stack pointer at the hook; 0 if the entry is empty.
    sp: u64,
    /// The frame pointer at the hook.
    bp: u64,
    /// The bits of `bp` that the walk depended on: all or none.
    bp_mask: u64,
    /// The last hash that selected this entry.
    seen: u64,
    /// Number of frames of the stack cache outside this path. The last of them is also the path's
    /// outermost frame. 0 if the path is the complete stack.
    pub base: u32,
    /// Number of frames, which are stored innermost first. Unused entries repeat the first frame.
    count: u32,
    /// Number of saved frame pointers that the walk depended on. Unused entries up to the next
    /// multiple of four repeat the first frame.
    saved: u32,
    /// How each frame was reached: the low half of [`Frame::step_info`], and [`DEPENDS`] if that
    /// word is one of the saved ones.
    distances: [u16; LENGTH],
    /// One bit for each frame whose outward step uses the frame pointer.
    uses_bp: u32,
    /// The location of each return address, in bytes from `sp`.
    offsets: [u32; LENGTH],
    addresses: [u64; LENGTH],
    saved_offsets: [u32; LENGTH],
    saved_values: [u64; LENGTH],
    nodes: [u32; LENGTH],
}

#[repr(C)]
pub(crate) struct PathCache {
    /// Whether something is stored. A cache that was never used is not touched, since that would
    /// cost a new thread its pages.
    used: bool,
    shapes: [Shape; SHAPES],
    path_cache: [Path; PATHS],
}

/// Reads a word of the stack.
///
/// # Safety
/// `sp + offset` must be the address of a word of the calling thread's own stack.
#[inline(always)]
unsafe fn read_word(sp: u64, offset: u32) -> u64 {
    // SAFETY: the frame is the hook's own on this thread's stack, as the caller ensures.
    unsafe { ((sp + u64::from(offset)) as *const u64).read_volatile() }
}

impl Shape {
    /// Returns the hash of the words that the shape selects.
    ///
    /// # Safety
    /// `first` must be a frame of a hook on the thread's own stack, and the shape's key must be its
    /// slot and address.
    #[inline(always)]
    unsafe fn hash(&self, first: &Frame) -> u64 {
        let key = first
            .address
            .wrapping_mul(MIX[SHAPE_OFFSETS])
            .wrapping_add(first.slot.wrapping_mul(MIX[SHAPE_OFFSETS + 1]));
        self.offsets.iter().zip(MIX).fold(key, |hash, (offset, mix)| {
            // SAFETY: a walk from the same stack pointer read this word of the same stack.
            hash.wrapping_add(unsafe { read_word(first.slot, *offset) }.wrapping_mul(mix))
        })
    }
}

impl Path {
    /// Returns whether a walk from `first` would read what this one read.
    ///
    /// # Safety
    /// `first` must be a hook's frame on the calling thread's own stack.
    #[inline(always)]
    unsafe fn holds(&self, first: &Frame) -> bool {
        if self.sp != first.slot {
            return false;
        }
        let mut difference = (self.bp ^ first.bp) & self.bp_mask;
        // SAFETY: the path was found by a walk from the same stack pointer, which read these words
        // of the same stack; everything from the hook to the stack's end is mapped.
        unsafe {
            for (offset, address) in self.offsets.iter().zip(&self.addresses) {
                difference |= (read_word(self.sp, *offset) ^ address) & RETURN_ADDRESS;
            }
            let mut index = 0;
            while index < (self.saved as usize).min(LENGTH) {
                for one in index..index + 4 {
                    difference |= read_word(self.sp, self.saved_offsets[one]) ^ self.saved_values[one];
                }
                index += 4;
            }
        }
        difference == 0
    }

    /// Returns the number of frames inside those of the stack cache.
    #[inline(always)]
    pub(crate) fn inner(&self) -> usize {
        (self.count as usize).min(LENGTH) - usize::from(self.base != 0)
    }

    /// Returns the node of the complete stack.
    #[inline(always)]
    pub(crate) fn node(&self) -> u32 {
        self.nodes[0]
    }

    /// Returns the outermost frame and its node, given the frame pointer `bp` at the hook.
    #[inline(always)]
    pub(crate) fn outermost(&self, bp: u64) -> (Frame, u32) {
        let last = (self.count as usize - 1).min(LENGTH - 1);
        let bp = match self.saved as usize {
            0 => bp,
            saved => self.saved_values[(saved - 1).min(LENGTH - 1)],
        };
        let slot = self.sp + u64::from(self.offsets[last]);
        (
            Frame { slot, address: self.addresses[last], bp, step_info: u64::from(self.distances[last] & !DEPENDS) },
            self.nodes[last],
        )
    }

    /// Copies the frames inside those of the stack cache, and their nodes, outermost first.
    #[cold]
    pub(crate) fn copy(&self, mut bp: u64, frames: &mut [Frame], nodes: &mut [u32]) {
        let inner = self.inner();
        let mut saved = 0;
        for index in 0..inner {
            let distance = self.distances[index];
            if distance & DEPENDS != 0 {
                bp = self.saved_values[saved];
                saved += 1;
            }
            let uses = if self.uses_bp >> index & 1 != 0 { u64::from(USES_BP) << 32 } else { 0 };
            let (slot, address) = (self.sp + u64::from(self.offsets[index]), self.addresses[index]);
            frames[inner - 1 - index] = Frame { slot, address, bp, step_info: u64::from(distance & !DEPENDS) | uses };
            nodes[inner - 1 - index] = self.nodes[index];
        }
    }

    #[cold]
    fn fill(&mut self, first: &Frame, frames: &[Frame], nodes: &[u32]) {
        let count = frames.len().min(LENGTH);
        let outer = frames.len() - count;
        *self = Path {
            sp: first.slot,
            bp: first.bp,
            bp_mask: if frames[frames.len() - 1].flags() & LIVE_BP != 0 { u64::MAX } else { 0 },
            seen: self.seen,
            base: if outer == 0 { 0 } else { outer as u32 + 1 },
            count: count as u32,
            saved: 0,
            distances: [0; LENGTH],
            uses_bp: 0,
            offsets: [0; LENGTH],
            addresses: [first.address; LENGTH],
            saved_offsets: [0; LENGTH],
            saved_values: [first.address; LENGTH],
            nodes: [0; LENGTH],
        };
        for (index, (frame, node)) in frames[outer..].iter().zip(&nodes[outer..]).rev().enumerate() {
            let offset = (frame.slot - first.slot) as u32;
            (self.offsets[index], self.addresses[index], self.nodes[index]) = (offset, frame.address, *node);
            let distance = frame.bp_distance();
            self.distances[index] = frame.step_info as u16;
            if distance != 0 && frame.flags() & LIVE_BP != 0 {
                self.distances[index] |= DEPENDS;
                let saved = self.saved as usize;
                (self.saved_offsets[saved], self.saved_values[saved]) = (offset - 8 * distance as u32, frame.bp);
                self.saved += 1;
            }
            self.uses_bp |= u32::from(frame.flags() & USES_BP != 0) << index;
        }
    }
}

impl PathCache {
    /// Removes all paths from the cache.
    #[cold]
    pub(crate) fn forget(&mut self) {
        if !core::mem::take(&mut self.used) {
            return;
        }
        self.path_cache.iter_mut().for_each(|path| (path.sp, path.seen) = (0, 0));
    }

    #[inline(always)]
    fn shape(first: &Frame) -> usize {
        ((first.address ^ first.slot).wrapping_mul(MIX[0]) >> (64 - SHAPES.trailing_zeros())) as usize
    }

    /// Returns the index of the path that a walk from `first` would take.
    ///
    /// # Safety
    /// `first` must be a hook's frame on the calling thread's own stack.
    #[inline(always)]
    pub(crate) unsafe fn find(&self, first: &Frame) -> Option<u32> {
        let shape = &self.shapes[Self::shape(first)];
        if shape.sp != first.slot || shape.address != first.address {
            return None;
        }
        // SAFETY: the key was compared; the frame or state is this thread's, as the caller ensures.
        unsafe {
            let index = shape.hash(first) >> (64 - PATHS.trailing_zeros());
            self.path_cache[index as usize].holds(first).then_some(index as u32)
        }
    }

    /// Returns a path by the index that [`PathCache::find`] returned.
    #[inline(always)]
    pub(crate) fn path(&self, index: u32) -> &Path {
        &self.path_cache[index as usize & (PATHS - 1)]
    }

    /// Remembers the walk from `first` that found these frames, outermost first.
    ///
    /// # Safety
    /// `first` must be a hook's frame on the calling thread's own stack, and the innermost of
    /// `frames`.
    #[inline(never)]
    pub(crate) unsafe fn remember(&mut self, first: &Frame, frames: &[Frame], nodes: &[u32]) {
        let inner = &frames[frames.len().saturating_sub(LENGTH)..];
        if frames.is_empty() || inner.iter().any(|frame| frame.flags() & (NODE_FLAGS | SPECIAL) != 0) {
            return;
        }
        let shape = &mut self.shapes[Self::shape(first)];
        if shape.sp != first.slot || shape.address != first.address || shape.misses >= MAX_MISSES {
            *shape = Shape { sp: first.slot, address: first.address, offsets: [0; SHAPE_OFFSETS], misses: 0 };
            for (offset, frame) in shape.offsets.iter_mut().zip(inner.iter().rev().skip(1)) {
                *offset = (frame.slot - first.slot) as u32;
            }
        }
        shape.misses += 1;
        // SAFETY: the key is this frame's; the frame or state is this thread's, as the caller
        // ensures.
        let hash = unsafe { shape.hash(first) };
        let path = &mut self.path_cache[(hash >> (64 - PATHS.trailing_zeros())) as usize];
        if path.seen != hash {
            (path.seen, self.used) = (hash, true);
            return;
        }
        path.fill(first, frames, nodes);
    }
}
