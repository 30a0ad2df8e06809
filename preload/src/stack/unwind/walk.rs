//! The step from a frame to its caller, and walks without a cache. They never fault: every word is
//! read through a [`Memory`] that knows what is mapped, and on one stack each frame is above the
//! one before.

use super::expression;
use super::memory::Memory;
use super::rule::{Kind, Rule};
use super::rules::{self, Found};
use super::{DETACHED, Frame, SPECIAL};
use crate::arch::registers::{ADDRESS_BITS, HAS_RECORDS, RETURN_ADDRESS, Registers, packed, signal_frame};
use crate::caller::Caller;
use heaptape_wire::nodes::{GUESSED, LOST, SIGNAL, TRUNCATED};

/// The result of a step.
pub(crate) enum Next {
    Caller(Frame, Registers),
    /// The caller, found by a guess.
    Guessed(Frame, Registers),
    /// The frame is the outermost one.
    End,
    /// The caller cannot be found.
    Unreachable,
}

/// Returns the registers in the calling frame, after the return.
#[inline(always)]
pub(crate) const fn registers_of(frame: &Frame) -> Registers {
    Registers::returned(frame.address, frame.sp(), frame.bp)
}

/// Returns the first frame of a hook.
#[inline(always)]
pub(crate) fn first(caller: Caller) -> Frame {
    // SAFETY: the hook has not returned.
    let address = unsafe { caller.return_address() } as u64 & RETURN_ADDRESS;
    Frame { slot: caller.sp as u64, address, bp: caller.bp as u64, step_info: 0 }
}

/// Steps to the caller by a rule of the two usual kinds. All others take the slow path.
#[inline(always)]
pub(crate) fn step(registers: Registers, rule: Rule, memory: &mut impl Memory) -> Next {
    let kind = rule.kind();
    if kind > Kind::FromBp as u64 {
        return step_slowly(registers, rule, memory);
    }
    let base = if kind == Kind::FromSp as u64 { registers.sp } else { registers.bp };
    let slot = base.wrapping_add_signed(rule.offset()).wrapping_sub(8 + 8 * rule.gap());
    let distance = rule.bp_distance();
    // Without a saved frame pointer the slot itself is read a second time, which is cheaper than a
    // branch that cannot be predicted.
    let (Some(address), Some(saved)) = (memory.word(slot), memory.word(slot.wrapping_sub(8 * distance))) else {
        return Next::Unreachable;
    };
    if slot < registers.sp {
        return Next::Unreachable;
    }
    let address = address & RETURN_ADDRESS;
    if address == 0 {
        return Next::End;
    }
    let bp = if distance == 0 { registers.bp } else { saved };
    let frame = Frame { slot, address, bp, step_info: packed::step(distance, rule.gap()) };
    Next::Caller(frame, registers_of(&frame))
}

#[cold]
#[inline(never)]
fn step_slowly(registers: Registers, rule: Rule, memory: &mut impl Memory) -> Next {
    crate::sys::aligned(|| step_slowly_aligned(registers, rule, memory))
}

