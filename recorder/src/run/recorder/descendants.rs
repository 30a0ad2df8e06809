//! Programs that a recorded process starts and that neither attach nor are reported: their
//! environment lacks the library, and they were started by what the library does not see, e.g.
//! `system` and `popen` after `unsetenv`, or Go's `exec.Command` with an environment of its own, which
//! makes the system calls itself.
//!
//! Two things are seen from outside. A running descendant is found in `/proc`, every half second and
//! at the end. And a process that calls `exit` tells how many page faults its children had that it
//! waited for: if none of its children is known, it had one that was too short to be found.

use super::{Recorder, Running, text};
use crate::target::proc::{self, End, Process};
use crate::target::untraced;
use formats::recording::NotTraced;
use formats::tape::{END_EXITED, END_GONE};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::area::{MADE_CHILD, TELLS_END};
use wire::hello::UntracedReason;

/// Shortest interval of the searches.
const INTERVAL: Duration = Duration::from_millis(500);
/// A search may take one part in this many of the time: a machine may have 100,000 processes.
const MOST_TIME: u32 = 200;
/// Maximum number of generations between a process and a recorded one.
const GENERATIONS: usize = 32;
/// Maximum number of processes whose children are known to be seen.
const MAX_STARTERS: usize = 1 << 16;
/// The least page faults of children that ran a program: a dynamic one has a hundred. A child of
/// `vfork` that starts none has a few, e.g. for the pages that it is the first to touch.
const PROGRAM_FAULTS: u64 = 64;

/// Why a recording lacks a process of which nothing else is known.
const NOT_SEEN: &str = "may have run a program that was not seen: a direct system call started it, or its environment \
                        was changed before system() or popen()";

/// Why a recording lacks a program that was too short to be found.
const REPLACED: &str = "a direct system call seems to have started it, in place of";

/// What is known of the children of recorded processes.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    /// When the next search is due.
    next: Option<Instant>,
    /// Processes that had not loaded the library at the last search, with their start.
    suspects: HashMap<u32, u64>,
    /// Processes that a search has named. Their starter may report them later.
    named: HashSet<u32>,
    /// Processes of which a child attached, or was reported.
    starters: HashSet<u32>,
    /// Ended processes that had children.
    parents: Vec<ChildFaults>,
    /// Processes that exited without `exit` or `_exit`.
    silent: Vec<SilentExit>,
    /// Starts of programs in children whose numbers are not known yet: by which process, and the
    /// program's path.
    announced: Vec<(u32, Vec<u8>)>,
}

/// The page faults of the children of an ended process that it had waited for.
#[derive(Debug)]
struct ChildFaults {
    pid: u32,
    /// Path of its program.
    name: String,
    /// Those from before it attached.
    before: u64,
    /// Those since then.
    faults: u64,
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

impl Descendants {
    /// Notes that a child of these processes attached, or was reported.
    pub(super) fn know_child_of(&mut self, starters: [u32; 2]) {
        if self.starters.len() < MAX_STARTERS {
            self.starters.extend(starters);
        }
    }

    /// Notes that a process is about to start an unrecorded program in a child.
    pub(super) fn announce(&mut self, from: u32, path: &[u8]) {
        if self.announced.len() < MAX_STARTERS {
            self.announced.push((from, path.to_vec()));
        }
    }

    /// Returns whether a search has named a process.
    pub(super) fn has_named(&self, pid: u32) -> bool {
        self.named.contains(&pid)
    }
}

impl Recorder {
    /// Searches the running descendants of recorded processes for programs that are not recorded, if
    /// it is time.
    pub(super) fn check_descendants(&mut self) {
        let now = Instant::now();
        if !self.options.children || self.running.is_empty() || self.descendants.next.is_some_and(|next| now < next) {
            return;
        }
        if self.descendants.next.is_some() {
            self.search_descendants();
        }
        self.descendants.next = Some(Instant::now() + INTERVAL.max(now.elapsed() * MOST_TIME));
    }

