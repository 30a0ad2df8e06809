//! Lists what is missing from a recording. We read a truncated or damaged one as far as we can, and
//! say in each report what we couldn't see.

use crate::early_ends::EarlyEnds;
use crate::text::{bytes, clean, count, counted};
use heaptape_formats::recording::{CRASH_REPORT, NotTraced};
use std::collections::BTreeMap;
use std::fmt;

/// An item that is missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Events that were dropped: the ring of their thread was full, or a jump left a hook.
    Dropped {
        /// Thread number, or 0 if it is unknown.
        thread: u32,
        /// Number of affected events.
        events: u64,
        /// Tick of the thread's last event before them.
        from_tick: u64,
        /// Tick of the thread's first event after them.
        to_tick: u64,
    },
    /// A chunk that cannot be decoded. The number of its events is known, their content is not.
    Chunk {
        number: u32,
        /// Number of events in the chunk.
        events: u64,
        first_tick: u64,
        last_tick: u64,
        /// Description of the error.
        why: String,
    },
    /// A column of a chunk that cannot be decoded. The events of the chunk lack its values.
    Column {
        number: u32,
        /// Name of the column, for messages.
        what: &'static str,
        /// Description of the error.
        why: String,
    },
    /// Bytes of the tape that are not a complete record.
    DamagedTape {
        /// Offset of the first damaged byte in the tape.
        from: u64,
        /// Offset of the first byte after the damage.
        to: u64,
        /// Description of the error.
        why: String,
    },
    /// The tape has no end record: the recorder was killed, or is still running.
    NoEnd,
    /// The recording has no end: the recorder was killed, or is still running.
    Unfinished,
    /// The recording has no end, because the recorder crashed. It left a crash report.
    Crashed,
    /// The events of a process of which no file can be read.
    UnreadableProcess {
        /// Number of affected events.
        events: u64,
    },
    /// The recording contains no process.
    NoProcess,
    /// Events after the last commit record. They are used, without stacks and times.
    Salvaged {
        /// Number of affected events.
        events: u64,
        /// Offset of the first one in the trace file.
        offset: u64,
    },
    /// Bytes after the last commit record that are not a complete event.
    TrailingBytes {
        /// Offset of the first one in the trace file.
        offset: u64,
        /// Number of affected bytes.
        bytes: u64,
    },
    /// A file of the recording that does not exist or cannot be read.
    File {
        name: String,
        /// Description of the error.
        why: String,
    },
    /// A file without its end mark.
    Truncated {
        name: String,
        /// Offset and field at which the file ends, for messages.
        at: String,
    },
    /// Stacks whose callers are not known, of more than one in a hundred allocations.
    EarlyEnds(EarlyEnds),
    /// Stacks that lack frames, or events without one, with their number, as the recorder noted it; see
    /// [`heaptape_formats::tape::CUT_STACKS`].
    Stacks { count: u64, what: &'static str },
    /// Events that contradict the recording: they refer to allocations that are not live, or
    /// allocate an index twice.
    Inconsistent {
        /// Number of affected events.
        events: u64,
    },
    /// A process of the tree that ran without being recorded. What it allocated is not known, nor
    /// which processes it started.
    Unrecorded(NotTraced),
    /// The end of a process of the tree that still ran when the recording ended.
    Outlived {
        pid: u32,
        /// Path of its program.
        exe: String,
    },
    /// Memory of a process that neither a recorded block nor a recorded mapping explains: it is
    /// that of an allocator that was not seen.
    Unseen {
        /// Resident bytes of the process that the program did not map itself.
        own_bytes: u64,
        /// Bytes of these that never held a recorded block.
        unseen_bytes: u64,
    },
    /// The `malloc` that the program calls is its own, and could not be hooked.
    Unhooked {
        allocator: String,
        /// Why its functions were not hooked.
        why: String,
    },
}

impl Missing {
    /// Returns whether events of the program are unknown because of this, so that sums may be
    /// wrong.
    pub(crate) const fn hides_events(&self) -> bool {
        matches!(
            self,
            Missing::Dropped { .. }
                | Missing::UnreadableProcess { .. }
                | Missing::Chunk { .. }
                | Missing::DamagedTape { .. }
                | Missing::TrailingBytes { .. }
                | Missing::Inconsistent { .. }
        )
    }

