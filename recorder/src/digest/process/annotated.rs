//! The annotations of the program in the digest: the sites of labels and heaps, marks, and calls
//! that follow from annotations.

use super::ProcessRecording;
use crate::heap::annotations::{self, Pending};
use crate::heap::live::Call;
use crate::heap::thread_number::ThreadNumber;
use formats::tape::{Mark, Record as TapeRecord};
use wire::Op;

/// Maximum number of marks of a process in a segment. Later ones are counted.
const MAX_MARKS: usize = 1 << 16;
/// Number of pending calls that are applied together.
const PENDING_CALLS: usize = 64;

impl ProcessRecording {
    /// Reads an annotation. Returns the site of the innermost label of its thread then.
    #[cold]
    pub(super) fn annotate(&mut self, call: Call) -> u32 {
        let Call { op, thread, tick, .. } = call;
        if let Some(text) = self.annotations.read(call) {
            self.marks_seen += 1;
            let mark = Mark { tick, thread: thread.0, text: text.into() };
            if self.marks_seen == MAX_MARKS {
                self.note(format!("the program set more than {MAX_MARKS} marks; later ones are left out"));
            } else if self.marks_seen < MAX_MARKS && self.output.has_events() {
                self.output.push(TapeRecord::Mark(mark));
            } else if self.marks_seen < MAX_MARKS {
                self.marks.push(mark);
            }
        }
        if op == Op::LABEL {
            let site = self.labels_below(0, thread);
            self.annotations.set_label_site(thread, site);
        }
        self.annotations.label_site(thread)
    }

    /// Returns the site of the innermost label of a thread, with the frame `outer` outside of all
    /// labels.
    fn labels_below(&mut self, outer: u32, thread: ThreadNumber) -> u32 {
        let labels = self.annotations.labels(thread);
        labels.into_iter().fold(outer, |parent, label| self.stacks.annotation(parent, annotations::address(label)))
    }

    /// Returns the site of an event of a thread with labels, or of a reported one.
    #[cold]
    pub(super) fn annotated_site(&mut self, thread: ThreadNumber, op: Op, site: u32) -> u32 {
        let heap = if op.is_reported() { self.annotations.heap(thread) } else { 0 };
        let outer = match heap {
            0 => self.annotations.label_site(thread),
            heap => {
                let heap = self.stacks.annotation(0, annotations::address(heap));
                self.labels_below(heap, thread)
            }
        };
        if outer == 0 { site } else { self.stacks.below(outer, site) }
    }

    /// Notes what a call does to the reported blocks and the pools. Returns whether the call is
    /// pending.
    #[cold]
    pub(super) fn note_block(&mut self, call: &Call) -> bool {
        if call.op.is_free() || call.op == Op::RESIZE_BEGIN {
            return self.annotations.freed(call);
        }
        if call.op.is_reported() {
            self.annotations.allocated(call);
        }
        false
    }

    /// Applies calls that follow from annotations, after all calls before them.
    #[cold]
    pub(super) fn apply_pending(&mut self, many_threads: bool) {
        self.process_calls(many_threads);
        for _ in 0..PENDING_CALLS {
            let Some(pending) = self.annotations.next_pending() else { break };
            match pending {
                Pending::Call(call) => self.heap.push(call),
                Pending::FreeOf(call, site) => {
                    if self.heap.index().get(call.address).is_some_and(|block| block.site == site) {
                        self.threads.count_added(call.thread);
                        self.heap.push(call);
                    }
                }
                Pending::Pool(call) => {
                    // The pool's own block has been allocated right before.
                    self.process_calls(many_threads);
                    if let Some(block) = self.heap.index().get(call.address) {
                        self.annotations.add_pool(call.address, block.size);
                        let address = annotations::pool_address(call.address);
                        self.threads.count_added(call.thread);
                        let begin = Call { op: Op::RESIZE_BEGIN, size: 0, ..call };
                        self.heap.push(begin);
                        self.heap.push(Call { op: Op::POOLED, site: block.site, address, ..begin });
                    }
                }
            }
        }
        self.process_calls(many_threads);
    }
}
