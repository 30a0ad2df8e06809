//! The calls that a recorder had read and not applied when it wrote an entry of the journal, e.g. a
//! free that waits for an allocation of another thread. They're a chunk after the open one, as they
//! are applied if nothing follows, and count only in the last entry: the next one has what became of
//! them.
//!
//! They're in a frame among the tape's records of the entry. Readers that do not know its kind leave
//! it out, and then the entry's accounts are right, which count these calls as lost.

use super::field::{Field, Text};
use super::frame::{Writer, frame};
use super::{Account, Chunk};
use crate::{Cursor, Format, tape_record};

/// The kind of the frame. Records of tapes have smaller numbers.
const KIND: u16 = 0x8001;

tape_record! {
    /// The calls that wait, [framed](Waiting::put_frame) and appended to the records of an entry.
    Waiting {
        /// The chunk of these calls, without columns and checksum.
        chunk: Chunk,
        /// The bytes of each of the parts of the chunk, as an entry has them.
        parts: Vec<Text>,
        /// The accounting with these calls; empty if it is not known.
        accounts: Vec<Account>,
    }
}

impl Waiting {
    /// Creates the frame's content from a chunk and its parts.
    pub fn new(chunk: Chunk, parts: &[&[u8]], accounts: Vec<Account>) -> Waiting {
        Waiting { chunk, parts: parts.iter().map(Text::from).collect(), accounts }
    }

    /// Appends the frame.
    pub fn put_frame(&self, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        self.put(&mut payload);
        Writer::frame(KIND, &payload, out);
    }

    /// Returns whether a frame has waiting calls.
    pub(super) fn is_in(frame: &[u8]) -> bool {
        frame.get(4..6) == Some(&KIND.to_le_bytes())
    }

    /// Reads a frame.
    pub(super) fn read(bytes: &[u8]) -> Option<Waiting> {
        let (_, payload) = frame(bytes, 0).ok().filter(|(kind, _)| *kind == KIND)?;
        Waiting::get(&mut Cursor::new(Format::Tape, payload), "Waiting").ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Record;

    #[test]
    fn frame_is_read_again_and_is_no_record_of_a_tape() {
        let waiting = Waiting::new(
            Chunk { number: 3, events: 2, ..Chunk::default() },
            &[b"abc", b""],
            vec![Account { thread: 1, emitted: 2, recorded: 2, ..Account::default() }],
        );
        let mut bytes = Vec::new();
        waiting.put_frame(&mut bytes);
        assert!(Waiting::is_in(&bytes));
        assert_eq!(Waiting::read(&bytes), Some(waiting));
        assert!(Record::KINDS.iter().all(|(kind, _)| *kind < KIND));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            assert_eq!(Waiting::read(&damaged), None, "flipped at {at}");
            assert_eq!(Waiting::read(&bytes[..at]), None, "cut at {at}");
        }
    }
}
