//! Memory that this library maps for itself, and the pages of a program's code that it changes.

use super::Need;
use crate::arch;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heaptape_wire::area::PAGE;

/// Returns the address that a call that maps memory returned, or `None` for an error.
fn address(result: isize) -> Option<*mut u8> {
    (!(-4095..0).contains(&result)).then_some(result as *mut u8)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Returns the bytes before and behind each mapping of this library that nobody can access: a page. The
/// kernel places mappings side by side, and a block of the program that is written beyond its end, page
/// for page, must end the program as it does without this library.
pub(crate) fn guard_bytes() -> usize {
    if cfg!(target_arch = "x86_64") { PAGE as usize } else { super::auxiliary(libc::AT_PAGESZ) }
}

/// The part of the addresses that the program's limit leaves which a mapping may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All = 1,
    /// For memory that grows with the program's threads, whose stacks are larger.
    Quarter = 4,
    /// For memory that grows with the program's stacks: what a program allows itself is its own. Since
    /// each mapping is twice as large as the one before, nodes and index take less than an eighth each.
    Sixteenth = 16,
}

/// Reserves a range of addresses between two guards, for mappings that replace it. Returns `None` if
/// the system refuses, or leaves too little. After a refusal of memory that grows, 63 requests for as
/// much or more are refused without asking, so that a program at its limit is not delayed by each event.
#[inline(never)]
pub(crate) fn reserve(bytes: usize, part: Part) -> Option<*mut u8> {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let needed = bytes + 2 * guard_bytes();
    let mut rest = bytes * (part as usize - 1);
    let (wanted, waiting) = (needed + rest, WAITING.load(Relaxed));
    if rest != 0 && waiting != 0 && wanted >= REFUSED.load(Relaxed) {
        WAITING.store(waiting - 1, Relaxed);
        return None;
    }
    let map = |bytes: usize| call!(SYS_mmap, 0, bytes, libc::PROT_NONE, flags, usize::MAX, 0);
    let mut result = map(wanted);
    if result == -(libc::EAGAIN as isize) {
        // The program locks all its memory, and may not lock so much. This is unlocked at once.
        rest = 0;
        result = map(needed);
    }
    let start = address(result);
    match start {
        None if part != Part::All => {
            REFUSED.store(wanted, Relaxed);
            WAITING.store(63, Relaxed);
        }
        Some(start) if rest != 0 => unmap_at(start.wrapping_add(needed), rest),
        _ => {}
    }
    Some(start?.wrapping_add(guard_bytes()))
}

/// Maps private memory of zeros between two guards. Returns `None` if the system refuses.
#[inline(never)]
pub(crate) fn map_private(bytes: usize, part: Part) -> Option<*mut u8> {
    let start = reserve(bytes, part)?;
    if !protect(start, bytes, READ_WRITE) {
        unmap(start, bytes);
        return None;
    }
    Some(start)
}

/// What maps some bytes, behind a page of a file where there is one.
pub(crate) type Map = fn(page: *mut u8, bytes: usize, part: Part) -> Option<*mut u8>;

/// Maps memory that threads share, unless another one has: `known` is 0, or the address from which it is
/// `start` bytes away. Returns that address, or `None` if there is no memory.
///
/// One thread at a time, since several that map the same, and unmap it again, may together be refused what
/// a limit on locked memory leaves for one. Nobody waits for long: what interrupted the thread whose turn it
/// is may be this one.
#[inline(never)]
pub(crate) fn map_once(
    known: &AtomicUsize,
    start: usize,
    (page, bytes, part): (*mut u8, usize, Part),
    map: Map,
) -> Option<usize> {
    static TURN: AtomicU32 = AtomicU32::new(0);
    const LONGEST_MS: u32 = 50;
    for _ in 0..LONGEST_MS {
        if TURN.swap(1, Acquire) == 0 || !Need::SLEEP.is_allowed() {
            break;
        }
        super::futex_wait(TURN.as_ptr(), 1, 1);
    }
    if known.load(Acquire) == 0
        && let Some(base) = map(page, bytes, part)
    {
        let origin = (base as usize).wrapping_sub(start);
        if origin == 0 || known.compare_exchange(0, origin, Release, Relaxed).is_err() {
            unmap(base, bytes);
        }
    }
    TURN.store(0, Release);
    Some(known.load(Acquire)).filter(|origin| *origin != 0)
}

