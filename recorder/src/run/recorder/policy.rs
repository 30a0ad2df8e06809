//! Which processes a recording has, and in which folders: the policy of `heaptape record` and
//! `attach`.

use super::take_over::KILLED;
use super::{Parent, Recorder, Running, Unwritten, text};
use crate::inject::patch::{self, Plan};
use crate::os::sys::Mapping;
use crate::pipeline::stages::Stages;
use crate::run::admission::{self, Admissions, Failure, Offer, Policy, RunningProcess, Started, Terms, Who};
use crate::session::boards::why_unused;
use crate::session::keeper::{About, Keeper};
use crate::session::listener::Client;
use crate::session::options::Options;
use crate::target::jit_names;
use crate::target::proc::{End, Process, sanitized_name};
use crate::target::untraced;
use formats::pattern::Pattern;
use formats::recording::ProcessInfo;
use formats::tape::Origin;
use formats::tape::journal::{self, Position};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use wire::hello::{Hello, ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Maximum number of sessions at once.
const MAX_SESSIONS: usize = 4096;

impl Recorder {
    /// Records a process from its attach on.
    pub fn admit_running(&mut self, running: RunningProcess) -> io::Result<()> {
        self.first_pid.get_or_insert(running.client.pid);
        self.census.attaches(running.client.pid);
        let decide = |recorder: &mut Recorder, _: &Client, _: &Who| Ok(Terms::new(recorder.options(), ()));
        admission::admit_running(self, running, decide).map(drop)
    }

    fn options(&self) -> Arc<Options> {
        Arc::clone(&self.options)
    }

    /// Returns whether a program is selected, by the name of its file or of its script.
    pub(super) fn is_selected(&self, process: &Process) -> bool {
        let exe = text(&process.exe);
        let names = [exe.rsplit('/').next().unwrap_or_default().to_owned(), text(&process.comm)];
        let among =
            |patterns: &[Pattern]| patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name)));
        (self.options.only.is_empty() || among(&self.options.only)) && !among(&self.options.skip)
    }
}

impl Policy for Recorder {
    type Decision = ();
    type Note = ();

