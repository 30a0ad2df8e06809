//! Recordings made in code: a list of steps becomes the files that the recorder would write, chunk
//! by chunk.
#![allow(dead_code, reason = "each crate of tests uses a part")]

use heaptape_formats::mptl::{self, Bins, Builder};
use heaptape_formats::mtrc::{self, Location};
use heaptape_formats::recording::{self, Exit, Recording};
use heaptape_formats::tape::{self, Codec, Column, Entry, Record, field::Field};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// One thing that a program does, or that the recorder writes in hindsight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Alloc { index: u64, size: u64, site: u32, thread: u32, tick: u64 },
    Resize { index: u64, size: u64, site: u32, thread: u32, tick: u64 },
    Free { index: u64, thread: u32, tick: u64 },
    Implied { index: u64, thread: u32, tick: u64 },
    Inherited { index: u64, size: u64, thread: u32, tick: u64 },
    Unmatched { address: u64, thread: u32, tick: u64 },
}

impl Step {
    pub(crate) fn tick(&self) -> u64 {
        match self {
            Step::Alloc { tick, .. }
            | Step::Resize { tick, .. }
            | Step::Free { tick, .. }
            | Step::Implied { tick, .. }
            | Step::Inherited { tick, .. }
            | Step::Unmatched { tick, .. } => *tick,
        }
    }

    pub(crate) fn tick_mut(&mut self) -> &mut u64 {
        match self {
            Step::Alloc { tick, .. }
            | Step::Resize { tick, .. }
            | Step::Free { tick, .. }
            | Step::Implied { tick, .. }
            | Step::Inherited { tick, .. }
            | Step::Unmatched { tick, .. } => tick,
        }
    }

    pub(crate) fn thread(&self) -> u32 {
        match self {
            Step::Alloc { thread, .. }
            | Step::Resize { thread, .. }
            | Step::Free { thread, .. }
            | Step::Implied { thread, .. }
            | Step::Inherited { thread, .. }
            | Step::Unmatched { thread, .. } => *thread,
        }
    }
}

/// Returns the address of the block with an index.
pub(crate) fn address(index: u64) -> u64 {
    0x5555_0000_0000 + index * 0x40
}

/// Options of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub chunk_events: usize,
    pub codec: Codec,
    pub summary: bool,
    /// Number of chunks between summaries; 0 writes only one, at the end.
    pub summary_chunks: usize,
    /// Whether chunks contain the previous state of the blocks that their events free.
    pub was: bool,
    pub end: bool,
    pub ledger: bool,
    pub ticks_per_second: u64,
    pub sites: Vec<tape::Site>,
    pub modules: Vec<tape::Module>,
    pub losses: Vec<tape::Loss>,
    /// Ticks from the last step to the end of the process, as the recorder noticed it.
    pub end_after: u64,
    /// Whether the program ran on after its recording.
    pub runs_on: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            chunk_events: 16,
            codec: Codec::Plain,
            summary: true,
            summary_chunks: 0,
            was: true,
            end: true,
            ledger: true,
            ticks_per_second: 1_000_000_000,
            sites: plain_sites(8),
            modules: Vec::new(),
            losses: Vec::new(),
            end_after: 0,
            runs_on: false,
        }
    }
}

/// Sites 1..=count: site 1 is the outermost frame, each other one is called from the site of half
/// its number.
pub(crate) fn plain_sites(count: u32) -> Vec<tape::Site> {
    (1..=count).map(|number| tape::Site { parent: number / 2, address: 0x1000 * u64::from(number), flags: 0 }).collect()
}

/// The bytes of a process's files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub trace: Vec<u8>,
    pub tape: Vec<u8>,
    pub profile: Vec<u8>,
}

/// Results of a replay of the steps with a plain map. Every model must return the same numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    pub totals: tape::Totals,
    pub sites: Vec<tape::SiteSums>,
    /// Live blocks by index: size, site, thread, tick and event number of the allocation.
    pub live: HashMap<u64, (u64, u32, u32, u64, u64)>,
    pub inherited: HashMap<u64, u64>,
    /// Totals at the time of each step, before it.
    pub before: Vec<(u64, u64)>,
}

