//! The rule table: from an address to the [`Rule`] for the step from its frame to the caller. It is
//! one table for the process. A rule is compiled from the object's unwind tables on the first miss
//! ([`super::cfi`]). A hit is one or two loads of one cache line.
//!
//! The key is the return address itself (the rule is that of the byte before it, inside the call).
//! The low 15 bits select the set and the rest is the tag, so together they identify the address
//! and a hit is exact. A set has two entries: with one, the 30,000 addresses of a compiler displace
//! each other all the time. An interrupted instruction has the rule of the return address behind it,
//! unless that tells of more than the unwind data ([`at_instruction`]).
//!
//! Generated code is elsewhere in the table, and is looked at last: functions of one shape that a JIT
//! compiler makes, 64 bytes each, would share a few sets. There the low bits select the set,
//! exchanged by the tag, which takes a nanosecond more. A mark tells the two kinds of words apart.
//!
//! What is unknown is in the table as well, so that no event asks again. Rules of generated code
//! are dropped when memory that can be executed is unmapped.

use super::cfi;
use super::code;
use super::rule::{GENERATED, Kind, Rule};
use crate::arch::registers::{ADDRESS_BITS, CODE_ALIGNMENT, is_signal_return, trampoline};
use crate::arch::{self, MAX_CALL, ends_with_call};
use crate::elf::{self, Object, objects};
use crate::probe;
use crate::stack::modules;
use crate::sys::{self, Need};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
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
pub(crate) fn generation() -> Option<u32> {
    let generation = GENERATION.load(Relaxed);
    (generation & (STEP - 1) == 0).then_some(generation)
}

/// Returns the index of the first entry of an address's set, and its tag.
#[inline(always)]
const fn set_and_tag(address: u64, is_generated: bool) -> (usize, u64) {
    let address = address >> CODE_ALIGNMENT;
    let tag = address >> SETS.trailing_zeros();
    let selected = if is_generated { address ^ tag } else { address };
    ((selected & (SETS as u64 - 1)) as usize * 2, tag)
}

/// Returns the rule for the step to the caller of a return address.
#[inline(always)]
pub(crate) fn of(address: u64) -> Rule {
    match entry(address, false) {
        Some(rule) => rule,
        None => find(address),
    }
}

/// Returns the rule of an address if it is in the table, as one of this kind.
#[inline(always)]
fn entry(address: u64, is_generated: bool) -> Option<Rule> {
    let (set, tag) = set_and_tag(address, is_generated);
    let is_it = |word: u64| word >> 32 == tag && word != 0 && (word & GENERATED == 0) == is_generated;
    let rule = |word: u64| Rule(word & 0xffff_ffff & !GENERATED | if is_generated { GENERATED } else { 0 });
    let first = TABLE.0[set].load(Relaxed);
    if is_it(first) {
        return Some(rule(first));
    }
    let second = TABLE.0[set + 1].load(Relaxed);
    is_it(second).then_some(rule(second))
}

/// Returns the rule of generated code, if it is in the table.
#[cold]
#[inline(never)]
fn known_generated(address: u64) -> Option<Rule> {
    entry(address, true)
}

/// Returns the rule of an address that is not in the table as one of an object.
#[cold]
#[inline(never)]
fn find(address: u64) -> Rule {
    known_generated(address).unwrap_or_else(|| compile(address))
}

/// Returns the rule of an address if it is in the table.
#[inline(never)]
fn known(address: u64) -> Option<Rule> {
    entry(address, false).or_else(|| known_generated(address))
}

/// As [`of`], where it is rare.
#[inline(never)]
fn of_rare(address: u64) -> Rule {
    known(address).unwrap_or_else(|| compile(address))
}

/// Returns the rule of an interrupted instruction: the one of a call in its place, which the table
/// keeps. Only what comes from unwind data is used: the rest tells something of returns.
#[inline(never)]
pub(crate) fn at_instruction(address: u64) -> Rule {
    let rule = of_rare(address.wrapping_add(1 << CODE_ALIGNMENT));
    if rule.is_described() { rule } else { described(address) }
}

