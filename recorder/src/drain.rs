//! The first stage: one thread that looks into all rings of all sessions, again and again, and
//! sends what is certain on in order.
//!
//! Busy rings are looked at again at once, quiet ones less and less often, so an idle program costs
//! nothing. A queue that is full holds the drain up but not its heartbeat: programs wait for room
//! then, and know that somebody is there.

use crate::batch::{Batch, InFlight};
use crate::clock::Clock;
use crate::digest::Message;
use crate::heart::{BEAT, Heart};
use crate::image::Tell;
use crate::process;
use crate::session::{End, Session, SessionId};
use crate::slots::{News, Slots};
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use wire::area::{ACTIVATION_DORMANT, CLOSED, OVERFLOW_BOUNDED, OVERFLOW_DROP};

/// Time between looks while events come; a ring of 65,536 records lasts 6 ms at 10 M events a
/// second.
const BUSY: Duration = Duration::from_micros(200);
/// The longest while rings are filled slowly; even at 20 M events a second they cannot be full by
/// then.
const UNHURRIED: Duration = Duration::from_millis(2);
/// The same while events come from a program with enough threads that some have small rings.
const UNHURRIED_SMALL: Duration = Duration::from_micros(500);
/// The longest time between looks when programs wait for room, and when they do not.
const IDLE: Duration = Duration::from_millis(10);
const IDLE_DROPPING: Duration = Duration::from_millis(2);
/// How often threads are looked for that are gone, at most; each time that none was, twice as long,
/// up to a second.
const REAP: Duration = Duration::from_millis(100);
const REAP_SLOWLY: Duration = Duration::from_secs(1);
/// How often the rings of a dormant process are looked at: some threads may not have noticed.
const DORMANT: Duration = Duration::from_secs(1);
/// How long the end of a forked child may be held up by its parent's rings.
const INHERITS: Duration = Duration::from_millis(1200);
/// How often the digest learns what the control words say.
const COUNTS: Duration = Duration::from_secs(5);

/// What the drain is told.
#[derive(Debug)]
pub enum Command {
    /// A session begins; its digest is this worker's.
    Start(Arc<Session>, usize),
    /// A session ends.
    End(SessionId, End),
    /// A child was forked at this tick by a call that nobody saw: what its parent has now, undone
    /// up to the tick, is kept for it. Said when done.
    Bequeath(SessionId, u64, Sender<()>),
    /// A session goes on with another recorder: its process is not told.
    Leave(SessionId),
    /// The digest of a session is to do something, behind all that was drained so far.
    Tell(SessionId, Tell),
}

#[derive(Debug)]
struct Source {
    session: Arc<Session>,
    slots: Slots,
    worker: usize,
    /// A forked child whose parent's events up to the fork were not all passed on yet.
    waits: Option<(SessionId, u64)>,
    reap: (Instant, Duration),
    /// When its rings were last read.
    read: Instant,
    /// Records that may still be drained (a pass may leave a debt), and when that was last raised.
    tokens: (i64, Instant),
    counted: (Instant, bool),
}

/// The thread's state.
#[derive(Debug)]
struct Drain {
    clock: Clock,
    heart: Heart,
    sources: Vec<Source>,
    workers: Vec<Sender<Message>>,
    batches: Receiver<Batch>,
    in_flight: InFlight,
}

/// The stage's thread: runs until the sender of commands is gone; what was not ended then ends as
/// running.
pub fn run(
    clock: Clock,
    commands: &Receiver<Command>,
    workers: Vec<Sender<Message>>,
    batches: Receiver<Batch>,
    in_flight: InFlight,
) {
    let mut drain = Drain { clock, heart: Heart::new(clock), sources: Vec::new(), workers, batches, in_flight };
    let mut pause = IDLE;
    loop {
        let mut command = match commands.recv_timeout(pause) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        while let Some(next) = command.take() {
            match next {
                Command::Start(session, worker) => drain.start(session, worker),
                Command::End(id, end) => drain.end(id, end, true),
                Command::Bequeath(parent, tick, done) => {
                    drain.bequeath(parent, tick);
                    let _ = done.send(());
                }
                Command::Leave(id) => drain.end(id, End::RUNNING, false),
                Command::Tell(id, tell) => drain.tell(id, tell),
            }
            command = commands.try_recv().ok();
            pause = BUSY;
        }
        pause = drain.pass(pause);
    }
    while let Some(source) = drain.sources.first() {
        let id = source.session.id;
        drain.end(id, End::RUNNING, true);
    }
}