    /// Returns whether an unknown number of events may be missing because of this.
    pub(crate) const fn hides_more(&self) -> bool {
        let is_counted = matches!(
            self,
            Missing::Dropped { .. }
                | Missing::Chunk { .. }
                | Missing::Column { .. }
                | Missing::EarlyEnds(_)
                | Missing::Stacks { .. }
        );
        !is_counted && !self.is_unseen()
    }

    /// Returns whether a program, the end of it, or an allocator of it, was never seen: the
    /// recording can hold all of its events and still know nothing of what was allocated.
    pub const fn is_unseen(&self) -> bool {
        matches!(
            self,
            Missing::Unrecorded(_) | Missing::Outlived { .. } | Missing::Unseen { .. } | Missing::Unhooked { .. }
        )
    }

    /// Returns the first and last tick of the period in which events are missing, if it is known.
    pub const fn ticks(&self) -> Option<(u64, u64)> {
        match self {
            Missing::Dropped { from_tick, to_tick, .. } => Some((*from_tick, *to_tick)),
            Missing::Chunk { first_tick, last_tick, .. } => Some((*first_tick, *last_tick)),
            _ => None,
        }
    }
}

/// Maximum number of pids in a line about several processes.
const MAX_PIDS: usize = 4;

/// Returns the line about processes of one program that were not recorded for one reason.
fn unrecorded(exe: &str, pids: &[u32], why: &str) -> String {
    let name = match exe.rsplit('/').next().unwrap_or_default() {
        "" => "a process",
        name => name,
    };
    let some: Vec<String> = pids.iter().take(MAX_PIDS).map(u32::to_string).collect();
    let (some, more) = (some.join(", "), if pids.len() > MAX_PIDS { ", …" } else { "" });
    clean(&match pids.len() {
        // It ended before anybody saw its number.
        1 if pids == [0] => format!("{name} was not recorded: {why}"),
        1 => format!("{name} (pid {some}) was not recorded: {why}"),
        count => format!("{count} processes of {name} (pids {some}{more}) were not recorded: {why}"),
    })
    .into_owned()
}

/// Returns one line of text for each item. All gaps of a thread share a line, and so do the
/// processes of a program that were not recorded for the same reason.
pub fn lines(missing: &[Missing]) -> Vec<String> {
    let dropped = |item: &Missing| match item {
        Missing::Dropped { thread, events, .. } => Some((*thread, *events)),
        _ => None,
    };
    let mut threads: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (thread, events) in missing.iter().filter_map(dropped) {
        let (sum, gaps) = threads.entry(thread).or_default();
        (*sum, *gaps) = (sum.saturating_add(events), *gaps + 1);
    }
    let mut programs: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for item in missing {
        if let Missing::Unrecorded(NotTraced { pid, exe, why }) = item {
            programs.entry((exe, why)).or_default().push(*pid);
        }
    }
    let line = |item| match (dropped(item), item) {
        (Some((thread, _)), _) => threads.remove(&thread).map(|(events, gaps)| match gaps {
            1 => item.to_string(),
            _ => format!("{}, in {gaps} gaps", dropped_events(thread, events)),
        }),
        (None, Missing::Unrecorded(NotTraced { exe, why, .. })) => {
            programs.remove(&(exe.as_str(), why.as_str())).map(|pids| unrecorded(exe, &pids, why))
        }
        (None, _) => Some(item.to_string()),
    };
    missing.iter().filter_map(line).collect()
}

/// Why events of a thread can have been dropped.
const DROPPED: &str = "its ring was full or overwritten, a jump left an allocation function, or signal handlers inside one allocated too often";

/// Returns what was dropped, and why that can be: a gap does not say which it was.
fn dropped_events(thread: u32, events: u64) -> String {
    let (events, were) = (counted(events, "event"), if events == 1 { "was" } else { "were" });
    format!("{events}{} {were} dropped: {DROPPED}", of_thread(thread))
}

