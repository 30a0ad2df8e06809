//! The usual records, which need nothing but a look at their site: calls of the functions that the
//! library exports, by threads without sampling, labels and gaps.

use super::ProcessRecording;
use crate::heap::live::Call;
use crate::heap::thread_number::ThreadNumber;
use wire::{Op, Record};

/// Sets of operations, one bit for each.
struct Sets {
    /// The calls, and the halves of resizes.
    plain: u64,
    /// The calls that are events themselves.
    events: u64,
    /// The events that allocate, and so always have a stack.
    allocating: u64,
}

const SETS: Sets = {
    let (mut sets, mut number) = (Sets { plain: 0, events: 0, allocating: 0 }, 0);
    while number < 64 {
        let op = Op(number);
        let is_own = !op.is_added() && !op.is_reported() && op.allocator().is_none();
        let is_event = op.is_event() && is_own;
        sets.plain |= ((is_event || op.is_half_of_resize()) as u64) << number;
        sets.events |= (is_event as u64) << number;
        sets.allocating |= ((is_event && (op.is_alloc() || op.is_resize())) as u64) << number;
        number += 1;
    }
    sets
};

/// The state of a thread while its usual records are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainReader {
    pub thread: ThreadNumber,
    /// No event happened after this tick.
    pub limit: u64,
    /// The thread's running timestamp.
    pub timestamp: u64,
    /// Tick of the last event of all threads.
    pub last_tick: u64,
    /// Number of events that were read.
    pub recorded: u64,
}

impl ProcessRecording {
    /// Reads usual records until enough calls are collected, or another record comes. Returns the
    /// remaining records.
    #[inline]
    pub(super) fn read_plain<'a>(&mut self, records: &'a [Record], reader: &mut PlainReader) -> &'a [Record] {
        let with_site = if self.session.options.free_stacks { SETS.plain } else { SETS.allocating };
        let (PlainReader { thread, limit, mut timestamp, mut last_tick, .. }, mut count) = (*reader, 0);
        for record in records.iter().take(self.heap.space()) {
            let (op, bit) = (record.op(), 1 << (record.head & 63));
            if bit & SETS.plain == 0 {
                break;
            }
            timestamp = timestamp.wrapping_add(record.delta());
            last_tick = timestamp.min(limit).max(last_tick);
            let (address, size) = (record.address(), record.size());
            let has_site = bit & with_site != 0;
            let site = if has_site { self.stacks.site(record.stack(), self.output.records()) } else { 0 };
            self.heap.push(Call { op, thread, site, address, size, weight: size, tick: last_tick });
            reader.recorded += u64::from(bit & SETS.events != 0);
            count += 1;
        }
        (reader.timestamp, reader.last_tick) = (timestamp, last_tick);
        records.get(count..).unwrap_or_default()
    }
}
