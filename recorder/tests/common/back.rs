//! Reads an image back through formats: every event with its columns, and the tape's other records.
#![allow(dead_code)]

use heaptape_formats::mtrc::{self, Record as Mtrc};
use heaptape_formats::tape::{
    self, COLUMN_ENTRIES, COLUMN_PREVIOUS, COLUMN_SITES, COLUMN_TICKS, COLUMN_UNMATCHED, COLUMN_WEIGHTS, Codec, Entry,
    Record, Step,
};
use heaptape_formats::{Cursor, Format, leb128, mptl};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// `A`, `R`, `F`, or `U` for an unmatched free.
    pub letter: char,
    pub index: u64,
    pub address: u64,
    pub size: u64,
    pub thread: u64,
    pub entry: Entry,
    pub tick: u64,
    pub site: u32,
    pub weight: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Back {
    pub process: tape::Process,
    pub events: Vec<Event>,
    pub sites: Vec<tape::Site>,
    pub modules: Vec<tape::Module>,
    pub threads: Vec<tape::Thread>,
    pub losses: Vec<tape::Loss>,
    pub notes: Vec<String>,
    pub accounts: HashMap<u32, tape::Account>,
    pub summary: Option<tape::Summary>,
    pub end: Option<tape::End>,
    pub inherited: Option<tape::Inherited>,
    pub chunks: Vec<tape::Chunk>,
    pub profile: Option<mptl::Profile>,
    /// The whole plain trace.
    pub plain: Vec<u8>,
    /// Index -> site and bytes of own blocks that live.
    own: HashMap<u64, (u64, u64)>,
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let (value, size) = leb128::read(&bytes[at..]).expect("a number");
        out.push(value);
        at += size;
    }
    out
}

fn unpack(codec: u8, stored: &[u8], length: u64) -> Vec<u8> {
    Codec::from_number(codec).expect("a codec").unpack(stored, length as usize).expect("unpacks")
}

