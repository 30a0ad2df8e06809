//! The thread slots of one session in the drain: their owners, the records that wait in their
//! rings, and the ends of their owners.

use crate::heap::thread_number::ThreadNumber;
use crate::os::sys::Mapping;
use crate::rings::batch::{Batch, RunningTimestamp};
use crate::rings::counts::{EventCounts, Former};
use crate::rings::heartbeat::Heart;
use crate::rings::merge::{self, RecordQueue};
use crate::rings::ring_space;
use formats::tape::journal::Position;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use wire::SlotControl;
use wire::area::{OVERFLOW_DROP, SLOT_FREE};
use wire::ring::Reader;

/// Maximum number of records that are read from a ring at once: half a MiB, so that they are still
/// in a cache when the next stage reads them.
const MAX_RECORDS: u64 = 1 << 15;
/// Number of rings that may be read up to this limit in one pass. With more rings the limit of each
/// is smaller, but at least [`MIN_RECORDS`].
const FULL_RINGS: u64 = 4;
const MIN_RECORDS: u64 = 1 << 10;
/// Capacity below which a ring is small because there are many threads.
const SMALL_RING: u64 = 1 << 13;
/// How long a writer that announced a record and does not publish it, because it is stopped or was
/// killed, may delay others.
const PENDING_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of waiting records from which on that delay is shorter.
const BACKLOG: usize = 1 << 20;
/// The shorter delay with many waiting records.
const SHORT_PENDING_TIMEOUT: Duration = Duration::from_millis(50);

/// Number of empty rings that are read between two checks of the clock.
const EMPTY_RINGS_PER_BEAT: usize = 256;

#[derive(Debug)]
struct Slot {
    reader: Reader,
    queue: RecordQueue,
    /// Thread number of the owner; 0 while the slot has no known owner.
    thread: ThreadNumber,
    tid: u32,
    /// Number of earlier owners of the slot.
    owner: u32,
    /// A barrier at which no record was announced: all future timestamps are later.
    quiet_until: u64,
    /// Since when an announced record is being waited for, and the position of the ring.
    pending: Option<(Instant, u64)>,
    /// Whether records arrived since the last check whether the owner exists.
    is_active: bool,
    /// Whether the name was read a second time (threads set their names after they start).
    is_name_final: bool,
    is_corrupt: bool,
    /// The owner's running timestamp after the last copied record.
    running: RunningTimestamp,
    /// Number of dropped events that were reported by the gap records read so far.
    reported: u64,
    /// Counts of the owner that belong to the previous recorder.
    before: EventCounts,
    /// Number of events that the previous recorder had read and not stored, which are lost.
    unkept: u64,
    /// Position at the end of the last batch with records of this ring, and number of the batch.
    sent: (u64, u64),
    /// Whether the owner has ended and the digest has not processed all its records.
    leaving: bool,
}

/// An event of a thread that the digest must receive in order with the records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ThreadEvent {
    /// A slot has a new owner: thread number, tid.
    Started(ThreadNumber, u32),
    /// An owner has ended and all its records were sent: thread number, counts.
    Ended(ThreadNumber, EventCounts),
    /// A ring is corrupt and is not read any more: thread number, reason.
    Corrupt(ThreadNumber, &'static str),
}

/// The thread slots of one session.
#[derive(Debug)]
pub(crate) struct Slots {
    mapping: Arc<Mapping>,
    slots: Vec<Slot>,
    /// Slot in which each thread id was last seen.
    owned: FxHashMap<u32, usize>,
    threads: u32,
    /// The barrier of the last pass.
    barrier: u64,
    /// Time up to which all events were sent by the last pass.
    frontier: u64,
    backlog: usize,
    /// Maximum number of records that are read from a ring in this pass.
    max_records: u64,
    events: Vec<ThreadEvent>,
    /// Whether the threads stand still: none publishes what it has announced.
    is_still: bool,
    /// Whether another recorder used the area before.
    resumed: bool,
    /// Number of events without a slot that the previous recorder counted.
    unassigned: u64,
    /// Number of batches with positions so far.
    batches: u64,
}

