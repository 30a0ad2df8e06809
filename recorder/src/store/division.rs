//! Divides the resident memory of processes whose events are not kept, in a thread of its own: the
//! digest passes a copy of its live blocks, which shares their memory, and does not wait.

mod live_blocks;

use crate::heap::index::Index;
use crate::heap::journal::Changes;
use crate::os::clock;
use crate::os::crash;
use crate::session::traced_process::Session;
use crossbeam_channel::{Receiver, Sender, unbounded};
use formats::recording::RAN_ALREADY;
use formats::resident::{self, Allocator, Covered, Ranges};
use formats::tape::field::Text;
use formats::tape::{Division, Residency};
use live_blocks::LiveBlocks;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// The blocks of a process at the time of a snapshot.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The own blocks of the process, and then those that it has inherited.
    pub indexes: Vec<Index>,
    /// The changes of its own blocks since the snapshot.
    pub changes: Changes,
    /// The pages on which blocks were freed.
    pub freed: Covered,
}

/// A snapshot whose memory is to be divided.
#[derive(Debug)]
pub(crate) struct Job {
    pub session: Arc<Session>,
    pub snapshot: Arc<Residency>,
    pub blocks: Blocks,
    /// Tick from which on the freed blocks are known; 0 if all of them are.
    pub freed_since_tick: u64,
}

/// The state of a division: `None` until the thread is done, which may have no result.
#[derive(Debug, Default)]
struct State {
    done: Mutex<Option<Option<Arc<Division>>>>,
    changed: Condvar,
}

impl State {
    fn set(&self, division: Option<Arc<Division>>) {
        self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(division);
        self.changed.notify_all();
    }
}

/// The result of a division, which may come later.
#[derive(Clone, Debug)]
pub struct Pending(Arc<State>);

impl Pending {
    /// Returns a result that is known.
    pub fn known(division: Division) -> Pending {
        let state = State::default();
        state.set(Some(Arc::new(division)));
        Pending(Arc::new(state))
    }

    /// Waits for the result, at most for this time.
    pub fn wait(&self, time: Duration) -> Option<Arc<Division>> {
        let done = self.0.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let wait = self.0.changed.wait_timeout_while(done, time, |done| done.is_none());
        let (done, _) = wait.unwrap_or_else(std::sync::PoisonError::into_inner);
        done.clone().flatten()
    }
}

/// Sets a result also if there is none, so that nothing waits in vain.
struct Promise(Arc<State>);

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// A snapshot for the thread, and where its result goes.
type Task = (Job, Arc<State>);

/// A sender to the thread that divides. The thread is started when it is first needed, and ends
/// when the last sender is dropped.
#[derive(Clone, Debug, Default)]
pub struct Divider(Arc<Thread>);

#[derive(Debug, Default)]
struct Thread {
    jobs: OnceLock<Option<Sender<Task>>>,
    cpu_ns: Arc<AtomicU64>,
}

impl Thread {
    /// Starts the thread. Returns `None` if there can be no other one.
    fn start(&self) -> Option<Sender<Task>> {
        let (jobs, received) = unbounded();
        let cpu_ns = Arc::clone(&self.cpu_ns);
        let started = crash::spawn("division", move || run(&received, &cpu_ns));
        started.inspect_err(|error| tracing::warn!("resident memory is not divided by use: {error}")).ok()?;
        Some(jobs)
    }
}

impl Divider {
    /// Passes a snapshot to the thread.
    pub(crate) fn divide(&self, job: Job) -> Pending {
        let state = Arc::new(State::default());
        let jobs = self.0.jobs.get_or_init(|| self.0.start());
        if jobs.as_ref().is_none_or(|jobs| jobs.send((job, Arc::clone(&state))).is_err()) {
            state.set(None);
        }
        Pending(state)
    }

    /// Returns the CPU time that the thread used since the last call.
    pub(crate) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.0.cpu_ns.swap(0, Relaxed))
    }
}

fn run(jobs: &Receiver<Task>, cpu_ns: &AtomicU64) {
    for (mut job, state) in jobs {
        let promise = Promise(state);
        let before = clock::thread_time();
        let mut division = divide(&mut job);
        division.cpu_ns = clock::thread_time().saturating_sub(before).as_nanos() as u64;
        job.session.stats.set_divided(&division);
        promise.0.set(Some(Arc::new(division)));
        // The copies of the blocks are freed here, which takes time, too.
        drop(job);
        cpu_ns.fetch_add(clock::thread_time().saturating_sub(before).as_nanos() as u64, Relaxed);
    }
}

/// Returns the allocator that serves most calls of a process, which has mapped files of these names: the tape of a process whose events
/// are not kept does not tell which one served a block.
pub(crate) fn allocator_of<'a>(session: &Session, mapped: impl Iterator<Item = Cow<'a, str>>) -> Allocator {
    let known = session.allocators();
    let all = session.stats.now();
    let inside = known.inside.iter().max_by_key(|one| one.events).filter(|one| one.events > all.allocs);
    match inside {
        Some(inside) => Allocator::of_inside(&inside.name, &inside.module),
        None => Allocator::of_process(&known.malloc, mapped),
    }
}

/// Divides the memory of a snapshot.
fn divide(job: &mut Job) -> Division {
    let Job { session, snapshot, blocks, freed_since_tick } = job;
    if let Some(own) = blocks.indexes.first_mut() {
        blocks.changes.undo(own);
    }
    let mut division = Division { tick: snapshot.tick, freed_since_tick: *freed_since_tick, ..Division::default() };
    if session.hooks.unseen_mappings() == RAN_ALREADY {
        division.blocks_since_tick = session.process.start_tick;
    }
    let runs = match snapshot.runs() {
        Ok(runs) => runs,
        Err(error) => {
            division.lacks = Text::from(error.to_string().as_str());
            return division;
        }
    };
    let page = u64::from(session.process.page_size).max(512);
    let allocator = allocator_of(session, snapshot.names.iter().map(Text::lossy));
    let mut source = LiveBlocks::new(&blocks.indexes);
    division.allocator = allocator.number();
    (division.blocks, division.inherited_blocks, division.inherited_bytes) =
        (source.blocks(), source.inherited_blocks(), source.inherited_bytes());
    let mut resident = resident::divide(
        resident::Pages { runs: &runs, ranges: &Ranges::of(&snapshot.mappings), page },
        resident::Blocks {
            source: &mut source,
            main: allocator,
            allocator: &|_| allocator,
            covered: Some(&blocks.freed),
        },
        &mut |_, _| {},
    );
    resident.bill.unlisted = snapshot.unlisted_pages.saturating_mul(page);
    resident.store_into(&mut division);
    division
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_is_waited_for_and_a_missing_one_is_none() {
        let state = Arc::new(State::default());
        let pending = Pending(Arc::clone(&state));
        assert_eq!(pending.wait(Duration::ZERO), None, "it is not known yet");
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            // A thread that panics in a division promises nothing any more.
            drop(Promise(state));
        });
        let begun = std::time::Instant::now();
        assert_eq!(pending.wait(Duration::from_secs(60)), None);
        assert!(begun.elapsed() < Duration::from_secs(30));
        later.join().expect("it ends");
        let known = Pending::known(Division { blocks: 7, ..Division::default() });
        assert_eq!(known.wait(Duration::ZERO).map(|division| division.blocks), Some(7));
    }
}
