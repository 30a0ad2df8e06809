//! Segments whose last data could not be written. Their accounts say which events are lost, so
//! writing is attempted again until there is space, or until the recorder ends.

use super::{Content, Output};
use formats::tape::{Packer, Record, Writer};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of segments that wait, as on a disk that stays full for days.
const MAX_SEGMENTS: usize = 4096;
/// Maximum number of bytes that wait, as they are written.
const MAX_BYTES: usize = 64 << 20;

/// A segment that has ended, and is not completely written.
#[derive(Debug)]
struct Unfinished {
    output: Output,
    content: Content,
    /// Number of bytes to write.
    bytes: usize,
}

impl Unfinished {
    fn new(output: Output, content: Content) -> Unfinished {
        let (records, profile) = match &content {
            Content::Chunk { records, .. } => (records, 0),
            Content::State { records, profile } => (records, profile.as_ref().map_or(0, Vec::len)),
            Content::Snapshot { tape, profile, .. } => (tape, profile.len()),
        };
        let mut framed = Vec::new();
        let mut bytes_of = |record: &Record| {
            framed.clear();
            Writer::default().record(record, &mut framed);
            framed.len()
        };
        let bytes = output.waiting_records.iter().chain(records).map(&mut bytes_of).sum::<usize>() + profile;
        Unfinished { output, content, bytes }
    }
}

/// The segments that wait until they can be written, oldest first.
#[derive(Debug, Default)]
pub(super) struct UnfinishedSegments {
    segments: VecDeque<Unfinished>,
    bytes: usize,
    next_attempt: Option<Instant>,
}

impl UnfinishedSegments {
    /// Returns when writing is to be attempted again; `None` if nothing waits.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.next_attempt
    }

    /// Adds a segment. If too much waits, the oldest ones are given up.
    pub(super) fn add(&mut self, output: Output, content: Content) {
        let unfinished = Unfinished::new(output, content);
        self.bytes += unfinished.bytes;
        self.segments.push_back(unfinished);
        while self.segments.len() > MAX_SEGMENTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.remove_oldest() else { break };
            let folder = oldest.output.session.folder.display();
            tracing::error!(
                "{folder}: too much waits for the disk: the end of this recording, and its lost events, are not written"
            );
        }
        self.next_attempt.get_or_insert_with(|| Instant::now() + INTERVAL);
    }

    fn remove_oldest(&mut self) -> Option<Unfinished> {
        let oldest = self.segments.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }

    /// Attempts to write the segments if it is time to. Stops at the first one that fails.
    pub(super) fn attempt_if_due(&mut self, packer: &mut Packer) {
        if self.next_attempt.is_some_and(|next| next <= Instant::now()) {
            self.attempt(packer);
        }
    }

    /// Attempts to write the segments. Stops at the first one that fails.
    pub(super) fn attempt(&mut self, packer: &mut Packer) {
        while let Some(mut oldest) = self.remove_oldest() {
            match oldest.output.attempt(&mut oldest.content, packer) {
                Err(failure) if failure.error.kind() != std::io::ErrorKind::NotFound => {
                    self.bytes += oldest.bytes;
                    self.segments.push_front(oldest);
                    break;
                }
                // Its epoch may have been removed since.
                Ok(()) | Err(_) => {}
            }
        }
        self.next_attempt = (!self.segments.is_empty()).then(|| Instant::now() + INTERVAL);
    }
}
