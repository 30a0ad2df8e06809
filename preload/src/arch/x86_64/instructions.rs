//! Single instructions, and short runs of them, that Rust has no word for.

use super::POLL;
use core::arch::asm;
use core::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_store_si128};
use core::ffi::c_void;

/// Changes a word in one instruction.
macro_rules! signal_atomic {
    ($(#[$text:meta])* $name:ident $op:literal) => {
        $(#[$text])*
        #[inline(always)]
        pub(crate) unsafe fn $name(word: *mut u64, value: u64) {
            // SAFETY: the caller's word, which no other thread writes.
            unsafe { asm!(concat!($op, " qword ptr [{0}], {1}"), in(reg) word, in(reg) value, options(nostack)) };
        }
    };
}

signal_atomic! {
    /// Adds to a word in one instruction, so that a signal handler of this thread comes before or
    /// after it. Other threads may see any value between.
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
    signal_atomic_or "or"
}

/// Adds 1 to a word, like [`signal_atomic_add`].
///
/// # Safety
/// `word` must be mapped and written by this thread only.
#[inline(always)]
pub(crate) unsafe fn signal_atomic_increment(word: *mut u64) {
    // SAFETY: the caller's word, which no other thread writes.
    unsafe { asm!("add qword ptr [{0}], 1", in(reg) word, options(nostack)) };
}

/// Stores four words as two halves, as they are copied later. If a half is stored as two words, a
/// load of the half waits until both have reached the cache (measured: 24 % of a capture).
///
/// # Safety
/// `target` must be a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn store_four(target: *mut [u64; 4], values: [u64; 4]) {
    let halves = target.cast::<__m128i>();
    // SAFETY: two aligned halves of 16 bytes, as the caller ensures; SSE2 is part of x86-64.
    unsafe {
        _mm_store_si128(halves, _mm_set_epi64x(values[1] as i64, values[0] as i64));
        _mm_store_si128(halves.add(1), _mm_set_epi64x(values[3] as i64, values[2] as i64));
    }
}

/// Returns the timestamp counter (TSC). The processor may read it before earlier loads are done, by
/// the latency of a load, but not after a later store is visible. With `--cfg heaptape_fence` it is
/// not read before all earlier loads are done.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    #[cfg(heaptape_fence)]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    let (low, high): (u64, u64);
    // SAFETY: the recorder checked that the counter is usable. The compiler keeps the order of this
    // block and of accesses to memory.
    unsafe { asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack)) };
    high << 32 | low
}

/// Makes a system call. Errors are returned as negative numbers.
///
/// # Safety
/// The arguments must fulfill the conditions of the call: pointers must be valid for what the
/// kernel reads and writes.
#[inline(always)]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers rcx and r11 only; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Waits until a descriptor is ready, for at most `milliseconds`. Returns the result of [`POLL`].
pub(crate) fn poll(poll: &mut libc::pollfd, milliseconds: u64) -> isize {
    // SAFETY: the kernel reads and writes one entry.
    unsafe { syscall(POLL, [&raw mut *poll as usize, 1, milliseconds as usize, 0, 0, 0]) }
}

/// Copies the process.
pub(crate) fn fork() -> isize {
    // SAFETY: without arguments; only a libc without the function comes here.
    unsafe { syscall(libc::SYS_fork, [0; 6]) }
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
        "endbr64",
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
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
    // SAFETY: the child has a stack of its own and never leaves the block; the parent
    // continues when it has ended.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone => _,
            in("rdi") flags as usize,
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") body,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
}

/// Returns whether valgrind runs this code. This is its documented client request: instructions
/// that have no effect on a CPU.
pub(crate) fn is_under_valgrind() -> bool {
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

/// Copies memory in ascending order, without a call.
///
/// # Safety
/// Both ranges must be mapped, and the source not begin below the target and overlap it.
#[cfg(feature = "standalone")]
#[inline(always)]
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller's ranges; the direction flag is clear by the psABI.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") target => _, inout("rsi") source => _,
            options(nostack, preserves_flags));
    }
}

/// Fills memory with a byte, without a call.
///
/// # Safety
/// The range must be mapped.
#[cfg(feature = "standalone")]
#[inline(always)]
pub(crate) unsafe fn fill(target: *mut u8, byte: u8, bytes: usize) {
    // SAFETY: the caller's range; the direction flag is clear by the psABI.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") target => _, in("al") byte,
            options(nostack, preserves_flags));
    }
}

/// Writes a jump over the first bytes of a function. Returns whether it reaches the target.
///
/// # Safety
/// The bytes must be writable, and no thread may run there.
pub(crate) unsafe fn write_jump(at: *mut u8, target: u64) -> bool {
    let distance = target.wrapping_sub(at as u64 + 5) as i64;
    let Ok(distance) = i32::try_from(distance) else { return false };
    // SAFETY: as the caller ensures.
    unsafe {
        at.write(0xe9);
        at.add(1).cast::<i32>().write_unaligned(distance);
    }
    true
}

/// Stores become visible in their order here, and soon: nothing is needed for that.
#[inline(always)]
pub(crate) const fn register_barrier() {}
