//! The bytes of MTRC, described here and nowhere else.
//!
//! ```text
//! file    "MTRC"  word 1  word version  record*  "MTRC"             word = native word of the writing machine
//! record  'I' address size                                          heap taken for the library itself
//!         'H' address size                                          heap taken for the program
//!         'A' index address size  location                             allocation
//!         'R' index address size  location                             resize; address and size are the new ones
//!         'F' index               location                             free
//! location   thread function file line                                 only from version 10405 on
//! name    00 = none    80|k bytes 00 = slot k is this from now on    k = the name in slot k     (k in 1..=32)
//! ```
//! All numbers of a record are unsigned LEB128. Functions and files have a cache of 32 slots each. Whatever follows the end
//! mark is not part of the trace.
//!
//! A chunk is a piece of the records that starts where the writer forgot all names, so that it can be read alone.

use crate::{Abi, Cursor, Format, Kind, Result};

/// First and last bytes of a file.
pub const MAGIC: &[u8; 4] = b"MTRC";
/// The version that heaptape writes: that of mpatrol 1.5.1.
pub const VERSION: u64 = 10501;
/// The first version whose records carry a location.
pub const FIRST_WITH_LOCATION: u64 = 10405;
/// Versions from here on are refused, as mpatrol's own tool refuses them.
pub const FIRST_TOO_NEW: u64 = 10600;
/// Slots of a name cache, numbered from 1.
pub const SLOTS: usize = 32;
/// The longest name that mpatrol's own tool can read, without its NUL.
pub const LONGEST_NAME: usize = 1023;

/// Record tag: heap taken for the program.
pub const HEAP: u8 = b'H';
/// Record tag: heap taken for the library itself.
pub const INTERNAL: u8 = b'I';
/// Record tag: allocation.
pub const ALLOC: u8 = b'A';
/// Record tag: resize.
pub const RESIZE: u8 = b'R';
/// Record tag: free.
pub const FREE: u8 = b'F';

/// What stands before the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Byte order and word size of the machine that wrote it; only the header itself depends on it.
    pub abi: Abi,
    /// Version of the library that wrote it.
    pub version: u64,
}

impl Default for Header {
    fn default() -> Self {
        Header { abi: Abi::LE64, version: VERSION }
    }
}

impl Header {
    /// Whether A, R and F records carry thread, function, file and line.
    pub const fn has_location(&self) -> bool {
        self.version >= FIRST_WITH_LOCATION
    }

    /// Bytes that the header takes.
    pub const fn len(&self) -> usize {
        MAGIC.len() + 2 * self.abi.word_size as usize
    }

    /// Never: a header has at least its magic.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads a header from the start of `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Header> {
        let mut cursor = Cursor::new(Format::Mtrc, bytes);
        cursor.magic("magic", MAGIC)?;
        let Some(abi) = Abi::detect(cursor.rest()) else {
            let kind = if cursor.remaining() < 8 { Kind::Truncated } else { Kind::Text("no machine's word 1".into()) };
            return Err(cursor.error("byte order mark", kind));
        };
        cursor.word("byte order mark", abi)?;
        let before = cursor.clone();
        let version = cursor.word("version", abi)?;
        if version >= FIRST_TOO_NEW {
            return Err(before.error("version", Kind::Version(version)));
        }
        Ok(Header { abi, version })
    }

    /// Appends the header.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        self.abi.put_word(out, 1);
        self.abi.put_word(out, self.version);
    }
}

/// Who called, as far as the trace says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location<'a> {
    /// Thread number; 0 in programs with one thread.
    pub thread: u64,
    /// Function.
    pub function: Option<&'a [u8]>,
    /// Source file.
    pub file: Option<&'a [u8]>,
    /// Line; 0 is unknown.
    pub line: u64,
}

impl Location<'_> {
    /// A thread and nothing else.
    pub const fn thread(thread: u64) -> Location<'static> {
        Location { thread, function: None, file: None, line: 0 }
    }
}

/// One record. Names are borrowed from the reader's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// `H`: heap taken for the program.
    Heap {
        /// First byte.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// `I`: heap taken for the library itself.
    Internal {
        /// First byte.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// `A`: a block is handed out.
    Alloc {
        /// Number of the allocation.
        index: u64,
        /// First byte of the block.
        address: u64,
        /// Bytes asked for.
        size: u64,
        /// Who asked.
        location: Location<'a>,
    },
    /// `R`: a block has a new address or size.
    Resize {
        /// Number of the allocation, kept.
        index: u64,
        /// New first byte.
        address: u64,
        /// New size.
        size: u64,
        /// Who asked.
        location: Location<'a>,
    },
    /// `F`: a block is given back.
    Free {
        /// Number of the allocation, which ends here.
        index: u64,
        /// Who gave it back.
        location: Location<'a>,
    },
}