/// Maps zeros in place of a range that the caller owns. Where the program's limit leaves no private
/// memory, they are shared with later children. Nothing can be mapped in a process that has set
/// its limit on address space below what it uses, so that limit is raised meanwhile.
pub(crate) fn replace_by_zeros(at: *mut u8, bytes: usize) {
    if is_zeroed(at, bytes) || !Need::ATTACH.is_allowed() {
        return;
    }
    let mut limit = [0u64; 2];
    call!(SYS_prlimit64, 0, libc::RLIMIT_AS, 0, limit.as_mut_ptr());
    for raised in [[limit[1]; 2], [u64::MAX; 2]] {
        if call!(SYS_prlimit64, 0, libc::RLIMIT_AS, raised.as_ptr(), 0) == 0 && is_zeroed(at, bytes) {
            break;
        }
    }
    call!(SYS_prlimit64, 0, libc::RLIMIT_AS, limit.as_ptr(), 0);
}

/// Maps zeros, private or else shared, and returns whether the system allows it.
#[inline(never)]
fn is_zeroed(at: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let map = |kind: i32| address(call!(SYS_mmap, at, bytes, READ_WRITE, kind | flags, usize::MAX, 0)).is_some();
    map(libc::MAP_PRIVATE) || map(libc::MAP_SHARED)
}

/// Maps private memory of zeros at this address, if nothing is mapped there and the system allows
/// it. Returns whether it did.
pub(crate) fn map_at(at: *mut u8, bytes: usize) -> bool {
    // An old kernel does not know the last flag, and may choose another address.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let mapped = address(call!(SYS_mmap, at, bytes, READ_WRITE, flags, usize::MAX, 0));
    mapped.filter(|mapped| *mapped != at).inspect(|mapped| unmap_at(*mapped, bytes));
    mapped == Some(at)
}

/// Changes what may be done with memory. Returns whether the system allows it.
fn protect(at: *mut u8, bytes: usize, rights: i32) -> bool {
    call!(SYS_mprotect, at, bytes, rights) == 0
}

/// Makes memory readable and executable, and also writable if `is_writable`. Returns whether the
/// system allows it.
pub(crate) fn protect_code(at: *mut u8, bytes: usize, is_writable: bool) -> bool {
    let writable = if is_writable { libc::PROT_WRITE } else { 0 };
    protect(at, bytes, libc::PROT_READ | libc::PROT_EXEC | writable)
}

/// Maps a range of a file, shared: anywhere, or replacing what the caller has mapped or reserved at
/// `at`. Returns `None` if the system refuses.
pub(crate) fn map_file(at: *mut u8, bytes: usize, descriptor: i32, offset: u64) -> Option<*mut u8> {
    map_shared(at, bytes, READ_WRITE, descriptor, offset)
}

/// Maps a range of a file that is only read, anywhere. It needs no guards.
pub(crate) fn map_constant(bytes: usize, descriptor: i32, offset: u64) -> Option<*mut u8> {
    map_shared(core::ptr::null_mut(), bytes, libc::PROT_READ, descriptor, offset)
}

fn map_shared(at: *mut u8, bytes: usize, rights: i32, descriptor: i32, offset: u64) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | if at.is_null() { 0 } else { libc::MAP_FIXED };
    address(call!(SYS_mmap, at, bytes, rights, flags, descriptor, offset))
}

