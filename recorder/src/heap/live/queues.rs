//! Orders calls whose timestamps are too close to decide.
//!
//! A timestamp may be older than what its thread has seen of other threads, by the latency of one
//! load: some 300 ticks, and up to 7,800 where the CPU stalls. So calls of two threads within
//! [`WINDOW`] may have come in either order. Two laws hold: the calls of a thread are in order, and
//! allocations and frees of an address alternate. A call that is illegal by the second law (an
//! allocation of a live address, a free of an address that is not live) waits, and with it all
//! later calls of its thread: a *queue*. As soon as a call of another thread makes it legal, it is
//! applied. So calls are applied in the order of their timestamps, except where that order is
//! impossible.
//!
//! A call waits until a timestamp is later than its own by more than the window. Then it is applied
//! although it is illegal: its partner was not recorded (a drop, a block from before the attach),
//! or an earlier choice between two legal calls was wrong. In the second case the partner may be in
//! a queue that waits for this one. An allocation is then preceded by an implied free, and the free
//! that is owed for it is left out when it comes.

use super::{Call, Effect, Live, OpenResize, Origin};
use crate::heap::thread_number::ThreadNumber;
use std::collections::VecDeque;
use wire::Op;

/// Number of ticks within which the timestamps of two threads do not decide the order. Differences
/// up to 7,800 were measured. With 65,536 the frees of unknown blocks after an attach cost a tenth
/// more.
pub(crate) const WINDOW: u64 = 1 << 14;
/// Maximum number of calls that wait. Threads whose clocks agree have no more than fit into the
/// window: some hundred each.
const MAX_HELD: usize = 1 << 12;

/// A call that waits.
#[derive(Clone, Copy, Debug)]
struct Held {
    call: Call,
    /// Whether an implied free replaces this call, which is left out.
    is_owed: bool,
}

/// The waiting calls of one thread, in order. The first one is illegal, and there is always one.
#[derive(Clone, Debug)]
struct CallQueue {
    thread: ThreadNumber,
    calls: VecDeque<Held>,
}

/// The calls that wait because they are illegal so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallQueues {
    queues: Vec<CallQueue>,
    held: usize,
    /// Tick of the last call that was applied or began to wait. No later call is dated before it.
    tick: u64,
    /// Addresses whose state has changed, or for which a queue has begun to wait.
    changed: Vec<u64>,
}

impl Call {
    /// Returns whether the call makes its address live.
    pub(super) fn allocates(&self) -> bool {
        self.op.is_alloc() || self.op.is_resize() || self.op == Op::RESIZE_FAILED
    }

    /// Returns whether the call ends the life of its address.
    fn frees(&self) -> bool {
        self.op.is_free() || self.op == Op::RESIZE_BEGIN
    }
}

impl CallQueue {
    fn first(&self) -> Option<&Held> {
        self.calls.front()
    }

    fn first_tick(&self) -> u64 {
        self.first().map_or(0, |held| held.call.tick)
    }

    /// Returns the position of the first waiting call for an address.
    fn position_of(&self, address: u64) -> Option<usize> {
        self.calls.iter().position(|held| held.call.address == address)
    }
}

impl CallQueues {
    /// Returns whether no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Returns the waiting calls.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.queues.iter().flat_map(|queue| &queue.calls).map(|held| &held.call)
    }

    /// Notes that the state of an address has changed.
    pub(super) fn address_changed(&mut self, address: u64) {
        if !self.is_empty() {
            self.changed.push(address);
        }
    }

    /// Notes the time of what was applied or began to wait.
    pub(super) fn applied(&mut self, tick: u64) {
        self.tick = self.tick.max(tick);
    }

    fn of(&self, thread: ThreadNumber) -> Option<usize> {
        self.queues.iter().position(|queue| queue.thread == thread)
    }

    /// Returns the queue that has waited longest, and the tick since when.
    fn oldest(&self) -> Option<(usize, u64)> {
        let ticks = self.queues.iter().map(CallQueue::first_tick).enumerate();
        ticks.min_by_key(|(_, tick)| *tick)
    }

    fn push(&mut self, call: Call) {
        self.held += 1;
        let held = Held { call, is_owed: false };
        match self.of(call.thread) {
            Some(queue) => self.queues[queue].calls.push_back(held),
            None => self.queues.push(CallQueue { thread: call.thread, calls: VecDeque::from([held]) }),
        }
    }

    /// Removes the first call of a queue. The next one becomes the first, and may be legal.
    fn pop(&mut self, queue: usize) -> Option<Held> {
        let held = self.queues[queue].calls.pop_front()?;
        self.held -= 1;
        self.changed.push(held.call.address);
        match self.queues[queue].first() {
            Some(next) => self.changed.push(next.call.address),
            None => drop(self.queues.swap_remove(queue)),
        }
        Some(held)
    }

    /// Returns the queue whose first call must be applied although it is illegal, so that `queue`
    /// can continue: `queue` itself, unless its first call is a free whose allocation waits in
    /// another queue.
    fn cause(&self, mut queue: usize) -> usize {
        for _ in 0..self.queues.len() {
            let Some(first) = self.queues[queue].first().filter(|first| first.call.frees()) else { break };
            let allocates = |other: &CallQueue| {
                let index = other.position_of(first.call.address).filter(|index| *index > 0);
                index.is_some_and(|index| other.calls[index].call.allocates())
            };
            let Some(other) = (0..self.queues.len()).find(|other| *other != queue && allocates(&self.queues[*other]))
            else {
                break;
            };
            queue = other;
        }
        queue
    }

    /// Marks the next free of an address that waits in a queue of another thread: an implied free
    /// replaces it.
    fn owe(&mut self, address: u64, thread: ThreadNumber) {
        let queues = self.queues.iter_mut().filter(|queue| queue.thread != thread);
        let next = queues.filter_map(|queue| {
            let index = queue.position_of(address)?;
            queue.calls.get_mut(index).filter(|held| held.call.frees() && !held.is_owed)
        });
        if let Some(held) = next.min_by_key(|held| held.call.tick) {
            held.is_owed = true;
        }
    }
}