/// The result of a pass over all rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassResult {
    /// Number of records that were copied from the rings.
    pub records: u64,
    /// Fill level of the fullest ring, in 256ths.
    pub fullest: u64,
    /// Whether a ring contains more records than were read.
    pub more: bool,
}

impl Slots {
    /// Creates the slots of a new area, or of one that another recorder used before.
    pub(crate) fn new(mapping: Arc<Mapping>, start: u64, resumed: bool) -> Slots {
        let unassigned = if resumed { mapping.header().dropped_without_slot.load(Relaxed) } else { 0 };
        Slots {
            mapping,
            slots: Vec::new(),
            owned: FxHashMap::default(),
            threads: 0,
            barrier: start,
            frontier: 0,
            backlog: 0,
            max_records: MAX_RECORDS,
            events: Vec::new(),
            is_still: false,
            resumed,
            unassigned,
            batches: 0,
        }
    }

    /// Sets whether the threads stand still. What one of them has announced then delays no other: it
    /// publishes an event before another thread can see what the event does, so nothing that depends
    /// on it is published yet.
    pub(crate) fn set_still(&mut self, is_still: bool) {
        self.is_still = is_still;
    }

    /// Returns the time up to which all events were sent.
    pub(crate) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Returns whether a slot can be returned to the process as soon as its records are processed.
    pub(crate) fn has_leaving(&self) -> bool {
        self.slots.iter().any(|slot| slot.leaving)
    }

    /// Returns whether there are enough threads that some have small rings.
    pub(crate) fn has_small_rings(&self) -> bool {
        self.slots.last().is_some_and(|slot| slot.reader.capacity() < SMALL_RING)
    }

