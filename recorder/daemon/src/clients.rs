//! One process that the daemon records: who it is, its counts so far, and how it grew.

use super::config::{Choice, Death, MIN_INTERVAL, Sampling};
use super::epoch::Epoch;
use super::growth::LiveHistory;
use super::protocol;
use formats::recording::{Exit, LastMemory};
use formats::resident::PART_NAMES;
use heaptape_recorder::run::admission::write_about;
use heaptape_recorder::session::keeper::Entry;
use heaptape_recorder::session::options::{MAX_INTERVAL, Mode};
use heaptape_recorder::session::{Ids, SHORT_LIFE, Session, StatsSnapshot};
use heaptape_recorder::target::proc::{self, ResidentMemory};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use wire::area::{ACTIVATION_DORMANT, ACTIVATION_ENABLED};

/// Cost of an event that is recorded with its stack, for the program, in nanoseconds. The budget of
/// sampling is computed with this model, which was measured by `scripts/bench --only micro` and the
/// reference prototypes.
const RECORDED_NS: u64 = 120;
/// Cost of an event that sampling skips, for the program, in nanoseconds.
const SKIPPED_NS: u64 = 3;
/// Maximum number of live sampled blocks: more would not fit into the library's table.
const MAX_LIVE_SAMPLES: u64 = 150_000;
/// Number of measurements that are kept: a minute, one per second.
const MAX_MEASUREMENTS: usize = 61;
/// Maximum length of the name by which a program was started, in bytes.
const MAX_CALLED: usize = 64;

/// A process that the daemon records.
#[derive(Debug)]
pub(crate) struct Client {
    /// The session of the process, which the stages share.
    pub session: Arc<Session>,
    /// Descriptor that becomes readable when the process ends.
    pub process: OwnedFd,
    /// Its entry in the fd store.
    pub entry: Option<Entry>,
    /// User id of the process.
    pub uid: u32,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    /// Number of the digest that processes its events.
    pub worker: usize,
    /// What is kept of the process.
    pub choice: Choice,
    /// Current sampling interval, in bytes.
    pub interval: u64,
    /// Name of the process (`comm`), from the kernel.
    pub name: String,
    /// Label of the process: its own one, or its systemd unit.
    pub label: String,
    /// Path of the control group.
    pub cgroup: String,
    /// Epoch to which the process is written.
    pub epoch: Arc<Epoch>,
    /// When the process attached.
    pub since: Instant,
    /// Measurements of the last minute, one per second.
    pub past: VecDeque<(Instant, StatsSnapshot)>,
    /// The live bytes of the last day.
    pub history: LiveHistory,
    /// CPU time of the process at the last measurement, in clock ticks of the kernel.
    pub ticks: u64,
    /// When the events of its flight recording were last kept.
    pub kept: Option<Instant>,
    /// The limit because of which its mode was reduced, if any.
    pub held: Option<&'static str>,
    /// How a limit of memory or CPU time reduced it; it may come back.
    pub reduced: Option<Reduced>,
    /// How often its rings were not read because of the budget of events, in the last full second.
    pub earlier_hits: u64,
    /// Memory of the process as the kernel counts it.
    pub memory: KernelMemory,
    /// Whether the daemon attached it after it had started.
    pub is_attached: bool,
    /// Whether it was said that it, or its files, did not answer.
    pub is_stalled: bool,
    /// The program that an attached process executes: device and inode.
    pub program: Option<(u64, u64)>,
}

/// What one daemon tells the next about a process. The interval of a budget is not in it, since the
/// next daemon adapts it anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    /// What is kept of the process.
    pub choice: Choice,
    /// The process may have overwritten its environment by then.
    pub label: String,
    /// Whether it was attached, and is restored at the end.
    pub was_attached: bool,
}

/// How a limit of memory or CPU time reduced a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduced {
    /// What was kept of the process before.
    pub before: Choice,
    /// How often it was reduced.
    pub times: u32,
    /// When it may come back, if there is room.
    pub until: Instant,
}

/// The memory of a process as the kernel counts it.
#[derive(Debug, Default)]
pub(crate) struct KernelMemory {
    /// Resident memory at the last measurement; 0 if it is not known.
    pub resident: ResidentMemory,
    /// Limit of its control groups in bytes; 0 if there is none.
    pub limit_bytes: u64,
    /// File of its control group that counts kills because memory ran out.
    pub kills_file: Option<PathBuf>,
    /// Folders of its control group and of the parents, as far as they report memory pressure.
    pub groups: Vec<PathBuf>,
}

