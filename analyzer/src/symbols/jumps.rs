//! Where the code of a module goes without a return: the function that a call site calls, and the
//! jumps by which functions leave to others. They are read from the file, or from what the
//! recording keeps of it.

use super::elf::{Elf, Functions};
use super::exports::Exports;
use crate::frame::Jump;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use rustc_hash::FxHashMap;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// Maximum number of bytes of a function that are decoded.
const MOST_CODE: u64 = 64 << 10;
/// Maximum number of different jumps of a function that are followed.
const MOST_JUMPS: usize = 32;

/// The jumps of the functions of one file.
#[derive(Default)]
pub(super) struct Jumps {
    known: RefCell<FxHashMap<u64, Rc<[Jump]>>>,
    /// Symbols by the address of the slot that the loader fills with their address.
    slots: OnceCell<FxHashMap<u64, Rc<[u8]>>>,
    /// Link-time addresses of the functions that other modules may call, by symbol.
    exports: OnceCell<Exports>,
}

/// The file in which functions and their code are.
#[derive(Clone, Copy)]
pub(super) struct Code<'a> {
    pub elf: &'a Elf,
    pub functions: &'a Functions,
    pub jumps: &'a Jumps,
}

impl Code<'_> {
    /// Returns where the call before a return address goes, if the instruction says it.
    pub(super) fn called(self, return_address: u64) -> Option<Jump> {
        /// Length of `call *SLOT(%rip)`, as `-fno-plt` compiles it. `call FUNCTION` is a byte
        /// shorter.
        const LENGTH: u64 = 6;
        if self.elf.is_aarch64() {
            return None;
        }
        let bytes = self.elf.bytes_at(return_address.checked_sub(LENGTH)?, LENGTH)?;
        let [first, second, distance @ ..]: [u8; LENGTH as usize] = bytes.try_into().ok()?;
        let place = return_address.wrapping_add_signed(i32::from_le_bytes(distance).into());
        match (first, second) {
            (_, 0xe8) => self.target(place),
            (0xff, 0x15) => self.slots().get(&place).cloned().map(Jump::Import),
            _ => None,
        }
    }

    /// Returns the jumps by which the function at `start` leaves to others.
    pub(super) fn jumps_of(self, start: u64) -> Rc<[Jump]> {
        if let Some(known) = self.jumps.known.borrow().get(&start) {
            return known.clone();
        }
        let found: Rc<[Jump]> = self.read(start).unwrap_or_default().into();
        self.jumps.known.borrow_mut().insert(start, found.clone());
        found
    }

    /// Returns the link-time address of a function that other modules may call.
    pub(super) fn export(self, symbol: &[u8]) -> Option<u64> {
        self.jumps.exports.get_or_init(|| Exports::of(self.elf)).find(self.elf, symbol)
    }

    fn read(self, start: u64) -> Option<Vec<Jump>> {
        let function = self.functions.find(start)?;
        let inside = start..function.end;
        let length = function.end.checked_sub(start)?;
        let bytes = self.elf.bytes_at(start, length.min(MOST_CODE))?;
        let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
        let (mut jumps, mut instruction): (Vec<Jump>, _) = (Vec::new(), Instruction::default());
        while decoder.can_decode() && jumps.len() < MOST_JUMPS {
            decoder.decode_out(&mut instruction);
            let jump = match instruction.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    let target = instruction.near_branch_target();
                    if inside.contains(&target) { None } else { self.target(target) }
                }
                FlowControl::IndirectBranch => {
                    // A `switch` looks like a call by a table of functions.
                    Some(self.import(&instruction).map_or(Jump::Anywhere, Jump::Import))
                }
                _ => None,
            };
            if let Some(jump) = jump.filter(|jump| !jumps.contains(jump)) {
                jumps.push(jump);
            }
        }
        // What was not read may lead anywhere.
        if decoder.can_decode() || length > MOST_CODE {
            jumps.push(Jump::Anywhere);
        }
        Some(jumps)
    }

    /// Returns where a direct call or jump goes: to a function, or through a stub of the linker.
    fn target(self, target: u64) -> Option<Jump> {
        // mold names its stubs (`malloc$plt`).
        if self.functions.find(target).is_some_and(|function| function.start == target && !is_stub(function.symbol)) {
            return Some(Jump::To(target));
        }
        const STUB: u64 = 16;
        let bytes = self.elf.bytes_at(target, STUB)?;
        let mut decoder = Decoder::with_ip(64, &bytes, target, DecoderOptions::NONE);
        let first = decoder.decode();
        let jump = if first.mnemonic() == Mnemonic::Endbr64 { decoder.decode() } else { first };
        self.import(&jump).map(Jump::Import)
    }

    /// Returns the symbol of the slot through which an instruction jumps.
    fn import(self, jump: &Instruction) -> Option<Rc<[u8]>> {
        if jump.flow_control() != FlowControl::IndirectBranch || !jump.is_ip_rel_memory_operand() {
            return None;
        }
        self.slots().get(&jump.ip_rel_memory_address()).cloned()
    }

    fn slots(&self) -> &FxHashMap<u64, Rc<[u8]>> {
        self.jumps.slots.get_or_init(|| self.elf.imports())
    }
}

/// Returns whether a linker made this to reach another module.
pub(super) fn is_stub(symbol: &[u8]) -> bool {
    const ENDS: [&[u8]; 3] = [b"@plt", b"$plt", b"$pltgot"];
    ENDS.iter().any(|end| symbol.ends_with(end))
}
