//! Which block holds which in the memory of a core: of the blocks that were live at the end of the
//! recording, or without one of those that the memory itself shows.

use super::{Error, Query, Unanswerable};
use crate::event::{Bound, Span};
use crate::load::core::Core;
use crate::load::references::{Reading, ReferenceSnapshot};
use crate::load::{Events, Process, Recording};
use crate::model::core_moment::{CoreMoment, Fit};
use crate::progress::Progress;
use crate::replay::{self, replay};
use heaptape_formats::glibc_heap::Heap;
use heaptape_formats::recording::{Exit, RAN_ALREADY};
use heaptape_formats::references::{BlockTable, Found, LiveBlock, Regions, Search};
use heaptape_formats::resident::Allocator;
use heaptape_formats::tape::field::Text;
use heaptape_formats::tape::{
    RESIDENCY_EXIT, RESIDENCY_REQUEST, ROOT_EARLIER, Record, References, ReferencesEnd, RootRegion,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the search may take.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Maximum number of blocks.
const MAX_BLOCKS: usize = 1 << 25;

/// Reads the references of a process: of its core, if it has one.
///
/// # Errors
/// The file cannot be read, or does not fit the recording.
pub(super) fn of(process: &Process) -> Result<Option<ReferenceSnapshot>, String> {
    match &process.core {
        Some(core) => in_core(process, core).map(Some),
        None => process.references(),
    }
}

/// Gives a core to the process of some recordings that left it: the last program of its pid.
///
/// # Errors
/// It cannot be read, or there is no such process.
pub(super) fn attach<'r>(recordings: &'r mut [Recording], path: &Path) -> Result<&'r mut Process, Error> {
    let core = Core::open(path)?;
    let pid = core.file.pid;
    let mut processes = recordings.iter_mut().rev().flat_map(|recording| recording.processes.iter_mut().rev());
    let Some(process) = processes.find(|process| process.about.pid == pid) else {
        let why = format!("{} is of process {pid}, which was not recorded", path.display());
        let remedy = "without a recording, give the core instead of one".into();
        return Err(Unanswerable::NoReferences { why, remedy }.into());
    };
    process.core = Some(Arc::new(core));
    Ok(process)
}

/// Makes a question one about a core, and about the time until it was written: `gcore` writes one of
/// a program that runs on.
///
/// # Errors
/// The core or the recordings cannot be read, or the core's process was not recorded.
pub fn ask_of_core(query: &mut Query, path: &Path) -> Result<(), Error> {
    let mut recordings = crate::load::open_all(&query.scope.paths)?;
    let process = attach(&mut recordings, path)?;
    query.scope.processes.process.get_or_insert(process.about.pid.to_string());
    if query.scope.range.to.is_none() {
        query.scope.range.to = process.core.as_deref().and_then(|core| moment(process, core));
    }
    query.scope.core = Some(path.to_path_buf());
    Ok(())
}

/// Returns whether the core is what the program left when it ended.
fn is_of_end(process: &Process, core: &Core) -> bool {
    let Some(signal) = core.file.signal.filter(|signal| signal.is_crash()) else { return false };
    match process.about.exit {
        Some(Exit::Signal(number)) => i64::from(number) == i64::from(signal.number),
        Some(Exit::Running | Exit::Code(_) | Exit::Exec) => false,
        Some(Exit::Unknown) | None => true,
    }
}

/// Returns when a program was stopped for its core, if it ran on.
fn moment(process: &Process, core: &Core) -> Option<Bound> {
    if is_of_end(process, core) || !process.knows_blocks() || process.tape.is_sampled() {
        return None;
    }
    // The program stands still until the file is complete.
    let since = core.file.written_unix_ns.checked_sub(process.clock.start_unix_ns);
    let since = since.filter(|_| process.has_times() && process.clock.start_unix_ns != 0);
    let within = |nanos: &u64| process.clock.tick(*nanos) <= process.tape.last_tick;
    if let Some(heap) = &core.heap {
        let written = since.map_or(u64::MAX, |nanos| process.clock.tick(nanos));
        let mut model = CoreMoment::new(heap, written);
        replay(process, Span::ALL, &Progress::new("reading events"), &mut model);
        if model.is_known() {
            // A program that did nothing since has no event to tell when that was.
            let number = Bound::Number(model.events());
            let is_last = model.events() >= process.tape.events;
            return Some(since.filter(within).filter(|_| is_last).map_or(number, Bound::Time));
        }
    }
    since.filter(within).map(Bound::Time)
}

