//! The limits of the daemon: its memory, CPU time and disk space, and the events that the processes
//! of one user may send. Each time a limit is reached, that is logged, counted, and shown at the
//! process that it concerns.

use super::clients::{Client, Reduced};
use super::config::{Budget, Choice, Sampling};
use super::disk::Disk;
use super::registry::Registry;
use super::retention::Limit;
use heaptape_recorder::os::sys;
use heaptape_recorder::session::options::{Mode, Overflow};
use heaptape_recorder::session::{SessionId, UserLimit};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two log messages about the same limit of the same user.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Number of successive checks above the CPU budget after which a process is reduced.
const MAX_BUSY_CHECKS: u32 = 5;
/// Number of successive checks with room for more after which a reduced process comes back.
const CHECKS_WITH_ROOM: u32 = 10;
/// The pause after a reduction until the process may come back. It doubles with each reduction.
const COME_BACK_PAUSE: Duration = Duration::from_secs(30);
/// How often it doubles: to 32 minutes.
const MAX_DOUBLINGS: u32 = 6;
/// For how many checks the memory of processes that have ended is waited for, before one that runs is
/// reduced: other threads free it.
const MAX_ENDING_CHECKS: u32 = 5;
/// Number of checks between two attempts to give free memory back, while little is left.
const CHECKS_PER_TRIM: u32 = 10;
/// Name of the limit of the daemon's memory.
const MEMORY: &str = "memory";
/// Name of the limit of the daemon's CPU time.
const CPU: &str = "cpu";
/// Name of the limit of the events of a user.
pub(crate) const EVENTS: &str = "events";
/// What is kept of a process that costs too much CPU time.
const CHEAP_CHOICE: Choice = Choice { mode: Mode::Profile, sampling: Sampling::Budget(1.0), overflow: None };
/// What is kept of a process that costs too much memory, or too much CPU time even with
/// [`CHEAP_CHOICE`].
const OFF_CHOICE: Choice = Choice { mode: Mode::Off, sampling: Sampling::All, overflow: None };

/// A process whose mode is to change to one that costs less.
#[derive(Debug)]
pub(crate) struct Reduction {
    pub id: SessionId,
    /// What is kept of it from now on. What it does when a ring is full stays.
    pub choice: Choice,
    /// Name of the limit that was reached.
    pub what: &'static str,
    /// The reason, for the log.
    pub why: String,
}

/// The limits of the daemon, how often each was reached, and the resources that it uses.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    limits: Budget,
    hits: BTreeMap<&'static str, u64>,
    /// When each limit was last logged, by the user that it concerns.
    last_logged: BTreeMap<(&'static str, Option<u32>), Instant>,
    /// Resident memory of the daemon, in bytes.
    memory: u64,
    /// What of it nobody shares. Programs' areas are shared, and stay when they are not recorded.
    private: u64,
    /// Total CPU time of the daemon, in nanoseconds.
    cpu_ns: u64,
    last_check: Option<(Instant, u64)>,
    /// CPU usage at the last check, in percent of one CPU.
    cpu_percent: f64,
    checks_over_budget: u32,
    checks_with_room: u32,
    checks_over_memory: u32,
    checks_since_trim: u32,
    user_limits: HashMap<u32, Arc<UserLimit>>,
}

impl Budgets {
    /// Creates the budgets with these limits.
    pub(crate) fn new(limits: Budget) -> Budgets {
        Budgets { limits, ..Budgets::default() }
    }

    /// Replaces the limits by those of a new configuration.
    pub(crate) fn set_limits(&mut self, limits: Budget) {
        self.limits = limits;
        self.user_limits.values().for_each(|limit| limit.set_events(limits.events));
    }

    /// Returns the limits that the configuration sets.
    pub(crate) fn limits(&self) -> &Budget {
        &self.limits
    }

