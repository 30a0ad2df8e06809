//! Names of data: global variables and vtables, by their link-time addresses.

use super::Symbolizer;
use super::elf::{Elf, Objects};
use crate::stacks::Module;

/// The data of a module that an address is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSymbol {
    /// Symbol as it is in the file, which may be mangled.
    pub symbol: String,
    /// Link-time address of its start.
    pub start: u64,
    /// Offset of the address in it.
    pub offset: u64,
}

impl Symbolizer {
    /// Returns the global variable or vtable at a run-time address of a module, if its file has a
    /// symbol for it.
    pub fn data(&mut self, module: &Module, address: u64) -> Option<DataSymbol> {
        let object = self.object(module);
        let live = self.live(object);
        let read = || live.files.iter().fold(Objects::default(), |all, (_, elf)| all.with(Elf::objects(elf)));
        if live.data.is_none() {
            live.data = Some(read());
        }
        let address = address.wrapping_sub(module.bias);
        let (start, symbol) = live.data.as_ref()?.find(address)?;
        let symbol = String::from_utf8_lossy(symbol).into_owned();
        Some(DataSymbol { symbol, start, offset: address - start })
    }
}
