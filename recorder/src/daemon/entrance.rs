//! The thread that accepts connections, and the queue between it and the service. Each user has a
//! budget of connections and of starts a second and a queue of its own, and the service takes from
//! these queues in turn: a user who floods waits behind nobody but himself.
//!
//! All users share the kernel's queue of one listening socket. So this thread does nothing that
//! takes longer than a few microseconds a connection, and drops what is beyond a budget before
//! anything is read from it.

use super::config::Budget;
use super::control::Wake;
use crate::attach::{Client, Door, Sender, Unheard, Visit};
use crate::crash;
use crate::sys;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::hello::REFUSED_FULL;

/// Requests of one user that may wait for the service.
const MOST_WAITING: usize = 256;
/// The longest time between two looks at silent connections.
const LONGEST: Duration = Duration::from_secs(1);

/// What a client asks of the service.
#[derive(Debug)]
pub enum Request {
    /// To be recorded.
    Start(Client),
    /// To have a trace or a profile kept.
    Stream(Sender),
}

/// Requests of all users, one queue for each, and what was turned away.
#[derive(Debug, Default)]
struct Waiting {
    users: HashMap<u32, VecDeque<Request>>,
    /// Users with requests, in the order in which they are served.
    order: VecDeque<u32>,
    /// Connections and starts that were turned away, by budget and user.
    refused: BTreeMap<(&'static str, u32), u64>,
}

impl Waiting {
    /// Queues a request; returns it when its user has too many.
    fn push(&mut self, uid: u32, request: Request) -> Option<Request> {
        let queue = self.users.entry(uid).or_default();
        if queue.len() >= MOST_WAITING {
            return Some(request);
        }
        if queue.is_empty() {
            self.order.push_back(uid);
        }
        queue.push_back(request);
        None
    }

    /// The next request of the user whose turn it is.
    fn pop(&mut self) -> Option<Request> {
        let uid = self.order.pop_front()?;
        let queue = self.users.get_mut(&uid)?;
        let request = queue.pop_front();
        if queue.is_empty() {
            self.users.remove(&uid);
        } else {
            self.order.push_back(uid);
        }
        request
    }
}

/// Starts that a user may save up, in seconds: a build starts many programs at once, and not for
/// long.
const BURST: u64 = 5;

/// How many a user may still have: as many a second as the budget says, and a number of seconds at
/// once.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    since: Instant,
}

impl Allowance {
    fn take(&mut self, per_second: u64, burst: u64, now: Instant) -> bool {
        let (rate, most) = (per_second as f64, (per_second * burst) as f64);
        self.left = (self.left + now.duration_since(self.since).as_secs_f64() * rate).min(most);
        self.since = now;
        let has_one = self.left >= 1.0;
        self.left -= f64::from(u8::from(has_one));
        has_one
    }
}

/// What users may still have of one budget.
#[derive(Debug)]
struct Allowances {
    per_second: u64,
    burst: u64,
    users: HashMap<u32, Allowance>,
}

impl Allowances {
    /// Users whose allowance is remembered; those of more are full again.
    const MOST: usize = 4096;

    fn new(per_second: u64, burst: u64) -> Allowances {
        Allowances { per_second: per_second.min(1 << 32), burst, users: HashMap::new() }
    }

    fn take(&mut self, uid: u32) -> bool {
        let now = Instant::now();
        if self.users.len() >= Self::MOST {
            self.users.retain(|_, one| now.duration_since(one.since) < Duration::from_secs(BURST));
        }
        let full = Allowance { left: (self.per_second * self.burst) as f64, since: now };
        self.users.entry(uid).or_insert(full).take(self.per_second, self.burst, now)
    }
}

/// The service's end.
#[derive(Debug)]
pub struct Entrance {
    waiting: Arc<Mutex<Waiting>>,
    stops: UnixStream,
    thread: Option<JoinHandle<()>>,
}

