//! Sandboxes. A program that installs a seccomp filter may be killed for any system call that the
//! filter does not allow. The two functions of libc that install one are intercepted, `prctl` and
//! `syscall`. A filter is evaluated for the calls that this library makes ([`filter`]). From then
//! on the library makes only those that are certainly allowed, and does without the others: stacks
//! are truncated, nodes and threads counted as missing.
//!
//! `syscall` is intercepted for forks too, whose children must be prepared like those of `fork`, and
//! for starts of programs.

mod filter;

use super::exec;
use super::fork::{self, Arguments, NextCall};
use crate::boot::attach;
use crate::dynsym::{self, Scope, Wanted};
use crate::stack::table;
use crate::sys::{self, Need};
use crate::{arch, next, probe, sampling, session, thread, timestamp};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use filter::{Argument, Call, Filter};

/// The next definition of `syscall`.
pub(crate) static NEXT_SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(first_syscall as *mut c_void);

const fn known(number: i64, argument: Argument, value: i32) -> Call {
    Call { number: number as u32, known: Some((argument, value as u32)) }
}

const fn any(number: i64) -> Call {
    Call { number: number as u32, known: None }
}

/// The system calls after the attach, and the needs that they serve.
const CALLS: [(Need, Call); 36] = [
    (Need::PROBE.and(Need::THREAD).and(Need::ATTACH).and(Need::INSPECT), any(libc::SYS_rt_sigprocmask)),
    (
        Need::MAP_MORE.and(Need::THREAD).and(Need::MAP).and(Need::ATTACH).and(Need::INSPECT),
        known(libc::SYS_mmap, Argument::Third, libc::PROT_READ | libc::PROT_WRITE),
    ),
    (
        Need::MAP_MORE.and(Need::THREAD).and(Need::MAP).and(Need::ATTACH).and(Need::INSPECT),
        known(libc::SYS_mmap, Argument::Third, libc::PROT_NONE),
    ),
    (
        Need::MAP_MORE.and(Need::THREAD).and(Need::MAP).and(Need::ATTACH).and(Need::INSPECT),
        known(libc::SYS_mprotect, Argument::Third, libc::PROT_READ | libc::PROT_WRITE),
    ),
    (Need::ATTACH, known(libc::SYS_mmap, Argument::Third, libc::PROT_READ)),
    (Need::MAP_MORE.and(Need::THREAD).and(Need::ATTACH), known(libc::SYS_mprotect, Argument::Third, libc::PROT_NONE)),
    (Need::MAP_MORE.and(Need::THREAD).and(Need::ATTACH), any(libc::SYS_mremap)),
    (Need::MAP_MORE.and(Need::THREAD).and(Need::MAP).and(Need::ATTACH).and(Need::INSPECT), any(libc::SYS_munmap)),
    (Need::UNLOCK, any(libc::SYS_munlock)),
    (Need::INSPECT, any(libc::SYS_clone)),
    (Need::MAP_MORE.and(Need::THREAD).and(Need::MAP).and(Need::ATTACH), any(libc::SYS_madvise)),
    (Need::THREAD.and(Need::ATTACH).and(Need::INSPECT), any(libc::SYS_gettid)),
    (Need::ATTACH.and(Need::PEEK).and(Need::INSPECT), any(libc::SYS_getpid)),
    (Need::SLEEP, known(libc::SYS_futex, Argument::Second, libc::FUTEX_WAIT)),
    (Need::SLEEP.and(Need::ATTACH), any(libc::SYS_nanosleep)),
    (Need::SLEEP, any(libc::SYS_tgkill)),
    (Need::PEEK, any(libc::SYS_process_vm_readv)),
    (Need::TIME.and(Need::ATTACH), any(libc::SYS_clock_gettime)),
    (Need::ATTACH.and(Need::INSPECT), any(libc::SYS_socket)),
    (Need::ATTACH.and(Need::INSPECT), any(libc::SYS_connect)),
    (Need::ATTACH.and(Need::INSPECT), any(libc::SYS_sendto)),
    (Need::ATTACH, any(libc::SYS_recvmsg)),
    (Need::ATTACH, any(arch::POLL)),
    (Need::ATTACH, any(libc::SYS_getsockopt)),
    (Need::ATTACH, any(libc::SYS_prlimit64)),
    (Need::ATTACH, any(libc::SYS_prctl)),
    (Need::ATTACH, any(libc::SYS_getrusage)),
    (Need::ATTACH.and(Need::INSPECT), any(libc::SYS_openat)),
    (Need::ATTACH.and(Need::INSPECT), any(libc::SYS_read)),
    (Need::ATTACH.and(Need::INSPECT), any(libc::SYS_close)),
    (Need::INSPECT, any(libc::SYS_pread64)),
    (Need::INSPECT, any(libc::SYS_newfstatat)),
    (Need::INSPECT, any(libc::SYS_geteuid)),
    (Need::INSPECT, any(libc::SYS_getegid)),
    (Need::INSPECT, any(libc::SYS_getxattr)),
    (Need::INSPECT, any(libc::SYS_readlinkat)),
];

/// Returns the needs that a filter may forbid.
fn forbidden_by(filter: Option<Filter>) -> Need {
    let Some(filter) = filter else { return Need::EVERYTHING };
    CALLS.iter().filter(|(_, call)| !filter.allows(call)).fold(Need::NONE, |sum, (need, _)| sum.and(*need))
}

