//! The private state of a thread.
//!
//! Each slot has a [`ThreadState`], mapped when the slot is claimed. In a forked child every state
//! reads as zeros. So the first event there finds `activation == 0` and takes the slow path,
//! whichever kind of fork it was.

mod activation;
pub(crate) mod deadline;
mod deferred;
pub(crate) mod descriptor_thread;
mod forwarded;
mod ring_writer;

pub(crate) use activation::{
    Activation, BUSY, COUNTED, ENTERING, FORKING, FORWARDING, PENDING, READY, STOPPED, UNTRACED,
};
pub(crate) use deferred::{Deferred, DeferredEvent, DeferredEvents, MANY_DEFERRED, MAX_DEFERRED};
pub(crate) use forwarded::{Forwarded, Request};
pub(crate) use ring_writer::{INTERVAL_AFTER_NEXT, INTERVAL_PENDING, RingWriter};

use crate::arch;
use crate::sampling::Countdown;
use crate::stack::ThreadStacks;

/// The state of one thread. Only its own thread reads or writes it, including signal handlers on
/// that thread. It begins with a page, since a fork keeps that of its thread only.
#[cfg_attr(target_arch = "x86_64", repr(C, align(0x1000)))]
#[cfg_attr(target_arch = "aarch64", repr(C, align(0x10000)))]
pub(crate) struct ThreadState {
    /// What the hooks of the thread do. It is the first field because [`UNTRACED_STATE`] has no
    /// other, and because the entry stubs read it.
    pub activation: Activation,
    /// The writing end of the thread's ring.
    pub writer: RingWriter,
    pub running: RunningHook,
    /// The bytes to the next sampling point.
    pub countdown: Countdown,
    /// The forwarded call that is running.
    pub forwarded: Forwarded,
    /// Number of labels that the program has set on the thread.
    pub labels: u32,
    /// The queue of the deferred events.
    pub deferred: Deferred,
    pub stacks: ThreadStacks,
    /// The entries of that queue.
    pub deferred_events: DeferredEvents,
}

const _: () = assert!(core::mem::offset_of!(ThreadState, activation) == 0);

/// The hook of a thread that is running, or the last one that was.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RunningHook {
    /// The stack pointer of the hook.
    pub sp: usize,
    /// The word at `sp`, which is the hook's return address. If another word is there, the hook has
    /// ended.
    pub return_address: u64,
}

/// The state of all threads of a process that is not traced. It consists of an `activation` only,
/// since hooks read nothing else then.
static UNTRACED_STATE: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(UNTRACED);

/// The state of a thread that is getting its own state, so that an allocation on the way does not
/// claim a second slot.
static CLAIMING: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(ENTERING);

/// Returns the state of a thread that is getting its own.
pub(crate) fn claiming() -> *mut ThreadState {
    (&raw const CLAIMING).cast_mut().cast()
}

/// Returns the state of a thread that is not traced.
pub(crate) fn untraced() -> *mut ThreadState {
    (&raw const UNTRACED_STATE).cast_mut().cast()
}

/// Size of the fields of a state before its large ones, in bytes.
pub(crate) const BYTES_BEFORE_CACHE: usize = core::mem::offset_of!(ThreadState, stacks.cache);

/// Size of a state in bytes, a multiple of the page size.
pub(crate) const STATE_BYTES: usize = size_of::<ThreadState>();

/// Returns the thread's state, or null if it is not known yet.
#[inline(always)]
pub(crate) fn get() -> *mut ThreadState {
    arch::thread_state().cast()
}

pub(crate) fn set(state: *mut ThreadState) {
    arch::set_thread_state(state.cast());
}

/// Returns whether events are written to this state.
#[inline(always)]
pub(crate) fn is_traced(state: *mut ThreadState) -> bool {
    // SAFETY: states stay mapped for ever; a forked child reads zeros.
    !state.is_null() && unsafe { Activation::read(&raw const (*state).activation) }.has(READY)
}
