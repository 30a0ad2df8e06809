//! The accounting of a process: `emitted = recorded + lost + sampled out`, for each thread and for
//! all. All reports of lost events use these numbers, and [`super::tape::read`] lists the gaps with
//! the same numbers.

use super::Process;
use super::tape::{Tape, TraceRange};
use crate::event::{Event, Kind};
use crate::missing::Missing;
use heaptape_formats::recording::Accounting as Sums;
use heaptape_formats::tape::{Account, Entry, Totals};
use std::collections::BTreeMap;

/// Number of events of the program that a pass has read, by thread.
#[derive(Clone, Debug, Default)]
pub struct RecordedEvents {
    threads: BTreeMap<u32, u64>,
    /// The thread of the last event, and the number of its events that are not in `threads` yet.
    last: (u32, u64),
}

impl RecordedEvents {
    /// Counts an event, unless the recorder inserted it.
    #[inline]
    pub fn add(&mut self, event: &Event) {
        let is_inserted = [Entry::Inherited, Entry::Implied, Entry::Carried, Entry::InheritedEmpty]
            .iter()
            .any(|entry| event.entry == *entry as u8);
        if is_inserted || event.kind == Kind::Previous {
            return;
        }
        if event.thread != self.last.0 {
            self.flush();
            self.last.0 = event.thread;
        }
        self.last.1 += 1;
    }

    #[cold]
    fn flush(&mut self) {
        let (thread, events) = std::mem::take(&mut self.last);
        if events > 0 {
            *self.threads.entry(thread).or_default() += events;
        }
    }

    pub fn of(&self, thread: u32) -> u64 {
        let last = if self.last.0 == thread { self.last.1 } else { 0 };
        self.threads.get(&thread).copied().unwrap_or(0) + last
    }

    fn threads(&self) -> impl Iterator<Item = u32> {
        self.threads.keys().copied().chain((self.last.1 > 0).then_some(self.last.0))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// The accounts of all threads, sorted by number. The number is 0 if threads are unknown.
    pub threads: Vec<Account>,
    /// Number of events that are recorded and cannot be read. Their threads are unknown.
    pub unreadable: u64,
    /// Whether `lost` is exact. If not, more events may be missing.
    pub is_exact: bool,
    all: Sums,
}

impl Accounting {
    /// Computes the accounting of a process from its totals and what is missing. `recorded` has the
    /// numbers of a pass over all events, if there was one.
    pub fn of(
        process: &Process,
        totals: &Totals,
        missing: &[Missing],
        recorded: Option<&RecordedEvents>,
    ) -> Accounting {
        let tape = &process.tape;
        // The numbers of the pass are used if the accounts of the tape are not final.
        let recorded = recorded.filter(|_| !tape.has_final_accounts());
        let mut threads: BTreeMap<u32, Account> = BTreeMap::new();
        for account in dropped(tape) {
            threads.insert(account.thread, account);
        }
        for thread in recorded.iter().flat_map(|recorded| recorded.threads()) {
            threads.entry(thread).or_insert_with(|| Account { thread, ..Account::default() });
        }
        let mut unread = 0u64;
        for account in threads.values_mut() {
            let Account { thread, emitted, lost, sampled_out, .. } = *account;
            if let Some(recorded) = recorded {
                account.recorded = recorded.of(thread);
                let known = emitted.saturating_sub(sampled_out).saturating_sub(lost);
                let gone = known.saturating_sub(account.recorded);
                unread = unread.saturating_add(gone);
                account.lost = lost.saturating_add(gone);
            }
            account.emitted = account.recorded.saturating_add(account.lost).saturating_add(sampled_out);
        }
        if threads.is_empty() && tape.accounts.is_empty() {
            // The file has only sums, or is from another tool.
            let recorded = totals.allocs.saturating_add(totals.resizes).saturating_add(totals.frees);
            threads.insert(0, Account { emitted: recorded, recorded, ..Account::default() });
        }
        let in_chunks = missing.iter().fold(0u64, |sum, item| match item {
            Missing::Chunk { events, .. } => sum.saturating_add(*events),
            _ => sum,
        });
        let mut accounting = Accounting {
            threads: threads.into_values().collect(),
            unreadable: in_chunks.saturating_sub(unread),
            is_exact: !missing.iter().any(Missing::hides_more),
            all: Sums::default(),
        };
        accounting.all = accounting.sum(recorded.is_some());
        if let Some(stated) = &process.about.accounting {
            // Events that the recorder counted and that are not in the files any more.
            let gone = stated.emitted.saturating_sub(accounting.all.emitted);
            accounting.all.add(Sums { emitted: gone, lost: gone, ..Sums::default() });
        }
        accounting
    }

