//! Recognizes call instructions (Arm Architecture Reference Manual, C6.2, `BL`, `BLR`, `BLRAA`).

/// The bytes of a call instruction.
pub(crate) const MAX_CALL: usize = 4;

/// Returns whether the bytes are a call instruction.
#[inline(never)]
pub(crate) fn ends_with_call(bytes: &[u8; MAX_CALL]) -> bool {
    let code = u32::from_le_bytes(*bytes);
    // bl; blr; blraa, blrab and the same with a zero modifier
    code >> 26 == 0b10_0101 || code & 0xffff_fc1f == 0xd63f_0000 || code & 0xfeff_f800 == 0xd63f_0800
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_forms_are_recognized() {
        let is_call = |code: u32| ends_with_call(&code.to_le_bytes());
        // bl +4, bl -4, blr x3, blraaz x8, blrab x8, x9
        assert!([0x9400_0001, 0x97ff_ffff, 0xd63f_0060, 0xd63f_091f, 0xd73f_0d09].into_iter().all(is_call));
        // b, br x3, ret, nop, braa x8, x9
        assert!(![0x1400_0001, 0xd61f_0060, 0xd65f_03c0, 0xd503_201f, 0xd71f_0909].into_iter().any(is_call));
    }
}
