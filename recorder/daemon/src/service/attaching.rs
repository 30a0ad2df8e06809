//! Attaches programs that were started without the library, on request or by a rule, and lets them go
//! again.

use super::Service;
use crate::attacher::{Attacher, LeftProcess, NewProcess, Outcome, Search};
use crate::config::Choice;
use crate::control::Answer;
use crate::protocol::{Attached, Detached, Remains, Response, Which};
use crossbeam_channel::{Sender, bounded};
use heaptape_recorder::os::aside::{self, Owner};
use heaptape_recorder::session::SessionId;
use heaptape_recorder::session::options::Options;
use heaptape_recorder::target::proc::{self, End};
use heaptape_recorder::target::untraced;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time between two searches for processes that a rule attaches.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of processes that rules attach between two searches.
const MAX_BY_RULES: usize = 4;

/// The processes that are being attached or left.
#[derive(Debug)]
pub(super) struct Attaches {
    attacher: Attacher,
    /// Processes that are being attached.
    pending: HashMap<u32, PendingAttach>,
    /// Requests to leave processes.
    leaves: Vec<PendingLeave>,
    last_search: Instant,
    is_searching: bool,
}

/// A process that is being attached.
#[derive(Debug)]
struct PendingAttach {
    choice: Choice,
    /// The channel for the answer; `None` if a rule attaches it.
    reply: Option<Sender<Response>>,
}

/// A request to leave processes.
#[derive(Debug)]
struct PendingLeave {
    /// The processes that are not left yet.
    pids: Vec<u32>,
    left: Vec<LeftProcess>,
    reply: Sender<Response>,
}

impl Attaches {
    pub(super) fn new(attacher: Attacher) -> Attaches {
        Attaches {
            attacher,
            pending: HashMap::new(),
            leaves: Vec::new(),
            last_search: Instant::now(),
            is_searching: false,
        }
    }

    /// Forgets a process that has ended.
    pub(super) fn forget(&self, pid: u32) {
        self.attacher.forget(pid);
    }

    /// Returns how many processes of a user are being attached.
    fn pending_of(&self, uid: u32) -> u64 {
        self.pending.keys().filter(|pid| proc::owner(**pid) == Some(uid)).count() as u64
    }
}

fn microseconds(time: Duration) -> u64 {
    time.as_micros() as u64
}

impl Service {
    /// Begins to attach a process on request.
    pub(super) fn attach_on_request(&mut self, pid: u32, mode: Option<Choice>) -> Result<Answer, String> {
        let choice = mode.unwrap_or_else(|| self.config.choose(&proc::name(pid), requested_mode(pid).as_deref()));
        let (reply, answer) = bounded(1);
        self.begin_attach(pid, choice, Some(reply))?;
        Ok(Answer::Later(answer))
    }

