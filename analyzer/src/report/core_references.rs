//! Which block holds which in the memory of a core: of the blocks that were live at the end of the
//! recording, or without one of those that the memory itself shows.

use super::{Error, Unanswerable};
use crate::load::core::Core;
use crate::load::references::{Reading, ReferenceSnapshot};
use crate::load::{Events, Process, Recording};
use crate::progress::Progress;
use crate::replay::replay_all;
use heaptape_formats::glibc_heap::Heap;
use heaptape_formats::recording::{Exit, RAN_ALREADY};
use heaptape_formats::references::{BlockTable, Found, LiveBlock, Regions, Search};
use heaptape_formats::resident::Allocator;
use heaptape_formats::tape::field::Text;
use heaptape_formats::tape::{RESIDENCY_EXIT, ROOT_EARLIER, Record, References, ReferencesEnd, RootRegion};
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the search may take.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Maximum number of blocks.
const MAX_BLOCKS: usize = 1 << 25;
/// Size of a page of x86-64, whose cores are read.
const PAGE: u64 = 4096;

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
pub(super) fn attach(recordings: &mut [Recording], path: &Path) -> Result<(), Error> {
    let core = Core::open(path)?;
    let pid = core.file.pid;
    let mut processes = recordings.iter_mut().rev().flat_map(|recording| recording.processes.iter_mut().rev());
    let Some(process) = processes.find(|process| process.about.pid == pid) else {
        let why = format!("{} is of process {pid}, which was not recorded", path.display());
        let remedy = "without a recording, give the core instead of one".into();
        return Err(Unanswerable::NoReferences { why, remedy }.into());
    };
    process.core = Some(Arc::new(core));
    Ok(())
}

fn in_core(process: &Process, core: &Core) -> Result<ReferenceSnapshot, String> {
    let mut lacks: Vec<String> = core.file.lacks().into_iter().collect();
    let (blocks, allocator) = match process.events {
        Events::Imported { .. } => (walked(process, core, &mut lacks), Allocator::Glibc),
        _ => (recorded(process, core, &mut lacks)?, allocator(process, core)),
    };
    let table = BlockTable::new(blocks, allocator);
    let threads = core.file.stopped_threads();
    let excluded = core.heap.as_ref().map_or(&[][..], |heap| &heap.ranges);
    let knows_all_blocks = knows_all_blocks(process);
    // Cores are of x86-64.
    let has_data_above = false;
    let regions = Regions {
        excluded,
        threads: &threads,
        allocator,
        knows_all_blocks,
        page: PAGE,
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
    let tick = process.last_event_tick().unwrap_or_default();
    let head =
        References { tick, pid: core.file.pid, cause: RESIDENCY_EXIT, threads: count, stopped: count, names, regions };
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
    let Some(heap) = &core.heap else {
        lacks.push("no heap of glibc was found".into());
        return Vec::new();
    };
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

/// Returns the blocks that were live at the end of the recording.
fn recorded(process: &Process, core: &Core, lacks: &mut Vec<String>) -> Result<Vec<LiveBlock>, String> {
    let is_end = core.file.signal.is_some_and(|signal| signal.number != 0)
        && !matches!(process.about.exit, Some(Exit::Running | Exit::Code(_)));
    if !is_end {
        return Err("the program ran on after the core was written: what was live then is not known".into());
    }
    if !process.knows_blocks() || process.tape.is_sampled() {
        return Err("the recording does not know all blocks: it has no events, or is sampled".into());
    }
    let outcome = replay_all(process, &Progress::new("reading events"));
    lacks.extend(outcome.missing.iter().map(ToString::to_string));
    let blocks = outcome.live.iter().take(MAX_BLOCKS).map(|(index, block)| LiveBlock {
        address: block.address,
        size: block.size,
        index: if block.inherited { 0 } else { index },
        site: if block.inherited { 0 } else { block.site },
    });
    Ok(blocks.collect())
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