pub(crate) fn truth(steps: &[Step]) -> Truth {
    let mut t = Truth::default();
    let mut sums: HashMap<u32, tape::SiteSums> = HashMap::new();
    let (mut number, mut live, mut until_peak) = (0, 0, 0);
    for (at, step) in steps.iter().enumerate() {
        t.before.push((t.totals.live_blocks, t.totals.live_bytes));
        match *step {
            Step::Alloc { index, size, site, thread, tick } => {
                t.totals.allocs += 1;
                t.totals.bytes_allocated += size;
                let row = sums.entry(site).or_default();
                row.allocs += 1;
                row.bytes += size;
                t.live.insert(index, (size, site, thread, tick, number));
                live += size;
            }
            Step::Resize { index, size, site, thread, tick } => {
                t.totals.resizes += 1;
                t.totals.bytes_allocated += size;
                let mut allocated = (tick, number);
                if t.inherited.remove(&index).is_none() {
                    let (old, old_site, _, at, event) = t.live[&index];
                    allocated = (at, event);
                    live -= old;
                    let row = sums.entry(old_site).or_default();
                    row.frees += 1;
                    row.freed_bytes += old;
                }
                let row = sums.entry(site).or_default();
                row.allocs += 1;
                row.bytes += size;
                // A block that was inherited keeps the tick of the record that introduced it.
                if let Some(Step::Inherited { tick, .. }) =
                    steps.iter().find(|s| matches!(s, Step::Inherited { index: i, .. } if *i == index))
                    && !t.live.contains_key(&index)
                {
                    allocated.0 = *tick;
                }
                t.live.insert(index, (size, site, thread, allocated.0, allocated.1));
                live += size;
            }
            Step::Free { index, .. } | Step::Implied { index, .. } => {
                match step {
                    Step::Implied { .. } => t.totals.implied_frees += 1,
                    _ => t.totals.frees += 1,
                }
                if t.inherited.remove(&index).is_none() {
                    let (old, site, ..) = t.live.remove(&index).unwrap();
                    live -= old;
                    let row = sums.entry(site).or_default();
                    row.frees += 1;
                    row.freed_bytes += old;
                }
            }
            Step::Inherited { index, size, .. } => drop(t.inherited.insert(index, size)),
            Step::Unmatched { .. } => {
                t.totals.frees += 1;
                t.totals.unknown_frees += 1;
            }
        }
        number += u64::from(!matches!(step, Step::Unmatched { .. }));
        (t.totals.live_blocks, t.totals.live_bytes) = (t.live.len() as u64, live);
        t.totals.peak_blocks = t.totals.peak_blocks.max(t.totals.live_blocks);
        if live > t.totals.peak_bytes {
            (t.totals.peak_bytes, t.totals.peak_tick) = (live, step.tick());
            until_peak = at + 1;
        }
    }
    let mut at_peak: HashMap<u64, (u64, u32)> = HashMap::new();
    for step in &steps[..until_peak] {
        match *step {
            Step::Alloc { index, size, site, .. } | Step::Resize { index, size, site, .. } => {
                at_peak.insert(index, (size, site));
            }
            Step::Free { index, .. } | Step::Implied { index, .. } => drop(at_peak.remove(&index)),
            Step::Inherited { .. } | Step::Unmatched { .. } => {}
        }
    }
    for (size, site) in at_peak.into_values() {
        let row = sums.entry(site).or_default();
        (row.peak_blocks, row.peak_bytes) = (row.peak_blocks + 1, row.peak_bytes + size);
    }
    t.sites = sums.into_iter().map(|(site, row)| tape::SiteSums { site, ..row }).collect();
    t.sites.sort_by_key(|row| row.site);
    t
}