/// Reads a folder; anything that is not as it should be is a failed test.
pub(crate) fn read(folder: &Path) -> Back {
    let bytes = std::fs::read(folder.join("events.tape")).expect("a tape");
    let traces: Vec<_> = ["trace.mtrc", "trace.mtrc.zst", "trace.mtrc.lz4", "trace.mtrc.columns"]
        .iter()
        .filter_map(|name| std::fs::read(folder.join(name)).ok())
        .collect();
    assert!(traces.len() <= 1, "one trace");
    let trace = traces.into_iter().next().unwrap_or_default();
    let mut back = Back::default();
    let mut reader = tape::Reader::new(&bytes).expect("a tape's head");
    let mut stored_end = 0;
    loop {
        match reader.step() {
            Step::Record(_, record) => match record {
                Record::Process(process) => back.process = process,
                Record::Sites(sites) => {
                    assert_eq!(sites.first as usize, back.sites.len() + 1);
                    back.sites.extend(sites.sites);
                }
                Record::Module(module) => back.modules.push(module),
                Record::Thread(thread) => back.threads.push(thread),
                Record::Loss(loss) => back.losses.push(loss),
                Record::Note(note) => back.notes.push(note.text.lossy().into_owned()),
                Record::Accounts(ledger) => {
                    back.accounts = ledger.accounts.into_iter().map(|a| (a.thread, a)).collect()
                }
                Record::Summary(summary) => back.summary = Some(summary),
                Record::End(end) => back.end = Some(end),
                Record::Inherited(inherited) => back.inherited = Some(inherited),
                Record::Chunk(chunk) => {
                    assert_eq!(chunk.stored_offset, stored_end, "chunks follow each other");
                    stored_end += chunk.stored_length;
                    let stored = &trace[chunk.stored_offset as usize..stored_end as usize];
                    assert_eq!(crc32fast::hash(stored), chunk.checksum);
                    back.chunk(&chunk, &unpack(chunk.codec, stored, chunk.plain_length));
                    back.chunks.push(chunk);
                }
                Record::ModuleGone(_)
                | Record::Clock(_)
                | Record::History(_)
                | Record::Code(_)
                | Record::Symbols(_)
                | Record::HistoryErrors(_)
                | Record::Segment(_)
                | Record::Residency(_)
                | Record::Division(_)
                | Record::Mappings(_)
                | Record::References(_)
                | Record::ReferenceBlocks(_)
                | Record::ReferenceEdges(_)
                | Record::ReferenceRoots(_)
                | Record::ReferenceOffsets(_)
                | Record::ReferencesEnd(_)
                | Record::Mark(_) => {}
            },
            Step::End(ending) => {
                assert!(ending.is_complete());
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    if back.end.is_some() {
        let mark = &trace[stored_end as usize..];
        let codec = back.chunks.first().map_or(0, |chunk| chunk.codec);
        assert_eq!(unpack(codec, mark, 4), b"MTRC");
        let bytes = std::fs::read(folder.join("profile.mptl")).expect("a profile");
        let (profile, ending) = mptl::Profile::read(&bytes).expect("a profile");
        assert!(ending.is_complete());
        back.profile = Some(profile);
    }
    back
}

impl Back {
    fn chunk(&mut self, chunk: &tape::Chunk, plain: &[u8]) {
        let column = |kind| {
            let column = chunk.columns.iter().find(|column| column.kind == kind);
            column.map_or(Vec::new(), |c| unpack(c.codec, &c.stored.0, c.plain_length.into()))
        };
        assert_eq!(chunk.plain_offset as usize, self.plain.len());
        let header = mtrc::Header::default();
        let mut records = if chunk.plain_offset == 0 {
            mtrc::Reader::new(plain).expect("a header")
        } else {
            mtrc::Reader::chunk(header, plain, chunk.plain_offset)
        };
        let (entries, ticks) = (column(COLUMN_ENTRIES), numbers(&column(COLUMN_TICKS)));
        let mut sites = numbers(&column(COLUMN_SITES)).into_iter();
        let mut was = numbers(&column(COLUMN_PREVIOUS)).into_iter();
        let mut weights = numbers(&column(COLUMN_WEIGHTS)).into_iter();
        let (mut tick, mut position, mut first_index) = (chunk.first_tick, 0, chunk.first_index);
        let mut unmatched = Vec::new();
        let bytes = column(COLUMN_UNMATCHED);
        let mut cursor = Cursor::new(Format::Tape, &bytes);
        while cursor.remaining() > 0 {
            unmatched.push(<tape::Unmatched as tape::field::Field>::get(&mut cursor, "unmatched").expect("an item"));
        }
        let mut unmatched = unmatched.into_iter().peekable();
        loop {
            while let Some(item) = unmatched.next_if(|item| item.position as usize == position) {
                self.events.push(Event {
                    letter: 'U',
                    index: 0,
                    address: item.address,
                    size: 0,
                    thread: item.thread.into(),
                    entry: Entry::from_number(item.entry).expect("an entry"),
                    tick: chunk.first_tick + item.tick,
                    site: 0,
                    weight: 0,
                });
            }
            let Some(record) = records.next().expect("a record") else { break };
            tick += ticks[position];
            let entry = Entry::from_number(entries[position]).expect("an entry");
            let mut event =
                Event { letter: 'F', index: 0, address: 0, size: 0, thread: 0, entry, tick, site: 0, weight: 0 };
            match record {
                Mtrc::Alloc { index, address, size, location } => {
                    assert_eq!(index, first_index);
                    first_index += 1;
                    event = Event { letter: 'A', index, address, size, thread: location.thread, ..event };
                }
                Mtrc::Resize { index, address, size, location } => {
                    event = Event { letter: 'R', index, address, size, thread: location.thread, ..event };
                }
                Mtrc::Free { index, location } => event = Event { index, thread: location.thread, ..event },
                other => panic!("{other:?}"),
            }
            if event.letter != 'F' || self.process.free_sites {
                event.site = sites.next().expect("a site") as u32;
                assert!(event.site as usize <= self.sites.len(), "sites come before their events");
            }
            if event.letter != 'F' && self.process.sample_bytes != 0 {
                event.weight = weights.next().expect("a weight");
            }
            let known = self.own.remove(&event.index);
            if event.letter != 'A' && event.index < chunk.first_index {
                let reported =
                    was.next().and_then(|site| site.checked_sub(1)).map(|site| (site, was.next().unwrap_or(0)));
                assert_eq!(reported, known, "what the block was: {event:?}");
            }
            if event.letter != 'F' && ![Entry::Inherited, Entry::InheritedEmpty].contains(&event.entry) {
                let bytes = if self.process.sample_bytes != 0 { event.weight } else { event.size };
                self.own.insert(event.index, (event.site.into(), bytes));
            }
            self.events.push(event);
            position += 1;
        }
        assert!(was.next().is_none() && chunk.columns.iter().any(|column| column.kind == COLUMN_PREVIOUS));
        assert_eq!((position as u64, tick), (chunk.events, if position > 0 { chunk.last_tick } else { tick }));
        assert!(sites.next().is_none() && weights.next().is_none() && unmatched.next().is_none());
        assert_eq!(first_index, chunk.first_index + chunk.allocations);
        self.plain.extend_from_slice(plain);
    }

    /// Return addresses of a site, innermost first.
    pub(crate) fn stack(&self, mut site: u32) -> Vec<u64> {
        let mut out = Vec::new();
        while site != 0 {
            let found = &self.sites[site as usize - 1];
            out.push(found.address);
            site = found.parent;
        }
        out
    }

    pub(crate) fn totals(&self) -> &tape::Totals {
        &self.summary.as_ref().expect("a summary").totals
    }

    /// Checks the invariants of every complete recording: the trace is legal, ticks never decrease,
    /// and accounts, summary, chunks and profile agree.
    pub(crate) fn check_invariants(&self) {
        let (mut live, mut at, mut tick) = (HashMap::new(), HashMap::new(), 0);
        let mut totals = tape::Totals::default();
        let mut own = HashMap::new();
        // A resize frees its old address before it is recorded: another thread may get the address
        // meanwhile, and the resize must follow.
        let mut moving = HashSet::new();
        for event in &self.events {
            assert!(event.tick >= tick || event.letter == 'U', "ticks decrease");
            tick = tick.max(event.tick);
            assert!(!moving.remove(&event.index) || event.letter == 'R', "an address twice: {event:?}");
            match event.letter {
                'A' => {
                    assert_eq!(live.insert(event.index, (event.address, event.size)), None, "an index twice");
                    moving.extend(at.insert(event.address, event.index));
                    if ![Entry::Inherited, Entry::InheritedEmpty].contains(&event.entry) {
                        totals.live_bytes += event.size;
                        own.insert(event.index, event.size);
                        totals.allocs += 1;
                        totals.bytes_allocated += event.size;
                    }
                }
                'R' => {
                    let (old, _) =
                        live.insert(event.index, (event.address, event.size)).expect("a reallocation of a live block");
                    if at.get(&old) == Some(&event.index) {
                        at.remove(&old);
                    }
                    moving.extend(at.insert(event.address, event.index));
                    totals.live_bytes += event.size;
                    totals.live_bytes -= own.insert(event.index, event.size).unwrap_or(0);
                    totals.resizes += 1;
                    totals.bytes_allocated += event.size;
                }
                'F' => {
                    let (old, _) = live.remove(&event.index).expect("a free of a live block");
                    if at.get(&old) == Some(&event.index) {
                        at.remove(&old);
                    }
                    totals.live_bytes -= own.remove(&event.index).unwrap_or(0);
                    if event.entry == Entry::Implied { totals.implied_frees += 1 } else { totals.frees += 1 }
                }
                _ => totals.frees += 1,
            }
            totals.live_blocks = own.len() as u64;
            totals.peak_blocks = totals.peak_blocks.max(totals.live_blocks);
            if totals.live_bytes > totals.peak_bytes {
                (totals.peak_bytes, totals.peak_tick) = (totals.live_bytes, event.tick);
            }
        }
        assert!(moving.is_empty(), "addresses twice");
        let reported = self.totals();
        let mine = (totals.allocs, totals.resizes, totals.frees, totals.bytes_allocated, own.len() as u64);
        assert_eq!(
            (reported.allocs, reported.resizes, reported.frees, reported.bytes_allocated, reported.live_blocks),
            mine
        );
        assert_eq!(reported.live_bytes, own.values().sum::<u64>());
        assert_eq!(reported.peak_blocks, totals.peak_blocks);
        assert_eq!((reported.peak_bytes, reported.peak_tick), (totals.peak_bytes, totals.peak_tick));
        let recorded: u64 = self.accounts.values().map(|account| account.recorded).sum();
        assert_eq!(recorded, totals.allocs + totals.resizes + totals.frees);
        let sums = &self.summary.as_ref().expect("a summary").sites;
        assert_eq!(sums.iter().map(|s| s.allocs).sum::<u64>(), totals.allocs + totals.resizes);
        assert_eq!(sums.iter().map(|s| s.bytes - s.freed_bytes).sum::<u64>(), reported.live_bytes);
        assert_eq!(sums.iter().map(|s| s.peak_bytes).sum::<u64>(), reported.peak_bytes);
        let profile = self.profile.as_ref().expect("a profile");
        assert_eq!(profile.sites.len(), self.sites.len());
        assert_eq!(profile.bins.allocated.iter().sum::<u64>(), totals.allocs + totals.resizes);
        for row in sums.iter().filter(|row| row.site != 0) {
            let site = profile.sites.iter().find(|site| site.index == u64::from(row.site)).expect("a site");
            let data = profile.data.iter().find(|data| data.index == site.data).expect("data");
            assert_eq!((data.allocated.count(), data.freed.count()), (row.allocs, row.frees));
        }
    }

    /// What is live at the end: address -> size.
    pub(crate) fn live(&self) -> HashMap<u64, u64> {
        let mut live = HashMap::new();
        for event in &self.events {
            match event.letter {
                'A' | 'R' => drop(live.insert(event.index, (event.address, event.size))),
                _ => drop(live.remove(&event.index)),
            }
        }
        live.into_values().collect()
    }
}
