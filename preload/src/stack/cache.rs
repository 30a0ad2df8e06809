//! The stack cache: what the last capture of this thread read, frame by frame, outermost first.
//!
//! A capture steps outwards from the hook until it reaches a remembered frame in the same state:
//! the same slot, the same return address, the same frame pointer. From there on the old walk is a
//! pure function of the words that it read. So it is repeated by reading each of these words again:
//! the return address and, where the step loaded one, the saved frame pointer of each outer frame.
//! If all are equal, the rest of the stack is the remembered one, and so is its node. If a word
//! differs, or a frame was reached by a rule that reads more ([`SPECIAL`]), stepping continues from
//! the last confirmed frame. One equal slot alone proves nothing: two callers with frames of equal
//! size share the slot and the return address of everything inside them.
//!
//! The cache does not assume that the *activations* of the functions are the same, so longjmp,
//! exceptions and coroutines need no special care.
//!
//! Before stepping, the inner part is looked up in the path cache
//! ([`path_cache`](super::path_cache)). A path that it finds continues in the outer frames of the
//! stack cache, which are read again as above.
//!
//! Stacks other than the thread's own ([`super::unwind::other`]) are remembered too, without paths.
//! There the remembered words are read one after the other, from the innermost outwards, and only
//! while all before were equal. So each is the word of a live frame.

use super::pages::Pages;
use super::path_cache::PathCache;
use super::table::Descent;
use super::unwind::memory::{Memory, OwnStack};
use super::unwind::other::OtherStack;
use super::unwind::walk::{self, Next};
use super::unwind::{DETACHED, Frame, Frames, LIVE_BP, NODE_FLAGS, SPECIAL, USES_BP, rules};
use super::{ThreadStacks, table};
use crate::arch::registers::{RETURN_ADDRESS, Registers, packed};
use crate::caller::Caller;
use heaptape_wire::limits::MAX_FRAMES;
use heaptape_wire::nodes::{GUESSED, LOST, SIGNAL, TRUNCATED};

/// The stack cache, with the space for a capture in progress.
#[repr(C)]
pub(crate) struct StackCache {
    generation: u32,
    count: u32,
    /// Whether the outermost remembered frame is not the outermost of the stack, because the depth
    /// limit truncated it.
    is_deep: bool,
    frames: Frames,
    /// For each frame, the node of the stack from the outermost frame to this one.
    nodes: [u32; MAX_FRAMES],
    fresh: Frames,
    /// Saved frame pointers and other words that are read again with `frames`, outermost first.
    saved: [Saved; MAX_FRAMES],
    /// For each frame, the number of entries of `saved` that belong to the frames up to this one;
    /// with [`MUST_STEP`] if one of these frames must be stepped to.
    saved_upto: [u32; MAX_FRAMES],
    /// One more than the index of the path whose inner frames are the innermost ones of the last
    /// capture, and are not in `frames` yet; 0 if there is none.
    top: u32,
    top_bp: u64,
    path_cache: PathCache,
}

/// A saved frame pointer: its address and its value.
#[derive(Clone, Copy)]
struct Saved {
    address: u64,
    value: u64,
}

/// The flags of a frame that describe the step from it outwards. The others describe how it was
/// reached.
const ONWARD: u32 = USES_BP | LIVE_BP | GUESSED | TRUNCATED | LOST;

/// Bit of [`StackCache::generation`]: the remembered stack is not the thread's own. Generations are
/// multiples of a larger number.
const OTHER: u32 = 1;

/// Bit of [`StackCache::saved_upto`]: a frame must be stepped to.
const MUST_STEP: u32 = 1 << 31;

impl StackCache {
    /// Removes all frames and paths from the cache.
    pub(crate) fn forget(&mut self) {
        self.count = 0;
        self.top = 0;
        self.path_cache.forget();
    }

    /// Begins a generation of rules, or a stack of another kind than the last one. `kind` is 0 for
    /// the thread's own stack, or [`OTHER`].
    #[cold]
    #[inline(never)]
    fn begin(&mut self, generation: Option<u32>, kind: u32) {
        match generation {
            // The frames of the thread's own stack may be outer frames of a signal handler's. Those
            // of another stack are never read in any order.
            Some(generation) if self.generation | OTHER == generation | OTHER => {
                if kind == 0 {
                    (self.count, self.top) = (0, 0);
                }
            }
            _ => self.forget(),
        }
        self.generation = generation.map_or(0, |generation| generation | kind);
    }

