//! The threads of an image by their numbers. Those that are over go at the next part: a server that
//! makes one for each request would have millions after months.

use super::Thread;
use formats::tape::Account;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// Threads of an image; 0 stands for events without a slot, and for threads that went with earlier
/// parts.
#[derive(Debug)]
pub struct Threads {
    of: BTreeMap<usize, Thread>,
    /// The greatest number seen.
    pub seen: usize,
    /// What threads that went had counted, as far as this part tells it.
    over: Account,
}

impl Threads {
    /// Only the one without a slot.
    pub fn new(first: Thread) -> Threads {
        Threads { of: BTreeMap::from([(0, first)]), seen: 0, over: Account::default() }
    }

    /// A thread comes, with this, unless it is known.
    pub fn meet(&mut self, number: usize, new: impl FnOnce() -> Thread) {
        self.of.entry(number).or_insert_with(new);
        self.seen = self.seen.max(number);
    }

    /// Those that are kept.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<usize> {
        self.of.keys().copied().collect()
    }

    /// One, if it is kept.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Thread> {
        self.of.get_mut(&number)
    }

    /// All that are kept.
    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.of.values()
    }

    /// The same with their numbers, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Thread)> {
        self.of.iter_mut().map(|(number, thread)| (*number, thread))
    }

    /// What each counts in this part.
    pub fn accounts(&self) -> impl Iterator<Item = Account> {
        self.of.iter().map(|(number, thread)| {
            let mut account = thread.account(*number as u32);
            if *number == 0 {
                add(&mut account, &self.over);
            }
            account
        })
    }

    /// A part begins: lets those go that are over. Their accounts stay when the next part goes on
    /// counting.
    pub fn turn(&mut self, keeps_ledger: bool) {
        if !keeps_ledger {
            self.over = Account::default();
        }
        let over = &mut self.over;
        self.of.retain(|number, thread| {
            if thread.is_over {
                add(over, &thread.account(*number as u32));
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
        &self.of[&number]
    }
}

impl IndexMut<usize> for Threads {
    fn index_mut(&mut self, number: usize) -> &mut Thread {
        // Whoever has records was met before them.
        self.of.entry(number).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Threads {
        let mut threads = Threads::new(Thread::default());
        for number in 1..=3 {
            threads.meet(number, Thread::default);
            threads[number].recorded = 10;
            (threads[number].counts, threads[number].dropped) = ((12, 2, 0), 2);
            threads[number].is_over = number < 3;
        }
        threads
    }

    #[test]
    fn who_is_over_goes_and_its_account_stays() {
        let mut threads = made();
        let sum = |threads: &Threads| {
            threads.accounts().fold(Account::default(), |mut sum, account| {
                add(&mut sum, &account);
                sum
            })
        };
        let before = sum(&threads);
        threads.turn(true);
        assert_eq!((threads.len(), threads.seen), (2, 3));
        assert_eq!(sum(&threads), before);
        assert_eq!(before.emitted, before.recorded + before.lost);
        threads.turn(true);
        assert_eq!(sum(&threads), before, "told once");
    }

    #[test]
    fn a_part_that_counts_anew_knows_nothing_of_them() {
        let mut threads = made();
        threads.iter_mut().for_each(|(_, thread)| (thread.given, thread.recorded) = (thread.counts, 0));
        threads.turn(false);
        assert!(threads.accounts().all(|account| account.emitted == 0 && account.recorded == 0));
    }
}
