//! How a thread gets its state: it attaches the process if needed, claims a slot and enables its
//! hooks.

use super::attach;
use crate::mode::{self, EntryMode};
use crate::session::{self, Area, private};
use crate::sys::{self, Need};
use crate::thread::deadline::Deadline;
use crate::thread::{self, Activation, Deferred, RingWriter, STATE_BYTES, ThreadState};
use crate::{next, sampling};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use heaptape_wire::area::{OVERFLOW_DROP, SLOT_CLAIMED, SLOT_FREE};
use heaptape_wire::{SlotControl, ring::Ring};

/// Returns the thread's state, and creates it if there is none yet. Used by calls that must be
/// marked before they are made.
#[inline(always)]
pub(crate) fn state(sp: usize) -> *mut ThreadState {
    let state = thread::get();
    // SAFETY: a state stays mapped for ever once its address is in the thread-local variable.
    if state.is_null() || unsafe { Activation::read(&raw const (*state).activation) }.is_none() {
        enter(sp)
    } else {
        state
    }
}

/// Creates the state of the calling thread, and attaches the process first if that has not been
/// tried. This is the slow path of a hook. Returns null if the process is not traced.
#[cold]
pub(crate) fn enter(sp: usize) -> *mut ThreadState {
    sys::aligned(|| {
        if !next::is_resolved() {
            return core::ptr::null_mut();
        }
        if !Need::THREAD.is_allowed() {
            session::count_without_slot();
            return core::ptr::null_mut();
        }
        // A handler that jumped out of this code would leave the thread without a state for good.
        let signals = sys::hold_signals();
        let state = attach_thread(sp);
        sys::release_signals(signals);
        state
    })
}

fn attach_thread(sp: usize) -> *mut ThreadState {
    thread::set(thread::claiming());
    let state = attach::area().map(|area| match area.dormant_activation() {
        Some(activation) => Err(activation),
        None => Ok(new_state(&area, sp)),
    });
    let state = match state {
        // Looked up again at each call, until the recorder enables the process.
        Some(Err(activation)) => {
            thread::set(activation.cast());
            mode::choose(EntryMode::Untraced);
            return core::ptr::null_mut();
        }
        Some(Ok(state)) => Some(state),
        None => None,
    };
    match state {
        Some(Some(state)) => {
            thread::set(state);
            return state;
        }
        None if session::is_untraced() => {
            thread::set(thread::untraced());
            mode::choose(EntryMode::Untraced);
        }
        _ => {
            thread::set(core::ptr::null_mut());
            session::count_without_slot();
        }
    }
    core::ptr::null_mut()
}

/// Returns a state for the calling thread, or `None` if there is no slot or no memory for it.
fn new_state(area: &Area, sp: usize) -> Option<*mut ThreadState> {
    claim(area).or_else(|| wait_for_slot(area)).and_then(|slot| {
        let control = area.slot(slot)?;
        let (Some(state), Some(ring)) = (private::thread_state(slot, STATE_BYTES), area.ring(slot)) else {
            control.owner.0.state.store(SLOT_FREE, Release);
            return None;
        };
        private::publish(area.header());
        let state: *mut ThreadState = state.cast();
        let sample_bytes = area.header().sample_bytes.load(Relaxed);
        // SAFETY: the slot was claimed by this thread alone and its state is mapped.
        unsafe { prepare(state, control, ring, sp, sample_bytes) };
        mode::choose(EntryMode::of_interval(sample_bytes));
        Some(state)
    })
}

/// Initializes a state for its new owner.
///
/// # Safety
/// The state must be mapped and owned by the caller alone. If it had an earlier owner, all its
/// fields are initialized, so that plain writes suffice.
unsafe fn prepare(state: *mut ThreadState, control: &SlotControl, ring: Ring, sp: usize, sample_bytes: u64) {
    // SAFETY: the state is mapped and the caller's alone, as the caller ensures.
    unsafe {
        (*state).writer = RingWriter::new(control, ring, sample_bytes != 0);
        (*state).deferred = Deferred::new();
        (*state).labels = 0;
        (*state).countdown = sampling::Countdown::new(sample_bytes);
        (*state).stacks.reset(sp, control.owner.0.tid.load(Relaxed));
        (*state).activation = Activation::NEW;
    }
}

/// Waits for a free slot. The recorder frees the slots of ended threads when it has read their
/// rings. If the overflow policy is to wait, a thread waits for a slot while such slots exist,
/// because threads may come and go faster than a recorder without CPU time can follow.
#[cold]
fn wait_for_slot(area: &Area) -> Option<u32> {
    /// The longest sleep between two attempts, in milliseconds. Many threads may wait at once, and
    /// each attempt goes through all slots, while the recorder needs the CPU.
    const LONGEST_SLEEP_MS: u64 = 8;
    let mut sleep_ms = 1;
    let header = area.header();
    let mut deadline = Deadline::new(header);
    while header.overflow.load(Relaxed) != OVERFLOW_DROP
        && header.breaker.load(Relaxed) == 0
        && Need::SLEEP.is_allowed()
        && ended_owners(area, header.slots_used.0.load(Relaxed), 256) > 0
    {
        header.slots_wanted.0.store(1, Relaxed);
        sys::sleep_ms(sleep_ms);
        sleep_ms = (2 * sleep_ms).min(LONGEST_SLEEP_MS);
        // The recorder may have freed some after the last attempt.
        let slot = claim(area);
        if slot.is_some() {
            return slot;
        }
        if deadline.is_over(header) {
            header.breaker.store(1, Relaxed);
        }
    }
    // They may have come back after the last look.
    claim(area)
}

