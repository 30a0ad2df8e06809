//! The first stage: one thread that reads all rings of all sessions repeatedly, and sends the
//! records whose order is certain.
//!
//! Busy rings are read again immediately, quiet ones less and less often, so an idle program costs
//! nothing. A full queue stops the drain but not its heartbeat: programs then wait for space and
//! see that the recorder runs.

use crate::digest::chunks::Message;
use crate::digest::process::ProcessCommand;
use crate::heap::live::WINDOW;
use crate::os::clock::Clock;
use crate::pipeline::residency::Request;
use crate::rings::batch::{Batch, InFlight};
use crate::rings::heartbeat::{BEAT, Heart};
use crate::rings::slots::{Slots, ThreadEvent};
use crate::session::traced_process::{Session, SessionId};
use crate::target::proc::{self, End, SeenEnd};
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use wire::area::{ACTIVATION_DORMANT, CLOSED, OVERFLOW_BOUNDED, OVERFLOW_DROP};

/// Interval of reading while events arrive. A ring of 65,536 records lasts 6 ms at 10 M events per
/// second.
const BUSY_INTERVAL: Duration = Duration::from_micros(200);
/// Maximum interval while rings fill slowly. Even at 20 M events per second they are not full by
/// then.
const MAX_BUSY_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum interval while events come from a program with enough threads that some have small
/// rings.
const MAX_BUSY_INTERVAL_SMALL_RINGS: Duration = Duration::from_micros(500);
/// Maximum interval when no events arrive.
const IDLE_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum interval when no events arrive and a program drops events when its ring is full.
const IDLE_INTERVAL_DROPPING: Duration = Duration::from_millis(2);
/// Minimum interval of the search for threads that have ended. It doubles each time that none has.
const MIN_REAP_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval of that search while a new thread waits for a slot.
const SHORTEST_REAP_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum interval of that search.
const MAX_REAP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of reading the rings of a dormant process: some threads may not have noticed that it
/// is.
const DORMANT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay of the end of a forked child by its parent's rings.
const INHERITANCE_TIMEOUT: Duration = Duration::from_millis(1200);
/// Maximum number of passes until all that had been published is read.
const MAX_SETTLING_PASSES: usize = 1000;
/// Interval at which the digest receives the counts of the control records.
const COUNTS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub enum Command {
    /// A session starts; this worker is its digest.
    Start(Arc<Session>, usize),
    End(SessionId, SeenEnd),
    /// A child was forked at this tick by a call that the library did not see. The current blocks
    /// of its parent, undone up to the tick, are kept for it. The sender is notified when that is
    /// done.
    PrepareFork(SessionId, u64, Sender<()>),
    /// A session continues with another recorder; its process does not notice that.
    Leave(SessionId),
    /// A command for the recording of a process, executed after all records that were drained
    /// before.
    Process(SessionId, ProcessCommand),
    /// The same, once the records that its threads have published by now are drained.
    ProcessSettled(SessionId, ProcessCommand),
    /// The same while its threads stand still: what they have announced does not come.
    ProcessStill(SessionId, ProcessCommand),
    /// Pages of a process are to be read. The thread that does it knows the session by then.
    ReadPages(Request),
}

/// The rings of one session, and what is due for them.
#[derive(Debug)]
struct Source {
    session: Arc<Session>,
    slots: Slots,
    worker: usize,
    /// The parent and the tick of the fork, for a child whose parent's events up to the fork were
    /// not all sent yet.
    waits_for: Option<ForkPoint>,
    reap: ReapSchedule,
    /// When the rings of the session were last read.
    read: Instant,
    counted: Counted,
    /// Whether calls of the last batch may wait in the digest until it knows that nothing precedes
    /// them.
    is_unsettled: bool,
}

/// The fork from which a child comes.
#[derive(Clone, Copy, Debug)]
struct ForkPoint {
    parent: SessionId,
    tick: u64,
}

/// When threads that have ended are searched.
#[derive(Debug)]
struct ReapSchedule {
    last: Instant,
    interval: Duration,
}

/// The counts of the control records, as the digest knows them.
#[derive(Debug)]
struct Counted {
    /// When the counts were last sent.
    sent: Instant,
    /// Whether records were drained since.
    is_outdated: bool,
}

/// The queues to which the thread sends.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// Messages to each digest.
    pub workers: Vec<Sender<Message>>,
    /// Requests to the thread that reads the pages of the processes.
    pub residency: Sender<Request>,
}