/// Finds the next definition. Called when the library is loaded, or by an earlier call.
pub(crate) fn find_next() {
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
    find_next();
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
    /// System calls from other code than the program's libc raise a signal (Syscall User Dispatch):
    /// Wine and others handle them themselves.
    Dispatch,
}

/// Returns the change that `prctl` makes with these arguments.
fn change_by_prctl(option: u64, first: u64, second: u64) -> Option<Change> {
    const MODE_STRICT: u64 = libc::SECCOMP_MODE_STRICT as u64;
    const MODE_FILTER: u64 = libc::SECCOMP_MODE_FILTER as u64;
    const NO_COUNTER: u64 = libc::PR_TSC_SIGSEGV as u64;
    /// `PR_SET_SYSCALL_USER_DISPATCH` and `PR_SYS_DISPATCH_ON` of `<linux/prctl.h>`.
    const DISPATCH: c_int = 59;
    const ON: u64 = 1;
    match (option as c_int, first) {
        (libc::PR_SET_SECCOMP, MODE_STRICT) => Some(Change::Strict),
        (libc::PR_SET_SECCOMP, MODE_FILTER) => Some(Change::Filter(second as usize)),
        (libc::PR_SET_TSC, NO_COUNTER) => Some(Change::NoCounter),
        (DISPATCH, ON) => Some(Change::Dispatch),
        _ => None,
    }
}

/// Makes a call that changes what the library may do. What it will forbid is avoided from before
/// the call on, and is done again if the call fails. (Querying whether there are filters is a call
/// that fails.)
#[inline(never)]
fn changing(change: Change, call: NextCall, arguments: &Arguments) -> c_long {
    let before = sys::forbidden();
    let forbidden = match change {
        Change::Filter(program) => forbidden_by(Filter::at(program)),
        Change::Strict | Change::Dispatch => Need::EVERYTHING,
        Change::NoCounter => Need::NONE,
    };
    if before == Need::NONE && forbidden != Need::NONE {
        sys::keeping_errno(|| {
            table::map_ahead();
            sampling::make_set();
            probe_stack();
        });
    }
    let clock = match change {
        Change::NoCounter | Change::Strict => Some(timestamp::leave_counter()),
        Change::Filter(_) | Change::Dispatch if Need::TIME.is_in(forbidden) => timestamp::leave_clock(),
        Change::Filter(_) | Change::Dispatch => None,
    };
    sys::forbid(forbidden);
    let result = call(arguments);
    if result < 0 {
        sys::restore(before);
        clock.into_iter().for_each(timestamp::return_to);
    } else if matches!(change, Change::Filter(_)) {
        attach::has_new_filter();
    }
    result
}

/// Finds how far down the calling thread's stack can be read.
fn probe_stack() {
    let state = thread::get();
    if thread::is_traced(state) {
        // SAFETY: the thread's own state.
        unsafe { (*state).stacks.bounds.probe_ahead() };
    }
}

/// The body of `prctl`.
pub(crate) unsafe extern "C" fn prctl(option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int {
    let call = |arguments: &Arguments| {
        let [option, a, b, c, d, ..] = *arguments;
        // SAFETY: the arguments are the program's, passed on unchanged; libc takes five
        // arguments for every option.
        c_long::from(unsafe { next::prctl(option as c_int, a as u64, b as u64, c as u64, d as u64) })
    };
    let arguments = [option as usize, a as usize, b as usize, c as usize, d as usize, 0, 0];
    if option == libc::PR_SET_NAME {
        session::note_name();
    }
    let result = match change_by_prctl(option as u64, a, b) {
        Some(change) => changing(change, call, &arguments),
        None => call(&arguments),
    };
    result as c_int
}

/// The words that the stub of `syscall` saves: space for the result, the number, five arguments;
/// after them its return address and the sixth argument.
type Saved = [usize; 9];

/// Calls the next definition of `syscall`.
fn next_syscall(arguments: &Arguments) -> c_long {
    type Next = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> c_long;
    let [number, first, second, third, fourth, fifth, sixth] = *arguments;
    // SAFETY: the next definition has libc's type; the arguments are the program's own.
    unsafe {
        let next: Next = core::mem::transmute(NEXT_SYSCALL.load(Relaxed));
        next(number, first, second, third, fourth, fifth, sixth)
    }
}

/// Makes a call of `syscall` that this library must handle, and stores its result. Returns 1 then,
/// or 0 if the stub has to continue with the next definition.
unsafe extern "C" fn watched(saved: *mut Saved) -> u32 {
    // SAFETY: the stub saved these words. Those after the return address are in the caller's frame,
    // which is mapped whether or not it passed them.
    let [_, number, first, second, third, fourth, fifth, _, sixth] = unsafe { *saved };
    let mut arguments = [number, first, second, third, fourth, fifth, sixth];
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
        Some(change) => changing(change, next_syscall, &arguments),
        None if forks(number, first, second) => fork::forking(next_syscall, &arguments),
        None if matches!(number, libc::SYS_execve | libc::SYS_execveat) => {
            // SAFETY: six arguments follow the number.
            unsafe { exec::prepare(arguments[1..].as_mut_ptr(), number == libc::SYS_execveat) };
            next_syscall(&arguments)
        }
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
        number if arch::FORK == Some(number) => true,
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
                && probe::copy_from(first, &mut fields) == fields.len()
                && copies(word(&fields, FLAGS), word(&fields, STACK))
        }
        _ => false,
    }
}

/// The body of `syscall`: passes on all calls unchanged, except for those that this library must
/// handle.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn syscall() {
    crate::arch::syscall_stub!(watched, NEXT_SYSCALL)
}
