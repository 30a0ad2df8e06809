//! The thread that accepts connections, and the queue between it and the service. Each user has a
//! budget of connections and of starts per second, and a queue. The service serves these queues in
//! turn, so a user who floods delays only himself.
//!
//! All users share the kernel's queue of one listening socket. So this thread does nothing that
//! takes longer than a few microseconds per connection, and closes connections that exceed a budget
//! before anything is read from them.

use super::config::Budget;
use super::control::Wake;
use crossbeam_channel::Sender;
use heaptape_recorder::inject::Loader;
use heaptape_recorder::os::{crash, sys};
use heaptape_recorder::pipeline::residency;
use heaptape_recorder::session::listener::{Incoming, Listener, Policy, RejectReason, Request};
use nix::sys::socket::SockType;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of requests of one user that wait for the service.
const MAX_WAITING: usize = 256;
/// Maximum time between two checks of silent connections.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The waiting requests of all users, with one queue for each, and the numbers of refused ones.
#[derive(Debug, Default)]
struct RequestQueues {
    users: HashMap<u32, VecDeque<Request>>,
    /// Users with requests, in the order in which they are served.
    order: VecDeque<u32>,
    /// Number of refused connections and starts, by budget and user.
    refused: BTreeMap<(&'static str, u32), u64>,
    /// Number of sockets whose files were removed.
    removed_sockets: u64,
}

/// Makes the socket at a path again.
pub(crate) type Reopen = Box<dyn Fn(&Path, SockType) -> io::Result<OwnedFd> + Send>;

impl RequestQueues {
    /// Queues a request. Returns the request when its user has too many.
    fn push(&mut self, uid: u32, request: Request) -> Option<Request> {
        let queue = self.users.entry(uid).or_default();
        if queue.len() >= MAX_WAITING {
            return Some(request);
        }
        if queue.is_empty() {
            self.order.push_back(uid);
        }
        queue.push_back(request);
        None
    }

    /// Removes the first request of the next user.
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

/// Length of a burst of starts that a user may accumulate, in seconds: a build starts many programs
/// within a short time.
const BURST_SECONDS: u64 = 5;

/// How many connections or starts a user may still make: a number per second from the budget,
/// accumulated over a number of seconds.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    updated: Instant,
}

impl TokenBucket {
    fn take(&mut self, per_second: u64, burst: u64, now: Instant) -> bool {
        let (rate, capacity) = (per_second as f64, (per_second * burst) as f64);
        self.tokens = (self.tokens + now.duration_since(self.updated).as_secs_f64() * rate).min(capacity);
        self.updated = now;
        let has_one = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(has_one));
        has_one
    }
}

/// The token buckets of all users for one budget.
#[derive(Debug)]
struct TokenBuckets {
    per_second: u64,
    burst: u64,
    users: HashMap<u32, TokenBucket>,
}

impl TokenBuckets {
    /// Number of users above which buckets that must be full again are removed.
    const MAX_USERS: usize = 4096;

    fn new(per_second: u64, burst: u64) -> TokenBuckets {
        TokenBuckets { per_second: per_second.min(1 << 32), burst, users: HashMap::new() }
    }

    fn take(&mut self, uid: u32) -> bool {
        let now = Instant::now();
        if self.users.len() >= Self::MAX_USERS {
            self.users.retain(|_, one| now.duration_since(one.updated) < Duration::from_secs(BURST_SECONDS));
        }
        let full = TokenBucket { tokens: (self.per_second * self.burst) as f64, updated: now };
        self.users.entry(uid).or_insert(full).take(self.per_second, self.burst, now)
    }
}

/// The service's handle to the thread.
#[derive(Debug)]
pub(crate) struct Entrance {
    queues: Arc<Mutex<RequestQueues>>,
    stop_sender: UnixStream,
    thread: Option<JoinHandle<()>>,
}

fn locked(queues: &Mutex<RequestQueues>) -> MutexGuard<'_, RequestQueues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entrance {
    /// Starts the thread that accepts connections. `pages` receives the processes that are about to
    /// end.
    ///
    /// # Errors
    /// The error of the socket pair, or of the thread.
    pub(crate) fn open(
        listener: Listener,
        reopen: Reopen,
        budget: Budget,
        loader: Loader,
        wake: Wake,
        pages: Sender<residency::Request>,
    ) -> io::Result<Entrance> {
        let queues = Arc::new(Mutex::new(RequestQueues::default()));
        let (stop_sender, stop_receiver) = UnixStream::pair()?;
        let outputs = Outputs { reopen, loader, queues: Arc::clone(&queues), wake, pages };
        let thread = crash::spawn("entrance", move || run(listener, budget, &outputs, stop_receiver))?;
        Ok(Entrance { queues, stop_sender, thread: Some(thread) })
    }

    /// Removes the next request, of each user in turn.
    pub(crate) fn next(&self) -> Option<Request> {
        locked(&self.queues).pop()
    }

    /// Returns whether requests are waiting.
    pub(crate) fn has_more(&self) -> bool {
        !locked(&self.queues).order.is_empty()
    }

    /// Returns the number of requests that were refused since the last call, by budget and user.
    pub(crate) fn refused(&self) -> BTreeMap<(&'static str, u32), u64> {
        std::mem::take(&mut locked(&self.queues).refused)
    }

    /// Returns the number of sockets whose files were removed, and that were made again.
    pub(crate) fn removed_sockets(&self) -> u64 {
        locked(&self.queues).removed_sockets
    }

    /// Stops accepting connections, and refuses the waiting ones. Sockets that this process created
    /// are removed.
    pub(crate) fn close(&mut self) {
        let _ = (&self.stop_sender).write(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        while let Some(request) = self.next() {
            request.refuse();
        }
    }
}

