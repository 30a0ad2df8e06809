//! The events of a recording as the records that its process had in its rings.

use heaptape_formats::tape::{
    self, COLUMN_ENTRIES, COLUMN_SITES, COLUMN_TICKS, Codec, Column, Reader, Record as TapeRecord, Site, Step,
};
use heaptape_formats::{leb128, mtrc};
use heaptape_recorder::heap::thread_number::ThreadNumber;
use heaptape_recorder::rings::{Batch, Run};
use heaptape_wire::event::DELTA_LIMIT;
use heaptape_wire::{Event, Op, Record};
use std::collections::HashMap;
use std::path::Path;

/// The batches of a recording, and its call sites, whose numbers are the stack nodes.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub batches: Vec<Batch>,
    pub sites: Vec<Site>,
    /// Address of each live block, by its index.
    live: HashMap<u64, u64>,
    /// The last timestamp of each thread.
    timestamps: HashMap<ThreadNumber, u64>,
}

const BATCH: usize = 1 << 13;

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Ok((value, size)) = leb128::read(&bytes[at..]) {
        out.push(value);
        at += size;
    }
    out
}

fn unpack(codec: u8, stored: &[u8], length: u64) -> Vec<u8> {
    Codec::from_number(codec).expect("a codec").unpack(stored, length as usize).expect("unpacks")
}

/// Reads the folder of a process, whose trace must be compressed.
pub(crate) fn read(folder: &Path) -> Recorded {
    let tape = std::fs::read(folder.join("events.tape")).expect("a tape");
    let read = |codec: Codec| std::fs::read(folder.join(format!("trace.mtrc{}", codec.suffix()))).ok();
    let trace = read(Codec::Zstd).or_else(|| read(Codec::Columns)).expect("a compressed trace");
    let mut reader = Reader::new(&tape).expect("a tape");
    let mut recorded = Recorded::default();
    loop {
        match reader.step() {
            Step::Record(_, TapeRecord::Sites(sites)) => recorded.sites.extend(sites.sites),
            Step::Record(_, TapeRecord::Chunk(chunk)) => {
                let stored = &trace[chunk.stored_offset as usize..][..chunk.stored_length as usize];
                let plain = unpack(chunk.codec, stored, chunk.plain_length);
                recorded.add_chunk(&chunk, &plain);
            }
            Step::Record(..) | Step::Unknown(..) | Step::Damage(..) => {}
            Step::End(_) => return recorded,
        }
    }
}

impl Recorded {
    fn add_chunk(&mut self, chunk: &tape::Chunk, plain: &[u8]) {
        let column = |kind| {
            let found = chunk.columns.iter().find(|column: &&Column| column.kind == kind);
            found.map_or(Vec::new(), |column| unpack(column.codec, &column.stored.0, column.plain_length.into()))
        };
        let header = mtrc::Header::default();
        let mut records = match chunk.plain_offset {
            0 => mtrc::Reader::new(plain).expect("a header"),
            offset => mtrc::Reader::chunk(header, plain, offset),
        };
        let (entries, ticks) = (column(COLUMN_ENTRIES), numbers(&column(COLUMN_TICKS)));
        let mut sites = numbers(&column(COLUMN_SITES)).into_iter();
        let (mut tick, mut position) = (chunk.first_tick, 0);
        while let Some(record) = records.next().expect("a record") {
            tick += ticks[position];
            let entry = entries[position];
            position += 1;
            let mut site = || sites.next().expect("a site") as u32;
            match record {
                mtrc::Record::Alloc { index, address, size, location } => {
                    let op = if entry > Op::ALLOC_REPORTED.0 { Op::MALLOC } else { Op(entry) };
                    self.push(ThreadNumber(location.thread as u32), tick, Event { op, stack: site(), address, size });
                    self.live.insert(index, address);
                }
                mtrc::Record::Resize { index, address, size, location } => {
                    let thread = ThreadNumber(location.thread as u32);
                    let old = self.live.insert(index, address).unwrap_or(address);
                    self.push(thread, tick, Event { op: Op::RESIZE_BEGIN, stack: 0, address: old, size: 0 });
                    self.push(thread, tick, Event { op: Op::RESIZE, stack: site(), address, size });
                }
                mtrc::Record::Free { index, location } => {
                    let op = if Op(entry).is_free() { Op(entry) } else { Op::FREE };
                    let address = self.live.remove(&index).expect("a live block");
                    self.push(ThreadNumber(location.thread as u32), tick, Event { op, stack: 0, address, size: 0 });
                }
                _ => {}
            }
        }
    }

    fn push(&mut self, thread: ThreadNumber, tick: u64, event: Event) {
        if self.batches.last().is_none_or(|batch| batch.records.len() >= BATCH) {
            self.batches.push(Batch { limit: u64::MAX >> 1, ..Batch::default() });
        }
        let threads = self.timestamps.len();
        let last = self.timestamps.entry(thread).or_default();
        let batch = self.batches.last_mut().expect("a batch");
        batch.many_threads = threads > 1;
        if batch.runs.last().is_none_or(|run| run.thread != thread) {
            batch.runs.push(Run { thread, records: 0, timestamp: *last });
        }
        let (before, mut delta) = (batch.records.len(), tick - *last);
        if delta >= DELTA_LIMIT {
            batch.records.push(Record::timestamp(tick));
            delta = 0;
        }
        *last = tick;
        match event.is_compact() {
            true => batch.records.push(event.compact(delta)),
            false => batch.records.extend(event.extended(delta)),
        }
        let added = (batch.records.len() - before) as u32;
        batch.runs.last_mut().expect("a run").records += added;
    }
}
