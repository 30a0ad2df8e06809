//! The names that a recording keeps of its own: for each module the functions, source lines and
//! inlined functions of the addresses that its call sites hold, so that a rebuilt or deleted binary
//! takes no name away.
//!
//! They are records of a tape of their own, `symbols.tape`, beside `events.tape`: it is written
//! once a process has ended, and a reader that does not know it passes over it.

use super::Codec;
use super::FileId;
use super::field::{Added, Field, Text};
use crate::{Cursor, Error, Format, Kind, Result, tape_record};

/// Maximum length of a table in bytes, unpacked.
pub const MAX_TABLE: usize = 16 << 20;

tape_record! {
    /// Kind 16, in `symbols.tape` only: names of one module. Several records of a module add up.
    Symbols {
        /// Path of the module, as [`super::Module`] has it.
        path: Text,
        /// Build ID, as [`super::Module`] has it; empty if there is none.
        build_id: Text,
        /// Size in bytes of the file that the names were read from.
        file_bytes: u64,
        /// CRC-32 of the headers and the symbol table of that file, which identifies a file without
        /// build ID.
        checksum: u32,
        /// First link-time address of the code; 0 if it is not known.
        code_start: u64,
        /// First address after the code; 0 if it is not known.
        code_end: u64,
        /// One of the `LINES_` numbers.
        lines: u8,
        /// Text that the module's function `__lsan_default_suppressions` returns.
        suppressions: Option<Text>,
        /// How the table is stored: a number of [`Codec`].
        codec: u8,
        /// Number of bytes of the table when unpacked.
        plain_length: u32,
        /// Stored bytes of the [`SymbolTable`].
        stored: Text,
        /// What identifies the file of a module without build ID, as [`super::Module`] has it.
        file: Added<FileId>,
        /// The files with parts of its debug information that were missing.
        missing: Added<Vec<Text>>,
    }
}

/// Lines were not looked for: only symbol tables were read.
pub const LINES_UNREAD: u8 = 0;
/// The debug information was read: an address without lines has none.
pub const LINES_READ: u8 = 1;
/// The module had no debug information.
pub const LINES_NONE: u8 = 2;

tape_record! {
    /// A function that contains the address of a call site.
    SymbolFunction {
        /// Link-time start, as the difference from the function before it in the table.
        start: u64,
        /// Number of bytes of code.
        length: u64,
        /// Number of the text with its symbol, from 1.
        symbol: u32,
    }
}

tape_record! {
    /// A frame of an address, as debug information knows it. Texts are numbered from 1; 0 is none.
    SymbolFrame {
        /// Number of the text with its symbol, or with the plain name if there is no symbol.
        symbol: u32,
        /// Number of the text with its source file.
        file: u32,
        /// Number of the line; 0 if it is not known.
        line: u32,
    }
}

tape_record! {
    /// An address of a call site.
    SymbolAddress {
        /// Link-time address of the instruction, as the difference from the address before it in
        /// the table.
        address: u64,
        /// Frames at the address, the most deeply inlined first; empty without debug information.
        frames: Vec<SymbolFrame>,
    }
}

tape_record! {
    /// Where a call or a jump goes: to the function with this symbol, which the loader finds, to
    /// one at an address of the module, or, if both are 0, to one that only the run decides.
    SymbolTarget {
        /// Number of the text with the symbol; 0 is none.
        symbol: u32,
        /// Link-time start of the function.
        address: u64,
    }
}

tape_record! {
    /// Where a call site or a function goes.
    SymbolTargets {
        /// Link-time address of the call site or start of the function, as the difference from the
        /// one before it in the table.
        from: u64,
        /// Where the call, or the jumps by which the function ends, go.
        targets: Vec<SymbolTarget>,
    }
}

tape_record! {
    /// Functions and addresses of a module, both in ascending order.
    SymbolTable {
        /// Names of symbols and files, each once.
        texts: Vec<Text>,
        /// Functions that contain addresses of call sites.
        functions: Vec<SymbolFunction>,
        /// Addresses of call sites, with their frames from the debug information.
        addresses: Vec<SymbolAddress>,
        /// Call sites of functions that may have left by a jump, and where each goes.
        calls: Added<Vec<SymbolTargets>>,
        /// Functions that leave by jumps, and where these go.
        jumps: Added<Vec<SymbolTargets>>,
        /// Functions that other modules of the process may have called or jumped to.
        exports: Added<Vec<SymbolTarget>>,
    }
}

