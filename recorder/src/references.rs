//! Which block of a process holds which: at its end, while it waits for us, or of a copy of it while it
//! runs, we read its live blocks, its data, stacks and registers, and note each word that is the
//! address of a live block or of a place in one. Contents are not stored, but for the words that show a type
//! ([`FirstWords`](formats::tape::FirstWords)).

mod memory;

use crate::heap::index::{Block, Index};
use crate::heap::live::LiveMemory;
use crate::os::clock;
use crate::os::permissions::{let_read, make_folder};
use crate::os::processor::{HAS_DATA_ABOVE, Registers, page_bytes};
use crate::session::traced_process::Session;
use crate::store::division::allocator_of;
use crate::target::maps;
use formats::glibc_heap::Heap;
use formats::recording::REFERENCES;
pub(crate) use formats::references::StoppedThread;
use formats::references::{BlockTable, Found, LiveBlock, Mapping, Regions, Search};
use formats::resident::Allocator;
use formats::tape::field::Text;
use formats::tape::{Record, References, ReferencesEnd, Writer};
pub(crate) use memory::Memory;
use nix::unistd::Pid;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Maximum number of blocks: those of more take more memory than we want to use in a recorder.
const MAX_BLOCKS: u64 = 1 << 25;
/// How long the process may be held.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// What is read, and from whom.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    pub session: &'a Session,
    /// A thread by which its memory can be read: the first one may have ended.
    pub reader_tid: u32,
    /// Whether that is a thread of a copy of the process.
    pub is_copy: bool,
    /// When the process was as it is read, in ticks.
    pub tick: u64,
    /// What was live at that time.
    pub live: LiveMemory,
    /// Its threads that do not run meanwhile.
    pub threads: &'a [StoppedThread],
    pub thread_count: u32,
    /// Why: one of the `RESIDENCY_` numbers.
    pub cause: u8,
    /// When the process began to wait, or its copy was made.
    pub since: Instant,
}

/// The file that is written.
struct Output {
    file: BufWriter<std::fs::File>,
    writer: Writer,
    bytes: Vec<u8>,
}

impl Output {
    fn put(&mut self, record: &Record) -> io::Result<()> {
        self.bytes.clear();
        self.writer.record(record, &mut self.bytes);
        self.file.write_all(&self.bytes)
    }
}

/// Sorts the blocks of some indexes, of which the first one has those of the process itself.
fn table(indexes: &[Index], allocator: Allocator) -> BlockTable {
    let mut blocks = Vec::new();
    for (number, index) in indexes.iter().enumerate() {
        blocks.extend(index.iter().take((MAX_BLOCKS as usize).saturating_sub(blocks.len())).map(|(address, block)| {
            let Block { index, size, site } = block;
            let (index, site) = if number == 0 { (index, site) } else { (0, 0) };
            LiveBlock { address, size, index, site }
        }));
    }
    BlockTable::new(blocks, allocator)
}

fn mapping<'a>(line: &maps::Line<'a>) -> Mapping<'a> {
    Mapping {
        start: line.start,
        end: line.end,
        offset: line.offset,
        has_access: line.has_access(),
        is_writable: line.is_writable(),
        is_executable: line.is_executable(),
        is_shared: line.is_shared(),
        name: line.name,
    }
}

/// Returns a thread that stands still, with all its registers.
pub(crate) fn stopped_thread(tid: Pid, own: &Registers) -> StoppedThread {
    let tid = tid.as_raw().cast_unsigned();
    StoppedThread { tid, stack_pointer: own.sp(), thread_pointer: own.thread_pointer(), registers: own.general() }
}

