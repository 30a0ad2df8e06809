//! Tests of the order of calls: single sequences, and random runs of threads against what really
//! happened.

use crate::heap::live::tests::{Scenario, call};
use crate::heap::live::{Kind, WINDOW};
use crate::heap::thread_number::ThreadNumber;
use proptest::prelude::*;
use std::collections::HashMap;
use wire::Op;

const T1: u32 = 1;
const T2: u32 = 2;
const T3: u32 = 3;
const P: u64 = 16;
const R: u64 = 32;
const S: u64 = 48;

#[test]
fn allocation_of_a_live_address_waits_for_its_free() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, T1, P, 10).step(Op::MALLOC, T1, P, 11).step(Op::MALLOC, T1, R, 12);
    assert_eq!(scenario.live.waiting().count(), 2);
    scenario.step(Op::FREE, T2, P, 0);
    assert_eq!(scenario.live.waiting().count(), 0);
    scenario.tick += 2 * WINDOW;
    scenario.step(Op::FREE, T2, P, 0);
    let expected = [
        (Kind::Alloc, 1, P, 10),
        (Kind::Free, 1, P, 0),
        (Kind::Alloc, 2, P, 11),
        (Kind::Alloc, 3, R, 12),
        (Kind::Free, 2, P, 0),
    ];
    assert_eq!(scenario.end(), expected);
}

#[test]
fn free_waits_one_window_for_its_allocation() {
    let mut scenario = Scenario::new();
    scenario.step(Op::FREE, T2, P, 0).step(Op::MALLOC, T1, R, 1).step(Op::MALLOC, T1, P, 10);
    scenario.step(Op::FREE, T2, S, 0);
    scenario.tick += WINDOW;
    scenario.step(Op::MALLOC, T1, S, 3);
    let expected = [
        (Kind::Alloc, 1, R, 1),
        (Kind::Alloc, 2, P, 10),
        (Kind::Free, 2, P, 0),
        (Kind::Unmatched, 0, S, 0),
        (Kind::Alloc, 3, S, 3),
    ];
    assert_eq!(scenario.end(), expected);
    assert_eq!(scenario.live.unknown, 1);
}

#[test]
fn free_of_an_unknown_block_delays_its_thread_by_one_window() {
    let mut scenario = Scenario::new();
    scenario.step(Op::FREE, T1, P, 0).step(Op::MALLOC, T1, R, 1);
    assert!(!scenario.live.settle(scenario.tick + WINDOW - 1, &mut scenario.out));
    assert_eq!((scenario.live.waiting().count(), scenario.out.len()), (2, 0));
    assert!(scenario.live.settle(scenario.tick + WINDOW, &mut scenario.out));
    assert_eq!(scenario.live.waiting().count(), 0);
    assert_eq!(scenario.out[0].call.tick, scenario.tick - 1 + 1);
    assert_eq!(scenario.end(), [(Kind::Unmatched, 0, P, 0), (Kind::Alloc, 1, R, 1)]);
}

/// An allocation whose free was dropped is not followed by a free that is left out.
#[test]
fn free_after_a_dropped_one_belongs_to_the_new_block() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, T1, P, 10).step(Op::MALLOC, T2, P, 11);
    scenario.tick += WINDOW + 1;
    scenario.step(Op::FREE, T1, P, 0);
    let expected = [(Kind::Alloc, 1, P, 10), (Kind::Implied, 1, P, 0), (Kind::Alloc, 2, P, 11), (Kind::Free, 2, P, 0)];
    assert_eq!(scenario.end(), expected);
    assert_eq!(scenario.live.excused, 0);
}

#[test]
fn halves_of_a_resize_wait_like_a_free_and_an_allocation() {
    let mut scenario = Scenario::new();
    // T1 allocates P and passes it to T2, which moves it to R. T3 frees R. T1 allocates R again.
    scenario.step(Op::FREE, T3, R, 0).step(Op::RESIZE_BEGIN, T2, P, 0).step(Op::RESIZE, T2, R, 20);
    scenario.step(Op::MALLOC, T1, P, 10).step(Op::MALLOC, T1, R, 30);
    let expected = [(Kind::Alloc, 1, P, 10), (Kind::Resize, 1, R, 20), (Kind::Free, 1, R, 0), (Kind::Alloc, 2, R, 30)];
    assert_eq!(scenario.end(), expected);
}

#[test]
fn failed_resize_allocates_its_old_address() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, T1, P, 10).step(Op::RESIZE_BEGIN, T1, P, 0);
    // The free is that of the block whose resize failed.
    scenario.step(Op::FREE, T2, P, 0).step(Op::RESIZE_FAILED, T1, P, 0);
    assert_eq!(scenario.end(), [(Kind::Alloc, 1, P, 10), (Kind::Free, 1, P, 0)]);
}

