//! Processed profiles of the Firefox Profiler: a thread for each process with its native
//! allocations, and memory tracks of its live bytes, the resident memory, and what the program
//! mapped itself.
//!
//! Blocks are added up by stack, and by slices of the run in which they were allocated and freed,
//! so that the size of the file depends on the number of stacks. Each such sum is written as one
//! block that is allocated and freed. So the views of retained memory, allocations and
//! deallocations show correct sums.

use super::memory_tracks::{self, MemoryTrack};
use super::tree::{Identity, Tree};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure, verify};
use crate::event::{Event, Position};
use crate::load::Process;
use crate::model::Model;
use crate::model::live_set::Block;
use crate::replay::replay;
use crate::text::clean;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The exporter of profiles of the Firefox Profiler.
pub struct Export;

/// Version of the format, of 2025.
const VERSION: u32 = 55;
/// Number of slices of the run.
const SLICES: u64 = 64;
/// Maximum number of sums. If there are more, slices are merged.
const MAX_SUMS: usize = 1 << 20;
/// Slice of the free of blocks that are not freed.
const NEVER: u16 = u16::MAX;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "firefox"
    }

    fn extension(&self) -> &'static str {
        "firefox.json"
    }

    fn summary(&self) -> &'static str {
        "Firefox Profiler's profile with native allocations"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let started = source.processes.iter().map(|process| process.clock.start_unix_ns).filter(|&at| at > 0).min();
        let started = started.unwrap_or(0);
        let mut libs = Libs::default();
        let mut threads = Vec::new();
        let mut counters = Vec::new();
        for process in source.processes.clone() {
            let offset = process.clock.start_unix_ns.saturating_sub(started) as f64 / 1e6;
            let sums = allocations(source, process);
            counters.push(counter(process, &sums, threads.len(), offset));
            for track in memory_tracks::of(process, process.span(&source.range())) {
                counters.push(memory_counter(process, &track, threads.len(), offset));
            }
            threads.push(thread(source, process, &sums, &mut libs, offset));
        }
        let profile = json!({
            "meta": {
                "categories": [{ "name": "Other", "color": "grey", "subcategories": ["Other"] }],
                "debug": false, "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] }, "interval": 1.0,
                "preprocessedProfileVersion": VERSION, "processType": 0, "product": measure::title(source),
                "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
                "startTime": started as f64 / 1e6, "symbolicated": true, "pausedRanges": [], "version": 24, "stackwalk": 1,
                "usesOnlyOneStackType": true, "sourceCodeIsNotOnSearchfox": true, "markerSchema": [],
                "importedFrom": "heaptape",
            },
            "libs": libs.list, "pages": [], "profilerOverhead": [], "counters": counters,
        });
        let mut file = out.stream()?;
        // The threads are the largest part of the file, and are written one by one.
        let head = profile.to_string();
        file.put(&head.as_bytes()[..head.len() - 1])?;
        file.put(b",\"threads\":[")?;
        for (number, thread) in threads.iter().enumerate() {
            file.put(if number > 0 { b"," } else { b"" })?;
            serde_json::to_writer(&mut file, thread).map_err(|error| Error::Write("profile".into(), error.into()))?;
        }
        file.put(b"]}\n")?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        measure::totals(source, &[Measure::AllocBytes, Measure::LiveBytes])
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for path in files {
            let file = verify::read_json(path)?;
            for thread in file["threads"].as_array().into_iter().flatten() {
                let weights = thread["nativeAllocations"]["weight"].as_array().into_iter().flatten();
                let weights: Vec<i128> = weights.filter_map(Value::as_i64).map(i128::from).collect();
                let taken: i128 = weights.iter().filter(|&&weight| weight > 0).sum();
                totals.add("alloc-bytes", taken.unsigned_abs());
                totals.add("live-bytes", weights.iter().sum::<i128>().unsigned_abs());
            }
        }
        Ok(totals)
    }
}

/// The blocks of one sum: their site, and the slices in which they were allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SumKey {
    site: u32,
    allocated: u16,
    freed: u16,
}

