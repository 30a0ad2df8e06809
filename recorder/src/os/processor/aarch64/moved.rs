//! Moves the first instruction of a function, so that a branch can replace it.
//!
//! The branch is as long as one instruction, so nothing can be inside of it. An instruction that
//! refers to its own address is written anew: Arm Architecture Reference Manual, C4.1.

use wire::patches::JUMP_BYTES;

/// The most bytes of a function that are searched for branches into its start: none is searched for.
pub(crate) const MAX_SCANNED: usize = 1 << 16;
/// `bti`, `bti c`, `bti j`, `bti jc`: where branches may lead to, if the processor checks that. They stay
/// at the start of a function.
const LANDING_PADS: [u32; 4] = [0xd503_241f, 0xd503_245f, 0xd503_249f, 0xd503_24df];
/// `paciasp`, `pacibsp`: such places, too, and they sign the return address. They stay, the entry undoes
/// that by `autiasp` or `autibsp`, and the trampoline begins with another one.
const SIGNING_PADS: [(u32, u32); 2] = [(0xd503_233f, 0xd503_23bf), (0xd503_237f, 0xd503_23ff)];
/// The register that a call may change on its way (the procedure call standard's IP0).
const SCRATCH: u32 = 16;

/// Why a function's start cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The bytes are no instructions, or not mapped.
    Undecodable,
    /// A call returns behind the branch, from a place without unwind data.
    Call,
    /// The instruction cannot be encoded at the trampoline.
    Unmovable,
}

impl Refusal {
    /// Returns the reason as a clause for messages.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Refusal::Undecodable => "its first bytes are no known instructions",
            Refusal::Call => "it begins with a call",
            Refusal::Unmovable => "its first instruction cannot be moved",
        }
    }
}

/// The start of a function that can be moved.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Address of the moved instruction.
    pub address: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What the entry does first.
    pub undo: Vec<u8>,
    instruction: u32,
    /// The instruction before it that signs the return address.
    signing: Option<u32>,
}

/// The instructions that replace the start of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trampoline {
    /// The encoded instructions, and data after them.
    pub code: Vec<u8>,
    /// Offset of each moved instruction in the function, and in the code.
    pub offsets: Vec<(u32, u32)>,
}

/// What an instruction does with its own address.
enum Kind {
    /// Nothing.
    Plain,
    /// Nothing, and it continues elsewhere.
    Leaves,
    /// It stores an address in a register.
    Address {
        register: u32,
        value: u64,
    },
    /// It loads from an address: the same load from [`SCRATCH`] is this one.
    Load {
        instruction: u32,
        from: u64,
    },
    /// It prefetches.
    Hint,
    Branch {
        to: u64,
    },
    Call {
        to: u64,
    },
    /// A branch that may be taken: with a distance of two instructions it is this one.
    Condition {
        instruction: u32,
        to: u64,
    },
}

/// Returns the signed number of `bits` bits from `first` on.
fn signed(word: u32, first: u32, bits: u32) -> i64 {
    i64::from((word << (32 - first - bits)).cast_signed() >> (32 - bits))
}

fn kind(word: u32, at: u64) -> Result<Kind, Refusal> {
    let near = |first, bits| at.wrapping_add_signed(signed(word, first, bits) * 4);
    let register = word & 31;
    let two_further = |first: u32, bits: u32| word & !(((1u32 << bits) - 1) << first) | 2 << first;
    Ok(match word {
        _ if word >> 16 == 0 => return Err(Refusal::Undecodable),
        // adr, adrp
        _ if word & 0x1f00_0000 == 0x1000_0000 => {
            let distance = signed(word, 5, 19) << 2 | i64::from(word >> 29 & 3);
            let value = match word >> 31 {
                0 => at.wrapping_add_signed(distance),
                _ => (at & !0xfff).wrapping_add_signed(distance << 12),
            };
            Kind::Address { register, value }
        }
        // ldr, ldrsw, prfm with a literal
        _ if word & 0x3b00_0000 == 0x1800_0000 => {
            let load = match (word >> 26 & 1, word >> 30) {
                (0, 0) => 0xb940_0000,
                (0, 1) => 0xf940_0000,
                (0, 2) => 0xb980_0000,
                (0, _) => return Ok(Kind::Hint),
                (_, 0) => 0xbd40_0000,
                (_, 1) => 0xfd40_0000,
                (_, 2) => 0x3dc0_0000,
                _ => return Err(Refusal::Undecodable),
            };
            Kind::Load { instruction: load | SCRATCH << 5 | register, from: near(5, 19) }
        }
        _ if word & 0x7c00_0000 == 0x1400_0000 => match word >> 31 {
            0 => Kind::Branch { to: near(0, 26) },
            _ => Kind::Call { to: near(0, 26) },
        },
        // b.cond, bc.cond; cbz, cbnz; tbz, tbnz
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
            Kind::Condition { instruction: two_further(5, 19), to: near(5, 19) }
        }
        _ if word & 0x7e00_0000 == 0x3600_0000 => Kind::Condition { instruction: two_further(5, 14), to: near(5, 14) },
        // br, blr, ret, and the same with a signed address
        _ if word & 0xfe00_0000 == 0xd600_0000 => match word >> 21 & 7 {
            0 | 2 => Kind::Leaves,
            1 => return Err(Refusal::Call),
            _ => return Err(Refusal::Unmovable),
        },
        // svc, and the other exceptions
        _ if word & 0xff00_0000 == 0xd400_0000 && word & 0xffe0_001f != 0xd400_0001 => return Err(Refusal::Unmovable),
        _ => Kind::Plain,
    })
}

