//! The verified memo: what the last capture of this thread read, frame by frame, outermost first.
//!
//! A capture steps outwards from the hook until it meets a remembered frame in the same state: same slot, same return address, same frame
//! pointer. From there on the old walk is a pure function of the words that it read, so it is repeated by reading every one of those words
//! again: the return address and, where the step loaded one, the saved frame pointer of each outer frame. All equal: the rest of the stack
//! is the remembered one, and so is its node. Unequal at a frame, or a frame that was reached by a rule that reads more ([`SPECIAL`]): stepping
//! goes on from the last frame that was confirmed. One equal slot alone proves nothing: two callers with frames of equal size share
//! slot and return address of everything inside them.
//!
//! Nothing is assumed about *activations* being the same ones, so longjmp, exceptions and coroutines need no care.

use super::machine::Registers;
use super::runs::Runs;
use super::walk::{self, Next, OwnStack, Probed};
use super::{Frame, Frames, NODE_FLAGS, SPECIAL, rules};
use crate::intern;
use crate::thread::Block;
use heaptape_wire::limits::MAX_FRAMES;
use heaptape_wire::nodes::{CUT, GUESS, SIGNAL};

/// The memo and the room for a capture in progress.
#[repr(C)]
pub struct Memo {
    generation: u32,
    count: u32,
    /// The outermost remembered frame is not the outermost of the stack: the depth limit cut there.
    is_deep: bool,
    frames: Frames,
    /// Stack node of the stack from the outermost frame to each.
    nodes: [u32; MAX_FRAMES],
    fresh: Frames,
    runs: Runs,
}

impl Memo {
    /// Remembers nothing from now on.
    pub fn forget(&mut self) {
        self.count = 0;
        self.runs.forget();
    }
}

/// The stack node of the call whose return address lies at `sp`.
///
/// # Safety
/// `block` is the calling thread's, its gate busy, and `sp` and `bp` are the hook's as its entry stub gave them.
#[inline(always)]
pub unsafe fn capture(block: *mut Block, sp: usize, bp: usize) -> u32 {
    // SAFETY: the caller's promise.
    let node = unsafe { captured(block, sp, bp) };
    #[cfg(heaptape_verify)]
    // SAFETY: the caller's promise.
    unsafe {
        super::check::compare(block, sp, bp, node)
    };
    node
}

/// # Safety
/// As [`capture`].
#[inline(always)]
unsafe fn captured(block: *mut Block, sp: usize, bp: usize) -> u32 {
    // SAFETY: the gate is busy, so no handler on this thread touches memo and frames meanwhile.
    let block = unsafe { &mut *block };
    let settings = intern::settings();
    if settings.caller_only {
        return intern::node(0, walk::first(sp, bp).address, CUT);
    }
    if !block.is_on_own_stack(sp) {
        return foreign(block, sp, bp, settings.max_frames);
    }
    let generation = rules::generation();
    if generation != Some(block.memo.generation) {
        block.memo.generation = generation.unwrap_or(0);
        block.memo.forget();
    }
    let memory = OwnStack { low: sp as u64, end: block.stack_end as u64 };
    let memo = &mut block.memo;
    let (base, fresh) = collect(memo, walk::first(sp, bp), memory, settings.max_frames);
    if (base + fresh > settings.max_frames) || (memo.is_deep && base + fresh < settings.max_frames / 2) {
        return deep(memo, sp, bp, block.stack_end, base, fresh, settings.max_frames);
    }
    if base == 0 {
        memo.is_deep = fresh == settings.max_frames && memo.fresh[fresh - 1].flags() & CUT != 0;
    }
    store(memo, base, fresh)
}

