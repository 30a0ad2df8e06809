//! Writer of Massif's output.

use super::layout::{Header, Kind, RULE, Snapshot};
use std::fmt::Write;

/// Appends the header lines. The texts must not contain line feeds.
pub fn write_header(out: &mut String, head: &Header) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "desc: {}\ncmd: {}\ntime_unit: {}", head.desc, head.cmd, head.time_unit);
}

/// Appends a snapshot with its tree.
pub fn write_snapshot(out: &mut String, snapshot: &Snapshot) {
    let Snapshot { number, time, heap, extra, stacks, kind, tree } = snapshot;
    let _ = writeln!(out, "{RULE}\nsnapshot={number}\n{RULE}");
    let _ = writeln!(out, "time={time}\nmem_heap_B={heap}\nmem_heap_extra_B={extra}\nmem_stacks_B={stacks}");
    let _ = writeln!(out, "heap_tree={}", kind.name());
    if *kind != Kind::Empty {
        for node in tree {
            let _ = writeln!(out, "{:depth$}n{}: {} {}", "", node.children, node.bytes, node.text, depth = node.depth);
        }
    }
}
