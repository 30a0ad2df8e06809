//! Sandboxes. A program that installs a seccomp filter may be killed for any system call that the
//! filter does not allow. The two functions of libc that install one are intercepted, `prctl` and
//! `syscall`. A filter is evaluated for the calls that this library makes ([`filter`]). From then
//! on the library makes only those that are certainly allowed, and does without the others: stacks
//! are truncated, nodes and threads counted as missing.
//!
//! `syscall` is intercepted for forks too, whose children must be prepared like those of `fork`.

mod filter;

use crate::dynsym::{self, Scope, Wanted};
use crate::{fork, sample, stack_table, sys, thread, timestamp};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};
use filter::{Call, Filter};

/// A purpose of system calls: a set of bits of [`FORBIDDEN`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Need(u32);

/// Checking whether memory can be read.
pub const PROBE: Need = Need(1);
/// Mapping more of the library's own memory.
pub const MAP_MORE: Need = Need(2);
/// Mapping memory for other purposes.
pub const MAP: Need = Need(4);
/// Giving a thread its state.
pub const THREAD: Need = Need(8);
/// Waiting without using the CPU.
pub const SLEEP: Need = Need(16);
/// Copying memory that may not be readable.
pub const PEEK: Need = Need(32);
/// Reading the clock, which the vDSO may do by a system call.
pub const TIME: Need = Need(64);
/// Attaching a forked child.
pub const ATTACH: Need = Need(128);
/// Inspecting a program that is about to start, and notifying the recorder.
pub const INSPECT: Need = Need(256);
/// Unlocking memory of this library in a program that locks its own.
pub const UNLOCK: Need = Need(512);
const EVERYTHING: u32 = 1023;

impl Need {
    const fn and(self, other: Need) -> Need {
        Need(self.0 | other.0)
    }
}

/// Needs whose calls may kill the process. Children inherit them.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);
static NEXT_SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(first_syscall as *mut c_void);

/// Returns whether the system calls for a need are certainly harmless.
#[inline(always)]
pub fn allows(need: Need) -> bool {
    FORBIDDEN.load(Relaxed) & need.0 == 0
}

const fn known(number: i64, arguments: [Option<u64>; 6]) -> Call {
    Call { number, arguments }
}

const fn any(number: i64) -> Call {
    known(number, [None; 6])
}

const OPENED: Option<u64> = Some((libc::PROT_READ | libc::PROT_WRITE) as u64);

/// The system calls after the attach, and the needs that they serve.
const CALLS: [(Need, Call); 29] = [
    (PROBE.and(THREAD).and(ATTACH).and(INSPECT), any(libc::SYS_rt_sigprocmask)),
    (
        MAP_MORE.and(THREAD).and(MAP).and(ATTACH).and(INSPECT),
        known(libc::SYS_mmap, [None, None, OPENED, None, None, None]),
    ),
    (MAP_MORE.and(THREAD).and(ATTACH), any(libc::SYS_mremap)),
    (MAP_MORE.and(THREAD).and(MAP).and(ATTACH).and(INSPECT), any(libc::SYS_munmap)),
    (UNLOCK, any(libc::SYS_munlock)),
    (INSPECT, any(libc::SYS_clone)),
    (MAP_MORE.and(THREAD).and(ATTACH), any(libc::SYS_madvise)),
    (THREAD.and(ATTACH), any(libc::SYS_gettid)),
    (ATTACH.and(PEEK).and(INSPECT), any(libc::SYS_getpid)),
    (SLEEP, known(libc::SYS_futex, [None, Some(libc::FUTEX_WAIT as u64), None, None, None, None])),
    (SLEEP.and(ATTACH), any(libc::SYS_nanosleep)),
    (SLEEP, any(libc::SYS_tgkill)),
    (PEEK, any(libc::SYS_process_vm_readv)),
    (TIME.and(ATTACH), any(libc::SYS_clock_gettime)),
    (ATTACH.and(INSPECT), any(libc::SYS_socket)),
    (ATTACH.and(INSPECT), any(libc::SYS_connect)),
    (ATTACH.and(INSPECT), any(libc::SYS_sendto)),
    (ATTACH, any(libc::SYS_recvmsg)),
    (ATTACH, any(libc::SYS_poll)),
    (ATTACH, any(libc::SYS_getsockopt)),
    (ATTACH, any(libc::SYS_prlimit64)),
    (ATTACH.and(INSPECT), any(libc::SYS_openat)),
    (ATTACH.and(INSPECT), any(libc::SYS_read)),
    (ATTACH.and(INSPECT), any(libc::SYS_close)),
    (INSPECT, any(libc::SYS_newfstatat)),
    (INSPECT, any(libc::SYS_geteuid)),
    (INSPECT, any(libc::SYS_getegid)),
    (INSPECT, any(libc::SYS_getxattr)),
    (INSPECT, any(libc::SYS_readlinkat)),
];

