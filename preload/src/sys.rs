//! Every system call and every libc function of this crate, one thin function each. System calls
//! are made directly: libc's wrappers pass through thread cancellation and write `errno`.

use crate::sandbox;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

/// Makes a system call; errors come back as negative numbers.
///
/// # Safety
/// As for the call itself: pointers must be what the kernel may read and write.
#[inline(always)]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers rcx and r11 only; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

macro_rules! call {
    ($number:ident $(, $arg:expr)*) => {{
        let mut args = [0usize; 6];
        let new_state: &[usize] = &[$($arg as usize),*];
        args[..new_state.len()].copy_from_slice(new_state);
        // SAFETY: stated by the function around it.
        unsafe { syscall(libc::$number as i64, args) }
    }};
}

/// Runs `body` with an aligned stack. Hand-written code may call with one that is not, which an
/// allocator's short ways do not mind; ours do not either, and those that are longer go through
/// here.
#[inline(always)]
pub fn aligned<T>(body: impl FnOnce() -> T) -> T {
    /// A local variable of more than the usual alignment makes the compiler align the frame of the
    /// function that has it.
    #[repr(align(32))]
    struct Anchor;
    let anchor = Anchor;
    core::hint::black_box(&anchor);
    body()
}

/// Own process id.
pub fn pid() -> u32 {
    call!(SYS_getpid) as u32
}

/// Own thread id.
pub fn tid() -> u32 {
    call!(SYS_gettid) as u32
}

/// The address that a call that maps memory returned; `None` for an error.
fn address(result: isize) -> Option<*mut u8> {
    (!(-4095..0).contains(&result)).then_some(result as *mut u8)
}

const OPEN: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps private memory of zeros; `None` when the system refuses. With `MAP_FIXED` it replaces what
/// is there: the caller owns that range.
pub fn map_private(at: *mut u8, bytes: usize, flag: i32) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flag;
    address(call!(SYS_mmap, at, bytes, OPEN, flags, usize::MAX, 0))
}

/// Maps a part of a file that is shared: anywhere, or in place of what the caller has mapped at
/// `at`; `None` when the system refuses.
pub fn map_file(at: *mut u8, bytes: usize, descriptor: i32, offset: u64) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | if at.is_null() { 0 } else { libc::MAP_FIXED };
    address(call!(SYS_mmap, at, bytes, OPEN, flags, descriptor, offset))
}

/// Makes a mapping of the caller's longer, which may move it; `None` when the system refuses.
pub fn grow(at: *mut u8, bytes: usize, wanted: usize) -> Option<*mut u8> {
    address(call!(SYS_mremap, at, bytes, wanted, libc::MREMAP_MAYMOVE))
}

/// Maps more of a file of which the caller has mapped the page at `page`: a second time from that
/// page on, as far as `bytes`. `None` when the system refuses. The new mapping is not locked,
/// whatever the program said of its memory: it would take of the program's limit.
pub fn map_again(page: *mut u8, bytes: usize) -> Option<*mut u8> {
    unlock(page, 4096);
    address(call!(SYS_mremap, page, 0, bytes, libc::MREMAP_MAYMOVE))
}

/// Lets memory of ours no longer count as locked, where that may be done.
pub fn unlock(at: *mut u8, bytes: usize) {
    if sandbox::allows(sandbox::UNLOCK) {
        call!(SYS_munlock, at, bytes);
    }
}

/// Unmaps memory that this library mapped.
pub fn unmap(at: *mut u8, bytes: usize) {
    call!(SYS_munmap, at, bytes);
}

/// Advice about memory that this library mapped.
pub fn advise(at: *mut u8, bytes: usize, advice: i32) -> bool {
    call!(SYS_madvise, at, bytes, advice) == 0
}

/// Whether eight bytes at `address` can be read: the kernel copies the signal set before it rejects
/// the unknown `how` (the trick is old; no state changes). False where asking is not allowed, or
/// where the call is answered by somebody else.
pub fn is_readable(address: usize) -> bool {
    const NO_SUCH_HOW: isize = -1;
    sandbox::allows(sandbox::PROBE) && call!(SYS_rt_sigprocmask, NO_SUCH_HOW, address, 0, 8) == -libc::EINVAL as isize
}

/// Pages that are asked about at once.
const PAGES: usize = 32;

/// Room for a question about many pages: too much for the small stacks that a hook may run on.
struct Question {
    is_claimed: AtomicBool,
    pages: UnsafeCell<[libc::iovec; PAGES]>,
}

// SAFETY: the vectors belong to whoever has set `is_taken`.
unsafe impl Sync for Question {}

static QUESTION: Question = Question {
    is_claimed: AtomicBool::new(false),
    pages: UnsafeCell::new([libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 1 }; PAGES]),
};

