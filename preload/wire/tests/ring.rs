//! Checks `ring.rs` itself in every order of loads and stores that the memory model allows, with
//! loom: `scripts/loom`. The writer's part is that of `preload/src/record`: space, reservation,
//! timestamp, record, head.
#![cfg(loom)]

use heaptape_wire::Record;
use heaptape_wire::ring::model::SlotControl;
use heaptape_wire::ring::{Reader, Ring};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

const CAPACITY: u64 = 2;

/// Checks `body` with at most three preemptions in one run, which takes some seconds.
fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// The shared memory of one ring.
struct Shared {
    records: Box<[UnsafeCell<Record>]>,
    control: SlotControl,
}

// SAFETY: the records are accessed through `Ring` alone, and loom reports access at the same time.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        let records = (0..CAPACITY).map(|_| UnsafeCell::new(Record::default())).collect();
        Arc::new(Shared { records, control: SlotControl::default() })
    }

    fn ring(&self) -> Ring {
        // SAFETY: there are `CAPACITY` records, a power of two, and the ring is used only while
        // `self` is shared.
        unsafe { Ring::new(self.records.as_ptr().cast_mut(), CAPACITY) }
    }
}

/// A record that holds a number.
fn record(number: u64) -> Record {
    Record::timestamp(number)
}

/// Published records arrive complete and in order, and the writer reuses only what was copied.
#[test]
fn records_arrive_complete_and_in_order() {
    check(|| {
        let shared = Shared::new();
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (ring, control, mut head) = (shared.ring(), &shared.control, 0);
                for number in 1..=3 {
                    if head - control.consumer.0.tail.load(Acquire) < CAPACITY {
                        ring.put(head, record(number));
                        head += 1;
                        control.producer.0.head.store(head, Release);
                    }
                }
                head
            })
        };
        let (mut reader, mut seen) = (Reader::new(shared.ring(), 0), Vec::new());
        let mut drain = |reader: &mut Reader| {
            let ready = reader.poll(&shared.control).expect("an honest writer").ready;
            reader.copy(ready, |records| seen.extend_from_slice(records));
            reader.release(&shared.control);
        };
        drain(&mut reader);
        drain(&mut reader);
        let written = writer.join().expect("the writer");
        drain(&mut reader);
        let all: Vec<Record> = (1..=3).map(record).collect();
        assert_eq!(seen.len() as u64, written);
        let mut rest = all.iter();
        assert!(seen.iter().all(|found| rest.any(|expected| expected == found)), "{seen:?}");
    });
}

/// The rule of the barrier: without a pending record, every event with a timestamp before the
/// barrier is ready. The clock is a counter here. A thread that reads it after another thread's
/// timestamp sees what that thread had stored before; on a CPU the barrier's delay ensures that.
#[test]
fn events_before_a_barrier_are_ready_or_pending() {
    check(|| {
        let (shared, clock) = (Shared::new(), Arc::new(AtomicU64::new(1)));
        let writer = {
            let (shared, clock) = (Arc::clone(&shared), Arc::clone(&clock));
            thread::spawn(move || {
                let (ring, control, mut timestamps) = (shared.ring(), &shared.control, Vec::new());
                for head in 0..CAPACITY {
                    control.producer.0.reservation.store(head + 1, Relaxed);
                    let timestamp = clock.fetch_add(1, AcqRel);
                    timestamps.push(timestamp);
                    ring.put(head, record(timestamp));
                    control.producer.0.head.store(head + 1, Release);
                }
                timestamps
            })
        };
        let barrier = clock.fetch_add(0, AcqRel);
        let (mut reader, mut seen) = (Reader::new(shared.ring(), 0), Vec::new());
        let poll = reader.poll(&shared.control).expect("an honest writer");
        reader.copy(poll.ready, |records| seen.extend_from_slice(records));
        let timestamps = writer.join().expect("the writer");
        if !poll.pending {
            let mut before = timestamps.iter().filter(|timestamp| **timestamp < barrier);
            assert!(before.all(|timestamp| seen.contains(&record(*timestamp))));
        }
    });
}

/// The same where nothing orders the announcement and the clock, as on aarch64: there the recorder makes
/// a barrier on each processor that runs a writer (membarrier), which pairs with the program order of the
/// writer as a fence does. Without the two fences this fails.
#[test]
fn events_before_a_barrier_are_ready_or_pending_with_weak_order() {
    check(|| {
        let (shared, clock) = (Shared::new(), Arc::new(AtomicU64::new(1)));
        let writer = {
            let (shared, clock) = (Arc::clone(&shared), Arc::clone(&clock));
            thread::spawn(move || {
                let (ring, control, mut timestamps) = (shared.ring(), &shared.control, Vec::new());
                for head in 0..CAPACITY {
                    control.producer.0.reservation.store(head + 1, Relaxed);
                    fence(SeqCst);
                    let timestamp = clock.fetch_add(1, Relaxed);
                    timestamps.push(timestamp);
                    ring.put(head, record(timestamp));
                    control.producer.0.head.store(head + 1, Release);
                }
                timestamps
            })
        };
        let barrier = clock.fetch_add(0, Relaxed);
        fence(SeqCst);
        let (mut reader, mut seen) = (Reader::new(shared.ring(), 0), Vec::new());
        let poll = reader.poll(&shared.control).expect("an honest writer");
        reader.copy(poll.ready, |records| seen.extend_from_slice(records));
        let timestamps = writer.join().expect("the writer");
        if !poll.pending {
            let mut before = timestamps.iter().filter(|timestamp| **timestamp < barrier);
            assert!(before.all(|timestamp| seen.contains(&record(*timestamp))));
        }
    });
}

/// A writer that waits for space is woken: either it sees the new tail before it sleeps, or the
/// reader sees that it waits. The writer's two accesses are SeqCst in the preload. loom models
/// SeqCst for fences only, so a fence between them represents their order.
#[test]
fn waiting_writer_is_never_forgotten() {
    check(|| {
        let shared = Shared::new();
        let ring = shared.ring();
        (0..CAPACITY).for_each(|position| ring.put(position, record(position)));
        shared.control.producer.0.head.store(CAPACITY, Release);
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let control = &shared.control;
                control.waiting.0.store(1, SeqCst);
                fence(SeqCst);
                CAPACITY - control.consumer.0.tail.load(Acquire) >= CAPACITY
            })
        };
        let mut reader = Reader::new(shared.ring(), 0);
        let ready = reader.poll(&shared.control).expect("an honest writer").ready;
        reader.copy(ready, |_| {});
        let wakes = reader.release(&shared.control);
        let sleeps = writer.join().expect("the writer");
        assert!(!sleeps || wakes, "the writer sleeps, and nothing wakes it");
    });
}
