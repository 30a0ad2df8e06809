//! The verified memo: what the last capture of this thread read, frame by frame, outermost first.
//!
//! A capture steps outwards from the hook until it meets a remembered frame in the same state: same
//! slot, same return address, same frame pointer. From there on the old walk is a pure function of
//! the words that it read, so it is repeated by reading every one of those words again: the return
//! address and, where the step loaded one, the saved frame pointer of each outer frame. All equal:
//! the rest of the stack is the remembered one, and so is its node. Unequal at a frame, or a frame
//! that was reached by a rule that reads more ([`SPECIAL`]): stepping goes on from the last frame
//! that was confirmed. One equal slot alone proves nothing: two callers with frames of equal size
//! share slot and return address of everything inside them.
//!
//! Nothing is assumed about *activations* being the same ones, so longjmp, exceptions and
//! coroutines need no care.
//!
//! Before stepping, [`paths`](super::paths) is asked for the inner part; what it gives stands on
//! the memo's outer frames, which are read again as above.
//!
//! Other stacks than the thread's own ([`super::other`]) are remembered too, without paths. There
//! the remembered words are read one after the other, from the innermost outwards, and only while
//! all before were equal: each is then the word of a frame that is live.

use super::machine::Registers;
use super::other::{OtherStack, Pages};
use super::paths::Paths;
use super::walk::{self, Memory, Next, OwnStack};
use super::{Frame, Frames, LIVE_BP, NODE_FLAGS, SPECIAL, USES_BP, rules};
use crate::intern;
use crate::thread::Block;
use heaptape_wire::limits::MAX_FRAMES;
use heaptape_wire::nodes::{GUESSED, SIGNAL, TRUNCATED};

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
    /// Saved frame pointers and other words that are read again with `frames`, outermost first.
    saved: [Saved; MAX_FRAMES],
    /// Of `saved`, those that belong to the frames up to each; [`STEPPED`] when one of these must
    /// be stepped to.
    saved_upto: [u32; MAX_FRAMES],
    /// Place of the path that lies inside `frames`, plus 1: the frames of the last capture that are
    /// not in `frames` yet.
    top: u32,
    top_bp: u64,
    paths: Paths,
}

/// A saved frame pointer: where, and what was there.
#[derive(Clone, Copy)]
struct Saved {
    place: u64,
    value: u64,
}

/// Flags of a frame that tell of the step from it outwards; the others tell how it was reached.
const ONWARD: u32 = USES_BP | LIVE_BP | GUESSED | TRUNCATED;

/// In [`Memo::generation`]: what is remembered is another stack than the thread's own. Generations
/// are multiples of more.
const OTHER: u32 = 1;

/// In [`Memo::saved_upto`].
const STEPPED: u32 = 1 << 31;

impl Memo {
    /// Remembers nothing from now on.
    pub fn forget(&mut self) {
        self.count = 0;
        self.top = 0;
        self.paths.forget();
    }

    /// Begins a generation of rules, or with a stack of another kind than the last one; `kind` is 0
    /// for the thread's own, or [`OTHER`].
    #[cold]
    #[inline(never)]
    fn begin(&mut self, generation: Option<u32>, kind: u32) {
        match generation {
            // The frames of the own stack are outer ones of a signal handler's; those of another
            // are never read in any order.
            Some(generation) if self.generation | OTHER == generation | OTHER => {
                if kind == 0 {
                    (self.count, self.top) = (0, 0);
                }
            }
            _ => self.forget(),
        }
        self.generation = generation.map_or(0, |generation| generation | kind);
    }

    /// Makes `frames` the whole of the last capture.
    #[inline(always)]
    fn settle(&mut self) {
        if self.top != 0 {
            self.settle_top();
        }
    }

    #[inline(never)]
    fn settle_top(&mut self) {
        let path = self.paths.path(self.top - 1);
        self.top = 0;
        let (base, inner) = (self.count as usize, path.inner());
        path.copy(self.top_bp, &mut self.frames[base..base + inner], &mut self.nodes[base..base + inner]);
        self.count = (base + inner) as u32;
        self.note_saved(base.saturating_sub(1));
    }