impl SymbolTable {
    /// Packs the table into a record that names the module.
    ///
    /// # Examples
    ///
    /// ```
    /// use heaptape_formats::tape::{SymbolFunction, SymbolTable, Symbols};
    ///
    /// let table = SymbolTable {
    ///     texts: vec!["main".into()],
    ///     functions: vec![SymbolFunction { start: 0x1139, length: 20, symbol: 1 }],
    ///     ..SymbolTable::default()
    /// };
    /// let record = table.pack(Symbols { path: "/usr/bin/program".into(), ..Symbols::default() })?;
    /// assert_eq!(SymbolTable::unpack(&record)?, table);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When it is longer than [`MAX_TABLE`].
    pub fn pack(&self, of: Symbols) -> std::io::Result<Symbols> {
        /// Tables are small and written once: 9 packs a tenth better than 3, in the same
        /// milliseconds.
        const LEVEL: i32 = 9;
        let mut plain = Vec::new();
        self.put(&mut plain);
        if plain.len() > MAX_TABLE {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        let mut stored = Vec::new();
        Codec::Zstd.pack(&plain, LEVEL, &mut stored)?;
        let codec = Codec::Zstd as u8;
        Ok(Symbols { codec, plain_length: plain.len() as u32, stored: Text(stored), ..of })
    }

    /// Reads the table of a record.
    ///
    /// # Errors
    /// When its bytes are no such table.
    pub fn unpack(of: &Symbols) -> Result<SymbolTable> {
        let bad =
            |text: String| Error { format: Format::Tape, offset: 0, field: "Symbols.stored", kind: Kind::Text(text) };
        let codec = Codec::from_number(of.codec).ok_or_else(|| bad(format!("unknown codec {}", of.codec)))?;
        if of.plain_length as usize > MAX_TABLE {
            return Err(bad(format!("{} bytes, more than {MAX_TABLE}", of.plain_length)));
        }
        let plain = codec.unpack(&of.stored.0, of.plain_length as usize).map_err(|error| bad(error.to_string()))?;
        SymbolTable::get(&mut Cursor::new(Format::Tape, &plain), "Symbols.stored")
    }
}

tape_record! {
    /// The addresses to look up in a module. Descriptors are numbered from 1 in the order in which
    /// they are sent; 0 means none.
    SymbolQuery {
        /// Path of the module.
        path: Text,
        /// Build ID of the module; empty if there is none.
        build_id: Text,
        /// What identifies its file if it has no build ID.
        identity: FileId,
        /// Start of the process in nanoseconds since 1970: a file without build ID that was changed
        /// later may be another one.
        since_unix_ns: u64,
        /// Number of the descriptor of the module's file.
        file: u32,
        /// Number of the descriptor of the file with its separate debug information.
        debug_file: u32,
        /// Link-time addresses in ascending order.
        addresses: Vec<u64>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_as_they_were_packed() {
        let table = SymbolTable {
            texts: vec!["main".into(), "/src/main.c".into()],
            functions: vec![SymbolFunction { start: 0x1139, length: 20, symbol: 1 }],
            addresses: vec![SymbolAddress {
                address: 0x1140,
                frames: vec![SymbolFrame { symbol: 1, file: 2, line: 7 }],
            }],
            calls: Added(vec![SymbolTargets {
                from: 0x1140,
                targets: vec![SymbolTarget { symbol: 0, address: 0x1139 }],
            }]),
            jumps: Added(vec![SymbolTargets {
                from: 0x1139,
                targets: vec![SymbolTarget { symbol: 1, address: 0 }, SymbolTarget::default()],
            }]),
            exports: Added(vec![SymbolTarget { symbol: 1, address: 0x1139 }]),
        };
        let of = Symbols { path: "/bin/x".into(), lines: LINES_READ, ..Symbols::default() };
        let packed = table.pack(of).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(SymbolTable::unpack(&packed).unwrap_or_else(|error| panic!("{error}")), table);
        for wrong in [
            Symbols { plain_length: packed.plain_length + 1, ..packed.clone() },
            Symbols { plain_length: u32::MAX, ..packed.clone() },
            Symbols { codec: 9, ..packed.clone() },
            Symbols { stored: Text(packed.stored.0[..8].to_vec()), ..packed.clone() },
        ] {
            assert!(SymbolTable::unpack(&wrong).is_err(), "{wrong:?}");
        }
    }
}
