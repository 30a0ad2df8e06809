//! Single instructions, and short runs of them, that Rust has no word for.

use super::POLL;
use core::arch::asm;
use core::ffi::c_void;

/// Changes a word so that a signal handler of this thread comes before or after it: what the
/// handler's return does to the exclusive monitor makes the store fail, and the change begins
/// again.
macro_rules! signal_atomic {
    ($(#[$text:meta])* $name:ident $op:literal) => {
        $(#[$text])*
        #[inline(always)]
        pub(crate) unsafe fn $name(word: *mut u64, value: u64) {
            // SAFETY: the caller's word, which no other thread writes.
            unsafe {
                asm!("2:", "ldxr {new}, [{word}]", concat!($op, " {new}, {new}, {value}"),
                    "stxr {failed:w}, {new}, [{word}]", "cbnz {failed:w}, 2b", new = out(reg) _, failed = out(reg) _,
                    word = in(reg) word, value = in(reg) value, options(nostack, preserves_flags));
            }
        }
    };
}

signal_atomic! {
    /// Adds to a word. Other threads may see any value between.
    ///
    /// # Safety
    /// `word` must be mapped and written by this thread only.
    signal_atomic_add "add"
}
signal_atomic! {
    /// Clears the bits of a word that are not in `value`, like [`signal_atomic_add`].
    ///
    /// # Safety
    /// `word` must be mapped and written by this thread only.
    signal_atomic_and "and"
}
signal_atomic! {
    /// Sets bits of a word, like [`signal_atomic_add`].
    ///
    /// # Safety
    /// `word` must be mapped and written by this thread only.
    signal_atomic_or "orr"
}

/// Adds 1 to a word, like [`signal_atomic_add`].
///
/// # Safety
/// `word` must be mapped and written by this thread only.
#[inline(always)]
pub(crate) unsafe fn signal_atomic_increment(word: *mut u64) {
    // SAFETY: the caller's word, which no other thread writes.
    unsafe { signal_atomic_add(word, 1) };
}

/// Stores four words that are copied later as two halves. A pair of stores is one access here.
///
/// # Safety
/// `target` must be a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn store_four(target: *mut [u64; 4], values: [u64; 4]) {
    // SAFETY: the caller's target.
    unsafe { target.write(values) };
}

/// Returns the virtual counter in ticks of half a nanosecond to a nanosecond. Counters have 24 MHz to
/// 1 GHz; shifted by the leading zeros of that number, they all have 1.07 to 2.15 GHz, so what is a
/// number of ticks anywhere is about the same time on each machine. The recorder shifts in the same
/// way (`recorder/src/os/processor.rs`). The processor may read it before earlier loads are done, but not
/// after a later store with release order is visible. With `--cfg heaptape_fence` it is not read
/// before all earlier instructions are done.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    let (ticks, frequency): (u64, u64);
    // SAFETY: Linux lets programs read these registers. The compiler keeps the order of this block
    // and of accesses to memory.
    unsafe {
        asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, preserves_flags));
        #[cfg(heaptape_fence)]
        asm!("isb", options(nostack, preserves_flags));
        asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags));
    }
    ticks << (frequency.leading_zeros().wrapping_sub(33) & 63)
}

/// Makes a system call. Errors are returned as negative numbers.
///
/// # Safety
/// The arguments must fulfill the conditions of the call: pointers must be valid for what the
/// kernel reads and writes.
#[inline(always)]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel changes x0 only; the caller vouches for the arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => result, in("x1") args[1], in("x2") args[2],
            in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack, preserves_flags));
    }
    result
}

/// Waits until a descriptor is ready, for at most `milliseconds`. Returns the result of [`POLL`].
pub(crate) fn poll(poll: &mut libc::pollfd, milliseconds: u64) -> isize {
    let time =
        libc::timespec { tv_sec: (milliseconds / 1000) as i64, tv_nsec: (milliseconds % 1000 * 1_000_000) as i64 };
    // SAFETY: the kernel reads and writes one entry, and reads the time.
    unsafe { syscall(POLL, [&raw mut *poll as usize, 1, &raw const time as usize, 0, 0, 0]) }
}

/// Copies the process.
pub(crate) fn fork() -> isize {
    // SAFETY: a copy of the memory, with the same stack; only a libc without the function comes
    // here.
    unsafe { syscall(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) }
}

