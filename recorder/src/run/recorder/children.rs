//! Children of recorded processes that were too short to be found: what they used is in the sums
//! that the kernel keeps of the children that a process has waited for.
//!
//! That is for where the kernel does not tell of every program ([`super::census`]).
//!
//! Page faults and reads tell: a program has 27 faults or more, and the kernel reads twice to execute
//! it. A parent's sum grows by all of them at once. Growth is compared with the children that are
//! known, those that attached, were reported, or were made by a call that the library saw. Where it
//! is more often than there are such children, a program ran that nobody saw.

use super::{Recorder, Running, text};
use crate::target::proc::{self, End};
use formats::tape::{END_EXEC, END_EXITED, END_GONE};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use wire::area::{CHILD, TELLS_END};

/// Maximum number of processes whose children are counted.
const MAX_PARENTS: usize = 1 << 16;
/// The least page faults of a child that ran a program, e.g. a static one. A child of `vfork` that
/// starts none has a few, e.g. for the pages that it is the first to touch.
const PROGRAM_FAULTS: u64 = 16;
/// The least page faults of a dynamic program (`/bin/true`: 49), where nothing else is known.
const DYNAMIC_FAULTS: u64 = 48;
/// The kernel itself reads the head of a program and that of its segments.
const PROGRAM_READS: u64 = 2;

/// Why a recording lacks a process of which nothing else is known.
const NOT_SEEN: &str = "a direct system call started it, or its environment was changed before system() or popen()";
/// The same of several.
const NOT_SEEN_ANY: &str =
    "direct system calls started them, or their environment was changed before system() or popen()";

/// Why a recording lacks a program that was too short to be found.
const REPLACED: &str = "its limits left no room for the library, or a direct system call started it, in place of";

/// What is known of the children of recorded processes.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Number of children that attached or were reported, of each process.
    known: HashMap<u32, u32>,
    /// The running processes.
    sums: HashMap<u32, Sums>,
    /// The ended ones.
    parents: Vec<Parent>,
    /// Processes that exited without `exit` or `_exit`.
    silent: Vec<SilentExit>,
}

/// The page faults of the children of a process that it has waited for, and how many children that
/// were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    /// Page faults at the last look.
    faults: u64,
    /// What the children had read when they were judged last.
    reads: u64,
    /// Number of times that they had grown by those of a program or more, by known children.
    explained: u32,
    /// Number of times that there was no such child left. Several programs between two looks are one.
    unexplained: u32,
    /// By how much they have grown. A child that explains that may still be noted.
    open: u64,
    /// Children by calls that the library saw, in programs that the process ran before.
    earlier: u32,
}

impl Sums {
    /// Notes what the sum is now. `children` is the number of known children that have ended, and
    /// `reads` says how much all of them have read, if that is known.
    fn look(&mut self, faults: u64, children: u32, reads: impl Fn() -> Option<u64>) {
        self.close(children, reads);
        self.open = faults.saturating_sub(self.faults);
        self.faults = self.faults.max(faults);
    }

    fn close(&mut self, children: u32, reads: impl Fn() -> Option<u64>) {
        let grown = std::mem::take(&mut self.open);
        if grown < PROGRAM_FAULTS {
            return;
        }
        let ran = match reads() {
            Some(reads) => reads - std::mem::replace(&mut self.reads, reads).min(reads) >= PROGRAM_READS,
            None => grown >= DYNAMIC_FAULTS,
        };
        match children > self.explained {
            _ if !ran => {}
            true => self.explained += 1,
            false => self.unexplained += 1,
        }
    }
}

/// An ended process that had children.
#[derive(Debug)]
struct Parent {
    pid: u32,
    /// Path of its program.
    name: String,
    sums: Sums,
    /// Page faults of its children at its end.
    faults: u64,
    /// What its children have read, if that is known.
    reads: Option<u64>,
    /// Children by calls that the library saw.
    children: u32,
}

