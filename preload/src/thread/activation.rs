//! The activation of a thread: what its hooks do, and how many events they have begun.

use crate::arch;

/// Low byte of an activation: events take the fast path.
pub(crate) const READY: u64 = 1;
/// Bit of an activation: a hook of this thread is running.
pub(crate) const BUSY: u64 = 2;
/// Bit of an activation: a forwarded call is running that may call other hooks (`operator new`
/// calls `malloc`).
pub(crate) const FORWARDING: u64 = 4;
/// Bit of an activation, with [`BUSY`]: the hook's event has been counted.
pub(crate) const COUNTED: u64 = 8;
/// Bit of an activation: the program has stopped the recording of this thread.
pub(crate) const STOPPED: u64 = 16;
/// Bit of an activation: the thread forks, and the child keeps this state. The child must not use
/// it as its own, even if a handler of `pthread_atfork` has made the thread idle meanwhile.
pub(crate) const FORKING: u64 = 32;
/// Bit of an activation: there are deferred events. So a handler that runs before the interrupted hook
/// has emitted them does not take the fast path, but emits them before its own.
pub(crate) const PENDING: u64 = 64;
/// Low byte of an activation: the thread is getting its state.
pub(crate) const ENTERING: u64 = UNTRACED | PENDING;
/// Low byte of an activation: the process is not traced, either for good or while the header's
/// `activation` says so.
pub(crate) const UNTRACED: u64 = heaptape_wire::area::ACTIVATION_DORMANT;
/// The unit of the count of begun events, which an activation holds above its low byte. One store
/// marks the hook busy and counts its event, so that the count is right even if a jump leaves the
/// hook at any instruction.
const ONE_EVENT: u64 = 1 << 8;

/// [`READY`] plus bits, and the count of begun events; 0 before the slot is claimed and in a forked
/// child. A signal handler of this thread may change it at any time.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Activation(u64);

impl Activation {
    /// The activation of a thread that has just got its state.
    pub(crate) const NEW: Activation = Activation(READY);

    /// Returns the current value.
    ///
    /// # Safety
    /// `this` must be mapped.
    #[inline(always)]
    pub(crate) unsafe fn read(this: *const Activation) -> Activation {
        // SAFETY: mapped, as the caller ensures; only this thread writes it.
        unsafe { this.read_volatile() }
    }

    /// Returns whether the thread has no state in this process.
    #[inline(always)]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the low byte, which is [`READY`] with no other bit on the fast path.
    #[inline(always)]
    pub(crate) const fn low_byte(self) -> u64 {
        self.0 & 0xff
    }

    #[inline(always)]
    pub(crate) const fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    /// Returns the number of begun events.
    #[inline(always)]
    pub(crate) const fn events(self) -> u64 {
        self.0 / ONE_EVENT
    }

    /// Counts one more event, in a hook that is busy, in one instruction.
    ///
    /// # Safety
    /// `this` must be the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn count_event(this: *mut Activation) {
        // SAFETY: the calling thread's own word.
        unsafe { arch::signal_atomic_add(this.cast(), ONE_EVENT) };
    }

    /// Marks the hook as running, and counts its event if `counted` is [`COUNTED`]. This is one
    /// instruction: with a separate load and store, a handler that runs between them would have its
    /// own count undone.
    ///
    /// # Safety
    /// `this` must be the calling thread's, and not busy.
    #[inline(always)]
    pub(crate) unsafe fn begin(this: *mut Activation, counted: u64) {
        let count = if counted != 0 { ONE_EVENT } else { 0 };
        // SAFETY: the calling thread's own word.
        unsafe { arch::signal_atomic_add(this.cast(), count | BUSY | counted) };
    }

    /// Counts one more event as [`Activation::begin`] does, in a hook that is busy and whose last event
    /// is published.
    ///
    /// # Safety
    /// `this` must be the calling thread's, without [`COUNTED`].
    #[inline(always)]
    pub(crate) unsafe fn begin_event(this: *mut Activation) {
        // SAFETY: the calling thread's own word.
        unsafe { arch::signal_atomic_add(this.cast(), ONE_EVENT | COUNTED) };
    }

    /// Marks the hook as ended, in one instruction.
    ///
    /// # Safety
    /// `this` must be the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn end(this: *mut Activation) {
        // SAFETY: the calling thread's own word.
        unsafe { arch::signal_atomic_and(this.cast(), !(BUSY | COUNTED)) };
    }

    /// Sets or clears one of the other bits, in one instruction.
    ///
    /// # Safety
    /// `this` must be the calling thread's.
    #[inline(always)]
    pub(crate) unsafe fn set(this: *mut Activation, bit: u64, is_set: bool) {
        // SAFETY: the calling thread's own word.
        unsafe {
            if is_set {
                arch::signal_atomic_or(this.cast(), bit);
            } else {
                arch::signal_atomic_and(this.cast(), !bit);
            }
        }
    }
}
