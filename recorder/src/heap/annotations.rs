//! What a program says through `heaptape.h`: heaps that it names, labels of its threads, pools, and
//! frees of many blocks at once.
//!
//! A heap and a label are call sites of their own, outside of all frames of the program: so every
//! sum by stack is one by heap and label too. All numbers and texts are those of the client and not
//! trusted: at most [`MAX_TEXTS`] different texts are kept.

use crate::heap::live::Call;
use crate::heap::thread_number::ThreadNumber;
use formats::tape::{ANNOTATION_START, HEAP_PREFIX, LABEL_PREFIX};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use wire::Op;
use wire::event::{MAX_TEXT, TEXT_BYTES};

/// Maximum number of different texts of a process. Later ones share the last number.
const MAX_TEXTS: usize = 1 << 12;
/// Maximum number of labels of a thread.
const MAX_LABELS: usize = 32;
/// Distance of the addresses of two texts.
const TEXT_DISTANCE: u64 = 16;
/// Name of the labels and heaps after the last one that has a number.
const OTHER_TEXT: &[u8] = b"(others)";
/// Bit of the address under which a pool's block is kept while parts of it are blocks, too.
const POOL_BIT: u64 = 1 << 62;

#[derive(Clone, Copy, Debug)]
struct ReportedBlock {
    /// Number of the text with its heap; 0 for none.
    heap: u32,
    /// Site of its allocation, by which it differs from a later block at its address.
    site: u32,
}

/// What was said on a thread.
#[derive(Debug, Default)]
struct ThreadAnnotations {
    /// The text of the annotation that follows.
    text: Vec<u8>,
    /// Heap of the next reported event; 0 for none.
    heap: u32,
    /// The labels, each with its position, from 1.
    labels: Vec<(u64, u32)>,
    /// Site of the innermost label; 0 for none.
    label_site: u32,
}

/// Something that changes the live blocks, to be applied after all calls before it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    Call(Call),
    /// A free, if the block at the address has this site.
    FreeOf(Call, u32),
    /// The block at the call's address becomes a pool.
    Pool(Call),
}

#[derive(Debug, Default)]
pub(crate) struct Annotations {
    threads: FxHashMap<ThreadNumber, ThreadAnnotations>,
    /// Number of each name, from 1.
    numbers: FxHashMap<Vec<u8>, u32>,
    names: Vec<Vec<u8>>,
    reported: BTreeMap<u64, ReportedBlock>,
    blocks_of_heap: FxHashMap<u32, BTreeSet<u64>>,
    /// Size of each pool, by its address.
    pools: BTreeMap<u64, u64>,
    pending: VecDeque<Pending>,
}

/// Returns the address of the site of a text.
pub(crate) fn address(number: u32) -> u64 {
    ANNOTATION_START + u64::from(number) * TEXT_DISTANCE
}

/// Returns the address under which the block of a pool is kept.
pub(crate) fn pool_address(address: u64) -> u64 {
    address ^ POOL_BIT
}