/// Returns the rule that the unwind data has for a byte of code, without storing it in the table.
#[inline(never)]
fn described(lookup: u64) -> Rule {
    if lookup >> ADDRESS_BITS != 0 {
        return Rule::UNKNOWN;
    }
    sys::aligned(|| {
        let Some(object) = objects::find(lookup as usize) else { return Rule::UNKNOWN };
        // An object may be where generated code was, if that was unmapped without our hooks.
        if modules::note(&object) && HAS_GENERATED.load(Relaxed) {
            drop_generated();
        }
        cfi::compile(&object, lookup).unwrap_or(Rule::UNKNOWN)
    })
}

/// Looks at the unwind data of a function, so that what is near to it can be read without a system call.
pub(crate) fn look_ahead(function: u64) {
    find(function + 1);
}

/// Returns whether an address is the first of a described function. Unless a call is before it, no
/// call returns there: the frame was made by hand and is the outermost (`makecontext`, or what
/// libco puts below the function that a coroutine runs).
#[inline(never)]
fn begins_a_function(address: u64) -> bool {
    sys::aligned(|| objects::find(address as usize).is_some_and(|object| cfi::is_first(&object, address)))
}

/// Returns whether an address is in the first instructions of the program, which nothing has
/// called.
fn is_in_entry(address: u64) -> bool {
    /// Bytes of `_start` up to its only call, in any libc.
    const BYTES: u64 = 64;
    address.wrapping_sub(sys::auxiliary(libc::AT_ENTRY) as u64) <= BYTES
}

/// Returns whether a call is before an address in an object. Code that cannot be read may have one.
fn is_after_call(object: &Object, address: u64) -> bool {
    let mut bytes = [0; MAX_CALL];
    !elf::bytes_before(object, address, &mut bytes) || ends_with_call(&bytes)
}

/// Whether the table has rules of generated code.
static HAS_GENERATED: AtomicBool = AtomicBool::new(false);

/// Returns whether a signal handler returns to an address, as its code shows.
fn is_at_signal_return(address: u64) -> bool {
    let mut code = [0; 8];
    let read = |code: &mut [u8]| probe::copy_from(address as usize, code) == code.len();
    arch::registers::IS_SIGNAL_RETURN_BARE && read(&mut code) && is_signal_return(code)
}

/// Returns the rule of an address without unwind data.
#[inline(never)]
fn undescribed(address: u64) -> Rule {
    if is_in_entry(address) {
        return Rule::END.checked(true);
    }
    if is_at_signal_return(address) {
        return Rule(Kind::Signal as u64).checked(true);
    }
    if begins_a_function(address) {
        return Rule::HAND_MADE;
    }
    match objects::find(address.wrapping_sub(1) as usize) {
        Some(object) if is_after_call(&object, address) => Rule::UNKNOWN.checked(true),
        // No call returns here, so the frame was made by hand and is the outermost (a coroutine).
        Some(_) => Rule::END.checked(false),
        None => generated(address).generated(),
    }
}

/// Returns the rule of an address in no object. Reading its code takes a system call.
fn generated(address: u64) -> Rule {
    const RETURN: usize = trampoline::RETURN as usize;
    /// Bytes before the address that are read: the longest call, or the start of a trampoline.
    const BEFORE: usize = if MAX_CALL > RETURN { MAX_CALL } else { RETURN };
    let mut code = [0; BEFORE + trampoline::CODE.len() - RETURN];
    let in_page = (address & 4095).min(BEFORE as u64) as usize;
    let mut read = |before: usize| {
        let bytes = &mut code[BEFORE - before..];
        let wanted = bytes.len().min(before + 4096 - (address as usize & 4095));
        probe::peek(address.wrapping_sub(before as u64) as usize, &mut bytes[..wanted]) == wanted
    };
    // The page before may be another one, which cannot be read.
    let is_read = read(BEFORE) || (in_page != 0 && in_page < BEFORE && read(in_page));
    if !is_read {
        return Rule::UNKNOWN.checked(!Need::PEEK.is_allowed());
    }
    match Rule::new(Kind::FromSp, trampoline::CFA, trampoline::BP_DISTANCE) {
        Some(rule) if code[BEFORE - RETURN..] == trampoline::CODE => rule.checked(true),
        _ => Rule::UNKNOWN.checked(code[BEFORE - MAX_CALL..].first_chunk().is_some_and(ends_with_call)),
    }
}

