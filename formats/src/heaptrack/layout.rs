//! The lines of a heaptrack data file, described here and nowhere else. Numbers are hexadecimal; tables are numbered from 1 in
//! order of appearance, infos from 0; 0 is none.
//!
//! ```text
//! v 10400 3            version of heaptrack, version of the file
//! X program arguments  the command line
//! I 1000 5e298f        bytes of a page, pages of the machine
//! A                    attached to a running program: what was allocated before is unknown
//! s 4 main             a text: its length (from version 3 on) and bytes
//! i 401136 1 2 3 7     an address: module, then function, file and line of each function, innermost first
//! t 1 0                a stack: its innermost address, and the stack of its caller
//! a 3e9 a              an info: size and stack of an allocation
//! + 1                  an allocation with that info
//! - 1                  the free of one
//! c 12                 milliseconds since the start
//! R 3b3                pages of resident memory
//! # text               for people
//! ```

use crate::sniff::Answer;
use std::io::Write;

/// The version of heaptrack that our files claim: the first one with this file format.
pub const HEAPTRACK: u64 = 0x10400;
/// The version of the files that heaptape writes.
pub const VERSION: u64 = 3;
/// The first version whose allocations name infos.
pub const FIRST_KNOWN: u64 = 1;
/// The first version whose texts have lengths.
pub const FIRST_LENGTHS: u64 = 3;

/// Function, file and line: texts and a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameOf {
    /// Text of the function.
    pub function: u64,
    /// Text of the source file.
    pub file: u64,
    /// The line.
    pub line: u64,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// `v`
    Version {
        /// Of heaptrack.
        heaptrack: u64,
        /// Of the file.
        file: u64,
    },
    /// `X`
    Command(Vec<u8>),
    /// `I`
    System {
        /// Bytes of a page.
        page_size: u64,
        /// Pages of memory.
        pages: u64,
    },
    /// `A`
    Attached,
    /// `s`
    Text(Vec<u8>),
    /// `i`
    Address {
        /// The address.
        address: u64,
        /// Text of the module.
        module: u64,
        /// Names, innermost first.
        names: Vec<NameOf>,
    },
    /// `t`
    Stack {
        /// Innermost address.
        address: u64,
        /// The caller's stack.
        parent: u64,
    },
    /// `a`
    Info {
        /// Bytes of the block.
        size: u64,
        /// The stack.
        stack: u64,
    },
    /// `+`
    Alloc(u64),
    /// `-`
    Free(u64),
    /// `c`
    Milliseconds(u64),
    /// `R`
    Resident(u64),
    /// Anything else: comments, suppressions.
    Other(Vec<u8>),
}

/// Appends a line.
pub fn put(out: &mut Vec<u8>, line: &Line) {
    // A vector takes whatever comes.
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
            for (place, &NameOf { function, file, line }) in names.iter().enumerate() {
                let _ = write!(out, " {function:x}");
                // heaptrack reads file and line behind each function but the last, and there both or none.
                if file != 0 || place + 1 < names.len() {
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
        Line::Other(text) => {
            out.extend_from_slice(text);
            writeln!(out)
        }
    };
}

/// The first line: `v`, five hexadecimal digits, and a small number.
pub fn sniff(bytes: &[u8]) -> Answer {
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
            return Answer::No;
        }
        if byte == b'\n' {
            return Answer::Yes;
        }
    }
    if bytes.len() < 16 { Answer::More } else { Answer::No }
}
