//! Processes that run without being recorded, and why.

use super::descendants::LIBRARY;
use super::{Recorder, environment, text};
use crate::inject::static_program::NOT_PERMITTED;
use crate::os::{crash, sys};
use crate::target::proc::{self, Process};
use crate::target::untraced;
use crossbeam_channel::{Receiver, bounded};
use formats::recording::{HAD_NOT_ALLOCATED, NotTraced};
use std::path::Path;
use wire::hello::{UNKNOWN_CHILD, UntracedReason};

/// Maximum number of processes that are listed as not recorded.
const MAX_NOT_TRACED: usize = 10_000;

/// Why a static program is not recorded into which the library was loaded.
const NOT_ATTACHED: &str = "it is statically linked, and did not reach the recorder from its environment";

/// The search for processes that could attach later.
#[derive(Debug)]
pub(super) struct Unattached {
    found: Receiver<Vec<u32>>,
}

/// A refused request of a process that starts a child. The number of the child is not known yet.
#[derive(Debug)]
pub(super) struct RefusedStart {
    from: u32,
    path: Vec<u8>,
    why: String,
}

/// Returns why a process is not recorded that knows the socket and has not attached until the end.
fn why_unattached(pid: u32) -> String {
    match proc::has_mapped(pid, LIBRARY) {
        Some(false) => {
            let why = untraced::why_not(Path::new(&format!("/proc/{pid}/exe")));
            why.unwrap_or_else(|| untraced::NOT_LOADED.into())
        }
        _ => HAD_NOT_ALLOCATED.into(),
    }
}

impl Recorder {
    /// Notes a process that runs without being recorded, and why.
    pub fn not_traced(&mut self, pid: u32, exe: String, why: String) {
        self.census.is_named(pid);
        tracing::debug!("{exe} ({pid}) runs unrecorded: {why}");
        if !self.is_requested(pid, &exe) || self.recording.not_traced.len() >= MAX_NOT_TRACED {
            return;
        }
        self.recording.not_traced.push(NotTraced { pid, exe, why });
        self.dirty = true;
    }

    /// Takes back the last note that this process is not recorded.
    pub(crate) fn take_back(&mut self, pid: u32) {
        self.census.is_not_named(pid);
        let last = self.recording.not_traced.iter().rposition(|process| process.pid == pid);
        last.map(|index| self.recording.not_traced.remove(index));
        self.dirty = true;
    }

    /// Returns whether this process is noted as not recorded.
    pub(crate) fn knows_untraced(&self, pid: u32) -> bool {
        self.recording.not_traced.iter().any(|process| process.pid == pid)
    }

    /// Returns the processes that know the socket, recorded or not.
    pub fn candidates(&self) -> impl Iterator<Item = u32> {
        proc::with_variable(&self.variable)
    }

    /// Starts the search for the processes that run at the end and could attach later, at their
    /// first allocation: a forked child attaches then, and a new program when it has been loaded.
    /// The search reads the environment of all processes, so a thread does it.
    pub(super) fn search_unattached(&self) -> Unattached {
        let (found_out, found) = bounded(1);
        if self.options.children {
            let running: Vec<u32> = self.running.iter().map(|running| running.session.process.pid).collect();
            let variable = self.variable.clone();
            let search = move || {
                let candidates = proc::with_variable(&variable).filter(|pid| !running.contains(pid));
                let _ = found_out.send(candidates.collect());
            };
            // Without a further thread nothing is searched.
            let _ = crash::spawn("search", search);
        }
        Unattached { found }
    }

    /// Notes the processes that were found.
    pub(super) fn note_unattached(&mut self, unattached: &Unattached) {
        for pid in unattached.found.recv().unwrap_or_default() {
            let process = Process::read(pid);
            let has_ended = process.start_ticks == 0;
            let is_part = || proc::parent(pid).is_some_and(|parent| sys::share_memory([pid, parent]) == Some(true));
            if !has_ended && !is_part() && !self.knows_untraced(pid) && self.is_selected(&process) {
                let why = self.unrecorded_ancestor(pid).unwrap_or_else(|| why_unattached(pid));
                self.not_traced(pid, text(&process.exe), why);
            }
        }
    }

    /// Returns why a process is not recorded whose ancestor is not: nothing of heaptape is active
    /// in a process that such a one forks, and it may start others without the library.
    pub(super) fn unrecorded_ancestor(&self, pid: u32) -> Option<String> {
        let unrecorded = |pid: u32| self.recording.not_traced.iter().find(|known| known.pid == pid);
        let known = untraced::ancestors(pid).find_map(unrecorded).filter(|known| known.may_have_allocated())?;
        let name = known.exe.rsplit('/').next().unwrap_or_default();
        Some(format!("it was started by {name} (pid {}), which was not recorded", known.pid))
    }