/// Checks whether the program was started inside a sandbox or without the CPU counter (TSC). The
/// filter of such a sandbox is not known. It allows what libraries commonly do, or the program
/// would not have got here, but perhaps not what debuggers do.
pub fn inspect_process() {
    if sys::has_filter() {
        FORBIDDEN.fetch_or(PEEK.0, Relaxed);
    }
    if sys::has_no_counter() {
        timestamp::leave_counter();
    }
}

/// Returns the needs that a filter may forbid.
fn forbidden_by(filter: Option<Filter>) -> u32 {
    let Some(filter) = filter else { return EVERYTHING };
    CALLS.iter().filter(|(_, call)| !filter.allows(call)).fold(0, |sum, (need, _)| sum | need.0)
}

/// Finds the next definition. Called once, when the allocator is resolved.
pub fn find_next() {
    let mut wanted = [Wanted::new(c"syscall")];
    dynsym::find(Scope::Next, false, &mut wanted);
    let [Wanted { found, .. }] = wanted;
    NEXT_SYSCALL.store(if found.is_null() { no_syscall as *mut c_void } else { found }, Relaxed);
}

extern "C" fn no_syscall() -> c_long {
    sys::set_errno(libc::ENOSYS);
    -1
}

extern "C" fn resolve() {
    crate::next::resolve();
}

/// The next definition of `syscall` until the real one is known: finds that and jumps to it. All
/// seven arguments are preserved.
#[unsafe(naked)]
unsafe extern "C" fn first_syscall() {
    crate::arch::first_syscall_stub!(resolve, NEXT_SYSCALL)
}

/// A change of what the library may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A filter, by the address of its `struct sock_fprog`.
    Filter(usize),
    /// Only read, write and exit are left, and the CPU counter (TSC) is disabled.
    Strict,
    /// The CPU counter (TSC) is disabled.
    NoCounter,
}

/// Returns the change that `prctl` makes with these arguments.
fn change_by_prctl(option: u64, first: u64, second: u64) -> Option<Change> {
    const MODE_STRICT: u64 = libc::SECCOMP_MODE_STRICT as u64;
    const MODE_FILTER: u64 = libc::SECCOMP_MODE_FILTER as u64;
    const NO_COUNTER: u64 = libc::PR_TSC_SIGSEGV as u64;
    match (option as c_int, first) {
        (libc::PR_SET_SECCOMP, MODE_STRICT) => Some(Change::Strict),
        (libc::PR_SET_SECCOMP, MODE_FILTER) => Some(Change::Filter(second as usize)),
        (libc::PR_SET_TSC, NO_COUNTER) => Some(Change::NoCounter),
        _ => None,
    }
}

