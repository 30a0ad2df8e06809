//! Tests of calls against a plain map, and of each unusual sequence.

use super::*;

fn call(op: Op, thread: u32, address: u64, size: u64, tick: u64) -> Call {
    Call { op, thread, site: 1, address, size, weight: 0, tick }
}

struct Scenario {
    live: Live,
    out: Vec<Effect>,
    tick: u64,
}

impl Scenario {
    fn new() -> Scenario {
        Scenario { live: Live::default(), out: Vec::new(), tick: 0 }
    }

    fn step(&mut self, op: Op, thread: u32, address: u64, size: u64) -> &mut Self {
        self.tick += 1;
        let call = call(op, thread, address, size, self.tick);
        match self.live.apply(&call, true, &mut self.out) {
            Done::Alloc(index) => self.out.push(call.effect(Kind::Alloc, index, Block::default())),
            Done::Resize(old) => self.out.push(call.effect(Kind::Resize, old.index, old)),
            Done::Free(old) => self.out.push(call.effect(Kind::Free, old.index, old)),
            Done::Else => {}
        }
        self
    }

    /// Ends the recording and returns (kind, index, address, size) of all effects.
    fn end(&mut self) -> Vec<(Kind, u64, u64, u64)> {
        self.live.finish(self.tick, &mut self.out);
        self.out.iter().map(|effect| (effect.kind, effect.index, effect.call.address, effect.call.size)).collect()
    }
}

#[test]
fn halves_of_resizes_join_last_in_first_out() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, 16, 10).step(Op::MALLOC, 1, 32, 20);
    // A signal handler resizes the second block while the first is being resized.
    scenario.step(Op::RESIZE_BEGIN, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 32, 0).step(Op::RESIZE, 1, 48, 21);
    scenario.step(Op::RESIZE_FAILED, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 48, 0).step(Op::RESIZE_FREED, 1, 48, 0);
    let effects = scenario.end();
    let expected =
        [(Kind::Alloc, 1, 16, 10), (Kind::Alloc, 2, 32, 20), (Kind::Resize, 2, 48, 21), (Kind::Free, 2, 48, 0)];
    assert_eq!(effects, expected);
    assert_eq!(scenario.live.index().iter().collect::<Vec<_>>(), [(16, Block { index: 1, size: 10, site: 1 })]);
}

#[test]
fn address_of_an_open_resize_may_be_reused_by_another_thread() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, 16, 10).step(Op::RESIZE_BEGIN, 1, 16, 0).step(Op::MALLOC, 2, 16, 5);
    scenario.step(Op::RESIZE, 1, 64, 100);
    assert_eq!(scenario.end(), [(Kind::Alloc, 1, 16, 10), (Kind::Alloc, 2, 16, 5), (Kind::Resize, 1, 64, 100)]);
}

#[test]
fn block_survives_a_thread_that_ends_inside_a_resize() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, 16, 10).step(Op::RESIZE_BEGIN, 1, 16, 0);
    scenario.live.undo_open_resizes(1, 9, &mut scenario.out);
    scenario.step(Op::FREE, 2, 16, 0);
    assert_eq!(scenario.end(), [(Kind::Alloc, 1, 16, 10), (Kind::Free, 1, 16, 0)]);
}

#[test]
fn missed_free_is_implied_and_matched_when_it_arrives_late() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, 16, 10).step(Op::MALLOC, 1, 16, 11);
    scenario.step(Op::FREE, 2, 16, 0);
    assert_eq!(scenario.live.excused, 1);
    scenario.tick += 2 * CLOCK_SKEW;
    scenario.step(Op::FREE, 2, 16, 0);
    let expected =
        [(Kind::Alloc, 1, 16, 10), (Kind::Implied, 1, 16, 0), (Kind::Alloc, 2, 16, 11), (Kind::Free, 2, 16, 0)];
    assert_eq!(scenario.end(), expected);
}

#[test]
fn early_free_waits_for_its_allocation_within_the_clock_skew() {
    let mut scenario = Scenario::new();
    scenario.step(Op::FREE, 2, 16, 0).step(Op::MALLOC, 1, 32, 1).step(Op::MALLOC, 1, 16, 10);
    scenario.step(Op::FREE, 2, 48, 0);
    scenario.tick += 2 * CLOCK_SKEW;
    scenario.step(Op::MALLOC, 1, 48, 3);
    let expected = [
        (Kind::Alloc, 1, 32, 1),
        (Kind::Alloc, 2, 16, 10),
        (Kind::Free, 2, 16, 0),
        (Kind::Unmatched, 0, 48, 0),
        (Kind::Alloc, 3, 48, 3),
    ];
    assert_eq!(scenario.end(), expected);
    assert_eq!(scenario.live.unknown, 1);
}

