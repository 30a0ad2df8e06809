//! A thread that takes snapshots of the pages that the recorded processes have in memory, so that
//! a report can explain their resident memory. It stops no process, and it takes at most a 200th
//! of a processor: after each round it waits 200 times as long as the rounds took beyond a burst.

mod mappings;
#[allow(unsafe_code)]
mod pages;
mod schedule;
mod snapshot;

use crate::digest::chunks::Message;
use crate::digest::process::ProcessCommand;
use crate::os::aside;
use crate::os::clock;
use crate::session::traced_process::{Session, SessionId};
use crate::store::division::Divider;
use crate::store::writer::Callback;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use formats::tape::{RESIDENCY_EXIT, Residency};
use schedule::Schedule;
use snapshot::{Attempt, Before};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::area::{ACTIVATION_DORMANT, ANNOUNCE_LARGE, LARGE_KIB};

/// Minimum time between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// Time in which a snapshot must be taken: a large process has many pages.
const PATIENCE: Duration = Duration::from_secs(2);
/// Share of a processor that the thread may take: one in this number.
const SHARE: u32 = 200;
/// CPU time that it may take in addition, so that short runs with many processes have snapshots.
const BURST: Duration = Duration::from_millis(25);

/// Holds the thread to its share of a processor.
struct CpuBudget {
    /// CPU time that was taken and is not yet paid for by waiting.
    debt: Duration,
    since: Instant,
}

impl CpuBudget {
    fn new(now: Instant) -> CpuBudget {
        CpuBudget { debt: Duration::ZERO, since: now }
    }

    /// Notes a round that took this CPU time. Returns when the next one may begin.
    fn charge(&mut self, took: Duration, now: Instant) -> Instant {
        let paid = now.saturating_duration_since(self.since) / SHARE;
        self.debt = self.debt.saturating_sub(paid) + took;
        self.since = now;
        now + ROUND.max(self.debt.saturating_sub(BURST) * SHARE)
    }
}

#[derive(Debug)]
pub enum Request {
    /// A session begins; this worker is its digest.
    Watch(Arc<Session>, usize),
    /// A session has ended.
    Forget(SessionId),
    /// A snapshot is taken at once.
    Take {
        id: SessionId,
        /// Why: one of the `RESIDENCY_` numbers.
        cause: u8,
        /// Called when the digest has the snapshot, or when there is none.
        then: Callback,
    },
    /// A process is about to end. A snapshot is taken at once, and then the socket is closed on
    /// which it waits.
    Exit {
        /// Process id, as the recorder sees it.
        pid: u32,
        /// The socket on which the process waits.
        socket: OwnedFd,
    },
}

#[derive(Debug)]
struct Watched {
    session: Arc<Session>,
    worker: usize,
    schedule: Schedule,
    /// Inode of the area, once it is known.
    area: Option<u64>,
}

