//! The encoding of events as 16-byte records. This file alone describes their bits, encoder and
//! decoder side by side.
//!
//! ```text
//! word 0:  bits 0..6 op | 6..36 ticks since the thread's last timestamp | 36..64 stack node
//! word 1:  bits 0..20 size | 20..64 address >> 3
//! ```
//! With a difference of 0 ticks the event has the timestamp of the event before it. A value that
//! does not fit is stored in a prefix record: [`Op::TIMESTAMP`] (word 1: absolute ticks), or
//! [`Op::EXTENDED`] (word 0 bits 6..64: size, word 1: address; the size and address fields of the
//! event itself are then 0). A record of zeros is invalid, so that a hole punched into the ring is
//! noticed.
//!
//! The order of timestamps: a deallocation (the [`Op::FREE`] family, [`Op::RESIZE_BEGIN`]) is
//! timestamped and published *before* the allocator is called, an allocation *after* it. So no
//! address is seen allocated again before it was seen freed.

/// One record of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Record {
    /// Op, tick difference and stack node.
    pub head: u64,
    /// Address and size, or the value that the op defines.
    pub body: u64,
}

/// The kind of a record. Each number is written out and never reused. The numbers of
/// allocations and frees equal the entry numbers of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op(pub u8);

impl Op {
    /// Allocation by `malloc`.
    pub const MALLOC: Op = Op(1);
    /// Allocation by `calloc`.
    pub const CALLOC: Op = Op(2);
    /// Allocation by `realloc` of a null pointer.
    pub const REALLOC: Op = Op(3);
    /// Allocation by `reallocarray` of a null pointer.
    pub const REALLOCARRAY: Op = Op(4);
    /// Allocation by `posix_memalign`.
    pub const POSIX_MEMALIGN: Op = Op(5);
    /// Allocation by `aligned_alloc`.
    pub const ALIGNED_ALLOC: Op = Op(6);
    /// Allocation by `memalign`.
    pub const MEMALIGN: Op = Op(7);
    /// Allocation by `valloc`.
    pub const VALLOC: Op = Op(8);
    /// Allocation by `pvalloc`.
    pub const PVALLOC: Op = Op(9);
    /// Allocation by C++ `operator new` in any form.
    pub const NEW: Op = Op(10);
    /// Allocation by C++ `operator new[]` in any form.
    pub const NEW_ARRAY: Op = Op(11);
    /// The second half of a resize by `realloc`, with the new address, the new size and the stack.
    pub const RESIZE: Op = Op(12);
    /// The second half of a resize by `reallocarray`.
    pub const RESIZE_ARRAY: Op = Op(13);
    /// Allocation by the first allocator inside the program; see [`Op::of_allocator`].
    pub const ALLOC_INSIDE: Op = Op(14);
    /// Allocation that the program reported through `heaptape.h`.
    pub const ALLOC_REPORTED: Op = Op(18);
    /// Free by `free`.
    pub const FREE: Op = Op(20);
    /// Free by `cfree`.
    pub const CFREE: Op = Op(21);
    /// Free by `free_sized`.
    pub const FREE_SIZED: Op = Op(22);
    /// Free by `free_aligned_sized`.
    pub const FREE_ALIGNED_SIZED: Op = Op(23);
    /// Free by C++ `operator delete` in any form.
    pub const DELETE: Op = Op(24);
    /// Free by C++ `operator delete[]` in any form.
    pub const DELETE_ARRAY: Op = Op(25);
    /// Free by the first allocator inside the program; see [`Op::of_allocator`].
    pub const FREE_INSIDE: Op = Op(26);
    /// The first half of a resize, which frees the old address. It is not an event of its own.
    pub const RESIZE_BEGIN: Op = Op(30);
    /// Replaces the second half of a resize that failed: the old block stays live. It is not an
    /// event.
    pub const RESIZE_FAILED: Op = Op(31);
    /// Replaces the second half when `realloc(p, 0)` freed the block. It counts as a free.
    pub const RESIZE_FREED: Op = Op(32);
    /// The second half of a resize by the first allocator inside the program; see
    /// [`Op::of_allocator`].
    pub const RESIZE_INSIDE: Op = Op(33);
    /// Free that the program reported through `heaptape.h`.
    pub const FREE_REPORTED: Op = Op(37);
    /// The second half of a resize that the program reported through `heaptape.h`.
    pub const RESIZE_REPORTED: Op = Op(38);
    /// The second half of a resize to nothing, which the recorder adds for [`Op::POOL`]. No process
    /// sends it.
    pub const POOLED: Op = Op(39);
    /// Prefix whose word 1 is the absolute timestamp.
    pub const TIMESTAMP: Op = Op(40);
    /// Prefix with the full address and size of the event that follows.
    pub const EXTENDED: Op = Op(41);
    /// Reports a gap: word 1 is the number of events of this thread that were dropped between the
    /// record before it and the record after it.
    pub const DROPPED: Op = Op(42);
    /// Reports a change of the sampling interval: word 1 is the mean number of bytes between this
    /// thread's samples from here on, or 0 if every event is recorded. If bit 6 of word 0 is set,
    /// the interval holds only after the next event.
    pub const SAMPLE_INTERVAL: Op = Op(43);

