//! A copy of a recording with the times that its program would have on a machine that does nothing
//! else: a verdict that depends on times can be tested on a busy one.
//!
//! The program does not sleep. It allocates and frees a block of [`PAUSE_BYTES`] where it would.

use crate::lossy::{self, Call};
use heaptape_analyzer::event::Kind;
use heaptape_formats::tape::{End, Inherited, Mark, Note, Process, Record, Thread};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Size of the block that stands for a pause: `marked` in `tests/programs/leaks`.
const PAUSE_BYTES: u64 = 13;

/// Time between two events without a pause.
const EVENT_NS: u64 = 200;

/// Writes the recording `from` to `to` with these nanoseconds for each pause, and with all of its
/// events.
pub fn write(from: &Path, to: &Path, pause_ns: u64) {
    lossy::each_process(from, to, |from, to| {
        let (records, calls) = lossy::read(from);
        let (times, calls) = Times::new(&records, &calls, pause_ns);
        let records = records.into_iter().filter_map(|record| times.moved(record)).collect();
        lossy::put(to, records, &calls, &[]);
    });
}

/// The new times of a process.
struct Times {
    start: u64,
    /// The old and the new time of each event, in order.
    events: Vec<(u64, u64)>,
    end: u64,
    /// First event of each thread.
    threads: HashMap<u32, u64>,
}

impl Times {
    /// Returns the times, and the calls with them, without the marks.
    fn new(records: &[Record], calls: &[Call], pause_ns: u64) -> (Times, Vec<Call>) {
        let start = records.iter().find_map(|record| match record {
            Record::Process(process) => Some(process.start_tick),
            _ => None,
        });
        let start = start.expect("a process");
        let (mut now, mut pauses) = (start, HashSet::new());
        let (mut events, mut threads, mut moved) = (Vec::new(), HashMap::new(), Vec::new());
        for call in calls {
            let event = call.event;
            if event.kind == Kind::Alloc && event.size == PAUSE_BYTES {
                pauses.insert(event.index);
                now += pause_ns;
            } else if !(event.kind == Kind::Free && pauses.remove(&event.index)) {
                now += EVENT_NS;
                threads.entry(event.thread).or_insert(now);
                moved.push(call.at(now));
            }
            events.push((event.tick, now));
        }
        (Times { start, events, end: now + EVENT_NS, threads }, moved)
    }

    /// Returns the new time of something that happened between events.
    fn of(&self, tick: u64) -> u64 {
        let before = self.events.partition_point(|(old, _)| *old <= tick);
        before.checked_sub(1).map_or(self.start, |last| self.events[last].1)
    }

    /// Returns a record with its new time; none for what was seen at times that no longer exist.
    fn moved(&self, record: Record) -> Option<Record> {
        Some(match record {
            Record::Process(process) => Record::Process(Process { ticks_per_second: 1_000_000_000, ..process }),
            Record::Thread(thread) => {
                let first_tick = self.threads.get(&thread.number).copied().unwrap_or(self.start);
                Record::Thread(Thread { first_tick, ..thread })
            }
            Record::Note(note) => Record::Note(Note { tick: self.of(note.tick), ..note }),
            Record::Mark(mark) => Record::Mark(Mark { tick: self.of(mark.tick), ..mark }),
            Record::Inherited(all) => Record::Inherited(Inherited { tick: self.start, ..all }),
            Record::End(end) => Record::End(End { tick: self.end, ..end }),
            Record::Clock(_) | Record::Residency(_) | Record::Division(_) | Record::History(_) => return None,
            Record::HistoryErrors(_) | Record::Mappings(_) => return None,
            other => other,
        })
    }
}
