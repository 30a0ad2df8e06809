//! The lists of free chunks that look as if they were in use: of the caches of threads and of fast
//! bins. Since 2.32 their links are mixed with their own addresses.

use super::arenas::{Arena, FAST_BIN_COUNT, fast_bin};
use super::reader::Reader;
use super::{HEADER, Heap, State};

/// Usable bytes of the chunk of a thread cache (2.30 and later): 64 counts of 16 bits, and 64 lists.
const CACHE_USABLE: u64 = 648;
const LISTS: u64 = 64;
const LISTS_AT: u64 = 128;

/// Marks the chunks that are free in lists, and those that have the lists.
pub(super) fn mark(reader: &mut Reader<'_>, arenas: &[Arena], heap: &mut Heap) {
    for arena in arenas {
        for number in 0..FAST_BIN_COUNT {
            if let Some(first) = reader.word(fast_bin(arena.address, number)).filter(|first| *first != 0) {
                follow(reader, heap, first, State::Fast);
            }
        }
    }
    let is_cache = |chunk: &super::Chunk| chunk.usable() == CACHE_USABLE && chunk.state() == State::Live;
    let candidates: Vec<usize> = (0..heap.chunks.len()).filter(|number| is_cache(&heap.chunks[*number])).collect();
    let mut caches = 0;
    for number in candidates {
        let address = heap.chunks[number].address;
        let Some(firsts) = cache(reader, heap, address) else { continue };
        // Memory of zeros may be anything.
        let is_first = number == 0 || heap.chunks[number].address - heap.chunks[number - 1].address > 1 << 20;
        if firsts.is_empty() && !is_first {
            continue;
        }
        caches += 1;
        heap.chunks[number].set_state(State::Own);
        for first in firsts {
            follow(reader, heap, first - HEADER, State::Cached);
        }
    }
    if caches == 0 && heap.chunks.len() > 1 {
        heap.lacks.push("no cache of a thread was found: free blocks in one seem to be live".into());
    }
}

/// Returns the first blocks of the lists of a thread cache; `None` if it is none.
fn cache(reader: &mut Reader<'_>, heap: &Heap, address: u64) -> Option<Vec<u64>> {
    let mut firsts = Vec::new();
    for list in 0..LISTS {
        let counts = reader.word(address + list / 4 * 8)?;
        let count = counts >> (list % 4 * 16) & 0xffff;
        let first = reader.word(address + LISTS_AT + 8 * list)?;
        if (count == 0) != (first == 0) {
            return None;
        }
        if first == 0 {
            continue;
        }
        let chunk = heap.index(first.checked_sub(HEADER)?).map(|index| heap.chunks[index])?;
        if chunk.usable() + 8 != (list + 2) * 16 {
            return None;
        }
        firsts.push(first);
    }
    Some(firsts)
}

/// Marks the chunks of a list.
fn follow(reader: &mut Reader<'_>, heap: &mut Heap, first: u64, state: State) {
    let mut chunk = first;
    let mut last = None;
    loop {
        let Some(index) = heap.index(chunk) else {
            let at = last.unwrap_or(first);
            let what = match last {
                Some(_) => "the link to the next free block leads nowhere: it was written after it was freed".into(),
                None => format!("a list of free blocks begins with {chunk:#x}, where none is"),
            };
            let before = last.and_then(|block: u64| heap.at(block).copied());
            heap.lacks.push("free blocks of a damaged list seem to be live".into());
            return heap.fault(at, what, before, 0);
        };
        if heap.chunks[index].state() == state {
            let before = Some(heap.chunks[index]);
            let address = heap.chunks[index].address;
            return heap.fault(address, "the block is in a list of free ones twice: a double free".into(), before, 0);
        }
        heap.chunks[index].set_state(state);
        let link = chunk + HEADER;
        let Some(word) = reader.word(link) else { return };
        let mixed = word ^ (link >> 12);
        // The lists of caches lead to blocks, those of fast bins to chunks.
        let to_chunk = |target: u64| if state == State::Cached { target.checked_sub(HEADER) } else { Some(target) };
        let is_there = |target: u64| to_chunk(target).is_some_and(|chunk| heap.index(chunk).is_some());
        let next = match () {
            () if word == 0 || mixed == 0 => return,
            () if is_there(mixed) => mixed,
            () => word,
        };
        last = Some(link);
        let Some(next) = to_chunk(next) else { return };
        chunk = next;
    }
}
