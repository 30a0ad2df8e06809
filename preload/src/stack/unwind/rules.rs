//! The rule table: from an address to the [`Rule`] for the step from its frame to the caller. It is
//! one table for the process. A rule is compiled from the object's unwind tables on the first miss
//! ([`super::cfi`]). A hit is one or two loads of one cache line.
//!
//! The key is the return address itself (the rule is that of the byte before it, inside the call).
//! The low 15 bits select the set and the rest is the tag, so together they identify the address
//! and a hit is exact. A set has two entries: with one, the 30,000 addresses of a compiler displace
//! each other all the time. The rules of interrupted instructions, which differ from those of
//! return addresses, are compiled each time.

use super::cfi;
use super::rule::{Kind, Rule};
use crate::arch;
use crate::arch::registers::trampoline;
use crate::elf::objects;
use crate::probe;
use crate::stack::modules;
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

const SETS: usize = 1 << 15;

#[repr(C, align(64))]
struct Table([AtomicU64; 2 * SETS]);
static TABLE: Table = Table([const { AtomicU64::new(0) }; 2 * SETS]);

/// Number of times that rules were dropped, in units of [`STEP`]. The bits below count the running
/// `dlclose` calls: code may vanish and other code may replace it, so that nothing is kept
/// meanwhile.
static GENERATION: AtomicU32 = AtomicU32::new(STEP);
const STEP: u32 = 1 << 12;

/// Returns the current generation. A stack cache of another generation is invalid. Returns `None`
/// while nothing may be kept.
#[inline(always)]
pub fn generation() -> Option<u32> {
    let generation = GENERATION.load(Relaxed);
    (generation & (STEP - 1) == 0).then_some(generation)
}

/// Returns the index of the first entry of an address's set, and its tag.
#[inline(always)]
const fn set_and_tag(address: u64) -> (usize, u64) {
    ((address & (SETS as u64 - 1)) as usize * 2, address >> 15)
}

/// Returns the rule for the step to the caller of a return address.
#[inline(always)]
pub fn of(address: u64) -> Rule {
    let (set, tag) = set_and_tag(address);
    let first = TABLE.0[set].load(Relaxed);
    if first >> 32 == tag && first != 0 {
        return Rule(first & 0xffff_ffff);
    }
    let second = TABLE.0[set + 1].load(Relaxed);
    if second >> 32 == tag && second != 0 {
        return Rule(second & 0xffff_ffff);
    }
    compile(address)
}

/// Returns the rule of an instruction, without storing it in the table.
#[inline(never)]
pub fn at_instruction(lookup: u64) -> Rule {
    const UNKNOWN: Rule = Rule(Kind::Unknown as u64);
    if lookup >> 47 != 0 {
        return UNKNOWN;
    }
    crate::sys::aligned(|| {
        let Some(object) = objects::find(lookup as usize) else { return UNKNOWN };
        modules::note(&object);
        cfi::compile(&object, lookup).unwrap_or(UNKNOWN)
    })
}

/// Returns whether an address is the first of a described function while the byte before it belongs
/// to none. No call returns there, so the frame was made by hand and is the outermost
/// (`makecontext`).
#[inline(never)]
fn begins_a_function(address: u64) -> bool {
    crate::sys::aligned(|| {
        objects::find(address as usize).is_some_and(|object| cfi::compile(&object, address).is_some())
    })
}

/// Pages of generated code that is no trampoline of CPython, by the low bits of their numbers. All
/// code on a page is of one kind, and reading it takes a system call.
static OTHER_PAGES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Returns the rule of a trampoline of CPython, if the address is in one.
fn of_trampoline(address: u64) -> Option<Rule> {
    let page = address >> 12;
    let other = &OTHER_PAGES[page as usize % OTHER_PAGES.len()];
    if other.load(Relaxed) == page {
        return None;
    }
    let mut code = [0; trampoline::CODE.len()];
    let bytes = probe::peek(address.wrapping_sub(trampoline::RETURN) as usize, &mut code);
    if bytes != code.len() || code != trampoline::CODE {
        other.store(page, Relaxed);
        return None;
    }
    Rule::new(Kind::FromSp, trampoline::CFA, 0)
}

