//! Timestamps: ticks that order the events of all threads.
//!
//! The CPU counter (TSC) is read without a fence, which would cost 14 to 17 ns. So `rdtsc` may run
//! ahead of the load that received a pointer, by some 300 ticks, and more where the CPU stalls. The
//! recorder puts such events in order by what they do to the address
//! (`recorder/src/heap/live/queues.rs`).
//!
//! A timestamp costs 9 ns, half of an event. The order in the ring is the order of its events, so
//! while a process has one thread, only each 16th event needs one. The others get theirs from a
//! [`Credit`] of 0.6 % of the thread's time: all events that are 1.6 us apart on average, and the
//! first 128 of a burst. What is left, the analyzer interpolates (`analyzer/src/load/times.rs`).
//!
//! A program can have the counter disabled (`PR_SET_TSC`, strict seccomp). Reading it then raises a
//! signal, also by the vDSO's clock. From then on timestamps are numbers in sequence, which are
//! never below the recorder's clock at its last pass. The recorder stores that in the area's
//! heartbeat.

use crate::arch::counter;
use crate::session;
use crate::sys::{self, Need};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::SeqCst,
};

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Source {
    /// The CPU counter (TSC).
    Counter = 0,
    /// The clock `CLOCK_MONOTONIC` of the kernel.
    Clock = 1,
    /// Numbers in sequence, because the other two may kill the process.
    Sequence = 2,
}

impl Source {
    fn from_number(number: u8) -> Source {
        match number {
            0 => Source::Counter,
            1 => Source::Clock,
            _ => Source::Sequence,
        }
    }
}

static SOURCE: AtomicU8 = AtomicU8::new(Source::Counter as u8);
/// The last number of the sequence.
static LAST: AtomicU64 = AtomicU64::new(0);
static ALWAYS_THREADED: u8 = 0;
static SINGLE: AtomicPtr<u8> = AtomicPtr::new((&raw const ALWAYS_THREADED).cast_mut());

/// Sets the clock that the recorder has chosen, unless it may kill the process.
pub(crate) fn choose(by_counter: bool) {
    let source = if by_counter { Source::Counter } else { Source::Clock };
    if Source::from_number(SOURCE.load(Relaxed)) != Source::Sequence {
        SOURCE.store(source as u8, Relaxed);
    }
}

/// Stops reading the counter and the clock. Returns what [`return_to`] needs.
pub(crate) fn leave_counter() -> Source {
    let source = leave();
    sys::set_counter_off(true);
    source
}

/// Stops reading the clock, which may do so by a system call. Returns what [`return_to`] needs, if
/// anything has changed.
pub(crate) fn leave_clock() -> Option<Source> {
    (SOURCE.load(Relaxed) == Source::Clock as u8).then(leave)
}

#[inline(never)]
fn leave() -> Source {
    let source = Source::from_number(SOURCE.load(Relaxed));
    if source != Source::Sequence && session::area().is_some() {
        LAST.fetch_max(now(), SeqCst);
        SOURCE.store(Source::Sequence as u8, SeqCst);
        // Another thread may have read the counter since.
        let late = if source == Source::Counter { counter() } else { sys::monotonic_ns() };
        LAST.fetch_max(late, SeqCst);
    }
    SOURCE.store(Source::Sequence as u8, SeqCst);
    source
}

/// Undoes [`leave_counter`] or [`leave_clock`], because the change that it prepared for was not
/// made.
pub(crate) fn return_to(source: Source) {
    if source != Source::Sequence {
        sys::set_counter_off(false);
    }
    SOURCE.store(source as u8, Relaxed);
}

static HAS_LIBC_FLAG: AtomicBool = AtomicBool::new(false);

/// Sets the address of libc's flag for a process with one thread (glibc 2.32 and later:
/// `__libc_single_threaded`). Without it every event gets a timestamp.
pub(crate) fn watch_threads(flag: *mut u8) {
    if !flag.is_null() {
        HAS_LIBC_FLAG.store(true, Relaxed);
        SINGLE.store(flag, Relaxed);
    }
}

/// Returns whether the libc has such a flag: it is glibc 2.32 or later.
pub(crate) fn has_libc_flag() -> bool {
    HAS_LIBC_FLAG.load(Relaxed)
}

/// Returns whether the process has one thread.
#[inline(always)]
pub(crate) fn is_single_threaded() -> bool {
    // SAFETY: libc's flag, or ours; libc writes it while the process has one thread, or the only
    // other one is ending.
    unsafe { SINGLE.load(Relaxed).read_volatile() != 0 }
}

/// Returns the current time. The counter may be some 300 ticks older than what the calling thread
/// has seen of others, and more where the CPU stalls.
#[inline(always)]
pub(crate) fn now() -> u64 {
    if SOURCE.load(Relaxed) == Source::Counter as u8 { counter() } else { now_without_counter() }
}

#[cold]
fn now_without_counter() -> u64 {
    sys::aligned(without_counter)
}

#[inline(always)]
fn without_counter() -> u64 {
    if SOURCE.load(Relaxed) == Source::Clock as u8 {
        return sys::monotonic_ns();
    }
    // The recorder stores its clock before it reads the rings. So an event that gets its number
    // after that pass comes after all events that the pass found.
    let passed = session::area().map_or(0, |area| area.header().heartbeat.0.load(Acquire));
    let next = |last: u64| Some(last.max(passed) + 1);
    LAST.fetch_update(AcqRel, Relaxed, next).map_or(0, |last| last.max(passed) + 1)
}

/// The time that a thread may still spend on timestamps beyond each 16th, in ticks that pay for
/// them.
#[derive(Clone, Copy)]
pub(crate) struct Credit(u32);

impl Credit {
    /// Number of events without a timestamp after one with a timestamp, when nothing is left.
    const UNTIMED: u32 = 15;
    /// Number of ticks that pay for a timestamp: 24 ticks of the counter are 0.6 % of them.
    const TICKS: u32 = 1 << 12;
    /// The same for the kernel's clock, which is a system call on some machines.
    const CLOCK_TICKS: u32 = 1 << 16;
    /// Number of timestamps that are paid for at most: a thread that does not get a processor for
    /// a while must not spend all of that time on them.
    const MOST: u32 = 1 << 7;

    /// Returns a credit of nothing. The first timestamp of a thread fills it.
    pub(crate) const fn none() -> Credit {
        Credit(0)
    }

    /// Returns the number of events that get no timestamp after this one, which comes `elapsed`
    /// ticks after the last one that has a timestamp.
    #[inline(always)]
    pub(crate) fn untimed_after(&mut self, elapsed: u64) -> u32 {
        let cost = if SOURCE.load(Relaxed) == Source::Counter as u8 { Credit::TICKS } else { Credit::CLOCK_TICKS };
        let credit = (u64::from(self.0) + elapsed.min(u64::from(u32::MAX))).min(u64::from(cost * Credit::MOST)) as u32;
        let is_paid = credit >= cost;
        self.0 = if is_paid { credit - cost } else { credit };
        if is_paid { 0 } else { Credit::UNTIMED }
    }
}

/// Returns nanoseconds of the kernel's `CLOCK_MONOTONIC`, or `None` where reading it may kill the
/// process.
pub(crate) fn monotonic_ns() -> Option<u64> {
    Need::TIME.is_allowed().then(sys::kernel_ns)
}