/// Finds how many of the outermost remembered frames still hold, and puts the frames inside them into `fresh`, innermost first.
///
/// The walk's state is kept in scalars, and the two usual kinds of rule are followed here: a frame costs one chain of rule, slot and return
/// address. Everything else goes through [`walk::step`].
#[inline(always)]
fn collect(memo: &mut Memo, first: Frame, mut memory: OwnStack, most: usize) -> (usize, usize) {
    let Frame { mut slot, mut address, mut bp, mut how } = first;
    let mut sp = slot + 8;
    let mut known = (memo.count as usize).min(MAX_FRAMES);
    let mut fresh = 0;
    loop {
        while known > 0 && memo.frames[known - 1].slot < slot {
            known -= 1;
        }
        if known > 0 && memo.frames[known - 1].slot == slot && {
            let old = &memo.frames[known - 1];
            old.address == address && old.bp == bp && (old.how | how) >> 32 & u64::from(SIGNAL) == 0
        } {
            let confirmed = confirm(&memo.frames[..known]);
            if confirmed == 0 {
                return (known, fresh);
            }
            // frames[confirmed..known] hold, the one outside them does not (or must be stepped to).
            while known > confirmed && fresh < most {
                known -= 1;
                memo.fresh[fresh] = memo.frames[known];
                fresh += 1;
            }
            Frame { slot, address, bp, how } = memo.frames[confirmed];
            sp = slot + 8;
        } else if fresh < most {
            Frame::put(&mut memo.fresh[fresh], slot, address, bp, how);
            fresh += 1;
        }
        if fresh >= most {
            memo.fresh[fresh - 1].mark(CUT);
            return (0, fresh);
        }
        let rule = if how >> 32 == 0 { rules::of(address) } else { walk::rule_of(&memo.fresh[fresh - 1]) };
        if rule.is_usual() {
            let base = if rule.is_from_sp() { sp } else { bp };
            let next = base.wrapping_add_signed(rule.offset()).wrapping_sub(8);
            let words = rule.bp_words();
            let saved = next.wrapping_sub(8 * words);
            if next < sp || next >= memory.end || next & 7 != 0 || saved < memory.low {
                memo.fresh[fresh - 1].mark(CUT);
                return (0, fresh);
            }
            // SAFETY: low <= saved <= next < end, multiples of 8: words of the thread's own stack, all of it mapped.
            let (found, saved) =
                unsafe { ((next as *const u64).read_volatile(), (saved as *const u64).read_volatile()) };
            if found == 0 {
                return (0, fresh);
            }
            bp = if words == 0 { bp } else { saved };
            (slot, address, how, sp) = (next, found, words, next + 8);
            continue;
        }
        let lookup = if (how >> 32) as u32 & SIGNAL != 0 { address } else { address.wrapping_sub(1) };
        match walk::step(Registers { lookup, sp, bp }, rule, &mut memory) {
            Next::Caller(frame, there) => {
                Frame { slot, address, bp, how } = frame;
                sp = there.sp;
            }
            Next::Guessed(frame, there) => {
                memo.fresh[fresh - 1].mark(GUESS);
                Frame { slot, address, bp, how } = frame;
                sp = there.sp;
            }
            Next::End => return (0, fresh),
            Next::Cut => {
                memo.fresh[fresh - 1].mark(CUT);
                return (0, fresh);
            }
        }
    }
}

/// Reads again, from the last of `frames` outwards, every word that the remembered walk read. Gives the index of the outermost frame that is
/// confirmed: 0 when all are.
#[inline(always)]
fn confirm(frames: &[Frame]) -> usize {
    /// Bits that differ in what a remembered frame names; not 0 too for one that must be stepped to.
    #[inline(always)]
    fn difference(frame: &Frame) -> u64 {
        let words = frame.bp_words();
        // SAFETY: a remembered slot lies on the thread's own stack above the frame just matched, which is mapped from there to its
        // end; a frame pointer's place is below its slot and above that frame, also of a `SPECIAL` one.
        unsafe {
            let slot = frame.slot as *const u64;
            let saved = slot.sub(words as usize);
            let expected = if words == 0 { frame.address } else { frame.bp };
            (slot.read_volatile() ^ frame.address)
                | (saved.read_volatile() ^ expected)
                | (frame.how >> 32 & u64::from(SPECIAL))
        }
    }
    let mut index = frames.len() - 1;
    // Four at a time: one branch for eight words.
    while let Some(outer) = index.checked_sub(4).and_then(|from| frames.get(from..index)) {
        if outer.iter().fold(0, |bits, frame| bits | difference(frame)) != 0 {
            break;
        }
        index -= 4;
    }
    while index > 0 && difference(&frames[index - 1]) == 0 {
        index -= 1;
    }
    index
}

