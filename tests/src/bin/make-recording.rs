//! Makes a recording of any size by the project's own writers, in constant memory: `make-recording
//! EVENTS FOLDER [LIVE]`. A program of 100,000 stacks keeps LIVE blocks (100,000 by default) in
//! use: each round frees a random one and allocates another, now and then a block is resized, and
//! one round in a thousand leaks. The same numbers make the same bytes.

#![forbid(unsafe_code)]

use heaptape_formats::mptl::{Bins, Builder, layout};
use heaptape_formats::mtrc::{self, Location};
use heaptape_formats::recording::{self, Exit, PROFILE, RECORDING, TAPE, TRACE};
use heaptape_formats::tape::{self, Codec, Column, Entry, Record, field::Field, field::Text};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Events of a chunk, as the recorder cuts them.
const CHUNK: u64 = 100_000;
/// Stacks: a tree in which each site has up to sixteen callees.
const SITES: u32 = 100_000;
const SITES_AT_ONCE: u32 = 10_000;
/// Events between summaries, as the recorder writes them for this number of sites.
const SUMMARY: u64 = 64 * SITES as u64;
/// Ticks of an event: 100 ns.
const STEP: u64 = 100;
/// Bytes from block to block: more than any has.
const APART: u64 = 1024;
const FOLDER: &str = "4711.made";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

#[derive(Default)]
struct Chunk {
    plain: Vec<u8>,
    entries: Vec<u8>,
    ticks: Vec<u8>,
    sites: Vec<u8>,
    was: Vec<u8>,
    events: u64,
    allocations: u64,
    first_tick: u64,
    live: (u64, u64),
}

/// Sums of a site, and what it held at the peak: stored when it first changes after a peak.
#[derive(Clone, Default)]
struct Row {
    sums: tape::SiteSums,
    live: (u64, u64),
    at_peak: (u64, u64),
    epoch: u64,
}

struct Maker {
    rows: Vec<Row>,
    profile: Builder,
    epoch: u64,
    trace: BufWriter<File>,
    tape: BufWriter<File>,
    mtrc: mtrc::Writer,
    records: tape::Writer,
    chunk: Chunk,
    number: u32,
    stored: u64,
    plain: u64,
    first_index: u64,
    next: u64,
    tick: u64,
    events: u64,
    /// Events by thread.
    threads: [u64; 5],
    totals: tape::Totals,
}

