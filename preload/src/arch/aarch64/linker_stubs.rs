//! Recognizes code that linkers add and do not describe, so that the frame of a function that was
//! interrupted there is known: stubs of functions of other objects, jumps that reach farther, and
//! single instructions that were moved away from others with which some processors err (errata
//! 835769 and 843419 of the Cortex-A53).

/// The instructions before the interrupted one that are looked at.
pub(crate) const BEFORE: usize = 4;
/// The instructions from the interrupted one on that are looked at.
pub(crate) const AFTER: usize = 8;

/// `stp x16, x30, [sp, #-16]!`: the first stub of an object pushes what the loader needs.
const PUSH: u32 = 0xa9bf_7bf0;

/// Where the code goes, whose caller's frame is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jump {
    /// To the start of a function, with this number of bytes pushed.
    ToFunction(i32),
    /// To code at this distance from the interrupted instruction, with the same frame.
    ToCode(i64),
}

/// Returns whether an instruction changes neither the stack pointer nor the frame pointer nor the
/// link register, and goes on to the next: what linkers' stubs consist of.
const fn keeps_frame(code: u32) -> bool {
    let is_hint = code & 0xffff_f01f == 0xd503_201f;
    let is_adr = code & 0x1f00_0000 == 0x1000_0000;
    let is_add = code & 0xff80_0000 == 0x9100_0000 && code & 31 != 31;
    let is_load_or_store = code & 0x3b00_0000 == 0x3900_0000 || code & 0x3b00_0000 == 0x1800_0000;
    let is_multiplication = code & 0xff00_0000 == 0x9b00_0000;
    let is_of_frame = matches!(code & 31, 29 | 30);
    is_hint || (!is_of_frame && (is_adr || is_add || is_load_or_store || is_multiplication))
}

/// Returns where code jumps to that is such a stub, or `None`. The interrupted instruction is the one
/// with the index [`BEFORE`].
pub(crate) fn linker_stub(code: &[u32; BEFORE + AFTER]) -> Option<Jump> {
    let (before, after) = code.split_at(BEFORE);
    let jump = after.iter().position(|&code| code != PUSH && !keeps_frame(code))?;
    let last = after[jump];
    if last >> 26 == 0b00_0101 {
        let words = i64::from((last << 6) as i32 >> 6);
        return Some(Jump::ToCode(4 * (words + jump as i64)));
    }
    // br x16, br x17
    if last & 0xffff_ffdf != 0xd61f_0200 {
        return None;
    }
    let is_pushed = before.iter().rev().find(|&&code| !keeps_frame(code)) == Some(&PUSH);
    Some(Jump::ToFunction(if is_pushed { 16 } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer for each instruction of a stub that is between others.
    fn answers(stub: &[u32]) -> Vec<Option<Jump>> {
        const RET: u32 = 0xd65f_03c0;
        let around = [[RET; BEFORE].as_slice(), stub, &[RET; AFTER]].concat();
        let at = |index| around[index..].first_chunk().and_then(linker_stub);
        (0..stub.len()).map(at).collect()
    }

    #[test]
    fn stubs_of_functions_of_other_objects_are_known() {
        // adrp x16, ldr x17, add x16, br x17; the same that can be jumped to and signs addresses
        let plain = [0x9000_0110, 0xf947_fa11, 0x913f_c210, 0xd61f_0220];
        assert_eq!(answers(&plain), [Some(Jump::ToFunction(0)); 4]);
        let signed = [0xd503_245f, 0x9000_0110, 0xf947_fa11, 0x913f_c210, 0xd503_219f, 0xd61f_0220];
        assert_eq!(answers(&signed), [Some(Jump::ToFunction(0)); 6]);
        // The first one: bti c, stp x16, x30, adrp, ldr, add, br x17
        let first = [0xd503_245f, PUSH, 0x9000_0110, 0xf947_fa11, 0x913f_c210, 0xd61f_0220];
        let [not, is] = [0, 16].map(|bytes| Some(Jump::ToFunction(bytes)));
        assert_eq!(answers(&first), [not, not, is, is, is, is]);
        // adrp x16, add x16, br x16; ldr x16, br x16
        assert_eq!(answers(&[0x9000_0110, 0x913f_c210, 0xd61f_0200, 0x5800_0050, 0xd61f_0200]), [not; 5]);
    }

    #[test]
    fn moved_instructions_go_back() {
        // ldr x8, [x9, #3576]; b -292
        assert_eq!(answers(&[0xf946_fd28, 0x17ff_ffb7]), [Some(Jump::ToCode(-288)), Some(Jump::ToCode(-292))]);
        // madd x1, x2, x3, x4; b +8
        assert_eq!(answers(&[0x9b03_1041, 0x1400_0002]), [Some(Jump::ToCode(12)), Some(Jump::ToCode(8))]);
    }

    #[test]
    fn other_code_is_no_stub() {
        // ldp x29, x30, [sp], #16; add sp, sp, #16; ldr x30, [x0, #8]; mul x29, x1, x2: then a jump
        for code in [0xa8c1_7bfd, 0x9100_43ff, 0xf940_041e, 0x9b02_7c3d] {
            assert_eq!(answers(&[code, 0x1400_0002])[0], None, "{code:#x}");
            assert_eq!(answers(&[code, 0xd61f_0200])[0], None, "{code:#x}");
        }
        // br x3; ret; bl; a call of the loader's word
        assert_eq!(answers(&[0xd61f_0060, 0xd65f_03c0, 0x9400_0001, 0xd63f_0220]), [None; 4]);
        assert_eq!(answers(&[0xd503_201f; AFTER]), [None; AFTER]);
    }
}