#[cold]
#[inline(never)]
fn compile(address: u64) -> Rule {
    let before = generation();
    let mut rule = at_instruction(address.wrapping_sub(1));
    if rule.kind() == Kind::Unknown as u64 {
        let is_outermost = begins_a_function(address);
        rule = if is_outermost { Rule(Kind::End as u64) } else { of_trampoline(address).unwrap_or(rule) };
    }
    // An address without a description may get one later, by code that is generated or loaded at
    // run time.
    if before.is_some() && rule.kind() != Kind::Unknown as u64 {
        let (set, tag) = set_and_tag(address);
        let word = rule.0 | tag << 32;
        TABLE.0[set + 1].store(TABLE.0[set].load(Relaxed), Relaxed);
        TABLE.0[set].store(word, Release);
        // A module may have been unmapped while its tables were read. Then the word must not stay.
        // Either this check sees the new generation, or the sweep, which comes after it, sees the
        // word.
        fence(SeqCst);
        if generation() != before {
            let _ = TABLE.0[set].compare_exchange(word, 0, Relaxed, Relaxed);
        }
    }
    rule
}

/// A call of `dlclose` that is running.
pub struct Closing {
    resets: u32,
    index: Option<usize>,
}

/// A thread in `dlclose`: the address of the call's frame, and the thread pointer; 0 if unused.
struct Closer {
    frame: AtomicUsize,
    thread: AtomicUsize,
}

static CLOSERS: [Closer; 16] = [const { Closer { frame: AtomicUsize::new(0), thread: AtomicUsize::new(0) } }; 16];
/// Number of times that all closers were forgotten.
static RESETS: AtomicU32 = AtomicU32::new(0);

/// Returns the mark that is stored in the frame of a `dlclose`.
const fn mark_at(frame: usize) -> u64 {
    frame as u64 ^ 0x9e37_79b9_7f4a_7c15
}

/// Begins a `dlclose`. From here on nothing is kept. `mark` is a variable in its frame.
pub fn closing(mark: &mut u64) -> Closing {
    let frame = &raw const *mark as usize;
    *mark = mark_at(frame);
    let resets = RESETS.load(Relaxed);
    GENERATION.fetch_add(1, SeqCst);
    let is_claimed = |closer: &Closer| closer.frame.compare_exchange(0, frame, Relaxed, Relaxed).is_ok();
    let index = CLOSERS.iter().position(is_claimed);
    index.inspect(|index| CLOSERS[*index].thread.store(arch::thread_pointer(), Relaxed));
    Closing { resets, index }
}

/// Ends a `dlclose`. `unmapped` is true if an object was unmapped.
pub fn closed(closing: &Closing, unmapped: bool) {
    let is_counted = closing.resets == RESETS.load(Relaxed)
        && closing.index.is_none_or(|index| CLOSERS[index].frame.swap(0, Relaxed) != 0);
    if unmapped {
        drop_rules();
        GENERATION.fetch_add(STEP, SeqCst);
    }
    if is_counted {
        GENERATION.fetch_sub(1, SeqCst);
    }
}

fn drop_rules() {
    TABLE.0.iter().for_each(|word| word.store(0, Relaxed));
}

/// Forgets in a forked child all threads that were in `dlclose`, since they do not exist there.
pub fn forget_closers() {
    let generation = GENERATION.load(Relaxed);
    if generation & (STEP - 1) == 0 {
        return;
    }
    RESETS.fetch_add(1, Relaxed);
    CLOSERS.iter().for_each(|closer| closer.frame.store(0, Relaxed));
    drop_rules();
    GENERATION.store((generation & !(STEP - 1)).wrapping_add(STEP), SeqCst);
}

/// Returns whether this thread has left a `dlclose` by a jump, and ends that call then. The thread
/// is at `sp` on its own stack, which is known from `low` to `end`.
///
/// # Safety
/// The stack must be readable from `low` to `end`.
#[cold]
pub unsafe fn has_left(sp: usize, low: usize, end: usize) -> bool {
    let thread = arch::thread_pointer();
    let mut any = false;
    for closer in &CLOSERS {
        let frame = closer.frame.load(Relaxed);
        let is_mine = frame >= low && frame < end && closer.thread.load(Relaxed) == thread;
        // SAFETY: the stack is readable, as the caller ensures; frames are aligned as the words in
        // them.
        let is_left = is_mine && (frame < sp || unsafe { (frame as *const u64).read_volatile() } != mark_at(frame));
        if is_left && closer.frame.compare_exchange(frame, 0, Relaxed, Relaxed).is_ok() {
            modules::retire_gone();
            drop_rules();
            GENERATION.fetch_add(STEP - 1, SeqCst);
            any = true;
        }
    }
    any
}
