//! x86-64: DWARF register numbers, the signal frame, the compact rule's meaning.

/// DWARF number of rbp.
pub const BP: u8 = 6;
/// DWARF number of rsp.
pub const SP: u8 = 7;
/// DWARF number of the return address.
pub const RA: u8 = 16;

/// Registers that the walk follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Address whose rule applies: inside the call instruction, or the interrupted instruction.
    pub lookup: u64,
    /// Stack pointer after the call returned.
    pub sp: u64,
    /// Frame pointer.
    pub bp: u64,
}

/// Where the kernel's signal frame keeps registers, in bytes from the stack pointer at
/// `__restore_rt` (the `ucontext`).
pub mod signal_frame {
    /// Frame pointer: `uc_mcontext` at 40, 11th register.
    pub const BP: u64 = 40 + 10 * 8;
    /// Stack pointer.
    pub const SP: u64 = 40 + 15 * 8;
    /// Instruction pointer.
    pub const IP: u64 = 40 + 16 * 8;
}