/// The thread: runs until the sender of requests is gone.
pub fn run(requests: &Receiver<Request>, workers: &[Sender<Message>]) {
    let digests = Digests { workers, divider: Divider::default(), took: Cell::default() };
    let mut watched: Vec<Watched> = Vec::new();
    let mut due = Instant::now();
    let mut budget = CpuBudget::new(due);
    loop {
        let request = match watched.is_empty() {
            true => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => requests.recv_deadline(due),
        };
        match request {
            Ok(Request::Watch(session, worker)) => {
                if watched.is_empty() {
                    due = due.max(Instant::now() + schedule::FIRST_DELAY);
                }
                let schedule = Schedule::new(Instant::now());
                watched.push(Watched { session, worker, schedule, area: None });
            }
            Ok(Request::Forget(id)) => watched.retain(|one| one.session.id != id),
            Ok(Request::Take { id, cause, then }) => {
                watched.iter_mut().filter(|one| one.session.id == id).for_each(|one| one.take(cause, &digests));
                then.call();
            }
            Ok(Request::Exit { pid, socket }) => {
                for one in watched.iter_mut().filter(|one| one.session.process.pid == pid) {
                    one.session.stats.says_end(&one.session.clock);
                    one.end(&digests);
                }
                drop(socket);
            }
            Err(RecvTimeoutError::Timeout) => {
                digests.took.take();
                let before = clock::thread_time();
                for one in &mut watched {
                    one.look(&digests);
                }
                let took =
                    clock::thread_time().saturating_sub(before) + digests.took.take() + digests.divider.cpu_time();
                due = budget.charge(took, Instant::now());
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Watched {
    fn is_dormant(&self) -> bool {
        self.session.mapping.header().activation.0.load(Relaxed) == ACTIVATION_DORMANT
    }

    /// Returns the size of the pages of the process in bytes.
    fn page(&self) -> u64 {
        u64::from(self.session.process.page_size).max(512)
    }

    /// Takes a snapshot if one is due, and sends it to the digest.
    fn look(&mut self, digests: &Digests<'_>) {
        if self.is_dormant() {
            return;
        }
        let (pid, page) = (self.session.process.pid, self.page());
        let resident = || snapshot::resident_bytes(pid, page);
        if let Some(cause) = self.schedule.due(Instant::now(), &self.session.stats.now(), resident) {
            self.take(cause, digests);
        }
    }

    /// Takes the snapshot of a process that announced its end. It may have done so for the size of
    /// the program that it was before an exec, then its own is not worth the wait.
    fn end(&mut self, digests: &Digests<'_>) {
        let is_for_size = self.session.mapping.header().announce_exit.load(Relaxed) == ANNOUNCE_LARGE;
        let resident = || snapshot::resident_bytes(self.session.process.pid, self.page());
        if !is_for_size || resident().is_none_or(|bytes| bytes > LARGE_KIB << 10) {
            self.take(RESIDENCY_EXIT, digests);
        }
    }

    /// Takes a snapshot, and sends it to the digest. From the first one on, the process announces
    /// its end.
    fn take(&mut self, cause: u8, digests: &Digests<'_>) {
        let Session { mapping, process, clock, id, .. } = &*self.session;
        if self.is_dormant() {
            return;
        }
        let header = std::ptr::from_ref(mapping.header()).addr() as u64;
        self.area = self.area.or_else(|| snapshot::area_at(header));
        let Some(area) = self.area else { return };
        // A process may hold the lock of its memory for ever.
        let (pid, page, clock) = (process.pid, self.page(), *clock);
        let session = Arc::clone(&self.session);
        let take = move || {
            let before = clock::thread_time();
            let own = || session.mapping.header().private_ranges().collect();
            let attempt = snapshot::take((pid, &own), area, page, &clock, cause);
            (attempt, clock::thread_time().saturating_sub(before))
        };
        let Ok((attempt, took)) = aside::call_for(PATIENCE, self.session.owner(), take) else { return };
        digests.took.set(digests.took.get() + took);
        let (record, before) = match attempt {
            Attempt::Taken(record, Before { resident_bytes, second_libc, .. }) => {
                second_libc.into_iter().for_each(|path| self.session.hooks.has_second_libc(path));
                (*record, resident_bytes)
            }
            Attempt::Gone => return,
            Attempt::Refused(_) if self.schedule.was_refused() => return,
            Attempt::Refused(why) => {
                self.schedule.refuse();
                let record = snapshot::refused(pid, &clock, cause, &why);
                let before = record.resident_bytes;
                (record, before)
            }
        };
        self.session.announce_exit(!self.schedule.was_refused());
        self.schedule.taken(Instant::now(), &record, before);
        digests.send(self.worker, *id, record);
    }
}

/// The digests, and the thread that divides the snapshots of processes whose events are not kept.
struct Digests<'a> {
    workers: &'a [Sender<Message>],
    divider: Divider,
    /// CPU time of the threads that took the snapshots, which is not yet charged.
    took: Cell<Duration>,
}

impl Digests<'_> {
    fn send(&self, worker: usize, id: SessionId, record: Residency) {
        if let Some(queue) = self.workers.get(worker) {
            let command = ProcessCommand::Residency(Box::new(record), self.divider.clone());
            let _ = queue.send(Message::Process(id, command));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_take_their_share_and_a_burst() {
        let start = Instant::now();
        let mut budget = CpuBudget::new(start);
        assert_eq!(budget.charge(BURST, start), start + ROUND, "a burst costs no wait");
        let next = budget.charge(Duration::from_millis(10), start);
        assert_eq!(next, start + Duration::from_millis(10) * SHARE);
        // Whoever waits has paid.
        assert_eq!(budget.charge(Duration::ZERO, next), next + ROUND);
    }
}
