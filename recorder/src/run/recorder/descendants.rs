//! Programs that a recorded process starts and that neither attach nor are reported: their
//! environment lacks the library, and they were started by what the library does not see, e.g.
//! `system` and `popen` after `unsetenv`, or Go's `exec.Command` with an environment of its own, which
//! makes the system calls itself.
//!
//! A running descendant is found in `/proc`: among the new ones ([`super::newborn`]), and here, where
//! all are searched, every half second and at the end. One that was too short for that is seen in
//! what its parent's children have used ([`super::children`]).

use super::{Recorder, text};
use crate::os::sys;
use crate::target::proc;
use crate::target::untraced;
use formats::recording::NotTraced;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::hello::UntracedReason;

/// Shortest interval of the searches.
const INTERVAL: Duration = Duration::from_millis(500);
/// A search may take one part in this many of the time: a machine may have 100,000 processes.
const MOST_TIME: u32 = 200;
/// How long a process is looked at that has not executed a program.
pub(super) const YOUTH: Duration = Duration::from_secs(1);
/// Maximum number of generations between a process and a recorded one.
const GENERATIONS: usize = 32;
/// Maximum number of starts of programs in children whose numbers are not known yet.
const MAX_ANNOUNCED: usize = 1 << 16;

/// What is known of the descendants of recorded processes.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    /// When the next search is due.
    next: Option<Instant>,
    /// Processes that had not loaded the library at the last search, with their start.
    suspects: HashMap<u32, u64>,
    /// Processes that a search has named. Their starter may report them later.
    named: HashSet<u32>,
    /// Starts of programs in children whose numbers are not known yet: by which process, and the
    /// program's path.
    announced: Vec<(u32, Vec<u8>)>,
}

impl Descendants {
    /// Notes that a process is about to start an unrecorded program in a child.
    pub(super) fn announce(&mut self, from: u32, path: &[u8]) {
        if self.announced.len() < MAX_ANNOUNCED {
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
        // A child is named by what it executes, which may take a while on a busy machine. One that shares
        // the memory of its parent is a part of it until then, as LeakSanitizer has one.
        let is_undecided = |pid: u32, kin: &proc::Kin| {
            all.get(&kin.parent).is_some_and(|parent| parent.image == kin.image)
                && (proc::age_of(kin.start_ticks) < YOUTH || sys::share_memory([pid, kin.parent]) == Some(true))
        };
        let is_new = |pid: u32| {
            let is_known = recorded.contains(&pid) || pending.contains(&pid) || loaded.contains(&pid);
            !is_known && is_descendant(pid) && !self.knows_untraced(pid)
        };
        let mut found: Vec<(u32, proc::Kin)> = all
            .iter()
            .filter(|(pid, kin)| is_new(**pid) && !is_undecided(**pid, kin))
            .map(|(pid, kin)| (*pid, *kin))
            .collect();
        // Parents first: what they start is named after them.
        found.sort_unstable_by_key(|(pid, kin)| (kin.start_ticks, *pid));
        let before = std::mem::take(&mut self.descendants.suspects);
        for (pid, kin) in found {
            let was_seen = before.get(&pid) == Some(&kin.start_ticks);
            match self.unseen(pid, kin.parent) {
                None => {}
                Some(Unseen { why: None, .. }) if !was_seen => {
                    self.descendants.suspects.insert(pid, kin.start_ticks);
                }
                Some(Unseen { exe, why }) => {
                    let why = self.unrecorded_ancestor(pid).or(why).unwrap_or_else(|| untraced::NOT_LOADED.into());
                    self.name_unseen(pid, kin.parent, exe, why);
                }
            }
        }
    }

    /// Names a process that runs a program without the library.
    pub(super) fn name_unseen(&mut self, pid: u32, parent: u32, exe: String, why: String) {
        self.descendants.named.insert(pid);
        self.children.know_child_of([parent, parent]);
        if !self.names_announced(parent, pid, &exe) {
            self.not_traced(pid, exe, why);
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
        known.pid = pid;
        self.census.is_announced(parent, pid);
        // A shell is known by the name that it was started by.
        let file = |path: &str| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        if file(exe) != file(&path) {
            exe.clone_into(&mut known.exe);
        }
        self.dirty = true;
        true
    }

    /// Returns what a process runs without the library, and why; `None` if it has that, or nothing can
    /// be said.
    pub(super) fn unseen(&self, pid: u32, parent: u32) -> Option<Unseen> {
        // The name comes first: the process may end at any time.
        let exe = text(&proc::exe(pid));
        let variables = proc::environment(pid);
        // A zombie has none, and that of another user cannot be read.
        if exe.is_empty() || variables.is_empty() || proc::has_mapped(pid, LIBRARY) != Some(false) {
            return None;
        }
        let preload = variables.iter().find_map(|one| one.strip_prefix(b"LD_PRELOAD="));
        let names_library = |preload: &[u8]| preload.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes());
        let knows_socket = variables.contains(&self.variable);
        let why = match preload.filter(|value| !value.is_empty()) {
            Some(value) if names_library(value) && knows_socket => return Some(Unseen { exe, why: None }),
            Some(value) if names_library(value) => (UntracedReason::Socket, &b""[..]),
            Some(value) => (UntracedReason::Replaced, value),
            None => (UntracedReason::Environment, &b""[..]),
        };
        let of_file = untraced::why_not(Path::new(&format!("/proc/{pid}/exe")));
        let why = of_file.unwrap_or_else(|| self.why_untraced([parent, parent], why.0, why.1));
        Some(Unseen { exe, why: Some(why) })
    }
}

/// A process that has not loaded the library.
pub(super) struct Unseen {
    /// Path of its program.
    pub(super) exe: String,
    /// Why it has not; `None` if it ought to, and may not have got there.
    pub(super) why: Option<String>,
}

/// What the name of the library begins with.
pub(super) const LIBRARY: &str = "libheaptape";