/// How a process ended, and its memory as it was last seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// How the process ended.
    pub exit: Exit,
    /// Memory of the process, if it was seen.
    pub memory: Option<LastMemory>,
}

impl Ended {
    /// The process runs; another segment of it has ended.
    pub(crate) const RUNNING: Ended = Ended { exit: Exit::Running, memory: None };

    /// Returns the end as the cause for which a flight recording is kept.
    pub(crate) fn cause(&self) -> String {
        match self.exit {
            Exit::Signal(signal) if self.memory.is_some_and(|memory| memory.out_of_memory) => {
                format!("memory ran out, and the kernel killed the process (signal {signal})")
            }
            Exit::Signal(signal) => format!("signal {signal} ended the process"),
            Exit::Code(code) => format!("the process ended with exit code {code}"),
            _ => "the process ended".into(),
        }
    }
}

/// Changes of the counters per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Number of allocations per second.
    pub allocs: u64,
    /// Bytes allocated per second.
    pub bytes: u64,
    /// Events per second: recorded, lost and sampled out.
    pub events: u64,
    /// Events recorded per second: only these cost the daemon work.
    pub recorded: u64,
    /// Events lost per second.
    pub lost: u64,
}

impl Client {
    pub(crate) fn pid(&self) -> u32 {
        self.session.process.pid
    }

    /// Changes what the next daemon is to know.
    pub(crate) fn keep(&self) {
        if let Some(entry) = &self.entry {
            let ids = Ids { pid: self.pid(), hello_pid: self.hello_pid, uid: self.uid };
            let note = Note { choice: self.choice, label: self.label.clone(), was_attached: self.is_attached };
            write_about(entry, &self.session, self.session.info(), self.name.as_bytes(), ids, note);
        }
    }

    /// Returns the current counters of the process.
    pub(crate) fn now(&self) -> StatsSnapshot {
        self.session.stats.now()
    }

    /// Stores a measurement. Called once a second.
    pub(crate) fn measure(&mut self) {
        let (at, now) = (Instant::now(), self.now());
        // Of a process that is taken over, nothing is known until its first events are read.
        if self.past.is_empty() && now == StatsSnapshot::default() {
            return;
        }
        let known_since = self.session.stats.live_since_unix_ns.load(Relaxed);
        if self.history.add(at, now.live_bytes, known_since) {
            // Against what was live in the other set, the growth would be untrue.
            self.past.clear();
        }
        self.past.push_back((at, now));
        if self.past.len() > MAX_MEASUREMENTS {
            self.past.pop_front();
        }
    }