/// Reads the references of a process, and writes them beside its tape.
///
/// # Errors
/// The memory of the process cannot be read, or the file cannot be written.
pub(crate) fn take(snapshot: Snapshot<'_>) -> io::Result<()> {
    let Snapshot { session, reader_tid, is_copy, tick, live, threads, thread_count, cause, since } = snapshot;
    let cpu = clock::thread_time();
    let (pid, page) = (session.process.pid, u64::from(session.process.page_size));
    let memory = if is_copy { Memory::of_copy(reader_tid, pid, page) } else { Memory::of(reader_tid, page) };
    memory.probe(session)?;
    let text = maps::read(reader_tid);
    let mut text = String::from_utf8_lossy(&text);
    if is_copy {
        text = maps::with_missing(&text, &String::from_utf8_lossy(&maps::read(pid))).into();
    }
    let names = text.lines().filter_map(maps::parse).map(|line| line.name.into());
    let allocator = allocator_of(session, names);
    let LiveMemory { blocks, mapped } = live;
    let count: u64 = blocks.indexes.iter().map(Index::len).sum();
    let mut lacks = Vec::new();
    let lost = session.stats.now().lost;
    if lost > 0 {
        lacks.push(format!("{lost} events were lost, and with them blocks that may hold others"));
    }
    if count > MAX_BLOCKS {
        lacks.push(format!("{count} live blocks are more than {MAX_BLOCKS}"));
    }
    let table = table(&blocks.indexes, allocator);
    drop(blocks);
    let own: Vec<(u64, u64)> = session.mapping.header().private_ranges().collect();
    let knows_all_blocks = session.knows_all_blocks();
    let (page, has_data_above) = (page_bytes(), HAS_DATA_ABOVE);
    let (excluded, mapped) = (&own[..], mapped.as_deref());
    let regions =
        Regions { excluded, mapped, threads, allocator, knows_all_blocks, page, has_data_above, memory: &memory };
    let mappings = || text.lines().filter_map(maps::parse).map(|line| mapping(&line));
    let Found { regions, names, files, code, .. } = regions.find(mappings(), &table);
    // Old words in free memory hold nothing, where we can tell that it is free.
    let pointers: Vec<u64> = threads.iter().map(|thread| thread.stack_pointer).collect();
    let is_walked = !knows_all_blocks && allocator == Allocator::Glibc;
    let heap = is_walked.then(|| Heap::in_mappings(&memory, mappings(), &pointers)).flatten();
    let empty = heap.as_ref().map(Heap::empty).unwrap_or_default();
    drop(heap);
    if threads.len() < thread_count as usize {
        lacks.push(format!("{} of {thread_count} threads ran on meanwhile", thread_count as usize - threads.len()));
    }
    let stopped = threads.len() as u32;
    // An earlier one stays until this one is whole, if the process runs on.
    let path = session.folder.join(REFERENCES);
    let written = if is_copy { path.with_extension("new") } else { path.clone() };
    if is_copy {
        // Nothing else may be written of this segment yet.
        make_folder(&session.folder, session.options.reader)?;
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&written)?;
    let_read(&file, session.options.reader)?;
    let mut out = Output { file: BufWriter::new(file), writer: Writer::default(), bytes: Vec::new() };
    Writer::file_header(&mut out.bytes);
    out.file.write_all(&out.bytes)?;
    let head = References { tick, pid, cause, threads: thread_count, stopped, names, regions };
    out.put(&Record::References(head.clone()))?;
    let is_glibc = |name: &&(u32, &Text)| {
        let name = name.1.lossy();
        let file = name.rsplit('/').next().unwrap_or_default();
        allocator == Allocator::Glibc && (file.starts_with("libc.so.") || file.starts_with("libc-2."))
    };
    let libc = (1..).zip(&head.names).find(|name| is_glibc(&name)).map(|(number, _)| number);
    let mut search = Search::new(&table, &memory, [&files, &code], libc, since + TIME_LIMIT).without(&empty);
    search.roots(&head.regions, threads, &mut |record| out.put(&record))?;
    search.blocks(&mut |record| out.put(&record))?;
    search.offsets(&mut |record| out.put(&record))?;
    let found = search.found;
    lacks.extend(found.lacks());
    // Another thread may end the process meanwhile.
    if let Err(error) = memory.probe(session) {
        lacks.push(format!("the process ended meanwhile ({error})"));
    }
    let end = ReferencesEnd {
        end_tick: session.clock.now(),
        lacks: Text::from(lacks.join("; ")),
        blocks: table.len() as u64,
        bytes: table.bytes(),
        edges: found.edges,
        root_edges: found.root_edges,
        read_bytes: found.read_bytes,
        cpu_ns: clock::thread_time().saturating_sub(cpu).as_nanos() as u64,
    };
    tracing::debug!(
        "{} references of {} blocks in {:?}, {:?} of CPU time",
        end.edges + end.root_edges,
        end.blocks,
        since.elapsed(),
        Duration::from_nanos(end.cpu_ns)
    );
    out.put(&Record::ReferencesEnd(end))?;
    out.file.flush()?;
    if written == path { Ok(()) } else { std::fs::rename(written, path) }
}
