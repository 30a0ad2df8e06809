//! The thread slots of one session as the drain sees them: who owns which, what waits in their
//! rings, when an owner is gone.

use crate::batch::{Batch, Stamps};
use crate::heart::Heart;
use crate::merge::{self, Lane};
use crate::sys::{self, Mapping};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use wire::SlotControl;
use wire::area::SLOT_FREE;
use wire::ring::Reader;

/// Most records that one look takes out of a ring: half a MiB, so that what the next stage reads is
/// still in a cache.
const MOST: u64 = 1 << 15;
/// Rings that can be that full in one pass; with more of them each gives its share, but [`LEAST`]
/// at least.
const FULL_RINGS: u64 = 4;
const LEAST: u64 = 1 << 10;
/// Records of a ring that many threads made small.
const SMALL: u64 = 1 << 13;
/// A writer that announced a record and does not publish it is stopped or was killed; so long it
/// may hold the others up.
const PATIENCE: Duration = Duration::from_secs(1);
/// And only so long when this many records wait for it.
const BACKLOG: usize = 1 << 20;
const SHORT_PATIENCE: Duration = Duration::from_millis(50);

/// Empty rings that are looked at between two looks at a clock.
const LOOKS: usize = 256;

/// One slot.
#[derive(Debug)]
struct Slot {
    reader: Reader,
    lane: Lane,
    /// Thread number of the owner; 0 while nobody is known to own it.
    thread: u32,
    tid: u32,
    /// A cut at which nothing was announced: all stamps to come are later.
    clean: u64,
    /// Since when the same announced record is waited for, and where the ring stood.
    pending: Option<(Instant, u64)>,
    /// Whether anything came since its owner was last looked for.
    news: bool,
    /// Whether its name was read a second time (threads name themselves after they started).
    named: bool,
    broken: bool,
    /// The owner's running stamp behind the last copied record.
    stamps: Stamps,
    /// Dropped events that the gap records read so far report.
    reported: u64,
    /// The owner's counts that belong to the recorder before this one: emitted, lost, sampled out.
    before: (u64, u64, u64),
}

/// Something that the digest must know of, in order with the records.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// A new owner: thread number, tid.
    Thread(u32, u32),
    /// An owner is gone, all its records were passed on: thread number, emitted, lost, sampled out.
    Ended(u32, (u64, u64, u64)),
    /// A ring makes no sense and is no longer read: thread number, why.
    Broken(u32, &'static str),
}

/// The slots of one session.
#[derive(Debug)]
pub struct Slots {
    mapping: Arc<Mapping>,
    slots: Vec<Slot>,
    /// The slot that a thread id was last seen in.
    owned: FxHashMap<u32, usize>,
    threads: u32,
    /// The last cut.
    cut: u64,
    /// What the last pass passed on: everything stamped up to here.
    frontier: u64,
    backlog: usize,
    /// Most records that one look takes out of a ring in this pass.
    most: u64,
    news: Vec<News>,
    /// Whether another recorder had the area before.
    resumed: bool,
    /// Events without a slot that were counted before.
    homeless: u64,
}

/// What a pass found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Records copied out of the rings.
    pub records: u64,
    /// The fullest ring was this full, in 256ths.
    pub fullest: u64,
    /// Whether a ring holds more than was taken.
    pub more: bool,
}

impl Slots {
    /// The slots of a new area, or of one that another recorder had before.
    pub fn new(mapping: Arc<Mapping>, start: u64, resumed: bool) -> Slots {
        let homeless = if resumed { mapping.header().dropped_without_slot.load(Relaxed) } else { 0 };
        let (slots, owned, news) = Default::default();
        let (frontier, backlog, most) = (0, 0, MOST);
        Slots { mapping, slots, owned, threads: 0, cut: start, frontier, backlog, most, news, resumed, homeless }
    }

