//! One process as the service sees it: who it is, what is kept of it, how it grows.

use super::config::{Choice, GREATEST_INTERVAL, LEAST_INTERVAL, Sampling};
use super::epoch::Epoch;
use super::fd_store::Name;
use crate::options::Mode;
use crate::process;
use crate::session::{Now, Session};
use formats::recording::Exit;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use wire::area::{ACTIVATION_DORMANT, ACTIVATION_ENABLED};

/// What an event costs the program, nanoseconds: one that is recorded with its stack, and one that
/// sampling passes over. Measured by `scripts/bench --only micro` and the reference prototypes; the
/// budget is kept by this model.
const RECORDED_NS: u64 = 120;
const PASSED_NS: u64 = 3;
/// More sampled blocks than this alive at once would find no room in the library's table.
const MOST_STANDING: u64 = 150_000;
/// A minute of looks a second apart.
const PAST: usize = 61;

/// A process that is served.
#[derive(Debug)]
pub struct Client {
    /// What the stages know of it.
    pub session: Arc<Session>,
    /// Becomes readable when it ends.
    pub process: OwnedFd,
    /// Its area, for a daemon that comes after this one.
    pub area: OwnedFd,
    /// Its user.
    pub uid: u32,
    /// Its number as it sees itself.
    pub hello_pid: u32,
    /// The digest that has it.
    pub worker: usize,
    /// What is kept of it.
    pub choice: Choice,
    /// The interval that it samples by now.
    pub interval: u64,
    /// Its name, as the kernel tells it.
    pub name: String,
    /// Its label: what it calls itself, or its systemd unit.
    pub label: String,
    /// Its control group.
    pub cgroup: String,
    /// The epoch that it is written to.
    pub epoch: Arc<Epoch>,
    /// When it came.
    pub since: Instant,
    /// Live bytes, a look a second.
    pub past: VecDeque<(Instant, Now)>,
    /// Its processor time at the last look, in ticks of the kernel.
    pub ticks: u64,
    /// When its flight was last kept.
    pub kept: Option<Instant>,
    /// Set when a budget holds it down: which.
    pub held: Option<&'static str>,
}

/// What changed in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Allocations a second.
    pub allocs: u64,
    /// Bytes allocated a second.
    pub bytes: u64,
    /// Events a second, all of them.
    pub events: u64,
    /// Events lost a second.
    pub lost: u64,
}

