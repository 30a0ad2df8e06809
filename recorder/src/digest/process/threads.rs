//! The threads of a process by number, and the accounting of their events. Threads that have ended
//! are removed at the start of the next segment: a server that starts one for each request would
//! have millions after months.

use crate::heap::thread_number::ThreadNumber;
use crate::rings::counts::EventCounts;
use formats::tape::{self, Account, Loss};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
struct Thread {
    recorded: u64,
    /// Number of recorded events that the recorder has added, from annotations.
    added: u64,
    /// Number of recorded events that are in finished chunks.
    in_finished_chunks: u64,
    counts: EventCounts,
    /// Counts that earlier segments contain.
    reported_before: EventCounts,
    /// Number of records that were skipped on purpose: the process is to be dormant, or sampled,
    /// and the thread has not noticed it yet.
    skipped: u64,
    /// Mean number of bytes between samples, and the mean after the next event.
    mean: u64,
    next_mean: Option<u64>,
    identity: Option<tape::Thread>,
    /// Number of dropped events in gaps: those that the ring reported, and at the thread's end the
    /// rest.
    dropped: u64,
    last_tick: u64,
    gap: Option<Gap>,
    /// Whether the thread has ended.
    is_over: bool,
}

/// A gap without an end.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Number of events that it contains so far.
    events: u64,
    /// Tick before the gap.
    from_tick: u64,
}

impl Thread {
    /// Returns the accounting of the thread in this segment. Events are lost when a gap contains
    /// them, so that the accounts and the list of gaps agree at any time. Further lost events of
    /// the thread will be in a later gap, of this segment or the next.
    fn account(&self, thread: ThreadNumber) -> Account {
        let Thread { recorded, added, counts, dropped, reported_before, skipped, .. } = self;
        let emitted = counts.emitted.saturating_sub(reported_before.emitted) + added;
        let lost = dropped.saturating_sub(reported_before.lost);
        let sampled_out = counts.sampled_out.saturating_sub(reported_before.sampled_out).saturating_add(*skipped);
        Account { thread: thread.0, emitted, recorded: *recorded, lost, sampled_out }
    }

    /// Returns the number of dropped events that no gap contains yet.
    fn unreported(&self) -> u64 {
        self.counts.lost.saturating_sub(self.dropped)
    }

    fn note_dropped(&mut self, events: u64, last_tick: u64) {
        self.dropped = self.dropped.saturating_add(events);
        let gap = self.gap.unwrap_or(Gap { events: 0, from_tick: last_tick });
        self.gap = Some(Gap { events: gap.events.saturating_add(events), ..gap });
    }

    /// Counts the event that a thread could not publish because it was ended in a call (killed,
    /// cancelled) as lost.
    fn count_unpublished(&mut self) {
        let before = self.reported_before;
        let emitted = self.counts.emitted.saturating_sub(before.emitted);
        let accounted =
            self.recorded - self.added + self.skipped + self.counts.sampled_out.saturating_sub(before.sampled_out);
        self.counts.lost = self.counts.lost.max(before.lost.saturating_add(emitted.saturating_sub(accounted)));
    }

    /// Starts a segment that counts anew.
    fn reset_counts(&mut self) {
        let before = self.reported_before;
        let (lost, sampled_out) = (self.dropped, self.counts.sampled_out);
        let more = lost.saturating_sub(before.lost) + sampled_out.saturating_sub(before.sampled_out);
        let emitted = before.emitted + self.recorded - self.added + self.skipped + more;
        self.reported_before = EventCounts { emitted, lost, sampled_out };
        (self.recorded, self.added, self.skipped, self.in_finished_chunks) = (0, 0, 0, 0);
    }
}

/// What the reader of a thread's records has to know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadState {
    /// Whether a gap is open.
    pub has_gap: bool,
    pub last_tick: u64,
}

/// The threads of a process. Number 0 is for events without a slot, and for threads that were
/// removed with earlier segments.
#[derive(Debug)]
pub(super) struct Threads {
    threads: BTreeMap<ThreadNumber, Thread>,
    /// The largest thread number seen.
    seen: ThreadNumber,
    /// The counts of removed threads, as far as they belong to this segment.
    ended: Account,
}

impl Threads {
    /// Creates the table with the thread for events without a slot, which samples at this interval.
    pub(super) fn new(mean: u64) -> Threads {
        let first = Thread { mean, ..Thread::default() };
        Threads {
            threads: BTreeMap::from([(ThreadNumber::NONE, first)]),
            seen: ThreadNumber::NONE,
            ended: Account::default(),
        }
    }