    /// Up to [`TEXT_BYTES`] bytes of the text of the annotation that follows: eight in the
    /// address, the others in the size. Zeros fill it up. Like all annotations it is no event.
    pub const TEXT: Op = Op(44);
    /// Annotation: the next reported allocation or resize of the thread belongs to the heap that
    /// the text names.
    pub const HEAP: Op = Op(45);
    /// Annotation: the thread has the number of labels that the size says. The text is the last
    /// one, which is new; without a text the others were removed.
    pub const LABEL: Op = Op(46);
    /// Annotation: a mark with the text as its name.
    pub const MARK: Op = Op(47);
    /// Annotation: all reported blocks that begin in the range of this address and size are free.
    pub const FREE_RANGE: Op = Op(48);
    /// Annotation: all blocks of the heap that the text names are free.
    pub const RESET: Op = Op(49);
    /// Annotation: the block at the address is a pool, whose parts are reported as blocks.
    pub const POOL: Op = Op(50);
    /// A free that the recorder adds for [`Op::FREE_RANGE`] and [`Op::RESET`], and for the blocks
    /// in a pool that is freed. No process sends it.
    pub const FREE_ADDED: Op = Op(51);

    /// A range was mapped by `mmap`, with its stack. The lowest bits of the address describe it
    /// ([`crate::mapping`]). Like the records after it, it is no event of the heap.
    pub const MAP: Op = Op(52);
    /// The range is about to be unmapped. With size 0 it is the segment at the address.
    pub const UNMAP: Op = Op(53);
    /// The first half of `mremap`: the old range is about to be unmapped.
    pub const MOVE_BEGIN: Op = Op(54);
    /// The second half of `mremap`, with the new range. The lowest bits of the address are flags of
    /// `mremap` ([`crate::mapping::MOVE_FLAGS`]).
    pub const MOVED: Op = Op(55);
    /// The call of the thread's last [`Op::UNMAP`] or [`Op::MOVE_BEGIN`] failed.
    pub const UNMAP_FAILED: Op = Op(56);
    /// The end of the data segment has grown by this range (`brk`, `sbrk`).
    pub const BREAK: Op = Op(57);
    /// `shmat` has attached a segment at this address, whose size is not known.
    pub const MAP_SEGMENT: Op = Op(58);
    /// `madvise` has returned the memory of the range to the kernel; it stays mapped. The lowest
    /// bits of the address are the advice (`MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`).
    pub const ADVISED: Op = Op(59);
    /// `mprotect` has changed the access to the range. The lowest bits of the address are
    /// [`crate::mapping::ACCESS`].
    pub const PROTECTED: Op = Op(60);

    /// The number of allocators inside a program whose events have their own ops.
    pub const ALLOCATORS: u8 = 4;

    /// Returns the op of an allocator inside the program, by the op of the first one. Allocators
    /// after the last number share it.
    pub const fn of_allocator(first: Op, allocator: u8) -> Op {
        Op(first.0 + if allocator < Op::ALLOCATORS { allocator } else { Op::ALLOCATORS - 1 })
    }

    /// Returns the number of the allocator inside the program that did this, or `None` for the
    /// functions that the library exports.
    pub const fn allocator(self) -> Option<u8> {
        let first = match self.0 {
            14..=17 => Op::ALLOC_INSIDE,
            26..=29 => Op::FREE_INSIDE,
            33..=36 => Op::RESIZE_INSIDE,
            _ => return None,
        };
        Some(self.0 - first.0)
    }

    /// Returns the op of an allocation by the same function as this resize.
    pub const fn first_of_resize(self) -> Op {
        match self.0 {
            33..=36 => Op(self.0 - Op::RESIZE_INSIDE.0 + Op::ALLOC_INSIDE.0),
            _ if self.0 == Op::RESIZE_REPORTED.0 => Op::ALLOC_REPORTED,
            _ if self.0 == Op::RESIZE.0 => Op::REALLOC,
            _ => Op::REALLOCARRAY,
        }
    }

