//! A small cache a thread of the inner parts of stacks: what the walk from a hook read, for its
//! innermost [`LENGTH`] frames, and their nodes.
//!
//! Stepping is a chain: each frame's place is known only when the frame inside it has been read and
//! its rule looked up (6 to 8 ns a frame). A remembered path names all places at once, so they are
//! read again side by side (under 1 ns a frame). What was read being equal, the walk is the
//! remembered one; nothing rests on how the path was found.
//!
//! Many paths lead to one call at one depth, so a few words of the stack are hashed to choose among
//! them: those where another walk from the same call found return addresses (the *shape*). Frames
//! of other sizes make that hash meaningless, which costs a miss. A path is stored when its hash
//! comes a second time, so that a stack seen once costs one word.

use super::{Frame, LIVE_BP, NODE_FLAGS, SPECIAL, USES_BP};

/// Frames of a path, the one that joins it to the memo included.
pub const LENGTH: usize = 12;
/// Paths kept, a power of two. 384 bytes each.
const PATHS: usize = 256;
/// Shapes kept, a power of two.
const SHAPES: usize = 256;
/// Words that a shape names.
const WORDS: usize = 7;
/// Misses at one shape until it is replaced.
const MAX_MISSES: u32 = 32;
/// Odd constants whose products are spread over the high bits.
const MIX: [u64; WORDS + 2] = [
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
    offsets: [u32; WORDS],
    misses: u32,
}

/// In [`Path::words`], above any number of words.
const DEPENDS: u8 = 128;

/// What one walk read.
#[repr(C, align(64))]
pub struct Path {
    /// Stack pointer at the hook; 0: nothing is stored here.
    sp: u64,
    /// Frame pointer at the hook, and the bits of it that the walk depended on: all or none.
    bp: u64,
    bp_mask: u64,
    /// The hash that came here last.
    seen: u64,
    /// Frames of the memo that the path stands on; the last of them is also the path's outermost.
    /// 0: the path is the whole stack.
    pub base: u32,
    /// Frames, innermost first. The places behind them repeat the first.
    count: u32,
    /// Saved frame pointers that the walk depended on. The places behind them, up to the next
    /// multiple of four, repeat the first frame.
    saved: u32,
    /// How each frame was reached: [`Frame::bp_words`], and [`DEPENDS`] where that word is among
    /// the saved ones.
    words: [u8; LENGTH],
    /// Bits of the frames whose outward step uses the frame pointer.
    uses_bp: u32,
    /// Where each return address lies, in bytes from `sp`.
    offsets: [u32; LENGTH],
    addresses: [u64; LENGTH],
    saved_offsets: [u32; LENGTH],
    saved_values: [u64; LENGTH],
    nodes: [u32; LENGTH],
}

/// The cache.
#[repr(C)]
pub struct PathCache {
    /// Something is stored: what was never used is not touched, which would cost a new thread its
    /// pages.
    used: bool,
    shapes: [Shape; SHAPES],
    path_cache: [Path; PATHS],
}

/// # Safety
/// `sp + offset` is a word of the calling thread's own stack.
#[inline(always)]
unsafe fn word(sp: u64, offset: u32) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { ((sp + u64::from(offset)) as *const u64).read_volatile() }
}

impl Shape {
    /// # Safety
    /// `first` is a frame of a hook on the thread's own stack, and the shape's key is its slot and
    /// address.
    #[inline(always)]
    unsafe fn hash(&self, first: &Frame) -> u64 {
        let key = first.address.wrapping_mul(MIX[WORDS]).wrapping_add(first.slot.wrapping_mul(MIX[WORDS + 1]));
        self.offsets.iter().zip(MIX).fold(key, |hash, (offset, mix)| {
            // SAFETY: a walk from the same stack pointer read this word of the same stack.
            hash.wrapping_add(unsafe { word(first.slot, *offset) }.wrapping_mul(mix))
        })
    }
}