    /// Returns the resident memory of the daemon at the last check, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Returns the total CPU time of the daemon at the last check, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.cpu_ns
    }

    /// Counts a limit that was reached, and logs it.
    pub(crate) fn hit(&mut self, what: &'static str, why: &str) {
        self.count(what, None, 1, || why.to_owned());
    }

    /// Counts a limit of one user that was reached `times` times, and logs it.
    pub(crate) fn hit_by(&mut self, what: &'static str, uid: u32, times: u64) {
        let why = match what {
            "descriptors" => {
                "no descriptor is left for a connection, so a program runs unrecorded (raise LimitNOFILE=)"
            }
            "connections" => "too many connections; programs among them run unrecorded",
            "keep-free" => "too little of the file system is free, events are not stored",
            "user-keep-bytes" => "the share of the disk is used up, events are not stored",
            _ => "too many starts; the programs run unrecorded",
        };
        self.count(what, Some(uid), times, || format!("user {uid}: {why} ({times} in a second)"));
    }

    fn count(&mut self, what: &'static str, uid: Option<u32>, times: u64, why: impl FnOnce() -> String) {
        *self.hits.entry(what).or_default() += times;
        let now = Instant::now();
        self.last_logged.retain(|_, last_logged| now.duration_since(*last_logged) < LOG_INTERVAL);
        self.last_logged.entry((what, uid)).or_insert_with(|| {
            tracing::warn!("budget of {what}: {}", why());
            now
        });
    }

    /// Returns how often each limit was reached.
    pub(crate) fn hits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.hits.iter().map(|(what, count)| (*what, *count))
    }

    fn measure_memory(&mut self) {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let mut pages = pages.split_ascii_whitespace().skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0) * 4096);
        self.memory = pages.next().unwrap_or(0);
        self.private = self.memory.saturating_sub(pages.next().unwrap_or(0));
    }

    /// Measures the resources that the daemon uses. Called once a second.
    pub(crate) fn measure(&mut self) {
        self.measure_memory();
        self.checks_since_trim += 1;
        // The allocator keeps what ended processes took: nobody else may lose his recording for it.
        let (limit, has_waited) = (self.limits.memory, self.checks_since_trim >= CHECKS_PER_TRIM);
        if self.private > limit || (self.private > limit / 4 * 3 && has_waited) {
            sys::give_back_memory();
            self.measure_memory();
            self.checks_since_trim = 0;
        }
        self.checks_over_memory = if self.private > limit { self.checks_over_memory + 1 } else { 0 };
        self.cpu_ns = own_cpu_ns();
        let now = Instant::now();
        if let Some((then, before)) = self.last_check.replace((now, self.cpu_ns)) {
            let passed = now.duration_since(then).as_nanos().max(1) as f64;
            self.cpu_percent = self.cpu_ns.saturating_sub(before) as f64 * 100.0 / passed;
        }
        let is_over = self.cpu_percent > self.limits.cpu as f64;
        self.checks_over_budget = if is_over { self.checks_over_budget + 1 } else { 0 };
    }

    /// Returns the processes that take most memory of the users whose processes take most, when the
    /// daemon takes too much.
    pub(crate) fn over_memory(&self, registry: &Registry) -> Vec<Reduction> {
        let excess = self.private.saturating_sub(self.limits.memory);
        let waits_for_ended = registry.ending_count() > 0
            && self.checks_over_memory <= MAX_ENDING_CHECKS
            && excess < self.limits.memory / 2;
        if excess == 0 || waits_for_ended {
            return Vec::new();
        }
        let why = format!(
            "{} bytes are in use: of the user who takes most, the process that takes most is not recorded any more",
            self.private
        );
        let recorded = registry.clients().iter().filter(|client| client.choice.mode != Mode::Off);
        let memory = recorded.map(|client| (client.uid, client.session.id, client.now().memory)).collect();
        let reduction = |id| Reduction { id, choice: OFF_CHOICE, what: MEMORY, why: why.clone() };
        // To turn off who has little frees little.
        let users: BTreeSet<u32> = registry.clients().iter().map(|client| client.uid).collect();
        let least = self.limits.memory / (2 * users.len().max(1) as u64);
        largest(memory, excess, least).into_iter().map(reduction).collect()
    }

    /// Returns the process whose events are most work, of the user whose events are, when the daemon has used too much CPU time
    /// for a while.
    pub(crate) fn over_cpu(&mut self, registry: &Registry) -> Option<Reduction> {
        if self.checks_over_budget < MAX_BUSY_CHECKS {
            return None;
        }
        let id = client_with_most(registry, |client| client.rates().recorded)?;
        self.checks_over_budget = 0;
        let is_reduced = |client: &Client| Choice { overflow: None, ..client.choice } == CHEAP_CHOICE;
        let choice = if registry.client(id).is_some_and(is_reduced) { OFF_CHOICE } else { CHEAP_CHOICE };
        let why =
            format!("{:.0} % of a CPU: the mode of the process that sends most becomes {choice}", self.cpu_percent);
        Some(Reduction { id, choice, what: CPU, why })
    }

    /// Returns a process that memory and CPU time are enough for again, with what is kept of it from
    /// now on: of the user whose processes take least.
    pub(crate) fn come_back(&mut self, registry: &Registry) -> Option<(SessionId, Choice)> {
        let has_room = self.private < self.limits.memory / 4 * 3 && self.cpu_percent < self.limits.cpu as f64 / 2.0;
        self.checks_with_room = if has_room { self.checks_with_room + 1 } else { 0 };
        if self.checks_with_room < CHECKS_WITH_ROOM {
            return None;
        }
        let taken = by_user(registry, |client| client.now().memory);
        let now = Instant::now();
        let waits = |client: &&Client| {
            client.held.is_some_and(|what| [MEMORY, CPU].contains(&what))
                && client.reduced.is_some_and(|reduced| reduced.until <= now)
        };
        let waiting = registry.clients().iter().filter(waits);
        let next = waiting.min_by_key(|client| taken.get(&client.uid).copied().unwrap_or(0))?;
        // One after another: what each takes must show first.
        self.checks_with_room = 0;
        Some((next.session.id, next.reduced?.before))
    }

    /// Returns the processes whose events cannot be stored any more, since the share of their user
    /// is used up.
    pub(crate) fn over_disk(&mut self, registry: &Registry, disk: &Disk) -> Vec<Reduction> {
        for (uid, times) in disk.hits() {
            let what = if disk.limit_of(uid) == Limit::Free { Limit::Free } else { Limit::UserBytes };
            self.hit_by(what.key(), uid, times);
        }
        let writers = registry.clients().iter().filter(|client| client.choice.mode.has_events());
        let writers = writers.filter(|client| disk.is_full(client.uid));
        let reduction = |client: &Client| Reduction {
            id: client.session.id,
            choice: Choice { mode: Mode::Profile, sampling: client.choice.sampling, overflow: None },
            what: "disk",
            why: "events are not stored any more".into(),
        };
        writers.map(reduction).collect()
    }

    /// Returns the limit of the events that the processes of a user may send.
    pub(crate) fn user_limit(&mut self, uid: u32) -> Arc<UserLimit> {
        let events = self.limits.events;
        Arc::clone(self.user_limits.entry(uid).or_insert_with(|| Arc::new(UserLimit::new(events))))
    }

    /// Shares the budgets of events among the processes, and notes those that have reached theirs.
    /// Called once a second.
    pub(crate) fn share_events(&mut self, registry: &mut Registry) {
        let budget = self.limits.events;
        let mut processes: HashMap<u32, u64> = HashMap::new();
        registry.clients().iter().for_each(|client| *processes.entry(client.uid).or_default() += 1);
        self.user_limits.retain(|uid, _| processes.contains_key(uid));
        for (uid, limit) in &self.user_limits {
            limit.set_processes(processes.get(uid).copied().unwrap_or(1));
        }
        let mut limited = Vec::new();
        for client in registry.clients_mut() {
            // What a hit costs may be counted a second later.
            let taken = client.session.limit.take_hits();
            let hits = taken + std::mem::replace(&mut client.earlier_hits, taken);
            let rates = client.rates();
            let waits = client.session.options.overflow != Overflow::Drop;
            if hits > 0 && (rates.lost > 0 || waits) {
                client.held = Some(EVENTS);
                let effect = if waits { "its threads wait".into() } else { format!("{} were lost", rates.lost) };
                limited.push(format!(
                    "user {}, process {} ({}): {} events in the last second, {effect}; {} processes of the user share {budget} a second",
                    client.uid,
                    client.pid(),
                    client.name.escape_debug(),
                    rates.recorded + rates.lost,
                    processes.get(&client.uid).copied().unwrap_or(1),
                ));
            } else if client.held == Some(EVENTS)
                && client.past.front().map(|(_, then)| then.lost) == Some(client.now().lost)
            {
                // It has lost nothing for a minute.
                client.held = None;
            }
        }
        limited.iter().for_each(|why| self.hit(EVENTS, why));
    }
}

