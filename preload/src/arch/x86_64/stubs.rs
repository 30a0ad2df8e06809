//! The bodies of exported functions: naked functions that add the caller's stack pointer and frame
//! pointer to the arguments and jump on. At their first instruction rsp is the address of the
//! return address, and rbp is still the caller's. So a stub is two moves and a jump.

/// The entry of a function whose body has this number of arguments before the two added ones. It
/// jumps to where `target` points.
macro_rules! entry_stub {
    (1, $target:path) => {
        core::arch::naked_asm!("endbr64", "mov rsi, rsp", "mov rdx, rbp", "jmp qword ptr [rip + {target}]", target = sym $target)
    };
    (2, $target:path) => {
        core::arch::naked_asm!("endbr64", "mov rdx, rsp", "mov rcx, rbp", "jmp qword ptr [rip + {target}]", target = sym $target)
    };
    (3, $target:path) => {
        core::arch::naked_asm!("endbr64", "mov rcx, rsp", "mov r8, rbp", "jmp qword ptr [rip + {target}]", target = sym $target)
    };
}

/// The entry of a function without arguments: it keeps the registers that belong to the caller on
/// the stack while `body` runs. Whoever reads the stack meanwhile finds zeros in what `body` does not
/// write of its frames, up to 2 KiB, and not what functions before it have left there.
#[cfg(not(any(test, feature = "standalone")))]
macro_rules! saved_frame {
    ($body:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "push rbx", ".cfi_adjust_cfa_offset 8",
            "push rbp", ".cfi_adjust_cfa_offset 8", ".cfi_rel_offset rbp, 0",
            "push r12", ".cfi_adjust_cfa_offset 8",
            "push r13", ".cfi_adjust_cfa_offset 8",
            "push r14", ".cfi_adjust_cfa_offset 8",
            "push r15", ".cfi_adjust_cfa_offset 8",
            "xor eax, eax",
            "push rax", ".cfi_adjust_cfa_offset 8",
            "mov ecx, 256",
            "lea rdi, [rsp - 2048]",
            "rep stosq",
            "call {body}",
            "pop rax", ".cfi_adjust_cfa_offset -8",
            "pop r15", ".cfi_adjust_cfa_offset -8",
            "pop r14", ".cfi_adjust_cfa_offset -8",
            "pop r13", ".cfi_adjust_cfa_offset -8",
            "pop r12", ".cfi_adjust_cfa_offset -8",
            "pop rbp", ".cfi_adjust_cfa_offset -8", ".cfi_restore rbp",
            "pop rbx", ".cfi_adjust_cfa_offset -8",
            "ret",
            ".cfi_endproc",
            body = sym $body
        )
    };
}

/// The entry of a function to which the program reports, whose body has this number of arguments
/// before the two added ones.
macro_rules! report_stub {
    (1, $body:path) => {
        core::arch::naked_asm!("endbr64", "mov rsi, rsp", "mov rdx, rbp", "jmp {body}", body = sym $body)
    };
    (2, $body:path) => {
        core::arch::naked_asm!("endbr64", "mov rdx, rsp", "mov rcx, rbp", "jmp {body}", body = sym $body)
    };
    (3, $body:path) => {
        core::arch::naked_asm!("endbr64", "mov rcx, rsp", "mov r8, rbp", "jmp {body}", body = sym $body)
    };
}

/// The instructions of the untraced mode. They jump to where `next` points, unless that is null,
/// the thread's activation is not `untraced`, or the first argument is in the `arena`: then to
/// `full`. The next function ignores further arguments that a stub has set.
macro_rules! untraced_stub {
    ($operands:tt) => {
        crate::arch::untraced_stub!(["mov rax, qword ptr [rip + {next}]"], $operands)
    };
    ([$($load_next:literal),*], ($($operand:tt)*)) => {
        core::arch::naked_asm!(
            "endbr64",
            "mov rax, qword ptr [rip + heaptape_thread_state@GOTTPOFF]",
            "mov rax, qword ptr fs:[rax]",
            "test rax, rax",
            "jz 2f",
            "cmp byte ptr [rax], {untraced}",
            "jne 2f",
            "lea r10, [rip + {arena}]",
            "mov r11, rdi",
            "sub r11, r10",
            "cmp r11, {arena_bytes}",
            "jb 2f",
            $($load_next,)*
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "jmp {full}",
            $($operand)*
        )
    };
}

