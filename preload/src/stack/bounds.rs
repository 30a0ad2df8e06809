//! The bounds of a thread's own stack.

use super::pages::{PAGE, Pages, Stretch};
use crate::sys::{self, Need};
use crate::{arch, probe, session};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The thread pointer of the main thread; 0 if it is not known.
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Notes that the calling thread is the main one.
pub(crate) fn note_main_thread() {
    MAIN_THREAD.store(arch::thread_pointer(), Relaxed);
}

/// The lowest address that the kernel keeps for the main thread's stack; 0 if it is not known.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Notes which addresses the kernel keeps for the main thread's stack.
///
/// It places no mapping within `RLIMIT_STACK`, nor within 128 MiB, below the top of that stack
/// (`mmap_base` in arch/x86/mm/mmap.c). So a page there that is in use belongs to the stack, and so do all above it:
/// nobody has to ask. A filter that the program installs by an instruction of its own, which this
/// library does not see, may kill it for the question.
pub(crate) fn note_reserved() {
    /// More than programs use, and less than the 128 MiB, which hold whatever the limit was at the
    /// start. Without a limit the kernel maps from the other end.
    const MOST: u64 = 64 << 20;
    RESERVED.store(kernels_end().saturating_sub(sys::limit(libc::RLIMIT_STACK).min(MOST) as usize), Relaxed);
}

/// Returns the main thread's stack from `sp` on, if the calling thread is that one and `sp`, which was
/// in use, is on it.
pub(crate) fn main_stack_from(sp: u64) -> Option<Stretch> {
    let (reserved, end) = (RESERVED.load(Relaxed) as u64, kernels_end() as u64);
    let is_on_it = reserved != 0 && sp >= reserved && sp < end;
    let low = sp & !(PAGE - 1);
    (is_on_it && arch::thread_pointer() == MAIN_THREAD.load(Relaxed)).then_some(Stretch { low, end })
}

/// Returns an address above the first frame of the main thread, on its stack.
fn kernels_end() -> usize {
    sys::auxiliary(libc::AT_RANDOM) & !7
}

/// The known part of a thread's own stack.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StackBounds {
    /// The lowest address from which the stack is known to be mapped up to `end`.
    pub low: usize,
    /// The end of the readable part of the thread's own stack; 0 if it is not known.
    pub end: usize,
    /// No page below this address belongs to the thread's own stack, because one of them cannot be
    /// read.
    floor: usize,
}

impl StackBounds {
    /// Returns the bounds of the calling thread's stack, if `sp` is on it.
    pub(crate) fn new(sp: usize, tid: u32) -> StackBounds {
        StackBounds { low: sp & !4095, end: own_stack_end(sp, tid), floor: 0 }
    }

    /// Returns whether an address is in the known part.
    #[inline(always)]
    pub(crate) const fn contains(&self, address: usize) -> bool {
        address >= self.low && address < self.end
    }

    /// Extends the known part down to `sp`, unless that is on another stack. Returns whether it is
    /// on this one.
    #[cold]
    pub(crate) fn grow(&mut self, sp: usize, other_pages: &Pages) -> bool {
        /// The most bytes that a single frame may skip: 2,048 pages.
        const MOST: usize = 8 << 20;
        if other_pages.contain(sp as u64) {
            return false;
        }
        if self.end == 0 {
            // A sandbox may not allow the system call for the thread id.
            if !Need::THREAD.is_allowed() {
                return false;
            }
            self.end = own_stack_end(sp, sys::tid());
            self.low = sp & !4095;
            return self.end != 0;
        }
        let target = sp & !4095;
        if sp >= self.end || self.low - target > MOST || target < self.floor {
            return false;
        }
        let reserved = RESERVED.load(Relaxed);
        let is_reserved = reserved != 0 && target >= reserved && self.end == kernels_end();
        // The page of `sp` itself is mapped, since it is in use.
        while self.low > target + 4096 && !is_reserved {
            if !probe::is_readable(self.low - 4096) {
                if Need::PROBE.is_allowed() {
                    self.floor = self.low;
                }
                return false;
            }
            self.low -= 4096;
        }
        self.low = target;
        true
    }

    /// Finds how far down the stack can be read, while the system calls for it are still allowed,
    /// as if the thread had used the stack to that depth before.
    pub(crate) fn probe_ahead(&mut self) {
        const AHEAD: usize = 512 << 10;
        let lowest = self.low.saturating_sub(AHEAD);
        while self.end != 0 && self.low > lowest && probe::is_readable(self.low - 4096) {
            self.low -= 4096;
        }
    }
}

/// Returns the end of the stack that holds `sp`. Threads made by libc have their thread pointer at
/// the top of the stack. The main thread has the kernel's random bytes above its first frame. The
/// only thread of a forked child may have been either. Returns 0 if not all pages up to there are
/// mapped; then the first event came on another stack.
#[inline(never)]
pub(crate) fn own_stack_end(sp: usize, tid: u32) -> usize {
    let is_main = tid == session::pid();
    let kernels = if is_main { mapped_up_to(sp, kernels_end()) } else { 0 };
    // The child of a main thread has the kernel's stack too. Its thread pointer is beside the
    // libraries, and so may be the alternate stack of a handler that forked, with nothing unmapped
    // between.
    let was_other = || session::is_forked() && arch::thread_pointer() != MAIN_THREAD.load(Relaxed);
    if kernels == 0 && (!is_main || was_other()) { mapped_up_to(sp, arch::thread_pointer()) } else { kernels }
}

/// Returns `end` rounded down to a word if everything from `sp` up to it can be read, else 0.
#[inline(never)]
fn mapped_up_to(sp: usize, end: usize) -> usize {
    /// 64 MiB, which is more than any stack uses at a thread's first event.
    const FARTHEST: usize = 64 << 20;
    let end = end & !7;
    if end <= sp || end - sp > FARTHEST {
        return 0;
    }
    let mut page = sp & !4095;
    while page < end {
        let count = probe::readable_pages(page, (end - page).div_ceil(4096));
        if count == 0 {
            return 0;
        }
        page += count * 4096;
    }
    end
}

/// Returns the address of `argc`, which the kernel has put above the first frame of the program, or
/// 0 if it is not known. `low` to `end` is a stack, all of it mapped.
///
/// The list of the environment follows the arguments, so it must still be the kernel's.
#[cold]
pub(crate) fn program_arguments(low: u64, end: u64) -> u64 {
    /// Not looked for yet.
    const UNKNOWN: u64 = u64::MAX;
    static FOUND: AtomicU64 = AtomicU64::new(UNKNOWN);
    let found = FOUND.load(Relaxed);
    let list = sys::environment_list();
    if found != UNKNOWN || list < low || list >= end {
        return if found == UNKNOWN { 0 } else { found };
    }
    // SAFETY: a word between `low` and `end`, all of which is mapped.
    let word = |address: u64| unsafe { (address as *const u64).read_volatile() };
    let mut found = 0;
    // Null, the arguments, and their number.
    let mut at = list & !7;
    for count in 0..1 << 16 {
        let next = at - 16;
        if next < low || (count == 0 && word(at - 8) != 0) {
            break;
        }
        if word(next) == count {
            found = next;
            break;
        }
        at -= 8;
    }
    FOUND.store(found, Relaxed);
    found
}