/// Notes that a process was reduced because of a limit. The pause until it may come back gets
/// longer each time.
pub(crate) fn note_reduction(client: &mut Client, what: &str) {
    if ![MEMORY, CPU].contains(&what) {
        return;
    }
    let earlier = client.reduced;
    let is_again = earlier.is_some_and(|earlier| earlier.before != client.choice);
    let (before, times) = match earlier {
        // The second step of the same reduction.
        Some(Reduced { before, times, .. }) if is_again => (before, times),
        _ => (client.choice, earlier.map_or(0, |earlier| earlier.times) + 1),
    };
    let pause = COME_BACK_PAUSE * 2u32.pow((times - 1).min(MAX_DOUBLINGS));
    client.reduced = Some(Reduced { before, times, until: Instant::now() + pause });
}

/// Returns the sum of a weight over the recorded processes of each user.
fn by_user(registry: &Registry, weight: impl Fn(&Client) -> u64) -> HashMap<u32, u64> {
    let mut users: HashMap<u32, u64> = HashMap::new();
    for client in registry.clients().iter().filter(|client| client.choice.mode != Mode::Off) {
        let sum = users.entry(client.uid).or_default();
        *sum = sum.saturating_add(weight(client));
    }
    users
}

/// Returns the process with most, of the user who has most: a user with many small processes takes
/// nothing away from one with a large one.
fn client_with_most(registry: &Registry, weight: impl Fn(&Client) -> u64) -> Option<SessionId> {
    let (largest, _) = by_user(registry, &weight).into_iter().max_by_key(|&(uid, sum)| (sum, uid))?;
    let recorded = registry.clients().iter().filter(|client| client.choice.mode != Mode::Off && client.uid == largest);
    recorded.max_by_key(|client| weight(client)).map(|client| client.session.id)
}

