//! The heartbeat: by it the programs know that their recorder runs, and go on waiting for it.

use crate::clock::Clock;
use crate::session::SessionId;
use crate::sys::Mapping;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::time::{Duration, Instant};

/// Longest time between two beats while the drain works. A program that waits gives up when it sees
/// none for [`wire::limits::WAIT_MS`], so there is a margin for a machine whose processors are
/// shared by many.
pub const BEAT: Duration = Duration::from_millis(5);

/// Writes the heartbeat of all processes.
#[derive(Debug)]
pub struct Heart {
    clock: Clock,
    areas: Vec<(SessionId, Arc<Mapping>)>,
    last: Cell<Instant>,
}

impl Heart {
    /// A heart that beats for no process yet.
    pub fn new(clock: Clock) -> Heart {
        Heart { clock, areas: Vec::new(), last: Cell::new(Instant::now()) }
    }

    /// Beats for this process from now on.
    pub fn add(&mut self, id: SessionId, area: Arc<Mapping>) {
        self.areas.push((id, area));
    }

    /// Beats no longer for this process.
    pub fn remove(&mut self, id: SessionId) {
        self.areas.retain(|(known, _)| *known != id);
    }

    /// Writes a time of the recorder's clock into all headers. Programs that may not read a clock
    /// take their timestamps from there.
    pub fn beat(&self, now: u64) {
        self.last.set(Instant::now());
        for (_, area) in &self.areas {
            area.header().heartbeat.0.store(now, Release);
        }
    }

    /// Beats when [`BEAT`] has passed since the last time. Long work calls this again and again.
    pub fn keep_beating(&self) {
        if self.last.get().elapsed() >= BEAT {
            self.beat(self.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use std::sync::atomic::Ordering::Relaxed;

    /// Long work that only calls `keep_beating` shows life, for each process and no longer than it
    /// is served.
    #[test]
    fn long_work_shows_life() {
        let clock = Clock::choose();
        let params = Options { slots: 8, ..Options::default() }.params(u64::MAX, None).unwrap_or_default();
        let areas =
            [0, 1].map(|_| Arc::new(Mapping::create(params).unwrap_or_else(|error| panic!("no area: {error}")).0));
        let mut heart = Heart::new(clock);
        areas.iter().zip(1..).for_each(|(area, id)| heart.add(id, Arc::clone(area)));
        let seen = || areas.each_ref().map(|area| area.header().heartbeat.0.load(Relaxed));
        heart.beat(1);
        assert_eq!(seen(), [1, 1]);
        std::thread::sleep(BEAT);
        heart.keep_beating();
        assert!(seen().iter().all(|beat| *beat > 1), "{:?}", seen());
        heart.remove(2);
        heart.beat(7);
        assert!(seen()[0] == 7 && seen()[1] != 7, "{:?}", seen());
    }
}