/// Writes the files of one process.
pub(crate) fn files(steps: &[Step], options: &Options) -> Files {
    let truth = truth(steps);
    let mut files = Files::default();
    let mut writer = tape::Writer::default();
    let mut put = |record: Record, tape: &mut Vec<u8>| writer.record(&record, tape);
    tape::Writer::file_header(&mut files.tape);
    let start_tick = 100;
    let process = tape::Process {
        pid: 4711,
        ppid: 1,
        ticks_per_second: options.ticks_per_second,
        start_tick,
        start_unix_ns: 1_700_000_000_000_000_000,
        page_size: 4096,
        exe: "/usr/bin/made".into(),
        argv: vec!["made".into()],
        ..tape::Process::default()
    };
    put(Record::Process(process), &mut files.tape);
    for module in &options.modules {
        put(Record::Module(module.clone()), &mut files.tape);
    }
    put(Record::Sites(tape::Sites { first: 1, sites: options.sites.clone() }), &mut files.tape);
    let mut threads: Vec<u32> = steps.iter().map(Step::thread).collect();
    threads.sort_unstable();
    threads.dedup();
    for &number in &threads {
        let thread =
            tape::Thread { number, tid: 4710 + number, name: format!("t{number}").into(), first_tick: start_tick };
        put(Record::Thread(thread), &mut files.tape);
    }
    let mut writer = mtrc::Writer::new(mtrc::Options::default());
    let (mut plain_offset, mut next_index) = (0u64, 1u64);
    let mut live = HashMap::new();
    let size = options.chunk_events.max(1);
    for (number, part) in steps.chunks(size).enumerate() {
        let first_tick = part[0].tick();
        let mut columns = Columns { first_index: next_index, first_tick, last_tick: first_tick, ..Columns::default() };
        if number == 0 {
            writer.header(&mut columns.plain);
        }
        writer.new_chunk();
        for step in part {
            columns.add(step, &mut writer, &mut live);
        }
        next_index += columns.allocations;
        let mut stored = Vec::new();
        options.codec.pack(&columns.plain, 1, &mut stored).unwrap();
        let before = number * size;
        let most = truth.before[before..].iter().take(part.len() + 1).map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let chunk = tape::Chunk {
            number: number as u32 + 1,
            codec: options.codec as u8,
            stored_offset: files.trace.len() as u64,
            stored_length: stored.len() as u64,
            plain_offset,
            plain_length: columns.plain.len() as u64,
            checksum: tape::codec::checksum(&stored),
            events: columns.events,
            allocations: columns.allocations,
            first_index: columns.first_index,
            first_tick,
            last_tick: part.last().unwrap().tick(),
            live_blocks: truth.before[before].0,
            live_bytes: truth.before[before].1,
            peak_bytes: most,
            columns: columns.packed(options),
        };
        files.trace.extend_from_slice(&stored);
        plain_offset += columns.plain.len() as u64;
        put(Record::Chunk(chunk), &mut files.tape);
        if options.summary_chunks > 0 && (number + 1).is_multiple_of(options.summary_chunks) {
            let so_far = self::truth(&steps[..before + part.len()]);
            put(Record::Summary(tape::Summary { totals: so_far.totals, sites: so_far.sites }), &mut files.tape);
        }
    }
    for loss in &options.losses {
        put(Record::Loss(loss.clone()), &mut files.tape);
    }
    if options.ledger {
        put(Record::Accounts(tape::Accounts { accounts: accounts(steps, options, &threads) }), &mut files.tape);
    }
    if options.summary {
        let summary = tape::Summary { totals: truth.totals.clone(), sites: truth.sites.clone() };
        put(Record::Summary(summary), &mut files.tape);
    }
    if options.end {
        let tick = steps.last().map_or(start_tick, Step::tick) + options.end_after;
        let (reason, status) = if options.runs_on { (tape::END_RUNNING, 0) } else { (tape::END_EXITED, 3) };
        let end = tape::End { tick, unix_ns: 1_700_000_001_000_000_000, reason, status };
        put(Record::End(end), &mut files.tape);
        let mut end = Vec::new();
        if steps.is_empty() {
            writer.header(&mut end);
        }
        writer.end(&mut end);
        options.codec.pack(&end, 1, &mut files.trace).unwrap();
    }
    files.profile = profile(steps, &options.sites);
    files
}

