//! Nanoseconds an event of each stage of the pipeline: `cargo run --release -p heaptape-recorder
//! --example stages -- [TRACE] [LEVEL]`. TRACE is the folder of a recorded process, whose events
//! are read before the measurement, or one of these synthetic ones; without it, all of them. With
//! LEVEL the compression of trace and columns at this level is measured, and at all of them if it
//! is 0.
//!
//! *random*: sizes and freed blocks at random among 10,000 live ones, 200 stacks. *bulk*: a
//! database loading rows: short-lived blocks freed in the reverse order, few sizes, a growing set
//! of pages. *large*: 4 million live blocks, freed at random.

mod recorded;

use heaptape_formats::tape::{self, Codec};
use heaptape_recorder::digest::ProcessRecording;
use heaptape_recorder::heap::thread_number::ThreadNumber;
use heaptape_recorder::os::aside::Owner;
use heaptape_recorder::os::clock::Clock;
use heaptape_recorder::os::sys::Mapping;
use heaptape_recorder::rings::Batch;
use heaptape_recorder::rings::merge::{RecordQueue, merge};
use heaptape_recorder::session::Session;
use heaptape_recorder::store::Chunk;
use heaptape_recorder::store::writer::{Content, WriteJob};
use heaptape_recorder::target::proc::{End, SeenEnd};
use heaptape_recorder::target::{ModuleFiles, PerfMap};
use heaptape_wire::nodes::NodeValue;
use heaptape_wire::{Event, Op, Params, Record};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// As in the command.
#[global_allocator]
static ALLOCATOR: heaptape_recorder::os::HugePages = heaptape_recorder::os::HugePages;

/// CPU time of this thread: other programs on the machine affect it less.
#[derive(Clone, Copy)]
struct Instant(Duration);

impl Instant {
    fn now() -> Instant {
        Instant(nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock").into())
    }

    fn elapsed(self) -> Duration {
        Instant::now().0 - self.0
    }
}

const EVENTS: usize = 2_000_000;
/// Each stage runs so often; the least time counts, since other programs only ever add.
const REPEATS: usize = 9;
/// The store creates files, so it runs less often.
const STORE_REPEATS: usize = 3;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// A bump-and-free-list allocator, so that addresses come again as glibc's do.
#[derive(Default)]
struct Heap {
    free: HashMap<u64, Vec<u64>>,
    top: u64,
}

impl Heap {
    fn alloc(&mut self, size: u64) -> u64 {
        let class = (size + 23) / 16 * 16;
        self.free.entry(class).or_default().pop().unwrap_or_else(|| {
            self.top += class;
            0x5555_5575_0000 + self.top - class
        })
    }

