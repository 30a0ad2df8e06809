//! Layout of a heaptrack data file. Numbers are hexadecimal. Tables are numbered from 1 in order of
//! appearance, infos from 0; 0 means none.
//!
//! ```text
//! v 10400 3            version of heaptrack, version of the file
//! X program arguments  the command line
//! I 1000 5e298f        bytes of a page, pages of the machine
//! A                    attached to a running program: what was allocated before is unknown
//! s 4 main             a text: its length (from version 3 on) and bytes
//! i 401136 1 2 3 7     an address: module, then function, file and line of each function,
//!                      innermost first
//! t 1 0                a stack: its innermost address, and the stack of its caller
//! a 3e9 a              an info: size and stack of an allocation
//! + 1                  an allocation with that info
//! - 1                  the free of one
//! c 12                 milliseconds since the start
//! R 3b3                pages of resident memory
//! S leak:pattern       a rule of LSan, as the program's `__lsan_default_suppressions` returns it
//! # text               for people
//! ```

use crate::prefix::Match;
use std::io::Write;

/// Version of heaptrack that heaptape's files claim: the first one with this file format.
pub const HEAPTRACK: u64 = 0x10400;
/// Version of the files that heaptape writes.
pub const VERSION: u64 = 3;
/// First version whose allocations refer to infos.
pub const FIRST_KNOWN: u64 = 1;
/// First version whose texts have lengths.
pub const FIRST_LENGTHS: u64 = 3;

/// One function of an address: two texts and a line number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrameName {
    /// Number of the function's text.
    pub function: u64,
    /// Number of the source file's text.
    pub file: u64,
    /// Line number in the source file.
    pub line: u64,
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Record `v`: the versions.
    Version {
        /// Version of the heaptrack that wrote the file.
        heaptrack: u64,
        /// Version of the file.
        file: u64,
    },
    /// Record `X`: the command line.
    Command(Vec<u8>),
    /// Record `I`: the memory of the machine.
    System {
        /// Size of a page in bytes.
        page_size: u64,
        /// Number of pages of memory.
        pages: u64,
    },
    /// Record `A`: the program was already running.
    Attached,
    /// Record `s`: the next text of the table.
    Text(Vec<u8>),
    /// Record `i`: the next address of the table.
    Address {
        /// Address of the instruction.
        address: u64,
        /// Number of the module's text.
        module: u64,
        /// Functions at the address, the innermost inlined one first.
        names: Vec<FrameName>,
    },
    /// Record `t`: the next stack of the table.
    Stack {
        /// Number of the innermost address.
        address: u64,
        /// Number of the caller's stack.
        parent: u64,
    },
    /// Record `a`: the next info of the table.
    Info {
        /// Size of the block in bytes.
        size: u64,
        /// Number of the stack.
        stack: u64,
    },
    /// Record `+`: an allocation with the info of this number.
    Alloc(u64),
    /// Record `-`: a free of a block with the info of this number.
    Free(u64),
    /// Record `c`: milliseconds since the start.
    Milliseconds(u64),
    /// Record `R`: pages of resident memory.
    Resident(u64),
    /// Record `S`: a rule of LSan for leaks that the program does not count, `leak:PATTERN`.
    Suppression(Vec<u8>),
    /// Any other line, such as a comment.
    Other(Vec<u8>),
}

/// Appends a line to `out`.
pub fn put(out: &mut Vec<u8>, line: &Line) {
    // Writing to a vector cannot fail.
    let _ = match line {
        Line::Version { heaptrack, file } => writeln!(out, "v {heaptrack:x} {file:x}"),
        Line::Command(text) => {
            let one: Vec<u8> = text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
            out.extend_from_slice(b"X ");
            out.extend_from_slice(&one);
            writeln!(out)
        }
        Line::System { page_size, pages } => writeln!(out, "I {page_size:x} {pages:x}"),
        Line::Attached => writeln!(out, "A"),
        Line::Text(text) => {
            let _ = write!(out, "s {:x} ", text.len());
            out.extend_from_slice(text);
            writeln!(out)
        }
        Line::Address { address, module, names } => {
            let _ = write!(out, "i {address:x} {module:x}");
            for (position, &FrameName { function, file, line }) in names.iter().enumerate() {
                let _ = write!(out, " {function:x}");
                // heaptrack expects file and line after each function but the last, and after that
                // one both or none.
                if file != 0 || position + 1 < names.len() {
                    let _ = write!(out, " {file:x} {line:x}");
                }
            }
            writeln!(out)
        }
        Line::Stack { address, parent } => writeln!(out, "t {address:x} {parent:x}"),
        Line::Info { size, stack } => writeln!(out, "a {size:x} {stack:x}"),
        Line::Alloc(info) => writeln!(out, "+ {info:x}"),
        Line::Free(info) => writeln!(out, "- {info:x}"),
        Line::Milliseconds(time) => writeln!(out, "c {time:x}"),
        Line::Resident(pages) => writeln!(out, "R {pages:x}"),
        Line::Suppression(text) => {
            out.extend_from_slice(b"S ");
            out.extend_from_slice(text);
            writeln!(out)
        }
        Line::Other(text) => {
            out.extend_from_slice(text);
            writeln!(out)
        }
    };
}

/// Matches the first line: `v`, five hexadecimal digits, and a small number.
pub fn sniff(bytes: &[u8]) -> Match {
    let expected = |at: usize, byte: u8| match at {
        0 => byte == b'v',
        1 => byte == b' ',
        2 => byte == b'1',
        3..=6 => byte.is_ascii_hexdigit(),
        7 => byte == b' ' || byte == b'\n',
        _ => byte.is_ascii_hexdigit() || byte == b'\n',
    };
    for (at, &byte) in bytes.iter().enumerate().take(16) {
        if !expected(at, byte) {
            return Match::No;
        }
        if byte == b'\n' {
            return Match::Yes;
        }
    }
    if bytes.len() < 16 { Match::NeedMore } else { Match::No }
}