    /// Whether every word that the walk outwards from `frames[count - 1]` read is as it was, and
    /// none of its frames must be stepped to.
    #[inline(always)]
    fn holds(&self, count: usize) -> bool {
        let Some(outer) = self.frames.get(..count - 1) else { return false };
        let upto = if outer.is_empty() { 0 } else { self.saved_upto[outer.len() - 1] };
        let Some(saved) = self.saved.get(..upto as usize) else { return false };
        // SAFETY: remembered places lie on the thread's own stack above the frame just matched,
        // which is mapped from there to its end.
        let differs = |place: u64, value: u64| unsafe { (place as *const u64).read_volatile() } ^ value;
        // Four at a time: one branch for four words.
        let (fours, rest) = outer.as_chunks::<4>();
        for four in fours.iter().rev() {
            if four.iter().fold(0, |bits, frame| bits | differs(frame.slot, frame.address)) != 0 {
                return false;
            }
        }
        let bits = rest.iter().fold(0, |bits, frame| bits | differs(frame.slot, frame.address));
        saved.iter().fold(bits, |bits, saved| bits | differs(saved.place, saved.value)) == 0
    }

    /// Notes what is read again for the frames from `base` on.
    #[inline(always)]
    fn note_saved(&mut self, base: usize) {
        let mut upto = if base == 0 { 0 } else { self.saved_upto[base - 1] };
        let mut live = base.checked_sub(1).is_some_and(|outer| self.frames[outer].passes_live_bp());
        for index in base..self.count as usize {
            let frame = &mut self.frames[index];
            live |= frame.flags() & USES_BP != 0;
            frame.how = frame.how & !(u64::from(LIVE_BP) << 32) | if live { u64::from(LIVE_BP) << 32 } else { 0 };
            let words = frame.bp_words();
            if words != 0 && live {
                self.saved[(upto & !STEPPED) as usize] = Saved { place: frame.slot - 8 * words, value: frame.bp };
                upto += 1;
            }
            if frame.flags() & SPECIAL != 0 {
                upto |= STEPPED;
            }
            self.saved_upto[index] = upto;
            live = frame.passes_live_bp();
        }
    }
}

/// The stack node of the call whose return address lies at `sp`.
///
/// # Safety
/// `block` is the calling thread's, its gate busy, and `sp` and `bp` are the hook's as its entry
/// stub gave them.
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
        return intern::node(0, walk::first(sp, bp).address, TRUNCATED);
    }
    if !block.is_on_own_stack(sp) {
        return other(block, sp, bp, settings.max_frames);
    }
    let generation = rules::generation();
    if generation != Some(block.memo.generation) {
        block.begin_generation(generation, sp);
    }
    let first = walk::first(sp, bp);
    let memo = &mut block.memo;
    // SAFETY: the hook's frame, on the thread's own stack.
    if let Some(node) = unsafe { by_path(memo, &first) } {
        return node;
    }
    memo.settle();
    let mut memory = OwnStack { low: sp as u64, end: block.stack_end as u64 };
    let Walked { base, fresh, .. } = collect(memo, first, &mut memory, settings.max_frames);
    if (base + fresh > settings.max_frames) || (memo.is_deep && base + fresh < settings.max_frames / 2) {
        return deep(memo, first, &mut memory, base, fresh, settings.max_frames).0;
    }
    if base == 0 {
        memo.is_deep = fresh == settings.max_frames && memo.fresh[fresh - 1].flags() & TRUNCATED != 0;
    }
    let node = store(memo, base, fresh);
    let count = memo.count as usize;
    // SAFETY: as above.
    unsafe { memo.paths.remember(&first, &memo.frames[..count], &memo.nodes[..count]) };
    node
}