fn in_core(process: &Process, core: &Core) -> Result<ReferenceSnapshot, String> {
    let mut lacks: Vec<String> = core.file.lacks().into_iter().collect();
    let (blocks, allocator, has_more) = match process.events {
        Events::Imported { .. } => (walked(process, core, &mut lacks), Allocator::Glibc, false),
        _ => {
            let blocks = recorded(process, core, &mut lacks)?;
            let has_more = process.core_span.is_some() && has_more(core, &blocks);
            (blocks, allocator(process, core), has_more)
        }
    };
    let table = BlockTable::new(blocks, allocator);
    let threads = core.file.stopped_threads();
    let excluded = core.heap.as_ref().map_or(&[][..], |heap| &heap.ranges);
    let knows_all_blocks = knows_all_blocks(process) && !has_more;
    let has_data_above = core.file.machine.has_data_above();
    let regions = Regions {
        excluded,
        mapped: None,
        threads: &threads,
        allocator,
        knows_all_blocks,
        page: core.file.page,
        has_data_above,
        memory: &core.file,
    };
    let Found { mut regions, names, files, code, .. } = regions.find(core.file.mappings(), &table);
    // Blocks that the recording does not know may hold others. Old words in free memory hold nothing.
    let earlier = core.heap.as_ref().filter(|_| !knows_all_blocks);
    let empty = earlier.map(Heap::empty).unwrap_or_default();
    regions.extend(earlier.into_iter().flat_map(|heap| &heap.ranges).map(|&(start, end)| RootRegion {
        start,
        length: end - start,
        kind: ROOT_EARLIER,
        name: 0,
        thread: 0,
    }));
    let count = threads.len() as u32;
    let (tick, cause) = match process.core_span {
        Some(span) => (tick_of(process, span), RESIDENCY_REQUEST),
        None => (process.last_event_tick().unwrap_or_default(), RESIDENCY_EXIT),
    };
    let head = References { tick, pid: core.file.pid, cause, threads: count, stopped: count, names, regions };
    let libc = (1..).zip(&head.names).find(|(_, name)| is_libc(name)).map(|(number, _)| number);
    let libc = libc.filter(|_| allocator == Allocator::Glibc);
    let mut reading = Reading::default();
    reading.add(Record::References(head.clone()));
    let mut search =
        Search::new(&table, &core.file, [&files, &code], libc, Instant::now() + TIME_LIMIT).without(&empty);
    let mut put = |record| {
        reading.add(record);
        Ok(())
    };
    search.roots(&head.regions, &threads, &mut put).map_err(|error| error.to_string())?;
    search.blocks(&mut put).map_err(|error| error.to_string())?;
    search.offsets(&mut put).map_err(|error| error.to_string())?;
    lacks.extend(search.found.lacks());
    reading.add(Record::ReferencesEnd(ReferencesEnd {
        end_tick: tick,
        lacks: Text::from(lacks.join("; ")),
        blocks: table.len() as u64,
        bytes: table.bytes(),
        edges: search.found.edges,
        root_edges: search.found.root_edges,
        read_bytes: search.found.read_bytes,
        cpu_ns: 0,
    }));
    reading.finish()
}