/// How many of `wanted` pages from this one on can be read: some of them are asked about in one
/// call where that is possible.
pub fn readable_pages(page: usize, wanted: usize) -> usize {
    if wanted == 1 || !sandbox::allows(sandbox::PEEK) || QUESTION.is_claimed.swap(true, Ordering::Acquire) {
        return usize::from(is_readable(page));
    }
    let mut bytes = [0u8; PAGES];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: wanted.min(PAGES) };
    // SAFETY: `is_taken` was set here.
    let pages = unsafe { &mut *QUESTION.pages.get() };
    let pages = &mut pages[..wanted.min(PAGES)];
    for (index, one) in pages.iter_mut().enumerate() {
        one.iov_base = page.wrapping_add(index * 4096) as *mut c_void;
    }
    let count = copy_own(&ours, pages);
    QUESTION.is_claimed.store(false, Ordering::Release);
    count
}

/// Copies from this process's memory; gives the bytes copied.
fn copy_own(ours: &libc::iovec, theirs: &[libc::iovec]) -> usize {
    let copy = |pid: u32| call!(SYS_process_vm_readv, pid, &raw const *ours, 1, theirs.as_ptr(), theirs.len(), 0);
    // The process of the session is this one, or shares its memory with this one, the child of a
    // `vfork`, which may not be allowed to look.
    let copied = match crate::attach::area() {
        Some(_) => copy(crate::attach::pid()),
        None => copy(pid()),
    };
    let copied = if copied == -libc::EPERM as isize { copy(pid()) } else { copied };
    copied.max(0) as usize
}

/// Copies memory of this process that may not be readable, or may be unmapped meanwhile; gives the
/// bytes copied.
pub fn peek(address: usize, out: &mut [u8]) -> usize {
    if !sandbox::allows(sandbox::PEEK) {
        return 0;
    }
    let (room, all) = (out.as_mut_ptr(), out.len());
    let copy = |bytes: usize| {
        let ours = libc::iovec { iov_base: room.cast(), iov_len: bytes };
        copy_own(&ours, &[libc::iovec { iov_base: address as *mut c_void, iov_len: bytes }])
    };
    let to_page_end = 4096 - (address & 4095);
    match copy(all) {
        0 if all > to_page_end => copy(to_page_end),
        copied => copied,
    }
}

/// Copies what the program names in a call of its own, and keeps mapped during that call, if it is
/// mapped; gives the bytes copied.
pub fn copy_from(address: usize, out: &mut [u8]) -> usize {
    let copied = peek(address, out);
    if copied != 0 || sandbox::allows(sandbox::PEEK) {
        return copied;
    }
    let mut count = 0;
    while let Some(place) = out.get_mut(count) {
        let from = address.wrapping_add(count);
        // The eight bytes of a question end at the end of a page at the latest.
        if (count == 0 || from & 4095 == 0) && !is_readable(from & !7) {
            break;
        }
        // SAFETY: the page can be read, and the program keeps it mapped.
        *place = unsafe { (from as *const u8).read_volatile() };
        count += 1;
    }
    count
}

/// Whether system calls of this thread go through a filter already.
pub fn has_filter() -> bool {
    call!(SYS_prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) > 0
}

/// Whether reading the time stamp counter is a fault.
pub fn has_no_counter() -> bool {
    let mut state = 0i32;
    call!(SYS_prctl, libc::PR_GET_TSC, &raw mut state, 0, 0, 0) == 0 && state == libc::PR_TSC_SIGSEGV
}

/// Holds all signals back from the calling thread, libc's own for cancellation included; gives what
/// [`release_signals`] needs.
pub fn hold_signals() -> u64 {
    let (all, mut held) = (u64::MAX, 0_u64);
    call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, &raw mut held, 8);
    held
}

/// Lets through what was let through before.
pub fn release_signals(held: u64) {
    call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const held, 0, 8);
}

/// Closes a descriptor of ours.
pub fn close(descriptor: i32) {
    call!(SYS_close, descriptor);
}

/// A `SOCK_SEQPACKET` Unix socket that neither blocks nor survives exec.
pub fn socket() -> Option<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let result = call!(SYS_socket, libc::AF_UNIX, kind, 0);
    (result >= 0).then_some(result as i32)
}

/// Connects to a path; 0 or a negative error.
pub fn connect(descriptor: i32, path: &[u8]) -> isize {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if path.len() >= address.sun_path.len() {
        return -libc::ENAMETOOLONG as isize;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = *byte as c_char;
    }
    call!(SYS_connect, descriptor, &raw const address, size_of::<libc::sockaddr_un>())
}

/// Sends without raising SIGPIPE; bytes sent or a negative error.
pub fn send(descriptor: i32, bytes: &[u8]) -> isize {
    call!(SYS_sendto, descriptor, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, 0, 0)
}

