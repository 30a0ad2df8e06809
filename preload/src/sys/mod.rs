//! All system calls and libc functions of this crate, as one small function each. System calls are
//! made directly, since libc's wrappers are cancellation points and write `errno`.

macro_rules! call {
    ($number:ident $(, $arg:expr)*) => {{
        let mut args = [0usize; 6];
        let values: &[usize] = &[$($arg as usize),*];
        args[..values.len()].copy_from_slice(values);
        // SAFETY: stated by the function around it.
        unsafe { arch::syscall(libc::$number as i64, args) }
    }};
}

mod memory;
mod permissions;

pub(crate) use memory::{
    Part, advise, guard_bytes, map_at, map_behind, map_constant, map_file, map_once, map_private, protect_code,
    replace, replace_by_zeros, reserve, unlock, unlock_at, unmap, unmap_at,
};
pub(crate) use permissions::{Need, forbid, forbidden, permit, restore};

use crate::arch;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Runs `body` with an aligned stack. Hand-written code may call an allocator with an unaligned
/// stack. An allocator's fast path works then, and so does this library's. Longer functions go
/// through this one.
#[inline(always)]
pub(crate) fn aligned<T>(body: impl FnOnce() -> T) -> T {
    /// A local variable with more than the usual alignment makes the compiler align the frame of
    /// the function that has it.
    #[repr(align(32))]
    struct Anchor;
    let anchor = Anchor;
    core::hint::black_box(&anchor);
    body()
}

pub(crate) fn pid() -> u32 {
    call!(SYS_getpid) as u32
}

pub(crate) fn tid() -> u32 {
    call!(SYS_gettid) as u32
}

/// Returns whether this process has one thread, by the number of links of `/proc/self/task`. Where
/// there is no `/proc`, the kernel says it: unshare(2) with `CLONE_THREAD` does nothing and fails
/// if there are several. Filters seldom allow that call.
#[inline(never)]
pub(crate) fn has_one_thread() -> bool {
    match status(c"/proc/self/task") {
        Some(status) => status.st_nlink == 3,
        None => !has_filter() && call!(SYS_unshare, libc::CLONE_THREAD) == 0,
    }
}

/// Returns `struct rusage` as words.
#[inline(never)]
pub(crate) fn usage(of: i32) -> [u64; 18] {
    let mut usage = [0u64; 18];
    call!(SYS_getrusage, of, usage.as_mut_ptr());
    usage
}

/// Returns whether the kernel can read eight bytes at `address`. It copies the signal set before it
/// rejects the unknown `how`, and nothing changes (a known trick). Returns false where something
/// else answers the call.
pub(crate) fn can_copy_signal_set(address: usize) -> bool {
    const NO_SUCH_HOW: isize = -1;
    call!(SYS_rt_sigprocmask, NO_SUCH_HOW, address, 0, 8) == -libc::EINVAL as isize
}

/// Copies from the memory of a process. Returns the number of bytes copied or a negative error.
pub(crate) fn copy_from_process(pid: u32, ours: &libc::iovec, theirs: &[libc::iovec]) -> isize {
    call!(SYS_process_vm_readv, pid, &raw const *ours, 1, theirs.as_ptr(), theirs.len(), 0)
}

/// Returns whether a seccomp filter applies to the system calls of this thread already.
pub(crate) fn has_filter() -> bool {
    call!(SYS_prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) > 0
}

/// Returns how many seccomp filters apply to a process, `/proc/PID/status`, or `None` if that
/// cannot be read. Unlike prctl(2) this needs no call that the loader has not made too.
pub(crate) fn filters(status: &CStr) -> Option<u32> {
    let mut text = [0; 4096];
    let mut lines = read_file(status, &mut text).split(|byte| *byte == b'\n');
    // Since Linux 5.9 there is a count. Before, one filter is as good as many.
    let wanted = |line: &[u8]| line.starts_with(b"Seccomp").then(|| number(line, 1));
    let mode = lines.find_map(wanted)??;
    lines.find_map(wanted).flatten().or(Some(mode)).map(|count| count as u32)
}

