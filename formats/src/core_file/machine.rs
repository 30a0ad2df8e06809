//! The machines whose cores are read, and what each calls its registers: `struct elf_prstatus` of the
//! kernel has them in this order.

/// A machine whose cores are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    #[default]
    X86_64,
    /// aarch64.
    Aarch64,
}

use Machine::{Aarch64, X86_64};

const OF_X86_64: [&str; 27] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
];
/// The last one has a note of its own.
const OF_AARCH64: [&str; 35] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17",
    "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp", "pc", "pstate",
    "tpidr",
];

impl Machine {
    /// Returns the machine with a number of elf(5).
    pub(super) fn of(number: u64) -> Option<Machine> {
        match number {
            62 => Some(X86_64),
            183 => Some(Aarch64),
            _ => None,
        }
    }

    /// Returns the names of its registers, in the order of [`super::Thread::registers`].
    pub const fn registers(self) -> &'static [&'static str] {
        match self {
            X86_64 => &OF_X86_64,
            Aarch64 => &OF_AARCH64,
        }
    }

    /// Returns how many of them a `NT_PRSTATUS` has.
    pub(super) const fn in_status(self) -> usize {
        match self {
            X86_64 => OF_X86_64.len(),
            Aarch64 => OF_AARCH64.len() - 1,
        }
    }

    /// Returns the name of the register with the address of the next instruction.
    pub const fn program_counter(self) -> &'static str {
        match self {
            X86_64 => "rip",
            Aarch64 => "pc",
        }
    }

    /// Returns the name of the register with the end of the stack.
    pub const fn stack_pointer(self) -> &'static str {
        match self {
            X86_64 => "rsp",
            Aarch64 => "sp",
        }
    }

    /// Returns the name of the register that leads to what threads have of their own.
    pub const fn thread_pointer(self) -> &'static str {
        match self {
            X86_64 => "fs_base",
            Aarch64 => "tpidr",
        }
    }

    /// Returns the names of the registers for any value, those of arguments and results first.
    pub fn general(self) -> &'static [&'static str] {
        const OF_X86_64: [&str; 15] =
            ["rdi", "rsi", "rax", "rbx", "rcx", "rdx", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
        match self {
            X86_64 => &OF_X86_64,
            Aarch64 => &OF_AARCH64[..31],
        }
    }

    /// Returns the names of those of them in which compilers keep little but what a call left there.
    pub fn scratch(self) -> &'static [&'static str] {
        match self {
            X86_64 => &["r8", "r9", "r10", "r11"],
            Aarch64 => &OF_AARCH64[8..19],
        }
    }

    /// Returns whether what threads have of their own is above their thread pointers.
    pub const fn has_data_above(self) -> bool {
        matches!(self, Aarch64)
    }
}