#[inline(always)]
fn step_slowly_aligned(registers: Registers, rule: Rule, memory: &mut impl Memory) -> Next {
    let kind = rule.kind();
    let special = |slot: u64, address: u64, bp: u64| Frame {
        slot,
        address: address & RETURN_ADDRESS,
        bp,
        step_info: u64::from(SPECIAL) << 32,
    };
    let found = if kind == Kind::End as u64 {
        return Next::End;
    } else if kind == Kind::Signal as u64 {
        return signal_step(registers, memory).unwrap_or(Next::Unreachable);
    } else if kind == Kind::Plt as u64 {
        let pushed = registers.lookup & 15 >= rule.offset() as u64 / 8;
        let slot = registers.sp + 8 * u64::from(pushed);
        memory.word(slot).map(|address| special(slot, address, registers.bp))
    } else if kind == Kind::Realigned as u64 {
        (|| {
            let slot = memory.word(registers.bp.wrapping_add_signed(rule.offset()))?.wrapping_sub(8);
            let bp = memory.word(registers.bp)?;
            (slot >= registers.sp).then_some(())?;
            Some(special(slot, memory.word(slot)?, bp))
        })()
    } else if kind == Kind::Expression as u64 {
        let found = expression::step(registers, &mut |address| memory.word(address));
        return found.map_or(Next::Unreachable, |found| {
            let is_outside = found.slot >= registers.sp && packed::is_gap(found.cfa, found.slot);
            let mut frame = special(found.slot, found.address, found.bp);
            if registers.link() == Some(found.slot) && found.cfa >= registers.sp {
                frame.mark(DETACHED);
            } else if is_outside {
                frame.step_info |= packed::step(0, packed::gap_of(found.cfa, found.slot));
            } else {
                return Next::Unreachable;
            }
            match frame.address {
                0 => Next::End,
                address => Next::Caller(frame, Registers::returned(address, found.cfa, found.bp)),
            }
        });
    } else {
        if memory.is_at_start(registers.sp) {
            return Next::End;
        }
        let is_near_end = memory.is_near_end(registers.sp);
        return guess(registers, is_near_end, &mut |address| memory.guessed(address));
    };
    match found {
        Some(frame) if frame.address == 0 => Next::End,
        Some(frame) => Next::Caller(frame, registers_of(&frame)),
        None => Next::Unreachable,
    }
}

/// Steps out of a signal handler. The kernel has saved all registers in memory.
fn signal_step(registers: Registers, memory: &mut impl Memory) -> Option<Next> {
    let slot = registers.sp + signal_frame::IP;
    let address = memory.word(slot)?;
    let bp = memory.word(registers.sp + signal_frame::BP)?;
    let sp = memory.word(registers.sp + signal_frame::SP)?;
    let stack = memory.word(registers.sp + signal_frame::STACK)?;
    let stack_bytes = memory.word(registers.sp + signal_frame::STACK_BYTES)?;
    memory.interrupted(sp, registers.sp.wrapping_sub(stack) < stack_bytes);
    let frame = Frame { slot, address, bp, step_info: u64::from(SPECIAL | SIGNAL) << 32 };
    Some(if address == 0 { Next::End } else { Next::Caller(frame, Registers::interrupted(address, slot, sp, bp)) })
}

/// The frame pointer of a frame that was found by a guess, and whose caller keeps none (0): it is
/// the outermost, if nothing else is known of it (System V ABI for x86-64, section 3.4.1).
const OUTERMOST: u64 = 1 << 63 | 1;

/// Steps by the frame pointer out of code without unwind data, which was generated at run time or
/// written by hand. If it keeps a frame pointer, the caller is found. What is found must be an
/// address to which a call returns. `word` is [`Memory::guessed`], so that all kinds of stacks
/// share this code.
#[inline(never)]
fn guess(registers: Registers, is_near_end: bool, word: &mut dyn FnMut(u64) -> Option<u64>) -> Next {
    /// The most bytes between the frame pointers of two frames of generated code.
    const FARTHEST: u64 = 1 << 20;
    if registers.bp == OUTERMOST || (registers.bp == 0 && is_near_end) {
        return Next::End;
    }
    if registers.bp < registers.sp {
        return Next::Unreachable;
    }
    let slot = registers.bp.wrapping_add(8);
    let (Some(address), Some(bp)) = (word(slot), word(registers.bp)) else {
        return Next::Unreachable;
    };
    let address = address & RETURN_ADDRESS;
    let is_found = match rules::look(address) {
        Found::ReturnAddress => true,
        Found::GeneratedCode => bp > registers.bp && bp - registers.bp < FARTHEST,
        Found::Code if bp == 0 => return Next::End,
        Found::Code | Found::Nothing => false,
    };
    if !is_found {
        return Next::Unreachable;
    }
    let gap = if HAS_RECORDS { gap_of_record(slot, address, bp, FARTHEST, word) } else { 0 };
    let bp = if bp == 0 { OUTERMOST } else { bp };
    let frame = Frame { slot, address, bp, step_info: packed::step(1, gap) | u64::from(SPECIAL) << 32 };
    Next::Guessed(frame, registers_of(&frame))
}