    /// Adds a thread that samples at this interval, unless it is known.
    pub(crate) fn add_if_new(&mut self, number: ThreadNumber, mean: u64) {
        self.threads.entry(number).or_insert_with(|| Thread { mean, ..Thread::default() });
        self.seen = self.seen.max(number);
    }

    /// Returns a thread. One with records was added before them.
    fn thread(&mut self, number: ThreadNumber) -> &mut Thread {
        self.threads.entry(number).or_default()
    }

    /// Returns the number of threads in the table.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Returns the largest thread number seen.
    pub(super) fn seen(&self) -> ThreadNumber {
        self.seen
    }

    pub(super) fn numbers(&self) -> Vec<ThreadNumber> {
        self.threads.keys().copied().collect()
    }

    pub(super) fn identify(&mut self, identity: tape::Thread) {
        let number = ThreadNumber(identity.number);
        self.thread(number).identity = Some(identity);
    }

    /// Returns the identities of the threads, as far as they are known.
    pub(super) fn identities(&self) -> impl Iterator<Item = tape::Thread> {
        self.threads.values().filter_map(|thread| thread.identity.clone())
    }

    /// Returns what the reader of a thread's records has to know.
    pub(crate) fn read_state(&mut self, number: ThreadNumber) -> ReadState {
        let thread = self.thread(number);
        ReadState { has_gap: thread.gap.is_some(), last_tick: thread.last_tick }
    }

    /// Notes that events of a thread were read, the last one at this tick.
    pub(crate) fn count_read(&mut self, number: ThreadNumber, recorded: u64, last_tick: u64) {
        let thread = self.thread(number);
        thread.recorded += recorded;
        thread.last_tick = last_tick;
    }

    /// Counts an event that is recorded although most events of its thread are skipped.
    pub(crate) fn count_recorded(&mut self, number: ThreadNumber, events: u64) {
        self.thread(number).recorded += events;
    }

    /// Counts an event that the recorder adds, as both emitted and recorded.
    pub(crate) fn count_added(&mut self, number: ThreadNumber) {
        let thread = self.thread(number);
        thread.recorded += 1;
        thread.added += 1;
    }

    /// Counts records that were skipped on purpose.
    pub(crate) fn count_skipped(&mut self, number: ThreadNumber, events: u64) {
        self.thread(number).skipped += events;
    }

    /// Returns the sampling interval of a thread.
    pub(super) fn mean(&mut self, number: ThreadNumber) -> u64 {
        self.thread(number).mean
    }

    /// Sets the sampling interval of a thread.
    pub(super) fn set_mean(&mut self, number: ThreadNumber, mean: u64) {
        let thread = self.thread(number);
        (thread.mean, thread.next_mean) = (mean, None);
    }

    /// Sets the sampling interval that a thread has after its next event.
    pub(crate) fn set_next_mean(&mut self, number: ThreadNumber, mean: u64) {
        self.thread(number).next_mean = Some(mean);
    }

    /// Notes an event of a thread. Returns whether the thread has another sampling interval from
    /// now on.
    #[inline]
    pub(crate) fn takes_next_mean(&mut self, number: ThreadNumber) -> bool {
        let thread = self.thread(number);
        let next = thread.next_mean.take();
        thread.mean = next.unwrap_or(thread.mean);
        next.is_some()
    }

    /// Notes that the ring of a thread reports dropped events.
    pub(crate) fn note_dropped(&mut self, number: ThreadNumber, events: u64, last_tick: u64) {
        self.thread(number).note_dropped(events, last_tick);
    }

    /// Ends the gap of a thread, if it has one.
    pub(crate) fn end_gap(&mut self, number: ThreadNumber, to_tick: u64) -> Option<Loss> {
        let Gap { events, from_tick } = self.thread(number).gap.take()?;
        Some(Loss { thread: number.0, events, from_tick, to_tick })
    }

    /// Returns the gap with the drops that no record in the ring will report, since the thread has
    /// ended or has no ring.
    pub(crate) fn report_drops(&mut self, number: ThreadNumber, to_tick: u64) -> Option<Loss> {
        let thread = self.threads.get_mut(&number)?;
        if thread.unreported() > 0 {
            thread.note_dropped(thread.unreported(), thread.last_tick);
        }
        self.end_gap(number, to_tick)
    }

    /// Updates the event counts of a thread, if it is in the table.
    pub(crate) fn set_counts(&mut self, number: ThreadNumber, counts: EventCounts) {
        if let Some(thread) = self.threads.get_mut(&number) {
            thread.counts = counts;
        }
    }