/// Returns whether reading the CPU counter (TSC) raises a signal.
pub(crate) fn has_no_counter() -> bool {
    let mut state = 0i32;
    call!(SYS_prctl, libc::PR_GET_TSC, &raw mut state, 0, 0, 0) == 0 && state == libc::PR_TSC_SIGSEGV
}

/// Blocks all signals of the calling thread, including those that libc uses for cancellation.
/// Returns what [`release_signals`] needs.
pub(crate) fn hold_signals() -> u64 {
    let (all, mut held) = (u64::MAX, 0_u64);
    call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, &raw mut held, 8);
    held
}

/// Restores the signal mask that [`hold_signals`] returned.
pub(crate) fn release_signals(held: u64) {
    call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const held, 0, 8);
}

/// Closes a descriptor of this library.
#[inline(never)]
pub(crate) fn close(descriptor: i32) {
    call!(SYS_close, descriptor);
}

/// Opens a `SOCK_SEQPACKET` Unix socket that does not block and is closed on exec.
pub(crate) fn socket() -> Option<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let result = call!(SYS_socket, libc::AF_UNIX, kind, 0);
    (result >= 0).then_some(result as i32)
}

/// Connects to a path. Returns 0 or a negative error.
pub(crate) fn connect(descriptor: i32, path: &[u8]) -> isize {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if path.len() >= address.sun_path.len() {
        return -libc::ENAMETOOLONG as isize;
    }
    for (target, byte) in address.sun_path.iter_mut().zip(path) {
        *target = *byte as c_char;
    }
    call!(SYS_connect, descriptor, &raw const address, size_of::<libc::sockaddr_un>())
}

/// Sends without raising SIGPIPE. Returns the number of bytes sent or a negative error.
pub(crate) fn send(descriptor: i32, bytes: &[u8]) -> isize {
    call!(SYS_sendto, descriptor, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, 0, 0)
}

/// Receives one message and at most one descriptor. Returns the number of bytes (or a negative
/// error) and the descriptor.
pub(crate) fn receive(descriptor: i32, bytes: &mut [u8]) -> (isize, Option<i32>) {
    #[repr(C, align(8))]
    struct Control([u8; 24]);
    let mut control = Control([0; 24]);
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let result = call!(SYS_recvmsg, descriptor, &raw mut message, libc::MSG_CMSG_CLOEXEC);
    // cmsghdr: length 8, level 4, type 4, then the descriptor. If the control message is truncated
    // (no space for descriptors), there is none.
    let word = |at: usize| i32::from_le_bytes([control.0[at], control.0[at + 1], control.0[at + 2], control.0[at + 3]]);
    let carried = result >= 0 && message.msg_controllen as usize >= 20;
    let is_rights = carried && word(0) >= 20 && word(8) == libc::SOL_SOCKET && word(12) == libc::SCM_RIGHTS;
    (result, is_rights.then(|| word(16)))
}

/// Waits until the descriptor can be read, for at most `milliseconds`. Returns whether it can.
pub(crate) fn wait_readable(descriptor: i32, milliseconds: u64) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    arch::poll(&mut poll, milliseconds) == 1
}

/// Waits while the word holds `expected`, for at most `milliseconds`. Another process may wake it.
pub(crate) fn futex_wait(word: *const u32, expected: u32, milliseconds: u64) {
    let time =
        libc::timespec { tv_sec: (milliseconds / 1000) as i64, tv_nsec: (milliseconds % 1000 * 1_000_000) as i64 };
    call!(SYS_futex, word, libc::FUTEX_WAIT, expected, &raw const time, 0, 0);
}

/// Returns whether a thread of this process no longer exists.
pub(crate) fn has_thread_ended(pid: u32, tid: u32) -> bool {
    call!(SYS_tgkill, pid, tid, 0) == -i64::from(libc::ESRCH) as isize
}