/// The same for the C++ operators: `next` is a table, and the operator's number the index.
macro_rules! untraced_operator_stub {
    ($operands:tt) => {
        crate::arch::untraced_stub!(["lea rax, [rip + {next}]", "mov rax, qword ptr [rax + 8 * rcx]"], $operands)
    };
}

/// The entry of a C++ operator, which has up to three arguments. It adds its number and the two
/// registers, and jumps to where `target` points.
macro_rules! operator_stub {
    ($which:literal, $target:path) => {
        core::arch::naked_asm!("endbr64", "mov ecx, {which}", "mov r8, rsp", "mov r9, rbp", "jmp qword ptr [rip + {target}]",
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
            "endbr64",
            "sub rsp, 40",
            ".cfi_adjust_cfa_offset 40",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov rsi, rcx",
            "mov rdx, r8",
            "mov rcx, r9",
            "call qword ptr [rip + {direct}]",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 24]",
            "lea rdx, [rsp + 40]",
            "mov rcx, [rsp + 8]",
            "call {begins}",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "call rax",
            "mov rdi, rax",
            "mov rsi, [rsp]",
            "mov rdx, [rsp + 24]",
            "lea rcx, [rsp + 40]",
            "mov r8, rbp",
            "call {ends}",
            "2:",
            "add rsp, 40",
            ".cfi_adjust_cfa_offset -40",
            "ret",
            ".cfi_endproc",
            direct = sym $direct, begins = sym $begins, ends = sym $ends)
    };
}

