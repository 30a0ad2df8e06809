//! The private state of a thread, and how a thread gets it.
//!
//! Each slot has a [`ThreadState`], mapped when the slot is claimed ([`crate::private`]). In a
//! forked child every state reads as zeros. So the first event there finds `activation == 0` and
//! takes the slow path, whichever kind of fork it was.

use crate::entry::{self, EntryMode};
use crate::unwind::stack_cache::StackCache;
use crate::{attach, emit, private, sandbox, sys, tls};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use heaptape_wire::area::{OVERFLOW_DROP, SLOT_CLAIMED, SLOT_FREE};
use heaptape_wire::limits::HEADER_CHECK_RECORDS;
use heaptape_wire::{Record, SlotControl, ring::Ring};

/// Low byte of `activation`: events take the fast path.
pub const READY: u64 = 1;
/// Bit of `activation`: a hook of this thread is running.
pub const BUSY: u64 = 2;
/// Bit of `activation`: a forwarded call is running that may call other hooks (`operator new` calls
/// `malloc`).
pub const FORWARDING: u64 = 4;
/// Bit of `activation`, with [`BUSY`]: the hook's event has been counted.
pub const COUNTED: u64 = 8;
/// Low byte of `activation`: the process is not traced, either for good or while the header's
/// `activation` says so.
pub const UNTRACED: u64 = heaptape_wire::area::ACTIVATION_DORMANT;
/// Low byte of `activation`: the thread is getting its state.
pub const ENTERING: u64 = 64;
/// The unit of the count of begun events, which `activation` holds above its low byte. One store
/// marks the hook busy and counts its event, so that the count is right even if a jump leaves the
/// hook at any instruction.
pub const ONE_EVENT: u64 = 1 << 8;

/// Bit of `pending_reports`: the sampling interval has to be reported.
pub const INTERVAL_PENDING: u64 = 1 << 63;
/// Bit of `pending_reports`: the next event was still selected by the old interval.
pub const INTERVAL_AFTER_NEXT: u64 = 1 << 62;

/// The most deferred events of a thread: events of signal handlers that interrupted a hook.
pub const MAX_DEFERRED: usize = 64;

/// An event of a signal handler, kept until the interrupted hook ends.
#[derive(Clone, Copy)]
pub struct DeferredEvent {
    /// The absolute timestamp in ticks.
    pub timestamp: u64,
    /// The event as the hook found it.
    pub event: heaptape_wire::Event,
}

/// The state of one thread. Only its own thread reads or writes it, including signal handlers on
/// that thread.
#[repr(C, align(4096))]
pub struct ThreadState {
    /// [`READY`] plus bits, and the count of begun events; 0 before the slot is claimed and in a
    /// forked child. It is the first field because [`UNTRACED_STATE`] has no other.
    pub activation: u64,
    /// The published `head` when the running hook began. While it is unchanged, that hook's event
    /// has not been published.
    pub event_head: u64,
    /// Number of events until the next timestamp, while the process has one thread.
    pub until_timestamp: u32,
    /// The control record of the slot.
    pub control: *const SlotControl,
    /// The ring of the slot.
    pub ring: Ring,
    /// The next position in the ring.
    pub head: u64,
    /// Positions below this one are free to write.
    pub limit: u64,
    /// The last timestamp that was published.
    pub timestamp: u64,
    /// The stack pointer of the running hook.
    pub busy_sp: usize,
    /// The word at `busy_sp`, which is the hook's return address. If another word is there, the
    /// hook has ended.
    pub busy_return_address: u64,
    /// Number of records kept free for second halves of resizes.
    pub reserved: u64,
    /// Number of events that were dropped for want of space in the ring.
    pub dropped: u64,
    /// Number of dropped events that no record in the ring has reported yet, with
    /// [`INTERVAL_PENDING`] and [`INTERVAL_AFTER_NEXT`] above it.
    pub pending_reports: u64,
    /// The lowest address from which the stack is known to be mapped up to `stack_end`.
    pub stack_low: usize,
    /// The end of the readable part of the thread's own stack; 0 if it is not known.
    pub stack_end: usize,
    /// No page below this address belongs to the thread's own stack, because one of them cannot be
    /// read.
    pub stack_floor: usize,
    /// Pages of other stacks that can be read.
    pub other_pages: crate::unwind::other::Pages,
    /// The value of `other_pages` before the current walk. It is a field and not a local variable
    /// because the walk may run on a very small stack.
    pub pages_before: crate::unwind::other::Pages,
    /// The bytes to the next sampling point.
    pub countdown: crate::sample::Countdown,
    /// The forwarded call that is running; see [`crate::guard`].
    pub forward: crate::guard::Forward,
    /// Number of entries of `deferred` in use.
    pub deferred_count: u32,
    /// Number of entries of `deferred` that have been emitted.
    pub deferred_emitted: u32,
    /// 1 while the stack of a deferred event is being captured.
    pub is_capturing_deferred: u32,
    /// The last captures of this thread.
    pub stack_cache: StackCache,
    /// The frames of a capture that interrupted another capture.
    pub deferred_frames: crate::unwind::Frames,
    /// The deferred events, in the order in which they happened.
    pub deferred: [DeferredEvent; MAX_DEFERRED],
}

