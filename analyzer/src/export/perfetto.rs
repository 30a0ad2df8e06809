//! Perfetto traces: heap profiles at points in time of the run, and counters of the live bytes, the
//! resident memory and what the program mapped itself, and who holds which block, on one time line with what other recorders
//! of the same machine wrote.

use super::memory_tracks::{self, MemoryTrack};
use super::{Error, Exporter, Needs, Out, Shape, Source, Totals, heap_graph};
use crate::event::{Event, Position, Span};
use crate::load::{Clock, Process};
use crate::model::Model;
use crate::model::call_sites::{CallSites, Sums};
use crate::model::live_set::Block;
use crate::replay::replay;
use crate::symbols::{Frame, Symbolizer, module_of};
use heaptape_formats::perfetto::{
    self, BOOTTIME, BYTES, CLEARED, COUNT, COUNTER, Callstack, ClockSnapshot, CounterDescriptor, HeapSample,
    InternedData, InternedText, MONOTONIC_COARSE, Mapping, NEEDS_STATE, ProcessDescriptor, ProcessDump, ProcessTree,
    ProfilePacket, REALTIME, TracePacket, TrackDescriptor, TrackEvent,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// The exporter of Perfetto traces.
pub struct Export;

/// Number of heap profiles of a process.
const PROFILES: u64 = 10;
/// Number of points of a counter.
const POINTS: u64 = 1000;
/// Maximum number of samples in a packet.
const SAMPLES: usize = 10_000;
/// Maximum number of frames of a stack: more than any recording has, and fewer than a hostile file
/// could contain.
const DEEPEST: usize = 4096;
/// Length of an event in nanoseconds, where a recording has no times.
const EVENT_NS: u64 = 1000;
/// The sequence of all packets but profiles. Those of each process have their own, as heapprofd
/// writes them: the trace processor sorts packets by time, and expects the numbers of the profiles
/// of a sequence in this order.
const SEQUENCE: u32 = 1;
/// First id of processes whose own pid another process of the recording has. It is larger than any
/// pid of Linux.
const FIRST_OWN_PID: i32 = 1 << 22;
/// First identifier of the tracks of memory besides the live blocks. It is larger than those of all
/// other tracks.
const FIRST_MEMORY_TRACK: u64 = 1 << 32;
/// Number of such identifiers of a process.
const MEMORY_TRACKS: u64 = 4;
/// Name of the heap, as heapprofd names that of malloc.
const HEAP: &str = "libc.malloc";

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "perfetto"
    }

    fn extension(&self) -> &'static str {
        "pftrace"
    }

    fn summary(&self) -> &'static str {
        "Perfetto's trace with heap profiles and counters, for ui.perfetto.dev and trace_processor"
    }

    fn needs(&self) -> Needs {
        Needs { events: true, shape: Shape::One }
    }

    fn is_read_back(&self) -> bool {
        false
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let started = source.processes.iter().map(|process| process.clock.start_unix_ns).min().unwrap_or(0);
        let mut to = out.stream()?;
        let mut trace = Trace::default();
        trace.clocks(started);
        let mut pids: FxHashSet<i32> = FxHashSet::default();
        for (number, process) in (0..).zip(source.processes.clone()) {
            let mut pid = i32::try_from(process.about.pid).unwrap_or(FIRST_OWN_PID);
            if !pids.insert(pid) {
                pid = FIRST_OWN_PID.saturating_add(number);
                out.note(format!("{}: its pid occurs several times: it has the id {pid}", process.about.folder));
            }
            if !process.has_times() {
                out.note(format!("{}: without times: each event takes 1 us", process.about.folder));
            }
            let span = process.span(&source.range());
            let offset_ns = process.clock.start_unix_ns.saturating_sub(started);
            let mut series = Series::new(process, span, offset_ns);
            let outcome = replay(process, span, source.progress(), &mut series);
            series.end();
            source.found(&outcome.missing);
            trace.process(process, pid, number as u64);
            for &point in &series.points {
                trace.point(number as u64, point);
            }
            for (memory, track) in (0..).zip(memory_tracks::of(process, span)) {
                trace.memory(number as u64, memory, &track, offset_ns);
            }
            for (at, rows) in &series.profiles {
                trace.profile(process, &mut source.symbols, pid, *at, rows);
                to.put(&trace.bytes)?;
                trace.bytes.clear();
            }
            // It is of the end.
            if let Some(&(at, _)) = series.profiles.last().filter(|_| span.end_tick >= process.tape.last_tick) {
                let place = (number as u32, pid, at);
                heap_graph::write(process, &mut source.symbols, place, out, &mut |bytes| to.put(bytes))?;
            }
        }
        to.put(&trace.bytes)?;
        to.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            let sums = source.sums(process);
            totals.add("allocated-bytes", sums.sites.iter().map(|row| u128::from(row.bytes)).sum());
        }
        Ok(totals)
    }
}

