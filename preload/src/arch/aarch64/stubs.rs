//! The bodies of exported functions: naked functions that add the caller's stack pointer and frame
//! pointer to the arguments and go on.
//!
//! A call leaves the return address in a register (x30) here, while the rest of the library expects
//! it in memory, in the word below the caller's stack pointer. So a stub stores the frame pointer
//! and the return address there, calls the body, and returns. `hint 34` (`bti c`) allows calls and
//! jumps to it where branches are checked; it has no effect elsewhere.

/// A function that stores x29 and x30 below the caller's stack pointer, runs `line`s, and returns.
/// The word at sp + 8 is the return address then.
macro_rules! framed {
    ([$($line:expr),* $(,)?], $($operand:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint 34",
            "stp x29, x30, [sp, #-16]!",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset x29, -16",
            ".cfi_offset x30, -8",
            $($line,)*
            "ldp x29, x30, [sp], #16",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            $($operand)*)
    };
}

/// The entry of a function whose body has this number of arguments before the two added ones. It
/// calls what `target` points to.
macro_rules! entry_stub {
    (1, $target:path) => { crate::arch::entry_stub!("add x1, sp, #8", "mov x2, x29", $target) };
    (2, $target:path) => { crate::arch::entry_stub!("add x2, sp, #8", "mov x3, x29", $target) };
    (3, $target:path) => { crate::arch::entry_stub!("add x3, sp, #8", "mov x4, x29", $target) };
    ($sp:literal, $bp:literal, $target:path) => {
        crate::arch::framed!([$sp, $bp, "adrp x16, {target}", "ldr x16, [x16, :lo12:{target}]", "blr x16"], target = sym $target)
    };
}

/// The entry of a function to which the program reports, whose body has this number of arguments
/// before the two added ones.
macro_rules! report_stub {
    (1, $body:path) => { crate::arch::framed!(["add x1, sp, #8", "mov x2, x29", "bl {body}"], body = sym $body) };
    (2, $body:path) => { crate::arch::framed!(["add x2, sp, #8", "mov x3, x29", "bl {body}"], body = sym $body) };
    (3, $body:path) => { crate::arch::framed!(["add x3, sp, #8", "mov x4, x29", "bl {body}"], body = sym $body) };
}

/// The instructions of the untraced mode. They jump to where `next` points, unless that is null,
/// the thread's activation is not `untraced`, or the first argument is in the `arena`: then to
/// `full`. The next function ignores further arguments that a stub has set.
macro_rules! untraced_stub {
    ($operands:tt) => {
        crate::arch::untraced_stub!(["adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]"], $operands)
    };
    ([$($load_next:literal),*], ($($operand:tt)*)) => {
        core::arch::naked_asm!(
            "hint 36",
            "mrs x17, tpidr_el0",
            "adrp x16, :gottprel:heaptape_thread_state",
            "ldr x16, [x16, :gottprel_lo12:heaptape_thread_state]",
            "ldr x16, [x17, x16]",
            "cbz x16, 2f",
            "ldrb w16, [x16]",
            "cmp w16, {untraced}",
            "b.ne 2f",
            "adrp x16, {arena}",
            "add x16, x16, :lo12:{arena}",
            "sub x17, x0, x16",
            "mov x16, {arena_bytes}",
            "cmp x17, x16",
            "b.lo 2f",
            $($load_next,)*
            "cbz x16, 2f",
            "br x16",
            "2:",
            "b {full}",
            $($operand)*
        )
    };
}

/// The same for the C++ operators: `next` is a table, and the operator's number the index.
macro_rules! untraced_operator_stub {
    ($operands:tt) => {
        crate::arch::untraced_stub!(
            ["adrp x16, {next}", "add x16, x16, :lo12:{next}", "ldr x16, [x16, x3, lsl #3]"],
            $operands
        )
    };
}

/// The entry of a C++ operator, which has up to three arguments. It adds its number and the two
/// registers, and calls what `target` points to.
macro_rules! operator_stub {
    ($which:literal, $target:path) => {
        crate::arch::framed!(
            ["mov x3, {which}", "add x4, sp, #8", "mov x5, x29", "adrp x16, {target}", "ldr x16, [x16, :lo12:{target}]", "blr x16"],
            which = const $which, target = sym $target)
    };
}