    /// Returns whether the op is in a set, one bit for each number.
    #[inline(always)]
    const fn is_in(self, set: u64) -> bool {
        self.0 < 64 && set >> self.0 & 1 != 0
    }

    /// Returns whether the record is an allocation.
    #[inline(always)]
    pub const fn is_alloc(self) -> bool {
        self.is_in(0b111_1111_1111 << Op::MALLOC.0 | 0b1_1111 << Op::ALLOC_INSIDE.0)
    }
    /// Returns whether the record is a free that is not part of a resize.
    #[inline(always)]
    pub const fn is_free(self) -> bool {
        self.is_in(
            0b11_1111 << Op::FREE.0 | 0b1111 << Op::FREE_INSIDE.0 | 1 << Op::FREE_REPORTED.0 | 1 << Op::FREE_ADDED.0,
        )
    }
    /// Returns whether the record is the second half of a successful resize.
    #[inline(always)]
    pub const fn is_resize(self) -> bool {
        self.is_in(0b11 << Op::RESIZE.0 | 0b1111 << Op::RESIZE_INSIDE.0 | 0b11 << Op::RESIZE_REPORTED.0)
    }
    /// Returns whether the record is a half of a resize that is no event itself: its begin, or its
    /// failure.
    pub const fn is_half_of_resize(self) -> bool {
        self.is_in(0b11 << Op::RESIZE_BEGIN.0)
    }
    /// Returns whether the record is an annotation by the program, or a mapping: it has a
    /// timestamp, and is no event.
    #[inline(always)]
    pub const fn is_annotation(self) -> bool {
        self.is_in(0b111_1111 << Op::TEXT.0 | 0b1_1111_1111 << Op::MAP.0)
    }
    /// Returns whether the record is a call that maps, unmaps or changes ranges, or half of one.
    pub const fn is_mapping(self) -> bool {
        self.is_in(0b1_1111_1111 << Op::MAP.0)
    }
    /// Returns whether the record is an annotation that frees or hides blocks, or a mapping, so
    /// that it counts as a dropped event if it is dropped.
    pub const fn changes_blocks(self) -> bool {
        self.is_in(0b111 << Op::FREE_RANGE.0 | 0b1_1111_1111 << Op::MAP.0)
    }
    /// Returns whether the record counts as one event in the accounting.
    pub const fn is_event(self) -> bool {
        self.is_alloc() || self.is_free() || self.is_resize() || matches!(self, Op::RESIZE_FREED)
    }
    /// Returns whether only the recorder makes such events, from annotations.
    pub const fn is_added(self) -> bool {
        matches!(self, Op::POOLED | Op::FREE_ADDED)
    }
    /// Returns whether the program reported this event through `heaptape.h`.
    #[inline(always)]
    pub const fn is_reported(self) -> bool {
        self.is_in(1 << Op::ALLOC_REPORTED.0 | 0b11 << Op::FREE_REPORTED.0)
    }
}

/// Number of bits of the tick difference.
pub const DELTA_BITS: u32 = 30;
/// The first tick difference that needs an [`Op::TIMESTAMP`] prefix.
pub const DELTA_LIMIT: u64 = 1 << DELTA_BITS;
/// The first stack node number that a record cannot hold.
pub const STACK_LIMIT: u32 = 1 << 28;
/// Number of bytes of a text that one [`Op::TEXT`] holds. The size holds six, as that of a block.
pub const TEXT_BYTES: usize = 14;
/// The most bytes of the text of an annotation. A longer one is truncated.
pub const MAX_TEXT: usize = 4 * TEXT_BYTES;
const SIZE_BITS: u32 = 20;
const SIZE_LIMIT: u64 = 1 << SIZE_BITS;

/// One finished call of an allocator function, or half of a resize, before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the record.
    pub op: Op,
    /// The node of the call stack; 0 for none.
    pub stack: u32,
    /// The address of the block.
    pub address: u64,
    /// The requested bytes; 0 for a deallocation.
    pub size: u64,
}

impl Event {
    /// Returns whether address and size fit into one record.
    #[inline(always)]
    pub const fn is_compact(self) -> bool {
        self.size < SIZE_LIMIT && self.address & 7 == 0 && self.address >> 47 == 0
    }

    /// Returns the record of a compact event. `delta` must be below [`DELTA_LIMIT`], and `stack`
    /// below [`STACK_LIMIT`].
    #[inline(always)]
    pub const fn compact(self, delta: u64) -> Record {
        Record {
            head: self.op.0 as u64 | delta << 6 | (self.stack as u64) << 36,
            body: (self.address >> 3) << SIZE_BITS | self.size,
        }
    }