    /// Returns the changes per second between the last two measurements.
    pub(crate) fn rates(&self) -> Rates {
        let mut last = self.past.iter().rev();
        let (Some((to, now)), Some((from, then))) = (last.next(), last.next()) else { return Rates::default() };
        let ms = to.duration_since(*from).as_millis().max(1) as u64;
        let rate = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1000) / ms;
        let all = |stats: &StatsSnapshot| stats.recorded.saturating_add(stats.lost).saturating_add(stats.sampled_out);
        Rates {
            allocs: rate(now.allocs, then.allocs),
            bytes: rate(now.bytes, then.bytes),
            events: rate(all(now), all(then)),
            recorded: rate(now.recorded, then.recorded),
            lost: rate(now.lost, then.lost),
        }
    }

    /// Returns the number of seconds over which the growth is known, a minute at most.
    fn growth_seconds(&self) -> u64 {
        let (first, last) = (self.past.front(), self.past.back());
        first.zip(last).map_or(0, |((first, _), (last, _))| last.duration_since(*first).as_secs_f64().round() as u64)
    }

    /// Returns by how much the live bytes grew in the last minute, or since the process attached.
    pub(crate) fn growth(&self) -> i64 {
        let first = self.past.front().map_or(0, |(_, then)| then.live_bytes);
        let last = self.past.back().map_or(0, |(_, now)| now.live_bytes);
        i64::try_from(last).unwrap_or(i64::MAX).saturating_sub_unsigned(first)
    }

    /// Writes the mode and the sampling interval into the shared header. Threads adopt them by
    /// themselves.
    pub(crate) fn command(&self) {
        let header = self.session.mapping.header();
        header.sample_bytes.store(self.interval, Relaxed);
        let activation = if self.choice.mode == Mode::Off { ACTIVATION_DORMANT } else { ACTIVATION_ENABLED };
        header.activation.0.store(activation, Release);
    }

    /// Adapts the sampling interval so that its cost stays within the budget. A step at most
    /// doubles or halves it. Sums stay unbiased, since each sample has the interval with which it
    /// was taken.
    pub(crate) fn adapt(&mut self) {
        let Sampling::Budget(percent) = self.choice.sampling else { return };
        let mut last = self.past.iter().rev();
        let (Some((to, now)), Some((from, then))) = (last.next(), last.next()) else { return };
        let ticks = proc::cpu_ticks(self.pid()).unwrap_or(self.ticks);
        // An idle program is measured by a hundredth of the elapsed time, so that its first burst
        // does not look like an overload.
        let used = ticks.saturating_sub(self.ticks) * 10_000_000;
        let used = used.max(to.duration_since(*from).as_nanos() as u64 / 100);
        self.ticks = ticks;
        let recorded = now.recorded.saturating_sub(then.recorded);
        let skipped = now.sampled_out.saturating_sub(then.sampled_out);
        // The cost of skipped events can only be avoided by making the process dormant.
        let cost = (recorded * RECORDED_NS) as f64;
        let allowed =
            (used as f64 * percent / 100.0 - (skipped * SKIPPED_NS) as f64).max(used as f64 * percent / 1000.0);
        let crowded = now.live_blocks > 0 && self.live_samples() > MAX_LIVE_SAMPLES;
        let next = if cost > allowed || crowded {
            self.interval.saturating_mul(2)
        } else if cost < allowed / 4.0 && self.live_samples() < MAX_LIVE_SAMPLES / 4 {
            self.interval / 2
        } else {
            self.interval
        };
        let next = next.clamp(MIN_INTERVAL, MAX_INTERVAL);
        if next != self.interval {
            self.interval = next;
            self.command();
        }
    }

    /// Returns the estimated number of live sampled blocks.
    fn live_samples(&self) -> u64 {
        let now = self.now();
        (now.live_bytes / self.interval.max(1)).min(now.live_blocks)
    }

    /// Returns the name by which the program was started, if it is another one than that of the
    /// process and of the file: one file may be several programs.
    fn called(&self) -> String {
        let process = &self.session.process;
        let first = process.argv.first().map(|first| first.lossy().into_owned()).unwrap_or_default();
        other_name(&first, &self.name, &process.exe.lossy()).unwrap_or_default().to_owned()
    }

    /// Returns the resident memory at the last snapshot by use, if it is known.
    fn resident_parts(&self) -> BTreeMap<String, u64> {
        let parts = self.session.stats.divided().map(|bill| bill.parts());
        let named = parts.into_iter().flat_map(|parts| PART_NAMES.into_iter().zip(parts));
        named.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name.to_owned(), bytes)).collect()
    }

    /// Returns the entry of the answer to `list`.
    pub(crate) fn describe(&self) -> protocol::Process {
        let (now, rates) = (self.now(), self.rates());
        let live_since = self.session.stats.live_since_unix_ns.load(Relaxed);
        protocol::Process {
            pid: self.pid(),
            uid: self.uid,
            name: self.name.clone(),
            label: self.label.clone(),
            cgroup: self.cgroup.clone(),
            exe: self.session.process.exe.lossy().into_owned(),
            called: self.called(),
            folder: self.session.folder.display().to_string(),
            mode: Choice { overflow: None, ..self.choice }.to_string(),
            overflow: self.session.options.overflow.to_string(),
            interval: self.interval,
            seconds: self.since.elapsed().as_secs(),
            held: self.held.map(str::to_owned),
            attached: self.is_attached,
            live_bytes: now.live_bytes,
            live_blocks: now.live_blocks,
            live_since_unix_ns: (live_since > 0).then_some(live_since),
            peak_bytes: now.peak_bytes,
            resident_bytes: self.memory.resident.bytes,
            resident_parts: self.resident_parts(),
            allocs: now.allocs,
            frees: now.frees,
            bytes: now.bytes,
            recorded: now.recorded,
            lost: now.lost,
            sampled_out: now.sampled_out,
            sites: now.sites,
            sites_growing: now.growing,
            threads: now.threads,
            growth: self.growth(),
            growth_seconds: Some(self.growth_seconds()),
            growths: self.history.growths(),
            allocs_a_second: rates.allocs,
            bytes_a_second: rates.bytes,
            events_a_second: rates.events,
            lost_a_second: rates.lost,
        }
    }
}

