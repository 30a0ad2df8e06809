//! aarch64.

pub(crate) mod code;
pub(crate) mod frame;
pub(crate) mod moved;
mod registers;

pub(crate) use registers::{Extended, Registers};

use nix::libc::{self, c_int};
use object::elf;

/// Number of bits of an address that a program gets unless it asks for more.
pub const ADDRESS_BITS: u32 = 48;
/// The machine of its programs and libraries.
pub(crate) const MACHINE: elf::Machine = elf::EM_AARCH64;
/// What a program of another machine is not.
pub(crate) const MACHINE_NAME: &str = "aarch64";
/// Kinds of relocations: an address in the library, and that of a symbol.
pub(crate) const RELATIVE: elf::RelocationType = elf::R_AARCH64_RELATIVE;
pub(crate) const OF_SYMBOL: [elf::RelocationType; 3] =
    [elf::R_AARCH64_GLOB_DAT, elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_ABS64];
/// Bits of a word on a stack that are a return address: above them is its signature, if it has one.
pub(crate) const RETURN_ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
/// Whether the call in which a thread waits has to be noted before the thread is stopped.
pub(crate) const NOTES_CALLS: bool = true;
/// Whether thread-local data is above the thread pointer.
pub(crate) const HAS_DATA_ABOVE: bool = true;

/// Makes what the recorded processes have stored visible: a barrier on each processor that runs one.
///
/// A writer stores its announcement before it reads the counter, but nothing orders the two here, and
/// the store may be seen at any later time. After the barrier, what was stored before it is visible, and
/// what is stored after it gets a later timestamp than the clock had before it. The library has
/// registered for that (`preload/src/arch/aarch64/instructions.rs`). Returns whether the kernel has done
/// it. Otherwise the delay is all there is; the events of one thread stay in order anyway.
pub(crate) fn store_barrier() -> bool {
    /// `MEMBARRIER_CMD_GLOBAL_EXPEDITED` (`<linux/membarrier.h>`).
    const GLOBAL_EXPEDITED: c_int = 1 << 1;
    // SAFETY: the call has no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}
