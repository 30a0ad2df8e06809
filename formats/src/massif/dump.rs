//! Dump of Massif's output: one snapshot or node per line.

use super::layout::Snapshot;
use super::reader::Reader;
use crate::Ending;
use std::io::{self, Write};

/// Prints the content of a file, and how it ended.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the last line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return writeln!(out, "error {error}"),
    };
    let head = reader.head();
    writeln!(out, "massif {:?} command {:?} unit {:?}", head.desc, head.cmd, head.time_unit)?;
    loop {
        let Snapshot { number, time, heap, extra, stacks, kind, tree } = match reader.next() {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => break,
            Err(error) => return writeln!(out, "error {error}"),
        };
        writeln!(out, "snapshot {number} time {time} heap {heap} extra {extra} stacks {stacks} {}", kind.name())?;
        for node in tree {
            writeln!(out, "node depth {} bytes {} {:?}", node.depth, node.bytes, node.text)?;
        }
    }
    match reader.ending() {
        Some(Ending::Truncated { offset, field }) => writeln!(out, "cut at {offset} in {field}"),
        _ => writeln!(out, "end"),
    }
}
