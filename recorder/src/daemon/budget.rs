//! The limits of the daemon: its memory, CPU time and disk space, and the events that the processes
//! of one user may send. Each time a limit is reached, that is logged, counted, and shown at the
//! process that it concerns.

use super::clients::Client;
use super::config::{Choice, Sampling};
use super::service::Service;
use crate::options::Mode;
use crate::session::SessionId;
use crate::store::Callback;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Minimum time between two log messages about the same limit of the same user.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Number of successive checks above the CPU budget after which a process is reduced.
const MAX_BUSY_CHECKS: u32 = 5;
/// What is kept of a process that costs too much CPU time.
const CHEAP_CHOICE: Choice = Choice { mode: Mode::Profile, sampling: Sampling::Budget(1.0), overflow: None };
/// What is kept of a process that costs too much memory, or too much CPU time even with
/// [`CHEAP_CHOICE`].
const OFF_CHOICE: Choice = Choice { mode: Mode::Off, sampling: Sampling::All, overflow: None };

/// The limits that were reached, and the resources that the daemon uses.
#[derive(Debug, Default)]
pub struct BudgetMonitor {
    hits: BTreeMap<&'static str, u64>,
    /// When each limit was last logged, by the user that it concerns.
    last_logged: BTreeMap<(&'static str, Option<u32>), Instant>,
    /// Resident memory of the daemon, in bytes.
    pub memory: u64,
    /// Total CPU time of the daemon, in nanoseconds.
    pub cpu_ns: u64,
    last_check: Option<(Instant, u64)>,
    /// CPU usage at the last check, in percent of one CPU.
    pub cpu_percent: f64,
    checks_over_budget: u32,
}

impl BudgetMonitor {
    /// Counts a limit that was reached, and logs it.
    pub fn hit(&mut self, what: &'static str, why: &str) {
        self.count(what, None, 1, || why.to_owned());
    }

    /// Counts a limit of one user that was reached `times` times, and logs it.
    pub fn hit_by(&mut self, what: &'static str, uid: u32, times: u64) {
        let why = match what {
            "descriptors" => {
                "no descriptor is left for a connection, so a program runs unrecorded (raise LimitNOFILE=)"
            }
            "connections" => "too many connections; programs among them run unrecorded",
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
    pub fn hits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.hits.iter().map(|(what, count)| (*what, *count))
    }

    fn measure(&mut self) {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident = pages.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
        self.memory = resident.unwrap_or(0) * 4096;
        self.cpu_ns = own_cpu_ns();
        let now = Instant::now();
        if let Some((then, before)) = self.last_check.replace((now, self.cpu_ns)) {
            let passed = now.duration_since(then).as_nanos().max(1) as f64;
            self.cpu_percent = self.cpu_ns.saturating_sub(before) as f64 * 100.0 / passed;
        }
    }
}

fn own_cpu_ns() -> u64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    usage.map_or(0, |usage| {
        let ns = |time: nix::sys::time::TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1000;
        ns(usage.user_time()) + ns(usage.system_time())
    })
}

impl Service {
    /// Checks all limits. Called once a second.
    pub(super) fn keep_budgets(&mut self) {
        self.budgets.measure();
        self.share_events();
        let budget = self.config.budget;
        if self.budgets.memory > budget.memory
            && let Some(id) = self.client_with_most(|client| client.now().memory)
        {
            let why = format!(
                "{} bytes are resident: the process that takes most is not recorded any more",
                self.budgets.memory
            );
            self.reduce(id, OFF_CHOICE, "memory", &why);
        }
        let is_over = self.budgets.cpu_percent > budget.cpu as f64;
        self.budgets.checks_over_budget = if is_over { self.budgets.checks_over_budget + 1 } else { 0 };
        if self.budgets.checks_over_budget >= MAX_BUSY_CHECKS
            && let Some(id) = self.client_with_most(|client| client.rates().events)
        {
            self.budgets.checks_over_budget = 0;
            let is_reduced =
                |client: &Client| client.session.id == id && Choice { overflow: None, ..client.choice } == CHEAP_CHOICE;
            let next = if self.clients.iter().any(is_reduced) { OFF_CHOICE } else { CHEAP_CHOICE };
            let why = format!(
                "{:.0} % of a CPU: the mode of the process that sends most becomes {next}",
                self.budgets.cpu_percent
            );
            self.reduce(id, next, "cpu", &why);
        }
        for (uid, times) in self.disk.hits() {
            self.budgets.hit_by("user-keep-bytes", uid, times);
        }
        let writers = self.clients.iter().filter(|client| client.choice.mode.has_events());
        let writers = writers.filter(|client| self.disk.is_full(client.uid));
        let writers: Vec<(SessionId, Sampling)> =
            writers.map(|client| (client.session.id, client.choice.sampling)).collect();
        for (id, sampling) in writers {
            self.reduce(
                id,
                Choice { mode: Mode::Profile, sampling, overflow: None },
                "disk",
                "events are not stored any more",
            );
        }
    }

    fn client_with_most(&self, weight: impl Fn(&Client) -> u64) -> Option<SessionId> {
        let recorded = self.clients.iter().filter(|client| client.choice.mode != Mode::Off);
        recorded.max_by_key(|client| weight(client)).map(|client| client.session.id)
    }

    /// Changes a process to a mode that costs less. What it does when a ring is full stays.
    fn reduce(&mut self, id: SessionId, choice: Choice, what: &'static str, why: &str) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.session.id == id) {
            client.held = Some(what);
            let choice = Choice { overflow: client.choice.overflow, ..choice };
            let why = format!("{why}; {} ({})", client.name.escape_debug(), client.pid());
            self.budgets.hit(what, &why);
            self.change(id, choice, Callback::new(|| {}));
        }
    }

    /// Sets how many events each process may send: the budget of its user, shared among the
    /// processes that send much.
    fn share_events(&mut self) {
        let budget = self.config.budget.events;
        let mut users: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, client) in self.clients.iter().enumerate() {
            users.entry(client.uid).or_default().push(index);
        }
        let mut limited = Vec::new();
        for (uid, indexes) in users {
            // A process that sends little may send more; the rest of the budget is shared by the
            // others.
            let mut rates: Vec<(u64, usize)> =
                indexes.iter().map(|index| (self.clients[*index].rates().events, *index)).collect();
            rates.sort_unstable();
            let mut left = budget;
            for (number, (rate, index)) in rates.iter().enumerate() {
                let fair = left / (rates.len() - number) as u64;
                left -= fair.min(*rate);
                let limit = &self.clients[*index].session.limit;
                // An event takes at most two records on average.
                limit.records.store(fair.max(1).saturating_mul(2), Relaxed);
                if limit.hits.swap(0, Relaxed) > 0 {
                    limited.push((uid, self.clients[*index].pid(), *index));
                }
            }
        }
        for (uid, pid, index) in limited {
            self.clients[index].held = Some("events");
            self.budgets.hit(
                "events",
                &format!("user {uid}, process {pid}: more than {budget} events a second, the rest is counted as lost"),
            );
        }
    }
}
