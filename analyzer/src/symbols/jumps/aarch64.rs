//! Calls and jumps of 64-bit Arm code.
//!
//! A slot is read by `adrp`, which makes the address of a page, and `ldr`, and the jump is one to a
//! register. They need not be neighbors.

use super::Goes;

/// Maximum number of instructions from the one that sets a register to the one that uses it.
const NEAR: usize = 16;

/// What an instruction does, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// `bl`, or another branch to an address.
    Calls(u64),
    Jumps(u64),
    /// `blr`, or `br`, to the address in a register.
    CallsRegister(u32),
    JumpsToRegister(u32),
    Returns,
    Other,
}

impl Does {
    fn target(self) -> Option<u64> {
        if let Does::Jumps(target) = self { Some(target) } else { None }
    }
}

fn does(word: u32, address: u64) -> Does {
    // A distance in instructions, from its highest bit in the word.
    let to = |first: u32, bits: u32| {
        let distance = i64::from((word << (32 - first - bits)).cast_signed() >> (32 - bits));
        address.wrapping_add_signed(distance * 4)
    };
    match word {
        _ if word >> 26 == 0b10_0101 => Does::Calls(to(0, 26)),
        _ if word >> 26 == 0b00_0101 => Does::Jumps(to(0, 26)),
        // b.cond, bc.cond; cbz, cbnz; tbz, tbnz
        _ if word >> 24 == 0x54 || word >> 25 & 0x3f == 0b01_1010 => Does::Jumps(to(5, 19)),
        _ if word >> 25 & 0x3f == 0b01_1011 => Does::Jumps(to(5, 14)),
        _ if word & 0xffff_fc1f == 0xd63f_0000 => Does::CallsRegister(word >> 5 & 31),
        _ if word & 0xffff_fc1f == 0xd61f_0000 => Does::JumpsToRegister(word >> 5 & 31),
        // Those to a signed address.
        _ if word & 0xfeff_f800 == 0xd63f_0800 => Does::CallsRegister(31),
        _ if word & 0xfeff_f800 == 0xd61f_0800 => Does::JumpsToRegister(31),
        _ if word & 0xffff_f3ff == 0xd65f_03ff || word & 0xffff_fc1f == 0xd65f_0000 => Does::Returns,
        _ => Does::Other,
    }
}

/// Code, as instructions from its first address.
struct Words {
    words: Vec<u32>,
    start: u64,
    /// Where its branches go, in ascending order.
    targets: Vec<u64>,
}

impl Words {
    fn of(code: &[u8], start: u64) -> Words {
        let words = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut code = Words { words, start, targets: Vec::new() };
        code.targets = (0..code.words.len()).filter_map(|index| code.does(index).target()).collect();
        code.targets.sort_unstable();
        code
    }

    fn address(&self, index: usize) -> u64 {
        self.start.wrapping_add(index as u64 * 4)
    }

    fn does(&self, index: usize) -> Does {
        does(self.words[index], self.address(index))
    }

    /// Returns the last instruction before `index` that sets a register, if all between them are
    /// always executed together with it and leave the register alone.
    fn setter(&self, index: usize, register: u32) -> Option<usize> {
        for at in (index.saturating_sub(NEAR)..index).rev() {
            if self.does(at) != Does::Other {
                return None;
            }
            let word = self.words[at];
            if word & 31 == register {
                return Some(at);
            }
            // A pair's second register, and the base of an access, which the access may change.
            let is_access = word >> 27 & 1 == 1 && word >> 25 & 1 == 0;
            if is_access && (word >> 10 & 31 == register || word >> 5 & 31 == register) {
                return None;
            }
        }
        None
    }

