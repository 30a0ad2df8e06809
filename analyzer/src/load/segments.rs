//! Finds the segments of one process. A process that the daemon records through several epochs,
//! modes or restarts has a folder for each segment. All segments of a process have the same host,
//! boot, process ID and start. After an exec comes a `SEGMENT_FIRST`.

use super::{Events, Process};
use heaptape_formats::recording::{Exit, Kept, STREAM};
use heaptape_formats::tape::{SEGMENT_ANEW, SEGMENT_CARRIED, SEGMENT_FIRST, SEGMENT_SUMS, SEGMENT_UNKNOWN};
use std::collections::HashSet;
use std::path::PathBuf;

/// The difference in nanoseconds up to which two start times are the same: a recorder that takes a
/// process over knows its start in hundredths of a second.
const SAME_START_NS: u64 = 1_000_000_000;

/// How a segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    First,
    /// It lists all blocks that were live.
    Carried,
    /// It continues, and does not list the blocks that were live.
    Unknown,
    /// It continues, and its live set began anew.
    Anew,
    /// The segment has sums, which include those of the segment before.
    Sums,
}

/// What identifies a process on all hosts. Folders of recorders that did not write it have the
/// process ID, the program and the time of the first segment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    Known { host: Vec<u8>, boot: Vec<u8>, pid: u32, start_ticks: u64 },
    Old { pid: u32, exe: String },
}

/// What the order of the segments depends on.
struct Located {
    identity: Identity,
    /// First and last tick.
    ticks: (u64, u64),
    index: Index,
}

/// A process in a list of recordings.
#[derive(Clone, Copy)]
pub(super) struct Index {
    pub recording: usize,
    pub process: usize,
}

/// The segments of processes.
#[derive(Default)]
pub(super) struct Chains {
    /// The segments of each process that has several, oldest first.
    pub chains: Vec<Vec<Index>>,
    /// Folders that were given before.
    pub twice: Vec<Index>,
}

impl Process {
    /// Returns the root of the process, as the kernel shows it, if it runs on this machine now. The
    /// files of a process in a container have other paths on the host.
    pub(super) fn live_root(&self) -> Option<PathBuf> {
        let (segment, pid) = (self.tape.segment.as_ref()?, self.about.pid);
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may contain anything. After it, field 22 is the start.
        let stat = String::from_utf8_lossy(&stat);
        let start: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
        let is_same = boot.trim_ascii() == segment.boot.0 && start == segment.start_ticks;
        is_same.then(|| PathBuf::from(format!("/proc/{pid}/root")))
    }

    /// Returns how the segment begins.
    pub(super) fn begins(&self) -> Begins {
        if let Some(segment) = &self.tape.segment {
            return match segment.begins {
                SEGMENT_FIRST => Begins::First,
                SEGMENT_CARRIED => Begins::Carried,
                SEGMENT_UNKNOWN => Begins::Unknown,
                SEGMENT_ANEW => Begins::Anew,
                SEGMENT_SUMS => Begins::Sums,
                _ => Begins::Anew,
            };
        }
        // Recorders before the record of the segment only left notes.
        let has_note = |text: &[u8]| self.tape.notes.iter().any(|note| find(&note.text.0, text));
        if has_note(b"taken over from another daemon: ") {
            Begins::Unknown
        } else if has_note(b"taken over from another daemon, with ") || has_note(b" live blocks are carried over") {
            Begins::Carried
        } else if self.about.began_unix_ns != 0 {
            Begins::Anew
        } else {
            Begins::First
        }
    }

    /// Returns the number of blocks with which the events begin. Earlier segments allocated them,
    /// at a time that is not known.
    pub fn carried(&self) -> u64 {
        if let Events::Joined(joined) = &self.events {
            return joined.segments.first().map_or(0, |segment| segment.process.carried());
        }
        if let Some(segment) = &self.tape.segment {
            return segment.carried;
        }
        let number = |note: &[u8]| {
            let text = String::from_utf8_lossy(note);
            let (before, _) = text.split_once(" live blocks")?;
            before.rsplit(' ').next()?.parse().ok()
        };
        self.tape.notes.iter().find_map(|note| number(&note.text.0)).unwrap_or(0)
    }

