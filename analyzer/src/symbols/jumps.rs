//! Where the code of a module goes without a return: the function that a call site calls, and the
//! jumps by which functions leave to others. They are read from the file, or from what the
//! recording keeps of it.

mod aarch64;
mod x86_64;

use super::elf::{Elf, Functions};
use super::exports::Exports;
use crate::frame::Jump;
use rustc_hash::FxHashMap;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// Maximum number of bytes of a function that are decoded.
const MOST_CODE: u64 = 64 << 10;
/// Maximum number of different jumps of a function that are followed.
const MOST_JUMPS: usize = 32;

/// Where a call or a jump goes, as the code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    /// To an address of the module.
    To(u64),
    /// To what the loader writes to a slot of the module.
    By(u64),
    /// Only the run decides.
    Anywhere,
}

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
        let is_aarch64 = self.elf.is_aarch64();
        let longest = if is_aarch64 { 4 } else { 6 };
        let bytes = self.elf.bytes_at(return_address.checked_sub(longest)?, longest)?;
        let goes = if is_aarch64 {
            aarch64::call_at_end(&bytes, return_address, || {
                let function = self.functions.find(return_address - 1)?;
                let length = function.end.checked_sub(function.start).filter(|length| *length <= MOST_CODE)?;
                Some((self.elf.bytes_at(function.start, length)?, function.start))
            })
        } else {
            x86_64::call_at_end(&bytes, return_address)
        };
        match goes? {
            Goes::To(target) => self.target(target),
            Goes::By(slot) => self.import(slot),
            Goes::Anywhere => None,
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
        let mut jumps: Vec<Jump> = Vec::new();
        let visit = |goes| {
            let jump = match goes {
                Goes::To(target) if inside.contains(&target) => None,
                Goes::To(target) => self.target(target),
                // A `switch` looks like a call by a table of functions.
                Goes::By(slot) => Some(self.import(slot).unwrap_or(Jump::Anywhere)),
                Goes::Anywhere => Some(Jump::Anywhere),
            };
            jumps.extend(jump.filter(|jump| !jumps.contains(jump)));
            jumps.len() < MOST_JUMPS
        };
        let is_whole = if self.elf.is_aarch64() {
            aarch64::jumps(&bytes, start, visit)
        } else {
            x86_64::jumps(&bytes, start, visit)
        };
        // What was not read may lead anywhere.
        if !is_whole || length > MOST_CODE {
            jumps.push(Jump::Anywhere);
        }
        Some(jumps)
    }

    /// Returns where a direct call or jump goes: to a function, or through a stub of the linker.
    fn target(self, target: u64) -> Option<Jump> {
        self.function(target).or_else(|| {
            const STUB: u64 = 24;
            let bytes = self.elf.bytes_at(target, STUB)?;
            let stub = if self.elf.is_aarch64() { aarch64::stub(&bytes, target) } else { x86_64::stub(&bytes, target) };
            match stub? {
                Goes::To(target) => self.function(target),
                Goes::By(slot) => self.import(slot),
                Goes::Anywhere => None,
            }
        })
    }

    fn function(self, start: u64) -> Option<Jump> {
        // mold names its stubs (`malloc$plt`).
        let found = self.functions.find(start).filter(|found| found.start == start && !is_stub(found.symbol));
        found.map(|_| Jump::To(start))
    }

    /// Returns the symbol that the loader finds for a slot.
    fn import(self, slot: u64) -> Option<Jump> {
        self.slots().get(&slot).cloned().map(Jump::Import)
    }

    fn slots(&self) -> &FxHashMap<u64, Rc<[u8]>> {
        self.jumps.slots.get_or_init(|| self.elf.imports())
    }
}

/// Returns whether a linker made this to reach another module, or what is too far for a branch.
pub(super) fn is_stub(symbol: &[u8]) -> bool {
    const ENDS: [&[u8]; 3] = [b"@plt", b"$plt", b"$pltgot"];
    let is_far = symbol.starts_with(b"__AArch64A") || symbol.starts_with(b"__") && symbol.ends_with(b"_veneer");
    is_far || ENDS.iter().any(|end| symbol.ends_with(end))
}
