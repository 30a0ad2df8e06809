//! The states of the threads of a program without a loader, which has no thread-local variables for
//! this library. They are in a table, by the thread pointer, which is the thread's own address in
//! glibc and in musl. A hit costs 0.1 ns more than a thread-local variable.
//!
//! A new thread may get the thread pointer of one that has ended. So the entry also holds the
//! number of the thread, as libc keeps it near to the thread pointer. Where that is not found, such
//! a thread continues the state of the other one.

use super::syscall;
use super::thread_register::{self, NUMBER_OFFSETS};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Number of entries: many more than a process has threads.
const ENTRIES: usize = 1 << 14;
/// Number of entries that are tried for a thread.
const MAX_PROBES: usize = 64;
/// The thread pointer of a thread that has none yet.
const NO_THREAD_POINTER: usize = 1;

/// A thread and its state. Only the thread itself reads or writes the last two fields.
struct Entry {
    /// The thread pointer; 0 if the entry is free.
    thread: AtomicUsize,
    tid: AtomicU32,
    state: AtomicPtr<c_void>,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { thread: AtomicUsize::new(0), tid: AtomicU32::new(0), state: AtomicPtr::new(core::ptr::null_mut()) }
}; ENTRIES];

/// The offset from the thread pointer of the thread's number, or [`NO_NUMBER`], once the program
/// has set a thread pointer; before that, [`UNKNOWN`].
static NUMBER_OFFSET: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = usize::MAX;
/// There is no number. The first word is the thread pointer, which is as good as any constant.
const NO_NUMBER: usize = 0;

/// A thread, as the table knows it.
#[derive(Clone, Copy)]
struct Thread {
    pointer: usize,
    tid: u32,
}

/// Returns the calling thread.
#[inline(always)]
fn this_thread() -> Thread {
    let mut offset = NUMBER_OFFSET.load(Relaxed);
    if offset == UNKNOWN {
        offset = find_number();
        if offset == UNKNOWN {
            return Thread { pointer: NO_THREAD_POINTER, tid: 0 };
        }
    }
    // SAFETY: the program has set a thread pointer, and its libc sets one for each thread that it
    // starts. Four bytes at this offset could be read.
    unsafe {
        let pointer = thread_register::get();
        Thread { pointer, tid: (pointer.wrapping_add(offset) as *const u32).read_volatile() }
    }
}

/// Finds where the number of the calling thread is; [`UNKNOWN`] if it has no thread pointer yet.
#[cold]
fn find_number() -> usize {
    let pointer = thread_register::ask();
    if pointer == 0 {
        return UNKNOWN;
    }
    // SAFETY: the calls change nothing. The kernel copies the eight bytes of a signal set before it
    // rejects the unknown request.
    let (tid, is_readable) = unsafe {
        let is_readable = |offset: usize| {
            let address = pointer.wrapping_add(offset);
            syscall(libc::SYS_rt_sigprocmask, [usize::MAX, address, 0, 8, 0, 0]) == -(libc::EINVAL as isize)
        };
        (syscall(libc::SYS_gettid, [0; 6]) as u32, NUMBER_OFFSETS.map(is_readable))
    };
    let is_number = |(offset, is_readable): (&usize, bool)| {
        // SAFETY: the kernel could read eight bytes there.
        is_readable && unsafe { (pointer.wrapping_add(*offset) as *const u32).read_volatile() } == tid
    };
    let found = NUMBER_OFFSETS.iter().zip(is_readable).position(is_number);
    let offset = found.map_or(NO_NUMBER, |index| NUMBER_OFFSETS[index]);
    NUMBER_OFFSET.store(offset, Relaxed);
    offset
}

/// Returns the entries in which a thread may be, in the order in which they are tried.
#[inline(always)]
fn entries(thread: usize) -> impl Iterator<Item = &'static Entry> {
    let first = (thread >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES.trailing_zeros());
    (0..MAX_PROBES).map(move |probe| &TABLE[(first + probe) % ENTRIES])
}

/// Returns the address of the thread's state, or null if it is not known yet.
#[inline(always)]
pub(crate) fn thread_state() -> *mut c_void {
    let this = this_thread();
    for entry in entries(this.pointer) {
        let thread = entry.thread.load(Relaxed);
        if thread == this.pointer {
            let is_same = entry.tid.load(Relaxed) == this.tid;
            return if is_same { entry.state.load(Relaxed) } else { core::ptr::null_mut() };
        }
        if thread == 0 {
            break;
        }
    }
    core::ptr::null_mut()
}

/// Sets the value that [`thread_state`] returns.
pub(crate) fn set_thread_state(state: *mut c_void) {
    let this = this_thread();
    let claim = |entry: &&Entry| {
        let thread = entry.thread.load(Acquire);
        thread == this.pointer
            || (thread == 0 && entry.thread.compare_exchange(0, this.pointer, Release, Relaxed).is_ok())
    };
    // In a full table another thread loses its entry, and gets a new state at its next event.
    let entry = entries(this.pointer).find(claim).or_else(|| {
        entries(this.pointer).next().inspect(|entry| {
            entry.thread.store(this.pointer, Release);
        })
    });
    if let Some(entry) = entry {
        // A signal handler in between finds no state.
        entry.state.store(core::ptr::null_mut(), Relaxed);
        entry.tid.store(this.tid, Relaxed);
        entry.state.store(state, Relaxed);
    }
}

/// There are no exported operators in the standalone library.
pub(crate) fn operator_caller() -> usize {
    0
}

/// Does nothing, as there are no exported operators.
pub(crate) fn set_operator_caller(_: usize) {}

/// Returns the thread pointer; 1 if the thread has none yet.
pub(crate) fn thread_pointer() -> usize {
    this_thread().pointer
}