    const MAX_MAP_BYTES: u64 = jit_names::MAX_MAP_BYTES;
    const VARIABLES: &'static [&'static str] = &[];

    fn admissions(&mut self) -> &mut Admissions<(), ()> {
        &mut self.admissions
    }

    fn stages(&self) -> &Stages {
        &self.stages
    }

    fn keeper(&mut self) -> &mut dyn Keeper {
        &mut self.keeper
    }

    fn decide(&mut self, client: &Client, Who { process, .. }: &Who) -> Result<Terms<()>, u32> {
        self.attaches(client.pid, process);
        self.census.attaches(client.pid);
        self.children.know_child_of([process.ppid, process.ppid]);
        // The launched program is always recorded; a program that it executes later is selected by
        // name, like children.
        let is_launched = self.first_pid.is_none();
        let is_child = *self.first_pid.get_or_insert(client.pid) != client.pid;
        if (is_child && !self.options.children) || (!is_launched && !self.is_selected(process)) {
            return Err(REFUSED_FILTER);
        }
        if self.running.len() + self.admissions.offers().count() >= MAX_SESSIONS {
            self.not_traced(client.pid, text(&process.exe), "too many processes at once".into());
            return Err(REFUSED_FULL);
        }
        Ok(Terms::new(self.options(), ()))
    }

    /// The blocks that were live before are not known any more: their frees are of unknown blocks.
    fn decide_again(&mut self, about: &About<()>, _: &Process) -> io::Result<Terms<()>> {
        let info = &about.info;
        self.first_pid.get_or_insert(info.pid);
        if !self.recording.processes.iter().any(|listed| listed.folder == info.folder) {
            self.recording.processes.push(info.clone());
            // Before the keeper has the next part instead of this one.
            self.write_or_note();
        }
        Ok(Terms { parent: info.parent.clone(), ..Terms::new(self.options(), ()) })
    }

    fn folder(&mut self, (): &(), pid: u32, comm: &[u8]) -> io::Result<PathBuf> {
        let name = format!("{pid}.{}", sanitized_name(comm));
        loop {
            let count = self.folders.entry(name.clone()).or_insert(0);
            *count += 1;
            let folder = if *count == 1 { name.clone() } else { format!("{name}.{count}") };
            let path = self.dir.join(folder);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(path),
                // Of a recorder that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn parent(&self, client: &Client, ppid: u32) -> Option<Parent> {
        let parent = |running: &Running| Parent::running(&running.session, running.worker);
        let ended = |pid: u32| self.ended.iter().rev().find(|ended| ended.pid == pid).map(|ended| ended.parent.clone());
        let Hello { origin, parent_pid: named, fork_tick, .. } = client.hello;
        if origin == ORIGIN_FORK {
            // A session that started after the fork is another program in the parent's process.
            let is_old = |running: &&Running| fork_tick == 0 || running.session.process.start_tick <= fork_tick;
            let by_name = self.running.iter().filter(is_old).find(|running| running.hello_pid == named);
            let by_kernel = || self.running.iter().filter(is_old).find(|running| running.session.process.pid == ppid);
            return by_name.or_else(by_kernel).map(parent).or_else(|| ended(named));
        }
        // The process was recorded before with another program, or was started by a recorded
        // process, directly or through processes that are not recorded.
        let alive = |pid: u32| self.running.iter().find(|running| running.session.process.pid == pid);
        let known = |pid: u32| alive(pid).map(parent).or_else(|| ended(pid));
        ended(client.pid).or_else(|| known(ppid)).or_else(|| untraced::ancestors(client.pid).find_map(known))
    }

    fn inherited(&self, parent: &Parent) -> Plan {
        let info = self.recording.processes.iter().rev().find(|info| info.folder == parent.folder);
        info.map_or_else(Plan::default, Plan::inherited)
    }

    /// Every process that knows the socket of a command's recorder got it from the first process.
    fn origin(&self, client: &Client, has_parent: bool) -> Origin {
        let is_of_command = !self.recording.command.is_empty();
        match client.hello.origin == ORIGIN_FORK {
            true => Origin::Fork,
            false if has_parent => Origin::Exec,
            false if is_of_command && self.first_pid == Some(client.pid) => Origin::Start,
            false if is_of_command => Origin::Exec,
            false => Origin::Attach,
        }
    }

    fn search_budget(&self) -> Duration {
        // While the first process waits, no other one does.
        if self.is_busy() { patch::MEDIUM_BUDGET } else { patch::LONG_BUDGET }
    }

    fn prepare(&self, (): &(), _: &Mapping) {}

    fn note(&self, (): &()) {}

    fn positions(&self, about: &About<()>) -> Vec<Position> {
        journal::positions(&self.dir.join(&about.info.folder))
    }

    fn executes(&mut self, pid: u32) {
        self.process_ended(pid, End::EXEC);
    }

    fn failed(&mut self, client: &Client, process: &Process, failure: Failure) {
        match failure {
            Failure::Area(error) => {
                self.not_traced(client.pid, text(&process.exe), format!("no memory for its rings: {error}"));
            }
            Failure::Folder(error) => {
                self.errors.push(format!("{}: {error}", self.dir.display()));
                tracing::error!("{}: {error}", self.dir.display());
            }
        }
    }

    fn gave_up(&mut self, offer: Offer<()>) {
        let Offer { client, process, folder, mapping, .. } = offer;
        self.not_traced(client.pid, text(&process.exe), why_unused(&mapping).into());
        let _ = std::fs::remove_dir(folder);
    }

    fn lost(&mut self, about: About<()>, error: Option<io::Error>) {
        let ProcessInfo { pid, folder, exe, .. } = about.info;
        match error {
            Some(error) => self.errors.push(format!("process {pid} is not recorded any more: {error}")),
            None => {
                let _ = std::fs::remove_dir(self.dir.join(folder));
                self.not_traced(pid, exe, KILLED.into());
            }
        }
    }

    fn started(&mut self, started: Started<()>) -> Option<String> {
        let Started { session, info, process, entry, ids, worker, program, child_faults, comm, .. } = started;
        let index = self.recording.processes.len();
        self.unwritten.insert(session.id, Unwritten { index, hooks: Arc::clone(&session.hooks) });
        let (hello_pid, has_references) = (ids.hello_pid, false);
        let running =
            Running { session, process, entry, hello_pid, worker, index, program, child_faults, comm, has_references };
        self.running.push(running);
        self.recording.processes.push(info);
        self.dirty = true;
        None
    }
}
