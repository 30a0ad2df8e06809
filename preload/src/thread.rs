//! A thread's private state, and how a thread comes to have it.
//!
//! Each slot has a block, mapped when the slot is claimed ([`crate::private`]). In a forked child
//! every block reads as zeros, so the first event finds `gate == 0` and takes the slow way,
//! whatever kind of fork it was.

use crate::entry::{self, EntryMode};
use crate::unwind::stack_cache::StackCache;
use crate::{attach, emit, private, sandbox, sys, tls};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use heaptape_wire::area::{OVERFLOW_DROP, SLOT_CLAIMED, SLOT_FREE};
use heaptape_wire::limits::HEADER_CHECK_RECORDS;
use heaptape_wire::{Record, SlotControl, ring::Ring};

/// `gate`, low byte: events take the fast path.
pub const READY: u64 = 1;
/// `gate` bit: a hook of this thread is at work.
pub const BUSY: u64 = 2;
/// `gate` bit: a forwarded call is under way that may call other hooks (`operator new` calls
/// `malloc`).
pub const FORWARDING: u64 = 4;
/// `gate` bit, with [`BUSY`]: the hook's event is in the count.
pub const COUNTED: u64 = 8;
/// `gate`, low byte: the process is not traced: for good, or as long as the header's gate says so.
pub const UNTRACED: u64 = heaptape_wire::area::ACTIVATION_DORMANT;
/// `gate`, low byte: the thread is being given its block.
pub const ENTERING: u64 = 64;
/// `gate`: events begun on this thread, above the bits. One store marks the hook busy and counts
/// its event, so that a jump out of the hook at any instruction leaves a true count.
pub const ONE_EVENT: u64 = 1 << 8;

/// Bit of `lost_untold`: the sampling interval is to be told.
pub const INTERVAL_PENDING: u64 = 1 << 63;
/// Bit of `lost_untold`: the event that is told next was still chosen by the old one.
pub const INTERVAL_AFTER_NEXT: u64 = 1 << 62;

/// Events of signal handlers that interrupted a hook wait here until it is done.
pub const MAX_DEFERRED: usize = 64;

/// An event that waits, with its stamp.
#[derive(Clone, Copy)]
pub struct DeferredEvent {
    /// Absolute ticks.
    pub timestamp: u64,
    /// The event.
    pub event: heaptape_wire::Event,
}

/// The thread's state. Only its own thread reads or writes it, a signal handler on that thread
/// included.
#[repr(C, align(4096))]
pub struct ThreadState {
    /// [`READY`] plus bits, and the count of events begun; 0 before the claim and in a forked
    /// child. First: [`OFF`] has nothing else.
    pub activation: u64,
    /// The published `head` when the hook at work began: while it still is, the event of that hook
    /// is not published.
    pub event_head: u64,
    /// Events still to go until the next stamp, while the process has one thread.
    pub until_timestamp: u32,
    /// The slot's control words.
    pub control: *const SlotControl,
    /// The slot's ring.
    pub ring: Ring,
    /// Next position in the ring.
    pub head: u64,
    /// Positions below this are free to write.
    pub limit: u64,
    /// Last stamp published.
    pub timestamp: u64,
    /// Stack pointer of the hook at work.
    pub busy_sp: usize,
    /// Word at `busy_sp`: the hook's return address; another word there proves that the hook is
    /// gone.
    pub busy_return_address: u64,
    /// Records kept free for second halves of resizes.
    pub reserved: u64,
    /// Events that found no room.
    pub dropped: u64,
    /// Of these, not yet told by a record in the ring; above them [`INTERVAL`] and [`BEHIND_NEXT`].
    pub pending_reports: u64,
    /// Lowest address known to be mapped up to `stack_end`.
    pub stack_low: usize,
    /// Behind the highest word of the thread's own stack that may be read; 0 when it is not known.
    pub stack_end: usize,
    /// No page below this one belongs to the thread's own stack: one of them cannot be read.
    pub stack_floor: usize,
    /// Pages of other stacks.
    pub other_pages: crate::unwind::other::Pages,
    /// The same before the walk at work; not a variable of it, since it may run on a very small
    /// stack.
    pub pages_before: crate::unwind::other::Pages,
    /// Bytes to the next sampling point.
    pub countdown: crate::sample::Countdown,
    /// See [`crate::guard`].
    pub forward: crate::guard::Forward,
    /// Filled places of `nested`.
    pub deferred_count: u32,
    /// Of these, already told.
    pub deferred_emitted: u32,
    /// A nested event is being captured.
    pub is_capturing_deferred: u32,
    /// What the last captures read.
    pub stack_cache: StackCache,
    /// Room for a capture inside a capture.
    pub deferred_frames: crate::unwind::Frames,
    /// Events of handlers.
    pub deferred: [DeferredEvent; MAX_DEFERRED],
}

