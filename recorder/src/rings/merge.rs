//! Merges many rings into one order. The records of each ring wait in a [`RecordQueue`]. All
//! records up to the frontier are sent, smallest timestamp first, ties by slot. The order within a
//! queue is kept.
//!
//! This is the order in which the events happened: a barrier is read from the clock. After a delay
//! that makes all earlier stores visible, every ring is read. A writer announces a record before it
//! reads its timestamp, so a ring without an announcement contains all its events before the
//! barrier, and a ring with one can only add timestamps from its last one on. The frontier is the
//! smallest of these bounds.

use crate::heap::thread_number::ThreadNumber;
use crate::rings::batch::{Batch, Run, RunningTimestamp, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use wire::{Op, Record};

/// Maximum number of prefixes of an event; with more, the ring is corrupt.
const MAX_PREFIXES: usize = 4;
/// A timestamp that is later than the current time by more than this is wrong and is replaced by
/// the current time. The clocks of two CPUs differ by less.
pub(crate) const CLOCK_TOLERANCE: u64 = 1 << 22;

/// The records of one ring that were copied and not yet sent.
#[derive(Debug, Default)]
pub struct RecordQueue {
    records: Vec<Record>,
    start: usize,
    running: RunningTimestamp,
    /// The largest timestamp sent, so that the order of a queue is also that of its timestamps.
    highest: u64,
    /// Timestamp of the next complete event.
    next: Option<u64>,
    is_corrupt: bool,
    /// Number of events sent, and of the dropped events that the sent gap records report.
    sent: (u64, u64),
}

impl RecordQueue {
    /// Returns the buffer for copied records. Call [`RecordQueue::find_next`] after adding some.
    pub fn records(&mut self) -> &mut Vec<Record> {
        if self.start > 0 {
            self.records.drain(..self.start);
            self.start = 0;
        }
        &mut self.records
    }

    pub fn waiting(&self) -> usize {
        self.records.len() - self.start
    }

    /// Returns whether a record was invalid. No record after it is sent.
    pub fn is_corrupt(&self) -> bool {
        self.is_corrupt
    }

    /// Removes the waiting records.
    pub fn close(&mut self) {
        self.records.clear();
        (self.start, self.next) = (0, None);
    }

    /// Sets the running timestamp, and the counts of events sent and of dropped events reported.
    pub fn resume(&mut self, timestamp: u64, sent: (u64, u64)) {
        (self.running, self.sent) = (RunningTimestamp { timestamp }, sent);
    }

    /// Returns the timestamp after the last record sent.
    pub fn timestamp(&self) -> u64 {
        self.running.timestamp
    }

    /// Returns the number of events sent, and of the dropped events that the sent gap records
    /// report.
    pub fn sent(&self) -> (u64, u64) {
        self.sent
    }

    /// Prepares the queue for a new owner of the ring, whose timestamps start from zero.
    pub fn restart(&mut self) {
        self.close();
        *self = RecordQueue { records: std::mem::take(&mut self.records), ..RecordQueue::default() };
    }

    /// Returns the smallest timestamp that a future record can have: the last one in the queue.
    pub fn last(&self, now: u64) -> u64 {
        let mut running = self.running;
        let mut last = self.highest;
        for record in &self.records[self.start..] {
            if running.step(*record) == Step::Whole && running.timestamp <= now.saturating_add(CLOCK_TOLERANCE) {
                last = last.max(running.timestamp);
            }
        }
        last
    }

    /// Finds the next complete event. No valid timestamp is later than `now` by more than
    /// [`CLOCK_TOLERANCE`].
    #[inline(always)]
    pub fn find_next(&mut self, now: u64) {
        if self.next.is_some() {
            return;
        }
        let mut running = self.running;
        for (ahead, record) in self.records[self.start..].iter().enumerate() {
            match running.step(*record) {
                Step::Whole => {
                    let timestamp =
                        if running.timestamp > now.saturating_add(CLOCK_TOLERANCE) { now } else { running.timestamp };
                    self.next = Some(timestamp.max(self.highest));
                    return;
                }
                Step::Prefix if ahead < MAX_PREFIXES => {}
                _ => {
                    self.is_corrupt = true;
                    self.records.truncate(self.start);
                    return;
                }
            }
        }
    }

    /// Returns the timestamp of the next complete event, if that is not after `limit`.
    #[inline(always)]
    fn next_up_to(&self, limit: u64) -> Option<u64> {
        self.next.filter(|timestamp| *timestamp <= limit)
    }

    /// Sends all events up to `limit`, and finds the event after them.
    fn send(&mut self, limit: u64, now: u64, thread: ThreadNumber, batch: &mut Batch) {
        let (from, timestamp) = (self.start, self.running.timestamp);
        let (mut running, mut highest, mut prefixes) = (self.running, self.highest, 0);
        let (mut index, latest_valid) = (from, now.saturating_add(CLOCK_TOLERANCE));
        self.next = None;
        while let Some(record) = self.records.get(index) {
            index += 1;
            match running.step(*record) {
                Step::Whole => {
                    let next = if running.timestamp > latest_valid { now } else { running.timestamp }.max(highest);
                    if next > limit {
                        self.next = Some(next);
                        break;
                    }
                    (highest, self.running, self.start, prefixes) = (next, running, index, 0);
                }
                Step::Prefix if prefixes < MAX_PREFIXES => prefixes += 1,
                _ => {
                    self.is_corrupt = true;
                    self.records.truncate(self.start);
                    break;
                }
            }
        }
        self.highest = highest;
        let records = (self.start - from) as u32;
        if records == 0 {
            return;
        }
        let sent = &self.records[from..self.start];
        self.sent.0 += sent.iter().filter(|record| record.op().is_event()).count() as u64;
        for gap in sent.iter().filter(|record| record.op() == Op::DROPPED) {
            self.sent.1 = self.sent.1.wrapping_add(gap.body);
        }
        batch.records.extend_from_slice(sent);
        match batch.runs.last_mut() {
            // The digest continues the running timestamp within a run, so adjacent runs of one
            // thread are one run.
            Some(last) if last.thread == thread => last.records += records,
            _ => batch.runs.push(Run { thread, records, timestamp }),
        }
    }
}

/// Moves all events up to `frontier` from the queues to the batch, in order. `queues` contains the
/// queues with their threads, by slot; `now` is as in [`RecordQueue::find_next`]. Calls
/// `keep_alive` repeatedly while there is much to do.
pub fn merge(
    queues: &mut [(ThreadNumber, &mut RecordQueue)],
    frontier: u64,
    now: u64,
    batch: &mut Batch,
    keep_alive: &dyn Fn(),
) {
    /// Number of records between two calls.
    const CALL_INTERVAL: usize = 1 << 15;
    let mut due = batch.records.len() + CALL_INTERVAL;
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(queues.len());
    for (index, (_, queue)) in queues.iter_mut().enumerate() {
        queue.find_next(now);
        heap.extend(queue.next_up_to(frontier).map(|timestamp| Reverse((timestamp, index))));
    }
    while let Some(Reverse((_, index))) = heap.pop() {
        // This queue continues until an event of another one precedes its next.
        let limit = match heap.peek() {
            Some(Reverse((timestamp, other))) if index < *other => *timestamp,
            Some(Reverse((timestamp, _))) => timestamp.saturating_sub(1),
            None => u64::MAX,
        };
        let (thread, queue) = &mut queues[index];
        // Its first event is the earliest of all, so it is sent in any case: a tie cannot stop the
        // merge.
        let first = queue.next.unwrap_or(0);
        queue.send(limit.max(first).min(frontier), now, *thread, batch);
        heap.extend(queue.next_up_to(frontier).map(|timestamp| Reverse((timestamp, index))));
        if batch.records.len() >= due {
            due = batch.records.len() + CALL_INTERVAL;
            keep_alive();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Event;

    fn event(address: u64, delta: u64) -> Record {
        Event { op: Op::MALLOC, stack: 0, address, size: 1 }.compact(delta)
    }

    /// Returns (timestamp, thread, address) in order, as the digest sees them.
    fn read(batch: &Batch) -> Vec<(u64, ThreadNumber, u64)> {
        let (mut out, mut records) = (Vec::new(), batch.records.iter());
        for run in &batch.runs {
            let mut running = RunningTimestamp { timestamp: run.timestamp };
            for record in records.by_ref().take(run.records as usize) {
                if running.step(*record) == Step::Whole {
                    out.push((running.timestamp, run.thread, record.address()));
                }
            }
        }
        out
    }

    #[test]
    fn merge_equals_a_sorted_vector_in_passes_of_any_size() {
        let mut state = 7u64;
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % limit
        };
        for round in 0..60 {
            let threads = 1 + round % 7;
            let mut rings: Vec<Vec<(u64, Vec<Record>)>> = Vec::new();
            let mut all = Vec::new();
            for thread in 0..threads {
                let (mut timestamp, mut ring) = (0u64, Vec::new());
                for number in 0..below(300) {
                    let delta = if below(3) == 0 { 0 } else { below(50) };
                    let address = u64::from(thread) << 32 | (number + 1) << 4;
                    timestamp += delta;
                    let records = if below(4) == 0 {
                        vec![Record::timestamp(timestamp), event(address, 0)]
                    } else {
                        vec![event(address, delta)]
                    };
                    all.push((timestamp, thread, number, address));
                    ring.push((timestamp, records));
                }
                rings.push(ring);
            }
            all.sort_unstable();
            let mut queues: Vec<RecordQueue> = (0..threads).map(|_| RecordQueue::default()).collect();
            let (mut batch, mut frontier) = (Batch::default(), 0);
            while queues.iter().any(|queue| queue.waiting() > 0) || rings.iter().any(|ring| !ring.is_empty()) {
                frontier += below(400);
                for (queue, ring) in queues.iter_mut().zip(&mut rings) {
                    // All records up to the frontier, and some after it.
                    let ready =
                        ring.iter().take_while(|(timestamp, _)| *timestamp <= frontier).count() + below(5) as usize;
                    for (_, records) in ring.drain(..ready.min(ring.len())) {
                        queue.records().extend(records);
                    }
                }
                let mut named: Vec<_> =
                    queues.iter_mut().enumerate().map(|(n, queue)| (ThreadNumber(n as u32), queue)).collect();
                merge(&mut named, frontier, u64::MAX, &mut batch, &|| ());
            }
            let expected: Vec<_> = all
                .iter()
                .map(|(timestamp, thread, _, address)| (*timestamp, ThreadNumber(*thread), *address))
                .collect();
            assert_eq!(read(&batch), expected);
        }
    }

    #[test]
    fn incomplete_event_waits_and_invalid_record_closes_the_queue() {
        let (mut queue, mut batch) = (RecordQueue::default(), Batch::default());
        queue.records().extend([event(16, 5), Record::timestamp(9)]);
        merge(&mut [(ThreadNumber(1), &mut queue)], 100, 100, &mut batch, &|| ());
        assert_eq!((batch.records.len(), queue.waiting()), (1, 1));
        queue.records().extend([event(32, 0), Record::default(), event(48, 0)]);
        merge(&mut [(ThreadNumber(1), &mut queue)], 100, 100, &mut batch, &|| ());
        assert_eq!(read(&batch), [(5, ThreadNumber(1), 16), (9, ThreadNumber(1), 32)]);
        assert!(queue.is_corrupt() && queue.waiting() == 0);
    }

    #[test]
    fn timestamp_from_the_future_delays_nothing() {
        let (mut queue, mut batch) = (RecordQueue::default(), Batch::default());
        queue.records().extend([Record::timestamp(u64::MAX), event(16, 0), event(32, 1)]);
        merge(&mut [(ThreadNumber(1), &mut queue)], 1000, 1000, &mut batch, &|| ());
        assert_eq!(batch.records.len(), 3);
    }

    #[test]
    fn too_many_prefixes_close_the_queue() {
        let mut queue = RecordQueue::default();
        queue.records().extend([Record::timestamp(1); 9]);
        queue.find_next(1);
        assert!(queue.is_corrupt());
    }
}
