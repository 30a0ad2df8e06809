//! The heartbeat: it shows programs that wait for space that their recorder still runs.

use crate::os::clock::Clock;
use crate::os::sys::Mapping;
use crate::rings::batch::InFlight;
use crate::session::traced_process::SessionId;
use crate::target::proc;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

/// Maximum time between two beats while the drain works. A program that waits and sees none for
/// [`wire::limits::WAIT_MS`] looks whether this thread is stopped or gone. It can't do so from
/// everywhere, e.g. not from another pid namespace, hence the margin: on a busy machine the thread
/// may get no CPU for seconds.
pub(crate) const BEAT: Duration = Duration::from_millis(5);

/// Writes the heartbeat of all processes.
#[derive(Debug)]
pub(crate) struct Heart {
    clock: Clock,
    in_flight: InFlight,
    /// Id and start of the thread that beats.
    thread: (u32, u64),
    areas: Vec<(SessionId, Arc<Mapping>)>,
    last: Cell<Instant>,
}

impl Heart {
    /// Creates the heartbeat of the calling thread, for no process yet.
    pub(crate) fn new(clock: Clock, in_flight: InFlight) -> Heart {
        let tid = nix::unistd::gettid().as_raw().cast_unsigned();
        // Without its start the thread is unknown to the processes.
        let thread = proc::start_ticks(tid).map_or((0, 0), |start| (tid, start));
        Heart { clock, in_flight, thread, areas: Vec::new(), last: Cell::new(Instant::now()) }
    }

    pub(crate) fn add(&mut self, id: SessionId, area: Arc<Mapping>) {
        let (recorder, (thread, start)) = (&area.header().recorder.0, self.thread);
        recorder.start.store(start, Relaxed);
        recorder.thread.store(thread, Release);
        self.areas.push((id, area));
    }

    /// Removes the area of a process.
    pub(crate) fn remove(&mut self, id: SessionId) {
        self.areas.retain(|(known, _)| *known != id);
    }

    /// Writes a time of the recorder's clock into all headers. Programs that may not read a clock
    /// use it for their timestamps.
    pub(crate) fn beat(&self, now: u64) {
        self.last.set(Instant::now());
        let progress = self.in_flight.progress();
        for (_, area) in &self.areas {
            area.header().recorder.0.progress.store(progress, Relaxed);
            area.header().heartbeat.0.store(now, Release);
        }
    }

    /// Writes the heartbeat when [`BEAT`] has passed since the last time. Long work calls this
    /// repeatedly.
    pub(crate) fn keep_beating(&self) {
        if self.last.get().elapsed() >= BEAT {
            self.beat(self.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::options::Options;
    use std::sync::atomic::Ordering::Relaxed;

    /// Long work that only calls `keep_beating` updates the heartbeat of each process until the
    /// process is removed.
    #[test]
    fn long_work_updates_the_heartbeat() {
        let clock = Clock::choose();
        let params = Options { slots: 8, ..Options::default() }.params(u64::MAX, None, 0).unwrap_or_default();
        let areas =
            [0, 1].map(|_| Arc::new(Mapping::create(params).unwrap_or_else(|error| panic!("no area: {error}")).0));
        let mut heart = Heart::new(clock, InFlight::new(None));
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