impl Path {
    /// Whether a walk from `first` would read what this one read.
    ///
    /// # Safety
    /// `first` is a hook's frame on the calling thread's own stack.
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
                difference |= word(self.sp, *offset) ^ address;
            }
            let mut index = 0;
            while index < (self.saved as usize).min(LENGTH) {
                for one in index..index + 4 {
                    difference |= word(self.sp, self.saved_offsets[one]) ^ self.saved_values[one];
                }
                index += 4;
            }
        }
        difference == 0
    }

    /// Frames inside the memo's.
    #[inline(always)]
    pub fn inner(&self) -> usize {
        (self.count as usize).min(LENGTH) - usize::from(self.base != 0)
    }

    /// The node of the whole stack.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        self.nodes[0]
    }

    /// The outermost frame, and its node, when the frame pointer at the hook is `bp`.
    #[inline(always)]
    pub fn outermost(&self, bp: u64) -> (Frame, u32) {
        let last = (self.count as usize - 1).min(LENGTH - 1);
        let bp = match self.saved as usize {
            0 => bp,
            saved => self.saved_values[(saved - 1).min(LENGTH - 1)],
        };
        let slot = self.sp + u64::from(self.offsets[last]);
        (
            Frame { slot, address: self.addresses[last], bp, step_info: u64::from(self.words[last] & !DEPENDS) },
            self.nodes[last],
        )
    }

    /// The frames inside the memo's and their nodes, outermost first.
    #[cold]
    pub fn copy(&self, mut bp: u64, frames: &mut [Frame], nodes: &mut [u32]) {
        let inner = self.inner();
        let mut saved = 0;
        for index in 0..inner {
            let words = self.words[index];
            if words & DEPENDS != 0 {
                bp = self.saved_values[saved];
                saved += 1;
            }
            let uses = if self.uses_bp >> index & 1 != 0 { u64::from(USES_BP) << 32 } else { 0 };
            let (slot, address) = (self.sp + u64::from(self.offsets[index]), self.addresses[index]);
            frames[inner - 1 - index] = Frame { slot, address, bp, step_info: u64::from(words & !DEPENDS) | uses };
            nodes[inner - 1 - index] = self.nodes[index];
        }
    }

    #[cold]
    fn fill(&mut self, first: &Frame, frames: &[Frame], nodes: &[u32]) {
        let count = frames.len().min(LENGTH);
        let forward_call = frames.len() - count;
        *self = Path {
            sp: first.slot,
            bp: first.bp,
            bp_mask: if frames[frames.len() - 1].flags() & LIVE_BP != 0 { u64::MAX } else { 0 },
            seen: self.seen,
            base: if forward_call == 0 { 0 } else { forward_call as u32 + 1 },
            count: count as u32,
            saved: 0,
            words: [0; LENGTH],
            uses_bp: 0,
            offsets: [0; LENGTH],
            addresses: [first.address; LENGTH],
            saved_offsets: [0; LENGTH],
            saved_values: [first.address; LENGTH],
            nodes: [0; LENGTH],
        };
        for (index, (frame, node)) in frames[forward_call..].iter().zip(&nodes[forward_call..]).rev().enumerate() {
            let offset = (frame.slot - first.slot) as u32;
            (self.offsets[index], self.addresses[index], self.nodes[index]) = (offset, frame.address, *node);
            let words = frame.bp_words();
            self.words[index] = words as u8;
            if words != 0 && frame.flags() & LIVE_BP != 0 {
                self.words[index] |= DEPENDS;
                let saved = self.saved as usize;
                (self.saved_offsets[saved], self.saved_values[saved]) = (offset - 8 * words as u32, frame.bp);
                self.saved += 1;
            }
            self.uses_bp |= u32::from(frame.flags() & USES_BP != 0) << index;
        }
    }
}

impl PathCache {
    /// Empties the cache.
    #[cold]
    pub fn forget(&mut self) {
        if !core::mem::take(&mut self.used) {
            return;
        }
        self.path_cache.iter_mut().for_each(|path| (path.sp, path.seen) = (0, 0));
    }

    #[inline(always)]
    fn shape(first: &Frame) -> usize {
        ((first.address ^ first.slot).wrapping_mul(MIX[0]) >> (64 - SHAPES.trailing_zeros())) as usize
    }

    /// The place in the cache of the path that a walk from `first` would go.
    ///
    /// # Safety
    /// `first` is a hook's frame on the calling thread's own stack.
    #[inline(always)]
    pub unsafe fn find(&self, first: &Frame) -> Option<u32> {
        let shape = &self.shapes[Self::shape(first)];
        if shape.sp != first.slot || shape.address != first.address {
            return None;
        }
        // SAFETY: the key was compared; the rest is the caller's promise.
        unsafe {
            let place = shape.hash(first) >> (64 - PATHS.trailing_zeros());
            self.path_cache[place as usize].holds(first).then_some(place as u32)
        }
    }

    /// A path found before.
    #[inline(always)]
    pub fn path(&self, place: u32) -> &Path {
        &self.path_cache[place as usize & (PATHS - 1)]
    }

    /// Remembers the walk from `first` that found these frames, outermost first.
    ///
    /// # Safety
    /// `first` is a hook's frame on the calling thread's own stack, and the innermost of `frames`.
    #[inline(never)]
    pub unsafe fn remember(&mut self, first: &Frame, frames: &[Frame], nodes: &[u32]) {
        let inner = &frames[frames.len().saturating_sub(LENGTH)..];
        if frames.is_empty() || inner.iter().any(|frame| frame.flags() & (NODE_FLAGS | SPECIAL) != 0) {
            return;
        }
        let shape = &mut self.shapes[Self::shape(first)];
        if shape.sp != first.slot || shape.address != first.address || shape.misses >= MAX_MISSES {
            *shape = Shape { sp: first.slot, address: first.address, offsets: [0; WORDS], misses: 0 };
            for (offset, frame) in shape.offsets.iter_mut().zip(inner.iter().rev().skip(1)) {
                *offset = (frame.slot - first.slot) as u32;
            }
        }
        shape.misses += 1;
        // SAFETY: the key is this frame's; the rest is the caller's promise.
        let hash = unsafe { shape.hash(first) };
        let path = &mut self.path_cache[(hash >> (64 - PATHS.trailing_zeros())) as usize];
        if path.seen != hash {
            (path.seen, self.used) = (hash, true);
            return;
        }
        path.fill(first, frames, nodes);
    }
}