/// The heap at a point in time.
#[derive(Clone, Copy, Default)]
struct Point {
    at_ns: u64,
    bytes: u64,
    blocks: u64,
}

/// The sums of a site at a point in time.
type SiteRow = (u32, Sums);

/// Collects points of the counters, and the sums of the sites that changed since the profile
/// before.
struct Series {
    clock: Option<Clock>,
    /// Nanoseconds from the start of the trace to that of the process.
    offset_ns: u64,
    start: u64,
    width: u64,
    next: u64,
    last: Position,
    sites: CallSites,
    known: Vec<Sums>,
    bytes: u64,
    blocks: u64,
    /// The most live bytes since the last point, with their time in the units of `start`.
    highest: (u64, Point),
    points: Vec<Point>,
    profiles: Vec<(u64, Vec<SiteRow>)>,
}

impl Series {
    fn new(process: &Process, span: Span, offset_ns: u64) -> Series {
        let clock = process.has_times().then_some(process.clock);
        let (start, end) = match clock {
            Some(clock) => (span.first_tick.max(clock.start_tick), span.end_tick.min(process.tape.last_tick)),
            None => (span.first, span.end.min(process.tape.events)),
        };
        let width = end.saturating_sub(start).div_ceil(POINTS).max(1);
        let last =
            Position { number: process.tape.events.min(span.end), tick: process.tape.last_tick.min(span.end_tick) };
        let (sites, known, points, profiles) = (CallSites::default(), Vec::new(), Vec::new(), Vec::new());
        let (next, bytes, blocks, highest) = (1, 0, 0, (0, Point::default()));
        Series { clock, offset_ns, start, width, next, last, sites, known, bytes, blocks, highest, points, profiles }
    }

    fn nanos(&self, at: u64) -> u64 {
        let own = self.clock.map_or(at.saturating_mul(EVENT_NS), |clock| clock.nanos(at));
        self.offset_ns.saturating_add(own)
    }

    /// Takes the points and profiles that are due before an event.
    #[inline]
    fn before(&mut self, at: Position) {
        let now = self.time(at);
        while self.next < POINTS && now >= self.start.saturating_add(self.next.saturating_mul(self.width)) {
            let due = self.start.saturating_add(self.next.saturating_mul(self.width));
            self.take(due, self.next.is_multiple_of(POINTS / PROFILES));
            self.next += 1;
        }
    }

