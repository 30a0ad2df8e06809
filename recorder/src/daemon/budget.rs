//! Bounds that hold: what the daemon may use of memory, processor and disk, and what one user's
//! processes may send. Whatever is hit is logged, counted, and shown with the process that it was
//! taken from.

use super::clients::Client;
use super::config::{Choice, Sampling};
use super::service::Service;
use crate::options::Mode;
use crate::session::SessionId;
use crate::store::Then;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The same bound of the same user is logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Looks in a row that the processor's budget must be passed in.
const PATIENCE: u32 = 5;
/// What a process falls back to that costs too much processor time.
const CHEAP: Choice = Choice { mode: Mode::Profile, sampling: Sampling::Budget(1.0), overflow: None };
/// What a process falls back to that costs too much memory, or too much processor time even so.
const OFF: Choice = Choice { mode: Mode::Off, sampling: Sampling::All, overflow: None };

/// What was hit, and how the daemon itself stands.
#[derive(Debug, Default)]
pub struct Guard {
    hits: BTreeMap<&'static str, u64>,
    /// When each was last logged, of each user that it holds for.
    logged: BTreeMap<(&'static str, Option<u32>), Instant>,
    /// Resident bytes.
    pub memory: u64,
    /// Processor time in all, nanoseconds.
    pub cpu_ns: u64,
    looked: Option<(Instant, u64)>,
    /// Per cent of one processor, at the last look.
    pub cpu_percent: f64,
    over: u32,
}

impl Guard {
    /// A bound was hit.
    pub fn hit(&mut self, what: &'static str, why: &str) {
        self.count(what, None, 1, || why.to_owned());
    }

    /// A bound of one user was hit so many times.
    pub fn hit_by(&mut self, what: &'static str, uid: u32, times: u64) {
        let why = match what {
            "descriptors" => {
                "no descriptor is left for a connection, so a program runs unrecorded (raise LimitNOFILE=)"
            }
            "connections" => "too many connections; programs among them run unrecorded",
            "user-keep-bytes" => "the share of the disk is used up, events are not kept",
            _ => "too many starts; the programs run unrecorded",
        };
        self.count(what, Some(uid), times, || format!("user {uid}: {why} ({times} in a second)"));
    }

    fn count(&mut self, what: &'static str, uid: Option<u32>, times: u64, why: impl FnOnce() -> String) {
        *self.hits.entry(what).or_default() += times;
        let now = Instant::now();
        self.logged.retain(|_, logged| now.duration_since(*logged) < LOG_EVERY);
        self.logged.entry((what, uid)).or_insert_with(|| {
            tracing::warn!("budget of {what}: {}", why());
            now
        });
    }

    /// How often each was hit.
    pub fn hits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.hits.iter().map(|(what, count)| (*what, *count))
    }

    fn look(&mut self) {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident = pages.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
        self.memory = resident.unwrap_or(0) * 4096;
        self.cpu_ns = own_cpu_ns();
        let now = Instant::now();
        if let Some((then, before)) = self.looked.replace((now, self.cpu_ns)) {
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
    /// Once a second.
    pub(super) fn keep_budgets(&mut self) {
        self.guard.look();
        self.share_events();
        let budget = self.config.budget;
        if self.guard.memory > budget.memory
            && let Some(id) = self.heaviest(|client| client.now().memory)
        {
            let why = format!("{} bytes are resident: the process that takes most is left alone", self.guard.memory);
            self.take_down(id, OFF, "memory", &why);
        }
        let is_over = self.guard.cpu_percent > budget.cpu as f64;
        self.guard.over = if is_over { self.guard.over + 1 } else { 0 };
        if self.guard.over >= PATIENCE
            && let Some(id) = self.heaviest(|client| client.rates().events)
        {
            self.guard.over = 0;
            let is_cheap =
                |client: &Client| client.session.id == id && Choice { overflow: None, ..client.choice } == CHEAP;
            let next = if self.clients.iter().any(is_cheap) { OFF } else { CHEAP };
            let why = format!(
                "{:.0} % of a processor: the process that sends most is kept as {next}",
                self.guard.cpu_percent
            );
            self.take_down(id, next, "cpu", &why);
        }
        for (uid, times) in self.disk.hits() {
            self.guard.hit_by("user-keep-bytes", uid, times);
        }
        let writers = self.clients.iter().filter(|client| client.choice.mode.has_events());
        let writers = writers.filter(|client| self.disk.is_full(client.uid));
        let writers: Vec<(SessionId, Sampling)> =
            writers.map(|client| (client.session.id, client.choice.sampling)).collect();
        for (id, sampling) in writers {
            self.take_down(
                id,
                Choice { mode: Mode::Profile, sampling, overflow: None },
                "disk",
                "events are not kept any more",
            );
        }
    }

    fn heaviest(&self, weight: impl Fn(&Client) -> u64) -> Option<SessionId> {
        let awake = self.clients.iter().filter(|client| client.choice.mode != Mode::Off);
        awake.max_by_key(|client| weight(client)).map(|client| client.session.id)
    }

    /// Takes a process down to something that costs less. What it does when a ring is full stays.
    fn take_down(&mut self, id: SessionId, choice: Choice, what: &'static str, why: &str) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.session.id == id) {
            client.held = Some(what);
            let choice = Choice { overflow: client.choice.overflow, ..choice };
            let why = format!("{why}; {} ({})", client.name.escape_debug(), client.pid());
            self.guard.hit(what, &why);
            self.change(id, choice, Then::new(|| {}));
        }
    }

    /// What each process may send: its user's budget, shared among those that want much.
    fn share_events(&mut self) {
        let budget = self.config.budget.events;
        let mut users: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, client) in self.clients.iter().enumerate() {
            users.entry(client.uid).or_default().push(place);
        }
        let mut limited = Vec::new();
        for (uid, places) in users {
            // A process that sends little keeps room to send more; what is left is shared by the
            // others.
            let mut rates: Vec<(u64, usize)> =
                places.iter().map(|place| (self.clients[*place].rates().events, *place)).collect();
            rates.sort_unstable();
            let mut left = budget;
            for (number, (rate, place)) in rates.iter().enumerate() {
                let fair = left / (rates.len() - number) as u64;
                left -= fair.min(*rate);
                let limit = &self.clients[*place].session.limit;
                // Two records an event at most, on the average.
                limit.records.store(fair.max(1).saturating_mul(2), Relaxed);
                if limit.hits.swap(0, Relaxed) > 0 {
                    limited.push((uid, self.clients[*place].pid(), *place));
                }
            }
        }
        for (uid, pid, place) in limited {
            self.clients[place].held = Some("events");
            self.guard.hit(
                "events",
                &format!("user {uid}, process {pid}: more than {budget} events a second, the rest is counted as lost"),
            );
        }
    }
}