#[cold]
#[inline(never)]
fn compile(address: u64) -> Rule {
    let before = generation();
    let mut rule = described(address.wrapping_sub(1));
    if rule.kind() == Kind::Unknown as u64 && address >> ADDRESS_BITS == 0 {
        rule = undescribed(address);
    } else if rule.is_usual() && !is_after_call_in_object(address) && begins_a_function(address) {
        rule = Rule::HAND_MADE;
    }
    keep(address, rule, before);
    rule
}

/// Stores a rule in the table that was compiled in generation `before`.
fn keep(address: u64, rule: Rule, before: Option<u32>) {
    if before.is_none() || address >> ADDRESS_BITS != 0 {
        return;
    }
    if rule.is_generated() {
        HAS_GENERATED.store(true, Relaxed);
    }
    let (set, tag) = set_and_tag(address, rule.is_generated());
    let word = rule.0 ^ GENERATED | tag << 32;
    if TABLE.0[set].load(Relaxed) >> 32 != tag {
        TABLE.0[set + 1].store(TABLE.0[set].load(Relaxed), Relaxed);
    }
    TABLE.0[set].store(word, Release);
    // A module may have been unmapped while its tables were read. Then the word must not stay.
    // Either this check sees the new generation, or the sweep, which comes after it, sees the word.
    fence(SeqCst);
    if generation() != before {
        let _ = TABLE.0[set].compare_exchange(word, 0, Relaxed, Relaxed);
    }
}

/// What an address is that a guess has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    ReturnAddress,
    /// Generated code without a call before it. Interpreters push such return addresses.
    GeneratedCode,
    /// Other code without a call before it.
    Code,
    /// Memory that holds no code.
    Nothing,
}

/// Returns what an address is that a guess has found.
#[inline(never)]
pub(crate) fn look(address: u64) -> Found {
    if address < 4096 || address >> ADDRESS_BITS != 0 {
        return Found::Nothing;
    }
    let rule = match known(address) {
        // Other code may be there by now.
        Some(rule) if rule.is_generated() && rule.is_target() == Some(false) && code::is_time_to_ask() => {
            compile(address)
        }
        Some(rule) if rule.is_target().is_some() => rule,
        _ => match check(address) {
            Some(rule) => rule,
            None => return Found::Nothing,
        },
    };
    match rule.is_target() {
        Some(true) => Found::ReturnAddress,
        _ if rule.is_generated() => Found::GeneratedCode,
        _ => Found::Code,
    }
}

/// Finds out whether a return can go to an address. Returns `None` if it is not in code.
#[inline(never)]
fn check(address: u64) -> Option<Rule> {
    let before = generation();
    let is_in_object = is_in_code(address)?;
    let rule = of_rare(address);
    if !is_in_object || rule.is_target().is_some() {
        return Some(rule);
    }
    let is_made = rule.kind() == Kind::End as u64 || rule.kind() == Kind::Signal as u64;
    let rule = rule.checked(is_made || is_after_call_in_object(address));
    keep(address, rule, before);
    Some(rule)
}