#[test]
fn resize_of_an_unknown_block_adds_it() {
    let mut scenario = Scenario::new();
    scenario.step(Op::RESIZE_BEGIN, 1, 16, 0).step(Op::RESIZE, 1, 32, 5).step(Op::RESIZE, 1, 64, 6);
    let expected = [
        (Kind::Inherited, 1, 16, 0),
        (Kind::ResizeUnknown, 1, 32, 5),
        (Kind::Inherited, 2, 64, 0),
        (Kind::ResizeUnknown, 2, 64, 6),
    ];
    assert_eq!(scenario.end(), expected);
    assert_eq!((scenario.live.unknown, scenario.live.index().len()), (2, 2));
}

#[test]
fn child_inherits_the_blocks_of_its_parent_at_the_fork() {
    let mut scenario = Scenario::new();
    for block in 1..=4u64 {
        scenario.step(Op::MALLOC, 1, 16 * block, block);
    }
    let fork = scenario.tick;
    scenario.step(Op::FREE, 1, 16, 0).step(Op::MALLOC, 1, 160, 9).step(Op::RESIZE_BEGIN, 1, 32, 0).step(
        Op::RESIZE,
        1,
        16,
        7,
    );
    let left = scenario.live.inheritance_at(fork);
    assert_eq!((left.blocks, left.bytes, left.exact), (4, 10, true));
    let mut child = Scenario::new();
    child.live.inherit(left);
    child.step(Op::FREE, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 32, 0).step(Op::RESIZE, 1, 320, 40);
    child.step(Op::MALLOC, 1, 48, 5).step(Op::FREE, 1, 160, 0).step(Op::FREE, 1, 48, 0);
    assert_eq!(child.live.inherited(), (1, 4));
    let mut grandchild = Scenario::new();
    grandchild.live.inherit(child.live.inheritance_at(0));
    grandchild.step(Op::FREE, 1, 64, 0).step(Op::FREE, 1, 320, 0);
    let expected = [
        (Kind::Inherited, 1, 16, 1),
        (Kind::FreeUnknown, 1, 16, 0),
        (Kind::Inherited, 2, 32, 2),
        (Kind::ResizeUnknown, 2, 320, 40),
        (Kind::Alloc, 3, 48, 5),
        (Kind::Free, 3, 48, 0),
        (Kind::Unmatched, 0, 160, 0),
    ];
    assert_eq!(child.end(), expected);
    let expected = [
        (Kind::Inherited, 1, 64, 4),
        (Kind::FreeUnknown, 1, 64, 0),
        (Kind::Inherited, 2, 320, 40),
        (Kind::FreeUnknown, 2, 320, 0),
    ];
    assert_eq!((grandchild.end().as_slice(), grandchild.live.inherited()), (&expected[..], (0, 0)));
    // The parent is not touched by what its child does.
    assert_eq!(scenario.live.index().len(), 4);
}

#[test]
fn open_resizes_are_bounded() {
    let mut scenario = Scenario::new();
    for block in 1..10_000 {
        scenario.step(Op::MALLOC, 1, 16 * block, 1).step(Op::RESIZE_BEGIN, 1, 16 * block, 0);
    }
    assert!(scenario.live.open_resizes.len() <= MAX_OPEN_RESIZES);
    scenario.end();
    assert_eq!(scenario.live.index().len(), 9_999);
}

#[test]
fn early_free_is_settled_when_no_allocation_can_come_any_more() {
    let mut scenario = Scenario::new();
    scenario.step(Op::FREE, 2, 16, 0);
    assert!(!scenario.live.settle(CLOCK_SKEW, &mut scenario.out));
    assert_eq!((scenario.live.early_frees().len(), scenario.out.len()), (1, 0));
    assert!(scenario.live.settle(scenario.tick + CLOCK_SKEW + 1, &mut scenario.out));
    assert!(scenario.live.early_frees().is_empty());
    assert_eq!(scenario.end(), [(Kind::Unmatched, 0, 16, 0)]);
}
