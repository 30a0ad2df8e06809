//! The descriptors of threads, which glibc and musl keep at the ends of their stacks. On x86-64 they
//! begin at the thread pointer, which leads to its own address (ELF Handling For Thread-Local Storage,
//! 3.4.6), and both repeat that two words later. Where data is above the thread pointer they end there,
//! and only glibc's are known: by the list that they are in.

use super::Memory;
use std::collections::{HashMap, HashSet};

/// Bytes at the end of a mapping in which a thread pointer is looked for, and bytes behind it in which
/// the id of the thread is (at 720 in glibc, at 48 in musl).
const AT_END: u64 = 64 << 10;
const ID_WITHIN: usize = 1024;
/// Bytes of a descriptor, and the most bytes between the thread pointer and the end of the stack.
const DESCRIPTOR: usize = 2560;
const BEHIND: u64 = 2 << 20;
/// Most bytes of a stack. An address is a larger number.
const LARGEST: u64 = 64 << 30;
/// Where glibc's descriptor has the list of all stacks: behind what is at a thread pointer, or behind
/// 24 words.
const LIST: u64 = 704;
const LIST_BEFORE: u64 = 192;
/// Where the id of the thread is after that: 0 once it has ended, and -1 once another one has waited
/// for that (`struct pthread` in nptl/descr.h).
const ID: u64 = 16;

/// The end of a mapping.
struct End {
    start: u64,
    bytes: Vec<u8>,
}

impl End {
    fn of((start, end): (u64, u64), memory: &dyn Memory) -> End {
        let start = end.saturating_sub(AT_END).max(start);
        let mut bytes = vec![0; (end - start) as usize];
        memory.read(start, &mut bytes);
        End { start, bytes }
    }

    fn word(&self, at: u64) -> Option<u64> {
        let at = usize::try_from(at.checked_sub(self.start)?).ok()?;
        Some(u64::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// Returns the addresses that may be thread pointers.
    fn pointers(&self) -> impl Iterator<Item = u64> + '_ {
        let addresses = (0..self.bytes.len() as u64 / 16).map(|number| self.start + 16 * number);
        addresses.filter(|at| [*at, at.saturating_add(16)].iter().all(|word| self.word(*word) == Some(*at)))
    }

    /// Returns whether the descriptor at an address is in glibc's list of stacks.
    fn is_listed(&self, list: u64, memory: &dyn Memory) -> bool {
        let next = self.word(list).unwrap_or(0);
        let mut back = [0; 8];
        let is_read = next.is_multiple_of(8) && next != 0 && memory.read(next.saturating_add(8), &mut back) == 8;
        is_read && u64::from_le_bytes(back) == list
    }

    /// Returns the descriptors before thread pointers, with the ids of their threads, if those are wanted.
    fn before<'a>(
        &'a self,
        is_wanted: impl Fn(u32) -> bool + 'a,
        memory: &'a dyn Memory,
    ) -> impl Iterator<Item = (u32, u64)> + 'a {
        let descriptors = (0..self.bytes.len() as u64 / 16).map(|number| self.start + 16 * number);
        descriptors.filter_map(move |at| {
            let list = at.saturating_add(LIST_BEFORE);
            let id = self.word(list.saturating_add(ID))? as u32;
            (is_wanted(id) && self.is_listed(list, memory)).then_some((id, at))
        })
    }

    /// Returns the numbers behind a thread pointer, one of which is the id of its thread.
    fn numbers(&self, pointer: u64) -> impl Iterator<Item = u32> + '_ {
        let from = &self.bytes[(pointer - self.start) as usize..];
        from.as_chunks::<4>().0.iter().take(ID_WITHIN / 4).map(|id| u32::from_le_bytes(*id))
    }
}

/// Finds the thread pointers of threads that were not stopped, as the one that ends the program.
/// Those that it finds are no more `unplaced`. A descriptor before a thread pointer is taken to have
/// `before` bytes.
pub(super) fn of_threads(
    line: (u64, u64),
    before: Option<u64>,
    memory: &dyn Memory,
    unplaced: &mut HashSet<u32>,
) -> HashMap<u32, u64> {
    let end = End::of(line, memory);
    if let Some(bytes) = before {
        let wanted = unplaced.clone();
        let found = end.before(|id| wanted.contains(&id), memory);
        return found.filter(|(id, _)| unplaced.remove(id)).map(|(id, at)| (id, at.saturating_add(bytes))).collect();
    }
    let of = |pointer: u64| Some((end.numbers(pointer).find(|id| unplaced.remove(id))?, pointer));
    end.pointers().filter_map(of).collect()
}

/// Returns where the stack of a thread begins, of which both note the start and the number of bytes.
pub(super) fn start_of_stack(sp: u64, tp: u64, is_before: bool, memory: &dyn Memory) -> Option<u64> {
    let mut bytes = [0; DESCRIPTOR];
    memory.read(if is_before { tp.saturating_sub(DESCRIPTOR as u64) } else { tp }, &mut bytes);
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let is_it = |start: u64, count: u64| {
        let end = start.saturating_add(count);
        (1..=sp).contains(&start) && count <= LARGEST && end > tp && end - tp <= BEHIND
    };
    words.windows(2).find(|pair| is_it(pair[0], pair[1])).map(|pair| pair[0])
}

