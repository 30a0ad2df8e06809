//! Where a program keeps references besides its blocks: data of modules, thread-local data, stacks,
//! registers, and memory that it maps itself. What belongs to heaptape, to the kernel or to the
//! allocator is left out, and so is the part of a stack that is not in use.

use super::blocks::BlockTable;
use super::{ADDRESS_BITS, Memory, descriptors};
use crate::resident::Allocator;
use crate::tape::field::Text;
use crate::tape::{ROOT_DATA, ROOT_EARLIER, ROOT_MAPPING, ROOT_REGISTERS, ROOT_STACK, ROOT_THREAD_LOCAL, RootRegion};
use std::collections::{HashMap, HashSet};

/// Size and alignment of a range of an arena of glibc.
const ARENA: u64 = 64 << 20;
/// Bytes below the stack pointer that a function may use without moving it (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;
/// Bytes of glibc's `struct pthread`, with some to spare. It is at the thread pointer, or before it.
const THREAD_DESCRIPTOR: u64 = 4096;
const THREAD_DESCRIPTOR_BEFORE: u64 = 2048;
/// Bytes between the thread pointer and the data that is above it.
const THREAD_CONTROL: u64 = 16;
/// Most bytes of thread-local data of one module.
const MAX_TLS: u64 = 1 << 20;
/// Maximum number of names, and of bytes of each.
const MAX_NAMES: usize = 4096;
const MAX_NAME: usize = 512;
/// Bytes of a module that are read for its program headers.
const HEAD: usize = 4096;

/// A mapping of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file; 0 if there is none.
    pub offset: u64,
    /// Whether it may be read, written or executed.
    pub has_access: bool,
    /// Whether it may be read and written.
    pub is_writable: bool,
    /// Whether it may be executed.
    pub is_executable: bool,
    /// Whether other processes share it.
    pub is_shared: bool,
    /// Path, or the kernel's name in brackets; empty if there is none.
    pub name: &'a str,
}

impl<'a> Mapping<'a> {
    /// Returns whether it is our library, or memory that it shares with the recorder.
    pub(crate) fn is_ours(&self) -> bool {
        let file = self.name.rsplit('/').next().unwrap_or_default();
        self.name.starts_with("/memfd:heaptape") || file.starts_with("libheaptape")
    }

    /// Returns the name without the note that the file was removed.
    fn path(&self) -> &'a str {
        self.name.strip_suffix(" (deleted)").unwrap_or(self.name)
    }
}

/// A thread that does not run.
#[derive(Clone, Debug, Default)]
pub struct StoppedThread {
    /// Kernel's id of it.
    pub tid: u32,
    /// Where its stack ends.
    pub stack_pointer: u64,
    /// Base of the thread-local data; 0 if it is not known.
    pub thread_pointer: u64,
    /// All general registers, or the six arguments of the system call that the thread waits in.
    /// Empty if none is needed, since they are on its stack.
    pub registers: Vec<u64>,
}

/// What is known of the process.
#[derive(Clone, Copy, Debug)]
pub struct Regions<'a> {
    /// What holds nothing: private memory of the library, and of the allocator as far as that is known.
    pub excluded: &'a [(u64, u64)],
    /// What the program has mapped itself; `None` if that is not known.
    pub mapped: Option<&'a [(u64, u64)]>,
    /// Its threads that do not run.
    pub threads: &'a [StoppedThread],
    /// Whose the blocks are.
    pub allocator: Allocator,
    /// Whether all blocks are known, so that the rest of the allocator's memory holds nothing.
    pub knows_all_blocks: bool,
    /// Size of a page.
    pub page: u64,
    /// Whether thread-local data is above the thread pointer (variant I of "ELF Handling For
    /// Thread-Local Storage"), as on aarch64.
    pub has_data_above: bool,
    /// Its memory.
    pub memory: &'a dyn Memory,
}

/// Where references may be.
#[derive(Debug, Default)]
pub struct Found {
    /// In order of certainty.
    pub regions: Vec<RootRegion>,
    /// The names that regions have the numbers of.
    pub names: Vec<Text>,
    /// Mappings of files, in which vtables may be.
    pub files: Vec<(u64, u64)>,
    /// Mappings of code without a file.
    pub code: Vec<(u64, u64)>,
    /// Bytes of thread-local data beside the thread pointer, of all modules.
    thread_local: u64,
    /// Threads whose thread pointers are not known.
    unplaced: HashSet<u32>,
    /// The end of the last mapping that nobody may access, as the guard of a stack.
    guard_end: u64,
}