    /// Names the running descendants of recorded processes that run without the library.
    pub(super) fn search_descendants(&mut self) {
        if !self.options.children || self.running.is_empty() {
            return;
        }
        let recorded: HashSet<u32> = self.running.iter().map(|running| running.session.process.pid).collect();
        let all: HashMap<u32, proc::Kin> = proc::pids().filter_map(|pid| Some((pid, proc::kin(pid)?))).collect();
        let parent = |pid: &u32| all.get(pid).map(|kin| kin.parent);
        let is_descendant = |pid: u32| {
            let up = std::iter::successors(parent(&pid), parent);
            up.take_while(|pid| *pid > 1).take(GENERATIONS).any(|pid| recorded.contains(&pid))
        };
        let pending: HashSet<u32> = self.admissions.offers().map(|offer| offer.client.pid).collect();
        let loaded: HashSet<u32> = self.loaded.iter().map(|loaded| loaded.pid).collect();
        let is_new = |pid: u32| {
            let is_known = recorded.contains(&pid) || pending.contains(&pid) || loaded.contains(&pid);
            !is_known && is_descendant(pid) && !self.knows_untraced(pid)
        };
        let mut found: Vec<(u32, proc::Kin)> =
            all.iter().filter(|(pid, _)| is_new(**pid)).map(|(pid, kin)| (*pid, *kin)).collect();
        // Parents first: what they start is named after them.
        found.sort_unstable_by_key(|(pid, kin)| (kin.start_ticks, *pid));
        let before = std::mem::take(&mut self.descendants.suspects);
        for (pid, kin) in found {
            let was_seen = before.get(&pid) == Some(&kin.start_ticks);
            match self.why_unseen(pid, kin.parent) {
                Unseen::No => {}
                Unseen::Loads if !was_seen => drop(self.descendants.suspects.insert(pid, kin.start_ticks)),
                unseen => {
                    let why = self.unrecorded_ancestor(pid).unwrap_or(match unseen {
                        Unseen::Because(why) => why,
                        _ => untraced::NOT_LOADED.into(),
                    });
                    self.descendants.named.insert(pid);
                    self.descendants.know_child_of([kin.parent, 0]);
                    let exe = text(&Process::read(pid).exe);
                    if !self.names_announced(kin.parent, pid, &exe) {
                        self.not_traced(pid, exe, why);
                    }
                }
            }
        }
    }

    /// Notes the number of a child, and the program that it runs by now, if its parent has announced
    /// it. Returns whether it has.
    fn names_announced(&mut self, parent: u32, pid: u32, exe: &str) -> bool {
        let announced = &mut self.descendants.announced;
        let Some(index) = announced.iter().position(|(from, _)| *from == parent) else { return false };
        let path = text(&announced.swap_remove(index).1);
        let is_it = |known: &&mut NotTraced| known.pid == 0 && known.exe == path;
        let Some(known) = self.recording.not_traced.iter_mut().rev().find(is_it) else { return false };
        (known.pid, known.exe) = (pid, exe.to_owned());
        self.dirty = true;
        true
    }

    /// Returns why nothing is known of a process, if it runs without the library.
    fn why_unseen(&self, pid: u32, parent: u32) -> Unseen {
        let variables = proc::environment(pid);
        // A zombie has none, and that of another user cannot be read.
        if variables.is_empty() || proc::has_mapped(pid, LIBRARY) != Some(false) {
            return Unseen::No;
        }
        let exe = format!("/proc/{pid}/exe");
        let preload = variables.iter().find_map(|one| one.strip_prefix(b"LD_PRELOAD="));
        let names_library = |preload: &[u8]| preload.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes());
        let knows_socket = variables.contains(&self.variable);
        let why = match preload.filter(|value| !value.is_empty()) {
            Some(value) if names_library(value) && knows_socket => return Unseen::Loads,
            Some(value) if names_library(value) => (UntracedReason::Socket, &b""[..]),
            Some(value) => (UntracedReason::Replaced, value),
            None => (UntracedReason::Environment, &b""[..]),
        };
        let of_file = untraced::why_not(Path::new(&exe));
        Unseen::Because(of_file.unwrap_or_else(|| self.why_untraced([parent, parent], why.0, why.1)))
    }