/// The entry of a function that is hooked by a jump in its first bytes. r11 is the address of its
/// [`heaptape_wire::patches::Function`], which begins with the address of its trampoline. In the
/// untraced mode it jumps there. Otherwise it saves the arguments at the start of `frame_bytes` on
/// the stack, with r11 and the caller after them. It calls `begins` with their address, the
/// function that this returns, and `ends`. That function may throw: the frame is described to the
/// unwinder and has no landing pad.
///
/// All registers that a function may change have their values again at the end, except for the
/// result: a compiler that knows the function keeps values in those that it does not change (GCC's
/// `-fipa-ra`). The jump to this entry stores the program's r11 below the stack pointer, and the
/// trampoline loads it from there. A compiler that knows that the function needs no aligned stack
/// may call it with a misaligned one, so `begins` and `ends` are called on an aligned one.
#[cfg(not(feature = "standalone"))]
macro_rules! patched_stub {
    ($begins:path, $ends:path, $frame_bytes:expr, $untraced:expr) => {
        crate::arch::patched_frame!($begins, $ends, $frame_bytes, [
            "mov rax, qword ptr [rip + heaptape_thread_state@GOTTPOFF]",
            "mov rax, qword ptr fs:[rax]",
            "test rax, rax",
            "jz 2f",
            "cmp byte ptr [rax], {untraced}",
            "jne 2f",
            "mov rax, [rsp - 16]",
            "jmp qword ptr [r11]",
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

/// Bytes of the frame of [`patched_stub`] after the call: the vector registers, two free words, and
/// r10, rax and r11. With the return address the frame is a multiple of 16.
pub(crate) const KEPT_BYTES: usize = 16 * 16 + 16 + 24;

/// The instructions of [`patched_stub`] after those that check the mode.
macro_rules! patched_frame {
    ($begins:path, $ends:path, $frame_bytes:expr, [$($check:literal,)*], ($($operand:tt)*)) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "mov [rsp - 16], rax",
            $($check,)*
            "sub rsp, {bytes}",
            ".cfi_adjust_cfa_offset {bytes}",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], r11",
            "lea r11, [rsp + {bytes} - 168]",
            "movups [r11 - 128], xmm0",
            "movups [r11 - 112], xmm1",
            "movups [r11 - 96], xmm2",
            "movups [r11 - 80], xmm3",
            "movups [r11 - 64], xmm4",
            "movups [r11 - 48], xmm5",
            "movups [r11 - 32], xmm6",
            "movups [r11 - 16], xmm7",
            "movups [r11 + 0], xmm8",
            "movups [r11 + 16], xmm9",
            "movups [r11 + 32], xmm10",
            "movups [r11 + 48], xmm11",
            "movups [r11 + 64], xmm12",
            "movups [r11 + 80], xmm13",
            "movups [r11 + 96], xmm14",
            "movups [r11 + 112], xmm15",
            "mov [rsp + {bytes} - 24], r10",
            "lea rax, [rsp + {bytes}]",
            "mov [rsp + 56], rax",
            "mov [rsp + 64], rbp",
            "mov rdi, rsp",
            "test spl, 15",
            "jnz 3f",
            "call {begins}",
            "4:",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov r11, rax",
            "mov rax, [rsp + {bytes} - 16]",
            "call r11",
            "mov rdi, rsp",
            "mov rsi, rax",
            "test spl, 15",
            "jnz 5f",
            "call {ends}",
            "6:",
            "lea rdi, [rsp + {bytes} - 168]",
            "movups xmm0, [rdi - 128]",
            "movups xmm1, [rdi - 112]",
            "movups xmm2, [rdi - 96]",
            "movups xmm3, [rdi - 80]",
            "movups xmm4, [rdi - 64]",
            "movups xmm5, [rdi - 48]",
            "movups xmm6, [rdi - 32]",
            "movups xmm7, [rdi - 16]",
            "movups xmm8, [rdi + 0]",
            "movups xmm9, [rdi + 16]",
            "movups xmm10, [rdi + 32]",
            "movups xmm11, [rdi + 48]",
            "movups xmm12, [rdi + 64]",
            "movups xmm13, [rdi + 80]",
            "movups xmm14, [rdi + 96]",
            "movups xmm15, [rdi + 112]",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov r10, [rsp + {bytes} - 24]",
            "mov r11, [rsp + {bytes} - 8]",
            "add rsp, {bytes}",
            ".cfi_adjust_cfa_offset -{bytes}",
            "ret",
            // The same calls on a misaligned stack.
            ".cfi_adjust_cfa_offset {bytes}",
            "3:",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call {begins}",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "jmp 4b",
            "5:",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call {ends}",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "jmp 6b",
            ".cfi_endproc",
            begins = sym $begins, ends = sym $ends, bytes = const $frame_bytes, $($operand)*)
    };
}

/// The entry of a function that is called by its number. It sets that and jumps to `enter`, which
/// has to be a [`numbered_frame`].
macro_rules! numbered_stub {
    ($number:expr, $enter:path) => {
        core::arch::naked_asm!("endbr64", "mov r11d, {number}", "jmp {enter}", number = const $number, enter = sym $enter)
    };
}

/// The common entry of such functions. It saves all argument registers, calls `target` with their
/// address and the function's number, and jumps to what that returns.
macro_rules! numbered_frame {
    ($target:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "push rax", ".cfi_adjust_cfa_offset 8",
            "push r9", ".cfi_adjust_cfa_offset 8",
            "push r8", ".cfi_adjust_cfa_offset 8",
            "push rcx", ".cfi_adjust_cfa_offset 8",
            "push rdx", ".cfi_adjust_cfa_offset 8",
            "push rsi", ".cfi_adjust_cfa_offset 8",
            "push rdi", ".cfi_adjust_cfa_offset 8",
            "mov rdi, rsp", "mov esi, r11d", "call {target}", "mov r11, rax",
            "pop rdi", ".cfi_adjust_cfa_offset -8",
            "pop rsi", ".cfi_adjust_cfa_offset -8",
            "pop rdx", ".cfi_adjust_cfa_offset -8",
            "pop rcx", ".cfi_adjust_cfa_offset -8",
            "pop r8", ".cfi_adjust_cfa_offset -8",
            "pop r9", ".cfi_adjust_cfa_offset -8",
            "pop rax", ".cfi_adjust_cfa_offset -8",
            "jmp r11",
            ".cfi_endproc",
            target = sym $target)
    };
}

