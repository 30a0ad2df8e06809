//! From chunk to chunk through the heaps of an arena.

use super::arenas::{Arena, HEAP_BYTES, Main, STATE_BYTES};
use super::reader::Reader;
use super::{ADDRESS_BITS, Chunk, HEADER, Heap, Places, State};
use std::ops::RangeInclusive;

/// Flags in the size of a chunk.
const PREVIOUS_IN_USE: u64 = 1;
const IS_MAPPED: u64 = 2;
const FLAGS: u64 = 7;
/// Size of the smallest chunk.
const SMALLEST: u64 = 32;
/// Size of a chunk that ends a heap.
const FENCE: u64 = 16;
/// Most heaps of all arenas.
const MAX_HEAPS: usize = 1 << 15;
/// Addresses that are tried behind a chunk whose size is wrong, over all of a heap.
const MAX_TRIED: u64 = 4 << 20;
/// Chunks in a row that are no chance.
const SURE: u32 = 24;
const PAGE: u64 = 4096;
/// Most pages that are searched for mapped chunks.
const MAX_PAGES: u64 = 8 << 20;

/// Adds the chunks of an arena.
pub(super) fn arena(reader: &mut Reader<'_>, arena: &Arena, places: Places<'_>, heap: &mut Heap) {
    let top_size = reader.word_or_0(arena.top.saturating_add(8)) & !FLAGS;
    let room = places.around(arena.top).map(|(_, end)| end - arena.top);
    let is_top_sane = top_size.is_multiple_of(16) && room.is_some_and(|room| top_size <= room);
    let top_end = if is_top_sane { arena.top + top_size } else { arena.top + HEADER };
    if arena.is_main {
        main(reader, arena, places, top_end, heap);
    } else {
        heaps(reader, arena, heap);
    }
    if !is_top_sane {
        let what = format!("the size of the top of the heap is {top_size:#x}");
        let before = heap.chunks.iter().rev().find(|chunk| chunk.end() == arena.top + 8).copied();
        heap.fault(arena.top + 8, what, before, 0);
    }
    if top_size > SMALLEST && is_top_sane {
        heap.push(arena.top + HEADER, top_size - HEADER, State::Top);
    }
}

fn main(reader: &mut Reader<'_>, arena: &Arena, places: Places<'_>, top_end: u64, heap: &mut Heap) {
    let around_top = places.around(arena.top);
    let own_start = around_top.map(|(start, _)| start.next_multiple_of(16));
    let Some(start) = arena.start.or(own_start) else {
        let what = format!("the heap at {:#x} is not in the core", arena.top);
        return heap.lacks.push(what);
    };
    let is_one = around_top.is_some_and(|(first, _)| first <= start) && start <= arena.top;
    if is_one {
        heap.ranges.push((start, top_end));
        return run(reader, start, arena.top, heap);
    }
    // Another part of the program has moved the end of the heap: it goes on elsewhere.
    if let Some((_, end)) = places.around(start) {
        heap.ranges.push((start, end));
        run(reader, start, end, heap);
    }
    if let Some(start) = own_start {
        heap.ranges.push((start, top_end));
        run(reader, start, arena.top, heap);
    }
    heap.lacks.push("the main heap is in several parts: some may be missing".into());
}

fn heaps(reader: &mut Reader<'_>, arena: &Arena, heap: &mut Heap) {
    let own = arena.address - arena.heap_info;
    let mut next = arena.top / HEAP_BYTES * HEAP_BYTES;
    while heap.ranges.len() < MAX_HEAPS {
        let [before, size] = [8, 16].map(|at| reader.word_or_0(next.saturating_add(at)));
        let of = reader.word(next);
        if of != Some(arena.address)
            || size > HEAP_BYTES
            || next >> ADDRESS_BITS != 0
            || heap.ranges.contains(&(next, next + size))
        {
            heap.fault(next, "it is not the start of a heap of an arena".into(), None, 0);
            return;
        }
        heap.ranges.push((next, next + size));
        let first = if next == own { arena.address + STATE_BYTES } else { next + arena.heap_info };
        let end = if arena.top / HEAP_BYTES == next / HEAP_BYTES { arena.top } else { next + size };
        heap.heads.push((next, first));
        run(reader, first.next_multiple_of(16), end, heap);
        if next == own {
            return;
        }
        next = before;
    }
}

/// Returns the size of the chunk at an address, if it may be one that ends at `end` or before.
fn size_at(reader: &mut Reader<'_>, chunk: u64, end: u64) -> Option<u64> {
    let word = reader.word(chunk + 8)?;
    let size = word & !FLAGS;
    let is_size = size >= SMALLEST && size.is_multiple_of(16) && size <= end - chunk && word & IS_MAPPED == 0;
    is_size.then_some(size)
}