    fn begin_attach(&mut self, pid: u32, choice: Choice, reply: Option<Sender<Response>>) -> Result<(), String> {
        let Some(uid) = proc::owner(pid) else { return Err(format!("there is no process {pid}")) };
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            return Err(format!("process {pid} belongs to another user, whose programs this daemon does not record"));
        }
        if self.serves(pid) {
            return Err(format!("process {pid} is recorded already"));
        }
        if self.attaches.pending.contains_key(&pid) {
            return Err(format!("process {pid} is being attached already"));
        }
        let of_user = self.count_of(uid) + self.attaches.pending_of(uid);
        if of_user >= self.config.budget.clients {
            let why = format!("user {uid}: {of_user} processes are recorded, process {pid} is not attached");
            self.budgets.hit("clients", &why);
            return Err(format!("process {pid} is not attached: {of_user} processes are recorded (budget of clients)"));
        }
        let options = Options { slots: self.slots(), ..choice.options(&self.config, "") };
        self.attaches.attacher.attach(pid, options);
        self.attaches.pending.insert(pid, PendingAttach { choice, reply });
        Ok(())
    }

    /// Begins to leave the attached ones among these processes.
    pub(super) fn detach_on_request(&mut self, which: &Which, ids: &[SessionId]) -> Result<Answer, String> {
        let clients = self.registry.clients().iter();
        let attached = clients.filter(|client| client.is_attached && ids.contains(&client.session.id));
        let pids: Vec<u32> = attached.map(|client| client.pid()).collect();
        if pids.is_empty() {
            let which = &which.0;
            return Err(format!("no attached process matches '{which}': the others were started with the library"));
        }
        let (reply, answer) = bounded(1);
        self.attaches.leaves.push(PendingLeave { pids: pids.clone(), left: Vec::new(), reply });
        self.attaches.attacher.leave(pids);
        Ok(Answer::Later(answer))
    }

    /// Handles what the thread that attaches has done.
    pub(super) fn handle_attaches(&mut self) {
        while let Some(outcome) = self.attaches.attacher.next() {
            self.handle_attach(outcome);
        }
    }

    fn handle_attach(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Attached(new) => self.attached_process(*new),
            Outcome::Refused { pid, why, is_final } => self.attach_refused(pid, &why, is_final),
            Outcome::Left(left) => self.left_process(left),
            Outcome::Found(pids) => {
                self.attaches.is_searching = false;
                pids.into_iter().take(MAX_BY_RULES).for_each(|pid| self.attach_by_rule(pid));
            }
        }
    }

    fn attached_process(&mut self, new: NewProcess) {
        let NewProcess { running, functions, stops } = new;
        let pid = running.client.pid;
        let Some(PendingAttach { choice, reply }) = self.attaches.pending.remove(&pid) else { return };
        let response = match self.admit_running(running, choice) {
            Ok(id) => {
                self.registry.count_accepted();
                let process = self.registry.client(id).map(|client| client.describe()).unwrap_or_default();
                let stopped = microseconds(stops.all);
                let name = process.name.escape_debug();
                tracing::info!("process {pid} ({name}) is attached: {functions} functions, stopped for {stopped} us");
                let (name, mode, folder) = (process.name, process.mode, process.folder);
                Response::Attached(Attached { pid, name, mode, folder, functions: functions as u64, stop_us: stopped })
            }
            Err(error) => {
                tracing::warn!("process {pid} is left again: {error}");
                self.attaches.attacher.leave(vec![pid]);
                self.registry.count_refused("error", 1);
                Response::error(format!("process {pid} is not attached: {error}"))
            }
        };
        if let Some(reply) = reply {
            let _ = reply.send(response);
        }
    }

    fn attach_refused(&mut self, pid: u32, why: &str, is_final: bool) {
        let Some(PendingAttach { reply, .. }) = self.attaches.pending.remove(&pid) else { return };
        if let Some(reply) = reply {
            let _ = reply.send(Response::error(format!("process {pid} is not attached: {why}")));
        } else if is_final && proc::parent(pid).is_some() {
            // Once for each process: it is not tried again.
            let name = proc::name(pid);
            tracing::info!("process {pid} ({}) is not attached: {why}", name.escape_ascii());
            self.registry.count_unrecorded("attach", 1);
        }
    }

    fn left_process(&mut self, left: LeftProcess) {
        let LeftProcess { pid, ref remains, stops } = left;
        for id in self.registry.select(|client| client.pid() == pid && client.is_attached) {
            self.end(id, End::RUNNING);
        }
        let remains = remains.as_ref().map(|remains| format!("; {remains}")).unwrap_or_default();
        tracing::info!("process {pid} was left, stopped for {} us{remains}", microseconds(stops.all));
        for leave in &mut self.attaches.leaves {
            let before = leave.pids.len();
            leave.pids.retain(|waiting| *waiting != pid);
            if leave.pids.len() < before {
                leave.left.push(left.clone());
            }
        }
        let (waiting, done) =
            std::mem::take(&mut self.attaches.leaves).into_iter().partition(|leave| !leave.pids.is_empty());
        self.attaches.leaves = waiting;
        done.into_iter().for_each(PendingLeave::answer);
    }

    /// Searches for processes that rules attach, and for attached ones that execute another
    /// program. Called once a second.
    pub(super) fn check_attaches(&mut self) {
        let attached = self.registry.clients().iter().filter(|client| client.is_attached);
        let has_left =
            attached.filter(|client| program_of(client.session.owner()).is_some_and(|now| Some(now) != client.program));
        let gone: Vec<SessionId> = has_left.map(|client| client.session.id).collect();
        gone.into_iter().for_each(|id| self.end(id, End::EXEC));
        let is_due = !self.attaches.is_searching && self.attaches.last_search.elapsed() >= SEARCH_INTERVAL;
        // While a limit reduces processes, no further ones are attached.
        let is_reduced = self.registry.clients().iter().any(|client| client.held.is_some());
        if !is_due || is_reduced || !self.config.programs.iter().any(|rule| rule.attach) {
            return;
        }
        (self.attaches.last_search, self.attaches.is_searching) = (Instant::now(), true);
        let recorded = self.registry.clients().iter().map(|client| client.pid());
        let recorded = recorded.chain(self.attaches.pending.keys().copied()).collect();
        let (rules, serves_all) = (self.config.programs.clone(), self.config.serves_all);
        self.attaches.attacher.search(Search { rules, serves_all, recorded });
    }

    fn attach_by_rule(&mut self, pid: u32) {
        let choice = self.config.choose(&proc::name(pid), requested_mode(pid).as_deref());
        if choice.mode == heaptape_recorder::session::options::Mode::Off {
            return;
        }
        if let Err(why) = self.begin_attach(pid, choice, None) {
            tracing::debug!("{why}");
        }
    }

    /// Ends the thread that attaches. Unless the next daemon continues with them, all attached
    /// processes are left.
    pub(super) fn finish_attaches(&mut self) {
        let attached = self.registry.clients().iter().filter(|client| client.is_attached);
        let leaves = (!self.successor.takes_over()).then(|| attached.map(|client| client.pid()).collect());
        for outcome in self.attaches.attacher.finish(leaves) {
            self.handle_attach(outcome);
        }
    }
}

/// Returns the mode that a process requests in its environment.
fn requested_mode(pid: u32) -> Option<String> {
    let owner = Owner { pid, uid: proc::owner(pid)? };
    let read = move || proc::variable(pid, &["HEAPTAPE_MODE"]).into_iter().next().flatten();
    aside::call(owner, read).unwrap_or_default()
}

/// Returns the program that a process executes, unless its file system does not answer.
fn program_of(owner: Owner) -> Option<(u64, u64)> {
    aside::call(owner, move || untraced::program(owner.pid)).unwrap_or_default()
}

impl PendingLeave {
    fn answer(self) {
        let remains = |left: &LeftProcess| Some(Remains { pid: left.pid, why: left.remains.clone()? });
        let detached = Detached {
            processes: self.left.len() as u64,
            stop_us: self.left.iter().map(|left| microseconds(left.stops.all)).max().unwrap_or(0),
            remains: self.left.iter().filter_map(remains).collect(),
        };
        let _ = self.reply.send(Response::Detached(detached));
    }
}
