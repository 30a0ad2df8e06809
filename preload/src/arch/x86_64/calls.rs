//! Recognizes call instructions (Intel SDM, volume 2, `CALL`).

/// The most bytes of a call instruction without prefixes.
pub(crate) const MAX_CALL: usize = 7;

/// Returns whether the bytes end with a call instruction. Prefixes before it do not matter.
#[inline(never)]
pub(crate) fn ends_with_call(bytes: &[u8; MAX_CALL]) -> bool {
    // The last byte is the highest.
    let code = bytes.iter().rev().fold(0u64, |code, byte| code << 8 | u64::from(*byte));
    // call rel32
    if code >> 16 & 0xff == 0xe8 {
        return true;
    }
    (2..=MAX_CALL).any(|length| is_indirect_call(code >> (8 * (MAX_CALL - length)), length))
}

/// Returns whether an instruction of this length is a call of what a register or memory holds.
#[inline(never)]
fn is_indirect_call(code: u64, length: usize) -> bool {
    let (mode, register) = (code >> 14 & 3, code >> 8 & 7);
    let has_index = mode != 3 && register == 4;
    // A base of 5 without a displacement means four bytes.
    let base = if has_index { code >> 16 & 7 } else { register };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    // FF /2
    code & 0x38ff == 0x10ff && length == 2 + usize::from(has_index) + displacement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_forms_are_recognized() {
        let calls: [&[u8]; 10] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd3],
            &[0xff, 0x10],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x93, 1, 2, 3, 4],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc8],
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],
            &[0xff, 0x54, 0x24, 8],
        ];
        let is_call = |code: &[u8]| ends_with_call([&[0x90; 7], code].concat().last_chunk().expect("seven bytes"));
        for call in calls {
            assert!(is_call(call) && !is_call(&[call, &[0x90]].concat()), "{call:x?}");
        }
        // jmp, push, mov, and a displacement that is missing
        let others: [&[u8]; 5] =
            [&[0xe9, 1, 2, 3, 4], &[0xff, 0x25, 1, 2, 3, 4], &[0xff, 0x75, 8], &[0x48, 0x89, 0xe5], &[0xff, 0x15]];
        assert!(others.iter().all(|code| !is_call(code)));
    }
}
