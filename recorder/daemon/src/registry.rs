//! The processes that the daemon records, those that have ended but aren't written completely, and
//! the sums of all of them.

use super::clients::{Client, Ended, FlightEnd};
use super::epoch::Epoch;
use super::metrics::{ProcessCounters, Programs};
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::session::{Session, SessionId, Stats, StatsSnapshot};
use heaptape_recorder::target::proc::ResidentMemory;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

/// A process that has ended and is not completely written.
#[derive(Debug)]
pub(crate) struct EndingProcess {
    pub epoch: Arc<Epoch>,
    pub label: String,
    /// How the process ended.
    pub ended: Ended,
    /// What is kept of its flight recording.
    pub keeps: FlightEnd,
    /// Folder of its last segment.
    segment: PathBuf,
    stats: Arc<Stats>,
    pub name: String,
    pub uid: u32,
}

/// Counts since the start of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Number of processes that were accepted.
    pub accepted: u64,
    /// Number of processes that were refused.
    pub refused: u64,
    /// Number of recorded events of all processes.
    pub recorded: u64,
    /// Number of lost events of all processes.
    pub lost: u64,
    /// Number of events of all processes that sampling skipped.
    pub sampled_out: u64,
}

impl Counters {
    fn add(&mut self, now: &StatsSnapshot) {
        self.recorded += now.recorded;
        self.lost += now.lost;
        self.sampled_out += now.sampled_out;
    }
}

/// The reasons for which processes run unrecorded.
const REASONS: [&str; 11] = [
    "attach",
    "clients",
    "connections",
    "descriptors",
    "error",
    "late",
    "orphaned",
    "other-user",
    "stalled",
    "starts",
    "unreachable",
];

/// The processes of the daemon.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    clients: Vec<Client>,
    ending: HashMap<SessionId, EndingProcess>,
    /// Counters of connections, and the final ones of processes that are written.
    counters: Counters,
    /// Final counters of written processes, by program.
    past: Programs,
    /// Number of processes that run unrecorded, by reason.
    unrecorded: BTreeMap<&'static str, u64>,
}

impl Registry {
    /// Adds a process that is recorded from now on.
    pub(crate) fn add(&mut self, client: Client) {
        self.clients.push(client);
    }

    /// Counts a process that was accepted.
    pub(crate) fn count_accepted(&mut self) {
        self.counters.accepted += 1;
    }

    /// Counts processes that were refused for this reason.
    pub(crate) fn count_refused(&mut self, reason: &'static str, count: u64) {
        self.counters.refused += count;
        self.count_unrecorded(reason, count);
    }

    /// Counts processes that run unrecorded for this reason.
    pub(crate) fn count_unrecorded(&mut self, reason: &'static str, count: u64) {
        *self.unrecorded.entry(reason).or_default() += count;
    }

    /// Returns how many processes run unrecorded, by reason.
    pub(crate) fn unrecorded(&self) -> impl Iterator<Item = (&'static str, u64)> {
        // A series that begins with its first count would never rise for Prometheus.
        let mut all: BTreeMap<&'static str, u64> = REASONS.into_iter().map(|reason| (reason, 0)).collect();
        all.extend(&self.unrecorded);
        all.into_iter()
    }

    /// Returns the recorded processes, in no particular order.
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Returns the recorded processes, to be changed.
    pub(crate) fn clients_mut(&mut self) -> &mut [Client] {
        &mut self.clients
    }

    /// Returns a recorded process.
    pub(crate) fn client(&self, id: SessionId) -> Option<&Client> {
        self.clients.iter().find(|client| client.session.id == id)
    }

