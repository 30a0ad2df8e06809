//! Many rings -> one order. Each ring's records wait in a [`Lane`]; all that is stamped at or
//! before the frontier goes out, smallest stamp first, ties by slot, each lane's own order kept.
//!
//! Why that is the order in which things happened: a cut is read from the clock, then, after a
//! grace, every ring is looked at. A writer announces a record before it stamps it, so a ring
//! without announcement holds all that it stamped before the cut, and one with an announcement can
//! only add stamps from its last one on. The frontier is the least of these bounds.

use crate::batch::{Batch, Run, Stamps, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use wire::Record;

/// More prefixes than any event has: the ring is broken.
const MOST_PREFIXES: usize = 4;
/// A stamp so far behind the frontier of its pass that only a lie explains it counts as this much
/// before: ticks of a clock differ by less between processors.
pub const SLACK: u64 = 1 << 22;

/// The records of one ring that were copied and not yet passed on.
#[derive(Debug, Default)]
pub struct Lane {
    records: Vec<Record>,
    at: usize,
    stamps: Stamps,
    /// The largest stamp passed on, so that a lane's order is also its stamps' order.
    highest: u64,
    /// The next whole event: its stamp, the stamps behind it, its end.
    next: Option<(u64, Stamps, usize)>,
    broken: bool,
}

impl Lane {
    /// Where copied records go. Call [`Lane::look`] when done.
    pub fn records(&mut self) -> &mut Vec<Record> {
        if self.at > 0 {
            self.records.drain(..self.at);
            if let Some((_, _, end)) = &mut self.next {
                *end -= self.at;
            }
            self.at = 0;
        }
        &mut self.records
    }

    /// Records waiting.
    pub fn waiting(&self) -> usize {
        self.records.len() - self.at
    }

    /// Whether a record made no sense: nothing behind it is passed on.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Forgets what waits.
    pub fn close(&mut self) {
        self.records.clear();
        (self.at, self.next) = (0, None);
    }

    /// Stamps go on from here.
    pub fn resume(&mut self, stamp: u64) {
        self.stamps = Stamps { stamp };
    }

    /// A new owner of the ring counts its stamps from the start.
    pub fn restart(&mut self) {
        self.close();
        *self = Lane { records: std::mem::take(&mut self.records), ..Lane::default() };
    }

    /// The stamp that a record still to come has at least: the last one that waits here.
    pub fn last(&self, now: u64) -> u64 {
        let mut stamps = self.stamps;
        let mut last = self.highest;
        for record in &self.records[self.at..] {
            if stamps.step(*record) == Step::Whole && stamps.stamp <= now.saturating_add(SLACK) {
                last = last.max(stamps.stamp);
            }
        }
        last
    }

    /// Finds the next whole event. `now` is a tick of which no stamp can be ahead by more than
    /// [`SLACK`].
    #[inline(always)]
    pub fn look(&mut self, now: u64) {
        if self.next.is_some() {
            return;
        }
        let mut stamps = self.stamps;
        for (ahead, record) in self.records[self.at..].iter().enumerate() {
            match stamps.step(*record) {
                Step::Whole => {
                    let stamp = if stamps.stamp > now.saturating_add(SLACK) { now } else { stamps.stamp };
                    self.next = Some((stamp.max(self.highest), stamps, self.at + ahead + 1));
                    return;
                }
                Step::Prefix if ahead < MOST_PREFIXES => {}
                _ => {
                    self.broken = true;
                    self.records.truncate(self.at);
                    return;
                }
            }
        }
    }

    /// Passes everything stamped at or before `limit` on, and finds the event behind it.
    fn pass(&mut self, limit: u64, now: u64, thread: u32, batch: &mut Batch) {
        let (from, stamp) = (self.at, self.stamps.stamp);
        let (mut stamps, mut highest, mut prefixes) = (self.stamps, self.highest, 0);
        let (mut place, latest) = (from, now.saturating_add(SLACK));
        self.next = None;
        while let Some(record) = self.records.get(place) {
            place += 1;
            match stamps.step(*record) {
                Step::Whole => {
                    let next = if stamps.stamp > latest { now } else { stamps.stamp }.max(highest);
                    if next > limit {
                        self.next = Some((next, stamps, place));
                        break;
                    }
                    (highest, self.stamps, self.at, prefixes) = (next, stamps, place, 0);
                }
                Step::Prefix if prefixes < MOST_PREFIXES => prefixes += 1,
                _ => {
                    self.broken = true;
                    self.records.truncate(self.at);
                    break;
                }
            }
        }
        self.highest = highest;
        let records = (self.at - from) as u32;
        if records == 0 {
            return;
        }
        batch.records.extend_from_slice(&self.records[from..self.at]);
        match batch.runs.last_mut() {
            // The digest carries the stamp on within a run, so runs of one thread that touch are
            // one run.
            Some(last) if last.thread == thread => last.records += records,
            _ => batch.runs.push(Run { thread, records, stamp }),
        }
    }
}

/// Passes everything stamped at or before `frontier` from the lanes to the batch, in order. `lanes`
/// gives the lane of a slot and its thread. `now` as in [`Lane::look`]. Calls `at_work` again and
/// again while there is much to do.
pub fn merge(lanes: &mut [(u32, &mut Lane)], frontier: u64, now: u64, batch: &mut Batch, at_work: &dyn Fn()) {
    /// Records between two calls.
    const STRETCH: usize = 1 << 15;
    let mut due = batch.records.len() + STRETCH;
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(lanes.len());
    for (place, (_, lane)) in lanes.iter_mut().enumerate() {
        lane.look(now);
        heap.extend(lane.next.filter(|(stamp, _, _)| *stamp <= frontier).map(|(stamp, _, _)| Reverse((stamp, place))));
    }
    while let Some(Reverse((_, place))) = heap.pop() {
        // This lane goes on until another one's event comes before its next.
        let limit = match heap.peek() {
            Some(Reverse((stamp, other))) if place < *other => *stamp,
            Some(Reverse((stamp, _))) => stamp.saturating_sub(1),
            None => u64::MAX,
        };
        let (thread, lane) = &mut lanes[place];
        // Its own first event is the least of all, so it goes out in any case: a tie cannot stall.
        let first = lane.next.map_or(0, |(stamp, _, _)| stamp);
        lane.pass(limit.max(first).min(frontier), now, *thread, batch);
        heap.extend(lane.next.filter(|(stamp, _, _)| *stamp <= frontier).map(|(stamp, _, _)| Reverse((stamp, place))));
        if batch.records.len() >= due {
            due = batch.records.len() + STRETCH;
            at_work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Event, Op};

    fn event(address: u64, delta: u64) -> Record {
        Event { op: Op::MALLOC, stack: 0, address, size: 1 }.compact(delta)
    }

    /// Ordered (stamp, thread, address), as the digest would see them.
    fn read(batch: &Batch) -> Vec<(u64, u32, u64)> {
        let (mut out, mut records) = (Vec::new(), batch.records.iter());
        for run in &batch.runs {
            let mut stamps = Stamps { stamp: run.stamp };
            for record in records.by_ref().take(run.records as usize) {
                if stamps.step(*record) == Step::Whole {
                    out.push((stamps.stamp, run.thread, record.address()));
                }
            }
        }
        out
    }

    #[test]
    fn equals_a_sorted_vector_in_passes_of_any_size() {
        let mut state = 7u64;
        let mut roll = |sides: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % sides
        };
        for round in 0..60 {
            let threads = 1 + round % 7;
            let mut rings: Vec<Vec<(u64, Vec<Record>)>> = Vec::new();
            let mut all = Vec::new();
            for thread in 0..threads {
                let (mut stamp, mut ring) = (0u64, Vec::new());
                for number in 0..roll(300) {
                    let delta = if roll(3) == 0 { 0 } else { roll(50) };
                    let address = u64::from(thread) << 32 | (number + 1) << 4;
                    stamp += delta;
                    let records = if roll(4) == 0 {
                        vec![Record::timestamp(stamp), event(address, 0)]
                    } else {
                        vec![event(address, delta)]
                    };
                    all.push((stamp, thread, number, address));
                    ring.push((stamp, records));
                }
                rings.push(ring);
            }
            all.sort_unstable();
            let mut lanes: Vec<Lane> = (0..threads).map(|_| Lane::default()).collect();
            let (mut batch, mut frontier) = (Batch::default(), 0);
            while lanes.iter().any(|lane| lane.waiting() > 0) || rings.iter().any(|ring| !ring.is_empty()) {
                frontier += roll(400);
                for (lane, ring) in lanes.iter_mut().zip(&mut rings) {
                    // All up to the frontier, and some ahead of it.
                    let ready = ring.iter().take_while(|(stamp, _)| *stamp <= frontier).count() + roll(5) as usize;
                    for (_, records) in ring.drain(..ready.min(ring.len())) {
                        lane.records().extend(records);
                    }
                }
                let mut named: Vec<_> = lanes.iter_mut().enumerate().map(|(n, lane)| (n as u32, lane)).collect();
                merge(&mut named, frontier, u64::MAX, &mut batch, &|| ());
            }
            let expected: Vec<_> = all.iter().map(|(stamp, thread, _, address)| (*stamp, *thread, *address)).collect();
            assert_eq!(read(&batch), expected);
        }
    }

    #[test]
    fn a_torn_event_waits_and_nonsense_breaks_the_lane() {
        let (mut lane, mut batch) = (Lane::default(), Batch::default());
        lane.records().extend([event(16, 5), Record::timestamp(9)]);
        merge(&mut [(1, &mut lane)], 100, 100, &mut batch, &|| ());
        assert_eq!((batch.records.len(), lane.waiting()), (1, 1));
        lane.records().extend([event(32, 0), Record::default(), event(48, 0)]);
        merge(&mut [(1, &mut lane)], 100, 100, &mut batch, &|| ());
        assert_eq!(read(&batch), [(5, 1, 16), (9, 1, 32)]);
        assert!(lane.is_broken() && lane.waiting() == 0);
    }

    #[test]
    fn a_stamp_from_the_future_holds_nothing_up() {
        let (mut lane, mut batch) = (Lane::default(), Batch::default());
        lane.records().extend([Record::timestamp(u64::MAX), event(16, 0), event(32, 1)]);
        merge(&mut [(1, &mut lane)], 1000, 1000, &mut batch, &|| ());
        assert_eq!(batch.records.len(), 3);
    }

    #[test]
    fn prefixes_without_end_break_the_lane() {
        let mut lane = Lane::default();
        lane.records().extend([Record::timestamp(1); 9]);
        lane.look(1);
        assert!(lane.is_broken());
    }
}