    /// Returns where an instruction goes that calls, or jumps to, the address in a register.
    fn by_register(&self, index: usize, register: u32) -> Option<Goes> {
        let set = self.setter(index, register)?;
        let word = self.words[set];
        let base = word >> 5 & 31;
        // ldr X, [X, #offset] or add X, X, #offset
        let (is_load, scale) = match word >> 22 {
            0b11_1110_0101 => (true, 8),
            0b10_0100_0100 => (false, 1),
            _ => return None,
        };
        let page_set = self.setter(set, base)?;
        let page = self.words[page_set];
        (page & 0x9f00_0000 == 0x9000_0000).then_some(())?;
        let immediate = u64::from(page >> 29 & 3) | u64::from(page >> 5 & 0x7_ffff) << 2;
        let distance = (immediate << 43).cast_signed() >> 43;
        let place = (self.address(page_set) & !0xfff).wrapping_add_signed(distance << 12);
        let place = place.wrapping_add(u64::from(word >> 10 & 0xfff) * scale);
        // Code that is entered between them may have set the register to something else.
        let next = self.targets.partition_point(|target| *target <= self.address(page_set));
        let is_entered = self.targets.get(next).is_some_and(|target| *target <= self.address(index));
        (!is_entered).then_some(if is_load { Goes::By(place) } else { Goes::To(place) })
    }
}

/// Returns where the call at the end of some code goes. `function` returns the code of its function, and
/// its start.
pub(super) fn call_at_end(code: &[u8], end: u64, function: impl FnOnce() -> Option<(Vec<u8>, u64)>) -> Option<Goes> {
    let address = end.checked_sub(4)?;
    match does(u32::from_le_bytes(*code.last_chunk()?), address) {
        Does::Calls(target) => Some(Goes::To(target)),
        Does::CallsRegister(register) => {
            let (code, start) = function()?;
            let words = Words::of(&code, start);
            let index =
                usize::try_from(address.checked_sub(start)? / 4).ok().filter(|index| *index < words.words.len())?;
            words.by_register(index, register)
        }
        _ => None,
    }
}

/// Visits the jumps of a function, until `visit` returns false. Returns whether it came to the end.
pub(super) fn jumps(code: &[u8], start: u64, mut visit: impl FnMut(Goes) -> bool) -> bool {
    let words = Words::of(code, start);
    for index in 0..words.words.len() {
        let goes = match words.does(index) {
            Does::Jumps(target) => Goes::To(target),
            Does::JumpsToRegister(register) => words.by_register(index, register).unwrap_or(Goes::Anywhere),
            _ => continue,
        };
        if !visit(goes) {
            return index + 1 == words.words.len();
        }
    }
    true
}