/// The block of every thread of a process that is not traced: a gate that says so, and nothing else
/// is looked at.
static OFF: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(UNTRACED);

/// Stands in the slot while a thread is given its block, so that an allocation inside that does not
/// claim a second one.
static CLAIMING: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(ENTERING);

/// The block of a thread that is not traced.
pub fn untraced() -> *mut ThreadState {
    (&raw const OFF).cast_mut().cast()
}

/// Bytes of a block before its large parts.
pub const BYTES_BEFORE_CACHE: usize = core::mem::offset_of!(ThreadState, stack_cache);

/// Bytes of a block, a multiple of the page.
pub const STATE_BYTES: usize = size_of::<ThreadState>();

/// The thread's block, made when it has none yet: for calls that must be marked before they are
/// made.
#[inline(always)]
pub fn state(sp: usize) -> *mut ThreadState {
    let state = tls::get();
    // SAFETY: a block's memory stays mapped for ever once its address was stored in the slot.
    if state.is_null() || unsafe { (&raw const (*state).activation).read_volatile() } == 0 { enter(sp) } else { state }
}

/// The slow way of a hook: gives the thread its block, attaching the process first when that has
/// not been tried. Null when the process is not traced.
#[cold]
pub fn enter(sp: usize) -> *mut ThreadState {
    sys::aligned(|| {
        if !crate::next::is_resolved() {
            return core::ptr::null_mut();
        }
        if !sandbox::allows(sandbox::THREAD) {
            attach::missed();
            return core::ptr::null_mut();
        }
        // A handler that jumped out from here would leave the thread without a block for ever.
        let signals = sys::hold_signals();
        let state = attach_thread(sp);
        sys::release_signals(signals);
        state
    })
}

fn attach_thread(sp: usize) -> *mut ThreadState {
    tls::set((&raw const CLAIMING).cast_mut().cast());
    let state = attach::session().map(|session| match session.dormant() {
        Some(activation) => Err(activation),
        None => Ok(new_state(&session, sp)),
    });
    let state = match state {
        // Looked at again at each call, until the recorder opens it.
        Some(Err(activation)) => {
            tls::set(activation);
            entry::choose(EntryMode::Untraced);
            return core::ptr::null_mut();
        }
        Some(Ok(state)) => Some(state),
        None => None,
    };
    match state {
        Some(Some(state)) => {
            tls::set(state);
            return state;
        }
        None if attach::is_off() => {
            tls::set(untraced());
            entry::choose(EntryMode::Untraced);
        }
        _ => {
            tls::set(core::ptr::null_mut());
            attach::missed();
        }
    }
    core::ptr::null_mut()
}

/// A block for the calling thread; `None` when there is no slot or no memory for it.
fn new_state(session: &attach::Session, sp: usize) -> Option<*mut ThreadState> {
    claim(session).or_else(|| wait_for_slot(session)).and_then(|slot| {
        let control = session.area.slot(slot)?;
        let (Some(state), Some(ring)) = (private::thread_state(slot), session.area.ring(slot)) else {
            control.owner.0.state.store(SLOT_FREE, Release);
            return None;
        };
        let sample_bytes = session.area.header().sample_bytes.load(Relaxed);
        // SAFETY: the slot was claimed by this thread alone and its block is mapped.
        unsafe { prepare(state, control, ring, sp, sample_bytes) };
        entry::choose(EntryMode::of_interval(sample_bytes));
        Some(state)
    })
}