    /// Returns the time from which the live blocks are known, in nanoseconds since 1970, if that is
    /// not the start of the process: then it holds at least what is recorded. A daemon was killed
    /// before, or the process was in another mode.
    pub fn live_since_unix_ns(&self) -> Option<u64> {
        if let Events::Joined(joined) = &self.events {
            return joined.segments.first().and_then(|segment| segment.process.live_since_unix_ns());
        }
        let known = self.tape.segment.as_ref().map_or(0, |segment| segment.live_since_unix_ns.0);
        // Recorders without this field left out only what was live before their own segment.
        let starts_later = matches!(self.begins(), Begins::Unknown | Begins::Anew);
        Some(if known > 0 { known } else { self.clock.start_unix_ns }).filter(|_| known > 0 || starts_later)
    }

    /// Returns when and why flight recordings of the process were kept, each once.
    pub fn kept(&self) -> Vec<Kept> {
        let Events::Joined(joined) = &self.events else { return self.about.kept.iter().cloned().collect() };
        let mut all: Vec<Kept> = joined.segments.iter().flat_map(|segment| segment.process.kept()).collect();
        all.dedup();
        all
    }

    /// Returns what identifies the process; `None` for one that cannot have several segments.
    fn identity(&self) -> Option<Identity> {
        let pid = self.about.pid;
        if pid == 0 || self.about.origin == STREAM {
            return None;
        }
        if let Some(segment) = self.tape.segment.as_ref().filter(|segment| !segment.boot.0.is_empty()) {
            let (host, boot) = (segment.host.0.clone(), segment.boot.0.clone());
            return Some(Identity::Known { host, boot, pid, start_ticks: segment.start_ticks });
        }
        (self.tape.process.pid != 0).then(|| Identity::Old { pid, exe: self.about.exe.clone() })
    }

    /// Returns the start of the process as a recorder without identities knew it.
    fn first_unix_ns(&self) -> u64 {
        if self.about.began_unix_ns == 0 { self.clock.start_unix_ns } else { self.about.began_unix_ns }
    }

    /// Returns whether this segment continues the one before.
    fn continues(&self, before: &Process) -> bool {
        let ended = matches!(before.about.exit, Some(Exit::Code(_) | Exit::Signal(_) | Exit::Exec));
        if ended || before.about.exe != self.about.exe {
            return false;
        }
        // After a time without a recording the live blocks of before are not known, so that the
        // segments are processes of their own.
        let is_followed = match self.begins() {
            Begins::Carried | Begins::Sums => true,
            Begins::Unknown => self.has_events() && before.has_events(),
            Begins::First | Begins::Anew => false,
        };
        if self.tape.segment.is_some() {
            return is_followed;
        }
        // A profile continues to count from the same start.
        let is_same_profile = !self.has_events() && self.clock == before.clock;
        let is_near = self.first_unix_ns().abs_diff(before.first_unix_ns()) < SAME_START_NS;
        is_same_profile || (is_followed && is_near)
    }
}

fn find(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Finds the segments of each process.
pub(super) fn chains(all: &[Vec<Process>]) -> Chains {
    let mut located: Vec<Located> = Vec::new();
    let mut found = Chains::default();
    let mut paths: HashSet<PathBuf> = HashSet::new();
    for (recording, processes) in all.iter().enumerate() {
        for (number, process) in processes.iter().enumerate() {
            let index = Index { recording, process: number };
            let Some(identity) = process.identity() else { continue };
            let path = process.path.canonicalize().unwrap_or_else(|_| process.path.clone());
            if !paths.insert(path) {
                found.twice.push(index);
                continue;
            }
            let ticks = (process.clock.start_tick, process.tape.last_tick);
            located.push(Located { identity, ticks, index });
        }
    }
    located.sort_by(|one, other| (&one.identity, one.ticks).cmp(&(&other.identity, other.ticks)));
    let of = |index: Index| &all[index.recording][index.process];
    let mut last: Option<&Located> = None;
    for one in &located {
        let continues = |last: &Located| last.identity == one.identity && of(one.index).continues(of(last.index));
        match found.chains.last_mut().filter(|_| last.is_some_and(continues)) {
            Some(chain) => chain.push(one.index),
            None => found.chains.push(vec![one.index]),
        }
        last = Some(one);
    }
    found.chains.retain(|chain| chain.len() > 1);
    found
}
