//! The protocol between a traced thread and the recorder, in every order that the memory model
//! allows (loom). These are models of what `ring.rs`, `area.rs` and the preload's attach do, with
//! the same words and the same orders; a change of an order there is a change here.

#![allow(missing_docs)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;

/// As deep as a small machine looks in some seconds: preemptions of one run.
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
    intent: AtomicU64,
    emitted: AtomicU64,
    lost: AtomicU64,
}

impl Ring {
    fn new() -> Ring {
        let word = || AtomicU64::new(0);
        let (head, tail, intent, emitted, lost) = (word(), word(), word(), word(), word());
        Ring { records: [UnsafeCell::new(0), UnsafeCell::new(0)], head, tail, intent, emitted, lost }
    }

    fn put(&self, position: u64, record: u64) {
        // SAFETY: loom checks that nobody reads or writes the cell at the same time.
        self.records[(position % CAPACITY) as usize].with_mut(|cell| unsafe { *cell = record });
    }

    fn get(&self, position: u64) -> u64 {
        // SAFETY: as above.
        self.records[(position % CAPACITY) as usize].with(|cell| unsafe { *cell })
    }
}

/// Whatever is published arrives whole and in order; a full ring loses the event and counts it;
/// nothing is overwritten before it was copied.
#[test]
fn records_arrive_whole_and_in_order_or_are_counted() {
    check(|| {
        let ring = Arc::new(Ring::new());
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let (mut head, mut lost) = (0, 0);
                for event in 1..=3u64 {
                    ring.emitted.store(event, Relaxed);
                    if head - ring.tail.load(Acquire) >= CAPACITY {
                        lost += 1;
                        ring.lost.store(lost, Release);
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
        assert_eq!(seen.len() as u64 + ring.lost.load(Relaxed), ring.emitted.load(Relaxed));
    });
}

/// The law of the cut: a ring that announces nothing holds everything that was stamped before the
/// cut. The clock is a counter here: a thread that reads it after another's timestamp sees what
/// that one had stored before, which on a processor is what the grace waits for.
#[test]
fn what_is_stamped_before_a_cut_is_published_or_announced() {
    check(|| {
        let (ring, clock) = (Arc::new(Ring::new()), Arc::new(AtomicU64::new(1)));
        let writer = {
            let (ring, clock) = (Arc::clone(&ring), Arc::clone(&clock));
            thread::spawn(move || {
                for head in 0..CAPACITY {
                    ring.reservation.store(head + 1, Relaxed);
                    let stamp = clock.fetch_add(1, AcqRel);
                    ring.put(head, stamp);
                    ring.head.store(head + 1, Release);
                }
            })
        };
        let cut = clock.fetch_add(0, AcqRel);
        // `poll`: head before intent.
        let head = ring.head.load(Acquire);
        let pending = ring.reservation.load(Acquire) > head;
        let published: Vec<u64> = (0..head).map(|position| ring.get(position)).collect();
        writer.join().expect("the writer");
        if !pending {
            let mut before = (0..CAPACITY).map(|position| ring.get(position)).filter(|stamp| *stamp < cut);
            assert!(before.all(|stamp| published.contains(&stamp)));
        }
    });
}

/// A slot has one owner at a time, and a new one finds the ring as the recorder left it.
#[test]
fn a_slot_is_claimed_once_and_given_back_whole() {
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
        // SAFETY: as above.
        slot.2.with(|count| assert!(unsafe { *count } <= 1));
    });
}

/// The attach: one thread makes the session, a thread that sees it live sees all of it, others go
/// on without.
#[test]
fn one_thread_attaches_and_the_others_see_all_or_nothing() {
    const NEW: u32 = 0;
    const ATTACHING: u32 = 1;
    const LIVE: u32 = 2;
    fn ask(state: &AtomicU32, session: &UnsafeCell<u64>) -> Option<u64> {
        match state.load(Acquire) {
            // SAFETY: loom checks that nobody writes it meanwhile.
            LIVE => Some(session.with(|session| unsafe { *session })),
            ATTACHING => None,
            _ if state.compare_exchange(NEW, ATTACHING, Acquire, Relaxed).is_ok() => {
                // SAFETY: as above.
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
            thread::spawn(move || ask(&shared.0, &shared.1))
        };
        let mine = ask(&shared.0, &shared.1);
        let others = other.join().expect("the other");
        assert!([mine, others].into_iter().all(|seen| seen.is_none_or(|seen| seen == 42)));
        assert!(mine.is_some() || others.is_some());
    });
}

/// A client that has closed its socket has said before whether it uses its area.
#[test]
fn who_leaves_has_said_whether_it_attached() {
    check(|| {
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let client = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                words.0.store(1, Release);
                // The kernel's own order: what was stored before `close` is seen by a thread that
                // sees the end.
                words.1.store(1, Release);
            })
        };
        if words.1.load(Acquire) == 1 {
            assert_eq!(words.0.load(Acquire), 1, "a process that is recorded is not taken for one that gave up");
        }
        client.join().expect("the client");
    });
}