pub(crate) fn sleep_ms(milliseconds: u64) {
    let time =
        libc::timespec { tv_sec: (milliseconds / 1000) as i64, tv_nsec: (milliseconds % 1000 * 1_000_000) as i64 };
    call!(SYS_nanosleep, &raw const time, 0);
}

/// Whether the CPU counter is disabled, which the vDSO's clock reads too.
static COUNTER_IS_OFF: AtomicBool = AtomicBool::new(false);

/// Returns whether the CPU counter is disabled.
pub(crate) fn counter_is_off() -> bool {
    COUNTER_IS_OFF.load(Relaxed)
}

/// Sets whether the CPU counter is disabled.
pub(crate) fn set_counter_off(is_off: bool) {
    COUNTER_IS_OFF.store(is_off, Relaxed);
}

/// Returns nanoseconds of `CLOCK_MONOTONIC`, by the vDSO (async-signal-safe, does not touch `errno`
/// on success), or by the kernel where the vDSO's counter is disabled.
#[inline(never)]
pub(crate) fn monotonic_ns() -> u64 {
    if counter_is_off() {
        return kernel_ns();
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer names a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns nanoseconds of `CLOCK_MONOTONIC` by the kernel. Waits are bounded by it: a library such
/// as libfaketime may let the clock of libc stand still.
#[inline(never)]
pub(crate) fn kernel_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns a limit of this process; `u64::MAX` without one.
pub(crate) fn limit(resource: u32) -> u64 {
    let mut limit = [u64::MAX; 2];
    call!(SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr());
    limit[0]
}

/// Returns how many bytes of address space the process may still map; `u64::MAX` without a limit.
pub(crate) fn address_space() -> u64 {
    let limit = limit(libc::RLIMIT_AS);
    if limit == u64::MAX {
        return limit;
    }
    let mut text = [0; 64];
    let taken = number(read_file(c"/proc/self/statm", &mut text), 0).unwrap_or(limit);
    limit.saturating_sub(taken.saturating_mul(auxiliary(libc::AT_PAGESZ) as u64))
}

/// Returns the nanoseconds that the process has run or waited for a CPU, which is its age if it has
/// not slept. Used in a child before it does anything else.
pub(crate) fn age_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    call!(SYS_clock_gettime, libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
    let mut text = [0; 96];
    let waited = number(read_file(c"/proc/self/schedstat", &mut text), 1).unwrap_or(0);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64).wrapping_add(waited)
}

/// Reads the first bytes of a file. Returns nothing if it cannot be read.
#[inline(never)]
fn read_file<'a>(path: &CStr, bytes: &'a mut [u8]) -> &'a [u8] {
    let Some(file) = open(path) else { return &[] };
    let count = read(file, bytes);
    close(file);
    &bytes[..count.min(bytes.len())]
}

/// Parses the number at an index among the words of a line.
#[inline(never)]
pub(crate) fn number(text: &[u8], index: usize) -> Option<u64> {
    let word = text.split(|byte| byte.is_ascii_whitespace()).nth(index)?;
    word.iter().try_fold(0u64, |value, digit| {
        digit.is_ascii_digit().then(|| value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })
}

/// Returns the text at the start of a buffer, up to a zero; `None` if there is no zero. One copy
/// serves all callers, since the search for the zero is 250 bytes of code.
#[inline(never)]
pub(crate) fn c_text(bytes: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_until_nul(bytes).ok()
}

/// Writes a number between two texts. The rest of `out` stays zero.
#[inline(never)]
pub(crate) fn decimal(before: &[u8], number: u32, after: &[u8], out: &mut [u8; 32]) {
    let (mut digits, mut first, mut left) = ([0; 10], 10, number);
    while left != 0 || first == 10 {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let mut rest = &mut out[..31];
    for part in [before, &digits[first..], after] {
        let (target, behind) = rest.split_at_mut(part.len().min(rest.len()));
        target.copy_from_slice(&part[..target.len()]);
        rest = behind;
    }
}

/// Returns the status of a file, or `None` if there is none.
#[inline(never)]
pub(crate) fn status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    (call!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut status, 0) == 0).then_some(status)
}