    /// Copies the inner frames of the last capture's path into `frames`.
    #[inline(always)]
    fn merge_path(&mut self) {
        if self.top != 0 {
            self.merge_top();
        }
    }

    #[inline(never)]
    fn merge_top(&mut self) {
        let path = self.path_cache.path(self.top - 1);
        self.top = 0;
        let (base, inner) = (self.count as usize, path.inner());
        path.copy(self.top_bp, &mut self.frames[base..base + inner], &mut self.nodes[base..base + inner]);
        self.count = (base + inner) as u32;
        self.note_saved(base.saturating_sub(1));
    }

    /// Returns whether each word that the walk outwards from `frames[count - 1]` read is unchanged,
    /// and none of its frames must be stepped to.
    #[inline(always)]
    fn holds(&self, count: usize) -> bool {
        let Some(outer) = self.frames.get(..count - 1) else { return false };
        let upto = if outer.is_empty() { 0 } else { self.saved_upto[outer.len() - 1] };
        let Some(saved) = self.saved.get(..upto as usize) else { return false };
        // SAFETY: remembered addresses are on the thread's own stack above the frame just matched,
        // which is mapped from there to its end.
        let differs = |address: u64, value: u64| unsafe { (address as *const u64).read_volatile() } ^ value;
        // Four at a time, with one branch for four words.
        let (fours, rest) = outer.as_chunks::<4>();
        for four in fours.iter().rev() {
            if four.iter().fold(0, |bits, frame| bits | differs(frame.slot, frame.address)) & RETURN_ADDRESS != 0 {
                return false;
            }
        }
        let bits = rest.iter().fold(0, |bits, frame| bits | differs(frame.slot, frame.address)) & RETURN_ADDRESS;
        saved.iter().fold(bits, |bits, saved| bits | differs(saved.address, saved.value)) == 0
    }

    /// Collects the words that are read again for the frames from `base` on.
    #[inline(always)]
    fn note_saved(&mut self, base: usize) {
        let mut upto = if base == 0 { 0 } else { self.saved_upto[base - 1] };
        let mut live = base.checked_sub(1).is_some_and(|outer| self.frames[outer].passes_live_bp());
        for index in base..self.count as usize {
            let frame = &mut self.frames[index];
            live |= frame.flags() & USES_BP != 0;
            frame.step_info =
                frame.step_info & !(u64::from(LIVE_BP) << 32) | if live { u64::from(LIVE_BP) << 32 } else { 0 };
            let distance = frame.bp_distance();
            if distance != 0 && live {
                self.saved[(upto & !MUST_STEP) as usize] =
                    Saved { address: frame.slot - 8 * distance, value: frame.bp };
                upto += 1;
            }
            if frame.flags() & SPECIAL != 0 {
                upto |= MUST_STEP;
            }
            self.saved_upto[index] = upto;
            live = frame.passes_live_bp();
        }
    }
}

/// Returns the stack node of the call whose return address is at `sp`.
///
/// # Safety
/// `stacks` must be the calling thread's, with a busy activation, and `caller` the hook's.
#[inline(always)]
pub(crate) unsafe fn capture(stacks: *mut ThreadStacks, caller: Caller) -> u32 {
    // SAFETY: the stacks are the calling thread's, as the caller ensures.
    let node = unsafe { capture_node(stacks, caller) };
    #[cfg(heaptape_verify)]
    // SAFETY: the stacks are the calling thread's, as the caller ensures.
    unsafe {
        super::check::compare(stacks, caller, node)
    };
    node
}