    /// Returns the two records, prefix and event, of an event of any address and size.
    pub const fn extended(self, delta: u64) -> [Record; 2] {
        let prefix = Record { head: Op::EXTENDED.0 as u64 | self.size << 6, body: self.address };
        [prefix, Event { address: 0, size: 0, ..self }.compact(delta)]
    }
}

impl Record {
    /// Returns the prefix that sets the timestamp.
    #[inline(always)]
    pub const fn timestamp(ticks: u64) -> Record {
        Record { head: Op::TIMESTAMP.0 as u64, body: ticks }
    }
    /// Returns the record that reports a gap of `events` dropped events.
    pub const fn dropped(events: u64) -> Record {
        Record { head: Op::DROPPED.0 as u64, body: events }
    }
    /// Returns the record of a change of the sampling interval to `mean` bytes. With `after_next`
    /// the change holds only after the next event.
    pub const fn sample_interval(mean: u64, after_next: bool) -> Record {
        Record { head: Op::SAMPLE_INTERVAL.0 as u64 | (after_next as u64) << 6, body: mean }
    }
    /// Returns the kind of the record.
    #[inline(always)]
    pub const fn op(self) -> Op {
        Op((self.head & 63) as u8)
    }
    /// Returns the ticks since the thread's last timestamp.
    #[inline(always)]
    pub const fn delta(self) -> u64 {
        self.head >> 6 & (DELTA_LIMIT - 1)
    }
    /// Returns the stack node of the event.
    #[inline(always)]
    pub const fn stack(self) -> u32 {
        (self.head >> 36) as u32
    }
    /// Returns the address of a compact event.
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.body >> SIZE_BITS << 3
    }
    /// Returns the size of a compact event.
    #[inline(always)]
    pub const fn size(self) -> u64 {
        self.body & (SIZE_LIMIT - 1)
    }
    /// Returns the size in an [`Op::EXTENDED`] prefix, whose address is `body`.
    #[inline(always)]
    pub const fn extended_size(self) -> u64 {
        self.head >> 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_and_extended_events_round_trip() {
        for address in [0x8u64, 0x7fff_ffff_fff8, 0x5555_5555_6010, 0x1001, 1 << 50] {
            for size in [0u64, 1, 0xf_ffff, 0x10_0000, 1 << 40] {
                let event = Event { op: Op::NEW, stack: STACK_LIMIT - 1, address, size };
                let compact = address & 7 == 0 && address < 1 << 47 && size < 1 << 20;
                assert_eq!(event.is_compact(), compact);
                let (found_address, found_size, last) = if compact {
                    let record = event.compact(DELTA_LIMIT - 1);
                    (record.address(), record.size(), record)
                } else {
                    let [prefix, last] = event.extended(DELTA_LIMIT - 1);
                    assert_eq!(prefix.op(), Op::EXTENDED);
                    (prefix.body, prefix.extended_size(), last)
                };
                assert_eq!((found_address, found_size), (address, size));
                assert_eq!((last.op(), last.delta(), last.stack()), (Op::NEW, DELTA_LIMIT - 1, STACK_LIMIT - 1));
            }
        }
        assert!(!Record::default().op().is_event());
    }

    #[test]
    fn each_op_is_of_one_kind() {
        for number in 0..=255 {
            let op = Op(number);
            assert_eq!(op.is_alloc(), matches!(number, 1..=11 | 14..=18), "{number}");
            assert_eq!(op.is_resize(), matches!(number, 12 | 13 | 33..=36 | 38 | 39), "{number}");
            assert_eq!(op.is_reported(), matches!(number, 18 | 37 | 38), "{number}");
            assert_eq!(op.is_annotation(), matches!(number, 44..=50 | 52..=60), "{number}");
            assert_eq!(op.changes_blocks(), matches!(number, 48..=50 | 52..=60), "{number}");
            assert_eq!(op.is_mapping(), matches!(number, 52..=60), "{number}");
            assert_eq!(op.is_free(), matches!(number, 20..=29 | 37 | 51), "{number}");
        }
        for allocator in 0..6 {
            for first in [Op::ALLOC_INSIDE, Op::FREE_INSIDE, Op::RESIZE_INSIDE] {
                assert_eq!(Op::of_allocator(first, allocator).allocator(), Some(allocator.min(3)));
            }
        }
        assert_eq!(Op::of_allocator(Op::RESIZE_INSIDE, 2).first_of_resize(), Op::of_allocator(Op::ALLOC_INSIDE, 2));
        assert_eq!(Op::RESIZE_REPORTED.first_of_resize(), Op::ALLOC_REPORTED);
        assert_eq!((Op::MALLOC.allocator(), Op::RESIZE.first_of_resize()), (None, Op::REALLOC));
    }
}