/// Changes the working folder to a path. Returns whether that is possible.
pub(crate) fn change_folder(path: usize) -> bool {
    call!(SYS_chdir, path) == 0
}

/// Changes the working folder to the one of a descriptor. Returns whether that is possible.
pub(crate) fn change_folder_to(descriptor: i32) -> bool {
    call!(SYS_fchdir, descriptor) == 0
}

/// Returns the effective user and group.
pub(crate) fn effective_ids() -> (u32, u32) {
    (call!(SYS_geteuid) as u32, call!(SYS_getegid) as u32)
}

/// Returns whether a program's file has capabilities.
pub(crate) fn has_capabilities(path: &CStr) -> bool {
    call!(SYS_getxattr, path.as_ptr(), c"security.capability".as_ptr(), 0, 0) > 0
}

/// Reads the target of a symbolic link, and returns its length.
pub(crate) fn read_link(path: &CStr, out: &mut [u8]) -> usize {
    (call!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), out.as_mut_ptr(), out.len()).max(0) as usize).min(out.len())
}

/// Returns the process at the other end of a socket; 0 if it is not known.
fn peer(socket: i32) -> u32 {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as u32;
    call!(SYS_getsockopt, socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &raw mut peer, &raw mut length);
    peer.pid.max(0) as u32
}

/// Permits the process at the other end of a socket to trace this one.
pub(crate) fn permit_tracer(socket: i32) {
    call!(SYS_prctl, libc::PR_SET_PTRACER, peer(socket), 0, 0, 0);
}

/// What a thread of any process does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// It can't be seen, or there is none.
    Unknown,
    /// It's stopped, traced, or dead.
    Stopped,
    /// It runs, or waits for a processor.
    Runnable,
    /// It waits for something else.
    Asleep,
}

/// Reads state and start of a thread, as `/proc/TID/stat` has them.
fn stat(tid: u32) -> (TaskState, Option<u64>) {
    /// Index of the start among the fields after the name.
    const START: usize = 19;
    let (mut path, mut text) = ([0; 32], [0; 512]);
    decimal(b"/proc/", tid, b"/stat", &mut path);
    let Some(path) = c_text(&path) else { return (TaskState::Unknown, None) };
    let text = read_file(path, &mut text);
    // The fields follow the name, which is in parentheses and may contain anything.
    let fields = text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2..)).unwrap_or(&[]);
    let state = match fields.first() {
        None => TaskState::Unknown,
        Some(b'T' | b't' | b'Z' | b'X') => TaskState::Stopped,
        Some(b'R') => TaskState::Runnable,
        Some(_) => TaskState::Asleep,
    };
    (state, number(fields, START))
}

/// Returns what a thread does that has started at this time, in clock ticks after the boot. Another
/// one with its number is unknown.
#[inline(never)]
pub(crate) fn state_of(tid: u32, start: u64) -> TaskState {
    let (state, found) = stat(tid);
    if found == Some(start) { state } else { TaskState::Unknown }
}

/// Returns the start of a thread, as [`state_of`] wants it.
#[cfg(test)]
pub(crate) fn start_of(tid: u32) -> Option<u64> {
    stat(tid).1
}

/// Returns whether the process at the other end of a socket is stopped or dead.
pub(crate) fn peer_is_stopped(socket: i32) -> bool {
    let peer = peer(socket);
    peer != 0 && stat(peer).0 == TaskState::Stopped
}

/// Opens a file for reading. Returns `None` on an error.
#[inline(never)]
pub(crate) fn open(path: &CStr) -> Option<i32> {
    let result = call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0);
    (result >= 0).then_some(result as i32)
}

