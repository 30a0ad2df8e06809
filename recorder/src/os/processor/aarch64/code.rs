//! Jumps into the library, and the code that they lead to.
//!
//! A branch reaches 128 MiB in both directions, and is stored by one aligned store. What lies between a
//! call and its function may change x16 and x17 (the procedure call standard's IP0 and IP1), so nobody
//! keeps a value there.

use wire::patches::{Function, JUMP_BYTES};

/// The system call's instruction: `svc 0`.
pub(crate) const SYSTEM_CALL: &[u8] = &[0x01, 0, 0, 0xd4];
/// The same, and a return.
pub(crate) const SYSTEM_CALL_AND_RETURN: &[u8] = &[0x01, 0, 0, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// The code that signal handlers return to, in the vDSO or in the C library: `mov x8, 139; svc 0`.
pub(crate) const RESTORER: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
/// Alignment of instructions.
pub(crate) const INSTRUCTION_ALIGNMENT: u64 = 4;

/// The distance between code and hooked functions that a branch surely bridges.
pub(crate) const JUMP_REACH: u64 = 0x0780_0000;
/// Size of the instructions of an entry.
pub(crate) const ENTRY_BYTES: u64 = 12;
/// Nothing is to be restored in a trampoline.
pub(crate) const RESTORE: &[u8] = &[];
/// What is between functions: `udf`.
pub(crate) const PADDING: u8 = 0;

/// Returns the entry of a hooked function, which follows its description: it does what is `first`, loads
/// the description's address and jumps to the hook, whose address is stored at this distance from the entry.
pub(crate) fn entry(first: &[u8], hook: i32) -> Vec<u8> {
    let bits = |distance: i32| ((distance - first.len() as i32) / 4).cast_unsigned() & 0x7_ffff;
    // adr x17, the description; ldr x16, the hook; br x16
    let description = 0x1000_0011 | bits(-(size_of::<Function>() as i32)) << 5;
    let words = [description, 0x5800_0010 | bits(hook - 4) << 5, 0xd61f_0200];
    [first, words.map(u32::to_le_bytes).as_flattened()].concat()
}

/// Returns the instruction `b`; `None` if it does not reach so far.
pub(super) fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from).cast_signed();
    let is_near = (-(1 << 27)..1 << 27).contains(&distance) && distance & 3 == 0;
    is_near.then_some(0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff)
}

/// Returns a jump; `None` if it does not reach so far.
pub(crate) fn jump(from: u64, to: u64) -> Option<[u8; JUMP_BYTES]> {
    branch(from, to).map(u32::to_le_bytes)
}

/// Returns where a jump leads to.
pub(crate) fn jump_target(from: u64, bytes: [u8; JUMP_BYTES]) -> Option<u64> {
    let word = u32::from_le_bytes(bytes);
    let distance = i64::from((word << 6).cast_signed() >> 6) * 4;
    (word >> 26 == 0b00_0101).then(|| from.wrapping_add_signed(distance))
}

fn instructions(code: &[u8]) -> impl Iterator<Item = u32> {
    code.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Returns the addresses that a function loads its thread-local variables' offsets from: `adrp` and
/// `ldr`, whose result is added to `tpidr_el0`.
pub(crate) fn thread_local_slots(code: &[u8], address: u64) -> Vec<u64> {
    let mut slots = Vec::new();
    // What each register holds: a page, an offset that was loaded from a slot, the thread pointer.
    let (mut pages, mut loaded, mut pointers) = ([None; 32], [None; 32], [false; 32]);
    for (at, word) in (address..).step_by(4).zip(instructions(code)) {
        let [target, first, second] = [word & 31, word >> 5 & 31, word >> 16 & 31].map(|register| register as usize);
        // add x, x, x; ldr, str [x, x]
        let joins = word & 0xffe0_fc00 == 0x8b00_0000 || word & 0x3fa0_fc00 == 0x3820_6800;
        if joins {
            for (pointer, offset) in [(first, second), (second, first)] {
                slots.extend(loaded[offset].filter(|_| pointers[pointer]));
            }
        }
        let reads_pointer = word & 0xffff_ffe0 == 0xd53b_d040;
        let (mut page, mut offset, mut is_pointer) = (None, None, false);
        if word & 0x9f00_0000 == 0x9000_0000 {
            let distance = i64::from(((word >> 5 << 13).cast_signed() >> 13) << 2 | (word >> 29 & 3).cast_signed());
            page = Some((at & !0xfff).wrapping_add_signed(distance << 12));
        } else if word & 0xffc0_0000 == 0xf940_0000 {
            offset = pages[first].map(|page: u64| page.wrapping_add(u64::from(word >> 10 & 0xfff) * 8));
        } else if reads_pointer {
            is_pointer = true;
        }
        // Stores and branches change no register.
        let is_store = word & 0x0a00_0000 == 0x0800_0000 && word >> 22 & 1 == 0;
        if !reads_pointer && (is_store || word >> 26 & 7 == 0b101) {
            continue;
        }
        (pages[target], loaded[target], pointers[target]) = (page, offset, is_pointer);
    }
    slots
}

/// Returns whether code calls or jumps to a function.
pub(crate) fn calls(code: &[u8], address: u64, target: u64) -> bool {
    (address..).step_by(4).zip(instructions(code)).any(|(at, word)| {
        let bytes = (word & 0x7fff_ffff).to_le_bytes();
        jump_target(at, bytes) == Some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_where_they_are_to() {
        for to in [0x0010_0000, 0x07ff_fffc, 0x0100_0000] {
            let jump = jump(0x0100_0000, to).expect("it reaches");
            assert_eq!(jump_target(0x0100_0000, jump), Some(to));
        }
        assert_eq!(jump(0x1000_0000, 0x1800_0000), None);
        // The description is 16 bytes before; the hook's address 64 bytes before.
        let words: Vec<u32> = instructions(&entry(&[], -64)).collect();
        assert_eq!(words, [0x10ff_ff91, 0x58ff_fde0 | 16, 0xd61f_0200]);
        // After another instruction both are four bytes farther away.
        let words: Vec<u32> = instructions(&entry(&0xd503_23bfu32.to_le_bytes(), -64)).collect();
        assert_eq!(words, [0xd503_23bf, 0x10ff_ff71, 0x58ff_fdc0 | 16, 0xd61f_0200]);
    }

    #[test]
    fn slots_of_thread_local_variables_are_found() {
        // mrs x1, tpidr_el0; adrp x0, #0x1000; ldr x0, [x0, #16]; ldr x2, [x1, x0]; b to 0x2000
        let code = [0xd53b_d041u32, 0xb000_0000, 0xf940_0800, 0xf860_6822, 0x1400_03fc];
        let code: Vec<u8> = code.into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(thread_local_slots(&code, 0x1000), [0x2010]);
        assert!(calls(&code, 0x1000, 0x2000) && !calls(&code, 0x1000, 0x3000));
    }
}
