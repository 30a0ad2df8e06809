//! Jumps into the library, and the code that they lead to.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use wire::patches::{Function, JUMP_BYTES};

/// The system call's instruction.
pub(crate) const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];
/// The same, and a return.
pub(crate) const SYSTEM_CALL_AND_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];
/// The code that signal handlers return to, in the C library: `mov rax, 15; syscall`.
pub(crate) const RESTORER: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Alignment of instructions.
pub(crate) const INSTRUCTION_ALIGNMENT: u64 = 1;

/// The distance between code and hooked functions that a jump surely bridges.
pub(crate) const JUMP_REACH: u64 = 0x7000_0000;
/// Size of the instructions of an entry.
pub(crate) const ENTRY_BYTES: u64 = 18;
/// The first instruction of a trampoline: `mov r11, [rsp - 8]`. The entry has stored r11 there. A
/// caller that knows the function may keep a value in it.
pub(crate) const RESTORE: &[u8] = &[0x4c, 0x8b, 0x5c, 0x24, 0xf8];
/// What is between functions: `int3`.
pub(crate) const PADDING: u8 = 0xcc;

/// Returns the entry of a hooked function, which follows its description: it loads the description's
/// address and jumps to the hook, whose address is stored at this distance from the entry. Nothing is to
/// be done first.
pub(crate) fn entry(_first: &[u8], hook: i32) -> Vec<u8> {
    // mov [rsp - 8], r11; lea r11, [rip - 28]; jmp [rip + …]
    let mut code = vec![0x4c, 0x89, 0x5c, 0x24, 0xf8, 0x4c, 0x8d, 0x1d];
    code.extend((-12 - size_of::<Function>() as i32).to_le_bytes());
    code.extend([0xff, 0x25]);
    code.extend((hook - ENTRY_BYTES as i32).to_le_bytes());
    code
}

/// Returns a jump; `None` if it does not reach so far.
pub(crate) fn jump(from: u64, to: u64) -> Option<[u8; JUMP_BYTES]> {
    let distance = i32::try_from(to.wrapping_sub(from + JUMP_BYTES as u64).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Returns where a jump leads to.
pub(crate) fn jump_target(from: u64, bytes: [u8; JUMP_BYTES]) -> Option<u64> {
    let [0xe9, a, b, c, d] = bytes else { return None };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    Some(from.wrapping_add(JUMP_BYTES as u64).wrapping_add_signed(distance))
}

fn instructions(code: &[u8], address: u64) -> impl Iterator<Item = Instruction> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter()
}

/// Returns the addresses that a function loads its thread-local variables' offsets from.
pub(crate) fn thread_local_slots(code: &[u8], address: u64) -> Vec<u64> {
    let (mut slots, mut loaded) = (Vec::new(), Vec::<(Register, u64)>::new());
    for instruction in instructions(code, address) {
        if instruction.segment_prefix() == Register::FS || instruction.memory_segment() == Register::FS {
            let slot = loaded.iter().rev().find(|(register, _)| *register == instruction.memory_base());
            slots.extend(slot.map(|(_, slot)| *slot));
        }
        if instruction.code() == Code::Mov_r64_rm64 && instruction.is_ip_rel_memory_operand() {
            loaded.push((instruction.op0_register(), instruction.ip_rel_memory_address()));
        }
    }
    slots
}

/// Returns whether code calls or jumps to a function.
pub(crate) fn calls(code: &[u8], address: u64, target: u64) -> bool {
    instructions(code, address).any(|instruction| {
        let is_branch = matches!(instruction.code(), Code::Call_rel32_64 | Code::Jmp_rel32_64);
        is_branch && instruction.op0_kind() == OpKind::NearBranch64 && instruction.near_branch_target() == target
    })
}