    /// Removes and returns the thread events since the last call.
    pub(crate) fn drain_events(&mut self) -> std::vec::Drain<'_, ThreadEvent> {
        self.events.drain(..)
    }

    /// Adds the slots that threads have claimed since the last look.
    fn see_new(&mut self, heart: &Heart) {
        let mapping = Arc::clone(&self.mapping);
        let used = mapping.slots_used();
        for index in self.slots.len() as u32..used {
            let (Some(ring), Some(control)) = (mapping.ring(index), mapping.slot(index)) else { break };
            heart.keep_beating();
            let former = if self.resumed { Former::of(control, ring) } else { Former::default() };
            let Former { emitted, sampled_out, reported, unkept } = former;
            let running = RunningTimestamp { timestamp: if self.resumed { control.consumer.0.timestamp() } else { 0 } };
            let reader = Reader::new(ring, control.consumer.0.tail.load(Relaxed));
            self.slots.push(Slot {
                unkept,
                owner: 0,
                sent: (reader.tail(), 0),
                leaving: false,
                running,
                reported,
                before: EventCounts { emitted, lost: reported, sampled_out },
                reader,
                queue: RecordQueue::default(),
                thread: ThreadNumber::NONE,
                tid: 0,
                quiet_until: self.barrier,
                pending: None,
                is_active: false,
                is_name_final: false,
                is_corrupt: false,
            });
        }
    }

    /// Copies the records of the rings and sends those whose order is certain. `barrier` was read
    /// from the clock before a delay that makes all earlier stores visible, `now` after it. The
    /// heartbeat continues: there may be many rings.
    pub(crate) fn pass(&mut self, barrier: u64, now: u64, batch: &mut Batch, heart: &Heart) -> PassResult {
        let mut result = PassResult::default();
        let mapping = Arc::clone(&self.mapping);
        self.see_new(heart);
        self.max_records = (MAX_RECORDS * FULL_RINGS / self.slots.len().max(1) as u64).clamp(MIN_RECORDS, MAX_RECORDS);
        for index in 0..self.slots.len() {
            if self.slots[index].leaving {
                self.release_slot(index);
            }
        }
        let mut frontier = barrier;
        batch.floor = self.barrier;
        for index in 0..self.slots.len() {
            let before = result.records;
            if self.slots[index].queue.waiting() > 0 {
                // What waits here is older.
                batch.floor = 0;
            }
            let quiet_until = self.slots[index].quiet_until;
            if let Some(control) = mapping.slot(index as u32) {
                frontier = frontier.min(self.read_ring(index, control, barrier, now, &mut result));
            }
            if result.records > before {
                batch.floor = batch.floor.min(quiet_until);
            }
            if result.records > before || index % EMPTY_RINGS_PER_BEAT == 0 {
                heart.keep_beating();
            }
        }
        self.barrier = barrier;
        self.frontier = self.frontier.max(frontier);
        self.merge(self.frontier, now, batch, heart);
        result
    }

    /// Copies the published records of one ring. Returns the smallest timestamp that may still come
    /// from it.
    fn read_ring(
        &mut self,
        index: usize,
        control: &SlotControl,
        barrier: u64,
        now: u64,
        result: &mut PassResult,
    ) -> u64 {
        let slot = &mut self.slots[index];
        if slot.is_corrupt {
            // No thread must wait for space in a ring that is not read any more.
            control.consumer.0.tail.store(control.producer.0.head.load(Acquire), Release);
            return u64::MAX;
        }
        let poll = match slot.reader.poll(control) {
            Ok(poll) => poll,
            Err(error) => {
                let why = match error {
                    wire::ring::RingError::HeadDecreased => "its position went back",
                    wire::ring::RingError::HeadTooFar => "its position is out of reach",
                };
                self.close(index, why);
                return u64::MAX;
            }
        };
        if (poll.ready > 0 || poll.pending) && !slot.thread.is_some() {
            self.assign_owner(index, control);
        }
        let slot = &mut self.slots[index];
        if poll.ready > 0 {
            let count = poll.ready.min(self.max_records);
            let (records, running, reported) = (slot.queue.records(), &mut slot.running, &mut slot.reported);
            slot.reader.copy(count, |run| {
                records.extend_from_slice(run);
                for record in run {
                    running.step(*record);
                    if record.op() == wire::Op::DROPPED {
                        *reported = reported.saturating_add(record.body);
                    }
                }
            });
            let tail = slot.reader.tail();
            let unreleased = tail.saturating_sub(control.consumer.0.tail.load(Relaxed));
            let keeps_events = self.mapping.releases().keeps_events();
            let is_dropping = self.mapping.header().overflow.load(Relaxed) == OVERFLOW_DROP;
            if !keeps_events || (is_dropping && unreleased > slot.reader.capacity() / 2) {
                let (timestamp, reported) = (slot.running.timestamp, slot.reported);
                let position = Position { slot: index as u32, tail, timestamp, reported, ..Position::default() };
                ring_space::early(&self.mapping, &position);
            }
            slot.is_active = true;
            result.records += count;
            result.fullest = result.fullest.max(poll.ready * 256 / slot.reader.capacity());
            result.more |= count < poll.ready;
        }
        if poll.ready > self.max_records {
            // The ring contains more records, perhaps from before the barrier.
            return slot.queue.last(now).max(slot.quiet_until);
        }
        if !poll.pending {
            (slot.quiet_until, slot.pending) = (barrier, None);
            return u64::MAX;
        }
        slot.is_active = true;
        if self.is_still {
            return u64::MAX;
        }
        let tail = slot.reader.tail();
        let (since, _) = *slot.pending.get_or_insert_with(|| (Instant::now(), tail));
        if slot.pending.is_some_and(|(_, stood)| stood != tail) {
            slot.pending = Some((Instant::now(), tail));
        } else {
            let timeout = if self.backlog > BACKLOG { SHORT_PENDING_TIMEOUT } else { PENDING_TIMEOUT };
            if since.elapsed() > timeout {
                return u64::MAX;
            }
        }
        slot.queue.last(now).max(slot.quiet_until)
    }

    fn assign_owner(&mut self, index: usize, control: &SlotControl) {
        let tid = control.owner.0.tid.load(Acquire);
        // A thread id that is used again: its former owner has ended, even if the last listing of
        // threads contained it.
        if tid != 0
            && let Some(old) = self.owned.insert(tid, index)
            && self.slots[old].thread.is_some()
        {
            self.release_slot(old);
        }
        self.threads += 1;
        let slot = &mut self.slots[index];
        slot.owner = control.owner.0.epoch.load(Relaxed);
        slot.queue.restart();
        let events = slot.before.emitted.saturating_sub(slot.before.sampled_out).saturating_add(slot.unkept);
        let events = events.saturating_sub(slot.reported);
        slot.queue.resume(slot.running.timestamp, (events, slot.reported.wrapping_sub(slot.unkept)));
        let (events, reported) = slot.queue.sent();
        if self.mapping.releases().keeps_events() {
            // No future event of the thread is stored yet.
            let _ = control.consumer.0.kept.compare_exchange(
                0,
                events.wrapping_add(reported).wrapping_add(1),
                Relaxed,
                Relaxed,
            );
        }
        if slot.unkept > 0 {
            slot.queue.records().push(wire::Record::dropped(slot.unkept));
        }
        (slot.thread, slot.tid, slot.is_active, slot.is_name_final) = (ThreadNumber(self.threads), tid, true, false);
        self.events.push(ThreadEvent::Started(ThreadNumber(self.threads), tid));
    }

    fn close(&mut self, index: usize, why: &'static str) {
        let slot = &mut self.slots[index];
        slot.is_corrupt = true;
        slot.queue.close();
        self.events.push(ThreadEvent::Corrupt(slot.thread, why));
    }

    /// Sends all events up to the frontier.
    fn merge(&mut self, frontier: u64, now: u64, batch: &mut Batch, heart: &Heart) {
        batch.limit = frontier.min(now);
        batch.many_threads = self.threads > 1;
        let mut queues: Vec<(ThreadNumber, &mut RecordQueue)> = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.queue.waiting() > 0) {
            queues.push((slot.thread, &mut slot.queue));
        }
        merge::merge(&mut queues, frontier, now, batch, &|| heart.keep_beating());
        self.backlog = queues.iter().map(|(_, queue)| queue.waiting()).sum();
        self.position(batch);
        for index in 0..self.slots.len() {
            if self.slots[index].queue.is_corrupt() && !self.slots[index].is_corrupt {
                self.close(index, "it holds a record that does not exist");
            }
        }
    }

    /// Adds to the batch the position up to which it contains the records of each ring, so that the
    /// digest releases that space.
    fn position(&mut self, batch: &mut Batch) {
        if !self.mapping.releases().keeps_events() {
            return;
        }
        let number = self.batches + 1;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let tail = slot.reader.tail().saturating_sub(slot.queue.waiting() as u64);
            if tail <= slot.sent.0 || !slot.thread.is_some() || slot.is_corrupt || slot.queue.is_corrupt() {
                continue;
            }
            let (events, reported) = slot.queue.sent();
            let (slot_number, timestamp) = (index as u32, slot.queue.timestamp());
            let counted = events.wrapping_add(reported);
            let owner = slot.owner;
            batch.positions.push(Position { slot: slot_number, owner, tail, timestamp, reported, counted });
            (slot.sent, self.batches) = ((tail, number), number);
        }
    }

    /// The last pass: the process has ended, or is not recorded any more. All published records are
    /// sent.
    pub(crate) fn finish(&mut self, barrier: u64, now: u64, batch: &mut Batch, heart: &Heart) {
        while self.pass(barrier, now, batch, heart).more {}
        self.merge(u64::MAX, now, batch, heart);
        self.assign_silent();
    }

    /// Gives numbers to threads that have counted events and published none: sampling has left all
    /// of them out.
    fn assign_silent(&mut self) {
        let mapping = Arc::clone(&self.mapping);
        for index in 0..mapping.slots_used() {
            let Some(control) = mapping.slot(index) else { continue };
            let producer = &control.producer.0;
            let counted = producer.emitted.load(Acquire) > 0 || producer.sampled_out.load(Relaxed) > 0;
            if counted && self.slots.get(index as usize).is_some_and(|slot| !slot.thread.is_some()) {
                self.assign_owner(index as usize, control);
            }
        }
    }

    fn counts_of(&self, index: usize) -> EventCounts {
        let read = |control: &SlotControl| {
            let producer = &control.producer.0;
            let (emitted, lost) = (producer.emitted.load(Acquire), producer.dropped.load(Relaxed));
            let (sampled_out, deferred_dropped) =
                (producer.sampled_out.load(Relaxed), producer.deferred_dropped.load(Relaxed));
            (
                emitted.saturating_add(sampled_out).saturating_add(deferred_dropped),
                lost.saturating_add(deferred_dropped),
                sampled_out,
            )
        };
        let (emitted, lost, sampled_out) = self.mapping.slot(index as u32).map_or((0, 0, 0), read);
        let before = self.slots.get(index).map_or(EventCounts::default(), |slot| slot.before);
        let unkept = self.slots.get(index).map_or(0, |slot| slot.unkept);
        let lost = lost.saturating_sub(before.lost).saturating_add(unkept);
        EventCounts {
            emitted: emitted.saturating_sub(before.emitted),
            lost,
            sampled_out: sampled_out.saturating_sub(before.sampled_out),
        }
    }

    /// Returns the counts of all owners by thread number. Number 0 is for events that found no free
    /// slot.
    pub(crate) fn counts(&self) -> Vec<(ThreadNumber, EventCounts)> {
        let unassigned = self.mapping.header().dropped_without_slot.load(Relaxed).saturating_sub(self.unassigned);
        let owned = self.slots.iter().enumerate().filter(|(_, slot)| slot.thread.is_some());
        let counts = owned.map(|(index, slot)| (slot.thread, self.counts_of(index)));
        std::iter::once((ThreadNumber::NONE, EventCounts { emitted: unassigned, lost: unassigned, sampled_out: 0 }))
            .chain(counts)
            .collect()
    }

    /// As [`Slots::counts`], with the threads that have published nothing, or that no pass has seen yet.
    pub(crate) fn all_counts(&mut self, heart: &Heart) -> Vec<(ThreadNumber, EventCounts)> {
        self.see_new(heart);
        self.assign_silent();
        self.counts()
    }

    /// Returns the ids of threads that may have ended: no record of them arrived since the last
    /// call, or all of them, also those that have published nothing.
    pub(crate) fn quiet(&mut self, all: bool) -> Vec<u32> {
        if all {
            self.assign_silent();
        }
        let mut quiet = Vec::new();
        for slot in &mut self.slots {
            if slot.thread.is_some() && slot.tid != 0 && (all || !slot.is_active) && slot.queue.waiting() == 0 {
                quiet.push(slot.tid);
            }
            slot.is_active = false;
        }
        quiet
    }

    /// Returns the owners whose name should be read again: thread number, tid.
    pub(crate) fn unnamed(&mut self) -> Vec<(ThreadNumber, u32)> {
        let unnamed = self.slots.iter_mut().filter(|slot| slot.thread.is_some() && !slot.is_name_final);
        unnamed
            .map(|slot| {
                slot.is_name_final = true;
                (slot.thread, slot.tid)
            })
            .collect()
    }

    /// Releases the slots of threads that have ended, once their rings are empty.
    pub(crate) fn gone(&mut self, tids: &FxHashSet<u32>) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.thread.is_some() && tids.contains(&slot.tid) {
                self.release_slot(index);
            }
        }
    }

    /// Returns a slot whose owner has ended to the process. Does nothing while its ring contains
    /// records.
    fn release_slot(&mut self, index: usize) {
        let mapping = Arc::clone(&self.mapping);
        let Some(control) = mapping.slot(index as u32) else { return };
        let counts = self.counts_of(index);
        let slot = &mut self.slots[index];
        let head = control.producer.0.head.load(Acquire);
        if (head != slot.reader.tail() || slot.queue.waiting() > 0) && !slot.is_corrupt {
            return;
        }
        // Later messages of the digest about the old owner's records must not be attributed to the
        // next owner.
        slot.leaving = slot.sent.1 > mapping.releases().done();
        if slot.leaving {
            return;
        }
        self.events.push(ThreadEvent::Ended(slot.thread, counts));
        if self.owned.get(&slot.tid) == Some(&index) {
            self.owned.remove(&slot.tid);
        }
        (slot.thread, slot.tid, slot.pending, slot.is_corrupt) = (ThreadNumber::NONE, 0, None, false);
        (slot.running, slot.reported, slot.before, slot.unkept) = Default::default();
        slot.sent = (head, 0);
        slot.queue.restart();
        if let Some(ring) = mapping.ring(index as u32) {
            slot.reader = Reader::new(ring, head);
        }
        control.consumer.0.mark(head, 0, 0);
        control.consumer.0.kept.store(0, Relaxed);
        control.consumer.0.tail.store(head, Release);
        let producer = &control.producer.0;
        [&producer.emitted, &producer.dropped, &producer.sampled_out, &producer.deferred_dropped]
            .iter()
            .for_each(|word| word.store(0, Relaxed));
        producer.reservation.store(head, Relaxed);
        control.owner.0.tid.store(0, Relaxed);
        control.owner.0.epoch.fetch_add(1, Relaxed);
        control.owner.0.state.store(SLOT_FREE, Release);
        mapping.header().slot_hint.fetch_min(index as u32, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::clock::Clock;
    use crate::rings::batch::InFlight;

    #[test]
    fn threads_that_no_pass_has_seen_are_counted() {
        let (mapping, _file) = Mapping::create(wire::Params::default()).expect("an area");
        let slot = mapping.slot(0).expect("a slot");
        slot.owner.0.tid.store(7, Release);
        slot.producer.0.emitted.store(2, Release);
        slot.producer.0.sampled_out.store(40, Release);
        mapping.header().slots_used.0.store(1, Release);
        let mut slots = Slots::new(Arc::new(mapping), 0, false);
        let counts = slots.all_counts(&Heart::new(Clock::choose(), InFlight::new(None)));
        let (_, of_thread) = counts.iter().find(|(thread, _)| thread.is_some()).expect("a thread");
        assert_eq!((of_thread.emitted, of_thread.sampled_out, of_thread.lost), (42, 40, 0));
    }

    /// A thread that stands still between the announcement of a record and the record delays the others,
    /// who may run on, until a timeout; but not once they stand still, too.
    #[test]
    fn stopped_writer_delays_nobody_who_stands_still() {
        let clock = Clock::choose();
        let (mapping, _file) = Mapping::create(wire::Params::default()).expect("an area");
        let start = clock.now();
        let event = |address| wire::Event { op: wire::Op::MALLOC, stack: 0, address, size: 1 }.compact(0);
        for (index, time) in [(0, 1), (1, 2)] {
            let (slot, ring) = (mapping.slot(index).expect("a slot"), mapping.ring(index).expect("a ring"));
            slot.owner.0.tid.store(7 + index, Release);
            ring.put(0, wire::Record::timestamp(start + time));
            ring.put(1, event(16 + 16 * u64::from(index)));
            slot.producer.0.reservation.store(if index == 0 { 3 } else { 2 }, Release);
            slot.producer.0.head.store(2, Release);
        }
        mapping.header().slots_used.0.store(2, Release);
        let mut slots = Slots::new(Arc::new(mapping), start, false);
        let heart = Heart::new(clock, InFlight::new(None));
        let mut events = |is_still| {
            slots.set_still(is_still);
            let mut batch = Batch::default();
            slots.pass(clock.now(), clock.now(), &mut batch, &heart);
            batch.records.iter().filter(|record| record.op() == wire::Op::MALLOC).count()
        };
        assert_eq!([false, true, false].map(&mut events), [1, 1, 0]);
    }
}