fn locked(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entrance {
    /// Starts the thread.
    pub fn open(door: Door, budget: Budget, wake: Wake) -> io::Result<Entrance> {
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let (stops, stopped) = UnixStream::pair()?;
        let shared = Arc::clone(&waiting);
        let thread = crash::spawn("entrance", move || run(door, budget, &shared, &wake, stopped))?;
        Ok(Entrance { waiting, stops, thread: Some(thread) })
    }

    /// The next request, of each user in turn.
    pub fn next(&self) -> Option<Request> {
        locked(&self.waiting).pop()
    }

    /// Whether requests wait.
    pub fn has_more(&self) -> bool {
        !locked(&self.waiting).order.is_empty()
    }

    /// What was turned away since the last call: budget, user, how many.
    pub fn refused(&self) -> BTreeMap<(&'static str, u32), u64> {
        std::mem::take(&mut locked(&self.waiting).refused)
    }

    /// Accepts no more. Sockets that were made here are gone afterwards.
    pub fn close(&mut self) {
        let _ = (&self.stops).write(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        while let Some(request) = self.next() {
            refuse(request);
        }
    }
}

fn refuse(request: Request) {
    match request {
        Request::Start(client) => client.refuse(REFUSED_FULL),
        Request::Stream(_) => {}
    }
}

fn run(mut door: Door, budget: Budget, waiting: &Mutex<Waiting>, wake: &Wake, mut stopped: UnixStream) {
    sys::prefer_thread();
    let (mut connections, mut starts) = (Allowances::new(budget.connections, 1), Allowances::new(budget.starts, BURST));
    loop {
        let mut polls: Vec<PollFd<'_>> = door.descriptors().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        polls.push(PollFd::new(sys::fd(&stopped), PollFlags::POLLIN));
        let most = door.deadline().map_or(LONGEST, |deadline| deadline.min(LONGEST));
        let _ = nix::poll::poll(
            &mut polls,
            PollTimeout::try_from(most.as_millis().max(1) as i32).unwrap_or(PollTimeout::MAX),
        );
        let is_over = polls.last().is_some_and(|poll| poll.any().unwrap_or(false));
        drop(polls);
        if is_over {
            let _ = stopped.read(&mut [0]);
            return;
        }
        let visits = door.admitted_visits(&mut |uid| connections.take(uid));
        if visits.is_empty() {
            continue;
        }
        let (mut turned_away, mut is_new) = (Vec::new(), false);
        let mut shared = locked(waiting);
        for visit in visits {
            let (uid, request) = match visit {
                Visit::Hello(client) => (client.uid, Request::Start(client)),
                Visit::File(sender) => (sender.uid, Request::Stream(sender)),
                Visit::Notice { pid, why, .. } => {
                    tracing::debug!("process {pid} runs unrecorded: {}", why.text());
                    continue;
                }
                Visit::Unheard(uid, why) => {
                    let what = if why == Unheard::Descriptors { "descriptors" } else { "connections" };
                    *shared.refused.entry((what, uid)).or_default() += 1;
                    continue;
                }
            };
            let refused = if starts.take(uid) { shared.push(uid, request) } else { Some(request) };
            if let Some(request) = refused {
                *shared.refused.entry(("starts", uid)).or_default() += 1;
                turned_away.push(request);
            } else {
                is_new = true;
            }
        }
        drop(shared);
        turned_away.into_iter().for_each(refuse);
        if is_new {
            let _ = wake.as_ref().write(&[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_is_a_rate_and_a_burst() {
        let mut one = Allowance { left: 3.0, since: Instant::now() };
        let start = one.since;
        let taken = (0..5).filter(|_| one.take(3, 1, start)).count();
        assert_eq!(taken, 3);
        assert!(
            one.take(3, 1, start + Duration::from_millis(400)) && !one.take(3, 1, start + Duration::from_millis(500))
        );
        let later = start + Duration::from_secs(60);
        assert_eq!((0..9).filter(|_| one.take(3, 1, later)).count(), 3, "what was not used is not saved up");
    }

    #[test]
    fn users_are_served_in_turn() {
        let request = |uid: u32| {
            let socket = std::fs::File::open("/dev/null").expect("a descriptor").into();
            Request::Stream(Sender { socket, pid: 1, uid, is_stream: true })
        };
        let mut waiting = Waiting::default();
        let refused = (0..MOST_WAITING + 10).filter(|_| waiting.push(7, request(7)).is_some()).count();
        assert_eq!(refused, 10);
        assert!(waiting.push(8, request(8)).is_none());
        assert!(waiting.push(8, request(8)).is_none());
        let order: Vec<u32> = std::iter::from_fn(|| waiting.pop())
            .map(|request| match request {
                Request::Stream(sender) => sender.uid,
                Request::Start(client) => client.uid,
            })
            .collect();
        assert_eq!(order[..5], [7, 8, 7, 8, 7]);
        assert_eq!(order.len(), MOST_WAITING + 2);
        assert!(waiting.users.is_empty());
    }
}