/// Bytes by site, slice of the allocation and slice of the free.
struct Slices {
    by_tick: bool,
    start: u64,
    width: u64,
    sums: FxHashMap<SumKey, u64>,
    /// For blocks that were reallocated, the time of the latest reallocation.
    resized: FxHashMap<u64, u64>,
}

impl Slices {
    fn of(&self, at: Position) -> u16 {
        let at = if self.by_tick { at.tick } else { at.number };
        u16::try_from(at.saturating_sub(self.start) / self.width).unwrap_or(NEVER - 1).min(NEVER - 1)
    }

    fn end_block(&mut self, event: &Event, old: &Block, freed: u16) {
        let allocated = old.allocated();
        // A reallocated block keeps its allocation time; its bytes count since the reallocation.
        let allocated = match self.resized.get(&event.index) {
            Some(&at) if self.by_tick => Position { tick: at, ..allocated },
            Some(&at) => Position { number: at, ..allocated },
            None => allocated,
        };
        self.add(SumKey { site: old.site, allocated: self.of(allocated), freed }, old.size);
    }

    fn add(&mut self, key: SumKey, bytes: u64) {
        let sum = self.sums.entry(key).or_default();
        *sum = sum.saturating_add(bytes);
        if self.sums.len() > MAX_SUMS && self.width < u64::MAX / 4 {
            self.coarsen();
        }
    }

    #[cold]
    fn coarsen(&mut self) {
        self.width *= 2;
        for (SumKey { site, allocated, freed }, bytes) in std::mem::take(&mut self.sums) {
            let freed = if freed == NEVER { NEVER } else { freed / 2 };
            *self.sums.entry(SumKey { site, allocated: allocated / 2, freed }).or_default() += bytes;
        }
    }
}

impl Model for Slices {
    fn resize(&mut self, event: &Event, old: Option<&Block>, _: &Block) {
        if let Some(old) = old {
            let freed = self.of(event.position());
            self.end_block(event, old, freed);
        }
        self.resized.insert(event.index, if self.by_tick { event.tick } else { event.number });
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            let freed = self.of(event.position());
            self.end_block(event, old, freed);
        }
        self.resized.remove(&event.index);
    }
}

/// The bytes of blocks of one site that were allocated and freed at about the same times.
struct Sum {
    site: u32,
    /// Milliseconds after the start at which they were allocated.
    allocated: f64,
    /// Milliseconds after the start at which they were freed, if they were.
    freed: Option<f64>,
    bytes: u64,
}

/// An allocation or a free of a sum.
struct Step {
    /// Milliseconds after the start.
    time: f64,
    /// Number of bytes; negative for a free.
    weight: i64,
    site: u32,
    /// Number that is written as the address.
    number: u64,
}

/// Returns the sums of a process, by allocation time.
fn allocations(source: &mut Source<'_>, process: &Process) -> Vec<Sum> {
    if !process.has_events() {
        let sums = source.sums(process);
        let both = sums.sites.iter().flat_map(|row| {
            let live = row.bytes.saturating_sub(row.freed_bytes);
            let sum = |freed, bytes| Sum { site: row.site, allocated: 0.0, freed, bytes };
            [sum(None, live), sum(Some(0.0), row.bytes.min(row.freed_bytes))]
        });
        return both.filter(|sum| sum.bytes > 0).collect();
    }
    let span = process.span(&source.range());
    let by_tick = process.has_times();
    let (start, end) = match by_tick {
        true => (process.clock.start_tick.max(span.first_tick), process.tape.last_tick.min(span.end_tick)),
        false => (span.first, process.tape.events.min(span.end)),
    };
    let width = end.saturating_sub(start).div_ceil(SLICES).max(1);
    let mut slices = Slices { by_tick, start, width, sums: FxHashMap::default(), resized: FxHashMap::default() };
    let outcome = replay(process, span, source.progress(), &mut slices);
    for (index, block) in outcome.live.iter().filter(|(_, block)| !block.inherited) {
        let event = Event { index, ..event_of(&block) };
        slices.end_block(&event, &block, NEVER);
    }
    source.found(&outcome.missing);
    let time = |slice: u16| {
        let at = slices.start.saturating_add(slices.width.saturating_mul(slice.into()));
        if by_tick { process.clock.nanos(at) as f64 / 1e6 } else { at as f64 }
    };
    let mut sums: Vec<Sum> = slices
        .sums
        .iter()
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(&SumKey { site, allocated, freed }, &bytes)| {
            let freed = (freed != NEVER).then(|| time(freed.max(allocated)));
            Sum { site, allocated: time(allocated), freed, bytes }
        })
        .collect();
    sums.sort_by(|a, b| a.allocated.total_cmp(&b.allocated).then(a.site.cmp(&b.site)).then(a.bytes.cmp(&b.bytes)));
    sums
}

