//! The registers that the unwinder follows, by their DWARF numbers (System V ABI for x86-64, figure
//! 3.36), and the kernel's signal frame.

/// The DWARF number of the frame pointer, rbp.
pub const BP: u8 = 6;
/// The DWARF number of the stack pointer, rsp.
pub const SP: u8 = 7;
/// The DWARF number of the return address.
pub const RA: u8 = 16;

/// The registers that a walk follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The address whose unwind rule applies: inside the call instruction, or the interrupted
    /// instruction.
    pub lookup: u64,
    /// The stack pointer after the call has returned.
    pub sp: u64,
    /// The frame pointer (rbp).
    pub bp: u64,
}

/// Code that CPython copies for each Python function with `-X perf`, without unwind data and
/// without a frame pointer: `sub rsp, 8; call rcx; add rsp, 8; ret`. Source:
/// `Python/asm_trampoline.S` of 3.12 and 3.13.
pub mod trampoline {
    /// The code. It may begin with `endbr64`.
    pub const CODE: [u8; 11] = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    /// Offset of the instruction to which the call returns.
    pub const RETURN: u64 = 6;
    /// Bytes from the stack pointer there to that of the caller before its call.
    pub const CFA: i64 = 16;
}

/// Offsets of the registers in the kernel's signal frame, in bytes from the stack pointer at
/// `__restore_rt` (the `ucontext`).
pub mod signal_frame {
    /// Where the thread's alternate stack begins, the first field of `uc_stack`.
    pub const STACK: u64 = 16;
    /// Size of the alternate stack in bytes; 0 without one.
    pub const STACK_BYTES: u64 = 32;
    /// The frame pointer: `uc_mcontext` is at 40, and this is its 11th register.
    pub const BP: u64 = 40 + 10 * 8;
    /// The stack pointer, the 16th register.
    pub const SP: u64 = 40 + 15 * 8;
    /// The instruction pointer, the 17th register.
    pub const IP: u64 = 40 + 16 * 8;
}