/// A process that exited without a call of `exit` or `_exit` that the library saw: it made the system
/// call itself, as Go does, or another program did.
#[derive(Debug)]
struct SilentExit {
    pid: u32,
    /// The kernel's name of the process when it attached: that of its program.
    began: Vec<u8>,
    /// Its last name; empty if nobody knows it.
    ended: Vec<u8>,
}

impl Children {
    /// Notes that a child of these processes, which may be one, attached or was reported.
    pub(super) fn know_child_of(&mut self, [one, other]: [u32; 2]) {
        for parent in [Some(one), Some(other).filter(|other| *other != one)].into_iter().flatten() {
            if self.known.len() < MAX_PARENTS {
                *self.known.entry(parent).or_default() += 1;
            }
        }
    }
}

/// Returns how many children a running process has made by calls that its library saw.
fn seen_by_library(running: &Running) -> u32 {
    running.session.mapping.header().signs.load(Relaxed) / CHILD
}

impl Recorder {
    /// Compares the sums of all recorded processes with the children that are known.
    pub(super) fn compare_children(&mut self) {
        let mut sums = std::mem::take(&mut self.children.sums);
        for running in &self.running {
            let pid = running.session.process.pid;
            let Some(faults) = proc::child_faults(pid) else { continue };
            let known = sums.entry(pid).or_insert(Sums { faults: running.child_faults, ..Sums::default() });
            let children = self.known_children(pid, known.earlier.saturating_add(seen_by_library(running)));
            known.look(faults, children, || proc::child_reads(pid));
        }
        self.children.sums = sums;
    }

    /// Returns the number of children of a process that are known and have ended: the larger one of
    /// those that the library saw and those that attached or were reported.
    fn known_children(&self, pid: u32, seen: u32) -> u32 {
        let is_child =
            |running: &&Running| self.recording.processes.get(running.index).is_some_and(|process| process.ppid == pid);
        let known = self.children.known.get(&pid).copied().unwrap_or(0);
        seen.max(known.saturating_sub(self.running.iter().filter(is_child).count() as u32))
    }

    /// Notes that a process has ended, or executes another program.
    pub(super) fn note_children(&mut self, running: &Running, end: End) {
        let pid = running.session.process.pid;
        let mut sums = self.children.sums.remove(&pid).unwrap_or_default();
        sums.faults = sums.faults.max(running.child_faults);
        let children = sums.earlier.saturating_add(seen_by_library(running));
        if end.reason == END_EXEC {
            sums.earlier = children;
            self.children.sums.insert(pid, sums);
            return;
        }
        // It told when it called `exit`. Otherwise the kernel may still know.
        let told = running.session.mapping.header().child_faults.load(Relaxed).checked_sub(1);
        let faults = told.or_else(|| proc::child_faults(pid)).unwrap_or(0);
        let reads = proc::child_reads(pid);
        if self.children.parents.len() < MAX_PARENTS {
            let name = text(&running.session.process.exe.0);
            self.children.parents.push(Parent { pid, name, sums, faults, reads, children });
        }
    }

    /// Notes a process that may have continued with another program, by a system call that nobody saw:
    /// a program that is short is gone before [`Recorder::check_programs`] looks.
    pub(super) fn note_silent_exit(&mut self, running: &Running, end: End) {
        let header = running.session.mapping.header();
        let is_silent = header.signs.load(Relaxed) & TELLS_END != 0 && header.child_faults.load(Relaxed) == 0;
        let (process, silent) = (&running.session.process, &mut self.children.silent);
        if is_silent && matches!(end.reason, END_EXITED | END_GONE) && silent.len() < MAX_PARENTS {
            let (pid, ended) = (process.pid, proc::name(process.pid));
            // Where the end is not known, only the command can tell.
            let ended = if end.reason == END_EXITED { ended } else { Vec::new() };
            silent.push(SilentExit { pid, began: running.comm.clone(), ended });
        }
    }

