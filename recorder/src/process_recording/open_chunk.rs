//! The journal of the open chunk: each batch is written to the journal before its space in the
//! rings is released.

use super::{CHUNK_TIME, ProcessRecording};
use crate::release::{self, Kept};
use crate::store::WriteJob;
use crate::trace::Chunk;
use formats::tape::field::Text;
use formats::tape::journal::{Entry, Position};
use formats::tape::{Account, Record as TapeRecord, Sites, Writer};
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of threads with which each entry contains the accounts.
const MAX_ACCOUNTS: usize = 64;

/// What the journal contains of the open chunk.
#[derive(Debug, Default)]
pub(super) struct Journaled {
    /// Number of records of [`ProcessRecording::before`], and of all sites, that are in the
    /// journal.
    records: usize,
    sites: usize,
    /// The last finished chunk that is not completely in the journal.
    missed: u32,
    has_failed: bool,
}

impl ProcessRecording {
    /// Writes the batch to the journal, and releases its space in the rings.
    pub fn keep(&mut self, positions: &[Position]) {
        if positions.is_empty() && !self.trace.has_unjournaled() {
            return;
        }
        let kept = match self.session.options.mode.has_events() {
            false => Kept::Unknown,
            true => match self.write_entry(positions, true) {
                true if self.session.journal_files.stored() >= self.journaled.missed => Kept::Safe,
                _ => Kept::Unsafe,
            },
        };
        release::batch(&self.session.mapping, positions, kept);
    }

    /// Completes the journal of a chunk that is about to be finished.
    pub(super) fn keep_chunk(&mut self, is_whole: bool) {
        let has_rest = self.session.options.mode.has_events() && self.trace.has_unjournaled();
        if has_rest && !self.write_entry(&[], is_whole) {
            self.journaled.missed = self.trace.number();
        }
        (self.journaled.records, self.journaled.sites) = (0, 0);
    }

    /// Finishes the chunk and sends it to the store.
    pub(super) fn finish_chunk(&mut self, spare: Chunk, out: &mut dyn FnMut(WriteJob)) {
        let mut write_job = WriteJob::of(&self.session);
        self.stacks.announce(&mut self.before);
        self.keep_chunk(true);
        self.stacks.flush(&mut self.before);
        if self.clock_written.is_none_or(|written| written.elapsed() >= CHUNK_TIME) {
            self.write_clock();
        }
        write_job.before = std::mem::take(&mut self.before);
        if self.trace.events() > 0 || self.trace.is_new() {
            self.events_since_summary += self.trace.events();
            let mut chunk = self.trace.finish_chunk(spare);
            (chunk.commit.live_blocks, chunk.commit.live_bytes) = self.size_at_chunk_start;
            chunk.commit.peak_bytes = self.profile.most_bytes;
            for (number, thread) in
                self.threads.iter_mut().filter(|(_, thread)| thread.in_finished_chunks != thread.recorded)
            {
                chunk.threads.push((number as u32, thread.recorded - thread.in_finished_chunks));
                thread.in_finished_chunks = thread.recorded;
            }
            write_job.chunk = Some(chunk);
        }
        self.since = None;
        out(write_job);
    }

    /// Returns the accounts of the events in the journal. Those that wait until they are legal are
    /// not in it, and are lost if the recorder is killed now.
    fn journaled_accounts(&self) -> Vec<Account> {
        let mut accounts: Vec<Account> = self.accounts_so_far().collect();
        for call in self.live.waiting().filter(|call| call.op.is_event()) {
            if let Some(account) = accounts.iter_mut().find(|account| account.thread == call.thread) {
                (account.recorded, account.lost) = (account.recorded.saturating_sub(1), account.lost + 1);
            }
        }
        accounts
    }

    /// Writes an entry; returns whether that succeeded.
    fn write_entry(&mut self, positions: &[Position], is_whole: bool) -> bool {
        let mut records = Vec::new();
        let mut writer = Writer::default();
        if self.trace.is_new() && self.journaled.records == 0 && self.journaled.sites == 0 {
            // The recorder may be killed before the first write of the tape.
            writer.record(&TapeRecord::Process(self.session.process.clone()), &mut records);
        }
        let from = self.journaled.records.min(self.before.len());
        self.before[from..].iter().for_each(|record| writer.record(record, &mut records));
        let first = self.journaled.sites.max(self.stacks.written());
        if let Some(sites) = self.stacks.sites().get(first..).filter(|sites| !sites.is_empty()) {
            writer.record(&TapeRecord::Sites(Sites { first: first as u32 + 1, sites: sites.to_vec() }), &mut records);
        }
        let (mut chunk, added) = self.trace.unjournaled();
        (chunk.live_blocks, chunk.live_bytes) = self.size_at_chunk_start;
        chunk.peak_bytes = self.profile.most_bytes;
        let accounts = match self.session.stats.unwritten.load(Relaxed) {
            0 if self.threads.len() <= MAX_ACCOUNTS => self.journaled_accounts(),
            _ => Vec::new(),
        };
        let positions = positions.to_vec();
        let entry = Entry { chunk, is_whole, positions, records: Text(records), accounts, ..Entry::default() };
        match self.chunk_journal.append(entry, added, &self.session.journal_files) {
            Ok(()) => {
                self.trace.was_journaled();
                (self.journaled.records, self.journaled.sites) = (self.before.len(), self.stacks.sites().len());
                self.journaled.has_failed = false;
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.journaled.has_failed, true) {
                    let folder = self.session.folder.display();
                    tracing::warn!(
                        "{folder}: the journal cannot be written ({error}): until it can, SIGKILL of the recorder loses up to a second of events"
                    );
                }
                false
            }
        }
    }
}
