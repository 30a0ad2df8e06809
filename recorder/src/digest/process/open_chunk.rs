//! The open chunk of a recording: each batch is written to the journal before its space in the
//! rings is released, and the chunk is sent to the store once it is finished.

use super::ProcessRecording;
use super::output::EntryState;
use crate::rings::ring_space::{self, Kept};
use crate::store::trace::Chunk;
use crate::store::writer::{Content, WriteJob};
use formats::tape::Account;
use formats::tape::journal::Position;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of threads with which each entry contains the accounts.
const MAX_ACCOUNTS: usize = 64;

impl ProcessRecording {
    /// Writes the batch to the journal, and releases its space in the rings.
    pub fn keep(&mut self, positions: &[Position]) {
        if positions.is_empty() && !self.output.has_unjournaled() {
            return;
        }
        let kept = if self.output.has_events() {
            let was_written = self.write_entry(positions, true);
            self.output.kept(was_written, &self.session)
        } else {
            Kept::Unknown
        };
        ring_space::batch(&self.session.mapping, positions, kept);
    }

    /// Completes the journal of a chunk that is about to be finished.
    pub(super) fn keep_chunk(&mut self, is_whole: bool) {
        let is_complete = !self.output.has_unjournaled() || self.write_entry(&[], is_whole);
        self.output.note_journaled(is_complete);
    }

    /// Finishes the chunk between two batches and sends it to the store. The journal of the next
    /// chunk has the calls that wait before the tape has this one.
    pub(super) fn finish_chunk(&mut self, spare: Chunk, out: &mut dyn FnMut(WriteJob)) {
        let job = self.take_chunk(spare);
        if self.output.has_events() && self.heap.waiting().next().is_some() {
            self.write_entry(&[], true);
        }
        out(job);
    }

    /// Finishes the chunk and returns the job that stores it.
    pub(super) fn take_chunk(&mut self, spare: Chunk) -> WriteJob {
        self.stacks.announce(self.output.records());
        self.keep_chunk(true);
        self.stacks.flush(self.output.records());
        if self.schedule.is_clock_due() {
            self.write_clock();
        }
        let records = self.output.take_records();
        self.schedule.chunk_finished(self.output.events());
        let chunk = self.output.finish_chunk(spare, self.heap.peak_bytes(), &mut self.threads).map(Box::new);
        self.write_job(Content::Chunk { records, chunk }, None)
    }

    /// Returns the accounts without the calls that wait until they are legal: they're lost for a
    /// reader that does not know how they are written.
    fn without_waiting(&self, mut accounts: Vec<Account>) -> Vec<Account> {
        for call in self.heap.waiting().filter(|call| call.op.is_event()) {
            if let Some(account) = accounts.iter_mut().find(|account| account.thread == call.thread.0) {
                (account.recorded, account.lost) = (account.recorded.saturating_sub(1), account.lost + 1);
            }
        }
        accounts
    }

    /// Writes an entry; returns whether that succeeded.
    fn write_entry(&mut self, positions: &[Position], is_whole: bool) -> bool {
        let accounts = match self.session.stats.unwritten.load(Relaxed) {
            0 if self.threads.len() <= MAX_ACCOUNTS => self.threads.accounts_so_far().collect(),
            _ => Vec::new(),
        };
        let waiting = if is_whole { self.output.waiting(&self.heap, accounts.clone()) } else { None };
        let accounts = self.without_waiting(accounts);
        let (session, stacks, peak_bytes) = (&*self.session, &self.stacks, self.heap.peak_bytes());
        self.output.write_entry(EntryState { session, stacks, peak_bytes, accounts, waiting }, positions, is_whole)
    }
}