/// The state of all threads of a process that is not traced. It consists of an `activation` only,
/// since hooks read nothing else then.
static UNTRACED_STATE: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(UNTRACED);

/// The state of a thread that is getting its own state, so that an allocation on the way does not
/// claim a second slot.
static CLAIMING: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(ENTERING);

/// Returns the state of a thread that is not traced.
pub fn untraced() -> *mut ThreadState {
    (&raw const UNTRACED_STATE).cast_mut().cast()
}

/// Size of the fields of a state before its large ones, in bytes.
pub const BYTES_BEFORE_CACHE: usize = core::mem::offset_of!(ThreadState, stack_cache);

/// Size of a state in bytes, a multiple of the page size.
pub const STATE_BYTES: usize = size_of::<ThreadState>();

/// Returns the thread's state, and creates it if there is none yet. Used by calls that must be
/// marked before they are made.
#[inline(always)]
pub fn state(sp: usize) -> *mut ThreadState {
    let state = tls::get();
    // SAFETY: a state stays mapped for ever once its address is in the thread-local variable.
    if state.is_null() || unsafe { (&raw const (*state).activation).read_volatile() } == 0 { enter(sp) } else { state }
}

/// Creates the state of the calling thread, and attaches the process first if that has not been
/// tried. This is the slow path of a hook. Returns null if the process is not traced.
#[cold]
pub fn enter(sp: usize) -> *mut ThreadState {
    sys::aligned(|| {
        if !crate::next::is_resolved() {
            return core::ptr::null_mut();
        }
        if !sandbox::allows(sandbox::THREAD) {
            attach::count_without_slot();
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
    tls::set((&raw const CLAIMING).cast_mut().cast());
    let state = attach::session().map(|session| match session.dormant_activation() {
        Some(activation) => Err(activation),
        None => Ok(new_state(&session, sp)),
    });
    let state = match state {
        // Looked up again at each call, until the recorder enables the process.
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
        None if attach::is_untraced() => {
            tls::set(untraced());
            entry::choose(EntryMode::Untraced);
        }
        _ => {
            tls::set(core::ptr::null_mut());
            attach::count_without_slot();
        }
    }
    core::ptr::null_mut()
}

/// Returns a state for the calling thread, or `None` if there is no slot or no memory for it.
fn new_state(session: &attach::Session, sp: usize) -> Option<*mut ThreadState> {
    claim(session).or_else(|| wait_for_slot(session)).and_then(|slot| {
        let control = session.area.slot(slot)?;
        let (Some(state), Some(ring)) = (private::thread_state(slot), session.area.ring(slot)) else {
            control.owner.0.state.store(SLOT_FREE, Release);
            return None;
        };
        let sample_bytes = session.area.header().sample_bytes.load(Relaxed);
        // SAFETY: the slot was claimed by this thread alone and its state is mapped.
        unsafe { prepare(state, control, ring, sp, sample_bytes) };
        entry::choose(EntryMode::of_interval(sample_bytes));
        Some(state)
    })
}

/// Initializes a state for its new owner.
///
/// # Safety
/// The state must be mapped and owned by the caller alone. If it had an earlier owner, all its
/// fields are initialized, so that plain writes suffice.
unsafe fn prepare(state: *mut ThreadState, control: &SlotControl, ring: Ring, sp: usize, sample_bytes: u64) {
    let head = control.producer.0.head.load(Relaxed);
    // SAFETY: the state is mapped and the caller's alone, as the caller ensures.
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

/// Finds how far down the calling thread's stack can be read, while the system calls for it are
/// still allowed, as if the thread had used the stack to that depth before.
pub fn probe_stack() {
    const AHEAD: usize = 512 << 10;
    let state = tls::get();
    if !crate::guard::is_traced(state) {
        return;
    }
    // SAFETY: the thread's own state.
    let state = unsafe { &mut *state };
    let lowest = state.stack_low.saturating_sub(AHEAD);
    while state.stack_end != 0 && state.stack_low > lowest && sys::is_readable(state.stack_low - 4096) {
        state.stack_low -= 4096;
    }
}

/// Waits for a free slot. The recorder frees the slots of ended threads when it has read their
/// rings. If the overflow policy is to wait, a thread waits for a slot while such slots exist,
/// because threads may come and go faster than a recorder without CPU time can follow.
#[cold]
fn wait_for_slot(session: &attach::Session) -> Option<u32> {
    /// The longest sleep between two attempts, in milliseconds. Many threads may wait at once, and
    /// each attempt goes through all slots, while the recorder needs the CPU.
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
        // The recorder may have freed some after the last attempt.
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

/// Returns whether the owner of some slot has ended. It looks at a sample of the slots.
fn has_ended_owners(session: &attach::Session) -> bool {
    const LOOKS: u32 = 256;
    let slots = session.area.params().slots;
    let mut looked = (0..slots).step_by((slots / LOOKS).max(1) as usize);
    looked.any(|index| {
        let owner = session.area.slot(index).map_or(0, |slot| slot.owner.0.tid.load(Acquire));
        owner != 0 && sys::has_thread_ended(attach::pid(), owner)
    })
}

/// Claims the lowest free slot and returns its index. Lock-free: a compare-and-swap on the slot's
/// own state decides.
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
            // This is a hint only. If the recorder frees a slot meanwhile, it lowers the hint
            // again, and a lost update costs one scan.
            let _ = header.slot_hint.compare_exchange(start, index + 1, Relaxed, Relaxed);
            return Some(index);
        }
    }
    // The hint may be above a slot that was freed at the same moment.
    header.slot_hint.store(0, Relaxed);
    None
}

/// Returns the end of the stack that holds `sp`. Threads made by libc have their thread pointer at
/// the top of the stack. The main thread has the kernel's random bytes above its first frame. The
/// only thread of a forked child may have been either. Returns 0 if not all pages up to there are
/// mapped; then the first event came on another stack.
pub fn own_stack_end(sp: usize, tid: u32) -> usize {
    let is_main = tid == attach::pid();
    let kernels = if is_main { mapped_up_to(sp, sys::auxiliary(libc::AT_RANDOM)) } else { 0 };
    if kernels == 0 && (!is_main || attach::is_forked()) {
        mapped_up_to(sp, crate::arch::thread_pointer())
    } else {
        kernels
    }
}

/// Returns `end` rounded down to a word if everything from `sp` up to it can be read, else 0.
fn mapped_up_to(sp: usize, end: usize) -> usize {
    /// 64 MiB, which is more than any stack uses at a thread's first event.
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
    /// Returns whether `sp` is on the thread's own stack, which can then be read from `sp` up. The
    /// known part of the stack is extended page by page if `sp` is deeper than ever before.
    #[inline(always)]
    pub fn is_on_own_stack(&mut self, sp: usize) -> bool {
        (sp >= self.stack_low && sp < self.stack_end) || self.grow_stack(sp)
    }

    #[cold]
    fn grow_stack(&mut self, sp: usize) -> bool {
        /// The most bytes that a single frame may skip: 2,048 pages.
        const MOST: usize = 8 << 20;
        if self.other_pages.contain(sp as u64) {
            return false;
        }
        if self.stack_end == 0 {
            // A sandbox may not allow the system call for the thread id.
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
        // The page of `sp` itself is mapped, since it is in use.
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

    /// Publishes all records up to `self.head`.
    ///
    /// # Safety
    /// `self.control` must be the control record of the claimed slot. [`enter`] ensures it for a
    /// state whose activation is not 0.
    #[inline(always)]
    pub unsafe fn publish(&mut self) {
        // SAFETY: the control words stay mapped as long as the session.
        let producer = unsafe { &(*self.control).producer.0 };
        producer.head.store(self.head, Release);
    }

    /// Stores a record after the ones already stored.
    #[inline(always)]
    pub fn put(&mut self, record: Record) {
        self.ring.put(self.head, record);
        self.head += 1;
    }
}
