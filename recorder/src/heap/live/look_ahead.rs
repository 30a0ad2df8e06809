//! Resizes that end after the address of their old block was used again.
//!
//! An allocator may free the old block of a `realloc` before it returns: musl's always does when it
//! moves a block, glibc's for blocks that go back to an arena. If the thread loses its processor
//! there, others allocate that address, and free it, before the second half of the resize comes.
//! The trace has one record for a resize, with the new address. It must stand before these
//! allocations, and the address is known only later.
//!
//! So nothing is applied meanwhile: the calls are kept until the second half has come, which is
//! applied first. If it doesn't come in time (e.g. a debugger stopped the thread), the resize
//! becomes a free before the allocation and an allocation at its end.

use super::{Call, Effect, Kind, Live, Origin};
use crate::heap::index::Block;
use crate::heap::thread_number::ThreadNumber;
use formats::tape::Entry;
use std::collections::VecDeque;
use std::mem;
use wire::Op;

/// Maximum number of calls that are kept. A thread that loses its processor for 20 ms misses some
/// 10,000 calls of a busy program.
const MAX_CALLS: usize = 1 << 16;
/// Maximum time for which calls are kept, in ticks: one or two seconds.
const MAX_TICKS: u64 = 1 << 32;
/// Maximum number of kept calls that are looked at again before one of them is waited for. Only a
/// hostile client gets there.
const MAX_REPEATED: usize = 4 * MAX_CALLS;

/// A resize whose second half is awaited, and the calls that wait for that.
#[derive(Clone, Debug)]
pub(super) struct LookAhead {
    /// Number of the thread that resizes.
    thread: ThreadNumber,
    /// The allocation that got the address of the old block.
    allocation: Call,
    /// Number of further resizes that the thread has begun: those of signal handlers.
    nested: usize,
    calls: VecDeque<Call>,
}

impl LookAhead {
    /// Returns the calls that wait.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter()
    }

    /// Returns whether the calls have waited too long at `tick`.
    pub(super) fn is_late(&self, tick: u64) -> bool {
        self.allocation.tick.saturating_add(MAX_TICKS) < tick
    }

    /// Adds a call after those that wait.
    pub(super) fn keep(&mut self, call: &Call) {
        if call.thread == self.thread {
            if call.op == Op::RESIZE_BEGIN {
                self.nested += 1;
            } else if call.ends_resize() {
                self.nested = self.nested.saturating_sub(1);
            }
        }
        self.calls.push_back(*call);
    }
}

impl Call {
    fn ends_resize(&self) -> bool {
        self.op.is_resize() || matches!(self.op, Op::RESIZE_FREED | Op::RESIZE_FAILED)
    }
}

impl Live {
    /// Returns the index of the open resize whose old block was at the address of an allocation,
    /// unless the call is the end of that resize.
    #[cold]
    pub(super) fn reused_by(&self, call: &Call) -> Option<usize> {
        if !call.allocates() {
            return None;
        }
        let innermost = || self.open_resizes.iter().rposition(|open| open.thread == call.thread);
        let own = if call.ends_resize() { innermost() } else { None };
        let mut opens = self.open_resizes.iter().enumerate();
        opens.position(|(index, open)| {
            open.address == call.address && Some(index) != own && !matches!(open.origin, Origin::Over)
        })
    }

    /// Begins to wait for the end of a resize, before a call that is kept or in a queue.
    pub(super) fn look_ahead(&mut self, open: usize, allocation: &Call, out: &mut Vec<Effect>) {
        let thread = self.open_resizes[open].thread;
        let nested = self.open_resizes[open + 1..].iter().filter(|other| other.thread == thread).count();
        let ahead = LookAhead { thread, allocation: *allocation, nested, calls: VecDeque::new() };
        if self.ahead.is_some() || self.repeated > MAX_REPEATED {
            self.end_resize_early(&ahead.allocation, out);
        } else {
            (self.ahead, self.is_unusual) = (Some(ahead), true);
        }
    }