impl Client {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.session.process.pid
    }

    /// The name that it is held under for the next daemon.
    pub fn held_as(&self) -> Name {
        // A budget's interval is of no use later: it is found anew.
        let interval = self.choice.interval();
        Name { pid: self.pid(), uid: self.uid, hello_pid: self.hello_pid, choice: self.choice, interval }
    }

    /// How it stands.
    pub fn now(&self) -> Now {
        self.session.stats.now()
    }

    /// Looks: once a second.
    pub fn look(&mut self) {
        self.past.push_back((Instant::now(), self.now()));
        if self.past.len() > PAST {
            self.past.pop_front();
        }
    }

    /// What changed between the last two looks.
    pub fn rates(&self) -> Rates {
        let mut last = self.past.iter().rev();
        let (Some((to, now)), Some((from, then))) = (last.next(), last.next()) else { return Rates::default() };
        let ms = to.duration_since(*from).as_millis().max(1) as u64;
        let rate = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1000) / ms;
        let all = |stats: &Now| stats.recorded.saturating_add(stats.lost).saturating_add(stats.sampled_out);
        Rates {
            allocs: rate(now.allocs, then.allocs),
            bytes: rate(now.bytes, then.bytes),
            events: rate(all(now), all(then)),
            lost: rate(now.lost, then.lost),
        }
    }

    /// Seconds over which growth is known, a minute at most.
    fn growth_seconds(&self) -> u64 {
        let (first, last) = (self.past.front(), self.past.back());
        first.zip(last).map_or(0, |((first, _), (last, _))| last.duration_since(*first).as_secs_f64().round() as u64)
    }

    /// By how much its live bytes grew in a minute, or since it came.
    pub fn growth(&self) -> i64 {
        let first = self.past.front().map_or(0, |(_, then)| then.live_bytes);
        let last = self.past.back().map_or(0, |(_, now)| now.live_bytes);
        i64::try_from(last).unwrap_or(i64::MAX).saturating_sub_unsigned(first)
    }

    /// Tells the library what the choice means for it. Threads take it up by themselves.
    pub fn command(&self) {
        let header = self.session.mapping.header();
        header.sample_bytes.store(self.interval, Relaxed);
        let activation = if self.choice.mode == Mode::Off { ACTIVATION_DORMANT } else { ACTIVATION_ENABLED };
        header.activation.0.store(activation, Release);
    }

    /// Moves the sampling interval so that what it costs stays below the budget. A step at most
    /// doubles or halves it; sums stay unbiased since each sample carries the interval that it was
    /// taken by.
    pub fn adapt(&mut self) {
        let Sampling::Budget(percent) = self.choice.sampling else { return };
        let mut last = self.past.iter().rev();
        let (Some((to, now)), Some((from, then))) = (last.next(), last.next()) else { return };
        let ticks = process::cpu_ticks(self.pid()).unwrap_or(self.ticks);
        // A program that does nothing is measured by a hundredth of the time, so that the first
        // burst is not taken for an overload.
        let used = ticks.saturating_sub(self.ticks) * 10_000_000;
        let used = used.max(to.duration_since(*from).as_nanos() as u64 / 100);
        self.ticks = ticks;
        let recorded = now.recorded.saturating_sub(then.recorded);
        let passed = now.sampled_out.saturating_sub(then.sampled_out);
        // What passing over costs cannot be helped but by going to sleep.
        let cost = (recorded * RECORDED_NS) as f64;
        let room = (used as f64 * percent / 100.0 - (passed * PASSED_NS) as f64).max(used as f64 * percent / 1000.0);
        let crowded = now.live_blocks > 0 && self.standing() > MOST_STANDING;
        let next = if cost > room || crowded {
            self.interval.saturating_mul(2)
        } else if cost < room / 4.0 && self.standing() < MOST_STANDING / 4 {
            self.interval / 2
        } else {
            self.interval
        };
        let next = next.clamp(LEAST_INTERVAL, GREATEST_INTERVAL);
        if next != self.interval {
            self.interval = next;
            self.command();
        }
    }

    /// About how many sampled blocks live: what lives, by the interval.
    fn standing(&self) -> u64 {
        let now = self.now();
        (now.live_bytes / self.interval.max(1)).min(now.live_blocks)
    }

    /// For `list`.
    pub fn json(&self) -> Value {
        let (now, rates) = (self.now(), self.rates());
        let live_since = self.session.stats.live_since_unix_ns.load(Relaxed);
        json!({
            "pid": self.pid(), "uid": self.uid, "name": self.name, "label": self.label, "cgroup": self.cgroup,
            "exe": self.session.process.exe.lossy(), "mode": Choice { overflow: None, ..self.choice }.to_string(),
            "overflow": self.session.options.overflow.to_string(), "interval": self.interval,
            "seconds": self.since.elapsed().as_secs(), "held": self.held,
            "live_bytes": now.live_bytes, "live_blocks": now.live_blocks,
            "live_since_unix_ns": (live_since > 0).then_some(live_since), "peak_bytes": now.peak_bytes,
            "allocs": now.allocs, "frees": now.frees, "bytes": now.bytes,
            "recorded": now.recorded, "lost": now.lost, "sampled_out": now.sampled_out,
            "sites": now.sites, "sites_growing": now.growing, "threads": now.threads,
            "growth": self.growth(), "growth_seconds": self.growth_seconds(),
            "allocs_a_second": rates.allocs, "bytes_a_second": rates.bytes,
            "events_a_second": rates.events, "lost_a_second": rates.lost,
            "folder": self.session.folder.display().to_string(),
        })
    }
}

/// Whether a death is one that its owner would want to know about.
pub fn is_bad(exit: &Exit) -> bool {
    !matches!(exit, Exit::Code(0) | Exit::Exec | Exit::Running)
}

/// Time between looks.
pub const LOOK: Duration = Duration::from_secs(1);
