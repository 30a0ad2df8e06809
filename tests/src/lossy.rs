//! A copy of a recording as if some of its events had been dropped: sequences of events are
//! removed, the others are numbered and matched again as the recorder does it, and every gap is a
//! loss in the tape.

use crate::random::Random;
use heaptape_analyzer::Process;
use heaptape_analyzer::Progress;
use heaptape_analyzer::event::{Event, Kind, Span};
use heaptape_formats::mtrc::{self, Location};
use heaptape_formats::recording::{TAPE, TRACE};
use heaptape_formats::tape::{self, Codec, Column, Entry, Record, Step, field::Field, field::Text};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

const CHUNK: usize = 20_000;

/// One call, as the program made it.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) event: Event,
    /// Address of the freed or reallocated block.
    old: u64,
}

impl Call {
    /// Returns the same call at another time.
    pub(crate) fn at(self, tick: u64) -> Call {
        Call { event: Event { tick, ..self.event }, ..self }
    }
}

/// A record of the new trace.
enum Put {
    Alloc(Event),
    Resize(Event),
    Free(Event),
    Unmatched(Event),
}

/// Writes the recording `from` to `to` with one event in `one_in` lost, in sequences of at most
/// `longest`. Returns the number of lost events.
pub fn write(from: &Path, to: &Path, one_in: u64, longest: u64, seed: u64) -> u64 {
    let mut all_lost = 0;
    each_process(from, to, |from, to| {
        let (records, calls) = read(from);
        let (kept, losses) = lose(&calls, one_in, longest, &mut Random(seed.max(1)));
        all_lost += losses.iter().map(|loss| loss.events).sum::<u64>();
        put(to, records, &kept, &losses);
    });
    all_lost
}

/// Copies a recording, and calls `copy` with the old and the new folder of each process.
pub(crate) fn each_process(from: &Path, to: &Path, mut copy: impl FnMut(&Path, &Path)) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the recording") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            fs::create_dir_all(&target).expect("a folder");
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// Returns the records of a tape that do not follow from the events, and the calls.
pub(crate) fn read(from: &Path) -> (Vec<Record>, Vec<Call>) {
    let process = Process::open(from, None).expect("a process");
    let mut events = Vec::new();
    let missing = process.for_each(Span::ALL, &Progress::silent("test"), &mut |batch| events.extend_from_slice(batch));
    assert!(missing.is_empty(), "{missing:?}");
    let bytes = fs::read(from.join(TAPE)).expect("the tape");
    let mut reader = tape::Reader::new(&bytes).expect("a tape");
    let mut records = Vec::new();
    loop {
        match reader.step() {
            Step::Record(_, Record::Chunk(_) | Record::Summary(_) | Record::Accounts(_)) => {}
            Step::Record(_, record) => records.push(record),
            Step::End(_) => break,
            other => panic!("{other:?}"),
        }
    }
    (records, calls(&events))
}

/// Writes tape and trace of a process.
pub(crate) fn put(to: &Path, records: Vec<Record>, kept: &[Call], losses: &[tape::Loss]) {
    let has_free_sites = records.iter().any(|record| matches!(record, Record::Process(one) if one.free_sites));
    let (trace, chunks) = chunks(&again(kept), has_free_sites);
    let mut accounts: HashMap<u32, tape::Account> = HashMap::new();
    let account = |thread| tape::Account { thread, ..tape::Account::default() };
    for call in kept {
        let row = accounts.entry(call.event.thread).or_insert_with(|| account(call.event.thread));
        (row.emitted, row.recorded) = (row.emitted + 1, row.recorded + 1);
    }
    for loss in losses {
        let row = accounts.entry(loss.thread).or_insert_with(|| account(loss.thread));
        (row.emitted, row.lost) = (row.emitted + loss.events, row.lost + loss.events);
    }
    let ledger = Record::Accounts(tape::Accounts { accounts: accounts.into_values().collect() });
    // The end comes last.
    let (end, others): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| matches!(record, Record::End(_)));
    let made = chunks.into_iter().map(Record::Chunk).chain(losses.iter().cloned().map(Record::Loss));
    let mut out = Vec::new();
    let mut writer = tape::Writer::default();
    tape::Writer::file_header(&mut out);
    let all = others.into_iter().chain(made).chain([ledger]).chain(end);
    all.for_each(|record| writer.record(&record, &mut out));
    fs::write(to.join(TAPE), out).expect("the tape");
    fs::write(to.join(TRACE), trace).expect("the trace");
}