/// Returns whether the code before an address is an object's, or `None` if there is no code. The
/// frame of this function must be gone when a rule is compiled.
#[inline(never)]
fn is_in_code(address: u64) -> Option<bool> {
    let lookup = address.wrapping_sub(1);
    let Some(object) = objects::find(lookup as usize) else {
        return (code::is_generated(lookup) || begins_a_function(address)).then_some(false);
    };
    // SAFETY: the loader has just named the object, and its headers are read in pages that can be
    // read.
    unsafe { elf::is_code(&object, lookup) }.then_some(true)
}

#[inline(never)]
fn is_after_call_in_object(address: u64) -> bool {
    objects::find(address.wrapping_sub(1) as usize).is_some_and(|object| is_after_call(&object, address))
}

/// Drops the rules of generated code if some may have been in memory that is unmapped now.
#[inline(never)]
pub(crate) fn unmapped(start: u64, bytes: u64) {
    if HAS_GENERATED.load(Relaxed) && code::is_in(start, bytes) {
        drop_generated();
    }
}

fn drop_generated() {
    HAS_GENERATED.store(false, Relaxed);
    drop_rules(true);
}

/// Drops all rules, or those of generated code. What nobody has used must not take memory.
#[cold]
#[inline(never)]
fn drop_rules(generated_only: bool) {
    for word in &TABLE.0 {
        let old = word.load(Relaxed);
        if old != 0 && (!generated_only || old & GENERATED == 0) {
            word.store(0, Relaxed);
        }
    }
}

/// A call of `dlclose` that is running.
pub(crate) struct Closing {
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
pub(crate) fn closing(mark: &mut u64) -> Closing {
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
pub(crate) fn closed(closing: &Closing, unmapped: bool) {
    let is_counted = closing.resets == RESETS.load(Relaxed)
        && closing.index.is_none_or(|index| CLOSERS[index].frame.swap(0, Relaxed) != 0);
    if unmapped {
        drop_rules(false);
        GENERATION.fetch_add(STEP, SeqCst);
    }
    if is_counted {
        GENERATION.fetch_sub(1, SeqCst);
    }
}

/// Forgets in a forked child all threads that were in `dlclose`, since they do not exist there.
pub(crate) fn forget_closers() {
    let generation = GENERATION.load(Relaxed);
    if generation & (STEP - 1) == 0 {
        return;
    }
    RESETS.fetch_add(1, Relaxed);
    CLOSERS.iter().for_each(|closer| closer.frame.store(0, Relaxed));
    drop_rules(false);
    GENERATION.store((generation & !(STEP - 1)).wrapping_add(STEP), SeqCst);
}

/// Returns whether this thread has left a `dlclose` by a jump, and ends that call then. The thread
/// is at `sp` on its own stack, which is known from `low` to `end`.
///
/// # Safety
/// The stack must be readable from `low` to `end`.
#[cold]
pub(crate) unsafe fn has_left(sp: usize, low: usize, end: usize) -> bool {
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
            drop_rules(false);
            GENERATION.fetch_add(STEP - 1, SeqCst);
            any = true;
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_instructions_have_the_rules_of_their_unwind_data_which_are_kept() {
        let functions = [libc::raise as *const (), libc::qsort as *const (), libc::system as *const ()];
        let mut kept = 0;
        for function in functions.map(|function| function as u64) {
            for address in (function..function + 1024).step_by(1 << CODE_ALIGNMENT) {
                let data = described(address).checked(false);
                assert_eq!(at_instruction(address).checked(false), data, "first at {address:#x}");
                assert_eq!(at_instruction(address).checked(false), data, "again at {address:#x}");
                let is_kept = known(address + (1 << CODE_ALIGNMENT)).is_some_and(|rule| rule.checked(false) == data);
                kept += u32::from(is_kept && data.is_usual());
            }
        }
        assert!(kept > 3 * (512 >> CODE_ALIGNMENT), "{kept}");
        for nowhere in [0, 1, 4096, 1 << ADDRESS_BITS, u64::MAX - 1, u64::MAX] {
            assert_eq!(at_instruction(nowhere), Rule::UNKNOWN, "{nowhere:#x}");
        }
    }
}