/// Captures the stack by the caches or by stepping.
///
/// # Safety
/// As [`capture`].
#[inline(always)]
unsafe fn capture_node(stacks: *mut ThreadStacks, caller: Caller) -> u32 {
    // SAFETY: the activation is busy, so no handler on this thread uses the cache meanwhile.
    let stacks = unsafe { &mut *stacks };
    let settings = table::settings();
    if settings.caller_only {
        return table::node(0, walk::first(caller).address, TRUNCATED);
    }
    if !stacks.is_own(caller.sp) {
        return capture_other_stack(stacks, caller, settings.max_frames);
    }
    let generation = rules::generation();
    if generation != Some(stacks.cache.generation) {
        stacks.begin_generation(generation, caller.sp);
    }
    let first = walk::first(caller);
    let stack_cache = &mut stacks.cache;
    // SAFETY: the hook's frame, on the thread's own stack.
    if let Some(node) = unsafe { node_by_path(stack_cache, &first) } {
        return node;
    }
    stack_cache.merge_path();
    let mut memory = OwnStack { low: caller.sp as u64, end: stacks.bounds.end as u64 };
    let Walked { base, fresh, .. } = collect(stack_cache, first, &mut memory, settings.max_frames);
    if (base + fresh > settings.max_frames) || (stack_cache.is_deep && base + fresh < settings.max_frames / 2) {
        return store_deep(stack_cache, first, &mut memory, base, fresh, settings.max_frames).0;
    }
    if base == 0 {
        stack_cache.is_deep = fresh == settings.max_frames && stack_cache.fresh[fresh - 1].flags() & TRUNCATED != 0;
    }
    let node = store(stack_cache, base, fresh);
    let count = stack_cache.count as usize;
    // SAFETY: the hook's frame, on the thread's own stack.
    unsafe { stack_cache.path_cache.remember(&first, &stack_cache.frames[..count], &stack_cache.nodes[..count]) };
    node
}

impl ThreadStacks {
    /// Begins another generation of rules.
    #[cold]
    #[inline(never)]
    fn begin_generation(&mut self, mut generation: Option<u32>, sp: usize) {
        // SAFETY: the thread's own stack as far as it is known to be mapped.
        if generation.is_none() && unsafe { rules::has_left(sp, self.bounds.low, self.bounds.end) } {
            generation = rules::generation();
        }
        self.cache.begin(generation, 0);
    }
}

/// Returns the node of the stack if its inner part takes a known path that continues in remembered
/// frames.
///
/// # Safety
/// `first` must be the hook's frame, on the thread's own stack.
#[inline(always)]
unsafe fn node_by_path(stack_cache: &mut StackCache, first: &Frame) -> Option<u32> {
    // SAFETY: the frame is the hook's on the thread's own stack, as the caller ensures.
    let index = unsafe { stack_cache.path_cache.find(first) }.filter(|_| !stack_cache.is_deep)?;
    let mut base = stack_cache.path_cache.path(index).base as usize;
    if base > stack_cache.count as usize {
        stack_cache.merge_path();
        base = stack_cache.path_cache.path(index).base as usize;
    }
    let path = stack_cache.path_cache.path(index);
    if base != 0 {
        let (outermost, node) = path.outermost(first.bp);
        let joint = stack_cache.frames.get(base - 1).filter(|_| base <= stack_cache.count as usize)?;
        let difference = (joint.slot ^ outermost.slot) | (joint.address ^ outermost.address);
        let other_bp = joint.bp != outermost.bp && joint.flags() & LIVE_BP != 0;
        if difference != 0 || other_bp || stack_cache.nodes[base - 1] != node || !stack_cache.holds(base) {
            return None;
        }
    }
    let node = path.node();
    if base != 0 {
        let (outermost, _) = path.outermost(first.bp);
        let joint = &mut stack_cache.frames[base - 1];
        (joint.step_info, joint.bp) = (outermost.step_info | joint.step_info & u64::from(ONWARD) << 32, outermost.bp);
    }
    (stack_cache.count, stack_cache.top, stack_cache.top_bp) = (base as u32, index + 1, first.bp);
    Some(node)
}

struct Walked {
    /// Number of the outermost remembered frames that are still valid.
    base: usize,
    /// Number of frames inside them.
    fresh: usize,
    /// Whether no step was a guess, and none was impossible.
    is_sure: bool,
}

