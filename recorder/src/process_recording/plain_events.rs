//! The usual records, which need nothing but a look at their site: calls of the functions that the
//! library exports, by threads without sampling, labels and gaps.

use super::ProcessRecording;
use crate::live::Call;
use wire::{Op, Record};

/// The operations of such calls, and of halves of resizes, one bit for each.
const PLAIN: u64 = {
    let (mut set, mut number) = (1 << Op::RESIZE_BEGIN.0 | 1 << Op::RESIZE_FAILED.0, 0);
    while number < 64 {
        let op = Op(number);
        let is_plain = op.is_event() && !op.is_added() && !op.is_reported() && op.allocator().is_none();
        set |= (is_plain as u64) << number;
        number += 1;
    }
    set
};
/// The operations of those that are events.
const EVENTS: u64 = PLAIN & !(1 << Op::RESIZE_BEGIN.0 | 1 << Op::RESIZE_FAILED.0);
/// The operations of those that allocate, and so always have a stack.
const ALLOCATING: u64 = {
    let (mut set, mut number) = (0, 0);
    while number < 64 {
        let op = Op(number);
        set |= ((op.is_alloc() || op.is_resize()) as u64) << number;
        number += 1;
    }
    set & PLAIN
};

/// The state of a thread while its usual records are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainReader {
    /// Number of the thread.
    pub thread: u32,
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
        let with_site = if self.session.options.free_stacks { PLAIN } else { ALLOCATING };
        let (PlainReader { thread, limit, mut timestamp, mut last_tick, .. }, mut count) = (*reader, 0);
        for record in records.iter().take(self.heap.space()) {
            let (op, bit) = (record.op(), 1 << (record.head & 63));
            if bit & PLAIN == 0 {
                break;
            }
            timestamp = timestamp.wrapping_add(record.delta());
            last_tick = timestamp.min(limit).max(last_tick);
            let (address, size) = (record.address(), record.size());
            self.heap.prefetch(address);
            let has_site = bit & with_site != 0;
            let site = if has_site { self.stacks.site(record.stack(), self.output.records()) } else { 0 };
            self.heap.push(Call { op, thread, site, address, size, weight: size, tick: last_tick });
            reader.recorded += u64::from(bit & EVENTS != 0);
            count += 1;
        }
        (reader.timestamp, reader.last_tick) = (timestamp, last_tick);
        records.get(count..).unwrap_or_default()
    }
}