/// The full mode of an `operator new`. It calls the function that `direct` points to, with the
/// size, the number and the two registers, and returns what that returns, unless it is null. Then
/// it calls `begins`, the function that this returns, and `ends`. That function may throw: the
/// frame is described to the unwinder and has no landing pad.
macro_rules! operator_new_frame {
    ($direct:path, $begins:path, $ends:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint 34",
            "stp x29, x30, [sp, #-64]!",
            ".cfi_def_cfa_offset 64",
            ".cfi_offset x29, -64",
            ".cfi_offset x30, -56",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "mov x1, x3",
            "mov x2, x4",
            "mov x3, x5",
            "adrp x16, {direct}",
            "ldr x16, [x16, :lo12:{direct}]",
            "blr x16",
            "cbnz x0, 2f",
            "ldr x0, [sp, #16]",
            "ldp x1, x2, [sp, #40]",
            "ldr x3, [sp, #24]",
            "bl {begins}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "blr x16",
            "ldr x1, [sp, #16]",
            "ldp x2, x3, [sp, #40]",
            "ldr x4, [sp, #56]",
            "bl {ends}",
            "2:",
            "ldp x29, x30, [sp], #64",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            direct = sym $direct, begins = sym $begins, ends = sym $ends)
    };
}

/// The entry of a function that is hooked by a branch in its place. x17 is the address of its
/// [`heaptape_wire::patches::Function`], which begins with the address of its trampoline. In the
/// untraced mode it jumps there. Otherwise it saves the arguments at the start of `frame_bytes` on the
/// stack, with x17 and the caller after them. It calls `begins` with their address, the function that
/// this returns, and `ends`. That function may throw: the frame is described to the unwinder and has no
/// landing pad.
///
/// All registers that a function may change have their values again at the end, except for the result,
/// and x16 and x17, which a call may change on its way: a compiler that knows the function keeps values
/// in those that it does not change (GCC's `-fipa-ra`).
#[cfg(not(feature = "standalone"))]
macro_rules! patched_stub {
    ($begins:path, $ends:path, $frame_bytes:expr, $untraced:expr) => {
        crate::arch::patched_frame!($begins, $ends, $frame_bytes, [
            "stp x9, x10, [sp, #-16]!",
            ".cfi_adjust_cfa_offset 16",
            "mrs x9, tpidr_el0",
            "adrp x16, :gottprel:heaptape_thread_state",
            "ldr x16, [x16, :gottprel_lo12:heaptape_thread_state]",
            "ldr x16, [x9, x16]",
            "ldp x9, x10, [sp], #16",
            ".cfi_adjust_cfa_offset -16",
            "cbz x16, 2f",
            "ldrb w16, [x16]",
            "cmp w16, {untraced}",
            "b.ne 2f",
            "ldr x16, [x17]",
            "br x16",
            "2:",
        ], (untraced = const $untraced))
    };
}

/// The same in the standalone library, where `begins` finds out about the mode.
#[cfg(feature = "standalone")]
macro_rules! patched_stub {
    ($begins:path, $ends:path, $frame_bytes:expr, $untraced:expr) => {
        crate::arch::patched_frame!($begins, $ends, $frame_bytes, [], ())
    };
}

/// Bytes of the frame of [`patched_stub`] after the call: x6 to x15, two free words, and the vector
/// registers.
pub(crate) const KEPT_BYTES: usize = 12 * 8 + 32 * 16;