/// Adds the chunks of a range.
fn run(reader: &mut Reader<'_>, start: u64, end: u64, heap: &mut Heap) {
    let mut at = start;
    let mut before: Option<Chunk> = None;
    while at < end {
        let Some(size) = size_at(reader, at, end) else {
            let word = reader.word(at + 8);
            let is_end = word.is_some_and(|word| matches!(word & !FLAGS, 0 | FENCE)) && end - at <= 2 * SMALLEST;
            if is_end {
                return;
            }
            let next = resumed(reader, at, end, &mut heap.tried);
            let unknown = next.unwrap_or(end) - at;
            match word {
                Some(word) => {
                    heap.fault(at + 8, format!("the size of a chunk is {word:#x}"), before, unknown);
                    if unknown > HEADER {
                        heap.push(at + HEADER, unknown - HEADER, State::Unknown);
                    }
                }
                None => heap.lacks.push(format!("{unknown} bytes of the heap at {at:#x} are not in the core")),
            }
            let Some(next) = next else { return };
            (at, before) = (next, None);
            continue;
        };
        let next = at + size;
        let is_in_use = next >= end || reader.word_or_0(next + 8) & PREVIOUS_IN_USE != 0;
        if !is_in_use && reader.word(next).is_some_and(|back| back != size) {
            let back = reader.word_or_0(next);
            let what = format!("a free chunk of {size:#x} bytes is followed by {back:#x} instead of its size");
            heap.fault(next, what, before, 0);
        }
        let state = if is_in_use { State::Live } else { State::Binned };
        if !heap.push(at + HEADER, size - 8, state) {
            return;
        }
        before = heap.chunks.last().copied();
        at = next;
    }
}

/// Returns where chunks go on behind one whose size is wrong: from there on, many follow each other,
/// or up to the end.
fn resumed(reader: &mut Reader<'_>, bad: u64, end: u64, tried: &mut u64) -> Option<u64> {
    let mut at = bad + 16;
    while at < end && *tried < MAX_TRIED {
        let (mut next, mut count) = (at, 0);
        while next < end && count < SURE {
            *tried += 1;
            let Some(size) = size_at(reader, next, end) else { break };
            (next, count) = (next + size, count + 1);
        }
        if count >= SURE || (next == end && count > 0) {
            return Some(at);
        }
        at += 16;
    }
    None
}

/// Adds the chunks that have mappings of their own. There is no list of them: one begins a mapping,
/// and the kernel joins neighbors.
pub(super) fn mapped(reader: &mut Reader<'_>, main: &Main, places: Places<'_>, arenas: &[(u64, u64)], heap: &mut Heap) {
    let expected = main.mapped.unwrap_or((u64::MAX, u64::MAX));
    let (mut count, mut bytes, mut pages) = (0, 0, 0);
    for &(start, end) in places.anonymous {
        let mut at = start;
        while at < end && (count, bytes) != expected && count < expected.0 && pages < MAX_PAGES {
            let before = &arenas[..arenas.partition_point(|(first, _)| *first <= at)];
            if let Some((_, after)) = before.last().filter(|(_, after)| at < *after) {
                at = after.next_multiple_of(PAGE);
                continue;
            }
            pages += 1;
            let Some((chunk, after)) = mapped_at(reader, at, end) else {
                at += PAGE;
                continue;
            };
            heap.push(chunk + HEADER, after - chunk - HEADER, State::Live);
            heap.ranges.push((at, after));
            count += 1;
            bytes += after - at;
            at = after;
        }
    }
    if let Some((expected, expected_bytes)) = main.mapped
        && (count, bytes) != (expected, expected_bytes)
    {
        let what = format!(
            "malloc says that {expected} blocks have mappings of their own, with {expected_bytes} bytes; found are {count} with {bytes}"
        );
        heap.lacks.push(what);
    }
}

/// Returns the chunk whose mapping begins at an address, and the end of that. A block with an alignment
/// has a chunk within the one that was mapped for it, whose header stays at the beginning.
fn mapped_at(reader: &mut Reader<'_>, start: u64, end: u64) -> Option<(u64, u64)> {
    /// The largest alignment that is looked for is 1 GiB.
    const ALIGNMENT_BITS: RangeInclusive<u32> = 5..=30;
    let block = start.checked_add(HEADER)?;
    let aligned = ALIGNMENT_BITS.filter_map(|bits| Some(block.checked_next_multiple_of(1 << bits)? - HEADER));
    aligned.chain([start]).filter(|chunk| *chunk < end).find_map(|chunk| {
        let word = (reader.word(chunk)? == chunk - start).then(|| reader.word(chunk + 8))??;
        let size = word & !FLAGS;
        let after = chunk.checked_add(size)?;
        let is_it = word & FLAGS == IS_MAPPED
            && size.is_multiple_of(16)
            && size > HEADER
            && after.is_multiple_of(PAGE)
            && after <= end;
        is_it.then_some((chunk, after))
    })
}