/// State of the thread.
#[derive(Debug)]
struct Drain {
    clock: Clock,
    heart: Heart,
    sources: Vec<Source>,
    outputs: Outputs,
    batches: Receiver<Batch>,
    in_flight: InFlight,
}

/// The thread of the stage: runs until the sender of commands is gone. Sessions that have not ended
/// then end as running.
pub(crate) fn run(
    clock: Clock,
    commands: &Receiver<Command>,
    outputs: Outputs,
    batches: Receiver<Batch>,
    in_flight: InFlight,
) {
    let mut drain =
        Drain { clock, heart: Heart::new(clock, in_flight.clone()), sources: Vec::new(), outputs, batches, in_flight };
    let mut pause = IDLE_INTERVAL;
    // The commands that were in the queue already when the rings were read to the end.
    let mut settled = 0usize;
    loop {
        let mut command = match commands.recv_timeout(pause) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        while let Some(next) = command.take() {
            let stands_still = matches!(next, Command::ProcessStill(..));
            match next {
                Command::Start(session, worker) => {
                    drain.start(session, worker);
                    // Its rings were not among them.
                    settled = 0;
                }
                Command::End(id, end) => drain.end(id, end, true),
                Command::PrepareFork(parent, tick, done) => {
                    drain.prepare_fork(parent, tick);
                    let _ = done.send(());
                }
                Command::Leave(id) => drain.end(id, SeenEnd::now(End::RUNNING, &clock), false),
                Command::Process(id, process_command) => drain.forward_command(id, process_command),
                Command::ProcessSettled(id, process_command) | Command::ProcessStill(id, process_command) => {
                    if settled == 0 {
                        settled = commands.len() + 1;
                        drain.settle();
                    }
                    if stands_still {
                        drain.read_still(id);
                    }
                    drain.forward_command(id, process_command);
                }
                Command::ReadPages(request) => drop(drain.outputs.residency.send(request)),
            }
            settled = settled.saturating_sub(1);
            command = commands.try_recv().ok();
            pause = BUSY_INTERVAL;
        }
        pause = drain.pass(pause);
    }
    while let Some(source) = drain.sources.first() {
        let id = source.session.id;
        drain.end(id, SeenEnd::now(End::RUNNING, &clock), true);
    }
}

impl Source {
    /// Returns whether the rings are not read in this pass. Those of a dormant process are read
    /// rarely. Those of a process that exceeds its limit are not read, so it drops events for want
    /// of space.
    fn is_skipped(&mut self) -> bool {
        let Session { limit, mapping, .. } = &*self.session;
        let is_dormant = mapping.header().activation.0.load(Relaxed) == ACTIVATION_DORMANT;
        (is_dormant && self.read.elapsed() < DORMANT_INTERVAL) || !limit.permits(Instant::now())
    }

    /// Permits a process that has waited without success to wait again, once its rings are read
    /// often enough: twice within a quarter of its maximum wait.
    fn reset_breaker(&mut self) {
        let since = std::mem::replace(&mut self.read, Instant::now()).elapsed();
        let header = self.session.mapping.header();
        if header.breaker.load(Relaxed) != 0
            && header.overflow.load(Relaxed) == OVERFLOW_BOUNDED
            && since.as_millis() < u128::from(header.wait_ms.load(Relaxed) / 4)
        {
            header.breaker.store(0, Relaxed);
        }
    }
}

impl Drain {
    fn start(&mut self, session: Arc<Session>, worker: usize) {
        self.send(worker, Message::Start(Arc::clone(&session)));
        let _ = self.outputs.residency.send(Request::Watch(Arc::clone(&session), worker));
        self.heart.add(session.id, Arc::clone(&session.mapping));
        let now = Instant::now();
        self.sources.push(Source {
            slots: Slots::new(Arc::clone(&session.mapping), session.process.start_tick, session.resumed),
            worker,
            waits_for: session.forked.as_ref().map(|fork| ForkPoint { parent: fork.parent, tick: fork.tick }),
            reap: ReapSchedule { last: now, interval: MIN_REAP_INTERVAL },
            read: now,
            counted: Counted { sent: now, is_outdated: false },
            is_unsettled: false,
            session,
        });
    }