    fn take(&mut self, at: u64, with_profile: bool) {
        let at_ns = self.nanos(at);
        let before = self.points.last().copied().unwrap_or_default();
        let (time, highest) = std::mem::take(&mut self.highest);
        // A peak between two points would be lost.
        if highest.bytes > self.bytes.max(before.bytes) {
            let at_ns = self.nanos(time).clamp(before.at_ns.min(at_ns), at_ns);
            self.points.push(Point { at_ns, ..highest });
        }
        // A counter keeps its value until the next point.
        let is_same = |last: &Point| (last.bytes, last.blocks) == (self.bytes, self.blocks);
        if !self.points.last().is_some_and(is_same) {
            self.points.push(Point { at_ns, bytes: self.bytes, blocks: self.blocks });
        }
        if !with_profile {
            return;
        }
        self.known.resize(self.sites.rows.len(), Sums::default());
        let changed = self.sites.rows.iter().zip(&mut self.known).zip(0u32..).filter(|((now, known), _)| now != known);
        let rows = changed.map(|((now, known), site)| {
            *known = *now;
            (site, *now)
        });
        self.profiles.push((at_ns, rows.collect()));
    }

    fn end(&mut self) {
        self.before(self.last);
        self.take(self.time(self.last), true);
    }

    fn add(&mut self, block: &Block, at: Position) {
        (self.bytes, self.blocks) = (self.bytes.saturating_add(block.size), self.blocks + 1);
        if self.bytes > self.highest.1.bytes {
            let point = Point { bytes: self.bytes, blocks: self.blocks, at_ns: 0 };
            self.highest = (self.time(at), point);
        }
    }

    fn time(&self, at: Position) -> u64 {
        if self.clock.is_some() { at.tick } else { at.number }
    }

    fn remove(&mut self, old: Option<&Block>) {
        if let Some(old) = old {
            self.bytes = self.bytes.saturating_sub(old.size);
            self.blocks = self.blocks.saturating_sub(1);
        }
    }
}

impl Model for Series {
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.before(event.position());
        self.add(block, event.position());
        self.sites.alloc(event, block);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.before(event.position());
        self.remove(old);
        self.add(block, event.position());
        self.sites.resize(event, old, block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.before(event.position());
        self.remove(old);
        self.sites.free(event, old);
    }
}

/// Texts, frames and stacks with their identifiers, and those that were not written yet.
#[derive(Default)]
struct Interned {
    texts: FxHashMap<(Table, Vec<u8>), u64>,
    mappings: FxHashMap<Vec<u8>, u64>,
    frames: FxHashMap<Frame, u64>,
    stacks: FxHashMap<Vec<u64>, u64>,
    /// Stack of each site of the process that is being written.
    sites: FxHashMap<u32, u64>,
    fresh: InternedData,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Table {
    Functions,
    BuildIds,
    Paths,
    Sources,
}

impl Interned {
    fn text(&mut self, table: Table, text: &[u8]) -> u64 {
        let next = self.texts.len() as u64 + 1;
        let iid = *self.texts.entry((table, text.to_vec())).or_insert(next);
        if iid == next {
            let text = InternedText { iid: Some(iid), text: Some(text.to_vec()) };
            match table {
                Table::Functions => self.fresh.function_names.push(text),
                Table::BuildIds => self.fresh.build_ids.push(text),
                Table::Paths => self.fresh.mapping_paths.push(text),
                Table::Sources => self.fresh.source_paths.push(text),
            }
        }
        iid
    }

    fn mapping(&mut self, path: &str, build_id: &[u8]) -> u64 {
        let next = self.mappings.len() as u64 + 1;
        let iid = *self.mappings.entry([path.as_bytes(), b"\0", build_id].concat()).or_insert(next);
        if iid == next {
            let build_id = (!build_id.is_empty()).then(|| self.text(Table::BuildIds, build_id));
            let components = path.split('/').filter(|component| !component.is_empty());
            let path = components.map(|component| self.text(Table::Paths, component.as_bytes())).collect();
            self.fresh.mappings.push(Mapping { iid: Some(iid), build_id, path, ..Mapping::default() });
        }
        iid
    }