impl Found {
    fn add(&mut self, (start, end): (u64, u64), kind: u8, name: u32, thread: u32) {
        if start < end {
            self.regions.push(RootRegion { start, length: end - start, kind, name, thread });
        }
    }
}

/// A segment of a module, or another part of it.
struct ProgramHeader {
    kind: u64,
    start: u64,
    size: u64,
    alignment: u64,
}

/// Returns what is left of a range without others, which may overlap.
fn without(range: (u64, u64), mut taken: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    taken.sort_unstable();
    let (mut left, mut at) = (Vec::new(), range.0);
    for (start, end) in taken {
        if start > at {
            left.push((at, start.min(range.1)));
        }
        at = at.max(end);
        if at >= range.1 {
            return left;
        }
    }
    left.push((at, range.1));
    left
}

impl Regions<'_> {
    /// Finds the regions in the mappings, which are in ascending order.
    pub fn find<'m>(&self, mappings: impl Iterator<Item = Mapping<'m>>, table: &BlockTable) -> Found {
        let unplaced = self.threads.iter().filter(|thread| thread.thread_pointer == 0).map(|thread| thread.tid);
        let mut found = Found { unplaced: unplaced.collect(), ..Found::default() };
        let mut numbers: HashMap<&'m str, u32> = HashMap::new();
        let mut before: Option<(u64, u32)> = None;
        let mut library_end = u64::MAX;
        for mut line in mappings.filter(|line| line.start < line.end && line.start >> ADDRESS_BITS == 0) {
            let is_ours = line.is_ours();
            let is_kernels = matches!(line.name, "[vdso]" | "[vvar]" | "[vvar_vclock]" | "[vsyscall]");
            let is_file = line.name.starts_with('/') && !is_shared_memory(line.name);
            if is_file && !is_ours {
                found.files.push((line.start, line.end));
                if line.offset == 0 {
                    found.thread_local += self.thread_local(line.start);
                }
            }
            let module = before.take();
            if is_ours {
                if line.offset == 0 {
                    library_end = self.end_of_module(line.start).unwrap_or(u64::MAX);
                }
                // Its zeros follow its data; nothing of us follows the area.
                before = Some((line.end, u32::MAX)).filter(|_| !line.is_shared);
                continue;
            }
            if !line.has_access {
                found.guard_end = line.end;
            }
            if is_kernels || !line.has_access {
                continue;
            }
            if is_file {
                let parts = self.data_in(&line);
                if parts.is_empty() {
                    continue;
                }
                let name = number_of(line.path(), &mut numbers, &mut found.names);
                let kind = if line.is_shared { ROOT_MAPPING } else { ROOT_DATA };
                for part in parts.into_iter().flat_map(|part| without(part, self.excluded.to_vec())) {
                    found.add(part, kind, name, 0);
                }
                before = Some((line.end, name)).filter(|_| !line.is_shared);
                continue;
            }
            if line.is_executable {
                found.code.push((line.start, line.end));
            }
            let zeros = module.filter(|module| module.0 == line.start && line.name.is_empty());
            if zeros.is_some_and(|zeros| zeros.1 == u32::MAX) {
                // The kernel joins them with what follows: thread-local data of the main thread.
                line.start = line.start.max(library_end);
                if line.start < line.end {
                    self.anonymous(&line, None, table, &mut found, &mut numbers);
                }
                continue;
            }
            self.anonymous(&line, zeros.map(|zeros| zeros.1), table, &mut found, &mut numbers);
        }
        for thread in self.threads.iter().filter(|thread| !thread.registers.is_empty()) {
            found.add((0, 8 * thread.registers.len() as u64), ROOT_REGISTERS, 0, thread.tid);
        }
        // In order of certainty: the nearest root of a block is the first one that leads to it.
        found.regions.sort_by_key(|region| (region.kind, region.start));
        found
    }

    /// Returns what a program may have stored in a mapping of a file: all that it may write, and what it wrote
    /// before it made that read-only.
    fn data_in(&self, line: &Mapping<'_>) -> Vec<(u64, u64)> {
        match line.is_writable {
            // The memory of a device is not read: that may do something.
            true if line.is_shared && line.name.starts_with("/dev/") => Vec::new(),
            true => vec![(line.start, line.end)],
            false if line.is_shared || line.is_executable => Vec::new(),
            false => self.memory.written(line.start, line.end),
        }
    }

    /// Returns the size of the thread-local data of a module whose ELF header is at an address.
    fn thread_local(&self, at: u64) -> u64 {
        const PT_TLS: u64 = 7;
        let tls = self.program_headers(at).into_iter().filter(|header| header.kind == PT_TLS);
        tls.map(|header| header.size.saturating_add(header.alignment)).sum::<u64>().min(MAX_TLS)
    }

    /// Returns the end of a module whose ELF header is at an address, with its zeros: a full page.
    fn end_of_module(&self, at: u64) -> Option<u64> {
        const PT_LOAD: u64 = 1;
        let loaded = self.program_headers(at).into_iter().filter(|header| header.kind == PT_LOAD);
        let end = loaded.map(|header| header.start.saturating_add(header.size)).max()?;
        at.checked_add(end)?.checked_next_multiple_of(self.page)
    }

    /// Returns the program headers of a module whose ELF header is at an address (elf(5)).
    fn program_headers(&self, at: u64) -> Vec<ProgramHeader> {
        const HEADER: usize = 56;
        let mut page = [0; HEAD];
        self.memory.read(at, &mut page);
        let word = |at: usize| {
            page.get(at..at.saturating_add(8)).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        if !page.starts_with(b"\x7fELF\x02") {
            return Vec::new();
        }
        let count = page.get(56..58).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        let first = word(32) as usize;
        let headers = (0..usize::from(count)).map(|number| first.saturating_add(number * HEADER));
        let header = |at: usize| ProgramHeader {
            kind: word(at) & 0xffff_ffff,
            start: word(at.saturating_add(16)),
            size: word(at.saturating_add(40)),
            alignment: word(at.saturating_add(48)),
        };
        headers.filter(|at| *at < page.len()).map(header).collect()
    }

    /// Adds the parts of memory without a file: stacks, thread-local data, and what is neither a
    /// block nor the allocator's.
    fn anonymous<'a>(
        &self,
        line: &Mapping<'a>,
        module: Option<u32>,
        table: &BlockTable,
        found: &mut Found,
        numbers: &mut HashMap<&'a str, u32>,
    ) {
        let range = (line.start, line.end);
        let mut taken = self.excluded.to_vec();
        let has_blocks = !table.within(line.start, line.end).is_empty();
        let has_thread = self.threads_in(line, has_blocks, &mut taken, found);
        let (name, kind) = match module {
            Some(name) => (name, ROOT_DATA),
            None => (number_of(line.name, numbers, &mut found.names), ROOT_MAPPING),
        };
        let mut shared = Vec::new();
        let own = taken.len();
        self.take_blocks(line, table, &mut taken, &mut shared);
        // Data of modules and of threads may be beside blocks by chance.
        if module.is_none() && !has_thread && has_blocks {
            self.take_notes(range, &mut taken);
        }
        if !self.knows_all_blocks {
            let others = without(range, shared).into_iter().chain(taken[..own].iter().copied()).collect();
            for part in without(range, others) {
                found.add(part, ROOT_EARLIER, 0, 0);
            }
        }
        for part in without(range, taken) {
            found.add(part, kind, name, 0);
        }
    }

    /// Adds the stacks and the thread-local data in a mapping. `taken` gets them, and what is not in use
    /// of a stack. Returns whether a thread is there.
    fn threads_in(&self, line: &Mapping<'_>, has_blocks: bool, taken: &mut Vec<(u64, u64)>, found: &mut Found) -> bool {
        let within = |address: u64| (line.start..line.end).contains(&address);
        let has_descriptors = line.name.is_empty() && line.is_writable;
        let before = self.has_data_above.then_some(THREAD_DESCRIPTOR_BEFORE);
        let pointers = match has_descriptors && !found.unplaced.is_empty() {
            true => descriptors::of_threads((line.start, line.end), before, self.memory, &mut found.unplaced),
            false => HashMap::new(),
        };
        let mut has_thread = self.threads.iter().any(|thread| within(thread.stack_pointer));
        if has_descriptors
            && found.guard_end == line.start
            && !has_thread
            && let Some(pointer) = descriptors::of_ended((line.start, line.end), before.is_some(), self.memory)
        {
            // What it returned is in its descriptor until another thread has waited for it.
            taken.push((line.start, pointer));
        }
        for thread in self.threads {
            let (sp, tp) = match thread.thread_pointer {
                0 => (thread.stack_pointer, pointers.get(&thread.tid).copied().unwrap_or(0)),
                known => (thread.stack_pointer, known),
            };
            // It may be of a coroutine, in a block that is not known.
            let is_sure = self.knows_all_blocks || line.name == "[stack]" || (within(tp) && sp < tp);
            let is_stack = within(sp) && is_sure && !has_blocks;
            let mut top = line.end;
            has_thread |= within(tp);
            if tp != 0 && within(tp) {
                let (below, above) = match self.has_data_above {
                    true => (THREAD_DESCRIPTOR_BEFORE, THREAD_CONTROL + found.thread_local),
                    false => (found.thread_local, THREAD_DESCRIPTOR),
                };
                let start = tp.saturating_sub(below).max(line.start);
                let start = if is_stack && sp < tp { start.max(sp) } else { start };
                let end = tp.saturating_add(above).min(line.end);
                found.add((start, end), ROOT_THREAD_LOCAL, 0, thread.tid);
                taken.push((start, end));
                top = top.min(start.max(sp));
            }
            if is_stack {
                let low = (sp.saturating_sub(RED_ZONE) & !7).max(line.start);
                found.add((low, top), ROOT_STACK, 0, thread.tid);
                // Nothing below it is in use. The rest of the mapping may be anything.
                let start = self.start_of_stack(line, sp, tp, found.guard_end).unwrap_or(low);
                taken.push((start.clamp(line.start, low), top));
            }
        }
        has_thread
    }

    /// Returns where the stack begins that a stack pointer in a mapping is of, as far as that is known.
    fn start_of_stack(&self, line: &Mapping<'_>, sp: u64, tp: u64, guard_end: u64) -> Option<u64> {
        let is_within = |address: u64| (line.start..line.end).contains(&address);
        let is_alone = || self.threads.iter().all(|other| !is_within(other.stack_pointer) || other.stack_pointer >= sp);
        let of_thread = || match is_within(tp) {
            true => descriptors::start_of_stack(sp, tp, self.has_data_above, self.memory),
            false => None,
        };
        let has_guard = || line.name == "[stack]" || (guard_end == line.start && is_alone());
        of_thread().or_else(|| has_guard().then_some(line.start))
    }

    /// Adds to `taken` what the program has not mapped itself of a range that has blocks of an allocator
    /// other than glibc's: what that notes of its blocks may be old, and the kernel joins the two. In a
    /// program with an allocator of its own, what either maps is not told apart.
    fn take_notes(&self, range: (u64, u64), taken: &mut Vec<(u64, u64)>) {
        let is_told_apart = !matches!(self.allocator, Allocator::Glibc | Allocator::Unknown);
        let Some(mapped) = self.mapped.filter(|_| is_told_apart && self.knows_all_blocks) else { return };
        let from = mapped.partition_point(|mapped| mapped.1 <= range.0);
        let own = mapped[from..].iter().copied().take_while(|mapped| mapped.0 < range.1);
        taken.extend(without(range, own.collect()));
    }

    /// Returns whether a heap of an arena of glibc begins at an address: its first word is the address
    /// of the arena, which is behind such a `heap_info` (malloc/arena.c, before and since 2.35).
    fn is_arena(&self, start: u64) -> bool {
        let mut first = [0; 8];
        let read = self.memory.read(start, &mut first);
        read == 8 && matches!(u64::from_le_bytes(first) % ARENA, 32 | 48) && u64::from_le_bytes(first) >= ARENA
    }

    /// Adds what the allocator has of a mapping. `shared` gets those parts in which blocks that are not
    /// known may be.
    fn take_blocks(
        &self,
        line: &Mapping<'_>,
        table: &BlockTable,
        taken: &mut Vec<(u64, u64)>,
        shared: &mut Vec<(u64, u64)>,
    ) {
        let blocks = table.within(line.start, line.end);
        if line.name == "[heap]" || line.name.contains("malloc arena") {
            shared.push((line.start, line.end));
            return taken.push((line.start, line.end));
        }
        let is_glibc = self.allocator == Allocator::Glibc;
        if is_glibc && !self.knows_all_blocks && line.start.is_multiple_of(ARENA) && self.is_arena(line.start) {
            // None of its blocks may be known.
            shared.push((line.start, line.start + ARENA));
            taken.push((line.start, line.start + ARENA));
        }
        let mut known: HashMap<u64, bool> = HashMap::new();
        for block in blocks {
            let end = block.address.saturating_add(block.size.max(1));
            if is_glibc {
                if Allocator::is_mapped_by_glibc(block.address, block.size) {
                    taken.push((block.address - 16, end.next_multiple_of(self.page)));
                    continue;
                }
                let arena = block.address / ARENA * ARENA;
                if taken.last() == Some(&(arena, arena + ARENA)) {
                    continue;
                }
                // A mapped block that was made smaller is small, and beside it may be anything.
                let is_arena = *known.entry(arena).or_insert_with(|| self.is_arena(arena));
                let own = (block.address.saturating_sub(16), end);
                if is_arena {
                    shared.push((arena, arena + ARENA));
                }
                taken.push(if is_arena { (arena, arena + ARENA) } else { own });
            } else {
                // Pages with blocks have no data of the program.
                let page = self.page;
                let pages = (block.address / page * page, end.next_multiple_of(page));
                match shared.last_mut() {
                    Some(last) if last.1 >= pages.0 && last.0 <= pages.0 => last.1 = last.1.max(pages.1),
                    _ => shared.push(pages),
                }
            }
        }
        if !is_glibc {
            taken.extend(shared.iter());
        }
    }
}