/// Fills a block for its new owner.
///
/// # Safety
/// The block is mapped and the caller's alone; the memory of an earlier owner is whole, so that
/// plain writes of the fields suffice.
unsafe fn prepare(state: *mut ThreadState, control: &SlotControl, ring: Ring, sp: usize, sample_bytes: u64) {
    let head = control.producer.0.head.load(Relaxed);
    // SAFETY: the caller's promise.
    unsafe {
        (*state).control = control;
        (*state).ring = ring;
        (*state).head = head;
        (*state).limit =
            control.consumer.0.tail.load(Acquire).wrapping_add(ring.capacity()).min(head + HEADER_CHECK_RECORDS);
        (*state).timestamp = 0;
        (*state).until_timestamp = 0;
        (*state).event_head = head;
        (*state).reserved = 0;
        (*state).dropped = 0;
        (*state).pending_reports = if sample_bytes == 0 { 0 } else { INTERVAL_PENDING };
        (*state).deferred_count = 0;
        (*state).is_capturing_deferred = 0;
        (*state).deferred_emitted = 0;
        (*state).stack_cache.forget();
        (*state).countdown = crate::sample::Countdown::new(sample_bytes);
        (*state).stack_low = sp & !4095;
        (*state).stack_end = own_stack_end(sp, control.owner.0.tid.load(Relaxed));
        (*state).stack_floor = 0;
        (*state).other_pages = crate::unwind::other::Pages::new();
        (*state).activation = READY;
    }
}

/// Looks how far down the calling thread's stack can be read while asking is still allowed: as if
/// it had gone so deep before.
pub fn probe_stack() {
    const AHEAD: usize = 512 << 10;
    let state = tls::get();
    if !crate::guard::is_traced(state) {
        return;
    }
    // SAFETY: the thread's own block.
    let state = unsafe { &mut *state };
    let lowest = state.stack_low.saturating_sub(AHEAD);
    while state.stack_end != 0 && state.stack_low > lowest && sys::is_readable(state.stack_low - 4096) {
        state.stack_low -= 4096;
    }
}

/// Slots of threads that are over come back when the recorder has read their rings. Where events
/// wait for room, a thread waits for a slot as long as there are such slots: threads may come and
/// go faster than a recorder without a processor can follow.
#[cold]
fn wait_for_slot(session: &attach::Session) -> Option<u32> {
    /// Many threads may wait at once, and each look goes through all slots: the recorder needs the
    /// processor more.
    const LONGEST_SLEEP_MS: u64 = 32;
    let mut sleep_ms = 1;
    let header = session.area.header();
    let mut deadline = emit::Deadline::new(header);
    while header.overflow.load(Relaxed) != OVERFLOW_DROP
        && header.breaker.load(Relaxed) == 0
        && sandbox::allows(sandbox::SLEEP)
        && has_ended_owners(session)
    {
        sys::sleep_ms(sleep_ms);
        sleep_ms = (2 * sleep_ms).min(LONGEST_SLEEP_MS);
        let slot = claim(session);
        if slot.is_some() {
            return slot;
        }
        if deadline.is_over(header) {
            header.breaker.store(1, Relaxed);
        }
    }
    // They may have come back after the last look.
    claim(session)
}

/// Whether a slot's owner is over, looked for in some of them.
fn has_ended_owners(session: &attach::Session) -> bool {
    const LOOKS: u32 = 256;
    let slots = session.area.params().slots;
    let mut looked = (0..slots).step_by((slots / LOOKS).max(1) as usize);
    looked.any(|index| {
        let owner = session.area.slot(index).map_or(0, |slot| slot.owner.0.tid.load(Acquire));
        owner != 0 && sys::is_over(attach::pid(), owner)
    })
}