/// Returns which processes free this many bytes: one after the other, the largest of the user who has
/// most, if that is at least `least`. These are few at a time, since what they free is an estimate.
/// The processes are given by user, id and bytes.
fn largest<Id: Copy>(mut processes: Vec<(u32, Id, u64)>, mut excess: u64, least: u64) -> Vec<Id> {
    let max = processes.len() / 8 + 1;
    let mut users: HashMap<u32, u64> = HashMap::new();
    for (uid, _, bytes) in &processes {
        *users.entry(*uid).or_default() += bytes;
    }
    processes.sort_unstable_by_key(|(.., bytes)| *bytes);
    let mut found = Vec::new();
    while excess > 0 && found.len() < max {
        let Some((&user, &most)) = users.iter().max_by_key(|(uid, bytes)| (**bytes, **uid)) else { break };
        if most < least {
            break;
        }
        let Some(index) = processes.iter().rposition(|(uid, ..)| *uid == user) else { break };
        let (_, id, bytes) = processes.remove(index);
        users.entry(user).and_modify(|sum| *sum -= bytes);
        excess = excess.saturating_sub(bytes);
        found.push(id);
    }
    found
}

fn own_cpu_ns() -> u64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    usage.map_or(0, |usage| {
        let ns = |time: nix::sys::time::TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1000;
        ns(usage.user_time()) + ns(usage.system_time())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_from_the_largest_users_first_and_as_much_as_is_needed() {
        // User 7 has most, by many; user 8 has the largest process.
        let many = |count: u32| (0..count).map(|id| (7, id, 100)).chain([(8, 1000, 900)]).collect::<Vec<_>>();
        assert_eq!(largest(many(30), 250, 0).len(), 3);
        assert!(largest(many(30), 250, 0).iter().all(|id| *id < 30));
        assert_eq!(largest(many(30), 5000, 0).len(), 4, "an eighth at once");
        assert_eq!(largest(many(8), 1, 0), [1000]);
        assert_eq!(largest(many(200), 12_000, 0).iter().filter(|id| **id == 1000).count(), 0);
        assert!(largest(vec![(7, 5, 20)], 50, 21).is_empty(), "it has too little to help");
        assert!(largest::<u32>(Vec::new(), 9, 0).is_empty());
    }
}
