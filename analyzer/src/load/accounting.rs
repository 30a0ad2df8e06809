//! The accounting of an image: `emitted = recorded + lost + sampled out`, for each thread and for
//! all. Every report that names lost events takes them from here, and [`super::tape::read`] makes
//! the list of gaps from the same numbers.

use super::Image;
use super::tape::{Tape, TraceRange};
use crate::event::{Event, Kind};
use crate::missing::Missing;
use heaptape_formats::recording::Accounting as Sums;
use heaptape_formats::tape::{Account, Entry, Totals};
use std::collections::BTreeMap;

/// Events of the program that a pass has read, by thread.
#[derive(Clone, Debug, Default)]
pub struct RecordedEvents {
    threads: BTreeMap<u32, u64>,
    /// The thread of the last event, and its events that are not in `threads` yet.
    last: (u32, u64),
}

impl RecordedEvents {
    /// Counts an event, unless the recorder wrote it in hindsight.
    #[inline]
    pub fn add(&mut self, event: &Event) {
        let in_hindsight =
            [Entry::Inherited, Entry::Implied, Entry::Carried].iter().any(|entry| event.entry == *entry as u8);
        if in_hindsight || event.kind == Kind::Previous {
            return;
        }
        if event.thread != self.last.0 {
            self.keep();
            self.last.0 = event.thread;
        }
        self.last.1 += 1;
    }

    #[cold]
    fn keep(&mut self) {
        let (thread, events) = std::mem::take(&mut self.last);
        if events > 0 {
            *self.threads.entry(thread).or_default() += events;
        }
    }

    /// Events of a thread.
    pub fn of(&self, thread: u32) -> u64 {
        let last = if self.last.0 == thread { self.last.1 } else { 0 };
        self.threads.get(&thread).copied().unwrap_or(0) + last
    }

    fn threads(&self) -> impl Iterator<Item = u32> {
        self.threads.keys().copied().chain((self.last.1 > 0).then_some(self.last.0))
    }
}

/// What became of the events of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// One account for each thread, by number; 0 where no thread is known.
    pub threads: Vec<Account>,
    /// Events that are recorded and cannot be read: their thread is not known.
    pub unreadable: u64,
    /// Whether nothing else can be missing. If not, more events than `lost` may be.
    pub is_exact: bool,
    all: Sums,
}

impl Accounting {
    /// The accounting of an image with these totals, of which this is missing. `recorded` is what a
    /// pass over all of it has read.
    pub fn of(image: &Image, totals: &Totals, missing: &[Missing], recorded: Option<&RecordedEvents>) -> Accounting {
        let tape = &image.tape;
        // What was read counts where the ledger does not speak of all that is there.
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
            // A file of sums, or of another tool.
            let recorded = totals.allocs.saturating_add(totals.resizes).saturating_add(totals.frees);
            threads.insert(0, Account { emitted: recorded, recorded, ..Account::default() });
        }
        let in_chunks = missing.iter().fold(0u64, |sum, one| match one {
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
        if let Some(stated) = &image.about.accounting {
            // What the recorder knew and the files do not hold any more.
            let gone = stated.emitted.saturating_sub(accounting.all.emitted);
            accounting.all.add(Sums { emitted: gone, lost: gone, ..Sums::default() });
        }
        accounting
    }

    /// Threads together; events that cannot be read are among those that the ledger calls recorded,
    /// and are not among those `read`.
    fn sum(&self, read: bool) -> Sums {
        let mut all = Sums::default();
        for &Account { emitted, recorded, lost, sampled_out, .. } in &self.threads {
            all.add(Sums { emitted, recorded, lost, sampled_out });
        }
        let among = if read { 0 } else { self.unreadable.min(all.recorded) };
        let more = self.unreadable - among;
        all.recorded -= among;
        all.lost = all.lost.saturating_add(self.unreadable);
        all.emitted = all.emitted.saturating_add(more);
        all
    }

    /// All threads together.
    pub fn all(&self) -> Sums {
        self.all
    }

    /// The account of a thread.
    pub fn thread(&self, number: u32) -> Option<&Account> {
        self.threads.iter().find(|account| account.thread == number)
    }
}

/// The ledger with what the gaps and its own sums say of dropped events: whichever is most.
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
    /// Whether the latest ledger speaks of every chunk, and every chunk is where it belongs.
    pub fn has_final_accounts(&self) -> bool {
        self.accounts_are_final && !self.ranges.iter().any(|place| matches!(place, TraceRange::Salvage { .. }))
    }

    /// The gaps of all threads. Drops of which only the ledger knows may be anywhere in the run.
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