    /// Sends a command to the recording of a process. The counts of the control records are sent
    /// before it.
    fn forward_command(&mut self, id: SessionId, process_command: ProcessCommand) {
        if let Some(source) = self.sources.iter().find(|source| source.session.id == id) {
            self.send(source.worker, Message::Counts(id, source.slots.counts()));
            self.send(source.worker, Message::Process(id, process_command));
        }
    }

    /// Sends a message. The heartbeat continues while the queue is full, and while many messages
    /// are sent.
    fn send(&self, worker: usize, message: Message) {
        let Some(queue) = self.outputs.workers.get(worker) else { return };
        let mut unsent = Some(message);
        while let Some(message) = unsent.take() {
            match queue.send_timeout(message, BEAT) {
                Ok(()) | Err(SendTimeoutError::Disconnected(_)) => {}
                Err(SendTimeoutError::Timeout(message)) => unsent = Some(message),
            }
            self.heart.keep_beating();
        }
    }

    /// Sends a batch, as soon as few enough records are in flight.
    fn send_batch(&self, worker: usize, id: SessionId, batch: Batch) {
        while self.in_flight.is_full() {
            std::thread::sleep(Duration::from_millis(1));
            self.heart.keep_beating();
        }
        self.in_flight.sent(batch.records.len());
        self.send(worker, Message::Batch(id, batch));
    }

    /// Reads all rings once. Returns the time until the next pass.
    fn pass(&mut self, pause: Duration) -> Duration {
        let barrier = self.clock.now();
        // The heartbeat is written before the rings are read: a timestamp that is taken from it
        // after that read is above the barrier too.
        self.heart.beat(barrier);
        self.clock.wait_for_stores();
        let (mut records, mut fullest, mut more, mut small, mut wanted) = (0, 0, false, false, false);
        for index in 0..self.sources.len() {
            if !self.is_ready(index) || self.sources[index].is_skipped() {
                continue;
            }
            let mut batch = self.batches.try_recv().unwrap_or_default();
            let now = self.clock.now();
            let found = self.sources[index].slots.pass(barrier, now, &mut batch, &self.heart);
            self.sources[index].reset_breaker();
            self.forward(index, batch);
            self.sources[index].session.limit.take(found.records);
            records += found.records;
            fullest = fullest.max(found.fullest);
            more |= found.more;
            small |= found.records > 0 && self.sources[index].slots.has_small_rings();
            self.sources[index].counted.is_outdated |= found.records > 0;
            self.housekeeping(index);
            wanted |= self.sources[index].slots.has_leaving();
        }
        let dropping = |source: &Source| source.session.mapping.header().overflow.load(Relaxed) == OVERFLOW_DROP;
        let idle = if self.sources.iter().any(dropping) { IDLE_INTERVAL_DROPPING } else { IDLE_INTERVAL };
        let unhurried = if small { MAX_BUSY_INTERVAL_SMALL_RINGS } else { MAX_BUSY_INTERVAL };
        if more || fullest > 64 {
            Duration::ZERO
        } else if wanted {
            BUSY_INTERVAL
        } else if fullest > 16 {
            (pause / 2).clamp(BUSY_INTERVAL, unhurried)
        } else if records > 0 {
            (pause + pause / 4).clamp(BUSY_INTERVAL, unhurried)
        } else {
            (pause + pause / 4).clamp(BUSY_INTERVAL, idle)
        }
    }

    /// Reads the rings until they have nothing more of what was published before. Calls that are near
    /// each other in time are in order only when a later pass has found nothing new.
    fn settle(&mut self) {
        let (began, tick) = (Instant::now(), self.clock.now());
        // Rings that are not read now, of a dormant process for instance, keep nobody waiting.
        let is_read = |source: &Source| source.read < began || source.slots.frontier() >= tick;
        for _ in 0..MAX_SETTLING_PASSES {
            if !self.pass(BUSY_INTERVAL).is_zero() || self.sources.iter().all(is_read) {
                break;
            }
        }
        self.pass_twice();
    }

    fn pass_twice(&mut self) {
        for _ in 0..2 {
            std::thread::sleep(BUSY_INTERVAL);
            self.pass(BUSY_INTERVAL);
        }
    }

    /// Reads what the threads of a process have published that stand still, also after what one of
    /// them has announced.
    fn read_still(&mut self, id: SessionId) {
        let Some(index) = self.sources.iter().position(|source| source.session.id == id) else { return };
        self.sources[index].slots.set_still(true);
        self.pass_twice();
        self.sources[index].slots.set_still(false);
    }