fn is_shared_memory(name: &str) -> bool {
    ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV", "/anon_hugepage"].iter().any(|prefix| name.starts_with(prefix))
}

fn number_of<'a>(name: &'a str, numbers: &mut HashMap<&'a str, u32>, names: &mut Vec<Text>) -> u32 {
    if name.is_empty() {
        return 0;
    }
    if let Some(number) = numbers.get(name) {
        return *number;
    }
    if names.len() >= MAX_NAMES {
        return 0;
    }
    names.push(Text(name.as_bytes()[..name.len().min(MAX_NAME)].to_vec()));
    let number = names.len() as u32;
    numbers.insert(name, number);
    number
}

#[cfg(test)]
mod tests {
    use super::super::LiveBlock;
    use super::*;

    #[derive(Debug)]
    struct Zeros;

    impl Memory for Zeros {
        fn read(&self, _: u64, out: &mut [u8]) -> u64 {
            out.fill(0);
            out.len() as u64
        }
    }

    const START: u64 = 0x7000_0000;
    const END: u64 = START + 0x10_0000;

    /// Returns where a mapping of another allocator than glibc, with a block on its second page, holds
    /// references.
    fn held(mapped: Option<&[(u64, u64)]>, knows_all_blocks: bool, thread_pointer: u64) -> Vec<(u64, u64)> {
        let block = LiveBlock { address: START + 0x1010, size: 64, index: 0, site: 0 };
        let thread = StoppedThread { tid: 7, thread_pointer, ..StoppedThread::default() };
        let regions = Regions {
            excluded: &[],
            mapped,
            threads: &[thread],
            allocator: Allocator::Jemalloc,
            knows_all_blocks,
            page: 4096,
            has_data_above: false,
            memory: &Zeros,
        };
        let line = Mapping { start: START, end: END, has_access: true, is_writable: true, ..Mapping::default() };
        let found = regions.find([line].into_iter(), &BlockTable::new(vec![block], Allocator::Jemalloc));
        let of_mapping = found.regions.iter().filter(|region| region.kind == ROOT_MAPPING);
        of_mapping.map(|region| (region.start - START, region.start + region.length - START)).collect()
    }

    #[test]
    fn what_an_allocator_notes_beside_its_blocks_holds_nothing() {
        let whole = [(0, 0x1000), (0x2000, 0x10_0000)];
        let own = [(START - 0x9000, START - 0x8000), (START + 0x4000, START + 0x6000), (END, END + 0x1000)];
        assert_eq!(held(Some(&own), true, 0), [(0x4000, 0x6000)]);
        assert_eq!(held(Some(&[]), true, 0), []);
        assert_eq!(held(None, true, 0), whole, "the program's own memory is not known");
        assert_eq!(held(Some(&own), false, 0), whole, "it has other blocks");
        assert!(held(Some(&own), true, START + 0x8_0000).len() > 1, "it has data of a thread");
    }
}
