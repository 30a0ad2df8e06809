//! Calls that may never return, on threads that nobody waits for without a limit.
//!
//! A file of a program may lie on a FUSE or NFS mount whose server is gone. And `/proc/PID/maps` or
//! `cmdline` wait for the memory of a process, which may itself wait for such a mount with its
//! memory locked. Whoever reads them on a thread that serves others stops all of them.
//!
//! So each such call runs on a thread of its own, kept for the next one. One that does not return
//! costs its thread. A process may have one of them, a user and everybody a certain number; beyond
//! that, further calls for the process or the user are refused at once.

use super::crash;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a call may take before it counts as one that does not return.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of calls that do not return, of one user and of all.
const MAX_OF_USER: usize = 16;
const MAX_OF_ALL: usize = 64;
/// How long a thread waits for another call.
const IDLE_TIME: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The process for which something is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub pid: u32,
    pub uid: u32,
}

/// Distinguishes calls that make others. No process has a number with this bit.
const AROUND: u32 = 1 << 31;

impl Owner {
    /// Returns the owner of a call that makes others for the same process, which must not be refused
    /// because this one takes long.
    #[must_use]
    pub fn around(self) -> Owner {
        Owner { pid: self.pid | AROUND, ..self }
    }
}

/// The call does not return, or one before it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck;

/// The calls that run, by number, and the threads that wait for one.
#[derive(Debug, Default)]
struct Calls {
    last: u64,
    running: BTreeMap<u64, (Owner, Instant)>,
    idle: Vec<Sender<Task>>,
}

struct Task {
    place: Place,
    job: Job,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { last: 0, running: BTreeMap::new(), idle: Vec::new() });

fn calls() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    /// Notes a call, unless too many of its process or user do not return.
    fn admit(&mut self, owner: Owner, now: Instant) -> Result<u64, Stuck> {
        let stuck = || self.running.values().filter(|(_, since)| now.duration_since(*since) >= PATIENCE);
        let of_process = stuck().filter(|(other, _)| *other == owner).count();
        let of_user = stuck().filter(|(other, _)| other.uid == owner.uid).count();
        if of_process > 0 || of_user >= MAX_OF_USER || stuck().count() >= MAX_OF_ALL {
            return Err(Stuck);
        }
        self.last += 1;
        self.running.insert(self.last, (owner, now));
        Ok(self.last)
    }
}

/// The place of a call that may be made.
#[derive(Debug)]
pub struct Place(u64);

impl Drop for Place {
    fn drop(&mut self) {
        calls().running.remove(&self.0);
    }
}

/// Returns the place of a call.
///
/// # Errors
/// Too many calls for this process or user do not return.
pub fn place(owner: Owner) -> Result<Place, Stuck> {
    calls().admit(owner, Instant::now()).map(Place)
}

impl Place {
    /// Starts the call, and does not wait for it. Only if no thread can be made, it is made here.
    pub fn start(self, job: impl FnOnce() + Send + 'static) {
        let mut task = Task { place: self, job: Box::new(job) };
        let mut calls = calls();
        while let Some(idle) = calls.idle.pop() {
            match idle.try_send(task) {
                Ok(()) => return,
                // Its thread has ended.
                Err(error) => task = error.into_inner(),
            }
        }
        drop(calls);
        let shared = Arc::new(Mutex::new(Some(task)));
        let take = |shared: &Mutex<Option<Task>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let for_thread = Arc::clone(&shared);
        if crash::spawn("aside", move || take(&for_thread).map(work)).is_err()
            && let Some(Task { job, .. }) = take(&shared)
        {
            job();
        }
    }
}

/// Makes a call, and waits for its result for a short time.
///
/// # Errors
/// It has not returned, or too many calls for this process or user have not.
pub fn call<T: Send + 'static>(owner: Owner, call: impl FnOnce() -> T + Send + 'static) -> Result<T, Stuck> {
    call_for(PATIENCE, owner, call)
}

/// Makes a call, and waits for its result for this time.
///
/// # Errors
/// As those of [`call`].
pub fn call_for<T: Send + 'static>(
    time: Duration,
    owner: Owner,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stuck> {
    let (sender, result) = bounded(1);
    place(owner)?.start(move || drop(sender.send(call())));
    result.recv_timeout(time).map_err(|_| Stuck)
}

/// Returns the owners of the calls that do not return, with the time since they were made.
pub fn stuck() -> Vec<(Owner, Duration)> {
    let calls = calls();
    let process = |owner: &Owner| Owner { pid: owner.pid & !AROUND, ..*owner };
    let all = calls.running.values().map(|(owner, since)| (process(owner), since.elapsed()));
    all.filter(|(_, time)| *time >= PATIENCE).collect()
}

/// A thread: makes calls until none comes for a while.
fn work(first: Task) {
    let (sender, next): (Sender<Task>, Receiver<Task>) = bounded(1);
    let mut task = Some(first);
    while let Some(Task { place, job }) = task {
        job();
        drop(place);
        calls().idle.push(sender.clone());
        task = match next.recv_timeout(IDLE_TIME) {
            Ok(task) => Some(task),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let mut all = calls();
                all.idle.retain(|other| !other.same_channel(&sender));
                // A task that arrived meanwhile.
                next.try_recv().ok()
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_do_not_return_are_bounded_by_process_and_user() {
        let (mut calls, start) = (Calls::default(), Instant::now());
        let later = start + PATIENCE;
        let owner = |pid, uid| Owner { pid, uid };
        assert!(calls.admit(owner(1, 7), start).is_ok());
        assert!(calls.admit(owner(1, 7), start).is_ok(), "neither has had its time");
        assert_eq!(calls.admit(owner(1, 7), later), Err(Stuck));
        for pid in 3..=MAX_OF_USER as u32 {
            assert!(calls.admit(owner(pid, 7), start).is_ok());
        }
        assert_eq!(calls.admit(owner(99, 7), later), Err(Stuck), "the user has too many");
        assert!(calls.admit(owner(99, 8), later).is_ok(), "and no other one");
        for pid in 100..100 + MAX_OF_ALL as u32 {
            assert!(calls.admit(owner(pid, pid), start).is_ok());
        }
        assert_eq!(calls.admit(owner(5, 5), later), Err(Stuck), "all have too many");
    }

    #[test]
    fn call_that_does_not_return_is_given_up_and_named() {
        let owner = Owner { pid: 123_456, uid: 54_321 };
        assert_eq!(call(owner, || 5), Ok(5));
        let (sender, receiver) = bounded::<()>(0);
        assert_eq!(call(owner, move || receiver.recv().is_ok()), Err(Stuck));
        assert_eq!(stuck().iter().filter(|(one, _)| *one == owner).count(), 1);
        assert_eq!(call(owner, || 6), Err(Stuck), "at once: one of this process has not returned");
        drop(sender);
        while stuck().iter().any(|(one, _)| *one == owner) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(call(owner, || 7), Ok(7));
    }
}
