//! The registers that the unwinder follows, by their DWARF numbers (DWARF for the Arm 64-bit
//! Architecture, section 4.1), and the kernel's signal frame.
//!
//! A call leaves the return address in a register, the link register (x30). A function that calls
//! others stores it anywhere in its frame, mostly at the lowest address, after the frame pointer
//! (x29) of its caller. So a rule has one number more than on x86-64, the words between the return
//! address and the CFA (the gap).

/// The DWARF number of the frame pointer, x29.
pub(crate) const BP: u8 = 29;
/// The DWARF number of the return address, which is that of the link register.
pub(crate) const RA: u8 = 30;
/// The DWARF number of the stack pointer.
pub(crate) const SP: u8 = 31;
/// The CFA at the first instruction of a function, in bytes from the stack pointer.
pub(crate) const START_CFA: i32 = 0;
/// The return address is in the link register there.
pub(crate) const START_RA: Option<i32> = None;
/// Whether functions that keep a frame pointer have it point to its saved value, below which there is
/// nothing but their own frame: a frame record (AAPCS64, section 6.4.6).
pub(crate) const HAS_RECORDS: bool = true;
/// Number of bits of the addresses of a program. Larger ones must be asked for (`mmap` with a hint
/// above 48 bits).
pub(crate) const ADDRESS_BITS: u32 = 48;
/// Number of low bits that are 0 in each address of an instruction.
pub(crate) const CODE_ALIGNMENT: u32 = 2;
/// The bits of a word of the stack that are the return address. A signature is above them in code
/// that signs return addresses (`-mbranch-protection=pac-ret`).
pub(crate) const RETURN_ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

/// The registers that a walk follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    /// The address whose unwind rule applies: inside the call instruction, or the interrupted
    /// instruction.
    pub lookup: u64,
    /// The stack pointer after the call has returned.
    pub sp: u64,
    /// The frame pointer (x29).
    pub bp: u64,
    /// Where the kernel stored the link register of an interrupted function; 0 after a return.
    link: u64,
}

impl Registers {
    /// Returns the registers in a function after a return to `address`.
    #[inline(always)]
    pub(crate) const fn returned(address: u64, sp: u64, bp: u64) -> Registers {
        Registers { lookup: address.wrapping_sub(1), sp, bp, link: 0 }
    }
    /// Returns the registers in a function that a signal interrupted at `address`, a word of the
    /// kernel's frame at `slot`.
    #[inline(always)]
    pub(crate) const fn interrupted(address: u64, slot: u64, sp: u64, bp: u64) -> Registers {
        Registers { lookup: address, sp, bp, link: slot - (signal_frame::IP - signal_frame::LINK) }
    }
    /// Returns where the return address is of a function that was interrupted before it stored it,
    /// or that calls none.
    pub(crate) const fn link(self) -> Option<u64> {
        if self.link == 0 { None } else { Some(self.link) }
    }
}

/// How a rule's numbers are packed: the offset of the CFA, the location of the saved frame pointer
/// and the gap, all in words. A rule with larger ones is interpreted at each step.
pub(crate) mod packed {
    /// Number of bits of the location of the saved frame pointer, which is the word below the
    /// return address in nearly all code.
    pub(crate) const DISTANCE_BITS: u32 = 2;
    const OFFSET_BITS: u32 = 12;
    const GAP_BITS: u32 = 11;
    const OFFSET: u32 = 4;
    const GAP: u32 = OFFSET + OFFSET_BITS;
    const DISTANCE: u32 = 30;

    const fn field(word: u64, first: u32, bits: u32) -> u64 {
        word >> first & ((1 << bits) - 1)
    }