    /// Returns why a program is not recorded, as a process reported that starts it: `sender`, which
    /// has the program of `attached`. Where the environment is at fault, the text says what changed
    /// it, and what to do.
    pub(super) fn why_untraced(&self, [sender, attached]: [u32; 2], why: UntracedReason, preload: &[u8]) -> String {
        let culprit = || environment::culprit(&self.command_line(sender, attached));
        match why {
            UntracedReason::Replaced if !preload.is_empty() => environment::replaced(preload, &culprit()),
            UntracedReason::Environment | UntracedReason::Socket => environment::removed(why, &culprit()),
            _ => why.text().into(),
        }
    }

    /// Returns the command line of a process that starts another program. It may run that one by
    /// now, or have ended, so what is known of it comes first.
    fn command_line(&self, sender: u32, attached: u32) -> Vec<String> {
        let offer = self.admissions.offers().find(|offer| offer.client.pid == sender);
        if let Some(offer) = offer {
            return offer.process.argv.iter().map(|argument| text(argument)).collect();
        }
        let running = self.running.iter().find(|one| one.hello_pid == attached).map(|one| one.index);
        let ended = || self.recording.processes.iter().rposition(|process| process.pid == attached);
        let known = running.or_else(ended).and_then(|index| self.recording.processes.get(index));
        known.map(|process| process.argv.clone()).unwrap_or_default()
    }

    /// Returns whether the options of the user request a process. The launched program always is.
    fn is_requested(&self, pid: u32, exe: &str) -> bool {
        let Some(first) = self.first_pid else { return true };
        let name = exe.rsplit('/').next().unwrap_or_default().as_bytes().to_vec();
        let process = Process { exe: name.clone(), comm: name.clone(), ..Process::default() };
        (self.options.children || first == pid) && (name.is_empty() || self.is_selected(&process))
    }

    /// Notes a program that will not be recorded, as the library in a process reported.
    pub(super) fn note_untraced(&mut self, from: u32, pid: u32, why: String, path: &[u8]) {
        if pid == UNKNOWN_CHILD {
            self.descendants.announce(from, path);
            self.census.announce(from);
            return self.not_traced(0, text(path), why);
        }
        if pid == 0 {
            self.leaves(from);
        }
        let is_named = self.descendants.has_named(if pid == 0 { from } else { pid });
        if !is_named && (pid == 0 || !self.names_child(from, pid, path)) {
            self.not_traced(if pid == 0 { from } else { pid }, text(path), why);
        }
    }

    /// Replaces the process number of a refused request by that of the child that was started then.
    /// The request came before there was a child. Returns whether there was such a request.
    fn names_child(&mut self, from: u32, child: u32, path: &[u8]) -> bool {
        self.note_loaded();
        let is_same = |start: &RefusedStart| start.from == from && start.path == path;
        let Some(index) = self.refused_starts.iter().position(is_same) else { return false };
        let RefusedStart { path, why, .. } = self.refused_starts.swap_remove(index);
        let path = text(&path);
        let is_refused = |known: &&mut NotTraced| known.pid == from && known.exe == path && known.why == why;
        if let Some(known) = self.recording.not_traced.iter_mut().rev().find(is_refused) {
            known.pid = child;
            self.census.is_not_named(from);
            self.census.is_named(child);
            self.dirty = true;
        }
        true
    }

    /// Notes that a process announced that it continues with a program that is not recorded.
    fn leaves(&mut self, pid: u32) {
        if self.running.iter().any(|running| running.session.process.pid == pid) {
            self.watch.leaves(pid);
        }
    }

    /// Notes the static programs into which the library could not be loaded, and remembers the
    /// other ones until they attach.
    pub(super) fn note_loaded(&mut self) {
        while let Some(loaded) = self.loader.next() {
            self.children.know_child_of([loaded.from, proc::parent(loaded.pid).unwrap_or(0)]);
            // A process may have permitted it and tried again.
            let is_first_try = |known: &NotTraced| known.pid == loaded.from && known.why.ends_with(NOT_PERMITTED);
            self.recording.not_traced.retain(|known| !is_first_try(known));
            self.refused_starts.retain(|start| start.from != loaded.from || !start.why.ends_with(NOT_PERMITTED));
            match loaded.refusal {
                None => self.loaded.push(loaded),
                Some(why) => {
                    if loaded.leaves {
                        self.leaves(loaded.from);
                    } else if loaded.pid == loaded.from && self.refused_starts.len() < MAX_NOT_TRACED {
                        let (from, path, why) = (loaded.from, loaded.path.clone(), why.clone());
                        self.refused_starts.push(RefusedStart { from, path, why });
                    }
                    self.not_traced(loaded.pid, text(&loaded.path), why);
                }
            }
        }
    }

    /// Notes that a process attaches.
    pub(super) fn attaches(&mut self, pid: u32, process: &Process) {
        if self.watch.comes_late(pid, process) {
            self.take_back(pid);
        }
        self.note_loaded();
        self.loaded.retain(|loaded| loaded.pid != pid);
    }

    /// Notes the static programs that have not attached until the end.
    pub(super) fn note_not_attached(&mut self) {
        self.note_loaded();
        for loaded in std::mem::take(&mut self.loaded) {
            self.not_traced(loaded.pid, text(&loaded.path), NOT_ATTACHED.into());
        }
    }
}