/// Returns the blocks that the memory shows.
fn walked(process: &Process, core: &Core, lacks: &mut Vec<String>) -> Vec<LiveBlock> {
    lacks.extend(core.unknown());
    let Some(heap) = &core.heap else { return Vec::new() };
    lacks.extend(heap.lacks.iter().cloned());
    // Each size has a site of its own, in this order.
    let mut site_of: FxHashMap<u64, u32> = FxHashMap::default();
    for (_, sums) in process.sums.iter() {
        site_of.extend(sums.iter().filter(|row| row.allocs > 0).map(|row| (row.bytes / row.allocs, row.site)));
    }
    heap.live()
        .map(|chunk| {
            let (address, size) = (chunk.address, chunk.usable());
            LiveBlock { address, size, index: 0, site: site_of.get(&size).copied().unwrap_or_default() }
        })
        .collect()
}

/// Returns the tick of the last event of a span.
fn tick_of(process: &Process, span: Span) -> u64 {
    let last = span.end.checked_sub(1).filter(|_| span.end != u64::MAX).and_then(|last| process.event_at(last));
    last.map_or(span.end_tick.min(process.tape.last_tick), |last| last.tick)
}

/// Returns the blocks that were live when the core was written.
fn recorded(process: &Process, core: &Core, lacks: &mut Vec<String>) -> Result<Vec<LiveBlock>, String> {
    if !process.knows_blocks() || process.tape.is_sampled() {
        return Err("the recording does not know all blocks: it has no events, or is sampled".into());
    }
    if process.core_span.is_none() && !is_of_end(process, core) {
        return Err("the program ran on after the core was written, and neither the core nor the time of its file \
                    says when that was: give it with --until"
            .into());
    }
    let span = process.core_span.unwrap_or(Span::ALL);
    let mut outcome = replay(process, span, &Progress::new("reading events"), &mut ());
    lacks.extend(outcome.missing.iter().map(ToString::to_string));
    if let Some(heap) = core.heap.as_ref().filter(|_| process.core_span.is_some()) {
        lacks.extend(leave_out_others(heap, &mut outcome, core.file.threads.len()));
    }
    let blocks = outcome.live.iter().take(MAX_BLOCKS).map(|(index, block)| LiveBlock {
        address: block.address,
        size: block.size,
        index: if block.inherited { 0 } else { index },
        site: if block.inherited { 0 } else { block.site },
    });
    Ok(blocks.collect())
}

/// Leaves out blocks that are not live in the core. Says so where they are more than those that
/// threads were about to get or to free.
fn leave_out_others(heap: &Heap, outcome: &mut replay::Outcome, threads: usize) -> Option<String> {
    let mut others = 0;
    outcome.live.retain(|_, block| {
        let is_other = Fit::of(heap, block.address, block.size) == Fit::Other;
        others += usize::from(is_other);
        !is_other
    });
    let say = |others| format!("{others} blocks that are live in the recording at that time are free in the core");
    (others > threads).then(|| say(others))
}

/// Returns whether a core has live blocks that are not among these, which are in no order.
fn has_more(core: &Core, blocks: &[LiveBlock]) -> bool {
    let Some(heap) = &core.heap else { return false };
    let known: FxHashSet<u64> = blocks.iter().map(|block| block.address).collect();
    heap.live().any(|chunk| !known.contains(&chunk.address))
}

/// Returns whether no block of the process is older than its recording, or of the process that it was
/// forked from.
fn knows_all_blocks(process: &Process) -> bool {
    process.about.unseen_mappings != RAN_ALREADY
        && process.about.began_unix_ns == 0
        && process.tape.inherited.as_ref().is_none_or(|inherited| inherited.blocks == 0)
}

/// Returns whose the blocks of a recorded process are.
fn allocator(process: &Process, core: &Core) -> Allocator {
    let names = core.file.files.iter().map(|file| String::from_utf8_lossy(&file.path));
    Allocator::of_process(&process.about.malloc, names)
}

fn is_libc(name: &Text) -> bool {
    let name = name.lossy();
    let file = name.rsplit('/').next().unwrap_or_default();
    file.starts_with("libc.so.") || file.starts_with("libc-2.")
}