/// Finds how many of the outermost remembered frames are still valid, and puts the frames inside
/// them into `fresh`, innermost first.
///
/// The state of the walk is kept in scalars, and the two usual kinds of rule are followed here, so
/// a frame costs one chain of rule, slot and return address. All other kinds go through
/// [`walk::step`].
#[inline(always)]
fn collect<M: Memory>(stack_cache: &mut StackCache, first: Frame, memory: &mut M, max_frames: usize) -> Walked {
    let mut is_sure = true;
    let Frame { mut slot, mut address, mut bp, mut step_info } = first;
    let mut sp = first.sp();
    let mut known = (stack_cache.count as usize).min(MAX_FRAMES);
    let mut fresh = 0;
    loop {
        while known > 0 && stack_cache.frames[known - 1].slot < slot {
            known -= 1;
        }
        if known > 0 && stack_cache.frames[known - 1].slot == slot && memory.may_join() && {
            let old = &stack_cache.frames[known - 1];
            let same_bp = old.bp == bp || old.flags() & LIVE_BP == 0;
            old.address == address && same_bp && (old.step_info | step_info) >> 32 & u64::from(SIGNAL | DETACHED) == 0
        } {
            // From now on this step leads here, so the words that it read are those that must be
            // read again.
            let old = &mut stack_cache.frames[known - 1];
            (old.step_info, old.bp) = (step_info | old.step_info & u64::from(ONWARD) << 32, bp);
            if M::IS_OWN && stack_cache.holds(known) {
                return Walked { base: known, fresh, is_sure };
            }
            let confirmed = confirm(&mut stack_cache.frames[..known]);
            if !M::IS_OWN && confirmed == 0 {
                return Walked { base: known, fresh, is_sure };
            }
            // frames[confirmed..known] hold, the one outside them does not (or must be stepped to).
            while known > confirmed + 1 && fresh < max_frames {
                known -= 1;
                stack_cache.fresh[fresh] = stack_cache.frames[known];
                fresh += 1;
            }
            known = confirmed;
            sp = stack_cache.frames[confirmed].sp();
            Frame { slot, address, bp, step_info } = stack_cache.frames[confirmed];
            step_info &= !(u64::from(ONWARD) << 32);
        }
        let rule =
            if step_info >> 32 & u64::from(SIGNAL) == 0 { rules::of(address) } else { rules::at_instruction(address) };
        let uses = if rule.uses_bp() { u64::from(USES_BP) << 32 } else { 0 };
        if fresh < max_frames {
            Frame::put(&mut stack_cache.fresh[fresh], slot, address, bp, step_info | uses);
            fresh += 1;
        }
        if fresh >= max_frames {
            stack_cache.fresh[fresh - 1].mark(TRUNCATED);
            return Walked { base: 0, fresh, is_sure };
        }
        if rule.is_usual() {
            let base = if rule.is_from_sp() { sp } else { bp };
            let next = base.wrapping_add_signed(rule.offset()).wrapping_sub(8 + 8 * rule.gap());
            let distance = rule.bp_distance();
            let Some((found, saved)) = memory.pair(next, next.wrapping_sub(8 * distance), sp) else {
                stack_cache.fresh[fresh - 1].mark(walk::lost(rule));
                return Walked { base: 0, fresh, is_sure: false };
            };
            let found = found & RETURN_ADDRESS;
            if found == 0 {
                return Walked { base: 0, fresh, is_sure };
            }
            bp = if distance == 0 { bp } else { saved };
            step_info = packed::step(distance, rule.gap());
            (slot, address, sp) = (next, found, packed::sp(next, step_info));
            continue;
        }
        let is_signal = (step_info >> 32) as u32 & SIGNAL != 0;
        // A word that is no address has no rule, so it comes here.
        if fresh > 1 && !is_signal && walk::is_no_address(address) {
            fresh -= 1;
            stack_cache.fresh[fresh - 1].mark(TRUNCATED | LOST);
            return Walked { base: 0, fresh, is_sure: false };
        }
        let registers = match is_signal {
            true => Registers::interrupted(address, slot, sp, bp),
            false => Registers::returned(address, sp, bp),
        };
        match walk::step(registers, rule, memory) {
            Next::Caller(frame, there) => {
                Frame { slot, address, bp, step_info } = frame;
                sp = there.sp;
            }
            Next::Guessed(frame, there) => {
                is_sure = false;
                stack_cache.fresh[fresh - 1].mark(GUESSED);
                Frame { slot, address, bp, step_info } = frame;
                sp = there.sp;
            }
            Next::End => {
                stack_cache.fresh[fresh - 1].mark(walk::ending(rule));
                return Walked { base: 0, fresh, is_sure };
            }
            Next::Unreachable => {
                stack_cache.fresh[fresh - 1].mark(walk::lost(rule));
                return Walked { base: 0, fresh, is_sure: false };
            }
        }
    }
}

