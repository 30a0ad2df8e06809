//! Which block holds which, as Perfetto's heap graph: its page shows the retained sizes, and the
//! shortest path to each type. Roots are objects of no size, so that globals have their names.

use super::{Error, Out};
use crate::load::Process;
use crate::report::holders::{Holders, Label};
use crate::symbols::Symbolizer;
use heaptape_formats::perfetto::{
    HeapGraph, HeapGraphObject, HeapGraphRoot, HeapGraphType, InternedText, TracePacket, packet,
};
use std::collections::BTreeSet;

/// Objects of a packet.
const OBJECTS: usize = 10_000;
/// First sequence of packets: each process has one of its own.
const FIRST_SEQUENCE: u32 = 1 << 24;

/// The packets of the graph of a process.
struct Packets<'o> {
    pid: i32,
    at_ns: u64,
    sequence: u32,
    index: u64,
    put: &'o mut dyn FnMut(&[u8]) -> Result<(), Error>,
}

impl Packets<'_> {
    fn put(&mut self, graph: HeapGraph) -> Result<(), Error> {
        let graph = HeapGraph { pid: Some(self.pid), index: Some(self.index), ..graph };
        self.index += 1;
        let (timestamp, sequence) = (Some(self.at_ns), Some(self.sequence));
        let mut bytes = Vec::new();
        packet(&mut bytes, &TracePacket { timestamp, sequence, heap_graph: Some(graph), ..TracePacket::default() });
        (self.put)(&bytes)
    }
}

/// Writes the graph of a process, if it was recorded. `number` is that of the process.
pub(super) fn write(
    process: &Process,
    symbols: &mut Symbolizer,
    (number, pid, at_ns): (u32, i32, u64),
    out: &mut Out,
    put: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let holders = match Holders::of(process, symbols) {
        Ok(Some(holders)) => holders,
        Ok(None) => return Ok(()),
        Err(why) => {
            out.note(format!("{}: {why}", process.about.folder));
            return Ok(());
        }
    };
    let graph = &holders.snapshot.graph;
    let id_of = |block: u32| u64::from(block) + 1;
    let count = graph.blocks.len() as u64;
    let mut packets = Packets { pid, at_ns, sequence: FIRST_SEQUENCE.saturating_add(number), index: 0, put };
    let mut fields: BTreeSet<u32> = BTreeSet::from([0]);
    let mut objects = Vec::new();
    for (block, live) in (0..).zip(graph.blocks.iter()) {
        let label = holders.label(block);
        let references = graph.sure_references(block);
        let field = |word| {
            let field = Label::field(label, word);
            fields.insert(field);
            u64::from(field) + 1
        };
        objects.push(HeapGraphObject {
            id: Some(id_of(block)),
            type_id: Some(u64::from(holders.label_number(block)) + 1),
            self_size: Some(live.size),
            reference_fields: references.iter().map(|reference| reference.word()).map(field).collect(),
            reference_objects: references.iter().map(|reference| id_of(reference.target)).collect(),
        });
        if objects.len() == OBJECTS {
            let objects = std::mem::take(&mut objects);
            packets.put(HeapGraph { objects, continued: Some(true), ..HeapGraph::default() })?;
        }
    }
    // The roots, and what the numbers of all objects mean.
    let labels = holders.labels.iter().map(|label| &label.text);
    let names = labels.chain(holders.groups.iter().map(|group| &group.name));
    let types = (1..).zip(names).map(|(id, name)| HeapGraphType { id: Some(id), class_name: Some(name.clone()) });
    let mut targets: Vec<Vec<u64>> = vec![Vec::new(); holders.groups.len()];
    for (group, target) in holders.root_targets() {
        targets[group as usize].push(id_of(target));
    }
    let mut roots = Vec::new();
    for (group, targets) in (0u64..).zip(targets).filter(|(_, targets)| !targets.is_empty()) {
        let id = count + 1 + group;
        roots.push(id);
        objects.push(HeapGraphObject {
            id: Some(id),
            type_id: Some(holders.labels.len() as u64 + 1 + group),
            self_size: Some(0),
            reference_fields: vec![1; targets.len()],
            reference_objects: targets,
        });
    }
    let name = |field: &u32| InternedText {
        iid: Some(u64::from(*field) + 1),
        text: Some(format!("+{}", 8 * u64::from(*field)).into_bytes()),
    };
    packets.put(HeapGraph {
        objects,
        roots: vec![HeapGraphRoot { objects: roots, kind: Some(0) }],
        types: types.collect(),
        field_names: fields.iter().map(name).collect(),
        continued: Some(false),
        ..HeapGraph::default()
    })
}