impl Source {
    /// Whether its rings are not looked at in this pass: a dormant process is, now and then; one
    /// that has sent more than it may is not, and drops what finds no room.
    fn is_left_alone(&mut self) -> bool {
        let Session { limit, mapping, .. } = &*self.session;
        let (most, since) = (limit.records.load(Relaxed), self.tokens.1.elapsed());
        if mapping.header().activation.0.load(Relaxed) == ACTIVATION_DORMANT && since < DORMANT {
            return true;
        }
        if most == 0 {
            self.tokens = (i64::MAX, Instant::now());
            return false;
        }
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let more = i64::try_from(since.as_nanos() * most as u128 / 1_000_000_000).unwrap_or(i64::MAX);
        if more > 0 {
            self.tokens = (self.tokens.0.saturating_add(more).min(most), Instant::now());
        }
        let is_spent = self.tokens.0 <= 0;
        if is_spent {
            limit.hits.fetch_add(1, Relaxed);
        }
        is_spent
    }

    /// Lets a process that has waited without success wait again, once its rings are read often
    /// enough: twice within a quarter of the time that it waits at most.
    fn may_wait_again(&mut self) {
        let since = std::mem::replace(&mut self.read, Instant::now()).elapsed();
        let header = self.session.mapping.header();
        if header.breaker.load(Relaxed) != 0
            && header.overflow.load(Relaxed) == OVERFLOW_BOUNDED
            && since.as_millis() < u128::from(header.wait_ms.load(Relaxed) / 4)
        {
            header.breaker.store(0, Relaxed);
        }
    }

    fn took(&mut self, records: u64) {
        self.tokens.0 = self.tokens.0.saturating_sub_unsigned(records);
    }
}

impl Drain {
    fn start(&mut self, session: Arc<Session>, worker: usize) {
        self.send(worker, Message::Start(Arc::clone(&session)));
        self.heart.add(session.id, Arc::clone(&session.mapping));
        let now = Instant::now();
        self.sources.push(Source {
            slots: Slots::new(Arc::clone(&session.mapping), session.process.start_tick, session.resumed),
            worker,
            waits: session.forked.as_ref().map(|(parent, _, tick)| (*parent, *tick)),
            reap: (now, REAP),
            read: now,
            tokens: (i64::MAX, now),
            counted: (now, false),
            session,
        });
    }

    /// What threads know only by the control words goes before.
    fn tell(&mut self, id: SessionId, tell: Tell) {
        if let Some(source) = self.sources.iter().find(|source| source.session.id == id) {
            self.send(source.worker, Message::Counts(id, source.slots.counts()));
            self.send(source.worker, Message::Tell(id, tell));
        }
    }

    /// Sends. The heart beats while the queue is full, and while many messages are sent.
    fn send(&self, worker: usize, message: Message) {
        let Some(queue) = self.workers.get(worker) else { return };
        let mut unsent = Some(message);
        while let Some(message) = unsent.take() {
            match queue.send_timeout(message, BEAT) {
                Ok(()) | Err(SendTimeoutError::Disconnected(_)) => {}
                Err(SendTimeoutError::Timeout(message)) => unsent = Some(message),
            }
            self.heart.keep_beating();
        }
    }

    /// Sends a batch as soon as not too many records are in flight.
    fn send_batch(&self, worker: usize, id: SessionId, batch: Batch) {
        while self.in_flight.is_full() {
            std::thread::sleep(Duration::from_millis(1));
            self.heart.keep_beating();
        }
        self.in_flight.sent(batch.records.len());
        self.send(worker, Message::Batch(id, batch));
    }

    /// Looks at everything once. Gives the time until the next look.
    fn pass(&mut self, pause: Duration) -> Duration {
        let cut = self.clock.now();
        // Before the rings are looked at: a timestamp made without a clock after that look is above
        // the cut too.
        self.heart.beat(cut);
        self.clock.grace();
        let (mut records, mut fullest, mut more, mut small) = (0, 0, false, false);
        for index in 0..self.sources.len() {
            if !self.may_pass(index) || self.sources[index].is_left_alone() {
                continue;
            }
            let mut batch = self.batches.try_recv().unwrap_or_default();
            let now = self.clock.now();
            let found = self.sources[index].slots.pass(cut, now, &mut batch, &self.heart);
            self.sources[index].may_wait_again();
            self.pass_on(index, batch);
            self.sources[index].took(found.records);
            records += found.records;
            fullest = fullest.max(found.fullest);
            more |= found.more;
            small |= found.records > 0 && self.sources[index].slots.has_small_rings();
            self.sources[index].counted.1 |= found.records > 0;
            self.housekeeping(index);
        }
        let dropping = |source: &Source| source.session.mapping.header().overflow.load(Relaxed) == OVERFLOW_DROP;
        let idle = if self.sources.iter().any(dropping) { IDLE_DROPPING } else { IDLE };
        let unhurried = if small { UNHURRIED_SMALL } else { UNHURRIED };
        if more || fullest > 64 {
            Duration::ZERO
        } else if fullest > 16 {
            (pause / 2).clamp(BUSY, unhurried)
        } else if records > 0 {
            (pause + pause / 4).clamp(BUSY, unhurried)
        } else {
            (pause + pause / 4).clamp(BUSY, idle)
        }
    }