    /// Returns a recorded process, to be changed.
    pub(crate) fn client_mut(&mut self, id: SessionId) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.session.id == id)
    }

    /// Returns the recorded process with a pid.
    pub(crate) fn client_of(&self, pid: u32) -> Option<&Client> {
        self.clients.iter().find(|client| client.pid() == pid)
    }

    /// Returns the sessions of the processes for which the condition holds.
    pub(crate) fn select(&self, mut condition: impl FnMut(&Client) -> bool) -> Vec<SessionId> {
        self.clients.iter().filter(|client| condition(client)).map(|client| client.session.id).collect()
    }

    /// Returns the sessions that are flight recordings.
    pub(crate) fn flights(&self) -> Vec<SessionId> {
        self.select(|client| client.choice.mode == Mode::Flight)
    }

    /// Returns the recorded process from which a child was forked, by the pid that the child names
    /// or else by the kernel's. Sessions that started after the fork are other programs.
    pub(crate) fn parent(&self, named_pid: u32, ppid: u32, fork_tick: u64) -> Option<&Client> {
        let is_old = |client: &&Client| fork_tick == 0 || client.session.process.start_tick <= fork_tick;
        let named = self.clients.iter().filter(is_old).find(|client| client.hello_pid == named_pid);
        named.or_else(|| self.clients.iter().filter(is_old).find(|client| client.pid() == ppid))
    }

    /// Removes a process that is recorded no more. Until it is written it counts as ending.
    pub(crate) fn end(&mut self, id: SessionId, ended: Ended, keeps: FlightEnd) -> Option<Arc<Session>> {
        let index = self.clients.iter().position(|client| client.session.id == id)?;
        let Client { epoch, label, session, name, uid, .. } = self.clients.swap_remove(index);
        let (segment, stats) = (session.folder.clone(), Arc::clone(&session.stats));
        self.ending.insert(id, EndingProcess { epoch, label, ended, keeps, segment, stats, name, uid });
        Some(session)
    }

    pub(crate) fn ending(&self, id: SessionId) -> Option<&EndingProcess> {
        self.ending.get(&id)
    }

    /// Returns the sessions of the processes that are ending.
    pub(crate) fn ending_ids(&self) -> Vec<SessionId> {
        self.ending.keys().copied().collect()
    }

    /// Returns the number of processes that are ending.
    pub(crate) fn ending_count(&self) -> usize {
        self.ending.len()
    }

    /// Returns the processes that are ending in an epoch, each with its last segment.
    pub(crate) fn ending_in(&self, epoch: &Epoch) -> HashMap<SessionId, PathBuf> {
        let of_epoch = self.ending.iter().filter(|(_, ending)| *ending.epoch == *epoch);
        of_epoch.map(|(id, ending)| (*id, ending.segment.clone())).collect()
    }

    /// Removes a process that has ended and is written, and adds its final counters.
    pub(crate) fn written(&mut self, id: SessionId) -> Option<EndingProcess> {
        let ending = self.ending.remove(&id)?;
        let now = ending.stats.now();
        self.counters.add(&now);
        self.past.add(ProcessCounters {
            uid: ending.uid,
            name: &ending.name,
            label: &ending.label,
            now,
            runs: false,
            resident: ResidentMemory::default(),
            limit_bytes: 0,
            divided: None,
        });
        Some(ending)
    }

    /// Returns the counters of all processes. One that has ended is counted by its current counters
    /// until it is written, and from then on by its final ones.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        self.clients.iter().for_each(|client| counters.add(&client.now()));
        self.ending.values().for_each(|ending| counters.add(&ending.stats.now()));
        counters
    }

    /// Returns the final counters of written processes, by program.
    pub(crate) fn past(&self) -> &Programs {
        &self.past
    }

    /// Returns the current counters of the processes that are not written.
    pub(crate) fn current(&self) -> impl Iterator<Item = ProcessCounters<'_>> {
        let running = self.clients.iter().map(|client| ProcessCounters {
            uid: client.uid,
            name: &client.name,
            label: &client.label,
            now: client.now(),
            runs: true,
            resident: client.memory.resident,
            limit_bytes: client.memory.limit_bytes,
            divided: client.session.stats.divided(),
        });
        let ending = self.ending.values().map(|ending| ProcessCounters {
            uid: ending.uid,
            name: &ending.name,
            label: &ending.label,
            now: ending.stats.now(),
            runs: false,
            resident: ResidentMemory::default(),
            limit_bytes: 0,
            divided: None,
        });
        running.chain(ending)
    }
}