/// Returns how many owners of the first slots have ended, in a sample of this size.
fn ended_owners(area: &Area, slots: u32, looks: u32) -> u32 {
    let looked = (0..slots).step_by((slots / looks).max(1) as usize).take(looks as usize);
    let has_ended = |index: &u32| {
        let owner = area.slot(*index).map_or(0, |slot| slot.owner.0.tid.load(Acquire));
        owner != 0 && sys::has_thread_ended(session::pid(), owner)
    };
    looked.filter(has_ended).count() as u32
}

/// Number of slots up to which each thread gets a new one.
const MOST: u32 = 256;
/// Number of slots between two looks at who has ended.
const INTERVAL: u32 = 16;

/// Returns whether a slot that no thread has had yet should not be used, because the recorder is
/// about to return others. A program that starts threads one after the other faster than a busy
/// recorder reads their rings would get a state and a ring for each, some 50 KiB.
#[cold]
fn is_excessive(area: &Area, slot: u32) -> bool {
    /// Programs that don't wait lose the events of threads without a slot.
    const MOST_DROPPING: u32 = 1024;
    const LOOKS: u32 = 64;
    let is_dropping = area.header().overflow.load(Relaxed) == OVERFLOW_DROP;
    (slot >= MOST_DROPPING || !is_dropping)
        && Need::SLEEP.is_allowed()
        && ended_owners(area, slot, LOOKS) >= LOOKS / 4 * 3
}

/// Claims the lowest free slot and returns its index. Lock-free: a compare-and-swap on the slot's
/// own state decides.
fn claim(area: &Area) -> Option<u32> {
    let header = area.header();
    let slots = area.params().slots;
    let hint = header.slot_hint.load(Relaxed).min(slots);
    let (mut start, mut index) = (hint, hint);
    while index < slots {
        let Some(slot) = area.slot(index) else { break };
        let owner = &slot.owner.0;
        if index >= header.slots_used.0.load(Relaxed) {
            // Early enough that a recorder with CPU time returns slots before one is needed.
            if index.is_multiple_of((index.next_power_of_two() / 8).max(16)) {
                header.slots_wanted.0.store(1, Relaxed);
            }
            if index >= MOST && index.is_multiple_of(INTERVAL) {
                // A thread that was interrupted in its search may have hidden slots behind the hint
                // that the recorder freed meanwhile.
                if start != 0 {
                    (start, index) = (0, 0);
                    continue;
                }
                if is_excessive(area, index) {
                    break;
                }
            }
        }
        if owner.state.load(Relaxed) == SLOT_FREE
            && owner.state.compare_exchange(SLOT_FREE, SLOT_CLAIMED, AcqRel, Relaxed).is_ok()
        {
            owner.tid.store(sys::tid(), Release);
            header.slots_used.0.fetch_max(index + 1, AcqRel);
            // This is a hint only. If the recorder frees a slot meanwhile, it lowers the hint
            // again. What an update that is lost hides is found by the search from slot 0.
            let _ = header.slot_hint.compare_exchange(hint, index + 1, Relaxed, Relaxed);
            return Some(index);
        }
        index += 1;
    }
    // The hint may be above a slot that was freed at the same moment.
    header.slot_hint.store(0, Relaxed);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_wire::area::MAGIC;
    use heaptape_wire::{Header, Layout, Params, WIRE_VERSION};
    use std::os::fd::AsRawFd;

    /// An area with so many slots whose threads live.
    fn area(owned: u32) -> Area {
        let layout = Layout::new(Params::default());
        let params = layout.params;
        let path = std::env::temp_dir().join(std::format!("heaptape-claim-{}", sys::pid()));
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        file.set_len(layout.total).expect("a sparse file");
        let header = sys::map_file(core::ptr::null_mut(), 4096, file.as_raw_fd(), 0).expect("its first page");
        // SAFETY: mapped for ever; all fields are atomics.
        let header = unsafe { &*header.cast::<Header>() };
        header.magic.store(MAGIC, Relaxed);
        header.version.store(u32::from(WIRE_VERSION), Relaxed);
        header.ring_bytes.store(params.ring_bytes, Relaxed);
        header.slots.store(params.slots, Relaxed);
        header.nodes.store(params.nodes, Relaxed);
        let area = session::map(file.as_raw_fd(), layout.total).expect("an area");
        for index in 0..owned {
            let owner = &area.slot(index).expect("a slot").owner.0;
            owner.state.store(SLOT_CLAIMED, Relaxed);
            owner.tid.store(sys::tid(), Relaxed);
        }
        header.slots_used.0.store(owned, Relaxed);
        header.slot_hint.store(owned, Relaxed);
        area
    }

    /// A thread looked at slot 5 before the recorder freed it, was interrupted, took a new slot, and
    /// moved the hint there.
    #[test]
    fn slot_behind_the_hint_is_found_before_many_new_ones_are_used() {
        let area = area(MOST + 10);
        area.slot(5).expect("a slot").owner.0.state.store(SLOT_FREE, Relaxed);
        let claimed: Vec<u32> = (0..8).filter_map(|_| claim(&area)).collect();
        assert_eq!(claimed, [266, 267, 268, 269, 270, 271, 5, 272]);
    }
}