/// The instructions of [`patched_stub`] after those that check the mode.
macro_rules! patched_frame {
    ($begins:path, $ends:path, $frame_bytes:expr, [$($check:literal,)*], ($($operand:tt)*)) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint 34",
            $($check,)*
            "stp x29, x30, [sp, #-16]!",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset x29, -16",
            ".cfi_offset x30, -8",
            "sub sp, sp, {bytes}",
            ".cfi_adjust_cfa_offset {bytes}",
            "stp x0, x1, [sp]",
            "stp x2, x3, [sp, #16]",
            "stp x4, x5, [sp, #32]",
            "str x17, [sp, #48]",
            "add x16, sp, {kept}",
            "stp x6, x7, [x16, #0]",
            "stp x8, x9, [x16, #16]",
            "stp x10, x11, [x16, #32]",
            "stp x12, x13, [x16, #48]",
            "stp x14, x15, [x16, #64]",
            "stp q0, q1, [x16, #96]",
            "stp q2, q3, [x16, #128]",
            "stp q4, q5, [x16, #160]",
            "stp q6, q7, [x16, #192]",
            "stp q8, q9, [x16, #224]",
            "stp q10, q11, [x16, #256]",
            "stp q12, q13, [x16, #288]",
            "stp q14, q15, [x16, #320]",
            "stp q16, q17, [x16, #352]",
            "stp q18, q19, [x16, #384]",
            "stp q20, q21, [x16, #416]",
            "stp q22, q23, [x16, #448]",
            "stp q24, q25, [x16, #480]",
            "stp q26, q27, [x16, #512]",
            "stp q28, q29, [x16, #544]",
            "stp q30, q31, [x16, #576]",
            // The word of the return address, and the frame pointer.
            "add x16, sp, {slot}",
            "str x16, [sp, #56]",
            "str x29, [sp, #64]",
            "mov x0, sp",
            "bl {begins}",
            "mov x17, x0",
            "add x16, sp, {kept}",
            "ldp x6, x7, [x16]",
            "ldr x8, [x16, #16]",
            "ldp x0, x1, [sp]",
            "ldp x2, x3, [sp, #16]",
            "ldp x4, x5, [sp, #32]",
            "blr x17",
            "mov x1, x0",
            "mov x0, sp",
            "bl {ends}",
            "add x16, sp, {kept}",
            "ldp x6, x7, [x16, #0]",
            "ldp x8, x9, [x16, #16]",
            "ldp x10, x11, [x16, #32]",
            "ldp x12, x13, [x16, #48]",
            "ldp x14, x15, [x16, #64]",
            "ldp q0, q1, [x16, #96]",
            "ldp q2, q3, [x16, #128]",
            "ldp q4, q5, [x16, #160]",
            "ldp q6, q7, [x16, #192]",
            "ldp q8, q9, [x16, #224]",
            "ldp q10, q11, [x16, #256]",
            "ldp q12, q13, [x16, #288]",
            "ldp q14, q15, [x16, #320]",
            "ldp q16, q17, [x16, #352]",
            "ldp q18, q19, [x16, #384]",
            "ldp q20, q21, [x16, #416]",
            "ldp q22, q23, [x16, #448]",
            "ldp q24, q25, [x16, #480]",
            "ldp q26, q27, [x16, #512]",
            "ldp q28, q29, [x16, #544]",
            "ldp q30, q31, [x16, #576]",
            "ldr x1, [sp, #8]",
            "ldp x2, x3, [sp, #16]",
            "ldp x4, x5, [sp, #32]",
            "add sp, sp, {bytes}",
            ".cfi_adjust_cfa_offset -{bytes}",
            "ldp x29, x30, [sp], #16",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            begins = sym $begins, ends = sym $ends, bytes = const $frame_bytes,
            kept = const $frame_bytes - crate::arch::KEPT_BYTES, slot = const $frame_bytes + 8, $($operand)*)
    };
}

/// The entry of a function that is called by its number. It sets that and jumps to `enter`, which
/// has to be a [`numbered_frame`].
macro_rules! numbered_stub {
    ($number:expr, $enter:path) => {
        core::arch::naked_asm!("hint 34", "mov w16, {number}", "b {enter}", number = const $number, enter = sym $enter)
    };
}

/// The common entry of such functions. It saves all argument registers, calls `target` with their
/// address and the function's number, and jumps to what that returns.
macro_rules! numbered_frame {
    ($target:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-96]!",
            ".cfi_def_cfa_offset 96",
            ".cfi_offset x29, -96",
            ".cfi_offset x30, -88",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "add x0, sp, #16", "mov w1, w16", "bl {target}", "mov x16, x0",
            "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp x29, x30, [sp], #96",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "br x16",
            ".cfi_endproc",
            target = sym $target)
    };
}

/// The entry of a function that maps memory. It sets the function's number and jumps to `enter`.
#[cfg(not(feature = "standalone"))]
macro_rules! mapping_stub {
    ($which:literal, $enter:path) => {
        core::arch::naked_asm!("hint 34", "mov w16, {which}", "b {enter}", which = const $which, enter = sym $enter)
    };
}

/// The common entry of these functions. It saves all argument registers, calls `call` with their
/// address, the function's number and the two registers of the caller, and returns its result.
#[cfg(not(feature = "standalone"))]
macro_rules! mapping_frame {
    ($call:path) => {
        crate::arch::framed!(
            ["sub sp, sp, #48", ".cfi_adjust_cfa_offset 48",
             "stp x0, x1, [sp]", "stp x2, x3, [sp, #16]", "stp x4, x5, [sp, #32]",
             "mov x0, sp", "mov w1, w16", "add x2, sp, #56", "mov x3, x29", "bl {call}",
             "add sp, sp, #48", ".cfi_adjust_cfa_offset -48"],
            call = sym $call)
    };
}

/// The entry of `syscall`. For the system calls that may be handled it calls `watched` with the
/// saved arguments, and returns if that has made the call. All others it passes on unchanged, to
/// where `next` points.
macro_rules! syscall_stub {
    ($watched:path, $next:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint 34",
            "cmp w0, {clone}", "b.eq 3f",
            "cmp w0, {prctl}", "b.eq 3f",
            "cmp w0, {seccomp}", "b.eq 3f",
            "cmp w0, {clone3}", "b.eq 3f",
            "cmp w0, {execve}", "b.eq 3f",
            "cmp w0, {execveat}", "b.eq 3f",
            "2:",
            "adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]",
            "br x16",
            "3:",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "stp xzr, x0, [sp, #16]", "stp x1, x2, [sp, #32]", "stp x3, x4, [sp, #48]", "stp x5, x6, [sp, #64]",
            "add x0, sp, #16",
            "bl {watched}",
            "mov w17, w0",
            "ldp x16, x0, [sp, #16]", "ldp x1, x2, [sp, #32]", "ldp x3, x4, [sp, #48]", "ldp x5, x6, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz w17, 2b",
            "mov x0, x16",
            "ret",
            ".cfi_endproc",
            clone = const libc::SYS_clone, prctl = const libc::SYS_prctl, seccomp = const libc::SYS_seccomp,
            clone3 = const libc::SYS_clone3, execve = const libc::SYS_execve, execveat = const libc::SYS_execveat,
            next = sym $next, watched = sym $watched)
    };
}