/// The order of what really happened: T2 allocates P and R, T3 frees R and P, T1 allocates P and
/// S. By timestamps the first call is T1's, which is legal. Then no other call is.
#[test]
fn wrong_choice_between_legal_calls_costs_one_implied_free() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, T1, P, 11).step(Op::MALLOC, T1, S, 12);
    scenario.step(Op::FREE, T3, R, 0).step(Op::FREE, T3, P, 0);
    scenario.step(Op::MALLOC, T2, P, 21).step(Op::MALLOC, T2, R, 22);
    assert_eq!(scenario.live.waiting().count(), 4);
    scenario.tick += WINDOW;
    scenario.step(Op::FREE, T1, S, 0);
    let expected = [
        (Kind::Alloc, 1, P, 11),
        (Kind::Alloc, 2, S, 12),
        (Kind::Implied, 1, P, 0),
        (Kind::Alloc, 3, P, 21),
        (Kind::Alloc, 4, R, 22),
        (Kind::Free, 4, R, 0),
        (Kind::Free, 2, S, 0),
    ];
    assert_eq!(scenario.end(), expected);
    // The owed free is counted, and is no free of an unknown block.
    assert_eq!((scenario.live.excused, scenario.live.unknown), (1, 0));
}

#[test]
fn owed_first_half_of_a_resize_leaves_the_later_block() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, T1, P, 11);
    scenario.step(Op::FREE, T3, R, 0).step(Op::RESIZE_BEGIN, T3, P, 0).step(Op::RESIZE, T3, S, 40);
    scenario.step(Op::MALLOC, T2, P, 21).step(Op::MALLOC, T2, R, 22);
    scenario.tick += WINDOW + 1;
    scenario.step(Op::FREE, T1, P, 0);
    scenario.end();
    let live: Vec<_> = scenario.live.index().iter().map(|(address, block)| (address, block.size)).collect();
    assert_eq!(live, [(S, 40)]);
}

#[test]
fn waiting_calls_are_bounded() {
    let mut scenario = Scenario::new();
    for _ in 0..10_000 {
        // All at one tick, as a hostile client could write it.
        let free = call(Op::FREE, T1, P, 0, 1);
        let location = scenario.live.location(free.address);
        scenario.live.apply(&free, location, true, &mut scenario.out);
    }
    assert!(scenario.live.waiting().count() <= super::MAX_HELD);
    scenario.end();
    assert_eq!(scenario.live.unknown, 10_000);
}

/// A resize that is ended early has a time, and what waited for it comes later.
#[test]
fn calls_that_wait_behind_an_early_end_are_not_dated_before_it() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, T1, P, 10).step(Op::MALLOC, T1, S, 11);
    // T3 resizes P, and in a signal handler waits for a free of S. T1 gets P, T2 frees S.
    scenario.step(Op::RESIZE_BEGIN, T3, P, 0).step(Op::MALLOC, T3, S, 12).step(Op::MALLOC, T1, P, 13);
    scenario.step(Op::FREE, T2, S, 0).step(Op::MALLOC, T2, P, 14);
    scenario.end();
    let ticks: Vec<_> = scenario.out.iter().map(|effect| effect.call.tick).collect();
    assert!(ticks.is_sorted(), "{:?}", scenario.out);
}

/// What a thread really did, with the timestamp that the recorder sees.
#[derive(Clone, Copy, Debug)]
struct Real {
    op: Op,
    thread: u32,
    address: u64,
    /// The number of the allocation; that of a free is the one that it frees.
    number: u64,
    seen: u64,
}

/// Makes a legal run of threads on a few addresses. Each timestamp is up to `skew` ticks too early,
/// but later than the thread's last one. Between a call for an address and the second one after it
/// are more than `skew` ticks: no address is passed on twice in that time.
fn run(choices: &[(u8, u8, u8)], threads: u32, addresses: u64, skew: u64) -> Vec<Real> {
    let mut numbers = HashMap::<u64, Option<u64>>::new();
    let (mut number, mut tick) = (0, 10_000);
    let (mut last, mut times) = (HashMap::<u32, u64>::new(), HashMap::<u64, [u64; 2]>::new());
    let mut all = Vec::new();
    for (who, what, early) in choices {
        let (thread, address) = (1 + u32::from(*who) % threads, 16 * (1 + u64::from(*what) % addresses));
        let [second, first] = times.get(&address).copied().unwrap_or_default();
        tick = (tick + 1).max(second + skew + 1);
        times.insert(address, [first, tick]);
        let seen = (tick - u64::from(*early) * skew / 255).max(last.get(&thread).copied().unwrap_or(0));
        last.insert(thread, seen);
        let live = numbers.entry(address).or_default();
        let (op, own) = match live.take() {
            Some(number) => (Op::FREE, number),
            None => {
                number += 1;
                *live = Some(number);
                (Op::MALLOC, number)
            }
        };
        all.push(Real { op, thread, address, number: own, seen });
    }
    all
}