/// Reads from a descriptor. Returns the number of bytes, 0 at the end or on an error.
pub(crate) fn read(descriptor: i32, bytes: &mut [u8]) -> usize {
    call!(SYS_read, descriptor, bytes.as_mut_ptr(), bytes.len()).max(0) as usize
}

/// Reads at an offset. Returns the number of bytes, 0 at the end or on an error.
#[inline(never)]
pub(crate) fn read_at(descriptor: i32, bytes: &mut [u8], offset: u64) -> usize {
    call!(SYS_pread64, descriptor, bytes.as_mut_ptr(), bytes.len(), offset).max(0) as usize
}

/// Returns an entry of the auxiliary vector, or 0 if there is none.
pub(crate) fn auxiliary(kind: u64) -> usize {
    // SAFETY: reads the process's own vector.
    unsafe { libc::getauxval(kind) as usize }
}

/// Returns the value of an environment variable. Before libc has initialized `environ` (in a
/// program's `preinit_array`), the kernel's copy is read.
pub(crate) fn environment(name: &str) -> Option<&'static CStr> {
    let is_named = |text: &'static CStr| {
        let value = text.to_bytes().strip_prefix(name.as_bytes())?;
        // SAFETY: the name and an equals sign precede the value in one string.
        (value.first() == Some(&b'=')).then(|| unsafe { CStr::from_ptr(text.as_ptr().add(name.len() + 1)) })
    };
    // SAFETY: libc keeps `environ` a null-terminated list of strings; it is read at start-up,
    // before the program can change it.
    unsafe {
        let mut entry = environ();
        if entry.is_null() {
            return first_environment(is_named);
        }
        while !(*entry).is_null() {
            if let Some(value) = is_named(CStr::from_ptr(*entry)) {
                return Some(value);
            }
            entry = entry.add(1);
        }
    }
    None
}

/// Returns the address of the list of environment variables.
pub(crate) fn environment_list() -> u64 {
    environ() as u64
}

unsafe extern "C" {
    #[link_name = "environ"]
    static ENVIRON: *const *const c_char;
}

/// Returns libc's list of the environment, which is null before it is initialized.
pub(crate) fn environ() -> *const *const c_char {
    // SAFETY: a plain read of libc's variable.
    unsafe { ENVIRON }
}

/// Searches the environment as the kernel stored it. Arguments and environment are one run of
/// strings up to the program's path, all above the kernel's random bytes.
fn first_environment<T>(wanted: impl Fn(&'static CStr) -> Option<T>) -> Option<T> {
    let (low, path) = (auxiliary(libc::AT_RANDOM), auxiliary(libc::AT_EXECFN));
    if low == 0 || path <= low {
        return None;
    }
    let mut at = path - 1;
    while at > low + 16 {
        // SAFETY: between the two addresses is the first page of the stack, mapped as long as the
        // process lives; each string ends at the one after it.
        unsafe {
            if *((at - 1) as *const u8) == 0
                && let Some(found) = wanted(CStr::from_ptr(at as *const c_char))
            {
                return Some(found);
            }
        }
        at -= 1;
    }
    None
}

/// Runs `body` and restores `errno`.
pub(crate) fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: libc's own address of the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: libc's variable of the calling thread.
    let saved = unsafe { *errno };
    let result = body();
    // SAFETY: libc's variable of the calling thread.
    unsafe { *errno = saved };
    result
}

/// Sets `errno`, where a fallback of this library replaces an allocator.
#[inline(never)]
pub(crate) fn set_errno(value: i32) {
    // SAFETY: libc's own address of the calling thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// Ends the process as `abort` does, without calling it.
#[cfg(all(not(test), panic = "abort"))]
pub(crate) fn exit_by_abort() -> ! {
    loop {
        call!(SYS_kill, pid(), libc::SIGABRT);
    }
}
