//! The private state of a thread.
//!
//! Each slot has a [`ThreadState`], mapped when the slot is claimed. In a forked child every state
//! reads as zeros. So the first event there finds `activation == 0` and takes the slow path,
//! whichever kind of fork it was.

pub mod deadline;

use crate::arch;
use crate::sampling::Countdown;
use crate::stack::ThreadStacks;
use core::sync::atomic::Ordering::Release;
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

/// A forwarded call, whose inner calls are not events of their own.
#[derive(Clone, Copy)]
pub struct Forward {
    /// The stack pointer of the hook that forwards the call.
    pub sp: usize,
    /// The bytes that an inner allocation of the same call requests.
    pub size: usize,
    /// The most bytes by which the inner request may be larger, because the size may be rounded up
    /// to an alignment.
    pub slack: usize,
    /// The block that an inner free of the same call frees; 0 for an allocation.
    pub address: usize,
    /// The return address at `sp`, which is there until the forwarded call ends.
    pub return_address: u64,
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
    /// The bytes to the next sampling point.
    pub countdown: Countdown,
    /// The forwarded call that is running; see `record/guard.rs`.
    pub forward: Forward,
    /// Number of entries of `deferred` in use.
    pub deferred_count: u32,
    /// Number of entries of `deferred` that have been emitted.
    pub deferred_emitted: u32,
    /// 1 while the stack of a deferred event is being captured.
    pub is_capturing_deferred: u32,
    /// The stacks of this thread.
    pub stacks: ThreadStacks,
    /// The deferred events, in the order in which they happened.
    pub deferred: [DeferredEvent; MAX_DEFERRED],
}

/// The state of all threads of a process that is not traced. It consists of an `activation` only,
/// since hooks read nothing else then.
static UNTRACED_STATE: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(UNTRACED);

/// The state of a thread that is getting its own state, so that an allocation on the way does not
/// claim a second slot.
static CLAIMING: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(ENTERING);

/// Returns the state of a thread that is getting its own.
pub fn claiming() -> *mut ThreadState {
    (&raw const CLAIMING).cast_mut().cast()
}

/// Returns the state of a thread that is not traced.
pub fn untraced() -> *mut ThreadState {
    (&raw const UNTRACED_STATE).cast_mut().cast()
}

/// Size of the fields of a state before its large ones, in bytes.
pub const BYTES_BEFORE_CACHE: usize = core::mem::offset_of!(ThreadState, stacks.cache);

/// Size of a state in bytes, a multiple of the page size.
pub const STATE_BYTES: usize = size_of::<ThreadState>();

/// Returns the thread's state, or null if it is not known yet.
#[inline(always)]
pub fn get() -> *mut ThreadState {
    arch::thread_state().cast()
}

/// Sets the thread's state.
pub fn set(state: *mut ThreadState) {
    arch::set_thread_state(state.cast());
}

/// Returns whether events are written to this state.
#[inline(always)]
pub fn is_traced(state: *mut ThreadState) -> bool {
    // SAFETY: states stay mapped for ever; a forked child reads zeros.
    !state.is_null() && unsafe { (&raw const (*state).activation).read_volatile() } & READY != 0
}

impl ThreadState {
    /// Publishes all records up to `self.head`.
    ///
    /// # Safety
    /// `self.control` must be the control record of the claimed slot. `boot/claim.rs` ensures it
    /// for a state whose activation is not 0.
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
