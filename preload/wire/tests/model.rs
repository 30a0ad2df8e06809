//! Checks the claim of a slot and the attach in every order that the memory model allows (loom).
//! These are models of the preload's code, with the same atomics and the same memory orders. A
//! change of an order there needs the same change here. `ring.rs` checks the ring itself.

#![cfg(not(loom))]
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
