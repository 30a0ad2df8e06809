//! The end of the recording of a process.

use super::ProcessRecording;
use crate::os::clock::Moment;
use crate::store::trace::Chunk;
use crate::store::writer::WriteJob;
use crate::target::proc::{End, SeenEnd};

impl ProcessRecording {
    /// Adds a note with what a library built with `--cfg heaptape_verify` found out about its own
    /// stacks.
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

    /// Ends the recording: writes everything that is left.
    pub fn finish(&mut self, seen: SeenEnd, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        let SeenEnd { end, at } = seen;
        // It may have waited for us since it said so.
        let at = self.session.stats.said_end().filter(|said| end != End::RUNNING && said.tick < at.tick).unwrap_or(at);
        self.end_seen = Some(Moment { tick: at.tick.max(self.last_tick), ..at });
        self.prepare_events();
        self.heap.finish(self.last_tick);
        self.heap.add_effects(self.output.trace());
        let now = self.session.clock.now();
        for thread in self.threads.numbers() {
            // The next daemon will read the future gaps of a process that is handed over to it.
            if self.is_handed_over {
                self.end_gap(thread, now);
            } else {
                // A program that runs on has counted events of after the end.
                if end != End::RUNNING {
                    self.threads.count_unpublished(thread);
                }
                self.report_drops(thread, now);
            }
        }
        for (count, what) in [
            (self.stacks.invalid_stacks(), "events named a stack that could not be read"),
            (
                self.session.mapping.header().nodes_missing.load(std::sync::atomic::Ordering::Relaxed),
                "stacks did not fit into the stack table",
            ),
        ] {
            if count > 0 {
                self.note(format!("{count} {what}"));
            }
        }
        self.note_verified();
        self.publish_stats();
        self.close_segment(Some(end), None, spare, out);
    }
}