/// The columns of one chunk, while its steps are added.
#[derive(Default)]
struct Columns {
    /// Its part of the trace.
    plain: Vec<u8>,
    entries: Vec<u8>,
    ticks: Vec<u8>,
    sites: Vec<u8>,
    unmatched: Vec<u8>,
    was: Vec<u8>,
    events: u64,
    allocations: u64,
    first_index: u64,
    first_tick: u64,
    last_tick: u64,
}

impl Columns {
    /// `live` has the site and the size of own blocks, by their indices.
    fn add(&mut self, step: &Step, mtrc: &mut mtrc::Writer, live: &mut HashMap<u64, (u32, u64)>) {
        let location = Location::thread(step.thread().into());
        let old = match *step {
            Step::Alloc { index, size, site, .. } => live.insert(index, (site, size)),
            Step::Resize { index, size, site, .. } => live.insert(index, (site, size)),
            Step::Free { index, .. } | Step::Implied { index, .. } => live.remove(&index),
            Step::Inherited { .. } | Step::Unmatched { .. } => None,
        };
        if let Step::Resize { index, .. } | Step::Free { index, .. } | Step::Implied { index, .. } = *step
            && index < self.first_index
        {
            old.map_or(0, |(site, _)| site + 1).put(&mut self.was);
            old.iter().for_each(|(_, size)| size.put(&mut self.was));
        }
        let entry = match *step {
            Step::Alloc { index, size, site, .. } => {
                mtrc.alloc(&mut self.plain, mtrc::Block { index, address: address(index), size }, &location);
                site.put(&mut self.sites);
                Entry::Malloc
            }
            Step::Resize { index, size, site, .. } => {
                mtrc.resize(&mut self.plain, mtrc::Block { index, address: address(index) + 8, size }, &location);
                site.put(&mut self.sites);
                Entry::Realloc
            }
            Step::Free { index, .. } => {
                mtrc.free(&mut self.plain, index, &location);
                Entry::Free
            }
            Step::Implied { index, .. } => {
                mtrc.free(&mut self.plain, index, &location);
                Entry::Implied
            }
            Step::Inherited { index, size, .. } => {
                mtrc.alloc(&mut self.plain, mtrc::Block { index, address: address(index), size }, &location);
                0u32.put(&mut self.sites);
                Entry::Inherited
            }
            Step::Unmatched { address, thread, tick } => {
                let position = self.events as u32;
                let entry = Entry::Free as u8;
                tape::Unmatched { position, address, thread, entry, tick: tick - self.first_tick }
                    .put(&mut self.unmatched);
                return;
            }
        };
        if matches!(step, Step::Alloc { .. } | Step::Inherited { .. }) {
            self.allocations += 1;
        }
        self.entries.push(entry as u8);
        (step.tick() - self.last_tick).put(&mut self.ticks);
        self.last_tick = step.tick();
        self.events += 1;
    }

    fn packed(&self, options: &Options) -> Vec<Column> {
        let columns = [
            (tape::COLUMN_ENTRIES, &self.entries, true),
            (tape::COLUMN_TICKS, &self.ticks, true),
            (tape::COLUMN_SITES, &self.sites, true),
            (tape::COLUMN_UNMATCHED, &self.unmatched, !self.unmatched.is_empty()),
            (tape::COLUMN_PREVIOUS, &self.was, options.was),
        ];
        let pack = |(kind, plain, _): (u8, &Vec<u8>, bool)| {
            let mut stored = Vec::new();
            options.codec.pack(plain, 1, &mut stored).unwrap();
            let codec = options.codec as u8;
            Column { kind, codec, plain_length: plain.len() as u32, stored: tape::field::Text(stored) }
        };
        columns.into_iter().filter(|column| column.2).map(pack).collect()
    }
}

fn accounts(steps: &[Step], options: &Options, threads: &[u32]) -> Vec<tape::Account> {
    let account = |&thread: &u32| {
        let own =
            |step: &&Step| step.thread() == thread && !matches!(step, Step::Implied { .. } | Step::Inherited { .. });
        let recorded = steps.iter().filter(own).count() as u64;
        let lost = options.losses.iter().filter(|loss| loss.thread == thread).map(|loss| loss.events).sum::<u64>();
        tape::Account { thread, emitted: recorded + lost, recorded, lost, sampled_out: 0 }
    };
    threads.iter().map(account).collect()
}