    /// Returns the sums over all threads. Unreadable events are included in the recorded events of
    /// the tape, but not in those of a pass (`read`).
    fn sum(&self, read: bool) -> Sums {
        let mut all = Sums::default();
        for &Account { emitted, recorded, lost, sampled_out, .. } in &self.threads {
            all.add(Sums { emitted, recorded, lost, sampled_out });
        }
        let included = if read { 0 } else { self.unreadable.min(all.recorded) };
        let more = self.unreadable - included;
        all.recorded -= included;
        all.lost = all.lost.saturating_add(self.unreadable);
        all.emitted = all.emitted.saturating_add(more);
        all
    }

    /// Returns the sums over all threads.
    pub fn all(&self) -> Sums {
        self.all
    }

    pub fn thread(&self, number: u32) -> Option<&Account> {
        self.threads.iter().find(|account| account.thread == number)
    }
}

/// Returns the accounts of the tape with the number of dropped events: the maximum of the account,
/// of its difference, and of the gaps.
fn dropped(tape: &Tape) -> Vec<Account> {
    let mut threads: BTreeMap<u32, Account> = BTreeMap::new();
    for account in &tape.accounts {
        let accounted = account.recorded.saturating_add(account.sampled_out);
        let lost = account.lost.max(account.emitted.saturating_sub(accounted));
        threads.insert(account.thread, Account { lost, ..account.clone() });
    }
    let mut gaps: BTreeMap<u32, u64> = BTreeMap::new();
    for loss in &tape.losses {
        let events = gaps.entry(loss.thread).or_default();
        *events = events.saturating_add(loss.events);
    }
    for (thread, events) in gaps {
        let account = threads.entry(thread).or_insert_with(|| Account { thread, ..Account::default() });
        account.lost = account.lost.max(events);
        let accounted = account.recorded.saturating_add(account.lost).saturating_add(account.sampled_out);
        account.emitted = account.emitted.max(accounted);
    }
    threads.into_values().collect()
}

impl Tape {
    /// Returns whether the accounts include every chunk, and no chunk is damaged.
    pub(crate) fn has_final_accounts(&self) -> bool {
        self.accounts_are_final && !self.ranges.iter().any(|range| matches!(range, TraceRange::Salvage { .. }))
    }

    /// Returns the gaps of all threads. A drop that only the accounts contain may be anywhere in
    /// the run.
    pub(super) fn gaps(&self) -> Vec<Missing> {
        let gap = |thread, events, (from_tick, to_tick)| Missing::Dropped { thread, events, from_tick, to_tick };
        let mut all: Vec<Missing> =
            self.losses.iter().map(|loss| gap(loss.thread, loss.events, (loss.from_tick, loss.to_tick))).collect();
        for account in dropped(self) {
            let of_thread = self.losses.iter().filter(|loss| loss.thread == account.thread);
            let known = of_thread.fold(0u64, |sum, loss| sum.saturating_add(loss.events));
            if account.lost > known {
                all.push(gap(account.thread, account.lost - known, (self.process.start_tick, self.last_tick)));
            }
        }
        all
    }
}
