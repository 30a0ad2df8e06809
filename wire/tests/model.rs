//! Checks the protocol between a traced thread and the recorder in every order that the memory
//! model allows (loom). These are models of `ring.rs`, `area.rs` and the preload's attach, with the
//! same atomics and the same memory orders. A change of an order there needs the same change here.

#![allow(missing_docs)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;

/// Checks `body` with at most three preemptions in one run, which takes a small machine some
/// seconds.
fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

const CAPACITY: u64 = 2;

struct Ring {
    records: [UnsafeCell<u64>; CAPACITY as usize],
    head: AtomicU64,
    tail: AtomicU64,
    reservation: AtomicU64,
    emitted: AtomicU64,
    dropped: AtomicU64,
}

impl Ring {
    fn new() -> Ring {
        Ring {
            records: [UnsafeCell::new(0), UnsafeCell::new(0)],
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            reservation: AtomicU64::new(0),
            emitted: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn put(&self, position: u64, record: u64) {
        // SAFETY: loom checks that nobody reads or writes the cell at the same time.
        self.records[(position % CAPACITY) as usize].with_mut(|cell| unsafe { *cell = record });
    }

    fn get(&self, position: u64) -> u64 {
        // SAFETY: loom checks that nobody writes the cell at the same time.
        self.records[(position % CAPACITY) as usize].with(|cell| unsafe { *cell })
    }
}

/// Published records arrive complete and in order. With a full ring the event is dropped and
/// counted, and nothing is overwritten before it was copied.
#[test]
fn records_arrive_in_order_or_are_counted_as_dropped() {
    check(|| {
        let ring = Arc::new(Ring::new());
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let (mut head, mut dropped) = (0, 0);
                for event in 1..=3u64 {
                    ring.emitted.store(event, Relaxed);
                    if head - ring.tail.load(Acquire) >= CAPACITY {
                        dropped += 1;
                        ring.dropped.store(dropped, Release);
                        continue;
                    }
                    ring.put(head, event);
                    head += 1;
                    ring.head.store(head, Release);
                }
            })
        };
        let (mut tail, mut seen) = (0, Vec::new());
        let mut drain = |ring: &Ring| {
            let head = ring.head.load(Acquire);
            assert!(head >= tail && head - tail <= CAPACITY);
            while tail < head {
                seen.push(ring.get(tail));
                tail += 1;
            }
            ring.tail.store(tail, Release);
        };
        drain(&ring);
        drain(&ring);
        writer.join().expect("the writer");
        drain(&ring);
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
        assert_eq!(seen.len() as u64 + ring.dropped.load(Relaxed), ring.emitted.load(Relaxed));
    });
}

/// The rule of the barrier: a ring without a reservation holds every event with a timestamp before
/// the barrier. The clock is a counter here. A thread that reads it after another thread's
/// timestamp sees what that thread had stored before; on a CPU the barrier's delay ensures that.
#[test]
fn events_before_a_barrier_are_published_or_reserved() {
    check(|| {
        let (ring, clock) = (Arc::new(Ring::new()), Arc::new(AtomicU64::new(1)));
        let writer = {
            let (ring, clock) = (Arc::clone(&ring), Arc::clone(&clock));
            thread::spawn(move || {
                for head in 0..CAPACITY {
                    ring.reservation.store(head + 1, Relaxed);
                    let timestamp = clock.fetch_add(1, AcqRel);
                    ring.put(head, timestamp);
                    ring.head.store(head + 1, Release);
                }
            })
        };
        let barrier = clock.fetch_add(0, AcqRel);
        // `poll`: head before reservation.
        let head = ring.head.load(Acquire);
        let pending = ring.reservation.load(Acquire) > head;
        let published: Vec<u64> = (0..head).map(|position| ring.get(position)).collect();
        writer.join().expect("the writer");
        if !pending {
            let mut before = (0..CAPACITY).map(|position| ring.get(position)).filter(|timestamp| *timestamp < barrier);
            assert!(before.all(|timestamp| published.contains(&timestamp)));
        }
    });
}

/// A slot has one owner at a time, and a new owner finds the ring as the recorder left it.
#[test]
fn a_slot_is_claimed_by_one_thread_and_freed_empty() {
    check(|| {
        let (state, tail, owners) = (AtomicU32::new(1), AtomicU64::new(0), UnsafeCell::new(0));
        let slot = Arc::new((state, tail, owners));
        let claims = |slot: Arc<(AtomicU32, AtomicU64, UnsafeCell<u32>)>| {
            move || {
                let (state, tail, owners) = &*slot;
                if state.load(Relaxed) == 0 && state.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
                    assert_eq!(tail.load(Relaxed), 7, "the position at which the recorder stopped reading");
                    // SAFETY: loom checks that no other owner is here.
                    owners.with_mut(|count| unsafe { *count += 1 });
                }
            }
        };
        let claimers: Vec<_> = (0..2).map(|_| thread::spawn(claims(Arc::clone(&slot)))).collect();
        // The recorder: the last owner is gone and its ring is empty.
        slot.1.store(7, Release);
        slot.0.store(0, Release);
        claimers.into_iter().for_each(|claimer| claimer.join().expect("a claimer"));
        // SAFETY: all claiming threads have been joined.
        slot.2.with(|count| assert!(unsafe { *count } <= 1));
    });
}

/// The attach: one thread creates the session, and a thread that sees it live sees all of it. Other
/// threads continue without it.
#[test]
fn one_thread_attaches_and_the_others_see_all_or_nothing() {
    const NEW: u32 = 0;
    const ATTACHING: u32 = 1;
    const LIVE: u32 = 2;
    fn attach(state: &AtomicU32, session: &UnsafeCell<u64>) -> Option<u64> {
        match state.load(Acquire) {
            // SAFETY: loom checks that nobody writes it meanwhile.
            LIVE => Some(session.with(|session| unsafe { *session })),
            ATTACHING => None,
            _ if state.compare_exchange(NEW, ATTACHING, Acquire, Relaxed).is_ok() => {
                // SAFETY: loom checks that nobody reads or writes it meanwhile.
                session.with_mut(|session| unsafe { *session = 42 });
                state.store(LIVE, Release);
                Some(42)
            }
            _ => None,
        }
    }
    check(|| {
        let shared = Arc::new((AtomicU32::new(NEW), UnsafeCell::new(0u64)));
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || attach(&shared.0, &shared.1))
        };
        let mine = attach(&shared.0, &shared.1);
        let others = other.join().expect("the other");
        assert!([mine, others].into_iter().all(|seen| seen.is_none_or(|seen| seen == 42)));
        assert!(mine.is_some() || others.is_some());
    });
}

/// A client stores whether it uses its area before it closes its socket.
#[test]
fn attached_is_visible_before_the_socket_closes() {
    struct Client {
        attached: AtomicU32,
        closed: AtomicU32,
    }
    check(|| {
        let shared = Arc::new(Client { attached: AtomicU32::new(0), closed: AtomicU32::new(0) });
        let client = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.attached.store(1, Release);
                // The kernel's own order: a thread that sees the end of the connection sees all
                // stores before `close`.
                shared.closed.store(1, Release);
            })
        };
        if shared.closed.load(Acquire) == 1 {
            assert_eq!(shared.attached.load(Acquire), 1, "a recorded process is not taken for one that gave up");
        }
        client.join().expect("the client");
    });
}