/// Returns a free event at the end of the run for a block that is still live.
const fn event_of(block: &Block) -> Event {
    Event { thread: block.thread, site: block.site, ..Event::of(crate::event::Kind::Free) }
}

/// Returns every allocation and free of the sums, by time.
fn steps(sums: &[Sum]) -> Vec<Step> {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut steps = Vec::new();
    for (&Sum { site, allocated, freed, bytes }, number) in sums.iter().zip(1u64..) {
        steps.push(Step { time: allocated, weight: signed(bytes), site, number });
        if let Some(freed) = freed {
            steps.push(Step { time: freed, weight: -signed(bytes), site, number });
        }
    }
    // The sort is stable: at equal times, the allocation of a sum comes before its free.
    steps.sort_by(|a, b| a.time.total_cmp(&b.time));
    steps
}

/// Returns the live bytes over the run as a memory track.
fn counter(process: &Process, sums: &[Sum], thread: usize, offset: f64) -> Value {
    let (mut times, mut counts) = (Vec::new(), Vec::new());
    for Step { time, weight, .. } in steps(sums) {
        match (times.last().is_some_and(|&last: &f64| last == time), counts.last_mut()) {
            (true, Some(count)) => *count += weight,
            _ => {
                times.push(time);
                counts.push(weight);
            }
        }
    }
    let times: Vec<f64> = times.into_iter().map(|time| time + offset).collect();
    json!({
        "name": "malloc", "category": "Memory", "description": "Live bytes", "pid": process.about.pid.to_string(),
        "mainThreadIndex": thread, "samples": { "length": times.len(), "time": times, "count": counts },
    })
}

/// Returns a kind of memory besides the live blocks as a memory track.
fn memory_counter(process: &Process, track: &MemoryTrack, thread: usize, offset: f64) -> Value {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let times: Vec<f64> = track.points.iter().map(|point| point.at_ns as f64 / 1e6 + offset).collect();
    let before = std::iter::once(0).chain(track.points.iter().map(|point| signed(point.bytes)));
    let counts: Vec<i64> =
        track.points.iter().zip(before).map(|(point, before)| signed(point.bytes) - before).collect();
    json!({
        "name": track.name, "category": "Memory", "description": track.name, "pid": process.about.pid.to_string(),
        "mainThreadIndex": thread, "samples": { "length": times.len(), "time": times, "count": counts },
    })
}

/// The modules of all processes.
#[derive(Default)]
struct Libs {
    list: Vec<Value>,
    known: FxHashMap<String, usize>,
}