fn profile(steps: &[Step], sites: &[tape::Site]) -> Vec<u8> {
    let mut builder = Builder::new(mptl::layout::BOUNDS, Bins::new(mptl::layout::BINS));
    for site in sites {
        builder.site(site.parent.into(), site.address, None);
    }
    let mut live: HashMap<u64, (u32, u64)> = HashMap::new();
    for step in steps {
        match *step {
            Step::Alloc { index, size, site, .. } => {
                builder.alloc(site.into(), size);
                live.insert(index, (site, size));
            }
            Step::Resize { index, size, site, .. } => {
                if let Some((site, size)) = live.insert(index, (site, size)) {
                    builder.free(site.into(), size);
                }
                builder.alloc(site.into(), size);
            }
            Step::Free { index, .. } | Step::Implied { index, .. } => {
                if let Some((site, size)) = live.remove(&index) {
                    builder.free(site.into(), size);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    builder.build().write(&mut out);
    out
}

/// Writes a recording with one process, and returns the folder of the process.
pub(crate) fn write(dir: &Path, files: &Files, codec: Codec) -> PathBuf {
    let folder = dir.join("4711.made");
    std::fs::create_dir_all(&folder).unwrap();
    let process = recording::ProcessInfo {
        folder: "4711.made".into(),
        pid: 4711,
        ppid: 1,
        origin: "start".into(),
        exe: "/usr/bin/made".into(),
        argv: vec!["made".into()],
        exit: Some(Exit::Code(3)),
        ..recording::ProcessInfo::default()
    };
    let about = Recording {
        format: "heaptape recording".into(),
        version: 1,
        command: vec!["made".into(), "it".into()],
        ended_unix_ns: Some(1_700_000_001_000_000_000),
        processes: vec![process],
        ..Recording::default()
    };
    std::fs::write(dir.join(recording::RECORDING), serde_json::to_vec_pretty(&about).unwrap()).unwrap();
    std::fs::write(folder.join(format!("{}{}", recording::TRACE, codec.suffix())), &files.trace).unwrap();
    std::fs::write(folder.join(recording::TAPE), &files.tape).unwrap();
    std::fs::write(folder.join(recording::PROFILE), &files.profile).unwrap();
    folder
}

/// A recording of these steps in a directory of its own.
pub(crate) fn recording(steps: &[Step], options: &Options) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files(steps, options), options.codec);
    let path = dir.path().to_path_buf();
    (dir, path)
}

/// A legal program from random numbers: (what, size, site, thread, wait).
pub(crate) fn program(rolls: &[(u8, u16, u8, u8, u8)]) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut live, mut next, mut tick): (Vec<u64>, u64, u64) = (Vec::new(), 1, 100);
    for &(what, size, site, thread, wait) in rolls {
        tick += u64::from(wait);
        let (thread, site, size) = (u32::from(thread % 3) + 1, u32::from(site % 9), u64::from(size));
        let pick = |live: &[u64]| live[(usize::from(wait) * 31 + usize::from(what)) % live.len()];
        match what % 16 {
            0..7 => {
                steps.push(Step::Alloc { index: next, size, site, thread, tick });
                live.push(next);
                next += 1;
            }
            7..9 if !live.is_empty() => {
                steps.push(Step::Resize { index: pick(&live), size, site, thread, tick });
            }
            9..14 if !live.is_empty() => {
                let index = pick(&live);
                live.retain(|known| *known != index);
                steps.push(match what {
                    200.. => Step::Implied { index, thread, tick },
                    _ => Step::Free { index, thread, tick },
                });
            }
            14 => {
                steps.push(Step::Inherited { index: next, size: size + 1, thread, tick });
                steps.push(match what {
                    0..100 => Step::Free { index: next, thread, tick },
                    _ => {
                        live.push(next);
                        Step::Resize { index: next, size, site, thread, tick }
                    }
                });
                next += 1;
            }
            _ => steps.push(Step::Unmatched { address: 0xdead_0000 + size, thread, tick }),
        }
    }
    steps
}