/// Returns the number of words between a guessed return address and its caller's stack pointer: the
/// entry of V8 stores all other registers there. If the caller keeps a frame record, that tells it: `bp`
/// points to it, and the caller's rule says how far it is from the stack pointer.
fn gap_of_record(slot: u64, address: u64, bp: u64, farthest: u64, word: &mut dyn FnMut(u64) -> Option<u64>) -> u64 {
    let rule = rules::of(address);
    if !rule.is_from_sp() || rule.bp_distance() != 1 {
        return 0;
    }
    let sp = bp.wrapping_add(16 + 8 * rule.gap()).wrapping_sub(rule.offset() as u64);
    let above = sp.wrapping_sub(slot.wrapping_add(8));
    if above == 0 || above >= farthest || above & 7 != 0 {
        return 0;
    }
    let returns = word(bp.wrapping_add(8)).map(|address| rules::look(address & RETURN_ADDRESS));
    if returns == Some(Found::ReturnAddress) { above / 8 } else { 0 }
}

/// Returns whether a word of the stack is no address of the program, so that no call returns there.
#[inline(always)]
pub(crate) const fn is_no_address(word: u64) -> bool {
    const LOWEST: u64 = 4096;
    word.wrapping_sub(LOWEST) >= (1 << ADDRESS_BITS) - LOWEST
}

/// Returns the flags of the outermost frame.
pub(crate) const fn ending(rule: Rule) -> u32 {
    if rule.is_hand_made() { SIGNAL } else { 0 }
}

/// Returns the flags of a frame whose caller cannot be found.
pub(crate) const fn lost(rule: Rule) -> u32 {
    TRUNCATED | LOST | if rule.kind() == Kind::Unknown as u64 { GUESSED } else { 0 }
}

/// Returns the rule for the step from a frame.
#[inline(always)]
pub(crate) fn rule_of(frame: &Frame) -> Rule {
    if frame.flags() & SIGNAL != 0 { rules::at_instruction(frame.address) } else { rules::of(frame.address) }
}

/// Returns whether a frame from the first to the outermost has its return address at `slot`.
/// Returns `None` if the walk does not reach the end, or only by a guess.
pub(crate) fn contains_slot(first: Frame, slot: u64, max_frames: usize, memory: &mut impl Memory) -> Option<bool> {
    let (mut frame, mut registers) = (first, registers_of(&first));
    for _ in 0..max_frames {
        if frame.slot == slot {
            return Some(true);
        }
        match step(registers, rule_of(&frame), memory) {
            Next::Caller(next, there) => (frame, registers) = (next, there),
            Next::End => return Some(false),
            Next::Guessed(..) | Next::Unreachable => return None,
        }
    }
    None
}

/// Walks from the first frame to the outermost without a cache, and stores the frames, innermost
/// first. Returns their number. The last one is marked if the stack has more frames than fit.
pub(crate) fn plain(first: Frame, memory: &mut impl Memory, frames: &mut [Frame]) -> usize {
    let mut frame = first;
    let mut registers = registers_of(&first);
    let mut count = 0;
    while let Some(target) = frames.get_mut(count) {
        *target = frame;
        count += 1;
        let rule = rule_of(&frame);
        if count > 1 && frame.flags() & SIGNAL == 0 && is_no_address(frame.address) {
            count -= 1;
            frames[count - 1].mark(TRUNCATED | LOST);
            return count;
        }
        match step(registers, rule, memory) {
            Next::Caller(next, there) => (frame, registers) = (next, there),
            Next::Guessed(next, there) => {
                frames[count - 1].mark(GUESSED);
                (frame, registers) = (next, there);
            }
            Next::End => {
                frames[count - 1].mark(ending(rule));
                return count;
            }
            Next::Unreachable => {
                frames[count - 1].mark(lost(rule));
                return count;
            }
        }
    }
    if let Some(last) = frames[..count].last_mut() {
        last.mark(TRUNCATED);
    }
    count
}
