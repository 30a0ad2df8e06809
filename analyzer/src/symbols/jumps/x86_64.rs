//! Calls and jumps of x86-64 code.

use super::Goes;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

/// Returns where the call at the end of some code goes.
pub(super) fn call_at_end(code: &[u8], end: u64) -> Option<Goes> {
    // `call *SLOT(%rip)`, as `-fno-plt` compiles it. `call FUNCTION` is a byte shorter.
    let [first, second, distance @ ..]: [u8; 6] = *code.last_chunk()?;
    let place = end.wrapping_add_signed(i32::from_le_bytes(distance).into());
    match (first, second) {
        (_, 0xe8) => Some(Goes::To(place)),
        (0xff, 0x15) => Some(Goes::By(place)),
        _ => None,
    }
}

/// Visits the jumps of a function, until `visit` returns false. Returns whether it came to the end.
pub(super) fn jumps(code: &[u8], start: u64, mut visit: impl FnMut(Goes) -> bool) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if goes(&instruction).is_some_and(|goes| !visit(goes)) {
            return !decoder.can_decode();
        }
    }
    true
}

/// Returns where a stub goes that a linker made.
pub(super) fn stub(code: &[u8], address: u64) -> Option<Goes> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let first = decoder.decode();
    let jump = if first.mnemonic() == Mnemonic::Endbr64 { decoder.decode() } else { first };
    goes(&jump).filter(|goes| matches!(goes, Goes::By(_)))
}

fn goes(instruction: &Instruction) -> Option<Goes> {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            Some(Goes::To(instruction.near_branch_target()))
        }
        FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
            Some(Goes::By(instruction.ip_rel_memory_address()))
        }
        FlowControl::IndirectBranch => Some(Goes::Anywhere),
        _ => None,
    }
}