/// Reads again, from the last of `frames` outwards, each word that the remembered walk read.
/// Returns the index of the outermost frame that is confirmed, 0 if all are. The frame pointers of
/// the confirmed frames are then those of this walk.
#[cold]
#[inline(never)]
fn confirm(frames: &mut [Frame]) -> usize {
    let mut index = frames.len() - 1;
    let mut bp = frames[index].bp;
    while let Some(frame) = index.checked_sub(1).map(|outer| &mut frames[outer]) {
        let distance = frame.bp_distance();
        // SAFETY: a remembered slot is on the thread's own stack above the frame just matched,
        // which is mapped from there to its end. The address of a saved frame pointer is below its
        // slot and above that frame, also for a `SPECIAL` one. On another stack everything inside
        // this frame was equal, so that its slot holds the return address of a live frame.
        let (address, saved) = unsafe {
            let slot = frame.slot as *const u64;
            (slot.read_volatile(), slot.sub(distance as usize).read_volatile())
        };
        bp = if distance == 0 { bp } else { saved };
        let other_bp = bp != frame.bp && frame.flags() & LIVE_BP != 0;
        if address & RETURN_ADDRESS != frame.address || other_bp || frame.flags() & SPECIAL != 0 {
            break;
        }
        frame.bp = bp;
        index -= 1;
    }
    index
}

/// Assigns nodes to the fresh frames, and remembers them inside the `base` old ones.
#[inline(always)]
fn store(stack_cache: &mut StackCache, base: usize, fresh: usize) -> u32 {
    let parent = if base == 0 { 0 } else { stack_cache.nodes[base - 1] };
    if fresh == 0 {
        stack_cache.count = base as u32;
        stack_cache.note_saved(base.saturating_sub(1));
        return parent;
    }
    let (mut descent, mut node) = (Descent::from(parent), parent);
    let targets = stack_cache.frames[base..base + fresh].iter_mut().zip(&mut stack_cache.nodes[base..base + fresh]);
    for ((target, number), frame) in targets.zip(stack_cache.fresh[..fresh].iter().rev()) {
        node = descent.step(frame.address, frame.flags() & NODE_FLAGS);
        (*target, *number) = (*frame, node);
    }
    stack_cache.count = (base + fresh) as u32;
    stack_cache.note_saved(base.saturating_sub(1));
    node
}

/// As [`store`], for stacks that are rare: its code is long.
#[cold]
#[inline(never)]
fn store_rarely(stack_cache: &mut StackCache, base: usize, fresh: usize) -> u32 {
    store(stack_cache, base, fresh)
}

/// Stores a stack where the depth limit has cut this one or the last one. A truncated stack that has
/// become short again is walked anew.
///
/// Returns the node, and whether the walk was sure.
#[cold]
#[inline(never)]
fn store_deep<M: Memory>(
    stack_cache: &mut StackCache,
    first: Frame,
    memory: &mut M,
    base: usize,
    fresh: usize,
    max_frames: usize,
) -> (u32, bool) {
    if base + fresh > max_frames {
        return (store_cut(stack_cache, base, fresh, max_frames), true);
    }
    stack_cache.count = 0;
    let Walked { fresh, is_sure, .. } = collect(stack_cache, first, memory, max_frames);
    stack_cache.is_deep = fresh == max_frames && stack_cache.fresh[fresh - 1].flags() & TRUNCATED != 0;
    (store_rarely(stack_cache, 0, fresh), is_sure)
}

