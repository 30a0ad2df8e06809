//! What a recording lacks. A cut or torn recording is read as far as it goes; what is missing is
//! data, never silence.

use heaptape_formats::recording::CRASH_REPORT;
use std::collections::BTreeMap;
use std::fmt;

/// One thing that is missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Events that found no room in their thread's ring.
    Lost {
        /// Thread number.
        thread: u32,
        /// How many.
        events: u64,
        /// Tick of the thread's last event before them.
        from_tick: u64,
        /// Tick of its first event behind them.
        to_tick: u64,
    },
    /// A part of the trace that cannot be used: its events are known to have happened and are not
    /// known themselves.
    Chunk {
        /// Chunk number.
        number: u32,
        /// How many events it had.
        events: u64,
        /// Tick of its first event.
        first_tick: u64,
        /// Tick of its last event.
        last_tick: u64,
        /// What is wrong.
        why: String,
    },
    /// A column of a chunk that cannot be used: its events lack what the column holds.
    Column {
        /// Chunk number.
        number: u32,
        /// What it holds.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Bytes of the tape that are no whole record.
    TornTape {
        /// First byte.
        from: u64,
        /// First byte behind.
        to: u64,
        /// What is wrong.
        why: String,
    },
    /// The tape stops without saying how the process ended: the recorder was killed, or is still at
    /// work.
    NoEnd,
    /// The recording has no end: the recorder was killed, or is still at work.
    Unfinished,
    /// The same, and it is known why: the recorder left a crash report.
    Crashed,
    /// Events of a process of which no file can be read.
    Unread {
        /// How many.
        events: u64,
    },
    /// No process is in the recording.
    NoProcess,
    /// Events were found behind the last commit and are used, without stacks and times.
    Salvaged {
        /// How many.
        events: u64,
        /// Where they lie in the trace file.
        offset: u64,
    },
    /// Bytes behind the last commit that are no whole record.
    Tail {
        /// Where they start in the trace file.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// A file that belongs to the recording is not there, or cannot be read.
    File {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// A file without its end mark.
    Cut {
        /// Its name.
        name: String,
        /// Where it stops and in what.
        at: String,
    },
    /// Events that cannot be: of unknown or doubled allocations.
    Strange {
        /// How many.
        events: u64,
    },
}

impl Missing {
    /// Whether it means that events of the program are unknown, so that sums may be wrong.
    pub const fn hides_events(&self) -> bool {
        matches!(
            self,
            Missing::Lost { .. }
                | Missing::Unread { .. }
                | Missing::Chunk { .. }
                | Missing::TornTape { .. }
                | Missing::Tail { .. }
                | Missing::Strange { .. }
        )
    }

    /// Whether events may be lost of which nobody knows how many there are: it is not a known
    /// number of events, nor a part of known ones.
    pub const fn hides_more(&self) -> bool {
        !matches!(self, Missing::Lost { .. } | Missing::Chunk { .. } | Missing::Column { .. })
    }

    /// The ticks between which events are unknown, where that is known.
    pub const fn ticks(&self) -> Option<(u64, u64)> {
        match self {
            Missing::Lost { from_tick, to_tick, .. } => Some((*from_tick, *to_tick)),
            Missing::Chunk { first_tick, last_tick, .. } => Some((*first_tick, *last_tick)),
            _ => None,
        }
    }
}

/// What is missing, in lines: the gaps of a thread are one.
pub fn lines(missing: &[Missing]) -> Vec<String> {
    let lost = |one: &Missing| match one {
        Missing::Lost { thread, events, .. } => Some((*thread, *events)),
        _ => None,
    };
    let mut threads: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (thread, events) in missing.iter().filter_map(lost) {
        let (sum, gaps) = threads.entry(thread).or_default();
        (*sum, *gaps) = (sum.saturating_add(events), *gaps + 1);
    }
    let line = |one: &Missing| match lost(one) {
        None => Some(one.to_string()),
        Some((thread, _)) => threads.remove(&thread).map(|(events, gaps)| match gaps {
            1 => one.to_string(),
            _ => format!("{events} events{} found no room and are lost, in {gaps} gaps", of_thread(thread)),
        }),
    };
    missing.iter().filter_map(line).collect()
}

fn of_thread(thread: u32) -> String {
    if thread == 0 { String::new() } else { format!(" of thread {thread}") }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Lost { thread, events, .. } => {
                write!(f, "{events} events{} found no room and are lost", of_thread(*thread))
            }
            Missing::Chunk { number, events, why, .. } => {
                write!(f, "chunk {number} with {events} events is unusable: {why}")
            }
            Missing::Column { number, what, why } => write!(f, "chunk {number} lacks its {what}: {why}"),
            Missing::TornTape { from, to, why } => write!(f, "bytes {from} to {to} of the tape are damaged: {why}"),
            Missing::NoEnd => f.write_str("the recording was cut: how the process ended is not in it"),
            Missing::Unread { events } => write!(f, "{events} events cannot be read"),
            Missing::NoProcess => f.write_str("no process was recorded"),
            Missing::Unfinished => f.write_str("the recording was cut: the recorder did not end it"),
            Missing::Salvaged { events, offset } => {
                write!(
                    f,
                    "{events} events behind the last commit (offset {offset}) were salvaged, without stacks and times"
                )
            }
            Missing::Crashed => {
                write!(f, "the recording is truncated: its recorder crashed; please send its report, {CRASH_REPORT}")
            }
            Missing::Tail { offset, bytes } => {
                write!(f, "{bytes} bytes at offset {offset} of the trace are no whole event")
            }
            Missing::File { name, why } => write!(f, "{name}: {why}"),
            Missing::Cut { name, at } => write!(f, "{name} is cut at {at}"),
            Missing::Strange { events } => write!(f, "{events} events are of allocations that are not known to live"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_a_thread_are_one_line() {
        let lost = |thread, events| Missing::Lost { thread, events, from_tick: 0, to_tick: 0 };
        let found = lines(&[lost(2, 7), Missing::NoEnd, lost(1, 5), lost(2, u64::MAX)]);
        let all = u64::MAX;
        let wanted = [
            format!("{all} events of thread 2 found no room and are lost, in 2 gaps"),
            Missing::NoEnd.to_string(),
            "5 events of thread 1 found no room and are lost".into(),
        ];
        assert_eq!(found, wanted);
    }
}
