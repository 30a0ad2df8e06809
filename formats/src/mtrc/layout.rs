//! Layout of MTRC.
//!
//! ```text
//! file    "MTRC"  word 1  word version  record*  "MTRC"
//! record  'I' address size                   heap memory for mpatrol's library
//!         'H' address size                   heap memory for the program
//!         'A' index address size  location   allocation
//!         'R' index address size  location   resize; address and size are the new ones
//!         'F' index               location   free
//! location   thread function file line       only from version 10405 on
//! name    00                 none
//!         80|k bytes 00      the bytes; from now on also the name in slot k  (k in 1..=32)
//!         k                  the name in slot k
//! ```
//! A word is a native word of the writing machine: 4 or 8 bytes.
//!
//! All numbers of a record are unsigned LEB128. Functions and files have a cache of 32 slots each.
//! Bytes after the end mark are not part of the trace.
//!
//! A chunk is a run of records at whose start the writer cleared its name caches, so that it can be
//! read alone.

use crate::{Abi, Cursor, Format, Result};

/// First and last bytes of a file.
pub const MAGIC: &[u8; 4] = b"MTRC";
/// Version that heaptape writes: that of mpatrol 1.5.1.
pub const VERSION: u64 = 10501;
/// First version whose records have a location.
pub const FIRST_WITH_LOCATION: u64 = 10405;
/// First version that is refused, as mpatrol's own tool refuses it.
pub const FIRST_TOO_NEW: u64 = 10600;
/// Number of slots of a name cache; slots are numbered from 1.
pub const SLOTS: usize = 32;
/// Maximum length of a name that mpatrol's own tool can read, without its NUL.
pub const LONGEST_NAME: usize = 1023;

/// Record tag: heap memory for the program.
pub const HEAP: u8 = b'H';
/// Record tag: heap memory for mpatrol's library.
pub const INTERNAL: u8 = b'I';
/// Tag of an allocation record.
pub const ALLOC: u8 = b'A';
/// Tag of a reallocation record.
pub const RESIZE: u8 = b'R';
/// Tag of a free record.
pub const FREE: u8 = b'F';

/// Header of a trace, before the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// ABI of the machine that wrote the file. Only the header itself depends on it.
    pub abi: Abi,
    /// Version of the library that wrote the file.
    pub version: u64,
}

impl Default for Header {
    fn default() -> Self {
        Header { abi: Abi::LE64, version: VERSION }
    }
}

impl Header {
    /// Returns whether A, R and F records have thread, function, file and line.
    pub const fn has_location(&self) -> bool {
        self.version >= FIRST_WITH_LOCATION
    }

    /// Returns the length of the header in bytes.
    pub const fn len(&self) -> usize {
        MAGIC.len() + 2 * self.abi.word_size as usize
    }

    /// Returns `false`, since a header has at least its magic bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads a header from the start of `bytes`.
    ///
    /// # Errors
    ///
    /// When the bytes are truncated, are not a trace, or have a version that is not read.
    pub fn read(bytes: &[u8]) -> Result<Header> {
        let mut cursor = Cursor::new(Format::Mtrc, bytes);
        let (abi, version) = cursor.start_of_mpatrol(MAGIC, 0..FIRST_TOO_NEW)?;
        Ok(Header { abi, version })
    }

    /// Appends the header to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.abi.put_start(out, MAGIC, self.version);
    }
}

/// Thread and source location of a call, as far as the trace has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location<'a> {
    /// Number of the thread; 0 in programs with one thread.
    pub thread: u64,
    /// Name of the calling function.
    pub function: Option<&'a [u8]>,
    /// Name of its source file.
    pub file: Option<&'a [u8]>,
    /// Line number; 0 if unknown.
    pub line: u64,
}

impl Location<'_> {
    /// Returns a location with a thread only.
    pub const fn thread(thread: u64) -> Location<'static> {
        Location { thread, function: None, file: None, line: 0 }
    }
}

/// One record of a trace. Names are borrowed from the reader's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// `H`: heap memory for the program.
    Heap {
        /// Address of the memory.
        address: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// `I`: heap memory for mpatrol's library.
    Internal {
        /// Address of the memory.
        address: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// Record `A`: an allocation.
    Alloc {
        /// Index of the allocation.
        index: u64,
        /// Address of the block.
        address: u64,
        /// Requested size in bytes.
        size: u64,
        /// Location of the call.
        location: Location<'a>,
    },
    /// Record `R`: a reallocation.
    Resize {
        /// Index of the allocation, which the block keeps.
        index: u64,
        /// New address of the block.
        address: u64,
        /// New size in bytes.
        size: u64,
        /// Location of the call.
        location: Location<'a>,
    },
    /// Record `F`: a deallocation.
    Free {
        /// Index of the allocation, which ends here.
        index: u64,
        /// Location of the call.
        location: Location<'a>,
    },
}