/// The budgets of all users, and how often something was refused because of them.
#[derive(Debug)]
struct UserBudgets {
    connections: TokenBuckets,
    starts: TokenBuckets,
    /// Number of refused connections and starts, by budget and user.
    refused: BTreeMap<(&'static str, u32), u64>,
}

impl Policy for UserBudgets {
    fn admits_connection(&mut self, uid: u32) -> bool {
        self.connections.take(uid)
    }

    fn admits_request(&mut self, uid: u32) -> bool {
        self.starts.take(uid)
    }

    fn rejected(&mut self, uid: u32, why: RejectReason) {
        let budget = match why {
            RejectReason::Descriptors => "descriptors",
            RejectReason::Silent | RejectReason::Connection => "connections",
            RejectReason::Request => "starts",
        };
        *self.refused.entry((budget, uid)).or_default() += 1;
    }
}

/// What receives the messages of the clients.
struct Outputs {
    reopen: Reopen,
    loader: Loader,
    queues: Arc<Mutex<RequestQueues>>,
    wake: Wake,
    pages: Sender<residency::Request>,
}

fn run(mut listener: Listener, budget: Budget, outputs: &Outputs, mut stop_receiver: UnixStream) {
    let Outputs { reopen, loader, queues, wake, pages } = outputs;
    let mut last_look = Instant::now();
    sys::prefer_thread();
    let mut budgets = UserBudgets {
        connections: TokenBuckets::new(budget.connections, 1),
        starts: TokenBuckets::new(budget.starts, BURST_SECONDS),
        refused: BTreeMap::new(),
    };
    loop {
        let ready = listener.wait(std::iter::once(sys::fd(&stop_receiver)), MAX_CHECK_INTERVAL);
        if ready.is_ok_and(|ready| ready == [true]) {
            let _ = stop_receiver.read(&mut [0]);
            return;
        }
        if last_look.elapsed() >= MAX_CHECK_INTERVAL {
            last_look = Instant::now();
            for (path, result) in listener.restore_removed(reopen) {
                locked(queues).removed_sockets += 1;
                match result {
                    Ok(()) => tracing::error!("{}: the socket was removed, and is made again", path.display()),
                    Err(error) => tracing::error!("{}: the socket was removed: {error}", path.display()),
                }
            }
        }
        let (mut too_many, mut is_new) = (Vec::new(), false);
        let incoming = listener.incoming(&mut budgets);
        let mut shared = locked(queues);
        for message in incoming {
            match message {
                Incoming::Request(request) => match shared.push(request.uid(), request) {
                    None => is_new = true,
                    Some(request) => too_many.push(request),
                },
                Incoming::Notice { pid, why, .. } => {
                    tracing::debug!("process {pid} runs unrecorded: {}", why.text());
                }
                Incoming::Load(follow) => loader.follow(follow),
                // That is asked at the control socket. Closed without an answer.
                Incoming::Question { .. } => {}
                Incoming::Exit { pid, socket, .. } => {
                    let _ = pages.send(residency::Request::Exit { pid, socket });
                }
            }
        }
        while let Some(loaded) = loader.next() {
            if let Some(why) = loaded.refusal {
                tracing::debug!("process {} runs unrecorded: {why}", loaded.pid);
            }
        }
        too_many.iter().for_each(|request| budgets.rejected(request.uid(), RejectReason::Request));
        for (key, count) in std::mem::take(&mut budgets.refused) {
            *shared.refused.entry(key).or_default() += count;
        }
        drop(shared);
        too_many.into_iter().for_each(Request::refuse);
        if is_new {
            let _ = wake.as_ref().write(&[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_allows_a_rate_and_a_burst() {
        let mut one = TokenBucket { tokens: 3.0, updated: Instant::now() };
        let start = one.updated;
        let taken = (0..5).filter(|_| one.take(3, 1, start)).count();
        assert_eq!(taken, 3);
        assert!(
            one.take(3, 1, start + Duration::from_millis(400)) && !one.take(3, 1, start + Duration::from_millis(500))
        );
        let later = start + Duration::from_secs(60);
        assert_eq!(
            (0..9).filter(|_| one.take(3, 1, later)).count(),
            3,
            "unused tokens do not accumulate beyond the capacity"
        );
    }

    #[test]
    fn users_are_served_in_turn() {
        let request = |uid: u32| {
            let socket = std::fs::File::open("/dev/null").expect("a descriptor").into();
            Request::Stream(heaptape_recorder::session::listener::Sender { socket, pid: 1, uid, is_stream: true })
        };
        let mut queues = RequestQueues::default();
        let refused = (0..MAX_WAITING + 10).filter(|_| queues.push(7, request(7)).is_some()).count();
        assert_eq!(refused, 10);
        assert!(queues.push(8, request(8)).is_none());
        assert!(queues.push(8, request(8)).is_none());
        let order: Vec<u32> = std::iter::from_fn(|| queues.pop()).map(|request| request.uid()).collect();
        assert_eq!(order[..5], [7, 8, 7, 8, 7]);
        assert_eq!(order.len(), MAX_WAITING + 2);
        assert!(queues.users.is_empty());
    }
}
