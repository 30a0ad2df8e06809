//! Moves the first instructions of a function, so that a jump can replace them.
//!
//! The jump takes five bytes. All instructions that it touches are moved to the trampoline, which
//! then jumps to the rest of the function. That is not possible if something continues inside of
//! the five bytes: a call that returns there, or a branch of the function itself.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionBlock,
    Mnemonic, OpKind,
};
use wire::patches::{JUMP_BYTES, MAX_MOVED};

/// The most bytes of a function that are searched for branches into its start.
pub(crate) const MAX_SCANNED: usize = 1 << 16;
/// `endbr64`, which stays at the start of a function.
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Why a function's start cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The bytes are no instructions, or not mapped.
    Undecodable,
    /// A call returns into the bytes of the jump.
    Call,
    /// A branch of the function leads into the bytes of the jump.
    Branch,
    /// The function ends before the end of the jump.
    Short,
    /// An instruction cannot be encoded at the trampoline.
    Unmovable,
}

impl Refusal {
    /// Returns the reason as a clause for messages.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Refusal::Undecodable => "its first bytes are no known instructions",
            Refusal::Call => "a call returns into its first bytes",
            Refusal::Branch => "it has a branch into its first bytes",
            Refusal::Short => "it is shorter than a jump",
            Refusal::Unmovable => "its first instructions cannot be moved",
        }
    }
}

/// The start of a function that can be moved.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Address of the first moved instruction.
    pub address: u64,
    /// The bytes of the moved instructions, at least [`JUMP_BYTES`].
    pub bytes: Vec<u8>,
    /// What the entry does first: nothing.
    pub undo: Vec<u8>,
    instructions: Vec<Instruction>,
    /// Whether the last instruction continues with the next one.
    falls_through: bool,
}

/// The instructions that replace the start of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trampoline {
    /// The encoded instructions, and data after them.
    pub code: Vec<u8>,
    /// Offset of each moved instruction in the function, and in the code.
    pub offsets: Vec<(u32, u32)>,
}

/// Examines the function whose `code` is at `address`. `size` is the length of the function, or 0
/// if it is not known.
pub(crate) fn start(code: &[u8], address: u64, size: usize) -> Result<Start, Refusal> {
    let skipped = if code.starts_with(&ENDBR) { ENDBR.len() } else { 0 };
    let (code, address) = (code.get(skipped..).unwrap_or_default(), address.wrapping_add(skipped as u64));
    let size = size.saturating_sub(skipped);
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let (mut instructions, mut length, mut falls_through) = (Vec::new(), 0, true);
    while length < JUMP_BYTES {
        if !falls_through {
            // What follows the end of the function may be overwritten only if it is padding.
            if !is_padding(code, length) {
                return Err(Refusal::Short);
            }
            length = JUMP_BYTES;
            break;
        }
        if !decoder.can_decode() {
            return Err(Refusal::Short);
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(Refusal::Undecodable);
        }
        if size != 0 && length >= size {
            return Err(Refusal::Short);
        }
        length += instruction.len();
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            // The callee returns after the moved instructions; see `trampoline`.
            FlowControl::Call if is_near_call(&instruction) && length >= JUMP_BYTES => {}
            FlowControl::Call | FlowControl::IndirectCall => return Err(Refusal::Call),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return => {
                falls_through = false;
            }
            _ => return Err(Refusal::Unmovable),
        }
        instructions.push(instruction);
    }
    let bytes = code.get(..length).ok_or(Refusal::Short)?.to_vec();
    if bytes.len() > MAX_MOVED {
        return Err(Refusal::Unmovable);
    }
    let scanned = if size == 0 { bytes.len() } else { size.min(code.len()) };
    branches_stay_out(code.get(..scanned).unwrap_or(code), address)?;
    Ok(Start { address, bytes, undo: Vec::new(), instructions, falls_through })
}

/// Returns whether the bytes from `from` to the end of the jump are padding between two functions:
/// `int3` or `nop`.
fn is_padding(code: &[u8], from: usize) -> bool {
    let mut decoder = Decoder::new(64, code.get(from..).unwrap_or_default(), DecoderOptions::NONE);
    while from + decoder.position() < JUMP_BYTES {
        if !decoder.can_decode() || !matches!(decoder.decode().mnemonic(), Mnemonic::Int3 | Mnemonic::Nop) {
            return false;
        }
    }
    true
}

fn is_near_call(instruction: &Instruction) -> bool {
    instruction.code() == Code::Call_rel32_64
}

/// Fails if a branch in the function leads into the bytes of the jump after the first.
fn branches_stay_out(code: &[u8], address: u64) -> Result<(), Refusal> {
    let inside = address.wrapping_add(1)..address.wrapping_add(JUMP_BYTES as u64);
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let is_branch = matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call
        );
        if is_branch
            && matches!(instruction.op0_kind(), OpKind::NearBranch64)
            && inside.contains(&instruction.near_branch_target())
        {
            return Err(Refusal::Branch);
        }
    }
    Ok(())
}

impl Start {
    /// Returns the trampoline for an address.
    ///
    /// # Errors
    /// [`Refusal::Unmovable`] if an instruction cannot be encoded there.
    pub(crate) fn trampoline(&self, at: u64) -> Result<Trampoline, Refusal> {
        let next = self.address.wrapping_add(self.bytes.len() as u64);
        let mut instructions = self.instructions.clone();
        // A moved call must not leave a return address in the trampoline, which no unwind table
        // describes. The return address is pushed, and the callee is jumped to.
        let pushes = self.instructions.last().filter(|last| is_near_call(last)).map(Instruction::near_branch_target);
        if pushes.is_some() {
            instructions.pop();
        } else if self.falls_through {
            instructions.push(Instruction::with_branch(Code::Jmp_rel32_64, next).map_err(|_| Refusal::Unmovable)?);
        }
        let (mut code, mut offsets) = (Vec::new(), Vec::new());
        if !instructions.is_empty() {
            let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
            let block = BlockEncoder::encode(64, InstructionBlock::new(&instructions, at), options);
            let block = block.map_err(|_| Refusal::Unmovable)?;
            let old = self.instructions.iter().map(|moved| moved.ip().wrapping_sub(self.address) as u32);
            offsets = old.zip(block.new_instruction_offsets).collect();
            code = block.code_buffer;
        }
        if let Some(callee) = pushes {
            let call = self.instructions.last().map_or(0, |call| call.ip().wrapping_sub(self.address) as u32);
            offsets.push((call, code.len() as u32));
            // push qword ptr [rip + 5]; jmp callee; the return address
            code.extend([0xff, 0x35, 5, 0, 0, 0, 0xe9]);
            let after = at.wrapping_add(code.len() as u64 + 4);
            let distance = i32::try_from(callee.wrapping_sub(after) as i64).map_err(|_| Refusal::Unmovable)?;
            code.extend(distance.to_le_bytes());
            code.extend(next.to_le_bytes());
        }
        Ok(Trampoline { code, offsets })
    }
}