    fn bequeath(&mut self, parent: SessionId, tick: u64) {
        self.pass(BUSY);
        if let Some(source) = self.sources.iter().find(|source| source.session.id == parent) {
            self.send(source.worker, Message::Bequeath { parent, tick });
        }
    }

    /// A forked child waits until its parent's events up to the fork are in the digest.
    fn may_pass(&mut self, index: usize) -> bool {
        let Some((parent, tick)) = self.sources[index].waits else { return true };
        let running = self.sources.iter().find(|source| source.session.id == parent);
        if running.is_some_and(|parent| parent.slots.frontier() < tick) {
            return false;
        }
        let (child, worker) = (self.sources[index].session.id, self.sources[index].worker);
        self.sources[index].waits = None;
        self.send(worker, Message::Inherit { child, parent, tick });
        true
    }

    /// News and records of a source go on, news first: a thread is known before its records.
    fn pass_on(&mut self, index: usize, batch: Batch) {
        let source = &mut self.sources[index];
        let (session, worker) = (Arc::clone(&source.session), source.worker);
        let news: Vec<News> = source.slots.news().collect();
        let (ended, begun): (Vec<News>, _) = news.into_iter().partition(|news| matches!(news, News::Ended(..)));
        let id = session.id;
        for news in begun {
            match news {
                News::Thread(number, tid) => {
                    let name = process::thread_name(session.process.pid, tid).unwrap_or_default();
                    self.send(worker, Message::Thread(id, number, tid, name, self.clock.now()));
                }
                News::Broken(thread, why) => {
                    tracing::warn!(pid = session.process.pid, thread, "a ring is not read any further: {why}");
                    self.send(
                        worker,
                        Message::Note(id, format!("the ring of thread {thread} is not read any further: {why}")),
                    );
                }
                News::Ended(..) => {}
            }
        }
        if !batch.records.is_empty() {
            self.send_batch(worker, id, batch);
        }
        for news in ended {
            if let News::Ended(thread, counts) = news {
                self.send(worker, Message::ThreadEnded(id, thread, counts));
            }
        }
    }

    /// What is done now and then: looks for threads that are gone, reads new names, tells the
    /// counts.
    fn housekeeping(&mut self, index: usize) {
        let source = &mut self.sources[index];
        if source.reap.0.elapsed() >= source.reap.1 {
            let pid = source.session.process.pid;
            let mut names = Vec::new();
            for (thread, tid) in source.slots.unnamed() {
                names.extend(process::thread_name(pid, tid).map(|name| (thread, tid, name)));
                self.heart.keep_beating();
            }
            let quiet = source.slots.quiet();
            let mut gone = FxHashSet::default();
            if !quiet.is_empty()
                && let Some(alive) = process::threads(pid, source.session.is_namespaced, || self.heart.keep_beating())
            {
                gone = quiet.into_iter().filter(|tid| !alive.contains(tid)).collect();
                source.slots.gone(&gone);
            }
            let next = if gone.is_empty() && names.is_empty() { (source.reap.1 * 2).min(REAP_SLOWLY) } else { REAP };
            source.reap = (Instant::now(), next);
            let (worker, id) = (source.worker, source.session.id);
            for (thread, tid, name) in names {
                self.send(worker, Message::Thread(id, thread, tid, name, self.clock.now()));
            }
        }
        let source = &mut self.sources[index];
        if source.counted.1 && source.counted.0.elapsed() >= COUNTS {
            source.counted = (Instant::now(), false);
            let (worker, message) = (source.worker, Message::Counts(source.session.id, source.slots.counts()));
            self.send(worker, message);
        }
    }

    fn end(&mut self, id: SessionId, end: End, closes: bool) {
        let Some(index) = self.sources.iter().position(|source| source.session.id == id) else { return };
        // A child that ends before it got its inheritance still gets it: a pass a generation.
        let begun = Instant::now();
        while self.sources[index].waits.is_some() && begun.elapsed() < INHERITS {
            self.pass(BUSY);
        }
        if let Some((parent, tick)) = self.sources[index].waits.take() {
            self.send(self.sources[index].worker, Message::Inherit { child: id, parent, tick });
        }
        if closes {
            self.sources[index].session.mapping.header().state.store(CLOSED, Release);
        }
        let cut = self.clock.now();
        self.clock.grace();
        let mut batch = self.batches.try_recv().unwrap_or_default();
        let now = self.clock.now();
        self.sources[index].slots.finish(cut, now, &mut batch, &self.heart);
        self.pass_on(index, batch);
        let source = self.sources.swap_remove(index);
        self.heart.remove(id);
        self.send(source.worker, Message::Counts(id, source.slots.counts()));
        if !closes {
            self.send(source.worker, Message::Leave(id));
        }
        self.send(source.worker, Message::End(id, end));
    }
}
