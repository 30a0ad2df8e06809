//! Evaluates a seccomp filter as the kernel would, to find out which system calls it allows.
//!
//! A filter is a program of classic BPF over `struct seccomp_data` (`<linux/seccomp.h>`). Words
//! that are not known in advance, such as addresses, make the result unknown wherever it depends on
//! them, and an unknown result counts as not allowed. Jumps only go forward, so each run ends.

use crate::{arch, probe};

/// An argument that may be known, by its index.
#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Second = 1,
    Third = 2,
}

/// A system call with the argument that is known.
pub(crate) struct Call {
    /// The number of the system call.
    pub number: u32,
    /// The argument and its value; `None` if all differ from call to call.
    pub known: Option<(Argument, u32)>,
}

/// The location of a filter's instructions.
pub(crate) struct Filter {
    instructions: usize,
    count: usize,
}

/// An instruction: `struct sock_filter`.
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    constant: u32,
}

/// Number of instructions that are copied at once.
const WINDOW: usize = 32;
/// Size of an instruction in bytes.
const BYTES: usize = 8;

/// Reads instructions of the program, some at a time, in a way that cannot fault.
struct Reader<'a> {
    filter: &'a Filter,
    first: usize,
    count: usize,
    bytes: [u8; WINDOW * BYTES],
}

impl Reader<'_> {
    fn at(&mut self, index: usize) -> Option<Instruction> {
        if index >= self.filter.count {
            return None;
        }
        if index < self.first || index >= self.first + self.count {
            let wanted = (self.filter.count - index).min(WINDOW) * BYTES;
            let copied =
                probe::copy_from(self.filter.instructions.wrapping_add(index * BYTES), &mut self.bytes[..wanted]);
            (self.first, self.count) = (index, copied / BYTES);
        }
        let bytes = self.bytes.get((index - self.first) * BYTES..)?.first_chunk::<BYTES>()?;
        (index < self.first + self.count).then(|| Instruction {
            code: u16::from_le_bytes([bytes[0], bytes[1]]),
            if_true: bytes[2],
            if_false: bytes[3],
            constant: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
    }
}

impl Filter {
    /// Returns the filter that a `struct sock_fprog` at this address describes, or `None` if it
    /// cannot be read.
    pub(crate) fn at(program: usize) -> Option<Filter> {
        let mut bytes = [0; 16];
        (probe::copy_from(program, &mut bytes) == bytes.len()).then(|| Filter {
            instructions: usize::from_le_bytes([
                bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15],
            ]),
            count: usize::from(u16::from_le_bytes([bytes[0], bytes[1]])),
        })
    }

    /// Returns whether the filter certainly allows a call.
    pub(crate) fn allows(&self, call: &Call) -> bool {
        const ALLOW: u32 = 0x7fff_0000;
        const LOG: u32 = 0x7ffc_0000;
        let mut reader = Reader { filter: self, first: 0, count: 0, bytes: [0; WINDOW * BYTES] };
        run(call, &mut |index| reader.at(index)).is_some_and(|action| matches!(action & 0xffff_0000, ALLOW | LOG))
    }
}

/// Returns a 32-bit word of `struct seccomp_data`, or `None` if it is not known.
fn word(call: &Call, offset: u32) -> Option<u32> {
    match offset {
        0 => Some(call.number),
        4 => Some(arch::AUDIT_ARCHITECTURE),
        16..=60 if offset.is_multiple_of(4) => {
            let (_, value) = call.known.filter(|(argument, _)| *argument as u32 == (offset - 16) / 8)?;
            Some(if offset.is_multiple_of(8) { value } else { 0 })
        }
        _ => None,
    }
}