    /// Packs the numbers, unless one does not fit.
    pub(crate) fn pack(offset: i64, distance: u64, gap: u64) -> Option<u64> {
        let words = u64::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)?;
        let fits = words >> OFFSET_BITS == 0 && gap >> GAP_BITS == 0 && distance >> DISTANCE_BITS == 0;
        fits.then_some(words << OFFSET | gap << GAP | distance << DISTANCE)
    }
    /// Returns the offset in bytes.
    #[inline(always)]
    pub(crate) const fn offset(word: u64) -> i64 {
        field(word, OFFSET, OFFSET_BITS) as i64 * 8
    }
    /// Returns the location of the saved frame pointer.
    #[inline(always)]
    pub(crate) const fn distance(word: u64) -> u64 {
        field(word, DISTANCE, DISTANCE_BITS)
    }
    /// Returns the number of words between the return address and the last word below the CFA.
    #[inline(always)]
    pub(crate) const fn gap(word: u64) -> u64 {
        field(word, GAP, GAP_BITS)
    }
    /// Packs what a frame keeps of the step to it, in the low half of a word.
    #[inline(always)]
    pub(crate) const fn step(distance: u64, gap: u64) -> u64 {
        distance | gap << DISTANCE_BITS
    }
    /// Returns the stack pointer after a return by the word at `slot`.
    #[inline(always)]
    pub(crate) const fn sp(slot: u64, step: u64) -> u64 {
        slot + 8 + 8 * field(step, DISTANCE_BITS, 32 - DISTANCE_BITS)
    }
    /// Returns whether the words between a location and the CFA can be packed.
    pub(crate) const fn is_gap(cfa: u64, slot: u64) -> bool {
        cfa > slot && (cfa - slot) & 7 == 0 && gap_of(cfa, slot) >> (32 - DISTANCE_BITS) == 0
    }
    /// Returns the number of words between.
    pub(crate) const fn gap_of(cfa: u64, slot: u64) -> u64 {
        (cfa - slot) / 8 - 1
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn numbers_are_as_they_were_packed() {
            for (offset, distance, gap) in [(0, 0, 0), (16, 1, 0), (32 * 1024 - 8, 3, 2047), (4096, 1, 510)] {
                let word = pack(offset, distance, gap).expect("they fit");
                assert_eq!((super::offset(word), super::distance(word), super::gap(word)), (offset, distance, gap));
                assert_eq!(
                    word >> 32 | word & (0b111 << 27) | word & 15,
                    0,
                    "the bits of the kind, the marks and the tag"
                );
                assert_eq!(sp(0x1000, step(distance, gap)), 0x1008 + 8 * gap);
            }
            for (offset, distance, gap) in [(-8, 0, 0), (12, 0, 0), (32 * 1024, 0, 0), (16, 4, 0), (16, 1, 2048)] {
                assert_eq!(pack(offset, distance, gap), None);
            }
        }
    }
}

/// Code that CPython copies for each Python function with `-X perf`, without unwind data:
/// `stp x29, x30, [sp, -16]!; mov x29, sp; blr x3; ldp x29, x30, [sp], 16; ret`. Source:
/// `Python/asm_trampoline.S` of 3.12 and 3.13.
pub(crate) mod trampoline {
    pub(crate) const CODE: [u8; 20] = [
        0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0x60, 0x00, 0x3f, 0xd6, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03,
        0x5f, 0xd6,
    ];
    /// Offset of the instruction to which the call returns.
    pub(crate) const RETURN: u64 = 12;
    /// Bytes from the stack pointer there to that of the caller before its call.
    pub(crate) const CFA: i64 = 16;
    /// Where the frame pointer is saved, in words below the return address.
    pub(crate) const BP_DISTANCE: u64 = 1;
}

/// Whether the code to which signal handlers return may have no unwind data. Older kernels describe
/// theirs wrongly or not at all, and so does qemu.
pub(crate) const IS_SIGNAL_RETURN_BARE: bool = true;

/// Returns whether code is what a signal handler returns to: `mov x8, 139; svc 0`.
pub(crate) fn is_signal_return(code: [u8; 8]) -> bool {
    code == [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]
}

/// Offsets of the registers in the kernel's signal frame (`struct rt_sigframe`), in bytes from the
/// stack pointer in the code that a handler returns to. `siginfo` has 128 bytes, `ucontext` has the
/// stack at 16 and the registers (`struct sigcontext`) at 176: the fault's address, x0 to x30, sp,
/// pc.
pub(crate) mod signal_frame {
    const CONTEXT: u64 = 128;
    const REGISTERS: u64 = CONTEXT + 176 + 8;
    /// Where the thread's alternate stack begins, the first field of `uc_stack`.
    pub(crate) const STACK: u64 = CONTEXT + 16;
    /// Size of the alternate stack in bytes; 0 without one.
    pub(crate) const STACK_BYTES: u64 = CONTEXT + 32;
    /// The frame pointer, x29.
    pub(crate) const BP: u64 = REGISTERS + 29 * 8;
    /// The link register, x30.
    pub(crate) const LINK: u64 = REGISTERS + 30 * 8;
    /// The stack pointer.
    pub(crate) const SP: u64 = REGISTERS + 31 * 8;
    /// The instruction pointer.
    pub(crate) const IP: u64 = REGISTERS + 32 * 8;
}
