//! Tests of resizes whose address is used again before they end.

use super::{MAX_CALLS, MAX_TICKS};
use crate::heap::live::Kind::{Alloc, Free, Implied, Resize};
use crate::heap::live::WINDOW;
use crate::heap::live::tests::Scenario;
use crate::heap::thread_number::ThreadNumber;
use wire::Op;

const P: u64 = 16;
const Q: u64 = 32;
const R: u64 = 48;
const S: u64 = 64;

#[test]
fn resize_comes_before_the_allocation_that_got_its_address() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::MALLOC, 2, P, 5);
    scenario.step(Op::FREE, 2, P, 0).step(Op::MALLOC, 3, P, 6).step(Op::MALLOC, 3, Q, 7);
    assert_eq!((scenario.out.len(), scenario.live.waiting().count()), (1, 4));
    scenario.step(Op::RESIZE, 1, R, 100);
    assert_eq!(scenario.live.waiting().count(), 0);
    scenario.step(Op::FREE, 1, R, 0);
    let expected = [
        (Alloc, 1, P, 10),
        (Resize, 1, R, 100),
        (Alloc, 2, P, 5),
        (Free, 2, P, 0),
        (Alloc, 3, P, 6),
        (Alloc, 4, Q, 7),
        (Free, 1, R, 0),
    ];
    assert_eq!(scenario.end(), expected);
    // All but the resize have their own time.
    assert_eq!(scenario.out.iter().map(|effect| effect.call.tick).collect::<Vec<_>>(), [1, 3, 3, 4, 5, 6, 8]);
}

#[test]
fn resize_to_nothing_comes_before_the_allocation_that_got_its_address() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::MALLOC, 2, P, 5);
    scenario.step(Op::RESIZE_FREED, 1, P, 0);
    assert_eq!(scenario.end(), [(Alloc, 1, P, 10), (Free, 1, P, 0), (Alloc, 2, P, 5)]);
}

#[test]
fn resizes_that_pass_an_address_on_come_in_their_order() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::MALLOC, 2, Q, 20);
    // T1's block goes from P to R, T2's from Q to P, T3 gets Q; and T1 returns last.
    scenario.step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::RESIZE_BEGIN, 2, Q, 0).step(Op::RESIZE, 2, P, 21);
    scenario.step(Op::MALLOC, 3, Q, 30).step(Op::RESIZE, 1, R, 11);
    let expected = [(Alloc, 1, P, 10), (Alloc, 2, Q, 20), (Resize, 1, R, 11), (Resize, 2, P, 21), (Alloc, 3, Q, 30)];
    assert_eq!(scenario.end(), expected);
}

#[test]
fn several_resizes_are_awaited_one_after_the_other() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::MALLOC, 2, Q, 20);
    scenario.step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::RESIZE_BEGIN, 2, Q, 0);
    scenario.step(Op::MALLOC, 3, P, 30).step(Op::MALLOC, 3, Q, 31).step(Op::FREE, 3, P, 0);
    scenario.step(Op::RESIZE, 1, R, 11).step(Op::RESIZE, 2, S, 21);
    let expected = [
        (Alloc, 1, P, 10),
        (Alloc, 2, Q, 20),
        (Resize, 1, R, 11),
        (Alloc, 3, P, 30),
        (Resize, 2, S, 21),
        (Alloc, 4, Q, 31),
        (Free, 3, P, 0),
    ];
    assert_eq!(scenario.end(), expected);
}

#[test]
fn resize_to_the_address_of_another_one_waits_for_its_end() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::MALLOC, 2, Q, 20);
    scenario.step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::RESIZE_BEGIN, 2, Q, 0).step(Op::MALLOC, 3, Q, 30);
    scenario.step(Op::RESIZE, 2, P, 21);
    scenario.tick += 2 * WINDOW;
    scenario.step(Op::MALLOC, 3, S, 31).step(Op::RESIZE, 1, R, 11);
    let expected = [
        (Alloc, 1, P, 10),
        (Alloc, 2, Q, 20),
        (Resize, 1, R, 11),
        (Resize, 2, P, 21),
        (Alloc, 3, Q, 30),
        (Alloc, 4, S, 31),
    ];
    assert_eq!(scenario.end(), expected);
}

