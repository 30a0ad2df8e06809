//! Finds the arenas. The main one is in the data of libc, where it has no symbol that a stripped
//! file keeps; but each of its empty bins has two words that are the address of the bin.

use super::ADDRESS_BITS;
use super::reader::Reader;

/// Offsets in a `malloc_state`, and its size: the same since 2.27.
const FAST_BINS: u64 = 16;
pub(super) const FAST_BIN_COUNT: u64 = 10;
const TOP: u64 = 96;
const BINS: u64 = 112;
const BIN_COUNT: u64 = 127;
const NEXT: u64 = 2160;
const SYSTEM_BYTES: u64 = 2184;
pub(super) const STATE_BYTES: u64 = 2200;
/// Size and alignment of a heap of an arena that is not the main one.
pub(super) const HEAP_BYTES: u64 = 64 << 20;
/// Sizes of the `heap_info` that such a heap begins with: up to 2.34, and later.
const HEAP_INFO: [u64; 2] = [32, 48];
/// Most arenas, and most main ones: `dlmopen` loads another libc.
const MAX_ARENAS: usize = 1 << 14;
const MAX_MAINS: usize = 16;
/// Most bytes of data that are searched, and most addresses that are tried.
const MAX_SEARCHED: u64 = 256 << 20;
const MAX_TRIED: u32 = 1 << 14;

#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    /// Address of its `malloc_state`.
    pub address: u64,
    /// Its last chunk.
    pub top: u64,
    pub is_main: bool,
    /// Start of its first chunk, if it is a main one and that is known.
    pub start: Option<u64>,
    /// Bytes of the `heap_info` before it, if it is none.
    pub heap_info: u64,
}

/// A main arena, and what `mp_` says of mapped chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Main {
    pub address: u64,
    /// Number of mapped chunks, and of their bytes.
    pub mapped: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    pub mains: Vec<Main>,
    pub arenas: Vec<Arena>,
    pub lacks: Vec<String>,
}

pub(super) fn fast_bin(arena: u64, number: u64) -> u64 {
    arena + FAST_BINS + 8 * number
}

/// Finds all arenas, by the main ones in some data.
pub(super) fn find(reader: &mut Reader<'_>, data: &[(u64, u64)]) -> Found {
    let mut found = Found::default();
    let (mut searched, mut tried) = (0, 0);
    for &(start, end) in data {
        let mut at = start.next_multiple_of(8);
        while at < end && searched < MAX_SEARCHED && tried < MAX_TRIED && found.mains.len() < MAX_MAINS {
            searched += 8;
            let Some(main) = main_with_bin(reader, at, start, &mut tried) else {
                at += 8;
                continue;
            };
            at = main + STATE_BYTES;
            let heap = main / HEAP_BYTES * HEAP_BYTES;
            // One of the others, beside the data of a module.
            if HEAP_INFO.contains(&(main - heap)) && reader.word(heap) == Some(main) {
                continue;
            }
            add(reader, main, (start, end), &mut found);
        }
    }
    found
}

/// Returns the arena that has an empty bin at an address.
fn main_with_bin(reader: &mut Reader<'_>, bin: u64, start: u64, tried: &mut u32) -> Option<u64> {
    let own = bin.checked_sub(16)?;
    if reader.word(bin)? != own || reader.word(bin + 8)? != own {
        return None;
    }
    *tried += 1;
    (0..BIN_COUNT).find_map(|number| {
        let arena = bin.checked_sub(BINS + 16 * number).filter(|arena| *arena >= start)?;
        is_arena(reader, arena).then_some(arena)
    })
}

/// Returns whether there may be a chunk at an address.
fn is_chunk(address: u64) -> bool {
    address != 0 && address.is_multiple_of(16) && address >> ADDRESS_BITS == 0
}

