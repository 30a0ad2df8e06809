//! The losses of a profile: how many events of each thread are lost, and when the last one was. What
//! was allocated after that can be judged, since a lost free only keeps older blocks.

use crate::heap::thread_number::ThreadNumber;
use formats::tape::Loss;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<ThreadNumber, Loss>);

impl Losses {
    /// Adds a loss to those of its thread.
    pub(super) fn add(&mut self, loss: Loss) {
        let known = self.0.entry(ThreadNumber(loss.thread)).or_insert_with(|| Loss { events: 0, ..loss.clone() });
        known.events = known.events.saturating_add(loss.events);
        known.from_tick = known.from_tick.min(loss.from_tick);
        known.to_tick = known.to_tick.max(loss.to_tick);
    }

    /// Counts the losses of threads that are not among these as those of thread 0, which has the
    /// accounts of all threads that have ended.
    pub(crate) fn forget_threads(&mut self, numbers: &[ThreadNumber]) {
        let ended: Vec<Loss> =
            self.0.extract_if(.., |number, _| !numbers.contains(number)).map(|(_, loss)| loss).collect();
        ended.into_iter().for_each(|loss| self.add(Loss { thread: 0, ..loss }));
    }

    /// Returns the losses, one for each thread.
    pub(super) fn all(&self) -> impl Iterator<Item = Loss> {
        self.0.values().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_a_thread_are_one_and_stay_when_it_ends() {
        let mut losses = Losses::default();
        let loss = |thread, events, from_tick, to_tick| Loss { thread, events, from_tick, to_tick };
        for one in [loss(3, 5, 10, 20), loss(3, 2, 30, 40), loss(7, 1, 15, 25)] {
            losses.add(one);
        }
        assert_eq!(losses.all().collect::<Vec<_>>(), [loss(3, 7, 10, 40), loss(7, 1, 15, 25)]);
        losses.forget_threads(&[ThreadNumber(7)]);
        assert_eq!(losses.all().collect::<Vec<_>>(), [loss(0, 7, 10, 40), loss(7, 1, 15, 25)]);
        losses.forget_threads(&[]);
        assert_eq!(losses.all().collect::<Vec<_>>(), [loss(0, 8, 10, 40)]);
    }
}