/// Returns where the descriptor is if a mapping is the stack of a thread that has ended, which glibc
/// keeps for the next one.
pub(super) fn of_ended(line: (u64, u64), is_before: bool, memory: &dyn Memory) -> Option<u64> {
    let end = End::of(line, memory);
    let has_ended = |id: u32| id.cast_signed() <= 0;
    if is_before {
        return end.before(has_ended, memory).next().map(|(_, at)| at);
    }
    let is_ended = |pointer: &u64| {
        let list = pointer.saturating_add(LIST);
        end.word(list.saturating_add(ID)).is_some_and(|id| has_ended(id as u32)) && end.is_listed(list, memory)
    };
    end.pointers().find(is_ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory from [`START`] on.
    #[derive(Debug)]
    struct Fake(Vec<u8>);

    const START: u64 = 0x7f00_7000_0000;
    const BYTES: u64 = 1 << 20;
    const LINE: (u64, u64) = (START, START + BYTES);

    impl Fake {
        fn store(&mut self, at: u64, bytes: &[u8]) {
            self.0[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }

        /// Stores a descriptor with an id, as it is in a list of stacks.
        fn descriptor(&mut self, at: u64, id: u32) {
            let address = |at: u64| (START + at).to_le_bytes();
            self.store(at, &address(at));
            self.store(at + 16, &address(at));
            self.list(at + LIST, id);
        }

        /// Stores the list at another address, where it is in descriptors before thread pointers, too.
        fn list(&mut self, list: u64, id: u32) {
            let address = |at: u64| (START + at).to_le_bytes();
            self.store(list, &address(64));
            self.store(64 + 8, &address(list));
            self.store(list + ID, &id.to_le_bytes());
        }
    }

    impl Memory for Fake {
        fn read(&self, at: u64, out: &mut [u8]) -> u64 {
            let from = at.wrapping_sub(START) as usize;
            let Some(bytes) = self.0.get(from..from.saturating_add(out.len())) else { return 0 };
            out.copy_from_slice(bytes);
            out.len() as u64
        }
    }

    #[test]
    fn start_of_a_stack_is_what_its_thread_notes() {
        let (sp, tp) = (START + 0x4_0000, START + 0x5_0000);
        for (noted, is_found) in [
            ((START + 0x3_0000, 0x2_1000), true),
            ((START, 0x5_0900), true),
            ((START + 0x3_0000, 0x2_0000), false),
            ((START + 0x4_8000, 0x1_0000), false),
            ((0, u64::MAX), false),
            ((1, START + 0x5_0000), false),
            ((START, 0x90_0000), false),
        ] {
            for is_before in [false, true] {
                let mut memory = Fake(vec![0; BYTES as usize]);
                let at = if is_before { 0x5_0000 - 0x200 } else { 0x5_0000 + 0x690 };
                memory.store(at, &noted.0.to_le_bytes());
                memory.store(at + 8, &noted.1.to_le_bytes());
                let start = start_of_stack(sp, tp, is_before, &memory);
                assert_eq!(start, is_found.then_some(noted.0), "{noted:x?}");
            }
        }
    }

    #[test]
    fn threads_that_were_not_stopped_are_found() {
        let mut memory = Fake(vec![0; BYTES as usize]);
        // What leads to itself once is a list.
        memory.store(0xf_4000, &(START + 0xf_4000).to_le_bytes());
        // One thread's, one that nobody asked for, and one that is too far from the end.
        [(0xf_8000, 77), (0xf_c000, 99), (0x1000, 78)].into_iter().for_each(|(at, id)| memory.descriptor(at, id));
        let mut unplaced = HashSet::from([77, 78]);
        let found = of_threads(LINE, None, &memory, &mut unplaced);
        assert_eq!(found, HashMap::from([(77, START + 0xf_8000)]));
        assert_eq!(unplaced, HashSet::from([78]));
    }

    #[test]
    fn descriptors_before_thread_pointers_are_found_by_their_list() {
        let of = |id: u32| {
            let mut memory = Fake(vec![0; BYTES as usize]);
            // An id that is in no list.
            memory.store(0xf_4000 + LIST_BEFORE + ID, &id.to_le_bytes());
            memory.list(0xf_8000 + LIST_BEFORE, id);
            memory
        };
        let mut unplaced = HashSet::from([77, 78]);
        let found = of_threads(LINE, Some(2048), &of(77), &mut unplaced);
        assert_eq!((found, unplaced), (HashMap::from([(77, START + 0xf_8000 + 2048)]), HashSet::from([78])));
        let ended = [0, -1, 77].map(|id: i32| of_ended(LINE, true, &of(id.cast_unsigned())));
        assert_eq!(ended, [Some(START + 0xf_8000), Some(START + 0xf_8000), None]);
        let mut broken = of(0);
        broken.store(64 + 8, &[0; 8]);
        assert_eq!(of_ended(LINE, true, &broken), None);
    }

    #[test]
    fn a_mapping_at_the_end_of_all_addresses_has_none() {
        for is_before in [false, true] {
            assert_eq!(of_ended((START, u64::MAX), is_before, &Fake(Vec::new())), None);
        }
    }

    #[test]
    fn a_stack_is_of_an_ended_thread_if_its_descriptor_says_so() {
        let found = |id: i32, breaks: Option<u64>| {
            let mut memory = Fake(vec![0; BYTES as usize]);
            memory.descriptor(0xf_f000, id.cast_unsigned());
            breaks.into_iter().for_each(|at| memory.store(at, &[0; 8]));
            of_ended(LINE, false, &memory)
        };
        assert_eq!(found(0, None), Some(START + 0xf_f000));
        assert_eq!(found(-1, None), Some(START + 0xf_f000));
        assert_eq!(found(77, None), None, "it runs");
        for breaks in [0xf_f000, 0xf_f010, 0xf_f000 + LIST, 64 + 8] {
            assert_eq!(found(0, Some(breaks)), None, "{breaks:#x}");
        }
    }
}
