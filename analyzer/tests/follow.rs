//! A trace that is followed arrives completely and in pieces, so that the memory for it is bounded.

use crate::made;

use heaptape_analyzer::follow::{Ending, ProcessSelector, follow};
use heaptape_formats::mtrc::layout::MAGIC;
use made::Step;
use std::io::{self, Write};

/// A reader that remembers how much it was sent at once.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    longest: usize,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        self.longest = self.longest.max(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn long_trace_is_sent_in_pieces() {
    let pair = |index| {
        let alloc = Step::Alloc { index, size: 40, site: 1, thread: 1, tick: 2 * index };
        [alloc, Step::Free { index, thread: 1, tick: 2 * index + 1 }]
    };
    let steps: Vec<Step> = (1..=50_000).flat_map(pair).collect();
    let options = made::Options { chunk_events: 8_000, ..made::Options::default() };
    let (_folder, recording) = made::recording(&steps, &options);
    let mut trace = std::fs::read(recording.join("4711.made/trace.mtrc")).unwrap();
    if !trace.ends_with(MAGIC) {
        trace.extend_from_slice(MAGIC);
    }

    let mut pieces = Pieces::default();
    let ending = follow(&recording, &ProcessSelector::Main, &|| false, &mut pieces).unwrap();
    assert!(matches!(ending, Ending::Complete), "{ending:?}");
    assert!(pieces.bytes == trace, "{} bytes of {}", pieces.bytes.len(), trace.len());
    assert!(pieces.longest < trace.len() / 2, "{} of {} bytes at once", pieces.longest, trace.len());
}