/// The entry of a function that maps memory. It sets the function's number and jumps to `enter`.
#[cfg(not(feature = "standalone"))]
macro_rules! mapping_stub {
    ($which:literal, $enter:path) => {
        core::arch::naked_asm!("endbr64", "mov eax, {which}", "jmp {enter}", which = const $which, enter = sym $enter)
    };
}

/// The common entry of these functions. It saves all argument registers, calls `call` with their
/// address, the function's number and the two registers of the caller, and returns its result.
#[cfg(not(feature = "standalone"))]
macro_rules! mapping_frame {
    ($call:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "lea r11, [rsp]",
            "push r9", ".cfi_adjust_cfa_offset 8",
            "push r8", ".cfi_adjust_cfa_offset 8",
            "push rcx", ".cfi_adjust_cfa_offset 8",
            "push rdx", ".cfi_adjust_cfa_offset 8",
            "push rsi", ".cfi_adjust_cfa_offset 8",
            "push rdi", ".cfi_adjust_cfa_offset 8",
            "mov rdi, rsp",
            "sub rsp, 8", ".cfi_adjust_cfa_offset 8",
            "mov esi, eax",
            "mov rdx, r11",
            "mov rcx, rbp",
            "call {call}",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "ret",
            ".cfi_endproc",
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
            "endbr64",
            "cmp edi, {clone}", "je 3f",
            "cmp edi, {fork}", "je 3f",
            "cmp edi, {prctl}", "je 3f",
            "cmp edi, {seccomp}", "je 3f",
            "cmp edi, {clone3}", "je 3f",
            "cmp edi, {execve}", "je 3f",
            "cmp edi, {execveat}", "je 3f",
            "2:",
            "mov r11, qword ptr [rip + {next}]",
            "jmp r11",
            "3:",
            "push r9", ".cfi_adjust_cfa_offset 8",
            "push r8", ".cfi_adjust_cfa_offset 8",
            "push rcx", ".cfi_adjust_cfa_offset 8",
            "push rdx", ".cfi_adjust_cfa_offset 8",
            "push rsi", ".cfi_adjust_cfa_offset 8",
            "push rdi", ".cfi_adjust_cfa_offset 8",
            "push rax", ".cfi_adjust_cfa_offset 8",
            "mov rdi, rsp",
            "call {watched}",
            "test eax, eax",
            // These change no flags.
            "pop rax", ".cfi_adjust_cfa_offset -8",
            "pop rdi", ".cfi_adjust_cfa_offset -8",
            "pop rsi", ".cfi_adjust_cfa_offset -8",
            "pop rdx", ".cfi_adjust_cfa_offset -8",
            "pop rcx", ".cfi_adjust_cfa_offset -8",
            "pop r8", ".cfi_adjust_cfa_offset -8",
            "pop r9", ".cfi_adjust_cfa_offset -8",
            "jz 2b",
            "ret",
            ".cfi_endproc",
            clone = const libc::SYS_clone, fork = const libc::SYS_fork, prctl = const libc::SYS_prctl,
            seccomp = const libc::SYS_seccomp, clone3 = const libc::SYS_clone3, execve = const libc::SYS_execve,
            execveat = const libc::SYS_execveat, next = sym $next, watched = sym $watched)
    };
}

