//! Tests of calls against a plain map, and of each unusual sequence.

use super::*;

pub(super) fn call(op: Op, thread: u32, address: u64, size: u64, tick: u64) -> Call {
    Call { op, thread: ThreadNumber(thread), site: 1, address, size, weight: 0, tick }
}

pub(super) struct Scenario {
    pub(super) live: Live,
    pub(super) out: Vec<Effect>,
    pub(super) tick: u64,
    many_threads: bool,
}

impl Scenario {
    pub(super) fn new() -> Scenario {
        Scenario { live: Live::default(), out: Vec::new(), tick: 0, many_threads: true }
    }

    fn with_one_thread() -> Scenario {
        Scenario { many_threads: false, ..Scenario::new() }
    }

    pub(super) fn step(&mut self, op: Op, thread: u32, address: u64, size: u64) -> &mut Self {
        self.tick += 1;
        let call = call(op, thread, address, size, self.tick);
        match self.live.apply(&call, self.live.location(call.address), self.many_threads, &mut self.out) {
            Done::Alloc(index) => self.out.push(call.effect(Kind::Alloc, index, Block::default())),
            Done::Resize(old) => self.out.push(call.effect(Kind::Resize, old.index, old)),
            Done::Free(old) => self.out.push(call.effect(Kind::Free, old.index, old)),
            Done::Else => {}
        }
        self
    }

    /// Ends the recording and returns (kind, index, address, size) of all effects. What was
    /// foreseen of the waiting calls has to be what becomes of them.
    pub(super) fn end(&mut self) -> Vec<(Kind, u64, u64, u64)> {
        let (preview, before) = (self.live.preview(), self.out.len());
        self.live.settle(u64::MAX, &mut self.out);
        assert_eq!(format!("{preview:?}"), format!("{:?}", &self.out[before..]));
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
fn block_survives_a_thread_that_ends_inside_a_resize() {
    let mut scenario = Scenario::new();
    scenario.step(Op::MALLOC, 1, 16, 10).step(Op::RESIZE_BEGIN, 1, 16, 0);
    scenario.live.undo_open_resizes(ThreadNumber(1), 9, &mut scenario.out);
    scenario.step(Op::FREE, 2, 16, 0);
    assert_eq!(scenario.end(), [(Kind::Alloc, 1, 16, 10), (Kind::Free, 1, 16, 0)]);
}

#[test]
fn missed_free_is_implied_in_a_process_with_one_thread() {
    let mut scenario = Scenario::with_one_thread();
    scenario.step(Op::MALLOC, 1, 16, 10).step(Op::MALLOC, 1, 16, 11).step(Op::FREE, 1, 16, 0);
    let expected =
        [(Kind::Alloc, 1, 16, 10), (Kind::Implied, 1, 16, 0), (Kind::Alloc, 2, 16, 11), (Kind::Free, 2, 16, 0)];
    assert_eq!(scenario.end(), expected);
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
    let mut child = Scenario::with_one_thread();
    child.live.inherit(left);
    child.step(Op::FREE, 1, 16, 0).step(Op::RESIZE_BEGIN, 1, 32, 0).step(Op::RESIZE, 1, 320, 40);
    child.step(Op::MALLOC, 1, 48, 5).step(Op::FREE, 1, 160, 0).step(Op::FREE, 1, 48, 0);
    assert_eq!(child.live.inherited(), (1, 4));
    let mut grandchild = Scenario::with_one_thread();
    grandchild.live.inherit(child.live.inheritance_at(0));
    grandchild.step(Op::FREE, 1, 64, 0).step(Op::FREE, 1, 320, 0);
    let expected = [
        (Kind::Inherited, 1, 16, 1),
        (Kind::FreeUnknown, 1, 16, 0),
        (Kind::Inherited, 2, 32, 2),
        (Kind::ResizeUnknown, 2, 320, 40),
        (Kind::Alloc, 3, 48, 5),
        (Kind::Unmatched, 0, 160, 0),
        (Kind::Free, 3, 48, 0),
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
