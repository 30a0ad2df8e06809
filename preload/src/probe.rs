//! Reading memory of the program that may not be mapped.

use crate::session;
use crate::sys::{self, Need};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

/// Returns whether eight bytes at `address` can be read. Returns false where the call for that is
/// not allowed.
pub(crate) fn is_readable(address: usize) -> bool {
    Need::PROBE.is_allowed() && sys::can_copy_signal_set(address)
}

/// Number of pages that one call checks.
const PAGES_PER_QUERY: usize = 32;

/// Space for a query about many pages, which is too large for the small stacks that a hook may run
/// on.
struct PageQuery {
    is_claimed: AtomicBool,
    pages: UnsafeCell<[libc::iovec; PAGES_PER_QUERY]>,
}

// SAFETY: only the thread that has set `is_claimed` uses the vectors.
unsafe impl Sync for PageQuery {}

static PAGE_QUERY: PageQuery = PageQuery {
    is_claimed: AtomicBool::new(false),
    pages: UnsafeCell::new([libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 1 }; PAGES_PER_QUERY]),
};

/// Returns how many of `wanted` pages from this one on can be read. It checks some of them in one
/// call where that is possible.
#[inline(never)]
pub(crate) fn readable_pages(page: usize, wanted: usize) -> usize {
    if wanted == 1 || !Need::PEEK.is_allowed() || PAGE_QUERY.is_claimed.swap(true, Acquire) {
        return usize::from(is_readable(page));
    }
    let mut bytes = [0u8; PAGES_PER_QUERY];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: wanted.min(PAGES_PER_QUERY) };
    // SAFETY: `is_claimed` was set here.
    let pages = unsafe { &mut *PAGE_QUERY.pages.get() };
    let pages = &mut pages[..wanted.min(PAGES_PER_QUERY)];
    let mut at = page;
    for one in pages.iter_mut() {
        one.iov_base = at as *mut c_void;
        // Vectors would make this code twice as large.
        at = core::hint::black_box(at.wrapping_add(4096));
    }
    let count = copy_own(&ours, pages);
    PAGE_QUERY.is_claimed.store(false, Release);
    if Need::PEEK.is_allowed() { count } else { usize::from(is_readable(page)) }
}

/// Copies from this process's memory, and returns the number of bytes copied.
fn copy_own(ours: &libc::iovec, theirs: &[libc::iovec]) -> usize {
    let copy = |pid: u32| sys::copy_from_process(pid, ours, theirs);
    // The process of the session is this one, or shares its memory with this one. That is the child
    // of a `vfork`, which may not be allowed to read the other's memory.
    let copied = match session::area() {
        Some(_) => copy(session::pid()),
        None => copy(sys::pid()),
    };
    let copied = if copied == -libc::EPERM as isize { copy(sys::pid()) } else { copied };
    // A process whose first thread has ended (`pthread_exit` in `main`) is known by its others
    // only.
    let is_leaderless = copied == -libc::ESRCH as isize && Need::THREAD.is_allowed();
    let copied = if is_leaderless { copy(sys::tid()) } else { copied };
    if copied == -libc::ENOSYS as isize {
        // A kernel without this call (CONFIG_CROSS_MEMORY_ATTACH), or qemu's user mode.
        sys::forbid(Need::PEEK);
    }
    copied.max(0) as usize
}

/// Copies memory of this process that may not be readable, or may be unmapped meanwhile. Returns
/// the number of bytes copied.
pub(crate) fn peek(address: usize, out: &mut [u8]) -> usize {
    // SAFETY: a slice of that length.
    unsafe { peek_to(address, out.as_mut_ptr(), out.len()) }
}

/// The same, for memory that has not been written yet.
///
/// # Safety
/// `target` has room for `all` bytes.
#[inline(never)]
pub(crate) unsafe fn peek_to(address: usize, target: *mut u8, all: usize) -> usize {
    if !Need::PEEK.is_allowed() {
        return 0;
    }
    let copy = |bytes: usize| {
        let ours = libc::iovec { iov_base: target.cast(), iov_len: bytes };
        copy_own(&ours, &[libc::iovec { iov_base: address as *mut c_void, iov_len: bytes }])
    };
    let to_page_end = 4096 - (address & 4095);
    match copy(all) {
        0 if all > to_page_end => copy(to_page_end),
        copied => copied,
    }
}

/// Copies memory that the program passes to a call and keeps mapped during that call, if it is
/// mapped. Returns the number of bytes copied.
#[inline(never)]
pub(crate) fn copy_from(address: usize, out: &mut [u8]) -> usize {
    let copied = peek(address, out);
    if copied != 0 || Need::PEEK.is_allowed() {
        return copied;
    }
    let mut count = 0;
    while let Some(target) = out.get_mut(count) {
        let from = address.wrapping_add(count);
        // The eight bytes of a query end at the end of a page at the latest.
        if (count == 0 || from & 4095 == 0) && !is_readable(from & !7) {
            break;
        }
        // SAFETY: the page can be read, and the program keeps it mapped.
        *target = unsafe { (from as *const u8).read_volatile() };
        count += 1;
    }
    count
}