/// Returns the calls of the program: without the records that the recorder added, and with the
/// addresses of freed blocks.
fn calls(events: &[Event]) -> Vec<Call> {
    let mut live: HashMap<u64, u64> = HashMap::new();
    let mut calls = Vec::new();
    for &event in events {
        let old = match event.kind {
            Kind::Alloc => live.insert(event.index, event.address).unwrap_or(0),
            Kind::Resize => live.insert(event.index, event.address).unwrap_or(0),
            Kind::Free => live.remove(&event.index).unwrap_or(0),
            Kind::Unmatched => event.address,
            Kind::Previous => continue,
        };
        let in_hindsight = [Entry::Inherited, Entry::Implied, Entry::InheritedEmpty];
        if in_hindsight.iter().all(|entry| event.entry != *entry as u8) {
            calls.push(Call { event, old });
        }
    }
    calls
}

/// Removes sequences of events of one thread.
fn lose(calls: &[Call], one_in: u64, longest: u64, random: &mut Random) -> (Vec<Call>, Vec<tape::Loss>) {
    let (mut kept, mut losses): (Vec<Call>, Vec<tape::Loss>) = (Vec::new(), Vec::new());
    // Thread -> events still to lose, and the open loss.
    let mut open: HashMap<u32, (u64, tape::Loss)> = HashMap::new();
    let mut last: HashMap<u32, u64> = HashMap::new();
    for call in calls {
        let (thread, tick) = (call.event.thread, call.event.tick);
        if !open.contains_key(&thread) && random.next().is_multiple_of(one_in * (longest + 1) / 2) {
            let from_tick = last.get(&thread).copied().unwrap_or(0);
            let loss = tape::Loss { thread, events: 0, from_tick, to_tick: u64::MAX };
            open.insert(thread, (1 + random.next() % longest, loss));
        }
        match open.get_mut(&thread) {
            Some((left, loss)) if *left > 0 => (*left, loss.events) = (*left - 1, loss.events + 1),
            _ => {
                if let Some((_, loss)) = open.remove(&thread) {
                    losses.push(tape::Loss { to_tick: tick, ..loss });
                }
                kept.push(*call);
                last.insert(thread, tick);
            }
        }
    }
    losses.extend(open.into_values().map(|(_, loss)| loss));
    (kept, losses)
}

/// Numbers and matches calls as the recorder does it: by address alone.
fn again(calls: &[Call]) -> Vec<Put> {
    let mut live: HashMap<u64, u64> = HashMap::new();
    let (mut puts, mut next) = (Vec::new(), 1u64);
    for &Call { event, old } in calls {
        let takes = matches!(event.kind, Kind::Alloc | Kind::Resize);
        let given = if event.kind == Kind::Resize { live.remove(&old) } else { None };
        if takes && let Some(index) = live.remove(&event.address) {
            puts.push(Put::Free(Event { kind: Kind::Free, index, entry: Entry::Implied as u8, ..event }));
        }
        match event.kind {
            Kind::Alloc => {
                puts.push(Put::Alloc(Event { index: next, ..event }));
                live.insert(event.address, next);
                next += 1;
            }
            Kind::Resize => {
                let index = given.unwrap_or_else(|| {
                    let entry = Entry::Inherited as u8;
                    puts.push(Put::Alloc(Event { index: next, address: old, size: 0, site: 0, entry, ..event }));
                    next += 1;
                    next - 1
                });
                puts.push(Put::Resize(Event { index, ..event }));
                live.insert(event.address, index);
            }
            Kind::Free => match live.remove(&old) {
                Some(index) => puts.push(Put::Free(Event { index, ..event })),
                None => puts.push(Put::Unmatched(Event { address: old, ..event })),
            },
            Kind::Unmatched => puts.push(Put::Unmatched(event)),
            Kind::Previous => {}
        }
    }
    puts
}

