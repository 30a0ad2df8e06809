//! The operations of a recorded process.

use crate::operations::{Action, Operation, Writer};
use heaptape_analyzer::event::{Event, Span};
use heaptape_analyzer::model::Model;
use heaptape_analyzer::model::live_set::Block;
use heaptape_analyzer::report::written::written_bytes;
use heaptape_analyzer::{Process, Progress, replay};
use heaptape_formats::tape::Entry;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};

/// Largest alignment that is concluded from an address, as a binary logarithm.
const MAX_ALIGNMENT: u32 = 12;

/// Why the operations of a process cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Unplayable {
    /// Only some of the events were recorded.
    #[error("the recording is sampled: the allocations between the samples are not in it")]
    Sampled,
    /// The process has more threads than a file of operations holds.
    #[error("the process had more than 65,536 threads")]
    Threads,
    /// The process has no event of its own.
    #[error("the recording has no allocations of the process")]
    Empty,
    /// The file cannot be written.
    #[error("the file of operations cannot be written")]
    File(#[from] io::Error),
}

/// Sums of the sizes that the program requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveBytes {
    /// The largest sum of the sizes of all live blocks.
    pub peak: u64,
    pub end: u64,
    /// Bytes of blocks that are live at the end and are not written, since the program did not
    /// write to them either.
    pub unwritten_end: u64,
}

/// Turns events into operations.
struct Recorded<W: Write + Seek> {
    writer: Writer<W>,
    slots: FxHashMap<u64, u32>,
    free_slots: Vec<u32>,
    threads: FxHashMap<u32, u16>,
    live: LiveBytes,
    /// Bytes that were written of blocks of which not all was, by allocation index.
    written: FxHashMap<u64, u64>,
    /// Bytes of live blocks that are not written.
    unwritten: u64,
    error: Option<Unplayable>,
}

impl<W: Write + Seek> Recorded<W> {
    fn push(&mut self, event: &Event, action: Action, slot: u32, size: u64) {
        if self.error.is_some() {
            return;
        }
        let next = self.threads.len();
        let thread = *self.threads.entry(event.thread).or_insert(next as u16);
        if usize::from(thread) < next || next <= usize::from(u16::MAX) {
            let alignment = event.address.trailing_zeros().min(MAX_ALIGNMENT) as u8;
            let operation = Operation { action, alignment, thread, slot, size };
            let written = self.written.get(&event.index).copied().filter(|written| *written < size);
            let limit = written.map(|size| Operation { action: Action::LimitWrites, size, ..operation });
            let mut pushed = limit.into_iter().chain([operation]).map(|operation| self.writer.push(operation));
            self.error = pushed.find_map(Result::err).map(Unplayable::File);
        } else {
            self.error = Some(Unplayable::Threads);
        }
    }

    fn take_slot(&mut self, index: u64) -> u32 {
        let next = self.slots.len() as u32;
        let slot = self.free_slots.pop().unwrap_or(next);
        self.slots.insert(index, slot);
        slot
    }

    /// Counts bytes of a block that are allocated and freed.
    fn count(&mut self, index: u64, added: u64, removed: u64) {
        if let Some(written) = self.written.get(&index) {
            let left = |size: u64| size.saturating_sub(*written);
            self.unwritten = self.unwritten.saturating_sub(left(removed)).saturating_add(left(added));
        }
        self.live.end = self.live.end.saturating_sub(removed).saturating_add(added);
        self.live.peak = self.live.peak.max(self.live.end);
    }
}

impl<W: Write + Seek> Model for Recorded<W> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        // A block that a heap of the program returns is in one of malloc's.
        if event.entry == Entry::AllocReported as u8 {
            return;
        }
        let slot = self.take_slot(event.index);
        let action = match Entry::from_number(event.entry) {
            Some(Entry::Calloc) => Action::AllocateZeroed,
            Some(Entry::PosixMemalign | Entry::AlignedAlloc | Entry::Memalign | Entry::Valloc | Entry::Pvalloc) => {
                Action::AllocateAligned
            }
            _ => Action::Allocate,
        };
        self.count(event.index, block.size, 0);
        self.push(event, action, slot, block.size);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        match self.slots.get(&event.index).copied() {
            Some(slot) => {
                self.count(event.index, block.size, old.map_or(0, |old| old.size));
                self.push(event, Action::Resize, slot, block.size);
            }
            // Of a block from before the recording, or inherited from the parent.
            None if event.entry != Entry::ResizeReported as u8 => {
                let slot = self.take_slot(event.index);
                self.count(event.index, block.size, 0);
                self.push(event, Action::Allocate, slot, block.size);
            }
            None => {}
        }
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(slot) = self.slots.remove(&event.index) {
            self.free_slots.push(slot);
            self.count(event.index, 0, old.map_or(0, |old| old.size));
            self.push(event, Action::Free, slot, 0);
        }
    }
}