    fn prepare_fork(&mut self, parent: SessionId, tick: u64) {
        self.pass(BUSY_INTERVAL);
        if let Some(source) = self.sources.iter().find(|source| source.session.id == parent) {
            self.send(source.worker, Message::PrepareFork { parent, tick });
        }
    }

    /// Returns whether a session may be drained: a forked child waits until its parent's events up
    /// to the fork are in the digest.
    fn is_ready(&mut self, index: usize) -> bool {
        let Some(ForkPoint { parent, tick }) = self.sources[index].waits_for else { return true };
        let running = self.sources.iter().find(|source| source.session.id == parent);
        if running.is_some_and(|parent| parent.slots.frontier() < tick.saturating_add(WINDOW)) {
            return false;
        }
        let (child, worker) = (self.sources[index].session.id, self.sources[index].worker);
        self.sources[index].waits_for = None;
        self.send(worker, Message::Inherit { child, parent, tick });
        true
    }

    /// Sends thread events and records of a session, starts of threads first: a thread is known
    /// before its records.
    fn forward(&mut self, index: usize, batch: Batch) {
        let source = &mut self.sources[index];
        let (session, worker) = (Arc::clone(&source.session), source.worker);
        let events: Vec<ThreadEvent> = source.slots.drain_events().collect();
        let (ended, others): (Vec<ThreadEvent>, _) =
            events.into_iter().partition(|event| matches!(event, ThreadEvent::Ended(..)));
        let id = session.id;
        for event in others {
            match event {
                ThreadEvent::Started(number, tid) => {
                    let process = &session.process;
                    let name = proc::thread_name(process.pid, tid)
                        .unwrap_or_else(|| if tid == process.pid { short_name(&process.exe.0) } else { Vec::new() });
                    self.send(worker, Message::Thread(id, number, tid, name, self.clock.now()));
                }
                ThreadEvent::Corrupt(thread, why) => {
                    tracing::warn!(
                        pid = session.process.pid,
                        thread = thread.0,
                        "a ring is not read any further: {why}"
                    );
                    self.send(
                        worker,
                        Message::Note(id, format!("the ring of thread {} is not read any further: {why}", thread.0)),
                    );
                }
                ThreadEvent::Ended(..) => {}
            }
        }
        // One more batch without records follows the last one with them.
        let has_records = !batch.records.is_empty();
        let is_unsettled = &mut self.sources[index].is_unsettled;
        let was_unsettled = std::mem::replace(is_unsettled, has_records && batch.many_threads);
        if has_records || !batch.positions.is_empty() || was_unsettled {
            self.send_batch(worker, id, batch);
        }
        for event in ended {
            if let ThreadEvent::Ended(thread, counts) = event {
                self.send(worker, Message::ThreadEnded(id, thread, counts));
            }
        }
    }

    /// Periodic work: finds threads that have ended, reads new names, sends the counts.
    fn housekeeping(&mut self, index: usize) {
        let source = &mut self.sources[index];
        let wanted = &source.session.mapping.header().slots_wanted.0;
        let is_wanted = wanted.load(Relaxed) != 0 && source.reap.last.elapsed() >= SHORTEST_REAP_INTERVAL;
        if is_wanted || source.reap.last.elapsed() >= source.reap.interval {
            wanted.store(0, Relaxed);
            let pid = source.session.process.pid;
            let mut names = Vec::new();
            for (thread, tid) in source.slots.unnamed() {
                names.extend(proc::thread_name(pid, tid).map(|name| (thread, tid, name)));
                self.heart.keep_beating();
            }
            let quiet = source.slots.quiet(is_wanted);
            let mut gone = FxHashSet::default();
            if !quiet.is_empty()
                && let Some(alive) = proc::threads(pid, source.session.is_namespaced, || self.heart.keep_beating())
            {
                gone = quiet.into_iter().filter(|tid| !alive.contains(tid)).collect();
                source.slots.gone(&gone);
            }
            let interval = if gone.is_empty() && names.is_empty() {
                (source.reap.interval * 2).min(MAX_REAP_INTERVAL)
            } else {
                MIN_REAP_INTERVAL
            };
            source.reap = ReapSchedule { last: Instant::now(), interval };
            let (worker, id) = (source.worker, source.session.id);
            for (thread, tid, name) in names {
                self.send(worker, Message::Thread(id, thread, tid, name, self.clock.now()));
            }
        }
        let source = &mut self.sources[index];
        if source.counted.is_outdated && source.counted.sent.elapsed() >= COUNTS_INTERVAL {
            source.counted = Counted { sent: Instant::now(), is_outdated: false };
            let (worker, message) = (source.worker, Message::Counts(source.session.id, source.slots.counts()));
            self.send(worker, message);
        }
    }