impl Live {
    /// Returns whether a call is impossible in the current state.
    pub(super) fn is_illegal(&self, call: &Call) -> bool {
        let is_live =
            || self.knows(call.address) || self.inherited.iter().any(|index| index.get(call.address).is_some());
        if call.allocates() { is_live() } else { call.frees() && !is_live() }
    }

    /// Returns whether a call must wait: it is illegal, or an earlier one of its thread waits.
    pub(super) fn must_wait(&self, call: &Call) -> bool {
        self.queues.of(call.thread).is_some() || self.is_illegal(call) || self.follows_waiting_resize(call)
    }

    /// Returns whether a call is an allocation of the address of an open resize whose second half
    /// is in a queue.
    fn follows_waiting_resize(&self, call: &Call) -> bool {
        let open = if self.queues.is_empty() { None } else { self.reused_by(call) };
        open.is_some_and(|open| self.queues.of(self.open_resizes[open].thread).is_some())
    }

    /// Lets a call wait.
    #[cold]
    pub(super) fn hold(&mut self, call: &Call, out: &mut Vec<Effect>) {
        while self.queues.held >= MAX_HELD
            && let Some((oldest, _)) = self.queues.oldest()
        {
            self.force(oldest, out);
        }
        self.queues.applied(call.tick);
        self.queues.push(*call);
        self.is_unusual = true;
    }

    /// Applies the waiting calls that a call for this address has made legal.
    pub(super) fn wake(&mut self, call: &Call, out: &mut Vec<Effect>) {
        if !self.queues.is_empty() {
            self.queues.applied(call.tick);
            self.queues.changed.push(call.address);
            self.apply_legal(out);
        }
    }

    pub(super) fn apply_legal(&mut self, out: &mut Vec<Effect>) {
        while self.ahead.is_none()
            && let Some(address) = self.queues.changed.last().copied()
        {
            let is_legal = |call: &Call| !self.is_illegal(call) && !self.follows_waiting_resize(call);
            let legal = |queue: &CallQueue| {
                let first = queue.first().filter(|held| held.call.address == address);
                first.filter(|held| held.is_owed || is_legal(&held.call)).map(|held| held.call.tick)
            };
            let queues = self.queues.queues.iter().enumerate();
            match queues.filter_map(|(queue, calls)| Some((legal(calls)?, queue))).min() {
                Some((_, queue)) => self.apply_first(queue, out),
                None => drop(self.queues.changed.pop()),
            }
        }
    }

    /// Applies the first call of a queue.
    fn apply_first(&mut self, queue: usize, out: &mut Vec<Effect>) {
        if let Some(Held { call, is_owed: false }) = self.queues.queues[queue].first().copied()
            && let Some(open) = self.reused_by(&call)
        {
            let tick = call.tick.max(self.queues.tick);
            return self.look_ahead(open, &Call { tick, ..call }, out);
        }
        let Some(Held { mut call, is_owed }) = self.queues.pop(queue) else { return };
        call.tick = call.tick.max(self.queues.tick);
        if !is_owed {
            self.perform(&call, out);
        } else if call.op == Op::RESIZE_BEGIN {
            // The block at its address is a later one.
            let (thread, address) = (call.thread, call.address);
            self.open_resizes.push(OpenResize { thread, address, origin: Origin::Unknown });
        } else {
            self.excused += 1;
        }
    }

    /// Applies a waiting call although it is illegal: that of `queue`, or one that blocks it.
    fn force(&mut self, queue: usize, out: &mut Vec<Effect>) {
        let queue = self.queues.cause(queue);
        if let Some(Held { call, is_owed: false }) = self.queues.queues[queue].first().copied()
            && call.allocates()
        {
            self.queues.owe(call.address, call.thread);
            self.end_resize_early(&Call { tick: call.tick.max(self.queues.tick), ..call }, out);
        }
        self.apply_first(queue, out);
        self.apply_legal(out);
    }

    /// Applies the calls that waited longer than the window: all future calls are after `tick`.
    pub(super) fn expire(&mut self, tick: u64, out: &mut Vec<Effect>) {
        while self.ahead.is_none()
            && let Some((oldest, since)) = self.queues.oldest()
            && since.saturating_add(WINDOW) < tick
        {
            self.force(oldest, out);
        }
    }

    /// Applies the waiting calls of a thread that has ended.
    pub(super) fn apply_waiting(&mut self, thread: ThreadNumber, out: &mut Vec<Effect>) {
        while let Some(queue) = self.queues.of(thread) {
            self.force(queue, out);
        }
    }
}

#[cfg(test)]
mod tests;