/// The first target of `syscall`: calls `resolve` and jumps to where `next` points then. All seven
/// arguments are preserved.
macro_rules! first_syscall_stub {
    ($resolve:path, $next:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint 36",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "str x6, [sp, #64]",
            "bl {resolve}",
            "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldr x6, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]", "br x16",
            ".cfi_endproc",
            resolve = sym $resolve, next = sym $next)
    };
}

/// The first instructions of a program without a loader. It calls `start` with the stack pointer,
/// and jumps to the address that this returns. The program gets its registers as the kernel set
/// them, but for x16, which has no meaning there.
#[cfg(feature = "standalone")]
macro_rules! program_entry_stub {
    ($start:path) => {
        core::arch::naked_asm!(
            "mov x29, xzr", "mov x30, xzr", "mov x0, sp", "bl {start}", "mov x16, x0",
            "mov x0, xzr", "mov x1, xzr", "mov x2, xzr", "mov x3, xzr", "mov x4, xzr", "mov x5, xzr", "mov x6, xzr",
            "mov x7, xzr", "mov x8, xzr", "mov x17, xzr", "mov x30, xzr", "br x16",
            start = sym $start)
    };
}

/// An entry of the library in a program that runs already. It calls `body` with its own argument,
/// makes the system call `done`, and returns by the signal frame at x20 to what the thread did
/// before, with all its registers.
#[cfg(feature = "standalone")]
macro_rules! visit_stub {
    ($body:path, $done:expr) => {
        core::arch::naked_asm!(
            "bl {body}", "mov w8, {done}", "svc 0", "mov sp, x20", "mov w8, {back}", "svc 0", "brk 1",
            body = sym $body, done = const $done, back = const libc::SYS_rt_sigreturn)
    };
}

/// An entry that only jumps to its body.
macro_rules! jump_stub {
    ($body:path) => {
        core::arch::naked_asm!("hint 34", "b {body}", body = sym $body)
    };
}

/// An entry for tests of the unwinder: calls `body` with the caller's stack pointer and frame
/// pointer.
#[cfg(test)]
macro_rules! capture_stub {
    ($body:path) => {
        crate::arch::framed!(["add x0, sp, #8", "mov x1, x29", "bl {body}"], body = sym $body)
    };
}

#[cfg(test)]
pub(crate) use capture_stub;
pub(crate) use {
    entry_stub, first_syscall_stub, framed, jump_stub, numbered_frame, numbered_stub, operator_new_frame,
    operator_stub, patched_frame, patched_stub, report_stub, syscall_stub, untraced_operator_stub, untraced_stub,
};
#[cfg(not(feature = "standalone"))]
pub(crate) use {mapping_frame, mapping_stub};
#[cfg(feature = "standalone")]
pub(crate) use {program_entry_stub, visit_stub};

/// The entry of a function without arguments: it keeps the registers that belong to the caller on
/// the stack while `body` runs. Whoever reads the stack meanwhile finds zeros in what `body` does not
/// write of its frames, up to 2 KiB, and not what functions before it have left there.
#[cfg(not(any(test, feature = "standalone")))]
macro_rules! saved_frame {
    ($body:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint 34",
            "stp x29, x30, [sp, #-96]!",
            ".cfi_def_cfa_offset 96",
            ".cfi_offset x29, -96",
            ".cfi_offset x30, -88",
            "stp x19, x20, [sp, #16]",
            "stp x21, x22, [sp, #32]",
            "stp x23, x24, [sp, #48]",
            "stp x25, x26, [sp, #64]",
            "stp x27, x28, [sp, #80]",
            "mov x10, sp",
            "sub x9, sp, #2048",
            "2:",
            "stp xzr, xzr, [x9], #16",
            "cmp x9, x10",
            "b.ne 2b",
            "bl {body}",
            "ldp x19, x20, [sp, #16]",
            "ldp x21, x22, [sp, #32]",
            "ldp x23, x24, [sp, #48]",
            "ldp x25, x26, [sp, #64]",
            "ldp x27, x28, [sp, #80]",
            "ldp x29, x30, [sp], #96",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            body = sym $body
        )
    };
}

#[cfg(not(any(test, feature = "standalone")))]
pub(crate) use saved_frame;