/// Makes a call that changes what the library may do. What it will forbid is avoided from before
/// the call on, and is done again if the call fails. (Querying whether there are filters is a call
/// that fails.)
fn changing(change: Change, call: impl FnOnce() -> c_long) -> c_long {
    let before = FORBIDDEN.load(Relaxed);
    let forbidden = match change {
        Change::Filter(program) => forbidden_by(Filter::at(program)),
        Change::Strict => EVERYTHING,
        Change::NoCounter => 0,
    };
    if before == 0 && forbidden != 0 {
        sys::keeping_errno(|| {
            stack_table::map_ahead();
            sample::make_set();
            thread::probe_stack();
        });
    }
    let clock = match change {
        Change::NoCounter | Change::Strict => Some(timestamp::leave_counter()),
        Change::Filter(_) if forbidden & TIME.0 != 0 => timestamp::leave_clock(),
        Change::Filter(_) => None,
    };
    FORBIDDEN.fetch_or(forbidden, Relaxed);
    let result = call();
    if result < 0 {
        FORBIDDEN.store(before, Relaxed);
        clock.into_iter().for_each(timestamp::return_to);
    }
    result
}

/// The body of `prctl`.
pub unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged; libc takes five
    // arguments for every option.
    let call = || unsafe { crate::next::prctl(option, a, b, c, d) };
    match change_by_prctl(option as u64, a, b) {
        Some(change) => changing(change, || c_long::from(call())) as c_int,
        None => call(),
    }
}

/// The words that the stub of `syscall` saves: space for the result, the number, five arguments;
/// after them its return address and the sixth argument.
type Saved = [usize; 9];

/// Makes a call of `syscall` that this library must handle, and stores its result. Returns 1 then,
/// or 0 if the stub has to continue with the next definition.
unsafe extern "C" fn watched(saved: *mut Saved) -> u32 {
    type Next = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> c_long;
    // SAFETY: the stub saved these words. Those after the return address are in the caller's frame,
    // which is mapped whether or not it passed them.
    let [_, number, first, second, third, fourth, fifth, _, sixth] = unsafe { *saved };
    // SAFETY: the next definition has libc's type; the arguments are the program's own.
    let call = || unsafe {
        let next: Next = core::mem::transmute(NEXT_SYSCALL.load(Relaxed));
        next(number, first, second, third, fourth, fifth, sixth)
    };
    const SET_MODE_STRICT: u64 = libc::SECCOMP_SET_MODE_STRICT as u64;
    const SET_MODE_FILTER: u64 = libc::SECCOMP_SET_MODE_FILTER as u64;
    let number = i64::from(number as i32);
    let change = match (number, first as u64 & 0xffff_ffff) {
        (libc::SYS_prctl, option) => change_by_prctl(option, second as u64, third as u64),
        (libc::SYS_seccomp, SET_MODE_STRICT) => Some(Change::Strict),
        (libc::SYS_seccomp, SET_MODE_FILTER) => Some(Change::Filter(third)),
        _ => None,
    };
    let result = match change {
        Some(change) => changing(change, call),
        None if forks(number, first, second) => fork::forking(call),
        None => return 0,
    };
    // SAFETY: the stub saved these words, of which the first is space for the result.
    unsafe { (*saved)[0] = result as usize };
    1
}

/// Returns whether a system call creates a child that continues here with a copy of the memory.
fn forks(number: i64, first: usize, second: usize) -> bool {
    /// Index of the flags in `struct clone_args`, in words.
    const FLAGS: usize = 0;
    /// Index of the stack in `struct clone_args`, in words.
    const STACK: usize = 5;
    let copies = |flags: u64, stack: u64| flags & libc::CLONE_VM as u64 == 0 && stack == 0;
    match number {
        libc::SYS_fork => true,
        libc::SYS_clone => copies(first as u64, second as u64),
        libc::SYS_clone3 => {
            let mut fields = [0u8; 48];
            let word = |bytes: &[u8; 48], index: usize| {
                bytes
                    .chunks_exact(8)
                    .nth(index)
                    .map_or(0, |word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
            };
            second >= fields.len()
                && sys::copy_from(first, &mut fields) == fields.len()
                && copies(word(&fields, FLAGS), word(&fields, STACK))
        }
        _ => false,
    }
}

/// The body of `syscall`: passes on all calls unchanged, except for those that this library must
/// handle.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    crate::arch::syscall_stub!(watched, NEXT_SYSCALL)
}
