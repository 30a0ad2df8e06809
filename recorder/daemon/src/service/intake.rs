//! Decides which processes the daemon records, how, and in which folders (its policy of
//! [`heaptape_recorder::run::admission`]), and follows them to their end.

use super::Service;
use crate::budget::EVENTS;
use crate::clients::{Client, Ended, FlightEnd, Note};
use crate::config::{Choice, Sampling};
use crate::epoch::Epoch;
use crate::growth::LiveHistory;
use crate::inquiries;
use crate::successor::remove_if_there;
use formats::tape::Origin;
use formats::tape::journal::Position;
use heaptape_recorder::inject::patch::{self, Plan};
use heaptape_recorder::os::sys::{self, Mapping};
use heaptape_recorder::pipeline::{Command, Stages};
use heaptape_recorder::run::admission::{
    self, Admissions, Failure, Offer, Parent, Policy, RunningProcess, Started, Terms, Who,
};
use heaptape_recorder::session::keeper::{self, About, Keeper};
use heaptape_recorder::session::listener::Client as AttachRequest;
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::session::{Limit, SessionId, chunk_journal};
use heaptape_recorder::target::MAX_MAP_BYTES_SHARED;
use heaptape_recorder::target::proc::{self, End, Process, SeenEnd};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::hello::{ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Maximum length of a label, in characters.
const MAX_LABEL: usize = 200;
/// Maximum number of lines in a minute about one user's programs that run unrecorded.
pub(super) const MAX_LOGGED: u32 = 16;

/// What the daemon decided about a process: what is recorded of it, and where.
#[derive(Debug)]
pub(crate) struct Decision {
    uid: u32,
    choice: Choice,
    label: String,
    cgroup: String,
    epoch: Arc<Epoch>,
    how: How,
}

/// How a process came to the daemon.
#[derive(Debug)]
enum How {
    /// It asked at its start, perhaps for this mode.
    Asked(Option<String>),
    WasAttached,
    /// Another daemon recorded it, and may have attached it.
    TakenOver {
        was_attached: bool,
    },
}

impl Decision {
    fn was_attached(&self) -> bool {
        matches!(self.how, How::WasAttached | How::TakenOver { was_attached: true })
    }
}

impl Policy for Service {
    type Decision = Decision;
    type Note = Note;

    const MAX_MAP_BYTES: u64 = MAX_MAP_BYTES_SHARED;
    const VARIABLES: &'static [&'static str] = &["HEAPTAPE_MODE", "HEAPTAPE_LABEL"];

    fn admissions(&mut self) -> &mut Admissions<Decision, Note> {
        &mut self.admissions
    }

    fn stages(&self) -> &Stages {
        &self.stages
    }

    fn keeper(&mut self) -> &mut dyn Keeper {
        self.successor.keeper()
    }

    fn decide(&mut self, request: &AttachRequest, who: &Who) -> Result<Terms<Decision>, u32> {
        let AttachRequest { pid, uid, .. } = *request;
        let process = &who.process;
        // While we looked at it.
        if request.has_disconnected() {
            self.count_late(pid, uid);
            return Err(REFUSED_FULL);
        }
        let of_user = self.count_of(uid);
        if of_user >= self.config.budget.clients {
            self.budgets
                .hit("clients", &format!("user {uid}: {of_user} processes are recorded, the next runs unrecorded"));
            self.registry.count_refused("clients", 1);
            return Err(REFUSED_FULL);
        }
        let [mode, label] = requested(who);
        let choice = self.config.choose(&process.comm, mode.as_deref());
        let is_fork = request.hello.origin == ORIGIN_FORK;
        // A parent that has overwritten its environment left none to the child.
        let of_parent = || self.registry.client_of(process.ppid).filter(|_| is_fork).map(|parent| parent.label.clone());
        let label = label.or_else(of_parent);
        self.terms([pid, uid], choice, label, How::Asked(mode)).map_err(|error| {
            self.refuse(pid, uid, &error);
            REFUSED_FULL
        })
    }

    /// Unless the other daemon has written the live blocks, they are not known, and frees of them are
    /// of unknown blocks.
    fn decide_again(&mut self, about: &About<Note>, _: &Process) -> io::Result<Terms<Decision>> {
        let (pid, uid) = (about.info.pid, about.uid);
        let Note { choice, label, was_attached } = about.note.clone();
        let mut terms = self.terms([pid, uid], choice, Some(label), How::TakenOver { was_attached })?;
        if choice.mode == Mode::Flight {
            terms.earlier = self.epochs.flight_segments(uid, pid);
        }
        Ok(terms)
    }

    fn folder(&mut self, decision: &Decision, pid: u32, comm: &[u8]) -> io::Result<PathBuf> {
        let Decision { uid, epoch, choice, .. } = decision;
        Ok(self.epochs.folder(*uid, epoch, choice.mode, pid, &String::from_utf8_lossy(comm)))
    }

    /// A forked child inherits the blocks of its parent, unless their shares are not known.
    fn parent(&self, request: &AttachRequest, ppid: u32) -> Option<Parent> {
        if request.hello.origin != ORIGIN_FORK {
            return None;
        }
        let found = self.registry.parent(request.hello.parent_pid, ppid, request.hello.fork_tick)?;
        let is_complete =
            found.uid == request.uid && found.choice.mode != Mode::Off && found.choice.sampling == Sampling::All;
        is_complete.then(|| Parent::running(&found.session, found.worker))
    }

    fn inherited(&self, _: &Parent) -> Plan {
        Plan::default()
    }

    fn origin(&self, request: &AttachRequest, _: bool) -> Origin {
        if request.hello.origin == ORIGIN_FORK { Origin::Fork } else { Origin::Attach }
    }

    fn search_budget(&self) -> Duration {
        patch::SHORT_BUDGET
    }

    fn prepare(&self, decision: &Decision, mapping: &Mapping) {
        if decision.choice.mode == Mode::Off {
            mapping.header().activation.0.store(wire::area::ACTIVATION_DORMANT, Relaxed);
        }
    }

    fn note(&self, decision: &Decision) -> Note {
        let (choice, label, was_attached) = (decision.choice, decision.label.clone(), decision.was_attached());
        Note { choice, label, was_attached }
    }

    fn positions(&self, about: &About<Note>) -> Vec<Position> {
        chunk_journal::positions(&self.successor.carried_over_file(about.info.pid))
    }

    fn executes(&mut self, pid: u32) {
        for id in self.registry.select(|client| client.pid() == pid) {
            self.end(id, End::EXEC);
        }
    }

    fn failed(&mut self, request: &AttachRequest, _: &Process, failure: Failure) {
        let (Failure::Area(error) | Failure::Folder(error)) = failure;
        self.refuse(request.pid, request.uid, &error);
    }

    fn gave_up(&mut self, offer: Offer<Decision>) {
        self.count_late(offer.client.pid, offer.client.uid);
    }

    fn lost(&mut self, about: About<Note>, error: Option<io::Error>) {
        match error {
            Some(error) => self.name_orphan(about.info.pid, about.uid, &error.to_string()),
            None => self.name_orphan(about.info.pid, about.uid, "it does not use its memory"),
        }
    }

    fn started(&mut self, started: Started<Decision>) -> Option<String> {
        let Started { session, info, decision, process, entry, ids, worker, program, comm, .. } = started;
        let is_attached = decision.was_attached();
        let Decision { uid, choice, label, cgroup, epoch, how } = decision;
        self.epochs.list(&epoch, &session, info);
        let interval = session.options.sample_bytes;
        let memory = self.kernel_memory(ids.pid);
        self.registry.add(Client {
            session,
            process,
            entry,
            uid,
            hello_pid: ids.hello_pid,
            worker,
            choice,
            interval,
            name: String::from_utf8_lossy(&comm).into_owned(),
            label,
            cgroup,
            epoch,
            since: Instant::now(),
            past: VecDeque::new(),
            history: LiveHistory::default(),
            ticks: 0,
            kept: None,
            held: None,
            reduced: None,
            earlier_hits: 0,
            memory,
            is_attached,
            is_stalled: false,
            program: program.filter(|_| is_attached),
        });
        let How::Asked(mode) = how else { return None };
        self.late.forget(ids.pid);
        self.registry.count_accepted();
        self.unknown_mode(uid, ids.pid, &mode?, choice)
    }
}

