//! x86-64.

pub(crate) mod code;
pub(crate) mod frame;
pub(crate) mod moved;
mod registers;

pub(crate) use registers::{Extended, Registers};

use object::elf;

/// Number of bits of an address that a program gets unless it asks for more.
pub const ADDRESS_BITS: u32 = 47;
/// The machine of its programs and libraries.
pub(crate) const MACHINE: elf::Machine = elf::EM_X86_64;
/// What a program of another machine is not.
pub(crate) const MACHINE_NAME: &str = "x86-64";
/// Kinds of relocations: an address in the library, and that of a symbol.
pub(crate) const RELATIVE: elf::RelocationType = elf::R_X86_64_RELATIVE;
pub(crate) const OF_SYMBOL: [elf::RelocationType; 3] =
    [elf::R_X86_64_GLOB_DAT, elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_64];
/// Bits of a word on a stack that are a return address.
pub(crate) const RETURN_ADDRESS: u64 = u64::MAX;
/// Whether the call in which a thread waits has to be noted before the thread is stopped.
pub(crate) const NOTES_CALLS: bool = false;
/// Whether thread-local data is above the thread pointer.
pub(crate) const HAS_DATA_ABOVE: bool = false;

/// Stores become visible in their order, and within the time that the caller waits. Returns that.
pub(crate) const fn store_barrier() -> bool {
    true
}