    /// The owner's counts of events that the last recorder has read or reported as dropped, and
    /// those reported alone. What waits in the ring, and drops that no gap record has reported yet,
    /// are this recorder's. The owner runs meanwhile: it counts an event right before it publishes
    /// it, so the words are read until they stand still for a moment.
    fn counted_before(control: &SlotControl, ring: wire::ring::Ring) -> ((u64, u64, u64), u64) {
        let read = || {
            let producer = &control.producer.0;
            (producer.head.load(Acquire), producer.emitted.load(Acquire), producer.dropped.load(Acquire))
        };
        let mut words = read();
        for attempt in 0..1000 {
            // A thread that drops all its events never stands still: for it two equal looks in a
            // row will do.
            for _ in 0..if attempt < 100 { 64 } else { 0 } {
                std::hint::spin_loop();
            }
            let again = read();
            if again == words {
                break;
            }
            words = again;
        }
        let (head, emitted, lost) = words;
        let tail = control.consumer.0.tail.load(Relaxed);
        let (mut waiting, mut gaps) = (0u64, 0u64);
        if head >= tail && head - tail <= ring.capacity() {
            Reader::new(ring, tail).copy(head - tail, |run| {
                waiting += run.iter().filter(|record| record.op().is_event()).count() as u64;
                let marks = run.iter().filter(|record| record.op() == wire::Op::DROPPED);
                gaps = marks.fold(gaps, |sum, record| sum.saturating_add(record.body));
            });
        }
        // An area of a recorder that did not note it: all drops but those in the ring count as
        // reported.
        let reported = control.consumer.0.reported().unwrap_or_else(|| lost.saturating_sub(gaps)).min(lost);
        let sampled_out = control.producer.0.sampled_out.load(Relaxed);
        let own = waiting.saturating_add(lost - reported);
        ((emitted.saturating_sub(own).saturating_add(sampled_out), reported, sampled_out), reported)
    }

    /// Everything stamped up to here was passed on.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Threads seen so far.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Whether there are enough threads that some have small rings.
    pub fn has_small_rings(&self) -> bool {
        self.slots.last().is_some_and(|slot| slot.reader.capacity() < SMALL)
    }