    /// Counts the event that a thread could not publish because it was ended in a call (killed,
    /// cancelled) as lost.
    pub(crate) fn count_unpublished(&mut self, number: ThreadNumber) {
        self.threads.get_mut(&number).into_iter().for_each(Thread::count_unpublished);
    }

    /// Notes that a thread has ended.
    pub(super) fn end(&mut self, number: ThreadNumber) {
        if let Some(thread) = self.threads.get_mut(&number) {
            thread.is_over = number.is_some();
        }
    }

    /// Appends the number of events of each thread that are in the chunk which is being finished.
    pub(super) fn finish_chunk(&mut self, out: &mut Vec<(u32, u64)>) {
        for (number, thread) in &mut self.threads {
            if thread.in_finished_chunks != thread.recorded {
                out.push((number.0, thread.recorded - thread.in_finished_chunks));
                thread.in_finished_chunks = thread.recorded;
            }
        }
    }

    /// Returns the accounts of this segment.
    pub(super) fn accounts(&self) -> impl Iterator<Item = Account> {
        self.threads.iter().map(|(number, thread)| {
            let mut account = thread.account(*number);
            if !number.is_some() {
                add(&mut account, &self.ended);
            }
            account
        })
    }

    /// Returns the accounts of a process that continues: records in its rings belong to later
    /// accounts, or to the next segment.
    pub(crate) fn accounts_so_far(&self) -> impl Iterator<Item = Account> {
        let settle =
            |account: Account| Account { emitted: account.recorded + account.lost + account.sampled_out, ..account };
        self.accounts().map(settle).filter(|account| account.emitted != 0)
    }

    /// Returns the number of dropped events that no gap contains yet.
    pub(super) fn unreported(&self) -> u64 {
        self.threads.values().fold(0, |sum, thread| sum.saturating_add(thread.unreported()))
    }

    /// Starts a segment: removes the threads that have ended. Their accounts stay when the segment
    /// continues to count.
    pub(crate) fn start_segment(&mut self, keeps_counting: bool) {
        if !keeps_counting {
            self.threads.values_mut().for_each(Thread::reset_counts);
            self.ended = Account::default();
        }
        let ended = &mut self.ended;
        self.threads.retain(|number, thread| {
            if thread.is_over {
                add(ended, &thread.account(*number));
            }
            !thread.is_over
        });
    }
}

fn add(sum: &mut Account, more: &Account) {
    sum.emitted += more.emitted;
    sum.recorded += more.recorded;
    sum.lost += more.lost;
    sum.sampled_out += more.sampled_out;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_threads() -> Threads {
        let mut threads = Threads::new(0);
        for number in [1, 2, 3].map(ThreadNumber) {
            threads.add_if_new(number, 0);
            threads.count_read(number, 10, 1);
            threads.set_counts(number, EventCounts { emitted: 12, lost: 2, sampled_out: 0 });
            threads.note_dropped(number, 2, 1);
            if number < ThreadNumber(3) {
                threads.end(number);
            }
        }
        threads
    }

    #[test]
    fn ended_thread_is_removed_and_its_account_stays() {
        let mut threads = three_threads();
        let sum = |threads: &Threads| {
            threads.accounts().fold(Account::default(), |mut sum, account| {
                add(&mut sum, &account);
                sum
            })
        };
        let before = sum(&threads);
        threads.start_segment(true);
        assert_eq!((threads.len(), threads.seen()), (2, ThreadNumber(3)));
        assert_eq!(sum(&threads), before);
        assert_eq!(before.emitted, before.recorded + before.lost);
        threads.start_segment(true);
        assert_eq!(sum(&threads), before, "counted once");
    }

    #[test]
    fn segment_that_counts_anew_excludes_removed_threads() {
        let mut threads = three_threads();
        threads.start_segment(false);
        assert!(threads.accounts().all(|account| account.emitted == 0 && account.recorded == 0));
    }

    #[test]
    fn gap_contains_all_drops_until_its_end() {
        let mut threads = three_threads();
        let (third, unknown) = (ThreadNumber(3), ThreadNumber(7));
        threads.note_dropped(third, 5, 9);
        threads.set_counts(third, EventCounts { emitted: 20, lost: 8, sampled_out: 0 });
        let loss = Loss { thread: 3, events: 8, from_tick: 1, to_tick: 30 };
        assert_eq!((threads.report_drops(third, 30), threads.report_drops(third, 31)), (Some(loss), None));
        assert_eq!((threads.unreported(), threads.report_drops(unknown, 30)), (0, None));
    }
}