impl Annotations {
    /// Returns the names of the sites, each with the range of addresses that it is for.
    pub(crate) fn names(&self) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        let start = |number| address(number) - TEXT_DISTANCE / 2;
        (1..).zip(&self.names).map(move |(number, name)| (start(number)..start(number + 1), name.as_slice()))
    }

    /// Returns the site of the innermost label of a thread; 0 for none.
    #[inline]
    pub(crate) fn label_site(&self, thread: ThreadNumber) -> u32 {
        if self.threads.is_empty() { 0 } else { self.threads.get(&thread).map_or(0, |thread| thread.label_site) }
    }

    pub(crate) fn set_label_site(&mut self, thread: ThreadNumber, site: u32) {
        self.thread(thread).label_site = site;
    }

    /// Returns the numbers of the labels of a thread, the outermost first.
    pub(crate) fn labels(&self, thread: ThreadNumber) -> Vec<u32> {
        self.threads.get(&thread).map_or_else(Vec::new, |thread| thread.labels.iter().map(|label| label.1).collect())
    }

    /// Returns the heap of the next reported event of a thread; 0 for none.
    pub(crate) fn heap(&self, thread: ThreadNumber) -> u32 {
        self.threads.get(&thread).map_or(0, |thread| thread.heap)
    }

    /// Returns whether a free may be one of a pool, or a resize one of a reported block.
    #[inline]
    pub(crate) fn has_blocks(&self) -> bool {
        !self.pools.is_empty() || !self.reported.is_empty()
    }

    /// Returns whether something waits for the calls before it.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Removes and returns the next thing that waited for the calls before it.
    pub(crate) fn next_pending(&mut self) -> Option<Pending> {
        self.pending.pop_front()
    }

    /// Notes that the block at an address is a pool.
    pub(crate) fn add_pool(&mut self, address: u64, size: u64) {
        self.pools.insert(address, size);
    }

    /// Forgets a thread that has ended.
    pub(crate) fn end_thread(&mut self, thread: ThreadNumber) {
        self.threads.remove(&thread);
    }

    /// Forgets all blocks and pools of the process.
    pub(crate) fn forget_blocks(&mut self) {
        self.reported.clear();
        self.blocks_of_heap.clear();
        self.pools.clear();
    }

    fn thread(&mut self, thread: ThreadNumber) -> &mut ThreadAnnotations {
        self.threads.entry(thread).or_default()
    }

    /// Adds a part of the text of the annotation that follows.
    fn add_text(&mut self, thread: ThreadNumber, address: u64, size: u64) {
        let text = &mut self.thread(thread).text;
        let bytes = (u128::from(address) | u128::from(size) << 64).to_le_bytes();
        let new = bytes.iter().take(TEXT_BYTES).take_while(|byte| **byte != 0);
        text.extend(new.take(MAX_TEXT.saturating_sub(text.len())));
    }

    fn take_text(&mut self, thread: ThreadNumber) -> Vec<u8> {
        std::mem::take(&mut self.thread(thread).text)
    }

    /// Returns the number of the text of the annotation.
    fn take_number(&mut self, thread: ThreadNumber, prefix: &str) -> u32 {
        let text = self.take_text(thread);
        let name = [prefix.as_bytes(), &text].concat();
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let is_last = self.names.len() + 1 >= MAX_TEXTS;
        let name = if is_last { OTHER_TEXT.to_vec() } else { name };
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        self.names.push(name.clone());
        let number = self.names.len() as u32;
        self.numbers.insert(name, number);
        number
    }

    /// Reads an annotation, whose operation, thread, address, size and time the call has. Returns
    /// the name of a mark. What it does to blocks is pending then.
    pub(crate) fn read(&mut self, call: Call) -> Option<Vec<u8>> {
        let Call { op, thread, address, size, .. } = call;
        match op {
            Op::TEXT => self.add_text(thread, address, size),
            Op::MARK => return Some(self.take_text(thread)),
            Op::HEAP => {
                let heap = self.take_number(thread, HEAP_PREFIX);
                self.thread(thread).heap = heap;
            }
            Op::LABEL => {
                let label = (address == 1).then(|| self.take_number(thread, LABEL_PREFIX));
                let labels = &mut self.thread(thread).labels;
                let kept = size.saturating_sub(u64::from(label.is_some()));
                labels.retain(|(position, _)| *position <= kept);
                if let Some(label) = label.filter(|_| labels.len() < MAX_LABELS) {
                    labels.push((size, label));
                }
            }
            Op::FREE_RANGE => self.free_range(call, address, address.saturating_add(size)),
            Op::RESET => {
                let heap = self.take_number(thread, HEAP_PREFIX);
                let blocks = self.blocks_of_heap.remove(&heap).unwrap_or_default();
                blocks.into_iter().for_each(|address| self.free_block(call, address));
            }
            _ => self.pending.push_back(Pending::Pool(call)),
        }
        None
    }

    /// Frees the reported blocks that begin in a range, when all calls before are applied.
    fn free_range(&mut self, call: Call, start: u64, end: u64) {
        if start < end {
            let blocks: Vec<u64> = self.reported.range(start..end).map(|(address, _)| *address).collect();
            blocks.into_iter().for_each(|address| self.free_block(call, address));
        }
    }

    fn free_block(&mut self, call: Call, address: u64) {
        if let Some(block) = self.remove(address) {
            let freed = Call { op: Op::FREE_ADDED, site: 0, address, size: 0, weight: 0, ..call };
            self.pending.push_back(Pending::FreeOf(freed, block.site));
        }
    }

    fn remove(&mut self, address: u64) -> Option<ReportedBlock> {
        let block = self.reported.remove(&address)?;
        if let Some(blocks) = self.blocks_of_heap.get_mut(&block.heap) {
            blocks.remove(&address);
        }
        Some(block)
    }

    /// Notes a reported allocation, or the second half of a reported resize.
    pub(crate) fn allocated(&mut self, call: &Call) {
        let heap = std::mem::take(&mut self.thread(call.thread).heap);
        self.remove(call.address);
        self.reported.insert(call.address, ReportedBlock { heap, site: call.site });
        self.blocks_of_heap.entry(heap).or_default().insert(call.address);
    }

    /// Notes a free, or the first half of a resize. Returns whether it is that of a pool: then it
    /// is pending, after frees of the blocks in the pool.
    pub(crate) fn freed(&mut self, call: &Call) -> bool {
        if !call.op.is_reported()
            && let Some(size) = self.pools.remove(&call.address)
        {
            self.free_range(*call, call.address, call.address.saturating_add(size));
            self.pending.push_back(Pending::Call(Call { address: pool_address(call.address), ..*call }));
            return true;
        }
        if let Some(block) = self.remove(call.address)
            && call.op == Op::RESIZE_BEGIN
        {
            // The block stays in its heap, unless the program names another one.
            let heap = &mut self.thread(call.thread).heap;
            *heap = if *heap == 0 { block.heap } else { *heap };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: Op, address: u64, size: u64) -> Call {
        Call { op, thread: ThreadNumber(1), site: 7, address, size, weight: size, tick: 5 }
    }

    fn say(annotations: &mut Annotations, op: Op, text: &str, address: u64, size: u64) -> Option<Vec<u8>> {
        for part in text.as_bytes().chunks(TEXT_BYTES) {
            let mut bytes = [0; 16];
            bytes[..part.len()].copy_from_slice(part);
            let packed = u128::from_le_bytes(bytes);
            annotations.read(call(Op::TEXT, packed as u64, (packed >> 64) as u64));
        }
        annotations.read(call(op, address, size))
    }

    fn freed(annotations: &mut Annotations) -> Vec<u64> {
        let next = |annotations: &mut Annotations| match annotations.next_pending()? {
            Pending::FreeOf(call, 7) => Some(call.address),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| next(annotations)).collect()
    }

    #[test]
    fn texts_have_a_bounded_size_and_a_bounded_number() {
        let mut annotations = Annotations::default();
        let long = "0123456789".repeat(7);
        assert_eq!(say(&mut annotations, Op::MARK, &long, 0, 0).map(|text| text.len()), Some(MAX_TEXT));
        for number in 0..2 * MAX_TEXTS {
            say(&mut annotations, Op::HEAP, &number.to_string(), 0, 0);
        }
        assert_eq!(annotations.names().count(), MAX_TEXTS);
        assert_eq!(annotations.names().last().map(|(_, name)| name), Some(OTHER_TEXT));
    }

    #[test]
    fn lost_labels_do_not_outlive_the_ones_around_them() {
        let mut annotations = Annotations::default();
        say(&mut annotations, Op::LABEL, "outer", 1, 1);
        say(&mut annotations, Op::LABEL, "third", 1, 3);
        assert_eq!(annotations.labels(ThreadNumber(1)).len(), 2);
        say(&mut annotations, Op::LABEL, "", 0, 2);
        assert_eq!(annotations.labels(ThreadNumber(1)), [1]);
        say(&mut annotations, Op::LABEL, "deep", 1, u64::MAX);
        say(&mut annotations, Op::LABEL, "", 0, 0);
        assert!(annotations.labels(ThreadNumber(1)).is_empty());
    }

    #[test]
    fn reset_frees_the_blocks_of_its_heap_and_a_range_those_that_begin_in_it() {
        let mut annotations = Annotations::default();
        for (heap, address) in [("a", 0x100), ("b", 0x110), ("a", 0x120), ("b", 0x130)] {
            say(&mut annotations, Op::HEAP, heap, 0, 0);
            annotations.allocated(&call(Op::ALLOC_REPORTED, address, 8));
        }
        say(&mut annotations, Op::RESET, "a", 0, 0);
        assert_eq!(freed(&mut annotations), [0x100, 0x120]);
        say(&mut annotations, Op::FREE_RANGE, "", 0x100, 0x20);
        assert_eq!(freed(&mut annotations), [0x110]);
        say(&mut annotations, Op::FREE_RANGE, "", u64::MAX, u64::MAX);
        say(&mut annotations, Op::RESET, "none", 0, 0);
        assert!(freed(&mut annotations).is_empty());
    }

    #[test]
    fn free_of_a_pool_frees_the_blocks_in_it_first() {
        let mut annotations = Annotations::default();
        annotations.add_pool(0x1000, 0x100);
        annotations.allocated(&call(Op::ALLOC_REPORTED, 0x1000, 8));
        assert!(!annotations.freed(&call(Op::FREE_REPORTED, 0x1000, 0)), "the block at its start is another one");
        annotations.allocated(&call(Op::ALLOC_REPORTED, 0x10f8, 8));
        assert!(annotations.freed(&call(Op::FREE, 0x1000, 0)));
        assert!(matches!(annotations.next_pending(), Some(Pending::FreeOf(Call { address: 0x10f8, .. }, 7))));
        let end = annotations.next_pending();
        assert!(matches!(end, Some(Pending::Call(call)) if call.address == pool_address(0x1000)), "{end:?}");
        assert!(!annotations.freed(&call(Op::FREE, 0x1000, 0)), "the pool is gone");
    }
}