/// Takes the lowest free slot. Lock-free: a compare-and-swap on the slot's own word decides.
fn claim(session: &attach::Session) -> Option<u32> {
    let header = session.area.header();
    let slots = session.area.params().slots;
    let start = header.slot_hint.load(Relaxed).min(slots);
    for index in start..slots {
        let Some(slot) = session.area.slot(index) else { break };
        let owner = &slot.owner.0;
        if owner.state.load(Relaxed) == SLOT_FREE
            && owner.state.compare_exchange(SLOT_FREE, SLOT_CLAIMED, AcqRel, Relaxed).is_ok()
        {
            owner.tid.store(sys::tid(), Release);
            header.slots_used.0.fetch_max(index + 1, AcqRel);
            // A hint only: a slot given back meanwhile lowers it again, and a lost update costs a
            // scan.
            let _ = header.slot_hint.compare_exchange(start, index + 1, Relaxed, Relaxed);
            return Some(index);
        }
    }
    // The hint may have passed a slot that was given back at the same moment.
    header.slot_hint.store(0, Relaxed);
    None
}

/// The end of the stack that `sp` lies on: threads made by libc have their thread pointer at its
/// top, the main thread has the kernel's random bytes above its first frame. The only thread of a
/// forked child may have been either. 0 when the pages up to there are not all mapped: the first
/// event came on another stack.
pub fn own_stack_end(sp: usize, tid: u32) -> usize {
    let is_main = tid == attach::pid();
    let kernels = if is_main { mapped_up_to(sp, sys::auxiliary(libc::AT_RANDOM)) } else { 0 };
    if kernels == 0 && (!is_main || attach::is_forked()) { mapped_up_to(sp, tls::thread_pointer()) } else { kernels }
}

/// The word's address, when everything from `sp` up to it can be read; else 0.
fn mapped_up_to(sp: usize, end: usize) -> usize {
    /// 64 MiB: more than any stack in use at a thread's first event.
    const FARTHEST: usize = 64 << 20;
    let end = end & !7;
    if end <= sp || end - sp > FARTHEST {
        return 0;
    }
    let mut page = sp & !4095;
    while page < end {
        let count = sys::readable_pages(page, (end - page).div_ceil(4096));
        if count == 0 {
            return 0;
        }
        page += count * 4096;
    }
    end
}

impl ThreadState {
    /// The window of the thread's own stack that may be read from `sp` up, grown down to `sp` page
    /// by page when it went deeper than ever before. False: `sp` lies on another stack.
    #[inline(always)]
    pub fn is_on_own_stack(&mut self, sp: usize) -> bool {
        (sp >= self.stack_low && sp < self.stack_end) || self.grow_stack(sp)
    }

    #[cold]
    fn grow_stack(&mut self, sp: usize) -> bool {
        /// 2,048 pages: what a single frame may skip at once.
        const MOST: usize = 8 << 20;
        if self.other_pages.contain(sp as u64) {
            return false;
        }
        if self.stack_end == 0 {
            // A sandbox may not let the thread ask who it is.
            if !sandbox::allows(sandbox::THREAD) {
                return false;
            }
            self.stack_end = own_stack_end(sp, sys::tid());
            self.stack_low = sp & !4095;
            return self.stack_end != 0;
        }
        let target = sp & !4095;
        if sp >= self.stack_end || self.stack_low - target > MOST || target < self.stack_floor {
            return false;
        }
        // The page of `sp` itself is there: it is being used.
        while self.stack_low > target + 4096 {
            if !sys::is_readable(self.stack_low - 4096) {
                if sandbox::allows(sandbox::PROBE) {
                    self.stack_floor = self.stack_low;
                }
                return false;
            }
            self.stack_low -= 4096;
        }
        self.stack_low = target;
        true
    }

    /// Publishes everything up to `self.head`.
    ///
    /// # Safety
    /// `self.control` must be the claimed slot's: [`enter`] upholds it for a block whose gate is
    /// not 0.
    #[inline(always)]
    pub unsafe fn publish(&mut self) {
        // SAFETY: the control words stay mapped as long as the session.
        let producer = unsafe { &(*self.control).producer.0 };
        producer.head.store(self.head, Release);
    }

    /// Stores a record behind the published ones.
    #[inline(always)]
    pub fn put(&mut self, record: Record) {
        self.ring.put(self.head, record);
        self.head += 1;
    }
}