impl Block {
    #[cold]
    #[inline(never)]
    fn begin_generation(&mut self, mut generation: Option<u32>, sp: usize) {
        // SAFETY: the thread's own stack as far as it is known to be mapped.
        if generation.is_none() && unsafe { rules::has_left(sp, self.stack_low, self.stack_end) } {
            generation = rules::generation();
        }
        self.memo.begin(generation, 0);
    }
}

/// The node of the stack, if its inner part goes a known path and stands on remembered frames.
///
/// # Safety
/// `first` is the hook's frame, on the thread's own stack.
#[inline(always)]
unsafe fn by_path(memo: &mut Memo, first: &Frame) -> Option<u32> {
    // SAFETY: the caller's promise.
    let place = unsafe { memo.paths.find(first) }.filter(|_| !memo.is_deep)?;
    let mut base = memo.paths.path(place).base as usize;
    if base > memo.count as usize {
        memo.settle();
        base = memo.paths.path(place).base as usize;
    }
    let path = memo.paths.path(place);
    if base != 0 {
        let (outermost, node) = path.outermost(first.bp);
        let joint = memo.frames.get(base - 1).filter(|_| base <= memo.count as usize)?;
        let difference = (joint.slot ^ outermost.slot) | (joint.address ^ outermost.address);
        let other_bp = joint.bp != outermost.bp && joint.flags() & LIVE_BP != 0;
        if difference != 0 || other_bp || memo.nodes[base - 1] != node || !memo.holds(base) {
            return None;
        }
    }
    let node = path.node();
    if base != 0 {
        let (outermost, _) = path.outermost(first.bp);
        let joint = &mut memo.frames[base - 1];
        (joint.how, joint.bp) = (outermost.how | joint.how & u64::from(ONWARD) << 32, outermost.bp);
    }
    (memo.count, memo.top, memo.top_bp) = (base as u32, place + 1, first.bp);
    Some(node)
}

/// What a walk found.
struct Walked {
    /// Of the outermost remembered frames, those that still hold.
    base: usize,
    /// Frames inside them.
    fresh: usize,
    /// No step was a guess, and none was impossible.
    is_sure: bool,
}

/// Finds how many of the outermost remembered frames still hold, and puts the frames inside them
/// into `fresh`, innermost first.
///
/// The walk's state is kept in scalars, and the two usual kinds of rule are followed here: a frame
/// costs one chain of rule, slot and return address. Everything else goes through [`walk::step`].
#[inline(always)]
fn collect<M: Memory>(memo: &mut Memo, first: Frame, memory: &mut M, most: usize) -> Walked {
    let mut is_sure = true;
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
            let same_bp = old.bp == bp || old.flags() & LIVE_BP == 0;
            old.address == address && same_bp && (old.how | how) >> 32 & u64::from(SIGNAL) == 0
        } {
            // From now on this step leads here: what it read is what must be read again.
            let old = &mut memo.frames[known - 1];
            (old.how, old.bp) = (how | old.how & u64::from(ONWARD) << 32, bp);
            if M::IS_OWN && memo.holds(known) {
                return Walked { base: known, fresh, is_sure };
            }
            let confirmed = confirm(&mut memo.frames[..known]);
            if !M::IS_OWN && confirmed == 0 {
                return Walked { base: known, fresh, is_sure };
            }
            // frames[confirmed..known] hold, the one outside them does not (or must be stepped to).
            while known > confirmed + 1 && fresh < most {
                known -= 1;
                memo.fresh[fresh] = memo.frames[known];
                fresh += 1;
            }
            known = confirmed;
            Frame { slot, address, bp, how } = memo.frames[confirmed];
            how &= !(u64::from(ONWARD) << 32);
            sp = slot + 8;
        }
        let rule = if how >> 32 & u64::from(SIGNAL) == 0 { rules::of(address) } else { rules::at_instruction(address) };
        let uses = if rule.uses_bp() { u64::from(USES_BP) << 32 } else { 0 };
        if fresh < most {
            Frame::put(&mut memo.fresh[fresh], slot, address, bp, how | uses);
            fresh += 1;
        }
        if fresh >= most {
            memo.fresh[fresh - 1].mark(TRUNCATED);
            return Walked { base: 0, fresh, is_sure };
        }
        if rule.is_usual() {
            let base = if rule.is_from_sp() { sp } else { bp };
            let next = base.wrapping_add_signed(rule.offset()).wrapping_sub(8);
            let words = rule.bp_words();
            let Some((found, saved)) = memory.pair(next, next.wrapping_sub(8 * words), sp) else {
                memo.fresh[fresh - 1].mark(TRUNCATED);
                return Walked { base: 0, fresh, is_sure: false };
            };
            if found == 0 {
                return Walked { base: 0, fresh, is_sure };
            }
            bp = if words == 0 { bp } else { saved };
            (slot, address, how, sp) = (next, found, words, next + 8);
            continue;
        }
        let lookup = if (how >> 32) as u32 & SIGNAL != 0 { address } else { address.wrapping_sub(1) };
        match walk::step(Registers { lookup, sp, bp }, rule, memory) {
            Next::Caller(frame, there) => {
                Frame { slot, address, bp, how } = frame;
                sp = there.sp;
            }
            Next::Guessed(frame, there) => {
                is_sure = false;
                memo.fresh[fresh - 1].mark(GUESSED);
                Frame { slot, address, bp, how } = frame;
                sp = there.sp;
            }
            Next::End => return Walked { base: 0, fresh, is_sure },
            Next::Cut => {
                memo.fresh[fresh - 1].mark(TRUNCATED);
                return Walked { base: 0, fresh, is_sure: false };
            }
        }
    }
}