/// Returns the name in `argv[0]` if it is neither that of the process (`comm`) nor that of the
/// file. `setproctitle` writes a text there; a script has its interpreter.
fn other_name<'a>(argument: &'a str, comm: &str, exe: &str) -> Option<&'a str> {
    let base = |path: &'a str| path.rsplit('/').next().unwrap_or_default();
    let called = base(argument.split([' ', ':']).next().unwrap_or_default().trim_start_matches('-'));
    let file = exe.rsplit('/').next().unwrap_or_default();
    // The kernel's name has 15 bytes at most.
    let is_known = called.starts_with(comm) || file.starts_with(called);
    (!is_known && called.len() <= MAX_CALLED).then_some(called)
}

/// Returns whether an exit is an abnormal one: by a signal, or with a code other than 0.
pub(crate) fn is_bad(exit: &Exit) -> bool {
    !matches!(exit, Exit::Code(0) | Exit::Exec | Exit::Running)
}

/// What is kept of a flight recording when its process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlightEnd {
    /// No segment of it is kept.
    Nothing,
    /// The last segment is kept: how the process ended, and what it held.
    LastSegment,
    /// All of its segments are kept.
    All,
}

impl FlightEnd {
    /// Returns what is kept of a process that ended in this way. One that lived for a minute is in
    /// an epoch also if its end is no reason to keep its events, unless no end is.
    pub(crate) fn of(death: Death, exit: &Exit, lived: Duration) -> FlightEnd {
        match death {
            Death::Never => FlightEnd::Nothing,
            Death::Bad if is_bad(exit) => FlightEnd::All,
            Death::Any => FlightEnd::All,
            Death::Bad if lived >= SHORT_LIFE && *exit != Exit::Running => FlightEnd::LastSegment,
            Death::Bad => FlightEnd::Nothing,
        }
    }
}

/// Time between two measurements.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_segment_of_a_long_flight_is_kept_at_a_good_end() {
        let (long, short) = (SHORT_LIFE, SHORT_LIFE - Duration::from_millis(1));
        let kept = |death, exit, lived| FlightEnd::of(death, &exit, lived);
        assert_eq!(kept(Death::Bad, Exit::Code(0), long), FlightEnd::LastSegment);
        assert_eq!(kept(Death::Bad, Exit::Code(0), short), FlightEnd::Nothing);
        assert_eq!(kept(Death::Bad, Exit::Code(3), short), FlightEnd::All);
        assert_eq!(kept(Death::Bad, Exit::Signal(9), long), FlightEnd::All);
        assert_eq!(kept(Death::Bad, Exit::Running, long), FlightEnd::Nothing);
        assert_eq!(kept(Death::Never, Exit::Signal(9), long), FlightEnd::Nothing);
        assert_eq!(kept(Death::Any, Exit::Code(0), short), FlightEnd::All);
    }

    #[test]
    fn name_of_the_start_is_shown_where_it_is_another_one() {
        let name = |argument, comm, exe| other_name(argument, comm, exe);
        assert_eq!(name("/srv/shop-server", "busybox", "/bin/busybox"), Some("shop-server"));
        assert_eq!(name("-sh", "dash", "/bin/dash"), Some("sh"));
        assert_eq!(name("/usr/bin/redis-server 127.0.0.1:6379", "redis-server", "/usr/bin/redis-check-rdb"), None);
        assert_eq!(name("nginx: worker process", "nginx", "/usr/sbin/nginx"), None);
        assert_eq!(name("/usr/bin/python3", "job.py", "/usr/bin/python3.11"), None);
        assert_eq!(name("a-name-of-many-bytes", "a-name-of-many-", "/opt/other"), None);
        assert_eq!(name("", "x", "/x"), None);
        let long = "x".repeat(MAX_CALLED + 1);
        assert_eq!(name(&long, "y", "/y"), None);
    }
}
