//! The end of the recording of a process.

use super::ProcessRecording;
use crate::os::clock::Moment;
use crate::store::trace::Chunk;
use crate::store::writer::WriteJob;
use crate::target::proc::{End, SeenEnd};
use formats::tape;
use std::sync::atomic::Ordering::Relaxed;

impl ProcessRecording {
    /// Adds a note with what a library built with `--cfg heaptape_verify` found out about its own
    /// stacks.
    fn note_verified(&mut self) {
        let header = self.session.mapping.header();
        let [walks, backtraces] =
            [&header.verified, &header.backtraced].map(|counts| counts.each_ref().map(|count| count.load(Relaxed)));
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
            (self.stacks.invalid_stacks(), tape::UNREAD_STACKS),
            (self.session.mapping.header().nodes_missing.load(Relaxed), tape::CUT_STACKS),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::sys::Mapping;
    use crate::session::traced_process::SessionBuilder;
    use crate::store::writer::Content;
    use formats::tape::Record;
    use std::sync::Arc;
    use wire::Params;

    /// Records a process that does nothing, and returns when its recording ends: it has said that it ends
    /// if `says`, was seen to have ended later, and its recording is finished much later.
    fn ended(says: bool, end: End) -> (Option<Moment>, Moment, Moment) {
        let (mapping, _file) = Mapping::create(Params::default()).expect("an area");
        let session = SessionBuilder::of_this_process(1, mapping);
        let clock = session.clock;
        let later = || {
            let before = clock.now();
            while clock.now() == before {}
        };
        if says {
            session.stats.says_end(&session.clock);
            later();
        }
        let seen = SeenEnd::now(end, &session.clock);
        later();
        let mut jobs = Vec::new();
        ProcessRecording::new(Arc::clone(&session)).finish(seen, &mut Chunk::default, &mut |job| jobs.push(job));
        let ends = jobs.into_iter().find_map(|job| match job {
            WriteJob::Finish(end) => match end.content {
                Some(Content::State { records, .. }) => records.into_iter().find_map(|record| match record {
                    Record::End(end) => Some(Moment { tick: end.tick, unix_ns: end.unix_ns }),
                    _ => None,
                }),
                _ => None,
            },
            _ => None,
        });
        (session.stats.said_end(), seen.at, ends.expect("an end"))
    }

    #[test]
    fn a_recording_ends_when_the_process_did_and_not_when_it_is_finished() {
        let (said, seen, ends) = ended(false, End::GONE);
        assert_eq!((said, ends), (None, seen));
        let (said, seen, ends) = ended(true, End::GONE);
        assert!(said.is_some_and(|said| said.tick < seen.tick), "{said:?} {seen:?}");
        assert_eq!(Some(ends), said);
        // It said so, and was not seen to end.
        let (said, seen, ends) = ended(true, End::RUNNING);
        assert!(said.is_some() && ends == seen, "{said:?} {seen:?} {ends:?}");
    }
}