fn of_thread(thread: u32) -> String {
    if thread == 0 { String::new() } else { format!(" of thread {thread}") }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Dropped { thread, events, .. } => f.write_str(&dropped_events(*thread, *events)),
            Missing::Chunk { number, events, why, .. } => {
                write!(f, "chunk {number} with {events} events is unusable: {why}")
            }
            Missing::Column { number, what, why } => write!(f, "chunk {number} lacks its {what}: {why}"),
            Missing::DamagedTape { from, to, why } => write!(f, "bytes {from} to {to} of the tape are damaged: {why}"),
            Missing::NoEnd => f.write_str("the recording is truncated: it does not show how the process ended"),
            Missing::UnreadableProcess { events } => write!(f, "{events} events cannot be read"),
            Missing::NoProcess => f.write_str("no process was recorded"),
            Missing::Unfinished => f.write_str("the recording is truncated: its recorder did not complete it"),
            Missing::Salvaged { events, offset } => {
                write!(
                    f,
                    "{events} events after the last commit record (offset {offset}) were salvaged, without stacks and times"
                )
            }
            Missing::Crashed => {
                write!(f, "the recording is truncated: its recorder crashed; please send its report, {CRASH_REPORT}")
            }
            Missing::TrailingBytes { offset, bytes } => {
                write!(f, "{bytes} bytes at offset {offset} of the trace are not a complete event")
            }
            Missing::File { name, why } => write!(f, "{name}: {why}"),
            Missing::Truncated { name, at } => write!(f, "{name} is truncated at {at}"),
            Missing::EarlyEnds(found) => found.fmt(f),
            Missing::Stacks { count: number, what } => write!(f, "{} {what}", count(*number)),
            Missing::Inconsistent { events } => write!(f, "{events} events refer to allocations that are not live"),
            Missing::Unrecorded(NotTraced { pid, exe, why }) => f.write_str(&unrecorded(exe, &[*pid], why)),
            Missing::Outlived { pid, exe } => write!(
                f,
                "{} (pid {pid}) still ran when the recording ended: what it did after that is not known \
                 (record --wait waits for it)",
                clean(exe.rsplit('/').next().unwrap_or_default())
            ),
            Missing::Unseen { own_bytes, unseen_bytes } => write!(
                f,
                "{} of {} of its memory never held a recorded block: it has an allocator that was not seen \
                 (heaptape rss; record --allocator, --preload)",
                bytes(*unseen_bytes),
                bytes(*own_bytes)
            ),
            Missing::Unhooked { allocator, why } => match allocator.as_str() {
                "malloc" => write!(f, "its own malloc was not recorded: {why}"),
                name => write!(f, "{name}, its own malloc, was not recorded: {why}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_a_thread_share_one_line() {
        let dropped = |thread, events| Missing::Dropped { thread, events, from_tick: 0, to_tick: 0 };
        let found = lines(&[dropped(2, 7), Missing::NoEnd, dropped(1, 5), dropped(2, u64::MAX)]);
        let (max, why) = (u64::MAX, DROPPED);
        let expected = [
            format!("{} of thread 2 were dropped: {why}, in 2 gaps", counted(max, "event")),
            Missing::NoEnd.to_string(),
            format!("5 events of thread 1 were dropped: {why}"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn unrecorded_processes_of_a_program_share_one_line() {
        let process =
            |pid, exe: &str, why: &str| Missing::Unrecorded(NotTraced { pid, exe: exe.into(), why: why.into() });
        let mut missing: Vec<Missing> = (1..=6).map(|pid| process(pid, "/usr/bin/prog", "it is late")).collect();
        missing.extend([process(7, "/usr/bin/prog", "it is static"), process(8, "", "it is\x1b late"), Missing::NoEnd]);
        let found = lines(&missing);
        assert_eq!(found[0], "6 processes of prog (pids 1, 2, 3, 4, …) were not recorded: it is late");
        assert_eq!(found[1], "prog (pid 7) was not recorded: it is static");
        assert!(
            found[2].starts_with("a process (pid 8) was not recorded: ") && !found[2].contains('\x1b'),
            "{found:?}"
        );
        assert_eq!(found.len(), 4);
        assert!(missing[0].is_unseen() && !missing[0].hides_events() && !missing[0].hides_more());
    }
}