/// Reads again, from the last of `frames` outwards, every word that the remembered walk read. Gives
/// the index of the outermost frame that is confirmed, 0 when all are; their frame pointers are
/// then those of this walk.
#[cold]
#[inline(never)]
fn confirm(frames: &mut [Frame]) -> usize {
    let mut index = frames.len() - 1;
    let mut bp = frames[index].bp;
    while let Some(frame) = index.checked_sub(1).map(|outer| &mut frames[outer]) {
        let words = frame.bp_words();
        // SAFETY: a remembered slot lies on the thread's own stack above the frame just matched,
        // which is mapped from there to its end; a frame pointer's place is below its slot and
        // above that frame, also of a `SPECIAL` one. On another stack all inside this frame was
        // equal, so that its slot holds the return address of a frame that is live.
        let (address, saved) = unsafe {
            let slot = frame.slot as *const u64;
            (slot.read_volatile(), slot.sub(words as usize).read_volatile())
        };
        bp = if words == 0 { bp } else { saved };
        let other_bp = bp != frame.bp && frame.flags() & LIVE_BP != 0;
        if address != frame.address || other_bp || frame.flags() & SPECIAL != 0 {
            break;
        }
        frame.bp = bp;
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
        memo.note_saved(base.saturating_sub(1));
        return parent;
    }
    let mut node = parent;
    let places = memo.frames[base..base + fresh].iter_mut().zip(&mut memo.nodes[base..base + fresh]);
    for ((place, number), frame) in places.zip(memo.fresh[..fresh].iter().rev()) {
        node = intern::node(node, frame.address, frame.flags() & NODE_FLAGS);
        (*place, *number) = (*frame, node);
    }
    memo.count = (base + fresh) as u32;
    memo.note_saved(base.saturating_sub(1));
    node
}