    /// Notes what the command has read of an ended process before it waited for that: how many page
    /// faults the children had that the process had waited for, what they read, and its name if it
    /// exited.
    pub(crate) fn note_last_words(&mut self, pid: u32, faults: u64, reads: Option<u64>, name: Vec<u8>) {
        if let Some(silent) = self.children.silent.iter_mut().rev().find(|silent| silent.pid == pid)
            && silent.ended.is_empty()
        {
            silent.ended = name;
        }
        if let Some(parent) = self.children.parents.iter_mut().rev().find(|parent| parent.pid == pid) {
            parent.faults = parent.faults.max(faults);
            parent.reads = parent.reads.or(reads);
        }
    }

    /// Names the programs that processes ran and that nobody has seen, at the end: whatever these
    /// started has attached by then, or was reported.
    pub(super) fn note_unseen_children(&mut self) {
        for SilentExit { pid, began, ended } in std::mem::take(&mut self.children.silent) {
            if !ended.is_empty() && ended != began && !self.knows_untraced(pid) {
                self.not_traced(pid, text(&ended), format!("{REPLACED} {}", text(&began)));
            }
        }
        let parents = std::mem::take(&mut self.children.parents);
        if let Some(counts) = self.count_unseen() {
            for (pid, name, count) in counts {
                let what = match count {
                    1 => format!("a program that was not seen: {NOT_SEEN}"),
                    more => format!("{more} programs that were not seen: {NOT_SEEN_ANY}"),
                };
                self.not_traced(0, String::new(), format!("{name} (pid {pid}) has run {what}"));
            }
            return;
        }
        for Parent { pid, name, mut sums, faults, reads, children } in parents {
            let children = self.known_children(pid, children);
            sums.look(faults, children, || reads);
            sums.close(children, || reads);
            if self.options.children && sums.unexplained > 0 {
                let name = name.rsplit('/').next().unwrap_or_default();
                let why = match sums.unexplained {
                    1 => format!("{name} (pid {pid}) may have run a program that was not seen: {NOT_SEEN}"),
                    more => {
                        format!(
                            "{name} (pid {pid}) may have run {more} programs or more that were not seen: {NOT_SEEN_ANY}"
                        )
                    }
                };
                self.not_traced(0, String::new(), why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many programs ran unseen, if the sum was this at each look, with so many known
    /// children, and grew by so many reads.
    fn unseen(looks: &[(u64, u32)], reads: Option<u64>) -> u32 {
        let mut sums = Sums::default();
        let all = |look: usize| reads.map(|reads| reads * look as u64);
        looks.iter().enumerate().for_each(|(at, (faults, children))| sums.look(*faults, *children, || all(at)));
        let children = looks.last().map_or(0, |look| look.1);
        sums.close(children, || all(looks.len()));
        sums.unexplained
    }

    #[test]
    fn programs_that_no_known_child_explains_are_counted() {
        for (looks, wanted) in [
            (&[][..], 0),
            (&[(100, 0)], 1),
            (&[(100, 0), (200, 0), (200, 0), (300, 0)], 3),
            // Known children, of which the last is noted later than it is seen in the sum.
            (&[(100, 1), (200, 1), (200, 2)], 0),
            (&[(100, 1), (200, 1), (200, 1)], 1),
            // Children that started no program.
            (&[(9, 0), (18, 0), (27, 0), (36, 0), (45, 0), (54, 0)], 0),
            (&[(100, 3), (200, 3), (300, 3), (400, 3), (500, 3)], 2),
        ] {
            assert_eq!(unseen(looks, None), wanted, "{looks:?}");
            assert_eq!(unseen(looks, Some(90)), wanted, "{looks:?}");
            assert_eq!(unseen(looks, Some(0)), 0, "{looks:?}: nothing was read");
        }
        // A static program is known from a child that runs none by its reads.
        assert_eq!([Some(2), Some(0), None].map(|reads| unseen(&[(27, 0), (54, 0)], reads)), [2, 0, 0]);
    }
}