    fn end(&mut self, id: SessionId, seen: SeenEnd, closes: bool) {
        let Some(index) = self.sources.iter().position(|source| source.session.id == id) else { return };
        // A child that ends before it has inherited its blocks still inherits them: one pass per
        // generation.
        let start_time = Instant::now();
        while self.sources[index].waits_for.is_some() && start_time.elapsed() < INHERITANCE_TIMEOUT {
            self.pass(BUSY_INTERVAL);
        }
        if let Some(ForkPoint { parent, tick }) = self.sources[index].waits_for.take() {
            self.send(self.sources[index].worker, Message::Inherit { child: id, parent, tick });
        }
        // A program that runs on drops the event at which it sees that nobody reads its rings.
        let runs_on = closes && seen.end == End::RUNNING;
        let counts_before = runs_on.then(|| self.sources[index].slots.all_counts(&self.heart));
        if closes {
            self.sources[index].session.mapping.header().state.store(CLOSED, Release);
        }
        let barrier = self.clock.now();
        self.clock.wait_for_stores();
        let mut batch = self.batches.try_recv().unwrap_or_default();
        let now = self.clock.now();
        self.sources[index].slots.finish(barrier, now, &mut batch, &self.heart);
        self.forward(index, batch);
        let source = self.sources.swap_remove(index);
        let _ = self.outputs.residency.send(Request::Forget(id));
        self.heart.remove(id);
        let counts = counts_before.unwrap_or_else(|| source.slots.counts());
        self.send(source.worker, Message::Counts(id, counts));
        if !closes {
            self.send(source.worker, Message::Leave(id));
        }
        self.send(source.worker, Message::End(id, seen));
    }
}

/// Returns the kernel's short name of a process that executed a program. Its first thread has the
/// same name.
fn short_name(exe: &[u8]) -> Vec<u8> {
    /// Length of the kernel's names of threads, in bytes.
    const MAX_NAME: usize = 15;
    let name = exe.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name[..name.len().min(MAX_NAME)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::sys::Mapping;
    use crate::session::traced_process::SessionBuilder;
    use crossbeam_channel::unbounded;
    use wire::{Params, Record};

    /// A process that has published one record, and its session.
    fn session(id: SessionId) -> Arc<Session> {
        let (mapping, _file) = Mapping::create(Params::default()).expect("an area");
        let slot = mapping.slot(0).expect("a slot");
        slot.owner.0.tid.store(7, Release);
        mapping.ring(0).expect("a ring").put(0, Record::dropped(1));
        slot.producer.0.reservation.store(1, Release);
        slot.producer.0.head.store(1, Release);
        mapping.header().slots_used.0.store(1, Release);
        SessionBuilder::of_this_process(id, mapping)
    }

    /// Two short processes that are in the queue when the drain gets to it: what is asked of each comes
    /// after its records.
    #[test]
    fn what_is_asked_of_a_process_comes_after_its_records() {
        let (commands, inputs) = unbounded();
        for id in [1, 2] {
            commands.send(Command::Start(session(id), 0)).expect("a queue");
            let note = ProcessCommand::Note("asked".into());
            commands.send(Command::ProcessSettled(id, note)).expect("a queue");
        }
        drop(commands);
        let ((worker, messages), (residency, _requests), (_free, batches)) = (unbounded(), unbounded(), unbounded());
        let outputs = Outputs { workers: vec![worker], residency };
        run(Clock::choose(), &inputs, outputs, batches, InFlight::new(None));
        let messages: Vec<Message> = messages.iter().collect();
        for id in [1, 2] {
            let is_read = |message: &Message| matches!(message, Message::Batch(of, batch) if *of == id && !batch.records.is_empty());
            let is_asked = |message: &Message| matches!(message, Message::Process(of, _) if *of == id);
            let (read, asked) = (messages.iter().position(is_read), messages.iter().position(is_asked));
            assert!(read.is_some() && read < asked, "{id}: {read:?} {asked:?}");
        }
    }
}