/// Returns the mode and the label that a process requests in its environment.
fn requested(who: &Who) -> [Option<String>; 2] {
    [0, 1].map(|index| who.variables.get(index).cloned().flatten())
}

impl Service {
    /// Looks at a program that asks to be recorded, unless it is refused at once.
    pub(super) fn look_at(&mut self, request: AttachRequest) {
        let (pid, uid) = (request.pid, request.uid);
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            self.registry.count_refused("other-user", 1);
            return request.refuse(REFUSED_FILTER);
        }
        // Those behind it wait for us, so nothing is done for a program that has gone on.
        if request.has_disconnected() {
            self.count_late(pid, uid);
            return request.refuse(REFUSED_FULL);
        }
        let question = admission::ask(self, &request);
        if let Some(request) = self.inquiries.begin(request, question) {
            self.count_stalled(pid, uid);
            request.refuse(REFUSED_FULL);
        }
    }

    /// Records a program that was looked at.
    pub(super) fn admit(&mut self, answer: inquiries::Answer) {
        let inquiries::Answer { client, known, is_named } = answer;
        if !(is_named && client.has_disconnected()) {
            admission::admit_known(self, client, known);
        }
    }

    /// Records a process that was attached, and that uses its area already.
    pub(super) fn admit_running(&mut self, running: RunningProcess, choice: Choice) -> io::Result<SessionId> {
        admission::admit_running(self, running, |service, request, who| {
            let [_, label] = requested(who);
            service.terms([request.pid, request.uid], choice, label, How::WasAttached)
        })
    }

    /// Decides where a process is recorded, and its label: without one of its own it has that of its
    /// systemd unit.
    fn terms(
        &mut self,
        [pid, uid]: [u32; 2],
        choice: Choice,
        label: Option<String>,
        how: How,
    ) -> io::Result<Terms<Decision>> {
        let (cgroup, unit) = proc::control_group(pid);
        let label = label.filter(|label| !label.is_empty()).or(unit).unwrap_or_default();
        let label: String = label.chars().take(MAX_LABEL).collect();
        let mut options = choice.options(&self.config, &label);
        let epoch = self.epochs.of_user(uid)?;
        (options.reader, options.quota) = (epoch.reader, Some(self.epochs.quota(uid)));
        options.names = Some(self.epochs.names(&epoch));
        options.slots = self.slots();
        let carried_over = self.successor.carried_over_file(pid);
        if !matches!(how, How::TakenOver { .. }) {
            // The kernel reused this pid: drop what the previous owner left.
            remove_if_there(&chunk_journal::link(&carried_over));
            remove_if_there(&carried_over);
        }
        let limit = Limit::of(self.budgets.user_limit(uid));
        let decision = Decision { uid, choice, label, cgroup, epoch, how };
        Ok(Terms { limit, carried_over: Some(carried_over), ..Terms::new(Arc::new(options), decision) })
    }

    /// Returns the number of threads for which an area has space.
    pub(super) fn slots(&self) -> u32 {
        self.config.budget.threads.clamp(1, wire::limits::SLOTS.into()) as u32
    }

    /// Returns whether a process is recorded, or about to be.
    pub(super) fn serves(&self, pid: u32) -> bool {
        self.registry.client_of(pid).is_some()
            || self.admissions.offers().any(|offer| offer.client.pid == pid)
            || self.inquiries.all().any(|(other, _)| other == pid)
    }

    /// Returns how many processes of a user are recorded, or about to be.
    pub(super) fn count_of(&self, uid: u32) -> u64 {
        let offered = self.admissions.offers().filter(|offer| offer.client.uid == uid).count();
        (self.registry.select(|client| client.uid == uid).len() + offered) as u64
    }

    /// Counts and names a program that runs unrecorded because of an error.
    fn refuse(&mut self, pid: u32, uid: u32, error: &io::Error) {
        if let Some(more) = self.log.permits("refused", uid, MAX_LOGGED) {
            tracing::warn!("process {pid} runs unrecorded: {error}{more}");
        }
        if sys::is_out_of_descriptors(error) {
            self.budgets.hit_by("descriptors", uid, 1);
        }
        let reason = if sys::is_out_of_descriptors(error) { "descriptors" } else { "error" };
        self.registry.count_refused(reason, 1);
    }

    /// Counts a program that runs unrecorded since it no longer waited for the answer, and names it.
    fn count_late(&mut self, pid: u32, uid: u32) {
        let name = self.late.add(pid, uid, "late");
        self.registry.count_refused("late", 1);
        if let Some(more) = self.log.permits("late", uid, MAX_LOGGED) {
            let name = name.escape_debug();
            tracing::warn!(
                "process {pid} ({name}) runs unrecorded: it no longer waited for the daemon, which was busy (HEAPTAPE_ATTACH_MS){more}"
            );
        }
    }

    /// Says, and returns, that the mode which a process requested is none.
    fn unknown_mode(&mut self, uid: u32, pid: u32, mode: &str, choice: Choice) -> Option<String> {
        if !self.config.asks_programs || mode.parse::<Choice>().is_ok() {
            return None;
        }
        let mode: String = mode.escape_debug().take(100).collect();
        let text = format!("HEAPTAPE_MODE is ignored: '{mode}' is no mode; its mode is {choice}");
        if let Some(more) = self.log.permits("mode", uid, 1) {
            tracing::warn!("process {pid}: {text}{more}");
        }
        Some(text)
    }

    /// Hands a process over to the next daemon.
    pub(super) fn hand_over(&mut self, id: SessionId) {
        if self.registry.end(id, Ended::RUNNING, FlightEnd::Nothing).is_some() {
            self.send(Command::Leave(id));
        }
    }

    /// Ends the recording of a process.
    pub(super) fn end(&mut self, id: SessionId, end: End) {
        self.read_boards(Some(id));
        let Some(client) = self.registry.client(id) else { return };
        client.entry.iter().for_each(|entry| keeper::release(self.successor.keeper(), entry));
        if client.is_attached {
            self.attaches.forget(client.pid());
        }
        let ended = Ended { exit: end.exit(), memory: self.last_memory(id, end) };
        let Some(client) = self.registry.client(id) else { return };
        let keeps = FlightEnd::of(self.config.triggers.death, &ended.exit, client.session.lived());
        // What it lost is counted when its rings have been read to their ends.
        if client.session.limit.take_hits() + client.earlier_hits > 0 {
            let (uid, pid, name) = (client.uid, client.pid(), client.name.escape_debug());
            let why = format!("user {uid}, process {pid} ({name}): it ended, and was beyond the budget before");
            self.budgets.hit(EVENTS, &why);
        }
        // Children that share the page of the activation attach by themselves.
        client.session.mapping.header().activation.0.store(wire::area::ACTIVATION_ENABLED, Relaxed);
        let pid = client.pid();
        self.registry.end(id, ended, keeps);
        self.successor.forget(pid);
        self.send(Command::End(id, SeenEnd::now(end, &self.admissions.clock)));
    }
}