    fn frame(&mut self, frame: &Frame, build_id: &[u8]) -> u64 {
        let next = self.frames.len() as u64 + 1;
        let iid = *self.frames.entry(frame.clone()).or_insert(next);
        if iid == next {
            let function_name = Some(self.text(Table::Functions, frame.title().as_bytes()));
            let mapping = Some(self.mapping(&frame.module, build_id));
            let source_path = frame.file.as_ref().map(|file| self.text(Table::Sources, file.as_bytes()));
            let (line, rel_pc) = (frame.line, Some(frame.offset));
            let frame = perfetto::Frame { iid: Some(iid), function_name, mapping, rel_pc, source_path, line };
            self.fresh.frames.push(frame);
        }
        iid
    }

    fn stack(&mut self, process: &Process, symbols: &mut Symbolizer, site: u32) -> u64 {
        if let Some(&known) = self.sites.get(&site) {
            return known;
        }
        let stacks = process.stacks();
        let mut frames = Vec::new();
        for (_, call) in stacks.stack(site).take(DEEPEST) {
            let build_id = module_of(stacks, &call).map_or(&[][..], |module| &module.build_id);
            frames.extend(symbols.frames(stacks, &call).iter().map(|frame| self.frame(frame, build_id)));
        }
        if frames.is_empty() {
            let nothing = Frame { function: Some("(no stack)".into()), ..Frame::default() };
            frames.push(self.frame(&nothing, &[]));
        }
        frames.reverse();
        let next = self.stacks.len() as u64 + 1;
        let iid = *self.stacks.entry(frames.clone()).or_insert(next);
        if iid == next {
            self.fresh.callstacks.push(Callstack { iid: Some(iid), frames });
        }
        self.sites.insert(site, iid);
        iid
    }
}

/// A trace that is being written.
#[derive(Default)]
struct Trace {
    bytes: Vec<u8>,
    /// The sequence of the profiles of the process that is being written.
    sequence: u32,
    /// What the packets of this sequence have defined.
    interned: Interned,
    /// Number of the next profile packet of this sequence.
    next: u64,
}

impl Trace {
    fn put(&mut self, packet: TracePacket) {
        let sequence = packet.sequence.or(Some(SEQUENCE));
        perfetto::packet(&mut self.bytes, &TracePacket { sequence, ..packet });
    }

    /// Writes how the clocks are related: the trace begins at 0, at this wall time.
    fn clocks(&mut self, started_unix_ns: u64) {
        let clock = |id, timestamp| perfetto::Clock { id: Some(id), timestamp: Some(timestamp) };
        let clocks = vec![clock(REALTIME, started_unix_ns), clock(MONOTONIC_COARSE, 0), clock(BOOTTIME, 0)];
        let clocks = Some(ClockSnapshot { clocks });
        self.put(TracePacket { timestamp: Some(0), clocks, sequence_flags: Some(CLEARED), ..TracePacket::default() });
    }

    /// Writes the name of a process, and its tracks.
    fn process(&mut self, process: &Process, pid: i32, number: u64) {
        let sequence = u32::try_from(number).unwrap_or(u32::MAX).saturating_add(SEQUENCE + 1);
        (self.sequence, self.interned, self.next) = (sequence, Interned::default(), 0);
        let name = process.name();
        let cmdline = if process.about.argv.is_empty() { vec![name.clone()] } else { process.about.argv.clone() };
        let ppid = i32::try_from(process.about.ppid).ok();
        let processes = vec![perfetto::Process { pid: Some(pid), ppid, cmdline }];
        self.put(TracePacket { process_tree: Some(ProcessTree { processes }), ..TracePacket::default() });
        let [parent, bytes, blocks] = tracks(number);
        let process = Some(ProcessDescriptor { pid: Some(pid), name: Some(name) });
        let track = TrackDescriptor { uuid: Some(parent), process, ..TrackDescriptor::default() };
        self.put(TracePacket { track: Some(track), ..TracePacket::default() });
        for (uuid, name, unit) in [(bytes, "heap: live bytes", BYTES), (blocks, "heap: live blocks", COUNT)] {
            let counter = Some(CounterDescriptor { unit: Some(unit) });
            let (uuid, name, parent) = (Some(uuid), Some(name.into()), Some(parent));
            let track = TrackDescriptor { uuid, name, parent, counter, ..TrackDescriptor::default() };
            self.put(TracePacket { track: Some(track), ..TracePacket::default() });
        }
    }