/// Receives one message and at most one descriptor: bytes (or a negative error) and the descriptor.
pub fn receive(descriptor: i32, bytes: &mut [u8]) -> (isize, Option<i32>) {
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
    // cmsghdr: length 8, level 4, type 4, then the descriptor. A cut control part (no room for
    // descriptors) leaves none.
    let word = |at: usize| i32::from_le_bytes([control.0[at], control.0[at + 1], control.0[at + 2], control.0[at + 3]]);
    let carried = result >= 0 && message.msg_controllen as usize >= 20;
    let is_rights = carried && word(0) >= 20 && word(8) == libc::SOL_SOCKET && word(12) == libc::SCM_RIGHTS;
    (result, is_rights.then(|| word(16)))
}

/// Waits until the descriptor can be read, at most `milliseconds`. True when it can.
pub fn wait_readable(descriptor: i32, milliseconds: u64) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    call!(SYS_poll, &raw mut poll, 1, milliseconds) == 1
}

/// Waits while the word holds `expected`, at most `milliseconds`; wakes from another process.
pub fn futex_wait(word: *const u32, expected: u32, milliseconds: u64) {
    let time =
        libc::timespec { tv_sec: (milliseconds / 1000) as i64, tv_nsec: (milliseconds % 1000 * 1_000_000) as i64 };
    call!(SYS_futex, word, libc::FUTEX_WAIT, expected, &raw const time, 0, 0);
}

/// Whether a thread of this process does not exist any more.
pub fn is_over(pid: u32, tid: u32) -> bool {
    call!(SYS_tgkill, pid, tid, 0) == -i64::from(libc::ESRCH) as isize
}

/// Sleeps.
pub fn sleep_ms(milliseconds: u64) {
    let time =
        libc::timespec { tv_sec: (milliseconds / 1000) as i64, tv_nsec: (milliseconds % 1000 * 1_000_000) as i64 };
    call!(SYS_nanosleep, &raw const time, 0);
}

/// Nanoseconds of `CLOCK_MONOTONIC`, by the vDSO (async-signal-safe, does not touch `errno` on
/// success); by the kernel where the vDSO's counter is switched off.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if crate::timestamp::counter_is_off() {
        call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time);
    } else {
        // SAFETY: the pointer names a timespec of ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    }
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Bytes of address space that the process may still take; `u64::MAX` without a limit.
pub fn address_space() -> u64 {
    let mut limit = [0u64; 2];
    if call!(SYS_prlimit64, 0, libc::RLIMIT_AS, 0, limit.as_mut_ptr()) != 0 || limit[0] == u64::MAX {
        return u64::MAX;
    }
    let mut text = [0; 64];
    let taken = number(read_file(c"/proc/self/statm", &mut text), 0).unwrap_or(limit[0]);
    limit[0].saturating_sub(taken.saturating_mul(auxiliary(libc::AT_PAGESZ) as u64))
}

/// Nanoseconds that the process has run or waited for a processor: its age, if it has not slept.
/// For a child before it does anything.
pub fn age_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    call!(SYS_clock_gettime, libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
    let mut text = [0; 96];
    let waited = number(read_file(c"/proc/self/schedstat", &mut text), 1).unwrap_or(0);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64).wrapping_add(waited)
}

/// The first bytes of a file; none when it cannot be read.
fn read_file<'a>(path: &CStr, bytes: &'a mut [u8]) -> &'a [u8] {
    let Some(file) = open(path) else { return &[] };
    let count = read(file, bytes);
    close(file);
    &bytes[..count.min(bytes.len())]
}

/// A number of a line, by its place.
fn number(text: &[u8], place: usize) -> Option<u64> {
    let word = text.split(|byte| byte.is_ascii_whitespace()).nth(place)?;
    word.iter().try_fold(0u64, |value, digit| {
        digit.is_ascii_digit().then(|| value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })
}

/// Writes a number between two texts; what stands behind stays zero.
pub fn decimal(before: &[u8], number: u32, behind: &[u8], out: &mut [u8; 32]) {
    let (digits, mut left) = (number.checked_ilog10().unwrap_or(0), number);
    let places = (0..=digits).rev().map(|place| {
        let digit = left / 10u32.pow(place);
        left %= 10u32.pow(place);
        b'0' + digit as u8
    });
    let text = before.iter().copied().chain(places).chain(behind.iter().copied());
    text.take(31).zip(out).for_each(|(byte, place)| *place = byte);
}

/// What the kernel says of a file; `None` when there is none.
pub fn status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    (call!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut status, 0) == 0).then_some(status)
}

/// Effective user and group.
pub fn effective_ids() -> (u32, u32) {
    (call!(SYS_geteuid) as u32, call!(SYS_getegid) as u32)
}