impl Maker {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.records.record(record, &mut bytes);
        self.tape.write_all(&bytes)
    }

    fn event(&mut self, entry: Entry, thread: u64) -> io::Result<()> {
        self.tick += STEP;
        self.threads[thread as usize] += 1;
        self.chunk.entries.push(entry as u8);
        let since = if self.chunk.events == 0 { 0 } else { STEP };
        since.put(&mut self.chunk.ticks);
        if self.chunk.events == 0 {
            self.chunk.first_tick = self.tick;
        }
        self.chunk.events += 1;
        self.events += 1;
        let totals = &mut self.totals;
        totals.peak_blocks = totals.peak_blocks.max(totals.live_blocks);
        if totals.live_bytes > totals.peak_bytes {
            (totals.peak_bytes, totals.peak_tick) = (totals.live_bytes, self.tick);
            self.epoch += 1;
        }
        if self.chunk.events == CHUNK { self.cut() } else { Ok(()) }
    }

    fn row(&mut self, site: u32) -> &mut Row {
        let row = &mut self.rows[site as usize];
        if row.epoch != self.epoch {
            (row.at_peak, row.epoch) = (row.live, self.epoch);
        }
        row
    }

    fn taken(&mut self, site: u32, size: u64) {
        self.profile.alloc(site.into(), size);
        let row = self.row(site);
        (row.sums.allocs, row.sums.bytes) = (row.sums.allocs + 1, row.sums.bytes + size);
        row.live = (row.live.0 + 1, row.live.1 + size);
    }

    fn given(&mut self, site: u32, size: u64) {
        self.profile.free(site.into(), size);
        let row = self.row(site);
        (row.sums.frees, row.sums.freed_bytes) = (row.sums.frees + 1, row.sums.freed_bytes + size);
        row.live = (row.live.0 - 1, row.live.1 - size);
    }

    fn summary(&self) -> tape::Summary {
        let used = self.rows.iter().zip(0u32..).filter(|(row, _)| row.sums.allocs > 0);
        let sums = used.map(|(row, site)| {
            let (peak_blocks, peak_bytes) = if row.epoch == self.epoch { row.at_peak } else { row.live };
            tape::SiteSums { site, peak_blocks, peak_bytes, ..row.sums.clone() }
        });
        tape::Summary { totals: self.totals.clone(), sites: sums.collect() }
    }

    fn alloc(&mut self, size: u64, site: u32, thread: u64) -> io::Result<u64> {
        let index = self.next;
        let address = 0x7f00_0000_0000 + index % (1 << 30) * APART;
        self.mtrc.alloc(&mut self.chunk.plain, mtrc::Block { index, address, size }, &Location::thread(thread));
        site.put(&mut self.chunk.sites);
        self.next += 1;
        self.chunk.allocations += 1;
        self.totals.allocs += 1;
        self.totals.live_blocks += 1;
        self.totals.live_bytes += size;
        self.totals.bytes_allocated += size;
        self.taken(site, size);
        self.event(Entry::Malloc, thread)?;
        Ok(index)
    }

    /// What a block of an earlier chunk was.
    fn was(&mut self, index: u64, (size, site): (u64, u32)) {
        if index < self.first_index {
            (site + 1).put(&mut self.chunk.was);
            size.put(&mut self.chunk.was);
        }
    }

    fn resize(&mut self, index: u64, (old, old_site): (u64, u32), size: u64, site: u32, thread: u64) -> io::Result<()> {
        self.was(index, (old, old_site));
        let address = 0x7e00_0000_0000 + index % (1 << 30) * APART;
        self.mtrc.resize(&mut self.chunk.plain, mtrc::Block { index, address, size }, &Location::thread(thread));
        site.put(&mut self.chunk.sites);
        self.totals.resizes += 1;
        self.totals.live_bytes = self.totals.live_bytes + size - old;
        self.totals.bytes_allocated += size;
        self.given(old_site, old);
        self.taken(site, size);
        self.event(Entry::Realloc, thread)
    }

    fn free(&mut self, index: u64, (size, site): (u64, u32), thread: u64) -> io::Result<()> {
        self.was(index, (size, site));
        self.mtrc.free(&mut self.chunk.plain, index, &Location::thread(thread));
        self.totals.frees += 1;
        self.totals.live_blocks -= 1;
        self.totals.live_bytes -= size;
        self.given(site, size);
        self.event(Entry::Free, thread)
    }

    fn cut(&mut self) -> io::Result<()> {
        let chunk = std::mem::take(&mut self.chunk);
        let mut stored = Vec::new();
        Codec::Columns.pack(&chunk.plain, 1, &mut stored)?;
        self.trace.write_all(&stored)?;
        self.number += 1;
        let mut columns = Vec::new();
        let all = [chunk.entries, chunk.ticks, chunk.sites, chunk.was];
        let kinds = [tape::COLUMN_ENTRIES, tape::COLUMN_TICKS, tape::COLUMN_SITES, tape::COLUMN_PREVIOUS];
        for (kind, plain) in kinds.into_iter().zip(all) {
            let mut stored = Vec::new();
            Codec::Zstd.pack(&plain, 1, &mut stored)?;
            let (codec, plain_length) = (Codec::Zstd as u8, plain.len() as u32);
            columns.push(Column { kind, codec, plain_length, stored: Text(stored) });
        }
        let record = tape::Chunk {
            number: self.number,
            codec: Codec::Columns as u8,
            stored_offset: self.stored,
            stored_length: stored.len() as u64,
            plain_offset: self.plain,
            plain_length: chunk.plain.len() as u64,
            checksum: tape::codec::checksum(&stored),
            events: chunk.events,
            allocations: chunk.allocations,
            first_index: self.first_index,
            first_tick: chunk.first_tick,
            last_tick: self.tick,
            live_blocks: chunk.live.0,
            live_bytes: chunk.live.1,
            peak_bytes: self.totals.peak_bytes,
            columns,
        };
        self.stored += stored.len() as u64;
        self.plain += chunk.plain.len() as u64;
        self.first_index = self.next;
        self.mtrc.new_chunk();
        self.chunk.live = (self.totals.live_blocks, self.totals.live_bytes);
        self.record(&Record::Chunk(record))?;
        if self.events.is_multiple_of(SUMMARY) {
            let summary = self.summary();
            self.record(&Record::Summary(summary))?;
        }
        Ok(())
    }
}

fn head(maker: &mut Maker) -> io::Result<()> {
    let process = tape::Process {
        pid: 4711,
        ppid: 1,
        ticks_per_second: 1_000_000_000,
        start_tick: 1000,
        start_unix_ns: 1_700_000_000_000_000_000,
        page_size: 4096,
        exe: "/usr/bin/made".into(),
        argv: vec!["made".into()],
        ..tape::Process::default()
    };
    maker.record(&Record::Process(process))?;
    for first in (1..=SITES).step_by(SITES_AT_ONCE as usize) {
        let site =
            |number: u32| tape::Site { parent: number / 16, address: 0x40_0000 + u64::from(number) * 5, flags: 0 };
        let sites: Vec<tape::Site> = (first..(first + SITES_AT_ONCE).min(SITES + 1)).map(site).collect();
        for site in &sites {
            maker.profile.site(site.parent.into(), site.address, None);
        }
        maker.record(&Record::Sites(tape::Sites { first, sites }))?;
    }
    for number in 1..=4 {
        let thread = tape::Thread { number, tid: 4710 + number, name: format!("t{number}").into(), first_tick: 1000 };
        maker.record(&Record::Thread(thread))?;
    }
    maker.mtrc.header(&mut maker.chunk.plain);
    Ok(())
}