/// Size of the buffer of a file of operations.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes the operations of a process to a file. Returns the bytes that it requested, and what is
/// missing from its recording, as sentences.
///
/// # Errors
/// The process has no events that could be replayed, or the file cannot be written.
pub fn write_operations(
    process: &Process,
    progress: &Progress,
    file: &File,
) -> Result<(LiveBytes, Vec<String>), Unplayable> {
    write(process, progress, BufWriter::with_capacity(BUFFER_BYTES, file))
}

fn write<W: Write + Seek>(
    process: &Process,
    progress: &Progress,
    out: W,
) -> Result<(LiveBytes, Vec<String>), Unplayable> {
    if process.tape.is_sampled() {
        return Err(Unplayable::Sampled);
    }
    let mut model = Recorded {
        writer: Writer::new(out)?,
        slots: FxHashMap::default(),
        free_slots: Vec::new(),
        threads: FxHashMap::default(),
        live: LiveBytes::default(),
        written: written_bytes(process, progress),
        unwritten: 0,
        error: None,
    };
    let outcome = replay(process, Span::ALL, progress, &mut model);
    if let Some(error) = model.error {
        return Err(error);
    }
    if model.writer.finish()?.operations == 0 {
        return Err(Unplayable::Empty);
    }
    let missing = process.missing.iter().chain(&outcome.missing).map(ToString::to_string);
    model.live.unwritten_end = model.unwritten;
    Ok((model.live, missing.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::{HEADER_BYTES, Header, OPERATION_BYTES};
    use heaptape_analyzer::event::Kind;
    use std::io::Cursor;
    use std::path::Path;

    /// Every event of a recording is an operation, of the same thread and size, on the slot that
    /// holds its block.
    #[test]
    fn operations_are_the_events() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tape/v1/trace");
        let recording = heaptape_analyzer::open(&path).expect("a recording");
        let process = &recording.processes[0];
        let mut bytes = Cursor::new(Vec::new());
        let (live, _) = write(process, &Progress::new("reading"), &mut bytes).expect("operations");
        let bytes = bytes.into_inner();
        let header = bytes[..HEADER_BYTES].try_into().ok().and_then(Header::decode).expect("a header");
        let (body, _) = bytes[HEADER_BYTES..header.last_operations_offset() as usize].as_chunks::<OPERATION_BYTES>();
        let operations: Vec<Operation> = body.iter().filter_map(Operation::decode).collect();
        let mut events = Vec::new();
        process.for_each(Span::ALL, &Progress::new("reading"), &mut |some| events.extend_from_slice(some));
        assert_eq!((operations.len(), header.operations), (events.len(), events.len() as u64));
        let (mut slots, mut threads) = (vec![None; header.slots as usize], FxHashMap::default());
        let (mut sizes, mut most) = (FxHashMap::default(), 0);
        for (operation, event) in operations.iter().zip(&events) {
            let slot = &mut slots[operation.slot as usize];
            assert_eq!(*threads.entry(event.thread).or_insert(operation.thread), operation.thread);
            match event.kind {
                Kind::Alloc => assert_eq!((slot.replace(event.index), operation.size), (None, event.size)),
                Kind::Resize => {
                    assert_eq!((*slot, operation.action), (Some(event.index), Action::Resize));
                    assert_eq!(operation.size, event.size);
                }
                Kind::Free => assert_eq!((slot.take(), operation.action), (Some(event.index), Action::Free)),
                other => panic!("{other:?}"),
            }
            if event.kind == Kind::Free {
                sizes.remove(&event.index)
            } else {
                sizes.insert(event.index, event.size)
            };
            most = most.max(sizes.values().sum());
        }
        assert_eq!(live, LiveBytes { peak: most, end: sizes.values().sum(), unwritten_end: 0 });
        assert_eq!(header.threads as usize, threads.len());
    }
}
