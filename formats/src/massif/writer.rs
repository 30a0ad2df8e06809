//! Writes Massif's output.

use super::layout::{Head, Kind, RULE, Snapshot};
use std::fmt::Write;

/// The first lines. Texts must hold no line feeds.
pub fn head(out: &mut String, head: &Head) {
    // A string takes whatever comes.
    let _ = writeln!(out, "desc: {}\ncmd: {}\ntime_unit: {}", head.desc, head.cmd, head.time_unit);
}

/// A snapshot with its tree.
pub fn snapshot(out: &mut String, snapshot: &Snapshot) {
    let Snapshot { number, time, heap, extra, stacks, kind, tree } = snapshot;
    let _ = writeln!(out, "{RULE}\nsnapshot={number}\n{RULE}");
    let _ = writeln!(out, "time={time}\nmem_heap_B={heap}\nmem_heap_extra_B={extra}\nmem_stacks_B={stacks}");
    let _ = writeln!(out, "heap_tree={}", kind.word());
    if *kind != Kind::Empty {
        for node in tree {
            let _ = writeln!(out, "{:depth$}n{}: {} {}", "", node.children, node.bytes, node.text, depth = node.depth);
        }
    }
}