fn is_arena(reader: &mut Reader<'_>, arena: u64) -> bool {
    let Some(top) = reader.word(arena + TOP) else { return false };
    let next = reader.word_or_0(arena + NEXT);
    if !is_chunk(top) || !next.is_multiple_of(8) || next == 0 {
        return false;
    }
    let system = [reader.word_or_0(arena + SYSTEM_BYTES), reader.word_or_0(arena + SYSTEM_BYTES + 8)];
    if system[0] > system[1] {
        return false;
    }
    // Before the bins are `top` and `last_remainder`: of these only one may look like a bin.
    (0..BIN_COUNT).all(|number| {
        let bin = arena + BINS + 16 * number;
        let own = bin - 16;
        let (next, last) = (reader.word_or_0(bin), reader.word_or_0(bin + 8));
        next != 0 && last != 0 && (next | last).is_multiple_of(8) && (next == own) == (last == own)
    })
}

/// Adds a main arena, and those that its list has.
fn add(reader: &mut Reader<'_>, main: u64, data: (u64, u64), found: &mut Found) {
    let settings = settings(reader, data);
    let mapped = settings.map(|settings| (settings.mapped_count, settings.mapped_bytes));
    found.mains.push(Main { address: main, mapped });
    if settings.is_none() {
        found.lacks.push("the settings of malloc were not found: which memory is of mapped blocks is a guess".into());
    }
    let top = reader.word_or_0(main + TOP);
    // Until the first block, it is a bin.
    if top != main + TOP {
        let start = settings.map(|settings| settings.first).filter(|first| *first != 0 && *first <= top);
        let start = start.map(|start| start.next_multiple_of(16));
        found.arenas.push(Arena { address: main, top, is_main: true, start, heap_info: 0 });
    }
    let mut next = reader.word_or_0(main + NEXT);
    let mut count = 0;
    while next != main {
        let heap_info = next % HEAP_BYTES;
        let top = if next >> ADDRESS_BITS == 0 { reader.word_or_0(next + TOP) } else { 0 };
        count += 1;
        let is_known = found.arenas.iter().any(|arena| arena.address == next);
        if is_known || count > MAX_ARENAS || !HEAP_INFO.contains(&heap_info) || !is_chunk(top) {
            found.lacks.push(format!("there is no arena at {next:#x}, where the list of them goes on"));
            return;
        }
        found.arenas.push(Arena { address: next, top, is_main: false, start: None, heap_info });
        next = reader.word_or_0(next + NEXT);
    }
}

/// What `mp_` says.
#[derive(Clone, Copy, Debug)]
struct Settings {
    mapped_count: u64,
    mapped_bytes: u64,
    /// First address that `sbrk` returned; 0 if it was not called.
    first: u64,
}

/// Finds `mp_` in the data around a main arena, by its numbers about thread caches.
fn settings(reader: &mut Reader<'_>, (start, end): (u64, u64)) -> Option<Settings> {
    /// Number of bins of a thread cache, largest size in them, and most chunks of a bin.
    const CACHE: [u64; 2] = [64, 1032];
    /// Most mapped chunks: the default.
    const MAX_MAPPED: u64 = 65536;
    let mut at = start.next_multiple_of(8);
    while at < end.min(start.saturating_add(MAX_SEARCHED)) {
        let sbrk_base = at;
        at += 8;
        if reader.word_or_0(sbrk_base + 8) != CACHE[0] || reader.word_or_0(sbrk_base + 16) != CACHE[1] {
            continue;
        }
        let (bytes, most) = (reader.word_or_0(sbrk_base - 16), reader.word_or_0(sbrk_base - 8));
        // Four numbers of 32 bits are before them. Since 2.35 there are five, and a gap.
        for first in [sbrk_base - 32, sbrk_base - 36] {
            let mut half = |at: u64| reader.word(at).map(|word| word & 0xffff_ffff);
            let (count, limit, most_count) = (half(first)?, half(first + 4)?, half(first + 8)?);
            if limit == MAX_MAPPED && count <= most_count && bytes <= most {
                let first = reader.word_or_0(sbrk_base);
                return Some(Settings { mapped_count: count, mapped_bytes: bytes, first });
            }
        }
    }
    None
}
