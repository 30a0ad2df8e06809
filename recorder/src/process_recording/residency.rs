//! Snapshots of the pages of the process, in its tape.

use super::ProcessRecording;
use crate::options::Mode;
use crate::store::{Content, WriteJob};
use formats::tape::{Record as TapeRecord, Residency};
use std::collections::VecDeque;

/// Maximum number of snapshots that a tape without events has, and of bytes of their runs.
const MAX_KEPT: usize = 8;
const MAX_BYTES: usize = 1 << 20;

/// The newest snapshots of a process whose files are written as a whole.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<Residency>);

impl Kept {
    /// Adds a snapshot. The oldest ones are dropped, as far as there are too many.
    fn add(&mut self, record: Residency) {
        self.0.push_back(record);
        let bytes = |kept: &VecDeque<Residency>| kept.iter().map(|record| record.stored.0.len()).sum::<usize>();
        while self.0.len() > MAX_KEPT || (self.0.len() > 1 && bytes(&self.0) > MAX_BYTES) {
            self.0.pop_front();
        }
    }

    /// Returns the snapshots, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Residency> {
        self.0.iter()
    }
}

impl ProcessRecording {
    /// Stores a snapshot of the pages. It names its time, so it need not be beside the events of
    /// that time.
    pub(super) fn residency(&mut self, record: Residency, out: &mut dyn FnMut(WriteJob)) {
        match self.session.options.mode {
            Mode::Off => {}
            Mode::Profile => self.residency.add(record),
            Mode::Trace | Mode::Flight => {
                let records = vec![TapeRecord::Residency(record)];
                out(self.write_job(Content::State { records, profile: None }, None));
            }
        }
    }
}