    fn free(&mut self, address: u64, size: u64) {
        self.free.entry((size + 23) / 16 * 16).or_default().push(address);
    }
}

fn record(dice: &mut Dice, op: Op, stack: u32, address: u64, size: u64) -> Record {
    Event { op, stack, address, size }.compact(90 + dice.roll(120))
}

fn random(live: usize, stacks: u64) -> Vec<Record> {
    let (mut dice, mut heap, mut out) = (Dice(88_172_645_463_325_252), Heap::default(), Vec::new());
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    while out.len() < EVENTS {
        let size = (16 << dice.roll(8)) + dice.roll(16);
        if blocks.len() == live {
            let index = dice.roll(live as u64) as usize;
            let (address, old) = blocks.swap_remove(index);
            heap.free(address, old);
            out.push(record(&mut dice, Op::FREE, 0, address, 0));
        }
        let address = heap.alloc(size);
        blocks.push((address, size));
        let stack = 10 + dice.roll(stacks) as u32;
        out.push(record(&mut dice, Op::MALLOC, stack, address, size));
    }
    out
}

fn bulk() -> Vec<Record> {
    let (mut dice, mut heap, mut out) = (Dice(7), Heap::default(), Vec::new());
    while out.len() < EVENTS {
        let sizes = [40 + dice.roll(4) * 8, 120, 27 + dice.roll(40), 500];
        let depth = 1 + dice.roll(4) as usize;
        let mut open = Vec::new();
        for (level, size) in sizes.into_iter().take(depth).enumerate() {
            let address = heap.alloc(size);
            let stack = 20 + level as u32 * 7 + dice.roll(3) as u32;
            out.push(record(&mut dice, Op::MALLOC, stack, address, size));
            open.push((address, size));
        }
        while let Some((address, size)) = open.pop() {
            heap.free(address, size);
            out.push(record(&mut dice, Op::FREE, 0, address, 0));
        }
        if dice.roll(40) == 0 {
            let address = heap.alloc(4360);
            out.push(record(&mut dice, Op::MALLOC, 60, address, 4360));
        }
    }
    out
}

/// A prefix tree of stacks of depth 8 or so.
fn generated_nodes() -> Vec<NodeValue> {
    let value = |node: u32| NodeValue { parent: node / 3, address: 0x5555_5555_4000 + u64::from(node) * 37, flags: 0 };
    (1..300_000).map(value).collect()
}

/// The journal goes to `folder`; where there is none, nothing is journaled.
fn session_in(folder: std::path::PathBuf, nodes: &[NodeValue]) -> Arc<Session> {
    let params = Params { ring_bytes: 1 << 20, first_ring_shift: 0, slots: 4, nodes: 1 << 20 };
    let (mapping, _file) = Mapping::create(params).expect("an area");
    for (node, value) in (1..).zip(nodes) {
        mapping.node_cell(node).expect("room").write(*value);
    }
    Arc::new(Session {
        id: 1,
        mapping: Arc::new(mapping),
        process: tape::Process { ticks_per_second: 2_800_000_000, ..tape::Process::default() },
        folder,
        clock: Clock::choose(),
        options: Arc::default(),
        forked: None,
        is_namespaced: false,
        stats: Arc::default(),
        limit: Arc::default(),
        resumed: false,
        began_unix_ns: 0,
        start_ticks: 0,
        carried_over: None,
        earlier: Vec::new(),
        hooks: Arc::default(),
        malloc: Arc::default(),
        journal_files: Default::default(),
        code: Arc::new(PerfMap::of(std::process::id(), std::process::id(), 0, 0, 0)),
        files: Arc::new(ModuleFiles::of(Owner { pid: std::process::id(), uid: 0 }, None, &[])),
    })
}

/// Returns the chunk that a job writes.
fn chunk_of(write_job: WriteJob) -> Option<Chunk> {
    match write_job {
        WriteJob::Write { content: Content::Chunk { chunk, .. }, .. } => chunk.map(|chunk| *chunk),
        WriteJob::Write { .. } | WriteJob::Finish(_) | WriteJob::Remove(_) => None,
    }
}

fn main() {
    let (only, level) = (std::env::args().nth(1), std::env::args().nth(2).and_then(|level| level.parse().ok()));
    println!("{:8} {:>12} {:>22} {:>9} {:>7}", "ns/event", "parse+merge", "index+profile+encode", "journal", "store");
    if let Some(folder) = only.as_ref().map(Path::new).filter(|path| path.is_dir()) {
        let recorded::Recorded { batches, sites, .. } = recorded::read(folder);
        let node = |site: &tape::Site| NodeValue { parent: site.parent, address: site.address, flags: 0 };
        return measure("recorded", f64::NAN, &batches, &sites.iter().map(node).collect::<Vec<_>>(), level);
    }
    type Trace = (&'static str, fn() -> Vec<Record>);
    let traces: [Trace; 3] =
        [("random", || random(10_000, 200)), ("bulk", bulk), ("large", || random(1_500_000, 200_000))];
    for (name, make) in traces {
        if only.as_ref().is_some_and(|only| only != name && only != "all") {
            continue;
        }
        let records = make();
        let mut batches: Vec<Batch> = (0..records.len().div_ceil(1 << 14)).map(|_| Batch::default()).collect();
        let mut merged = f64::MAX;
        for _ in 0..REPEATS {
            let (mut queue, begun) = (RecordQueue::default(), Instant::now());
            for (chunk, batch) in records.chunks(1 << 14).zip(&mut batches) {
                batch.clear();
                queue.records().extend_from_slice(chunk);
                merge(&mut [(ThreadNumber(1), &mut queue)], u64::MAX >> 1, u64::MAX >> 1, batch, &|| ());
                batch.limit = u64::MAX >> 1;
            }
            merged = merged.min(begun.elapsed().as_nanos() as f64 / records.len() as f64);
        }
        measure(name, merged, &batches, &generated_nodes(), level);
    }
}

/// Prints the time of the stages after the merge, which took `merged` nanoseconds an event.
fn measure(name: &str, merged: f64, batches: &[Batch], nodes: &[NodeValue], level: Option<i32>) {
    let events: usize = batches.iter().map(|batch| batch.records.len()).sum();
    let ns = |begun: Instant| begun.elapsed().as_nanos() as f64 / events as f64;
    // Once with chunks that are used again, as in a recorder at work; once to have them all.
    // The former also with each batch in the journal before its space is released.
    let mut spare = Vec::new();
    let mut digest = |journaled: bool| {
        let folder = std::env::temp_dir();
        let session = session_in(if journaled { folder } else { folder.join("no such folder") }, nodes);
        let mut recording = ProcessRecording::new(Arc::clone(&session));
        let begun = Instant::now();
        for batch in batches {
            let mut next = spare.pop();
            recording.batch(batch, &mut || next.take().unwrap_or_default(), &mut |write_job: WriteJob| {
                let chunk = chunk_of(write_job);
                session.journal_files.mark_stored(chunk.as_ref().map_or(0, |chunk| chunk.number));
                spare.extend(chunk)
            });
            if journaled {
                recording.keep(&[]);
            }
            spare.extend(next);
        }
        ns(begun)
    };
    let (mut digested, mut journaled) = (f64::MAX, f64::MAX);
    for _ in 0..REPEATS {
        digested = digested.min(digest(false));
        journaled = journaled.min(digest(true));
    }
    let journal = tape::journal::path;
    (0..tape::journal::FILES).for_each(|number| drop(std::fs::remove_file(journal(&std::env::temp_dir(), number))));
    let (mut stored, mut bytes) = (f64::MAX, 0);
    for _ in 0..STORE_REPEATS {
        let folder = std::env::temp_dir().join(format!("stages.{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (sender, jobs) = crossbeam_channel::unbounded();
        let mut out = |write_job: WriteJob| sender.send(write_job).expect("room");
        let mut recording = ProcessRecording::new(session_in(folder.clone(), nodes));
        batches.iter().for_each(|batch| recording.batch(batch, &mut Chunk::default, &mut out));
        recording.finish(SeenEnd::now(End::GONE, &Clock::choose()), &mut Chunk::default, &mut out);
        drop(recording);
        drop(sender);
        let ((spare, _chunks), (ends, _ended)) = (crossbeam_channel::bounded(8), crossbeam_channel::unbounded());
        let begun = Instant::now();
        heaptape_recorder::store::writer::run(&jobs, &spare, &ends);
        stored = stored.min(ns(begun));
        let files = std::fs::read_dir(&folder).expect("a folder").flatten();
        bytes = files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum();
        std::fs::remove_dir_all(&folder).expect("a folder");
    }
    println!(
        "{name:8} {merged:12.1} {digested:22.1} {:9.1} {stored:7.1} {:7.2} B stored, {events} events",
        journaled - digested,
        bytes as f64 / events as f64
    );
    if level.is_some() {
        measure_codecs(batches, nodes, level);
    }
}

type PackPart<'a> = dyn Fn(&mut tape::Packer, &Chunk, &mut Vec<u8>) -> std::io::Result<()> + 'a;

/// Prints time and size of the compressed trace and columns.
fn measure_codecs(batches: &[Batch], nodes: &[NodeValue], level: Option<i32>) {
    let events: usize = batches.iter().map(|batch| batch.records.len()).sum();
    let ns = |begun: Instant| begun.elapsed().as_nanos() as f64 / events as f64;
    let mut chunks = Vec::new();
    let mut recording = ProcessRecording::new(session_in(std::env::temp_dir().join("no such folder"), nodes));
    for batch in batches {
        recording.batch(batch, &mut Chunk::default, &mut |write_job: WriteJob| chunks.extend(chunk_of(write_job)));
    }
    recording.finish(SeenEnd::now(End::GONE, &Clock::choose()), &mut Chunk::default, &mut |write_job| {
        chunks.extend(chunk_of(write_job))
    });
    let plain: u64 = chunks.iter().map(|chunk| chunk.commit.plain_length).sum();
    let columns: usize = chunks.iter().flat_map(|chunk| &chunk.columns).map(|column| column.1.len()).sum();
    let per = |bytes: usize| bytes as f64 / events as f64;
    println!("   plain bytes: trace {:.1}, columns {:.1}", per(plain as usize), per(columns));
    let codecs: Vec<(Codec, i32)> = match level {
        Some(level) if level != 0 => vec![(Codec::Zstd, level), (Codec::Columns, level)],
        _ => [-7, -5, -3, -1, 1, 2, 3]
            .into_iter()
            .flat_map(|level| [(Codec::Zstd, level), (Codec::Columns, level)])
            .chain([(Codec::Lz4, 0)])
            .collect(),
    };
    for (codec, level) in codecs {
        let pack = |part: &PackPart<'_>| {
            let (mut best, mut size, mut packed) = (f64::MAX, 0, Vec::new());
            let mut packer = tape::Packer::default();
            for _ in 0..REPEATS {
                let begun = Instant::now();
                size = 0;
                for chunk in &chunks {
                    part(&mut packer, chunk, &mut packed).expect("packs");
                    size += packed.len();
                }
                best = best.min(ns(begun));
            }
            (best, per(size))
        };
        let (trace_ns, trace) = pack(&|packer, chunk, packed| {
            let parts = chunk.mtrc.each_ref().map(Vec::as_slice);
            packer.pack_columns(codec, parts, chunk.commit.plain_length as usize, level, packed)
        });
        let mut line = format!("   {codec:?} {level:2}: trace {trace_ns:5.1} ns {trace:5.2} B");
        let (mut all_ns, mut all) = (trace_ns, trace);
        for kind in 0..5 {
            let (column_ns, column) =
                pack(&|packer, chunk, packed| packer.pack(codec, &chunk.columns[kind].1, level, packed));
            line += &format!(", c{} {column_ns:4.1} ns {column:5.2} B", kind + 1);
            (all_ns, all) = (all_ns + column_ns, all + column);
        }
        println!("{line}; all {all_ns:5.1} ns {all:5.2} B");
    }
}
