//! Calls against a plain map, and the odd shapes one by one.

use super::*;

fn call(op: Op, thread: u32, address: u64, size: u64, tick: u64) -> Call {
    Call { op, thread, site: 1, address, size, weight: 0, tick }
}

struct Play {
    live: Live,
    out: Vec<Effect>,
    tick: u64,
}

impl Play {
    fn new() -> Play {
        Play { live: Live::default(), out: Vec::new(), tick: 0 }
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

    /// Ends it and gives (kind, index, address, size) of all effects.
    fn end(&mut self) -> Vec<(Kind, u64, u64, u64)> {
        self.live.finish(self.tick, &mut self.out);
        self.out.iter().map(|effect| (effect.kind, effect.index, effect.call.address, effect.call.size)).collect()
    }
}

#[test]
fn halves_of_resizes_join_last_in_first_out() {
    let mut play = Play::new();
    play.step(Op::MALLOC, 1, 16, 10).step(Op::MALLOC, 1, 32, 20);
    // A signal handler resizes the second block while the first is being resized.
    play.step(Op::RESIZE_BEGIN, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 32, 0).step(Op::RESIZE, 1, 48, 21);
    play.step(Op::RESIZE_FAILED, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 48, 0).step(Op::RESIZE_FREED, 1, 48, 0);
    let effects = play.end();
    let expected =
        [(Kind::Alloc, 1, 16, 10), (Kind::Alloc, 2, 32, 20), (Kind::Resize, 2, 48, 21), (Kind::Free, 2, 48, 0)];
    assert_eq!(effects, expected);
    assert_eq!(play.live.index().iter().collect::<Vec<_>>(), [(16, Block { index: 1, size: 10, site: 1 })]);
}

#[test]
fn another_thread_may_take_the_address_of_a_resize_under_way() {
    let mut play = Play::new();
    play.step(Op::MALLOC, 1, 16, 10).step(Op::RESIZE_BEGIN, 1, 16, 0).step(Op::MALLOC, 2, 16, 5);
    play.step(Op::RESIZE, 1, 64, 100);
    assert_eq!(play.end(), [(Kind::Alloc, 1, 16, 10), (Kind::Alloc, 2, 16, 5), (Kind::Resize, 1, 64, 100)]);
}

#[test]
fn a_thread_that_dies_inside_a_resize_leaves_the_block() {
    let mut play = Play::new();
    play.step(Op::MALLOC, 1, 16, 10).step(Op::RESIZE_BEGIN, 1, 16, 0);
    play.live.put_back(1, 9, &mut play.out);
    play.step(Op::FREE, 2, 16, 0);
    assert_eq!(play.end(), [(Kind::Alloc, 1, 16, 10), (Kind::Free, 1, 16, 0)]);
}

#[test]
fn a_missed_free_is_implied_and_its_late_one_excused() {
    let mut play = Play::new();
    play.step(Op::MALLOC, 1, 16, 10).step(Op::MALLOC, 1, 16, 11);
    play.step(Op::FREE, 2, 16, 0);
    assert_eq!(play.live.excused, 1);
    play.tick += 2 * SKEW;
    play.step(Op::FREE, 2, 16, 0);
    let expected =
        [(Kind::Alloc, 1, 16, 10), (Kind::Implied, 1, 16, 0), (Kind::Alloc, 2, 16, 11), (Kind::Free, 2, 16, 0)];
    assert_eq!(play.end(), expected);
}

#[test]
fn a_free_seen_before_its_allocation_waits_for_it_within_the_skew() {
    let mut play = Play::new();
    play.step(Op::FREE, 2, 16, 0).step(Op::MALLOC, 1, 32, 1).step(Op::MALLOC, 1, 16, 10);
    play.step(Op::FREE, 2, 48, 0);
    play.tick += 2 * SKEW;
    play.step(Op::MALLOC, 1, 48, 3);
    let expected = [
        (Kind::Alloc, 1, 32, 1),
        (Kind::Alloc, 2, 16, 10),
        (Kind::Free, 2, 16, 0),
        (Kind::Unmatched, 0, 48, 0),
        (Kind::Alloc, 3, 48, 3),
    ];
    assert_eq!(play.end(), expected);
    assert_eq!(play.live.unknown, 1);
}

#[test]
fn a_resize_of_an_unknown_block_introduces_it() {
    let mut play = Play::new();
    play.step(Op::RESIZE_BEGIN, 1, 16, 0).step(Op::RESIZE, 1, 32, 5).step(Op::RESIZE, 1, 64, 6);
    let expected = [
        (Kind::Inherited, 1, 16, 0),
        (Kind::ForeignResize, 1, 32, 5),
        (Kind::Inherited, 2, 64, 0),
        (Kind::ForeignResize, 2, 64, 6),
    ];
    assert_eq!(play.end(), expected);
    assert_eq!((play.live.unknown, play.live.index().len()), (2, 2));
}

#[test]
fn a_child_has_what_its_parent_had_at_the_fork() {
    let mut play = Play::new();
    for block in 1..=4u64 {
        play.step(Op::MALLOC, 1, 16 * block, block);
    }
    let fork = play.tick;
    play.step(Op::FREE, 1, 16, 0).step(Op::MALLOC, 1, 160, 9).step(Op::RESIZE_BEGIN, 1, 32, 0).step(
        Op::RESIZE,
        1,
        16,
        7,
    );
    let left = play.live.bequeath(fork);
    assert_eq!((left.blocks, left.bytes, left.exact), (4, 10, true));
    let mut child = Play::new();
    child.live.inherit(left);
    child.step(Op::FREE, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 32, 0).step(Op::RESIZE, 1, 320, 40);
    child.step(Op::MALLOC, 1, 48, 5).step(Op::FREE, 1, 160, 0).step(Op::FREE, 1, 48, 0);
    assert_eq!(child.live.inherited(), (1, 4));
    let mut grandchild = Play::new();
    grandchild.live.inherit(child.live.bequeath(0));
    grandchild.step(Op::FREE, 1, 64, 0).step(Op::FREE, 1, 320, 0);
    let expected = [
        (Kind::Inherited, 1, 16, 1),
        (Kind::ForeignFree, 1, 16, 0),
        (Kind::Inherited, 2, 32, 2),
        (Kind::ForeignResize, 2, 320, 40),
        (Kind::Alloc, 3, 48, 5),
        (Kind::Free, 3, 48, 0),
        (Kind::Unmatched, 0, 160, 0),
    ];
    assert_eq!(child.end(), expected);
    let expected = [
        (Kind::Inherited, 1, 64, 4),
        (Kind::ForeignFree, 1, 64, 0),
        (Kind::Inherited, 2, 320, 40),
        (Kind::ForeignFree, 2, 320, 0),
    ];
    assert_eq!((grandchild.end().as_slice(), grandchild.live.inherited()), (&expected[..], (0, 0)));
    // The parent is not touched by what its child does.
    assert_eq!(play.live.index().len(), 4);
}

#[test]
fn open_resizes_are_bounded() {
    let mut play = Play::new();
    for block in 1..10_000 {
        play.step(Op::MALLOC, 1, 16 * block, 1).step(Op::RESIZE_BEGIN, 1, 16 * block, 0);
    }
    assert!(play.live.open.len() <= MOST_OPEN);
    play.end();
    assert_eq!(play.live.index().len(), 9_999);
}
