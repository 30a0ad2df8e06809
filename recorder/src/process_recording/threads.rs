//! The threads of a process by number. Those that have ended are removed at the start of the next
//! segment: a server that starts one for each request would have millions after months.

use super::Thread;
use formats::tape::Account;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// The threads of a process. Number 0 is for events without a slot, and for threads that were
/// removed with earlier segments.
#[derive(Debug)]
pub struct Threads {
    threads: BTreeMap<usize, Thread>,
    /// The largest thread number seen.
    pub seen: usize,
    /// The counts of removed threads, as far as they belong to this segment.
    ended: Account,
}

impl Threads {
    /// Creates the table with the thread for events without a slot.
    pub fn new(first: Thread) -> Threads {
        Threads { threads: BTreeMap::from([(0, first)]), seen: 0, ended: Account::default() }
    }

    /// Adds a thread, unless it is known.
    pub fn add_if_new(&mut self, number: usize, new: impl FnOnce() -> Thread) {
        self.threads.entry(number).or_insert_with(new);
        self.seen = self.seen.max(number);
    }

    /// Returns the number of threads in the table.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Returns the numbers of the threads.
    pub fn numbers(&self) -> Vec<usize> {
        self.threads.keys().copied().collect()
    }

    /// Returns a thread, if it is in the table.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Thread> {
        self.threads.get_mut(&number)
    }

    /// Returns all threads in the table.
    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values()
    }

    /// Returns all threads in the table with their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Thread)> {
        self.threads.iter_mut().map(|(number, thread)| (*number, thread))
    }

    /// Returns the accounts of this segment.
    pub fn accounts(&self) -> impl Iterator<Item = Account> {
        self.threads.iter().map(|(number, thread)| {
            let mut account = thread.account(*number as u32);
            if *number == 0 {
                add(&mut account, &self.ended);
            }
            account
        })
    }

    /// Starts a segment: removes the threads that have ended. Their accounts stay when the segment
    /// continues to count.
    pub fn start_segment(&mut self, keeps_counting: bool) {
        if !keeps_counting {
            self.ended = Account::default();
        }
        let ended = &mut self.ended;
        self.threads.retain(|number, thread| {
            if thread.is_over {
                add(ended, &thread.account(*number as u32));
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

impl Index<usize> for Threads {
    type Output = Thread;

    fn index(&self, number: usize) -> &Thread {
        &self.threads[&number]
    }
}

impl IndexMut<usize> for Threads {
    fn index_mut(&mut self, number: usize) -> &mut Thread {
        // A thread with records was added before them.
        self.threads.entry(number).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::EventCounts;

    fn three_threads() -> Threads {
        let mut threads = Threads::new(Thread::default());
        for number in 1..=3 {
            threads.add_if_new(number, Thread::default);
            threads[number].recorded = 10;
            (threads[number].counts, threads[number].dropped) =
                (EventCounts { emitted: 12, lost: 2, sampled_out: 0 }, 2);
            threads[number].is_over = number < 3;
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
        assert_eq!((threads.len(), threads.seen), (2, 3));
        assert_eq!(sum(&threads), before);
        assert_eq!(before.emitted, before.recorded + before.lost);
        threads.start_segment(true);
        assert_eq!(sum(&threads), before, "counted once");
    }

    #[test]
    fn segment_that_counts_anew_excludes_removed_threads() {
        let mut threads = three_threads();
        threads.iter_mut().for_each(|(_, thread)| (thread.reported_before, thread.recorded) = (thread.counts, 0));
        threads.start_segment(false);
        assert!(threads.accounts().all(|account| account.emitted == 0 && account.recorded == 0));
    }
}