/// Stores a stack beyond the depth limit. Of too many frames, the innermost half of the limit is
/// kept and the rest is left out, so that a recursion pays for the new nodes of its frames once in
/// half a limit.
#[inline(never)]
fn store_cut(stack_cache: &mut StackCache, base: usize, fresh: usize, max_frames: usize) -> u32 {
    let keep = max_frames / 2;
    let inner = fresh.min(keep);
    let outer = keep - inner;
    stack_cache.frames.copy_within(base - outer..base, 0);
    let mut node = 0;
    for index in 0..outer {
        if index == 0 {
            stack_cache.frames[0].mark(TRUNCATED);
        }
        node = table::node(node, stack_cache.frames[index].address, stack_cache.frames[index].flags() & NODE_FLAGS);
        stack_cache.nodes[index] = node;
    }
    if outer == 0 {
        stack_cache.fresh[inner - 1].mark(TRUNCATED);
    }
    stack_cache.is_deep = true;
    stack_cache.count = outer as u32;
    stack_cache.note_saved(0);
    store_rarely(stack_cache, outer, inner)
}

/// Captures a stack that is not the thread's own.
#[cold]
#[inline(never)]
fn capture_other_stack(stacks: &mut ThreadStacks, caller: Caller, max_frames: usize) -> u32 {
    let ThreadStacks { bounds, other_pages, pages_before, cache: stack_cache, .. } = stacks;
    let generation = rules::generation();
    if generation.is_none_or(|generation| stack_cache.generation != generation | OTHER) {
        stack_cache.begin(generation, OTHER);
    }
    stack_cache.merge_path();
    *pages_before = *other_pages;
    let first = walk::first(caller);
    let mut memory = OtherStack::new(caller.sp as u64, bounds.low as u64, bounds.end as u64, other_pages);
    let Walked { base, fresh, mut is_sure } = collect(stack_cache, first, &mut memory, max_frames);
    let node = if base + fresh > max_frames || (stack_cache.is_deep && base + fresh < max_frames / 2) {
        let (node, deep_is_sure) = store_deep(stack_cache, first, &mut memory, base, fresh, max_frames);
        is_sure &= deep_is_sure;
        node
    } else {
        if base == 0 {
            stack_cache.is_deep = fresh == max_frames && stack_cache.fresh[fresh - 1].flags() & TRUNCATED != 0;
        }
        store_rarely(stack_cache, base, fresh)
    };
    if is_sure {
        other_pages.keep(caller.sp as u64);
    } else {
        (*other_pages, stack_cache.count) = (*pages_before, 0);
    }
    node
}

/// Captures the stack of a deferred event, without a cache.
///
/// # Safety
/// `stacks` must be the calling thread's, whose deferred frames no other capture uses, and
/// `caller` the hook's.
#[cold]
pub(crate) unsafe fn capture_deferred(stacks: *mut ThreadStacks, caller: Caller) -> u32 {
    let settings = table::settings();
    // SAFETY: the caller reserves these frames for this call. The bounds of the
    // thread's own stack are words that the interrupted hook changes one at a time, each to a value
    // that is consistent with the other.
    let (frames, low, end) = unsafe {
        (&mut (&mut (*stacks).deferred_frames)[..settings.max_frames], (*stacks).bounds.low, (*stacks).bounds.end)
    };
    let mut pages = Pages::new();
    let mut memory = OtherStack::new(caller.sp as u64, low as u64, end as u64, &mut pages);
    let count = walk::plain(walk::first(caller), &mut memory, frames);
    insert_frames(&frames[..count])
}

/// Returns whether the stack of a hook holds the return address at `slot`, or `None` if that is not
/// known. It stores no frames, so that it is not disturbed by the capture of a deferred event that
/// was left by a jump.
///
/// # Safety
/// `stacks` must be the calling thread's, and `caller` the hook's.
#[cold]
pub(crate) unsafe fn stack_contains(stacks: *mut ThreadStacks, caller: Caller, slot: usize) -> Option<bool> {
    // SAFETY: the bounds are two words that the calling thread alone writes.
    let (low, end) = unsafe { ((*stacks).bounds.low, (*stacks).bounds.end) };
    let mut pages = Pages::new();
    let mut memory = OtherStack::new(caller.sp as u64, low as u64, end as u64, &mut pages);
    walk::contains_slot(walk::first(caller), slot as u64, table::settings().max_frames, &mut memory)
}

fn insert_frames(frames: &[Frame]) -> u32 {
    frames.iter().rev().fold(0, |node, frame| table::node(node, frame.address, frame.flags() & NODE_FLAGS))
}