/// The first target of `syscall`: calls `resolve` and jumps to where `next` points then. All seven
/// arguments are preserved.
macro_rules! first_syscall_stub {
    ($resolve:path, $next:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "push r9", ".cfi_adjust_cfa_offset 8",
            "push r8", ".cfi_adjust_cfa_offset 8",
            "push rcx", ".cfi_adjust_cfa_offset 8",
            "push rdx", ".cfi_adjust_cfa_offset 8",
            "push rsi", ".cfi_adjust_cfa_offset 8",
            "push rdi", ".cfi_adjust_cfa_offset 8",
            "sub rsp, 8", ".cfi_adjust_cfa_offset 8",
            "call {resolve}",
            "add rsp, 8", ".cfi_adjust_cfa_offset -8",
            "pop rdi", ".cfi_adjust_cfa_offset -8",
            "pop rsi", ".cfi_adjust_cfa_offset -8",
            "pop rdx", ".cfi_adjust_cfa_offset -8",
            "pop rcx", ".cfi_adjust_cfa_offset -8",
            "pop r8", ".cfi_adjust_cfa_offset -8",
            "pop r9", ".cfi_adjust_cfa_offset -8",
            "mov r11, qword ptr [rip + {next}]", "jmp r11",
            ".cfi_endproc",
            resolve = sym $resolve, next = sym $next)
    };
}

/// The first instructions of a program without a loader. It calls `start` with the stack pointer,
/// and jumps to the address that this returns. The program gets its registers as the kernel set
/// them, but for r11, which has no meaning there.
#[cfg(feature = "standalone")]
macro_rules! program_entry_stub {
    ($start:path) => {
        core::arch::naked_asm!(
            "mov rdi, rsp", "call {start}", "mov r11, rax", "xor eax, eax", "xor ecx, ecx", "xor edx, edx",
            "xor esi, esi", "xor edi, edi", "xor r8d, r8d", "xor r9d, r9d", "xor r10d, r10d", "jmp r11",
            start = sym $start)
    };
}

/// An entry of the library in a program that runs already. It calls `body` with its own argument,
/// makes the system call `done`, and returns by the signal frame at r12 to what the thread did
/// before, with all its registers.
#[cfg(feature = "standalone")]
macro_rules! visit_stub {
    ($body:path, $done:expr) => {
        core::arch::naked_asm!(
            "call {body}", "mov eax, {done}", "syscall", "mov rsp, r12", "mov eax, {back}", "syscall", "ud2",
            body = sym $body, done = const $done, back = const libc::SYS_rt_sigreturn)
    };
}

/// An entry that only jumps to its body.
macro_rules! jump_stub {
    ($body:path) => {
        core::arch::naked_asm!("endbr64", "jmp {body}", body = sym $body)
    };
}

/// An entry for tests of the unwinder: calls `body` with the caller's stack pointer and frame
/// pointer.
#[cfg(test)]
macro_rules! capture_stub {
    ($body:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc", "sub rsp, 8", ".cfi_adjust_cfa_offset 8", "lea rdi, [rsp + 8]", "mov rsi, rbp",
            "call {body}", "add rsp, 8", ".cfi_adjust_cfa_offset -8", "ret", ".cfi_endproc", body = sym $body)
    };
}

#[cfg(test)]
pub(crate) use capture_stub;

#[cfg(not(any(test, feature = "standalone")))]
pub(crate) use saved_frame;
pub(crate) use {
    entry_stub, first_syscall_stub, jump_stub, numbered_frame, numbered_stub, operator_new_frame, operator_stub,
    patched_frame, patched_stub, report_stub, syscall_stub, untraced_operator_stub, untraced_stub,
};
#[cfg(not(feature = "standalone"))]
pub(crate) use {mapping_frame, mapping_stub};
#[cfg(feature = "standalone")]
pub(crate) use {program_entry_stub, visit_stub};