/// A signal handler resizes and allocates inside of the resize.
#[test]
fn resizes_of_a_handler_end_before_the_one_that_they_interrupt() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::MALLOC, 1, Q, 20);
    scenario.step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::RESIZE_BEGIN, 1, Q, 0).step(Op::MALLOC, 2, P, 30);
    scenario.step(Op::RESIZE, 1, R, 21).step(Op::RESIZE_BEGIN, 1, R, 0).step(Op::RESIZE, 1, Q, 22);
    scenario.step(Op::RESIZE, 1, S, 11);
    let expected = [
        (Alloc, 1, P, 10),
        (Alloc, 2, Q, 20),
        (Resize, 1, S, 11),
        (Alloc, 3, P, 30),
        (Resize, 2, R, 21),
        (Resize, 2, Q, 22),
    ];
    assert_eq!(scenario.end(), expected);
}

/// The timestamp of T1's first half is later than the one of the allocation that it makes possible.
#[test]
fn allocation_that_was_seen_before_both_halves_comes_after_them() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::MALLOC, 2, P, 20).step(Op::MALLOC, 2, Q, 21);
    scenario.step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::MALLOC, 3, S, 30);
    scenario.tick += 2 * WINDOW;
    scenario.step(Op::FREE, 3, S, 0).step(Op::RESIZE, 1, R, 11);
    let expected = [
        (Alloc, 1, P, 10),
        (Resize, 1, R, 11),
        (Alloc, 2, P, 20),
        (Alloc, 3, Q, 21),
        (Alloc, 4, S, 30),
        (Free, 4, S, 0),
    ];
    assert_eq!(scenario.end(), expected);
}

/// The new address is still that of a block whose free is seen later.
#[test]
fn second_half_waits_for_the_free_of_its_address() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, P, 10).step(Op::MALLOC, 3, R, 30).step(Op::RESIZE_BEGIN, 1, P, 0);
    scenario.step(Op::MALLOC, 2, P, 20).step(Op::RESIZE, 1, R, 11).step(Op::FREE, 3, R, 0);
    let expected = [(Alloc, 1, P, 10), (Alloc, 2, R, 30), (Free, 2, R, 0), (Resize, 1, R, 11), (Alloc, 3, P, 20)];
    assert_eq!(scenario.end(), expected);
}

#[test]
fn resize_that_does_not_end_becomes_a_free_and_an_allocation() {
    for end in [Op::RESIZE, Op::RESIZE_FREED, Op::RESIZE_FAILED] {
        let mut scenario = Scenario::new();
        scenario.step(Op::MALLOC, 1, P, 10).step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::MALLOC, 2, P, 5);
        scenario.tick += MAX_TICKS;
        scenario.step(Op::FREE, 2, P, 0);
        assert_eq!(scenario.live.waiting().count(), 0);
        let address = if end == Op::RESIZE { R } else { P };
        scenario.step(end, 1, address, 100);
        let mut expected = vec![(Alloc, 1, P, 10), (Implied, 1, P, 0), (Alloc, 2, P, 5), (Free, 2, P, 0)];
        expected.extend((end == Op::RESIZE).then_some((Alloc, 3, R, 100)));
        assert_eq!(scenario.end(), expected);
        assert_eq!(scenario.live.excused, u64::from(end == Op::RESIZE_FREED));
    }
}

#[test]
fn end_of_a_thread_or_of_the_process_ends_the_wait() {
    for ends_thread in [true, false] {
        let mut scenario = Scenario::new();
        scenario.step(Op::MALLOC, 1, P, 10).step(Op::RESIZE_BEGIN, 1, P, 0).step(Op::MALLOC, 2, P, 5);
        if ends_thread {
            scenario.live.end_thread(ThreadNumber(1), scenario.tick, &mut scenario.out);
            assert_eq!(scenario.out.len(), 3);
        }
        assert_eq!(scenario.end(), [(Alloc, 1, P, 10), (Implied, 1, P, 0), (Alloc, 2, P, 5)]);
    }
}

#[test]
fn kept_calls_are_bounded() {
    let mut scenario = Scenario::new();
    let blocks = 40;
    for block in 1..=blocks {
        scenario.step(Op::MALLOC, 1, 16 * block, 1).step(Op::RESIZE_BEGIN, 1, 16 * block, 0);
    }
    // None of the resizes ever ends, and each allocation waits for another one.
    for round in 0..MAX_CALLS as u64 * 2 {
        let address = 16 * (1 + round % blocks);
        scenario.step(if round / blocks % 2 == 0 { Op::MALLOC } else { Op::FREE }, 2, address, 1);
        assert!(scenario.live.waiting().size_hint().0 <= 2 * MAX_CALLS);
    }
    let events = scenario.end().len() as u64;
    assert_eq!(events, blocks * 2 + MAX_CALLS as u64 * 2);
}