impl Libs {
    fn number(&mut self, path: &str) -> usize {
        if let Some(&known) = self.known.get(path) {
            return known;
        }
        let name = clean(path.rsplit('/').next().unwrap_or(path)).into_owned();
        let path_shown = clean(path);
        self.list.push(json!({
            "name": name, "path": path_shown, "debugName": name, "debugPath": path_shown, "breakpadId": "", "codeId": null, "arch": null,
        }));
        self.known.insert(path.to_string(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// The string table of a thread.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    known: FxHashMap<String, usize>,
}

impl Strings {
    fn number(&mut self, text: &str) -> usize {
        let text = clean(text);
        if let Some(&known) = self.known.get(&*text) {
            return known;
        }
        self.list.push(text.clone().into_owned());
        self.known.insert(text.into_owned(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// Columns of the frame table, with the profiler's own names.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Columns {
    length: usize,
    address: Vec<i8>,
    inline_depth: Vec<u8>,
    category: Vec<u8>,
    subcategory: Vec<u8>,
    func: Vec<usize>,
    native_symbol: Vec<Option<u8>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u8>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

fn thread(source: &mut Source<'_>, process: &Process, sums: &[Sum], libs: &mut Libs, offset: f64) -> Value {
    let mut tree = Tree::new(Identity::Line, 0);
    let nodes = tree.sites(&mut source.symbols, process, sums.iter().map(|sum| sum.site));
    let mut strings = Strings::default();
    let (mut names, mut resources, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let mut known: FxHashMap<(usize, i64, Option<usize>), usize> = FxHashMap::default();
    let (mut of_lib, mut resource_libs, mut resource_names) = (FxHashMap::default(), Vec::new(), Vec::new());
    let mut frames = Columns { length: tree.frames.len(), ..Columns::default() };
    for frame in &tree.frames {
        let name = strings.number(frame.function.as_deref().unwrap_or_default());
        let file = frame.file.as_deref().map(|file| strings.number(file));
        let resource = match frame.module.is_empty() {
            true => -1,
            false => *of_lib.entry(frame.module.clone()).or_insert_with(|| {
                resource_libs.push(libs.number(&frame.module));
                resource_names.push(strings.number(frame.module_name()));
                resource_libs.len() as i64 - 1
            }),
        };
        let func = *known.entry((name, resource, file)).or_insert_with(|| {
            names.push(name);
            resources.push(resource);
            files.push(file);
            names.len() - 1
        });
        frames.address.push(-1);
        frames.inline_depth.push(0);
        frames.category.push(0);
        frames.subcategory.push(0);
        frames.func.push(func);
        frames.native_symbol.push(None);
        frames.inner_window_id.push(0);
        frames.line.push(frame.line);
        frames.column.push(None);
    }
    // The root of the tree is not a frame, so node n is stack n - 1.
    let prefixes: Vec<Option<u32>> = tree.nodes[1..].iter().map(|node| node.parent.checked_sub(1)).collect();
    let of_stack: Vec<u32> = tree.nodes[1..].iter().map(|node| node.frame).collect();
    let steps = steps(sums);
    let stacks: Vec<Option<u32>> = steps.iter().map(|step| nodes.get(step.site as usize)?.checked_sub(1)).collect();
    let end = process.clock.nanos(process.tape.last_tick) as f64 / 1e6;
    let none = |count: usize| vec![Value::Null; count];
    let no = |count: usize| vec![false; count];
    json!({
        "processType": "default", "processName": clean(&process.name()), "processStartupTime": offset,
        "processShutdownTime": offset + end, "registerTime": offset, "unregisterTime": null, "pausedRanges": [],
        "name": clean(&process.name()), "isMainThread": true, "pid": process.about.pid.to_string(), "tid": process.about.pid,
        "samples": {
            "length": 2, "weightType": "samples", "weight": null, "stack": [null, null], "time": [offset, offset + end],
        },
        "markers": { "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": [] },
        "nativeAllocations": {
            "length": steps.len(), "weightType": "bytes", "time": steps.iter().map(|step| step.time + offset).collect::<Vec<_>>(),
            "weight": steps.iter().map(|step| step.weight).collect::<Vec<_>>(), "stack": stacks,
            "memoryAddress": steps.iter().map(|step| step.number).collect::<Vec<_>>(), "threadId": vec![process.about.pid; steps.len()],
        },
        "stackTable": { "length": of_stack.len(), "prefix": prefixes, "frame": of_stack },
        "frameTable": frames,
        "funcTable": {
            "length": names.len(), "name": names, "isJS": no(resources.len()), "relevantForJS": no(resources.len()),
            "resource": resources, "fileName": files, "lineNumber": none(resources.len()), "columnNumber": none(resources.len()),
        },
        "resourceTable": {
            "length": resource_libs.len(), "lib": resource_libs, "name": resource_names, "host": none(resource_names.len()),
            "type": vec![1; resource_names.len()],
        },
        "nativeSymbols": { "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [] },
        "stringArray": strings.list,
    })
}