fn make(events: u64, folder: &Path, most_live: usize) -> io::Result<()> {
    let process_folder = folder.join(FOLDER);
    std::fs::create_dir_all(&process_folder)?;
    let mut tape = BufWriter::new(File::create(process_folder.join(TAPE))?);
    let mut start = Vec::new();
    tape::Writer::file_header(&mut start);
    tape.write_all(&start)?;
    let mut maker = Maker {
        rows: vec![Row::default(); SITES as usize + 1],
        profile: Builder::new(layout::BOUNDS, Bins::new(layout::BINS)),
        epoch: 0,
        trace: BufWriter::new(File::create(process_folder.join(format!("{TRACE}{}", Codec::Columns.suffix())))?),
        tape,
        mtrc: mtrc::Writer::new(mtrc::Options::default()),
        records: tape::Writer::default(),
        chunk: Chunk::default(),
        number: 0,
        stored: 0,
        plain: 0,
        first_index: 1,
        next: 1,
        tick: 1000,
        events: 0,
        threads: [0; 5],
        totals: tape::Totals::default(),
    };
    head(&mut maker)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut live: Vec<(u64, u32, u32)> = Vec::new();
    while maker.events < events {
        // Few sites do most: the square of a random number is mostly small.
        let roll = random.below(1 << 16);
        let site = 1 + (roll * roll % u64::from(SITES)) as u32;
        let (size, thread) = (8 + random.below(64) * random.below(16), 1 + random.below(4));
        if live.len() >= most_live {
            let (index, size, site) = live.swap_remove(random.below(live.len() as u64) as usize);
            maker.free(index, (size.into(), site), thread)?;
        }
        if random.below(20) == 0 && !live.is_empty() {
            let at = random.below(live.len() as u64) as usize;
            let (index, old, old_site) = live[at];
            (live[at].1, live[at].2) = (size as u32, site);
            maker.resize(index, (old.into(), old_site), size, site, thread)?;
        }
        let leaks = random.below(1000) == 0;
        let index = maker.alloc(size, if leaks { 77 } else { site }, thread)?;
        if !leaks {
            live.push((index, size as u32, site));
        }
    }
    if maker.chunk.events > 0 {
        maker.cut()?;
    }
    let account = |(number, &events): (usize, &u64)| tape::Account {
        thread: number as u32,
        emitted: events,
        recorded: events,
        ..tape::Account::default()
    };
    let accounts = maker.threads.iter().enumerate().skip(1).map(account).collect();
    maker.record(&Record::Accounts(tape::Accounts { accounts }))?;
    let summary = maker.summary();
    maker.record(&Record::Summary(summary))?;
    let (reason, unix_ns) = (tape::END_EXITED, 1_700_000_000_000_000_000 + maker.tick);
    let tick = maker.tick;
    maker.record(&Record::End(tape::End { tick, unix_ns, reason, status: 0 }))?;
    let (mut end, mut stored) = (Vec::new(), Vec::new());
    maker.mtrc.end(&mut end);
    Codec::Columns.pack(&end, 1, &mut stored)?;
    maker.trace.write_all(&stored)?;
    maker.trace.flush()?;
    maker.tape.flush()?;
    let mut profile = Vec::new();
    maker.profile.build().write(&mut profile);
    std::fs::write(process_folder.join(PROFILE), profile)?;
    let about = recording::Recording {
        format: "heaptape recording".into(),
        version: 1,
        command: vec!["made".into()],
        started_unix_ns: 1_700_000_000_000_000_000,
        ended_unix_ns: Some(unix_ns),
        processes: vec![recording::ProcessInfo {
            folder: FOLDER.into(),
            pid: 4711,
            ppid: 1,
            exe: "/usr/bin/made".into(),
            exit: Some(Exit::Code(0)),
            ..recording::ProcessInfo::default()
        }],
        ..recording::Recording::default()
    };
    serde_json::to_writer_pretty(File::create(folder.join(RECORDING))?, &about)?;
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|word| word.parse::<f64>().ok()).map(|number| number as u64);
    let (Some(events), Some(folder)) = (number(0), arguments.get(1)) else {
        eprintln!("make-recording EVENTS FOLDER [LIVE]");
        std::process::exit(2);
    };
    if let Err(error) = make(events, Path::new(folder), number(2).unwrap_or(100_000) as usize) {
        eprintln!("make-recording: {folder}: {error}");
        std::process::exit(2);
    }
}
