//! Heaps that are laid out by hand, in both ways of 2.31 to 2.41.

use super::*;
use proptest::prelude::*;

/// Memory of a few ranges.
#[derive(Clone, Debug, Default)]
struct Fake(Vec<(u64, Vec<u8>)>);

impl Memory for Fake {
    fn read(&self, at: u64, out: &mut [u8]) -> u64 {
        out.fill(0);
        let mut read = 0;
        for (start, bytes) in &self.0 {
            let from = at.max(*start);
            let to = (at + out.len() as u64).min(start + bytes.len() as u64);
            if from < to {
                let own = &bytes[(from - start) as usize..(to - start) as usize];
                out[(from - at) as usize..(to - at) as usize].copy_from_slice(own);
                read += to - from;
            }
        }
        read
    }
}

impl Fake {
    fn put(&mut self, at: u64, words: &[u64]) {
        for (at, word) in (at..).step_by(8).zip(words) {
            let range = self.0.iter_mut().find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&at));
            let (start, bytes) = range.expect("a range");
            let inside = (at - *start) as usize;
            bytes[inside..inside + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

const DATA: u64 = 0x7f00_0000_0000;
const MAIN: u64 = DATA + 0x160;
const SBRK_BASE: u64 = DATA + 0x2000;
const HEAP: u64 = 0x5555_0000_0000;
const ARENA_HEAP: u64 = 0x7f10_0000_0000;
const MAPPED: u64 = 0x7f20_0000_0000;
const END: u64 = 0x2_0000;

/// The chunks of a heap, with the flag that the one before is in use.
fn put_chunks(memory: &mut Fake, mut at: u64, sizes: &[(u64, bool)]) -> u64 {
    for (size, is_previous_in_use) in sizes {
        memory.put(at + 8, &[size | u64::from(*is_previous_in_use)]);
        at += size;
    }
    at
}

fn put_arena(memory: &mut Fake, arena: u64, top: u64, next: u64, fast: u64) {
    memory.put(arena, &[0, 0, fast]);
    memory.put(arena + 96, &[top, 0]);
    for number in 0..127 {
        let bin = arena + 112 + 16 * number;
        memory.put(bin, &[bin - 16, bin - 16]);
    }
    memory.put(arena + 2160, &[next, 0, 1, END, END]);
}

/// A heap of the older or the newer layout: a thread cache with two blocks, one in a fast bin, one in a bin,
/// two live ones; one live block in the arena of a thread, and one with a mapping of its own.
fn sample(is_new: bool) -> Fake {
    let ranges = [(DATA, 0x4000), (HEAP, END), (ARENA_HEAP, END), (MAPPED, 0x4000)];
    let mut memory = Fake(ranges.map(|(start, length)| (start, vec![0; length as usize])).to_vec());
    let top = put_chunks(
        &mut memory,
        HEAP,
        &[(0x290, true), (0x30, true), (0x30, true), (0x20, true), (0x500, true), (0x40, false), (0x70, true)],
    );
    memory.put(top + 8, &[HEAP + END - top + 1]);
    let [cached, second, fast, binned, live] = [0x290, 0x2c0, 0x2f0, 0x310, 0x810].map(|offset| HEAP + offset);
    // The size of the free chunk follows it.
    memory.put(live, &[0x500]);
    let link = |at: u64, to: u64| if is_new { to ^ at >> 12 } else { to };
    memory.put(HEAP + 16, &[2 << 16]);
    memory.put(HEAP + 16 + 128 + 8, &[cached + 16]);
    memory.put(cached + 16, &[link(cached + 16, second + 16)]);
    memory.put(second + 16, &[link(second + 16, 0)]);
    memory.put(fast + 16, &[link(fast + 16, 0)]);
    let _ = binned;
    let info = if is_new { 48 } else { 32 };
    let arena = ARENA_HEAP + info;
    put_arena(&mut memory, MAIN, top, arena, fast);
    let first = (arena + 2200).next_multiple_of(16);
    let arena_top = put_chunks(&mut memory, first, &[(0x290, true), (0x60, true)]);
    memory.put(arena_top + 8, &[ARENA_HEAP + END - arena_top + 1]);
    put_arena(&mut memory, arena, arena_top, MAIN, 0);
    memory.put(ARENA_HEAP, &[arena, 0, END, END]);
    memory.put(MAPPED + 0x1000, &[0, 0x2000 | 2]);
    let counts = [1 | 65536 << 32, 1];
    match is_new {
        true => memory.put(SBRK_BASE - 40, &[1 << 32, 65536 | 1 << 32, 0]),
        false => memory.put(SBRK_BASE - 32, &counts),
    }
    memory.put(SBRK_BASE - 16, &[0x2000, 0x2000, HEAP, 64, 1032, 7]);
    memory
}

fn find(memory: &Fake) -> Option<Heap> {
    let data = [(DATA, DATA + 0x4000)];
    let anonymous = [(HEAP, HEAP + END), (ARENA_HEAP, ARENA_HEAP + END), (MAPPED, MAPPED + 0x4000)];
    Heap::find(memory, Places { data: &data, anonymous: &anonymous })
}

fn states(heap: &Heap) -> Vec<(u64, u64, State)> {
    heap.chunks.iter().map(|chunk| (chunk.address, chunk.usable(), chunk.state())).collect()
}

#[test]
fn blocks_of_both_layouts_are_found() {
    for is_new in [false, true] {
        let heap = find(&sample(is_new)).expect("a heap");
        assert_eq!((&heap.faults, &heap.lacks, heap.arenas), (&Vec::new(), &Vec::new(), 2), "{is_new}");
        let first = ARENA_HEAP + if is_new { 0x8d0 } else { 0x8c0 };
        let expected = [
            (HEAP + 0x10, 0x288, State::Own),
            (HEAP + 0x2a0, 0x28, State::Cached),
            (HEAP + 0x2d0, 0x28, State::Cached),
            (HEAP + 0x300, 0x18, State::Fast),
            (HEAP + 0x320, 0x4f8, State::Binned),
            (HEAP + 0x820, 0x38, State::Live),
            (HEAP + 0x860, 0x68, State::Live),
            (HEAP + 0x8d0, END - 0x8d0, State::Top),
            (first + 16, 0x288, State::Own),
            (first + 0x2a0, 0x58, State::Live),
            (first + 0x300, ARENA_HEAP + END - first - 0x300, State::Top),
            (MAPPED + 0x1010, 0x1ff0, State::Live),
        ];
        assert_eq!(states(&heap), expected, "{is_new}");
        assert_eq!(heap.at(HEAP + 0x81f).map(Chunk::state), Some(State::Live), "the header is the block's");
    }
}

#[test]
fn damage_is_named_and_the_rest_is_found() {
    let damaged = |at: u64, words: &[u64]| {
        let mut memory = sample(true);
        memory.put(at, words);
        find(&memory).expect("a heap")
    };
    // Somebody wrote over the size of the first live block.
    let heap = damaged(HEAP + 0x818, &[0x4141_4141_4141_4141]);
    let fault = &heap.faults[0];
    assert_eq!((fault.address, fault.unknown), (HEAP + 0x818, 0x40), "{:?}", heap.faults);
    assert_eq!(fault.before.map(|chunk| chunk.address), Some(HEAP + 0x320));
    assert_eq!(heap.at(HEAP + 0x820).map(Chunk::state), Some(State::Unknown));
    assert_eq!(heap.at(HEAP + 0x860).map(Chunk::state), Some(State::Live));
    // A block of the thread cache was written after it was freed.
    let heap = damaged(HEAP + 0x2a0, &[0x1234_5678]);
    assert_eq!((heap.faults[0].address, heap.lacks.len()), (HEAP + 0x2a0, 1), "{:?}", heap.faults);
    // It was freed twice.
    let heap = damaged(HEAP + 0x2d0, &[(HEAP + 0x2a0) ^ (HEAP + 0x2d0) >> 12]);
    assert!(heap.faults[0].what.ends_with("a double free"), "{:?}", heap.faults);
    // Without the settings it is said that mapped blocks are a guess.
    let heap = damaged(SBRK_BASE + 8, &[0, 0]);
    assert_eq!(heap.lacks.len(), 1, "{:?}", heap.lacks);
    // One mapped block too few.
    let heap = damaged(MAPPED + 0x1008, &[0]);
    assert!(heap.lacks[0].contains("1 blocks have mappings of their own"), "{:?}", heap.lacks);
}

proptest! {
    #[test]
    fn any_memory_is_read(
        (is_new, words) in (any::<bool>(), proptest::collection::vec((0usize..4, 0u64..END / 8, prop_oneof![
            any::<u64>(), 0u64..0x1000, Just(HEAP), Just(ARENA_HEAP + 48), Just(MAIN), Just(u64::MAX - 7), Just(2 | 1 << 44),
        ]), 1..40))
    ) {
        let mut memory = sample(is_new);
        for (range, word, value) in words {
            let (start, length) = (memory.0[range].0, memory.0[range].1.len() as u64);
            memory.put(start + 8 * (word % (length / 8)), &[value]);
        }
        if let Some(heap) = find(&memory) {
            prop_assert!(heap.chunks.is_sorted_by_key(|chunk| chunk.address));
        }
    }
}