    /// Notes that a process has ended that may have run a program that was not seen.
    pub(super) fn note_children(&mut self, running: &Running) {
        let pid = running.session.process.pid;
        let header = running.session.mapping.header();
        // It told when it called `exit`. Otherwise the kernel may still know.
        let told = header.child_faults.load(Relaxed).checked_sub(1);
        let all = told.or_else(|| proc::child_faults(pid)).unwrap_or(0);
        let (before, faults) = (running.child_faults, all.saturating_sub(running.child_faults));
        // A forked child that allocates nothing is not missing, and nothing tells of it.
        let has_forked = header.signs.load(Relaxed) & MADE_CHILD != 0;
        let may_be_told = self.first_pid == Some(pid);
        if !has_forked && (faults >= PROGRAM_FAULTS || may_be_told) && self.descendants.parents.len() < MAX_STARTERS {
            let name = text(&running.session.process.exe.0);
            self.descendants.parents.push(ChildFaults { pid, name, before, faults });
        }
    }

    /// Notes a process that may have continued with another program, by a system call that nobody saw:
    /// a program that is short is gone before [`Recorder::check_programs`] looks.
    pub(super) fn note_silent_exit(&mut self, running: &Running, end: End) {
        let header = running.session.mapping.header();
        let is_silent = header.signs.load(Relaxed) & TELLS_END != 0 && header.child_faults.load(Relaxed) == 0;
        let (process, silent) = (&running.session.process, &mut self.descendants.silent);
        if is_silent && matches!(end.reason, END_EXITED | END_GONE) && silent.len() < MAX_STARTERS {
            let (pid, ended) = (process.pid, proc::name(process.pid));
            // Where the end is not known, only the command can tell.
            let ended = if end.reason == END_EXITED { ended } else { Vec::new() };
            silent.push(SilentExit { pid, began: running.comm.clone(), ended });
        }
    }

    /// Notes what the command has read of an ended process before it waited for that: how many page
    /// faults the children had that the process had waited for, and its name if it exited.
    pub fn note_last_words(&mut self, pid: u32, all: u64, name: Vec<u8>) {
        if let Some(silent) = self.descendants.silent.iter_mut().rev().find(|silent| silent.pid == pid)
            && silent.ended.is_empty()
        {
            silent.ended = name;
        }
        if let Some(parent) = self.descendants.parents.iter_mut().rev().find(|parent| parent.pid == pid) {
            parent.faults = parent.faults.max(all.saturating_sub(parent.before));
        }
    }

    /// Names the programs that processes ran and that nobody has seen, at the end: whatever these
    /// started has attached by then, or was reported.
    pub(super) fn note_unseen_children(&mut self) {
        for SilentExit { pid, began, ended } in std::mem::take(&mut self.descendants.silent) {
            if !ended.is_empty() && ended != began && !self.knows_untraced(pid) {
                self.not_traced(pid, text(&ended), format!("{REPLACED} {}", text(&began)));
            }
        }
        for ChildFaults { pid, name, faults, .. } in std::mem::take(&mut self.descendants.parents) {
            let starters = &self.descendants.starters;
            let is_known = starters.contains(&pid)
                || starters.len() >= MAX_STARTERS
                || self.recording.processes.iter().any(|process| process.ppid == pid);
            if self.options.children && faults >= PROGRAM_FAULTS && !is_known {
                let why = format!("{} (pid {pid}) {NOT_SEEN}", name.rsplit('/').next().unwrap_or_default());
                self.not_traced(0, String::new(), why);
            }
        }
    }
}

/// What a process without a session is.
enum Unseen {
    /// It has the library, or nothing can be said.
    No,
    /// It ought to load the library, and may not have got there.
    Loads,
    /// It runs without the library.
    Because(String),
}

/// What the name of the library begins with.
pub(super) const LIBRARY: &str = "libheaptape";
