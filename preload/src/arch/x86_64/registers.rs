//! The registers that the unwinder follows, by their DWARF numbers (System V ABI for x86-64, figure
//! 3.36), and the kernel's signal frame.

/// The DWARF number of the frame pointer, rbp.
pub(crate) const BP: u8 = 6;
/// The DWARF number of the stack pointer, rsp.
pub(crate) const SP: u8 = 7;
/// The DWARF number of the return address.
pub(crate) const RA: u8 = 16;

/// The CFA at the first instruction of a function, in bytes from the stack pointer.
pub(crate) const START_CFA: i32 = 8;
/// Where the return address is there, in bytes from the CFA.
pub(crate) const START_RA: Option<i32> = Some(-8);
/// Whether a caller's frame pointer tells its stack pointer. Here that is always above the return address.
pub(crate) const HAS_RECORDS: bool = false;
/// Number of bits of the addresses of a program.
pub(crate) const ADDRESS_BITS: u32 = 47;
/// Number of low bits that are 0 in each address of an instruction.
pub(crate) const CODE_ALIGNMENT: u32 = 0;
/// The bits of a word of the stack that are the return address.
pub(crate) const RETURN_ADDRESS: u64 = u64::MAX;

/// The registers that a walk follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    /// The address whose unwind rule applies: inside the call instruction, or the interrupted
    /// instruction.
    pub lookup: u64,
    /// The stack pointer after the call has returned.
    pub sp: u64,
    /// The frame pointer (rbp).
    pub bp: u64,
}

impl Registers {
    /// Returns the registers in a function after a return to `address`.
    #[inline(always)]
    pub(crate) const fn returned(address: u64, sp: u64, bp: u64) -> Registers {
        Registers { lookup: address.wrapping_sub(1), sp, bp }
    }
    /// Returns the registers in a function that a signal interrupted at `address`, a word of the
    /// kernel's frame at `slot`.
    #[inline(always)]
    pub(crate) const fn interrupted(address: u64, _slot: u64, sp: u64, bp: u64) -> Registers {
        Registers { lookup: address, sp, bp }
    }
    /// Returns where the return address is of a function that was interrupted before it stored it.
    /// Here the call stores it.
    pub(crate) const fn link(self) -> Option<u64> {
        None
    }
}

/// How a rule's numbers are packed: the offset of the CFA and the location of the saved frame
/// pointer, both in words.
pub(crate) mod packed {
    /// Number of bits of the location of the saved frame pointer.
    pub(crate) const DISTANCE_BITS: u32 = 7;
    const OFFSET: u32 = 4;
    const DISTANCE: u32 = 20;

    /// Packs the numbers, unless one does not fit.
    pub(crate) fn pack(offset: i64, distance: u64, gap: u64) -> Option<u64> {
        let words = i16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0 && gap == 0)?;
        (distance >> DISTANCE_BITS == 0).then_some(u64::from(words as u16) << OFFSET | distance << DISTANCE)
    }
    /// Returns the offset in bytes.
    #[inline(always)]
    pub(crate) const fn offset(word: u64) -> i64 {
        (word >> OFFSET) as u16 as i16 as i64 * 8
    }
    /// Returns the location of the saved frame pointer.
    #[inline(always)]
    pub(crate) const fn distance(word: u64) -> u64 {
        word >> DISTANCE & ((1 << DISTANCE_BITS) - 1)
    }
    /// Returns the number of words between the return address and the last word below the CFA:
    /// none.
    #[inline(always)]
    pub(crate) const fn gap(_word: u64) -> u64 {
        0
    }
    /// Packs what a frame keeps of the step to it.
    #[inline(always)]
    pub(crate) const fn step(distance: u64, _gap: u64) -> u64 {
        distance
    }
    /// Returns the stack pointer after a return by the word at `slot`.
    #[inline(always)]
    pub(crate) const fn sp(slot: u64, _step: u64) -> u64 {
        slot + 8
    }
    /// Returns whether the word below a CFA can be packed as the location of a return address.
    pub(crate) const fn is_gap(cfa: u64, slot: u64) -> bool {
        cfa == slot.wrapping_add(8)
    }
    /// Returns the number of words between.
    pub(crate) const fn gap_of(_cfa: u64, _slot: u64) -> u64 {
        0
    }
}

/// Whether the code to which signal handlers return may have no unwind data.
pub(crate) const IS_SIGNAL_RETURN_BARE: bool = false;

/// Returns whether code is what a signal handler returns to.
pub(crate) const fn is_signal_return(_code: [u8; 8]) -> bool {
    false
}

/// Code that CPython copies for each Python function with `-X perf`, without unwind data and
/// without a frame pointer: `sub rsp, 8; call rcx; add rsp, 8; ret`. Source:
/// `Python/asm_trampoline.S` of 3.12 and 3.13.
pub(crate) mod trampoline {
    /// The code. It may begin with `endbr64`.
    pub(crate) const CODE: [u8; 11] = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    /// Offset of the instruction to which the call returns.
    pub(crate) const RETURN: u64 = 6;
    /// Bytes from the stack pointer there to that of the caller before its call.
    pub(crate) const CFA: i64 = 16;
    /// Where the frame pointer is saved, in words below the return address; 0 if it is not.
    pub(crate) const BP_DISTANCE: u64 = 0;
}

/// Offsets of the registers in the kernel's signal frame, in bytes from the stack pointer at
/// `__restore_rt` (the `ucontext`).
pub(crate) mod signal_frame {
    /// Where the thread's alternate stack begins, the first field of `uc_stack`.
    pub(crate) const STACK: u64 = 16;
    /// Size of the alternate stack in bytes; 0 without one.
    pub(crate) const STACK_BYTES: u64 = 32;
    /// The frame pointer: `uc_mcontext` is at 40, and this is its 11th register.
    pub(crate) const BP: u64 = 40 + 10 * 8;
    /// The stack pointer, the 16th register.
    pub(crate) const SP: u64 = 40 + 15 * 8;
    /// The instruction pointer, the 17th register.
    pub(crate) const IP: u64 = 40 + 16 * 8;
}