/// Gives the fresh frames their nodes and remembers them inside the `base` old ones.
#[inline(always)]
fn store(memo: &mut Memo, base: usize, fresh: usize) -> u32 {
    let parent = if base == 0 { 0 } else { memo.nodes[base - 1] };
    if fresh == 0 {
        memo.count = base as u32;
        return parent;
    }
    let nodes = &mut memo.nodes[base..base + fresh];
    memo.runs.nodes(parent, &memo.fresh[..fresh], nodes);
    let node = nodes[fresh - 1];
    for (place, frame) in memo.frames[base..base + fresh].iter_mut().zip(memo.fresh[..fresh].iter().rev()) {
        *place = *frame;
    }
    memo.count = (base + fresh) as u32;
    node
}

/// Stacks beyond the depth limit. Too many frames: the innermost half of the limit is kept, cut there, so that a recursion pays for its
/// frames' new nodes once in half a limit. A cut stack that has become short again: walked anew.
#[cold]
#[inline(never)]
fn deep(memo: &mut Memo, sp: usize, bp: usize, end: usize, base: usize, fresh: usize, most: usize) -> u32 {
    if base + fresh <= most {
        memo.count = 0;
        let (_, fresh) = collect(memo, walk::first(sp, bp), OwnStack { low: sp as u64, end: end as u64 }, most);
        memo.is_deep = fresh == most && memo.fresh[fresh - 1].flags() & CUT != 0;
        return store(memo, 0, fresh);
    }
    let keep = most / 2;
    let inner = fresh.min(keep);
    let outer = keep - inner;
    memo.frames.copy_within(base - outer..base, 0);
    let mut node = 0;
    for index in 0..outer {
        if index == 0 {
            memo.frames[0].mark(CUT);
        }
        node = intern::node(node, memo.frames[index].address, memo.frames[index].flags() & NODE_FLAGS);
        memo.nodes[index] = node;
    }
    if outer == 0 {
        memo.fresh[inner - 1].mark(CUT);
    }
    memo.is_deep = true;
    store(memo, outer, inner)
}

/// A stack that is not the thread's own.
#[cold]
#[inline(never)]
fn foreign(block: &mut Block, sp: usize, bp: usize, most: usize) -> u32 {
    let count = walk::plain(walk::first(sp, bp), &mut Probed::default(), &mut block.memo.fresh[..most]);
    intern_all(&block.memo.fresh[..count])
}

/// The node of a nested capture: nothing is remembered, all is probed.
///
/// # Safety
/// `block` is the calling thread's with `nested_busy` set, and `sp` and `bp` are the hook's.
#[cold]
pub unsafe fn nested(block: *mut Block, sp: usize, bp: usize) -> u32 {
    let settings = intern::settings();
    // SAFETY: `nested_busy` gives these frames to this call alone.
    let frames = unsafe { &mut (&mut (*block).nested_frames)[..settings.max_frames] };
    let count = walk::plain(walk::first(sp, bp), &mut Probed::default(), frames);
    intern_all(&frames[..count])
}

fn intern_all(frames: &[Frame]) -> u32 {
    frames.iter().rev().fold(0, |node, frame| intern::node(node, frame.address, frame.flags() & NODE_FLAGS))
}