/// Returns the trace and the records of its chunks.
fn chunks(puts: &[Put], has_free_sites: bool) -> (Vec<u8>, Vec<tape::Chunk>) {
    let mut writer = mtrc::Writer::new(mtrc::Options::default());
    let (mut trace, mut chunks, mut next) = (Vec::new(), Vec::new(), 1u64);
    for (number, part) in puts.chunks(CHUNK).enumerate() {
        let mut plain = Vec::new();
        if number == 0 {
            writer.header(&mut plain);
        }
        writer.new_chunk();
        let [mut entries, mut ticks, mut sites, mut unmatched] = [const { Vec::new() }; 4];
        let tick = |put: &Put| match put {
            Put::Alloc(event) | Put::Resize(event) | Put::Free(event) | Put::Unmatched(event) => event.tick,
        };
        let (first_tick, last_tick) = (tick(&part[0]), part.iter().map(tick).max().unwrap_or(0));
        let (mut now, mut events, first_index) = (first_tick, 0, next);
        for put in part {
            let event = match put {
                Put::Alloc(event) | Put::Resize(event) | Put::Free(event) | Put::Unmatched(event) => event,
            };
            let location = Location::thread(event.thread.into());
            match put {
                Put::Alloc(_) => {
                    writer.alloc(
                        &mut plain,
                        mtrc::Block { index: event.index, address: event.address, size: event.size },
                        &location,
                    );
                    event.site.put(&mut sites);
                    next += 1;
                }
                Put::Resize(_) => {
                    writer.resize(
                        &mut plain,
                        mtrc::Block { index: event.index, address: event.address, size: event.size },
                        &location,
                    );
                    event.site.put(&mut sites);
                }
                Put::Free(_) => {
                    writer.free(&mut plain, event.index, &location);
                    if has_free_sites {
                        event.site.put(&mut sites);
                    }
                }
                Put::Unmatched(_) => {
                    let tick = event.tick.saturating_sub(first_tick);
                    let (address, thread, entry) = (event.address, event.thread, event.entry);
                    tape::Unmatched { position: events as u32, address, thread, entry, tick }.put(&mut unmatched);
                    continue;
                }
            }
            entries.push(event.entry);
            event.tick.saturating_sub(now).put(&mut ticks);
            now = now.max(event.tick);
            events += 1;
        }
        let column =
            |kind, plain: Vec<u8>| Column { kind, codec: 0, plain_length: plain.len() as u32, stored: Text(plain) };
        let kinds = [tape::COLUMN_ENTRIES, tape::COLUMN_TICKS, tape::COLUMN_SITES, tape::COLUMN_UNMATCHED];
        let columns = kinds.into_iter().zip([entries, ticks, sites, unmatched]);
        chunks.push(tape::Chunk {
            number: number as u32 + 1,
            codec: Codec::Plain as u8,
            stored_offset: trace.len() as u64,
            stored_length: plain.len() as u64,
            plain_offset: trace.len() as u64,
            plain_length: plain.len() as u64,
            checksum: tape::codec::checksum(&plain),
            events,
            allocations: next - first_index,
            first_index,
            first_tick,
            last_tick,
            columns: columns.filter(|(_, plain)| !plain.is_empty()).map(|(kind, plain)| column(kind, plain)).collect(),
            ..tape::Chunk::default()
        });
        trace.extend_from_slice(&plain);
    }
    writer.end(&mut trace);
    (trace, chunks)
}
