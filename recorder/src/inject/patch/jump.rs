//! A jump to the library over the first bytes of a function.

use crate::os::processor::code;
use wire::patches::JUMP_BYTES;

/// Where an instruction is, after it was moved for a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedInstruction {
    /// Address of the instruction in the function.
    pub from: u64,
    /// Address of the instruction in the trampoline.
    pub to: u64,
}

/// A jump that is written over the first bytes of a function.
#[derive(Clone, Copy, Debug)]
pub struct Jump<'plan> {
    /// Names of the function.
    pub name: &'plan str,
    pub address: u64,
    /// Address that it leads to.
    pub target: u64,
    /// The function's own bytes, of whole instructions.
    pub expected: &'plan [u8],
    /// Where these instructions are instead.
    pub moved: &'plan [MovedInstruction],
}

impl Jump<'_> {
    /// Returns the bytes of the jump; `None` if it does not reach so far, which the plan has checked.
    pub fn bytes(&self) -> Option<[u8; JUMP_BYTES]> {
        code::jump(self.address, self.target)
    }

    /// Returns the function's own bytes that the jump replaces.
    pub fn original(&self) -> &[u8] {
        self.expected.get(..JUMP_BYTES).unwrap_or_default()
    }
}