/// Stacks beyond the depth limit. Too many frames: the innermost half of the limit is kept, cut
/// there, so that a recursion pays for its frames' new nodes once in half a limit. A cut stack that
/// has become short again: walked anew.
///
/// Gives the node, and whether the walk was sure.
#[cold]
#[inline(never)]
fn deep<M: Memory>(
    memo: &mut Memo,
    first: Frame,
    memory: &mut M,
    base: usize,
    fresh: usize,
    most: usize,
) -> (u32, bool) {
    if base + fresh <= most {
        memo.count = 0;
        let Walked { fresh, is_sure, .. } = collect(memo, first, memory, most);
        memo.is_deep = fresh == most && memo.fresh[fresh - 1].flags() & TRUNCATED != 0;
        return (store(memo, 0, fresh), is_sure);
    }
    let keep = most / 2;
    let inner = fresh.min(keep);
    let outer = keep - inner;
    memo.frames.copy_within(base - outer..base, 0);
    let mut node = 0;
    for index in 0..outer {
        if index == 0 {
            memo.frames[0].mark(TRUNCATED);
        }
        node = intern::node(node, memo.frames[index].address, memo.frames[index].flags() & NODE_FLAGS);
        memo.nodes[index] = node;
    }
    if outer == 0 {
        memo.fresh[inner - 1].mark(TRUNCATED);
    }
    memo.is_deep = true;
    memo.count = outer as u32;
    memo.note_saved(0);
    (store(memo, outer, inner), true)
}

/// A stack that is not the thread's own.
#[cold]
#[inline(never)]
fn other(block: &mut Block, sp: usize, bp: usize, most: usize) -> u32 {
    let Block { memo, other_pages, pages_before, stack_low, stack_end, .. } = block;
    let generation = rules::generation();
    if generation.is_none_or(|generation| memo.generation != generation | OTHER) {
        memo.begin(generation, OTHER);
    }
    memo.settle();
    *pages_before = *other_pages;
    let first = walk::first(sp, bp);
    let mut memory = OtherStack::new(sp as u64, *stack_low as u64, *stack_end as u64, other_pages);
    let Walked { base, fresh, mut is_sure } = collect(memo, first, &mut memory, most);
    let node = if base + fresh > most || (memo.is_deep && base + fresh < most / 2) {
        let (node, deep_is_sure) = deep(memo, first, &mut memory, base, fresh, most);
        is_sure &= deep_is_sure;
        node
    } else {
        if base == 0 {
            memo.is_deep = fresh == most && memo.fresh[fresh - 1].flags() & TRUNCATED != 0;
        }
        store(memo, base, fresh)
    };
    if is_sure {
        other_pages.keep(sp as u64);
    } else {
        (*other_pages, memo.count) = (*pages_before, 0);
    }
    node
}

/// A nested capture: nothing is remembered.
///
/// # Safety
/// `block` is the calling thread's with `nested_busy` set, and `sp` and `bp` are the hook's.
#[cold]
pub unsafe fn nested(block: *mut Block, sp: usize, bp: usize) -> u32 {
    let settings = intern::settings();
    // SAFETY: `nested_busy` gives these frames to this call alone; the bounds of the thread's own
    // stack are words that the interrupted hook changes one at a time, each to a value that is
    // right with the other.
    let (frames, low, end) =
        unsafe { (&mut (&mut (*block).nested_frames)[..settings.max_frames], (*block).stack_low, (*block).stack_end) };
    let mut pages = Pages::new();
    let mut memory = OtherStack::new(sp as u64, low as u64, end as u64, &mut pages);
    let count = walk::plain(walk::first(sp, bp), &mut memory, frames);
    intern_all(&frames[..count])
}

/// Whether the stack of the hook at `sp` holds the return address at `slot`; `None` when that
/// cannot be said. Stores no frames, so that a nested capture that a jump has left does not stand
/// in its way.
///
/// # Safety
/// `block` is the calling thread's, and `sp` and `bp` are the hook's.
#[cold]
pub unsafe fn meets(block: *mut Block, sp: usize, bp: usize, slot: usize) -> Option<bool> {
    // SAFETY: as in `nested`.
    let (low, end) = unsafe { ((*block).stack_low, (*block).stack_end) };
    let mut pages = Pages::new();
    let mut memory = OtherStack::new(sp as u64, low as u64, end as u64, &mut pages);
    walk::meets(walk::first(sp, bp), slot as u64, intern::settings().max_frames, &mut memory)
}

fn intern_all(frames: &[Frame]) -> u32 {
    frames.iter().rev().fold(0, |node, frame| intern::node(node, frame.address, frame.flags() & NODE_FLAGS))
}