    /// What came up since the last call.
    pub fn news(&mut self) -> std::vec::Drain<'_, News> {
        self.news.drain(..)
    }

    /// Copies what the rings hold and passes on what is certain. `cut` was read from the clock
    /// before a grace, `now` after it. The heart goes on beating: there may be many rings.
    pub fn pass(&mut self, cut: u64, now: u64, batch: &mut Batch, heart: &Heart) -> Found {
        let mut found = Found::default();
        let mapping = Arc::clone(&self.mapping);
        let used = mapping.slots_used();
        for index in self.slots.len() as u32..used {
            let (Some(ring), Some(control)) = (mapping.ring(index), mapping.slot(index)) else { break };
            heart.keep_beating();
            let (before, reported) =
                if self.resumed { Slots::counted_before(control, ring) } else { Default::default() };
            let stamps = Stamps { stamp: if self.resumed { control.consumer.0.timestamp() } else { 0 } };
            let reader = Reader::new(ring, control.consumer.0.tail.load(Relaxed));
            self.slots.push(Slot {
                stamps,
                reported,
                before,
                reader,
                lane: Lane::default(),
                thread: 0,
                tid: 0,
                clean: self.cut,
                pending: None,
                news: false,
                named: false,
                broken: false,
            });
        }
        self.most = (MOST * FULL_RINGS / self.slots.len().max(1) as u64).clamp(LEAST, MOST);
        let mut frontier = cut;
        for index in 0..self.slots.len() {
            let before = found.records;
            if let Some(control) = mapping.slot(index as u32) {
                frontier = frontier.min(self.look(index, control, cut, now, &mut found));
            }
            if found.records > before || index % LOOKS == 0 {
                heart.keep_beating();
            }
        }
        self.cut = cut;
        self.frontier = self.frontier.max(frontier);
        self.merge(self.frontier, now, batch, heart);
        found
    }

    /// One ring: copies what is published. Gives the least stamp that may still come from it.
    fn look(&mut self, index: usize, control: &SlotControl, cut: u64, now: u64, found: &mut Found) -> u64 {
        let slot = &mut self.slots[index];
        if slot.broken {
            // Nobody is to wait for room in a ring that nobody reads.
            control.consumer.0.tail.store(control.producer.0.head.load(Acquire), Release);
            return u64::MAX;
        }
        let poll = match slot.reader.poll(control) {
            Ok(poll) => poll,
            Err(broken) => {
                let why = match broken {
                    wire::ring::RingError::HeadDecreased => "its position went back",
                    wire::ring::RingError::HeadTooFar => "its position is out of reach",
                };
                self.close(index, why);
                return u64::MAX;
            }
        };
        if (poll.ready > 0 || poll.pending) && slot.thread == 0 {
            self.adopt(index, control);
        }
        let slot = &mut self.slots[index];
        if poll.ready > 0 {
            let count = poll.ready.min(self.most);
            let (records, stamps, reported) = (slot.lane.records(), &mut slot.stamps, &mut slot.reported);
            slot.reader.copy(count, |run| {
                records.extend_from_slice(run);
                for record in run {
                    stamps.step(*record);
                    if record.op() == wire::Op::DROPPED {
                        *reported = reported.saturating_add(record.body);
                    }
                }
            });
            control.consumer.0.mark(slot.reader.tail(), slot.stamps.stamp, slot.reported);
            if slot.reader.release(control) {
                sys::wake(&control.consumer.0.tail);
            }
            slot.news = true;
            found.records += count;
            found.fullest = found.fullest.max(poll.ready * 256 / slot.reader.capacity());
            found.more |= count < poll.ready;
        }
        if poll.ready > self.most {
            // More lies there, stamped before the cut for all we know.
            return slot.lane.last(now).max(slot.clean);
        }
        if !poll.pending {
            (slot.clean, slot.pending) = (cut, None);
            return u64::MAX;
        }
        slot.news = true;
        let tail = slot.reader.tail();
        let (since, _) = *slot.pending.get_or_insert_with(|| (Instant::now(), tail));
        if slot.pending.is_some_and(|(_, stood)| stood != tail) {
            slot.pending = Some((Instant::now(), tail));
        } else {
            let patience = if self.backlog > BACKLOG { SHORT_PATIENCE } else { PATIENCE };
            if since.elapsed() > patience {
                return u64::MAX;
            }
        }
        slot.lane.last(now).max(slot.clean)
    }

    fn adopt(&mut self, index: usize, control: &SlotControl) {
        let tid = control.owner.0.tid.load(Acquire);
        // A thread id that comes again: its former owner is gone, whatever the process table said
        // when it was last read.
        if tid != 0
            && let Some(old) = self.owned.insert(tid, index)
            && self.slots[old].thread != 0
        {
            self.give_back(old);
        }
        self.threads += 1;
        let slot = &mut self.slots[index];
        slot.lane.restart();
        slot.lane.resume(slot.stamps.stamp);
        (slot.thread, slot.tid, slot.news, slot.named) = (self.threads, tid, true, false);
        self.news.push(News::Thread(self.threads, tid));
    }

    fn close(&mut self, index: usize, why: &'static str) {
        let slot = &mut self.slots[index];
        slot.broken = true;
        slot.lane.close();
        self.news.push(News::Broken(slot.thread, why));
    }

    /// Passes on what is stamped up to the frontier.
    fn merge(&mut self, frontier: u64, now: u64, batch: &mut Batch, heart: &Heart) {
        batch.limit = frontier.min(now);
        batch.many_threads = self.threads > 1;
        let mut lanes: Vec<(u32, &mut Lane)> = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.lane.waiting() > 0) {
            lanes.push((slot.thread, &mut slot.lane));
        }
        merge::merge(&mut lanes, frontier, now, batch, &|| heart.keep_beating());
        self.backlog = lanes.iter().map(|(_, lane)| lane.waiting()).sum();
        for index in 0..self.slots.len() {
            if self.slots[index].lane.is_broken() && !self.slots[index].broken {
                self.close(index, "it holds a record that does not exist");
            }
        }
    }

    /// The last pass: the process is gone, or is not listened to any more. Everything published is
    /// passed on.
    pub fn finish(&mut self, cut: u64, now: u64, batch: &mut Batch, heart: &Heart) {
        while self.pass(cut, now, batch, heart).more {}
        self.merge(u64::MAX, now, batch, heart);
        let mapping = Arc::clone(&self.mapping);
        for index in 0..mapping.slots_used() {
            let counted = mapping.slot(index).is_some_and(|control| control.producer.0.emitted.load(Acquire) > 0);
            if counted
                && self.slots.get(index as usize).is_some_and(|slot| slot.thread == 0)
                && let Some(control) = mapping.slot(index)
            {
                self.adopt(index as usize, control);
            }
        }
    }

    fn words(&self, index: usize) -> (u64, u64, u64) {
        let words = |control: &SlotControl| {
            let producer = &control.producer.0;
            let (emitted, lost) = (producer.emitted.load(Acquire), producer.dropped.load(Relaxed));
            let (sampled_out, nested) = (producer.sampled_out.load(Relaxed), producer.deferred_dropped.load(Relaxed));
            (emitted.saturating_add(sampled_out).saturating_add(nested), lost.saturating_add(nested), sampled_out)
        };
        let (emitted, lost, sampled_out) = self.mapping.slot(index as u32).map_or((0, 0, 0), words);
        let before = self.slots.get(index).map_or((0, 0, 0), |slot| slot.before);
        (emitted.saturating_sub(before.0), lost.saturating_sub(before.1), sampled_out.saturating_sub(before.2))
    }

    /// The counts of all owners by thread number; number 0 stands for events that found no slot.
    pub fn counts(&self) -> Vec<(u32, (u64, u64, u64))> {
        let homeless = self.mapping.header().dropped_without_slot.load(Relaxed).saturating_sub(self.homeless);
        let owned = self.slots.iter().enumerate().filter(|(_, slot)| slot.thread != 0);
        let counts = owned.map(|(index, slot)| (slot.thread, self.words(index)));
        std::iter::once((0, (homeless, homeless, 0))).chain(counts).collect()
    }

    /// Slots whose owner may be gone: nothing came from them since this was last asked. Gives their
    /// thread ids.
    pub fn quiet(&mut self) -> Vec<u32> {
        let mut quiet = Vec::new();
        for slot in &mut self.slots {
            if slot.thread != 0 && slot.tid != 0 && !slot.news && slot.lane.waiting() == 0 {
                quiet.push(slot.tid);
            }
            slot.news = false;
        }
        quiet
    }

    /// Owners whose name should be read once more: thread number, tid.
    pub fn unnamed(&mut self) -> Vec<(u32, u32)> {
        let fresh = self.slots.iter_mut().filter(|slot| slot.thread != 0 && !slot.named);
        fresh
            .map(|slot| {
                slot.named = true;
                (slot.thread, slot.tid)
            })
            .collect()
    }

    /// These threads do not exist any more: their slots, once empty, are given back.
    pub fn gone(&mut self, tids: &FxHashSet<u32>) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.thread != 0 && tids.contains(&slot.tid) {
                self.give_back(index);
            }
        }
    }

    /// Gives a slot whose owner is gone back to the process. Left alone while its ring holds
    /// anything.
    fn give_back(&mut self, index: usize) {
        let mapping = Arc::clone(&self.mapping);
        let Some(control) = mapping.slot(index as u32) else { return };
        let counts = self.words(index);
        let slot = &mut self.slots[index];
        let head = control.producer.0.head.load(Acquire);
        if (head != slot.reader.tail() || slot.lane.waiting() > 0) && !slot.broken {
            return;
        }
        self.news.push(News::Ended(slot.thread, counts));
        if self.owned.get(&slot.tid) == Some(&index) {
            self.owned.remove(&slot.tid);
        }
        (slot.thread, slot.tid, slot.pending, slot.broken) = (0, 0, None, false);
        (slot.stamps, slot.reported, slot.before) = Default::default();
        slot.lane.restart();
        if let Some(ring) = mapping.ring(index as u32) {
            slot.reader = Reader::new(ring, head);
        }
        control.consumer.0.mark(head, 0, 0);
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
