//! Events as 16-byte records: the only description of their bits. Encoder and decoder side by side.
//!
//! ```text
//! word 0:  bits 0..6 op | 6..36 ticks since the thread's last stamp (0: the same stamp) | 36..64 stack node
//! word 1:  bits 0..20 size | 20..64 address >> 3
//! ```
//! What does not fit goes into a prefix record: [`Op::STAMP`] (word 1: absolute ticks),
//! [`Op::WIDE`] (word 0 bits 6..64: size, word 1: address; the event's own size and address are
//! then 0). A record of zeros is invalid: a hole punched into the ring is noticed.
//!
//! The stamp law: a give-back ([`Op::FREE`] family, [`Op::RESIZE_BEGIN`]) is stamped and published
//! *before* the real call, a taking *after* it. So an address is never seen taken again before it
//! was seen given back.

/// One record of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Record {
    /// Op, ticks and stack.
    pub head: u64,
    /// Address and size, or what the op says.
    pub body: u64,
}

/// What a record says. Numbers are written out, never reused; 1..=25 equal the tape's entry
/// numbers.
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
    /// The second half of a resize by `realloc`: new address and size, stack.
    pub const RESIZE: Op = Op(12);
    /// The second half of a resize by `reallocarray`.
    pub const RESIZE_ARRAY: Op = Op(13);
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
    /// The first half of a resize: the old address is given back. Not an event of its own.
    pub const RESIZE_BEGIN: Op = Op(30);
    /// In place of the second half: the resize failed, the old block lives on. Not an event.
    pub const RESIZE_FAILED: Op = Op(31);
    /// In place of the second half: `realloc(p, 0)` freed the block. An event, a free.
    pub const RESIZE_FREED: Op = Op(32);
    /// Prefix: word 1 is the stamp, absolute.
    pub const STAMP: Op = Op(40);
    /// Prefix: address and size in full.
    pub const WIDE: Op = Op(41);
    /// Word 1 events of this thread found no room between the record before and the one behind.
    pub const LOST: Op = Op(42);
    /// Word 1 is the mean bytes between this thread's samples from here on, 0 that every event is
    /// recorded. Bit 6 of word 0: it does not hold for the next event yet, only for those behind
    /// it.
    pub const INTERVAL: Op = Op(43);

    /// An allocation.
    pub const fn is_alloc(self) -> bool {
        matches!(self.0, 1..=11)
    }
    /// A whole free.
    pub const fn is_free(self) -> bool {
        matches!(self.0, 20..=25)
    }
    /// The second half of a successful resize.
    pub const fn is_resize(self) -> bool {
        matches!(self.0, 12 | 13)
    }
    /// Counts as one event in the ledger.
    pub const fn is_event(self) -> bool {
        self.is_alloc() || self.is_free() || self.is_resize() || self.0 == 32
    }
}

/// Bits of the tick difference.
pub const DELTA_BITS: u32 = 30;
/// Differences from here on need an [`Op::STAMP`].
pub const DELTA_LIMIT: u64 = 1 << DELTA_BITS;
/// Stack nodes from here on cannot be named.
pub const STACK_LIMIT: u32 = 1 << 28;
const SIZE_BITS: u32 = 20;
const SIZE_LIMIT: u64 = 1 << SIZE_BITS;

/// One finished call, or half of a resize, before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub op: Op,
    /// Stack node; 0 for none.
    pub stack: u32,
    /// The block.
    pub address: u64,
    /// Requested bytes; 0 for a give-back.
    pub size: u64,
}

impl Event {
    /// Whether address and size fit into one record.
    #[inline(always)]
    pub const fn is_narrow(self) -> bool {
        self.size < SIZE_LIMIT && self.address & 7 == 0 && self.address >> 47 == 0
    }

    /// The record of a narrow event; `delta` must be below [`DELTA_LIMIT`], `stack` below
    /// [`STACK_LIMIT`].
    #[inline(always)]
    pub const fn narrow(self, delta: u64) -> Record {
        Record {
            head: self.op.0 as u64 | delta << 6 | (self.stack as u64) << 36,
            body: (self.address >> 3) << SIZE_BITS | self.size,
        }
    }

    /// The two records of any event: prefix and event.
    pub const fn wide(self, delta: u64) -> [Record; 2] {
        let prefix = Record { head: Op::WIDE.0 as u64 | self.size << 6, body: self.address };
        [prefix, Event { address: 0, size: 0, ..self }.narrow(delta)]
    }
}

impl Record {
    /// The prefix that sets the stamp.
    #[inline(always)]
    pub const fn stamp(ticks: u64) -> Record {
        Record { head: Op::STAMP.0 as u64, body: ticks }
    }
    /// The mark of a gap.
    pub const fn lost(events: u64) -> Record {
        Record { head: Op::LOST.0 as u64, body: events }
    }
    /// The change of the sampling interval.
    pub const fn interval(mean: u64, behind_next: bool) -> Record {
        Record { head: Op::INTERVAL.0 as u64 | (behind_next as u64) << 6, body: mean }
    }
    /// What the record says.
    #[inline(always)]
    pub const fn op(self) -> Op {
        Op((self.head & 63) as u8)
    }
    /// Ticks since the thread's last stamp.
    #[inline(always)]
    pub const fn delta(self) -> u64 {
        self.head >> 6 & (DELTA_LIMIT - 1)
    }
    /// Stack node.
    #[inline(always)]
    pub const fn stack(self) -> u32 {
        (self.head >> 36) as u32
    }
    /// Address of a narrow event.
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.body >> SIZE_BITS << 3
    }
    /// Size of a narrow event.
    #[inline(always)]
    pub const fn size(self) -> u64 {
        self.body & (SIZE_LIMIT - 1)
    }
    /// Size in a [`Op::WIDE`] prefix; the address is `body`.
    #[inline(always)]
    pub const fn wide_size(self) -> u64 {
        self.head >> 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_come_back() {
        for address in [0x8u64, 0x7fff_ffff_fff8, 0x5555_5555_6010, 0x1001, 1 << 50] {
            for size in [0u64, 1, 0xf_ffff, 0x10_0000, 1 << 40] {
                let event = Event { op: Op::NEW, stack: STACK_LIMIT - 1, address, size };
                let narrow = address & 7 == 0 && address < 1 << 47 && size < 1 << 20;
                assert_eq!(event.is_narrow(), narrow);
                let (found_address, found_size, last) = if narrow {
                    let record = event.narrow(DELTA_LIMIT - 1);
                    (record.address(), record.size(), record)
                } else {
                    let [prefix, last] = event.wide(DELTA_LIMIT - 1);
                    assert_eq!(prefix.op(), Op::WIDE);
                    (prefix.body, prefix.wide_size(), last)
                };
                assert_eq!((found_address, found_size), (address, size));
                assert_eq!((last.op(), last.delta(), last.stack()), (Op::NEW, DELTA_LIMIT - 1, STACK_LIMIT - 1));
            }
        }
        assert!(!Record::default().op().is_event());
    }
}