/// Moves a mapping of a file, and enlarges it, in place of what the caller has reserved at `at`. With
/// zero bytes the mapping stays, and a second one is made. Returns `None` if the system refuses.
pub(crate) fn replace(at: *mut u8, mapping: *mut u8, bytes: usize, wanted: usize) -> Option<*mut u8> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    address(call!(SYS_mremap, mapping, bytes, wanted, flags, at))
}

/// Maps more of a file of which the caller has mapped the page at `page`: the `bytes` bytes behind
/// that page, between two guards. Returns `None` if the system refuses. The new mapping is not locked,
/// even if the program locks all its memory, because it would count against the program's limit.
pub(crate) fn map_behind(page: *mut u8, bytes: usize, part: Part) -> Option<*mut u8> {
    let (start, guard_bytes) = (reserve(bytes, part)?, guard_bytes());
    unlock_at(page, guard_bytes);
    // The page comes in place of the first guard, and becomes one.
    let guard = start.wrapping_sub(guard_bytes);
    if replace(guard, page, 0, guard_bytes + bytes).is_none() {
        unmap(start, bytes);
        return None;
    }
    protect(guard, guard_bytes, libc::PROT_NONE);
    Some(start)
}

/// Unlocks memory of this library and its guards, where that is allowed.
pub(crate) fn unlock(at: *mut u8, bytes: usize) {
    unlock_at(at.wrapping_sub(guard_bytes()), bytes + 2 * guard_bytes());
}

/// Unlocks memory that has no guards, where that is allowed.
#[inline(never)]
pub(crate) fn unlock_at(at: *mut u8, bytes: usize) {
    if Need::UNLOCK.is_allowed() {
        call!(SYS_munlock, at, bytes);
    }
}

/// Unmaps memory that this library has mapped, with its guards.
#[inline(never)]
pub(crate) fn unmap(at: *mut u8, bytes: usize) {
    unmap_at(at.wrapping_sub(guard_bytes()), bytes + 2 * guard_bytes());
}

/// Unmaps memory that has no guards.
pub(crate) fn unmap_at(at: *mut u8, bytes: usize) {
    call!(SYS_munmap, at, bytes);
}

/// Advises the kernel about memory that this library has mapped. Returns whether it was
/// accepted.
#[inline(never)]
pub(crate) fn advise(at: *mut u8, bytes: usize, advice: i32) -> bool {
    call!(SYS_madvise, at, bytes, advice) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_that_need_the_same_memory_map_it_once() {
        static MAPPED: AtomicUsize = AtomicUsize::new(0);
        static INNER: AtomicUsize = AtomicUsize::new(0);
        fn slow(_page: *mut u8, bytes: usize, part: Part) -> Option<*mut u8> {
            MAPPED.fetch_add(1, Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(5));
            map_private(bytes, part)
        }
        fn interrupted(page: *mut u8, bytes: usize, part: Part) -> Option<*mut u8> {
            map_once(&INNER, 0, (page, bytes, part), |_, bytes, part| map_private(bytes, part))?;
            None
        }
        let (known, barrier) = (AtomicUsize::new(0), Barrier::new(8));
        let map = || {
            barrier.wait();
            map_once(&known, 64, (core::ptr::null_mut(), 4096, Part::All), slow)
        };
        std::thread::scope(|scope| {
            let threads: [_; 8] = core::array::from_fn(|_| scope.spawn(map));
            let origins = threads.map(|thread| thread.join().expect("a thread"));
            assert!(origins.iter().all(|origin| origin.is_some() && *origin == origins[0]), "{origins:?}");
        });
        assert_eq!(MAPPED.load(Relaxed), 1);
        // A handler of the thread that maps memory needs some, too, and waits for a while.
        let known = AtomicUsize::new(0);
        assert_eq!(map_once(&known, 0, (core::ptr::null_mut(), 4096, Part::All), interrupted), None);
        assert_ne!(INNER.load(Relaxed), 0);
    }
}