/// Examines the function whose `code` is at `address`.
pub(crate) fn start(code: &[u8], address: u64, _size: usize) -> Result<Start, Refusal> {
    let word = |index: usize| code.as_chunks::<JUMP_BYTES>().0.get(index).map(|bytes| u32::from_le_bytes(*bytes));
    let first = word(0).ok_or(Refusal::Undecodable)?;
    let signed = SIGNING_PADS.iter().find(|(sign, _)| *sign == first);
    let index = usize::from(signed.is_some() || LANDING_PADS.contains(&first));
    let address = address.wrapping_add((index * JUMP_BYTES) as u64);
    let instruction = word(index).ok_or(Refusal::Undecodable)?;
    if !address.is_multiple_of(JUMP_BYTES as u64) {
        return Err(Refusal::Undecodable);
    }
    kind(instruction, address)?;
    let undo = signed.map(|(_, undo)| undo.to_le_bytes().to_vec()).unwrap_or_default();
    let signing = signed.map(|(sign, _)| *sign);
    Ok(Start { address, bytes: instruction.to_le_bytes().to_vec(), undo, instruction, signing })
}

impl Start {
    /// Returns the trampoline for an address.
    ///
    /// # Errors
    /// [`Refusal::Unmovable`] if a branch does not reach so far.
    pub(crate) fn trampoline(&self, at: u64) -> Result<Trampoline, Refusal> {
        let next = self.address.wrapping_add(JUMP_BYTES as u64);
        let before: Vec<u8> = self.signing.into_iter().flat_map(u32::to_le_bytes).collect();
        let first = before.len() as u32;
        let at = at.wrapping_add(u64::from(first));
        let branch =
            |index: u64, to: u64| super::code::branch(at.wrapping_add(4 * index), to).ok_or(Refusal::Unmovable);
        // ldr register, the word after `count` instructions
        let literal = |register: u32, index: u32, count: u32| 0x5800_0000 | (count - index) << 5 | register;
        let (words, data) = match kind(self.instruction, self.address)? {
            Kind::Plain => (vec![self.instruction, branch(1, next)?], None),
            Kind::Leaves => (vec![self.instruction], None),
            Kind::Address { register, value } => (vec![literal(register, 0, 2), branch(1, next)?], Some(value)),
            Kind::Load { instruction, from } => {
                (vec![literal(SCRATCH, 0, 3), instruction, branch(2, next)?], Some(from))
            }
            Kind::Hint => (vec![branch(0, next)?], None),
            Kind::Branch { to } => (vec![branch(0, to)?], None),
            // The return address is the function's, and not in the trampoline, which no unwind table
            // describes.
            Kind::Call { to } => (vec![literal(30, 0, 2), branch(1, to)?], Some(next)),
            Kind::Condition { instruction, to } => (vec![instruction, branch(1, next)?, branch(2, to)?], None),
        };
        let mut code = before;
        code.extend(words.into_iter().flat_map(u32::to_le_bytes));
        code.extend(data.into_iter().flat_map(u64::to_le_bytes));
        Ok(Trampoline { code, offsets: vec![(0, first)] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trampoline at 0x2000 of an instruction at 0x1000, as words.
    fn moved(instruction: u32) -> Result<Vec<u32>, Refusal> {
        let start = start(&instruction.to_le_bytes(), 0x1000, 0)?;
        let code = start.trampoline(0x2000)?.code;
        Ok(code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// b from 0x2000 + 4 * index to an address.
    fn b(index: i64, to: i64) -> u32 {
        0x1400_0000 | ((to - 0x2000 - 4 * index) / 4) as u32 & 0x03ff_ffff
    }

    #[test]
    fn moved_instructions_refer_to_the_same_addresses() {
        // stp x29, x30, [sp, #-16]!; nop; svc 0
        for plain in [0xa9bf_7bfd, 0xd503_201f, 0xd400_0001] {
            assert_eq!(moved(plain), Ok(vec![plain, b(1, 0x1004)]));
        }
        // ret
        assert_eq!(moved(0xd65f_03c0), Ok(vec![0xd65f_03c0]));
        // adr x3, #-4; adrp x3, #0x1000
        assert_eq!(moved(0x10ff_ffe3), Ok(vec![0x5800_0043, b(1, 0x1004), 0xffc, 0]));
        assert_eq!(moved(0xb000_0003), Ok(vec![0x5800_0043, b(1, 0x1004), 0x2000, 0]));
        // ldr x3, #8; ldr q3, #8: by x16
        assert_eq!(moved(0x5800_0043), Ok(vec![0x5800_0070, 0xf940_0203, b(2, 0x1004), 0x1008, 0]));
        assert_eq!(moved(0x9c00_0043), Ok(vec![0x5800_0070, 0x3dc0_0203, b(2, 0x1004), 0x1008, 0]));
        // b #-16; bl #16: the return address is the function's
        assert_eq!(moved(0x17ff_fffc), Ok(vec![b(0, 0xff0)]));
        assert_eq!(moved(0x9400_0004), Ok(vec![0x5800_005e, b(1, 0x1010), 0x1004, 0]));
        // b.ne #64; cbz x3, #-8; tbnz w3, #4, #32
        assert_eq!(moved(0x5400_0201), Ok(vec![0x5400_0041, b(1, 0x1004), b(2, 0x1040)]));
        assert_eq!(moved(0xb4ff_ffc3), Ok(vec![0xb400_0043, b(1, 0x1004), b(2, 0xff8)]));
        assert_eq!(moved(0x3720_0103), Ok(vec![0x3720_0043, b(1, 0x1004), b(2, 0x1020)]));
        // blr x3; brk 0; udf 0
        let refused = [0xd63f_0060, 0xd420_0000, 0].map(|instruction| moved(instruction).err());
        assert_eq!(refused, [Some(Refusal::Call), Some(Refusal::Unmovable), Some(Refusal::Undecodable)]);
    }

    #[test]
    fn landing_pad_stays_where_it_is() {
        let code: Vec<u8> = [0xd503_245fu32, 0xa9bf_7bfd].into_iter().flat_map(u32::to_le_bytes).collect();
        let found = start(&code, 0x1000, 8).expect("it can be moved");
        assert_eq!((found.address, &found.bytes[..]), (0x1004, &code[4..]));
    }

    #[test]
    fn signature_is_undone_before_the_hook_and_made_again_after_it() {
        // paciasp; stp x29, x30, [sp, #-16]!
        let code: Vec<u8> = [0xd503_233fu32, 0xa9bf_7bfd].into_iter().flat_map(u32::to_le_bytes).collect();
        let found = start(&code, 0x1000, 8).expect("it can be moved");
        assert_eq!((found.address, &found.bytes[..]), (0x1004, &code[4..]));
        assert_eq!(found.undo, 0xd503_23bfu32.to_le_bytes());
        let trampoline = found.trampoline(0x2000).expect("it reaches");
        assert_eq!(trampoline.offsets, [(0, 4)]);
        let words = trampoline.code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        assert_eq!(words.collect::<Vec<_>>(), [0xd503_233f, 0xa9bf_7bfd, b(2, 0x1008)]);
        assert_eq!(start(&code[..4], 0x1000, 4).err(), Some(Refusal::Undecodable));
    }

    #[test]
    fn what_is_too_far_away_is_refused() {
        let start = start(&0xa9bf_7bfdu32.to_le_bytes(), 0x1000, 4).expect("it can be moved");
        assert_eq!(start.trampoline(0x1000_0000).err(), Some(Refusal::Unmovable));
    }
}