/// Applies a run in the order of its timestamps. Returns what was applied, by its numbers: the size
/// of a block is its number.
fn applied(real: &[Real]) -> (Scenario, Vec<(Kind, u64)>) {
    let mut sorted = real.to_vec();
    sorted.sort_by_key(|call| (call.seen, call.thread));
    let mut scenario = Scenario::new();
    for Real { op, thread, address, number, seen } in sorted {
        scenario.tick = seen - 1;
        scenario.step(op, thread, address, if op == Op::MALLOC { number } else { 0 });
    }
    scenario.end();
    let number = |effect: &crate::heap::live::Effect| match effect.kind {
        Kind::Alloc => effect.call.size,
        _ => effect.old.size,
    };
    let effects = scenario.out.iter().map(|effect| (effect.kind, number(effect))).collect();
    (scenario, effects)
}

proptest! {
    /// The plain model: the calls in the order in which they really happened.
    #[test]
    fn frees_match_their_own_allocations(
        choices in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 0..400),
        threads in 1u32..9,
        addresses in 1u64..9,
        skew in prop_oneof![0u64..250, 250..WINDOW / 2],
    ) {
        let real = run(&choices, threads, addresses, skew);
        let (scenario, effects) = applied(&real);
        let (mut order, mut expected) = (HashMap::<u64, Vec<_>>::new(), HashMap::<u64, Vec<_>>::new());
        for (effect, applied) in scenario.out.iter().zip(&effects) {
            order.entry(effect.call.address).or_default().push((applied.0, applied.1, effect.call.thread));
        }
        for call in real {
            let kind = if call.op == Op::MALLOC { Kind::Alloc } else { Kind::Free };
            expected.entry(call.address).or_default().push((kind, call.number, ThreadNumber(call.thread)));
        }
        prop_assert_eq!(order, expected);
    }

    /// For all records, the effects are a legal trace, no call is lost, and ticks do not fall.
    #[test]
    fn any_calls_become_a_legal_trace(
        kinds in prop_oneof![Just(4u8), Just(8)],
        calls in prop::collection::vec((any::<u8>(), 1u32..6, 1u64..6, 0u64..3000), 0..400),
    ) {
        let calls: Vec<_> =
            calls.into_iter().map(|(op, thread, address, ticks)| (op % kinds, thread, address, ticks)).collect();
        let (mut scenario, mut frees, mut allocations) = (Scenario::new(), 0, 0);
        for (op, thread, address, ticks) in calls {
            let op = [Op::MALLOC, Op::MALLOC, Op::FREE, Op::FREE, Op::RESIZE_BEGIN, Op::RESIZE, Op::RESIZE_FAILED, Op::RESIZE_FREED]
                [op as usize];
            allocations += u64::from(op == Op::MALLOC);
            frees += u64::from(matches!(op, Op::FREE | Op::RESIZE_FREED));
            scenario.tick += ticks;
            scenario.step(op, thread, 16 * address, 1);
        }
        scenario.end();
        let (mut live, mut at, mut tick) = (HashMap::new(), HashMap::new(), 0);
        let (mut applied_frees, mut applied_allocations) = (scenario.live.excused, 0);
        for effect in &scenario.out {
            applied_allocations += u64::from(effect.kind == Kind::Alloc && effect.call.op == Op::MALLOC);
            let is_free = matches!(effect.call.op, Op::FREE | Op::RESIZE_FREED);
            applied_frees += u64::from(is_free && matches!(effect.kind, Kind::Free | Kind::FreeUnknown | Kind::Unmatched));
            match effect.kind {
                Kind::Alloc | Kind::Inherited => {
                    prop_assert!(live.insert(effect.index, effect.call.address).is_none());
                    if effect.kind == Kind::Alloc {
                        let before = at.insert(effect.call.address, effect.index);
                        prop_assert!(before.is_none());
                    }
                }
                Kind::Free | Kind::Implied | Kind::FreeUnknown => {
                    let address = live.remove(&effect.index);
                    prop_assert!(address.is_some());
                    at.retain(|_, index| *index != effect.index);
                }
                Kind::Resize | Kind::ResizeUnknown => {
                    prop_assert!(live.contains_key(&effect.index));
                    at.retain(|_, index| *index != effect.index);
                    let before = at.insert(effect.call.address, effect.index);
                    prop_assert!(before.is_none());
                    live.insert(effect.index, effect.call.address);
                }
                Kind::Unmatched => {}
            }
            prop_assert!(effect.call.tick >= tick);
            tick = effect.call.tick;
        }
        prop_assert_eq!((applied_frees, applied_allocations), (frees, allocations));
    }
}