    /// Keeps a call, or applies it and those that were kept if it is the one that they waited for.
    #[cold]
    pub(super) fn apply_or_keep(&mut self, call: &Call, out: &mut Vec<Effect>) {
        self.apply_again(VecDeque::from([*call]), out);
    }

    fn apply_again(&mut self, mut calls: VecDeque<Call>, out: &mut Vec<Effect>) {
        while let Some(call) = calls.pop_front() {
            let kept = match self.ahead.take() {
                None => {
                    self.apply_now(&call, true, out);
                    continue;
                }
                Some(ahead) => self.look_at(ahead, &call, out),
            };
            self.repeated += kept.len();
            kept.into_iter().rev().for_each(|call| calls.push_front(call));
        }
        if self.ahead.is_none() {
            self.repeated = 0;
        }
    }

    /// Looks at the next call. Returns the calls that need not wait any more.
    fn look_at(&mut self, mut ahead: LookAhead, call: &Call, out: &mut Vec<Effect>) -> VecDeque<Call> {
        if ahead.calls.len() >= MAX_CALLS || ahead.is_late(call.tick) {
            self.end_resize_early(&ahead.allocation, out);
            self.apply_legal(out);
            ahead.calls.push_back(*call);
            return ahead.calls;
        }
        if call.thread != ahead.thread || !call.ends_resize() || ahead.nested > 0 {
            ahead.keep(call);
            self.ahead = Some(ahead);
            return VecDeque::new();
        }
        let call = Call { tick: ahead.allocation.tick, ..*call };
        let address = ahead.allocation.address;
        let is_it = |open: &super::OpenResize| open.thread == call.thread && open.address == address;
        if let Some(index) = self.open_resizes.iter().position(is_it) {
            // The first one to be ended, although a handler's may have begun after it.
            let open = self.open_resizes.remove(index);
            self.open_resizes.push(open);
        }
        if self.is_illegal(&call) || self.reused_by(&call).is_some() {
            // Its new address is not free yet: that comes with a kept call, or with the end of
            // another resize. The allocation waits for both.
            self.hold(&call, out);
            self.queues.address_changed(call.address);
            self.apply_legal(out);
        } else {
            self.perform(&call, out);
            self.wake(&call, out);
        }
        ahead.calls
    }

    /// Ends the open resize whose old address is that of an allocation: its block counts as freed,
    /// and its second half as an allocation.
    pub(super) fn end_resize_early(&mut self, allocation: &Call, out: &mut Vec<Effect>) {
        let Some(index) = self.reused_by(allocation) else { return };
        let open = &mut self.open_resizes[index];
        if let Origin::Own(old) = mem::replace(&mut open.origin, Origin::Over) {
            let call = Call { site: 0, address: open.address, size: 0, tick: allocation.tick, ..*allocation };
            out.push(Effect { kind: Kind::Implied, entry: Entry::Implied as u8, index: old.index, old, call });
            self.queues.applied(call.tick);
        }
        self.queues.address_changed(allocation.address);
    }

    /// Applies the second half of a resize that was ended early.
    pub(super) fn allocate_late(&mut self, call: &Call, out: &mut Vec<Effect>) {
        match call.op {
            // Its free was implied.
            Op::RESIZE_FREED => self.excused += 1,
            Op::RESIZE_FAILED => {}
            _ => {
                let index = self.new_index();
                self.insert_block(call.address, Block { index, size: call.size, site: call.site }, call, out);
                out.push(call.effect(Kind::Alloc, index, Block::default()));
            }
        }
    }

    /// Applies the calls that have waited too long at `tick` for the end of a resize.
    pub(super) fn stop_looking_ahead(&mut self, tick: u64, out: &mut Vec<Effect>) {
        while let Some(ahead) = self.ahead.take_if(|ahead| ahead.is_late(tick)) {
            self.end_resize_early(&ahead.allocation, out);
            self.apply_legal(out);
            self.apply_again(ahead.calls, out);
        }
    }
}

#[cfg(test)]
mod tests;