/// Calls `function` with an argument on the stack that ends at `top`.
///
/// # Safety
/// `top` must be the end of a stack that nothing else uses, and a multiple of 16. The function must
/// be sound to call with this argument.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_on_stack(
    argument: *mut c_void,
    function: unsafe extern "C" fn(*mut c_void),
    top: *mut u8,
) {
    core::arch::naked_asm!(
        "hint 34",
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "mov sp, x2",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "ret",
    )
}

/// Runs `body` in a new thread on the stack that ends at `top`, and ends that thread. `flags` are
/// those of `clone`, with `CLONE_VFORK`: the calling thread is suspended until then, so both can
/// use the same thread-local storage.
///
/// # Safety
/// `top` must be the end of a stack that nothing else uses, and a multiple of 16.
pub(crate) unsafe fn run_in_clone(
    flags: i32,
    top: *mut u8,
    body: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the child has a stack of its own and never leaves the block; the parent continues
    // when it has ended, with its own registers.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "mov x8, {exit}",
            "mov x0, xzr",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as usize => _,
            in("x1") top,
            in("x2") 0usize,
            in("x3") 0usize,
            in("x4") 0usize,
            in("x20") body,
            in("x21") argument,
            lateout("x30") _,
        );
    }
}

/// Returns whether valgrind runs this code. This is its documented client request: instructions
/// that have no effect on a CPU.
pub(crate) fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let arguments = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut result = 0u64;
    // SAFETY: rotations of x12 by 128 bits in all and an exchange of x10 with itself.
    unsafe {
        asm!("ror x12, x12, #3", "ror x12, x12, #13", "ror x12, x12, #51", "ror x12, x12, #61", "orr x10, x10, x10",
            inout("x3") result, in("x4") arguments.as_ptr(), out("x12") _, options(nostack, preserves_flags));
    }
    result != 0
}

/// Copies memory in ascending order, without a call.
///
/// # Safety
/// Both ranges must be mapped, and the source not begin below the target and overlap it.
#[cfg(feature = "standalone")]
#[inline(always)]
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller's ranges. Assembly, because the compiler would turn a loop into a call of
    // memcpy, which is this function.
    unsafe {
        asm!("cbz {left}, 3f", "2:", "ldrb {byte:w}, [{source}], #1", "strb {byte:w}, [{target}], #1",
            "subs {left}, {left}, #1", "b.ne 2b", "3:", left = inout(reg) bytes => _, target = inout(reg) target => _,
            source = inout(reg) source => _, byte = out(reg) _, options(nostack));
    }
}

/// Fills memory with a byte, without a call.
///
/// # Safety
/// The range must be mapped.
#[cfg(feature = "standalone")]
#[inline(always)]
pub(crate) unsafe fn fill(target: *mut u8, byte: u8, bytes: usize) {
    // SAFETY: the caller's range.
    unsafe {
        asm!("cbz {left}, 3f", "2:", "strb {byte:w}, [{target}], #1", "subs {left}, {left}, #1", "b.ne 2b", "3:",
            left = inout(reg) bytes => _, target = inout(reg) target => _, byte = in(reg) u32::from(byte),
            options(nostack));
    }
}

/// Writes a branch in place of the first instruction of a function, by one store. Returns whether it
/// reaches the target.
///
/// # Safety
/// The word must be writable code.
pub(crate) unsafe fn write_jump(at: *mut u8, target: u64) -> bool {
    let distance = target.wrapping_sub(at as u64) as i64;
    if !(-(1 << 27)..1 << 27).contains(&distance) || (distance | at as i64) & 3 != 0 {
        return false;
    }
    // SAFETY: as the caller ensures. The word goes from the data cache to where instructions are read,
    // which forget what they had of this line.
    unsafe {
        at.cast::<u32>().write_volatile(0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff);
        asm!("dc cvau, {at}", "dsb ish", "ic ivau, {at}", "dsb ish", "isb", at = in(reg) at,
            options(nostack, preserves_flags));
    }
    true
}

/// Lets the recorder make the announcements of this process's threads visible: it calls membarrier(2)
/// with `GLOBAL_EXPEDITED` after it has read the clock (`recorder/src/os/processor/aarch64.rs`). Children
/// of fork inherit that, an exec ends it. A kernel without it, or with less processors that are told
/// not to be interrupted, has the recorder's delay only.
pub(crate) fn register_barrier() {
    /// `MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED` (`<linux/membarrier.h>`).
    const REGISTER_GLOBAL_EXPEDITED: usize = 1 << 2;
    // SAFETY: the call has no pointers, and changes nothing but what the kernel knows of this process.
    unsafe { syscall(libc::SYS_membarrier, [REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0]) };
}
