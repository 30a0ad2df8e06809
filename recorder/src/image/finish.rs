//! The end of an image.

use super::Image;
use crate::session::End;
use crate::store::Piece;
use crate::trace::Chunk;

impl Image {
    /// What a library built with `--cfg heaptape_verify` found out about its own stacks.
    fn note_verified(&mut self) {
        let header = self.session.mapping.header();
        let [walks, backtraces] = [&header.verified, &header.backtraced]
            .map(|counts| counts.each_ref().map(|count| count.load(std::sync::atomic::Ordering::Relaxed)));
        if walks[0] > 0 {
            self.note(format!(
                "stacks compared with a full walk: {}, different: {}; with backtrace: {}, different: {}",
                walks[0], walks[1], backtraces[0], backtraces[1]
            ));
        }
    }

    /// The end: everything that is left.
    pub fn finish(&mut self, end: End, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        self.begin();
        self.live.finish(self.last_tick, &mut self.effects);
        self.account();
        let now = self.session.clock.now();
        for thread in self.threads.numbers().into_iter().map(|number| number as u32) {
            // Of a process that is left to the next daemon, that one will read the gaps to come.
            if self.is_left {
                self.end_gap(thread, now);
            } else {
                self.settle(thread);
                self.report_drops(thread, now);
            }
        }
        for (count, what) in [
            (self.stacks.bad(), "events named a stack that could not be read"),
            (self.live.index().refused(), "blocks could not be kept apart"),
            (
                self.session.mapping.header().nodes_missing.load(std::sync::atomic::Ordering::Relaxed),
                "stacks found no room",
            ),
        ] {
            if count > 0 {
                self.note(format!("{count} {what}"));
            }
        }
        self.note_verified();
        self.tell_stats();
        self.close(Some(end), None, spare, out);
    }
}