/// Whether a program's file carries capabilities.
pub fn has_capabilities(path: &CStr) -> bool {
    call!(SYS_getxattr, path.as_ptr(), c"security.capability".as_ptr(), 0, 0) > 0
}

/// Where a symbolic link leads; its bytes.
pub fn read_link(path: &CStr, out: &mut [u8]) -> usize {
    (call!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), out.as_mut_ptr(), out.len()).max(0) as usize).min(out.len())
}

/// Whether the process at the other end of a socket lives but is stopped, or is dead.
pub fn peer_is_stopped(socket: i32) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as u32;
    let result = call!(SYS_getsockopt, socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &raw mut peer, &raw mut length);
    if result != 0 || peer.pid <= 0 {
        return false;
    }
    let mut path = [0; 32];
    decimal(b"/proc/", peer.pid as u32, b"/stat", &mut path);
    let mut text = [0; 256];
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let text = read_file(path, &mut text);
    // The state follows the name, which stands in brackets and may hold anything.
    let state = text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2));
    matches!(state, Some(b'T' | b't' | b'Z' | b'X'))
}

/// Opens a file for reading; `None` when that fails.
pub fn open(path: &CStr) -> Option<i32> {
    let result = call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0);
    (result >= 0).then_some(result as i32)
}

/// Reads; bytes read, 0 at the end or on an error.
pub fn read(descriptor: i32, bytes: &mut [u8]) -> usize {
    call!(SYS_read, descriptor, bytes.as_mut_ptr(), bytes.len()).max(0) as usize
}

/// Reads at an offset; bytes read, 0 at the end or on an error.
pub fn read_at(descriptor: i32, bytes: &mut [u8], offset: u64) -> usize {
    call!(SYS_pread64, descriptor, bytes.as_mut_ptr(), bytes.len(), offset).max(0) as usize
}

/// Starts a program in place of this one; returns only when that fails.
///
/// # Safety
/// The lists end in a null pointer. Bad addresses are the kernel's to judge.
pub unsafe fn execveat(folder: i32, path: *const c_char, lists: [*const *const c_char; 2], flags: i32) {
    call!(SYS_execveat, folder, path, lists[0], lists[1], flags);
}

/// An entry of the auxiliary vector; 0 when it is not there.
pub fn auxiliary(kind: u64) -> usize {
    // SAFETY: reads the process's own vector.
    unsafe { libc::getauxval(kind) as usize }
}

/// The value of an environment variable. Before libc has set `environ` up (a program's
/// `preinit_array`), as the kernel laid it down.
pub fn environment(name: &str) -> Option<&'static CStr> {
    let is_named = |text: &'static CStr| {
        let value = text.to_bytes().strip_prefix(name.as_bytes())?;
        // SAFETY: the name and an equals sign stand before the value, in one string.
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

unsafe extern "C" {
    #[link_name = "environ"]
    static ENVIRON: *const *const c_char;
}

/// libc's list of the environment; null before it is set up.
pub fn environ() -> *const *const c_char {
    // SAFETY: a plain read of libc's variable.
    unsafe { ENVIRON }
}

/// The kernel lays arguments and environment down as one run of strings up to the program's path,
/// all above its random bytes.
fn first_environment<T>(wanted: impl Fn(&'static CStr) -> Option<T>) -> Option<T> {
    let (low, path) = (auxiliary(libc::AT_RANDOM), auxiliary(libc::AT_EXECFN));
    if low == 0 || path <= low {
        return None;
    }
    let mut at = path - 1;
    while at > low + 16 {
        // SAFETY: between the two addresses lies the first page of the stack, mapped as long as the
        // process lives; each string ends at the one behind it.
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

/// Whether the environment can be read and every function called: not while the loader still makes
/// relocations (an IFUNC resolver).
pub fn environment_is_ready() -> bool {
    !environ().is_null() || crate::dynsym::is_consistent()
}

/// Runs `body` and puts `errno` back as it was.
pub fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: libc's own address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; the thread is ours.
    let saved = unsafe { *place };
    let result = body();
    // SAFETY: as above.
    unsafe { *place = saved };
    result
}

/// Sets `errno`, where an allocator's fallback of ours must.
pub fn set_errno(value: i32) {
    // SAFETY: libc's own address of the calling thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// Whether valgrind runs this code: its documented client request, instructions that do nothing on
/// a processor.
pub fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let arguments = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut result = 0u64;
    // SAFETY: rotations of rdi by 128 bits in all and an exchange of rbx with itself.
    unsafe {
        asm!("rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdx") result, in("rax") arguments.as_ptr(), inout("rdi") 0u64 => _, options(nostack));
    }
    result != 0
}

/// Ends the process as `abort` does, without calling it.
#[cfg(not(test))]
pub fn exit_by_abort() -> ! {
    loop {
        call!(SYS_kill, pid(), libc::SIGABRT);
    }
}