    /// Writes a point of the counters of a process.
    fn point(&mut self, number: u64, point: Point) {
        let [_, bytes, blocks] = tracks(number);
        for (track, value) in [(bytes, point.bytes), (blocks, point.blocks)] {
            let counter_value = Some(i64::try_from(value).unwrap_or(i64::MAX));
            let event = TrackEvent { kind: Some(COUNTER), track: Some(track), counter_value };
            let timestamp = Some(point.at_ns);
            self.put(TracePacket { timestamp, track_event: Some(event), ..TracePacket::default() });
        }
    }

    /// Writes a counter of memory besides the live blocks. `memory` is its number in the process.
    fn memory(&mut self, number: u64, memory: u64, track: &MemoryTrack, offset_ns: u64) {
        let [parent, ..] = tracks(number);
        let uuid = FIRST_MEMORY_TRACK + number * MEMORY_TRACKS + memory;
        let (name, counter) = (format!("memory: {}", track.name), CounterDescriptor { unit: Some(BYTES) });
        let (parent, counter) = (Some(parent), Some(counter));
        let described =
            TrackDescriptor { uuid: Some(uuid), name: Some(name), parent, counter, ..TrackDescriptor::default() };
        self.put(TracePacket { track: Some(described), ..TracePacket::default() });
        for point in &track.points {
            let counter_value = Some(i64::try_from(point.bytes).unwrap_or(i64::MAX));
            let track_event = Some(TrackEvent { kind: Some(COUNTER), track: Some(uuid), counter_value });
            let timestamp = Some(offset_ns.saturating_add(point.at_ns));
            self.put(TracePacket { timestamp, track_event, ..TracePacket::default() });
        }
    }

    /// Writes a heap profile.
    fn profile(&mut self, process: &Process, symbols: &mut Symbolizer, pid: i32, at_ns: u64, rows: &[SiteRow]) {
        let mut chunks = rows.chunks(SAMPLES).peekable();
        while let Some(chunk) = chunks.next() {
            let sample = |(site, sums): &SiteRow| HeapSample {
                callstack: Some(self.interned.stack(process, symbols, *site)),
                allocated: Some(sums.bytes),
                freed: Some(sums.freed_bytes),
                alloc_count: Some(sums.allocs),
                free_count: Some(sums.frees),
            };
            let samples = chunk.iter().map(sample).collect();
            let dump = ProcessDump {
                pid: u64::try_from(pid).ok(),
                samples,
                from_startup: Some(true),
                timestamp: Some(at_ns),
                heap_name: Some(HEAP.into()),
                sampling_interval_bytes: Some(process.tape.process.sample_bytes.max(1)),
            };
            let continued = Some(chunks.peek().is_some());
            let profile = ProfilePacket { dumps: vec![dump], continued, index: Some(self.next) };
            let sequence_flags = Some(if self.next == 0 { CLEARED | NEEDS_STATE } else { NEEDS_STATE });
            self.next += 1;
            let interned = Some(std::mem::take(&mut self.interned.fresh));
            let (timestamp, sequence) = (Some(at_ns), Some(self.sequence));
            let profile = Some(profile);
            self.put(TracePacket { timestamp, sequence, sequence_flags, interned, profile, ..TracePacket::default() });
        }
    }
}

/// Returns the identifiers of the tracks of a process: its own, its live bytes and its live blocks.
const fn tracks(number: u64) -> [u64; 3] {
    [number * 3 + 1, number * 3 + 2, number * 3 + 3]
}