/// Runs a filter. Returns its result, or `None` if that is not known.
fn run(call: &Call, read: &mut dyn FnMut(usize) -> Option<Instruction>) -> Option<u32> {
    let (mut a, mut x): (Option<u32>, Option<u32>) = (Some(0), Some(0));
    let mut memory = [Some(0u32); 16];
    let mut next = 0;
    loop {
        let Instruction { code, if_true, if_false, constant } = read(next)?;
        next += 1;
        let slot = constant as usize & 15;
        // The low three bits are the class; the rest depends on it.
        match code & 7 {
            // BPF_LD: a constant, a word of the data, a memory word, the length of the data.
            0 => match code & 0xe0 {
                0x00 => a = Some(constant),
                0x20 => a = word(call, constant),
                0x60 => a = memory[slot],
                0x80 => a = Some(64),
                _ => return None,
            },
            // BPF_LDX
            1 => match code & 0xe0 {
                0x00 => x = Some(constant),
                0x60 => x = memory[slot],
                0x80 => x = Some(64),
                _ => return None,
            },
            // BPF_ST, BPF_STX
            2 => memory[slot] = a,
            3 => memory[slot] = x,
            // BPF_ALU
            4 => {
                let operand = if code & 8 != 0 { x } else { Some(constant) };
                a = arithmetic(code & 0xf0, a, operand);
            }
            // BPF_JMP
            5 => {
                if code & 0xf0 == 0 {
                    next = next.checked_add(constant as usize)?;
                    continue;
                }
                let (left, right) = (a?, if code & 8 != 0 { x? } else { constant });
                let holds = match code & 0xf0 {
                    0x10 => left == right,
                    0x20 => left > right,
                    0x30 => left >= right,
                    0x40 => left & right != 0,
                    _ => return None,
                };
                next += usize::from(if holds { if_true } else { if_false });
            }
            // BPF_RET
            6 => return if code & 0x18 == 0x10 { a } else { Some(constant) },
            // BPF_MISC: TAX, TXA
            _ => match code & 0xf8 {
                0x00 => x = a,
                0x80 => a = x,
                _ => return None,
            },
        }
    }
}

fn arithmetic(operation: u16, a: Option<u32>, operand: Option<u32>) -> Option<u32> {
    if operation == 0x80 {
        return a.map(u32::wrapping_neg);
    }
    let (a, operand) = (a?, operand?);
    match operation {
        0x00 => Some(a.wrapping_add(operand)),
        0x10 => Some(a.wrapping_sub(operand)),
        0x20 => Some(a.wrapping_mul(operand)),
        0x30 => a.checked_div(operand),
        0x40 => Some(a | operand),
        0x50 => Some(a & operand),
        0x60 => a.checked_shl(operand),
        0x70 => a.checked_shr(operand),
        0xa0 => Some(a ^ operand),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(instructions: &[(u16, u8, u8, u32)]) -> Vec<u8> {
        let bytes = |&(code, if_true, if_false, constant): &(u16, u8, u8, u32)| {
            let [c0, c1] = code.to_le_bytes();
            let [k0, k1, k2, k3] = constant.to_le_bytes();
            [c0, c1, if_true, if_false, k0, k1, k2, k3]
        };
        instructions.iter().flat_map(bytes).collect()
    }

    fn allows(instructions: &[(u16, u8, u8, u32)], number: u32, known: Option<(Argument, u32)>) -> bool {
        let bytes = filter(instructions);
        Filter { instructions: bytes.as_ptr() as usize, count: instructions.len() }.allows(&Call { number, known })
    }

    #[test]
    fn lists_of_numbers() {
        let list = [(0x20, 0, 0, 0), (0x15, 1, 0, 1), (0x15, 0, 1, 9), (6, 0, 0, 0x7fff_0000), (6, 0, 0, 0x8000_0000)];
        let unknown = None;
        assert!(allows(&list, 1, unknown) && allows(&list, 9, unknown));
        assert!(!allows(&list, 2, unknown) && !allows(&list, 0, unknown));
        // An error instead of the call is not the call.
        assert!(!allows(&[(6, 0, 0, 0x0005_0001)], 1, unknown));
        // Filters that run off their end, or have none.
        assert!(!allows(&list[..1], 1, unknown) && !allows(&[], 1, unknown));
        assert!(!allows(&[(5, 0, 0, u32::MAX)], 1, unknown));
    }

    #[test]
    fn arguments_that_are_known_and_not() {
        // The third argument masked by 4 must be 0.
        let rights = [(0x20, 0, 0, 32), (0x54, 0, 0, 4), (0x15, 0, 1, 0), (6, 0, 0, 0x7fff_0000), (6, 0, 0, 0)];
        let with = |rights: Option<u32>| rights.map(|rights| (Argument::Third, rights));
        assert!(allows(&rights, 10, with(Some(3))));
        assert!(!allows(&rights, 10, with(Some(7))) && !allows(&rights, 10, with(None)));
        // The instruction pointer is not known.
        assert!(!allows(&[(0x20, 0, 0, 8), (0x15, 0, 0, 1), (6, 0, 0, 0x7fff_0000)], 10, None));
    }

    #[test]
    fn longer_than_the_window() {
        let mut chain = vec![(0x20, 0, 0, 0)];
        for number in 0..150 {
            chain.extend([(0x15, 0, 1, number), (6, 0, 0, 0x7fff_0000)]);
        }
        chain.push((6, 0, 0, 0));
        assert!(allows(&chain, 0, None) && allows(&chain, 149, None) && !allows(&chain, 150, None));
        assert!(Filter::at(8).is_none());
    }
}