/// Returns where a stub goes that a linker made: to what a slot holds, or to what is too far for a branch.
pub(super) fn stub(code: &[u8], address: u64) -> Option<Goes> {
    let words = Words::of(code, address);
    let end = (0..words.words.len()).find(|index| words.does(*index) != Does::Other)?;
    match words.does(end) {
        Does::JumpsToRegister(register) => words.by_register(end, register),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn jumps_of(words: &[u32], start: u64) -> Vec<Goes> {
        let mut found = Vec::new();
        let visit = |goes| {
            found.push(goes);
            true
        };
        assert!(jumps(&bytes(words), start, visit));
        found
    }

    #[test]
    fn instructions_are_known() {
        const START: u64 = 0x1_0000;
        for (index, (word, expected)) in [
            (0x9400_0000, Does::Calls(START)),
            (0x17ff_ffff, Does::Jumps(START)),
            (0x54ff_ffc1, Does::Jumps(START)), // b.ne
            (0xb4ff_ffa3, Does::Jumps(START)), // cbz x3
            (0x35ff_ff83, Does::Jumps(START)), // cbnz w3
            (0xb647_ff63, Does::Jumps(START)), // tbz x3, 40
            (0x370f_ff43, Does::Jumps(START)), // tbnz w3, 1
            (0xd63f_0080, Does::CallsRegister(4)),
            (0xd61f_0080, Does::JumpsToRegister(4)),
            (0xd61f_089f, Does::JumpsToRegister(31)), // braaz x4
            (0xd73f_0885, Does::CallsRegister(31)),   // blraa x4, x5
            (0xd65f_03c0, Does::Returns),
            (0xd65f_0bff, Does::Returns), // retaa
            (0x9100_0420, Does::Other),   // add x0, x1, 1
            (0xf940_0420, Does::Other),   // ldr x0, [x1, 8]
            (0xd503_245f, Does::Other),   // bti c
            (0xd503_219f, Does::Other),   // autia1716
            (0x9000_0010, Does::Other),   // adrp x16
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(does(word, START + index as u64 * 4), expected, "{word:#x}");
        }
    }

    /// What `gcc -O2 -fno-plt` makes of `n > 5 ? other(n) : calloc(1, n)`.
    const TWO_SLOTS: [u32; 11] = [
        0x9340_7c01, // sxtw x1, w0
        0x7100_143f, // cmp w1, 5
        0x5400_00ac, // b.gt to the second adrp
        0x9000_0010, // adrp x16
        0xf940_0610, // ldr x16, [x16, 8]
        0xd280_0020, // mov x0, 1
        0xd61f_0200, // br x16
        0xb000_0010, // adrp x16, one page further
        0xf940_0210, // ldr x16, [x16]
        0xd61f_0200, // br x16
        0xd503_201f, // nop
    ];

    #[test]
    fn slots_of_jumps_are_found() {
        let goes = [Goes::To(0x501c), Goes::By(0x5008), Goes::By(0x6000)];
        assert_eq!(jumps_of(&TWO_SLOTS, 0x5000), goes);
        // Into the middle: the register may hold something else.
        let mut entered = TWO_SLOTS;
        entered[2] = 0x5400_008c; // b.gt to the first `br`
        assert_eq!(jumps_of(&entered, 0x5000), [Goes::To(0x5018), Goes::Anywhere, Goes::By(0x6000)]);
        // Another instruction sets the register, or changes it as the base of an access.
        for word in [0xaa00_03f0, 0xf840_8600, 0xa940_4000] {
            let mut set = TWO_SLOTS;
            set[5] = word; // mov x16, x0; ldr x0, [x16], 8; ldp x0, x16, [x0]
            assert_eq!(jumps_of(&set, 0x5000)[1], Goes::Anywhere, "{word:#x}");
        }
        assert_eq!(jumps_of(&[0xd61f_0200], 0x5000), [Goes::Anywhere]);
        assert_eq!(jumps_of(&[], 0x5000), []);
    }

    #[test]
    fn calls_are_found() {
        let call = |words: &[u32]| {
            let code = bytes(words);
            let end = 0x5000 + code.len() as u64;
            call_at_end(&code[code.len() - 4..], end, || Some((code.clone(), 0x5000)))
        };
        assert_eq!(call(&[0x9400_0002]), Some(Goes::To(0x5008)));
        // adrp x1; ldr x1, [x1, 8]; stp x19, x20, [sp, 16]; mov x20, x0; blr x1
        let by_slot = [0x9000_0001, 0xf940_0421, 0xa901_53f3, 0xaa00_03f4, 0xd63f_0020];
        assert_eq!(call(&by_slot), Some(Goes::By(0x5008)));
        // A virtual function; not a call; a call between.
        for words in [
            &[0xf940_0001, 0xf940_0421, 0xd63f_0020][..],
            &[0xaa00_03f4],
            &[0x9000_0001, 0xf940_0421, 0x9400_0000, 0xd63f_0020],
        ] {
            assert_eq!(call(words), None, "{words:x?}");
        }
        assert_eq!(call_at_end(&bytes(&by_slot), 0x4000, || Some((bytes(&by_slot), 0x5000))), None);
    }

    #[test]
    fn stubs_are_followed() {
        // bti c; adrp x16; ldr x17, [x16, 24]; add x16, x16, 24; autia1716; br x17
        let of_libraries = [0xd503_245f, 0x9000_0010, 0xf940_0e11, 0x9100_6210, 0xd503_219f, 0xd61f_0220];
        assert_eq!(stub(&bytes(&of_libraries), 0x5000), Some(Goes::By(0x5018)));
        // adrp x16, one page further; add x16, x16, 16; br x16
        let far = [0xb000_0010, 0x9100_4210, 0xd61f_0200];
        assert_eq!(stub(&bytes(&far), 0x5000), Some(Goes::To(0x6010)));
        assert_eq!(stub(&bytes(&TWO_SLOTS), 0x5000), None);
    }
}
