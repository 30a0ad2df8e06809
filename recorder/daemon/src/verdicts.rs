//! Runs `heaptape leaks` over the recorded programs at intervals, and keeps for the metrics what each
//! holds by verdict, with its most suspect call sites. A confined process does it, since files of
//! programs may contain anything.

use super::config::Config;
use super::helper_command::{self, NICE};
use super::metrics::{LabeledMetric, Labels, OwnMetric};
use heaptape_recorder::os::clock;
use heaptape_recorder::os::crash;
use heaptape_recorder::os::sys;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between the log messages about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of programs with rows of their own: those that hold most by suspect verdicts.
pub const MAX_PROGRAMS: usize = 100;
/// Maximum number of call sites of a program.
pub const MAX_SITES: usize = 5;
/// Maximum number of verdicts of a program.
const MAX_VERDICTS: usize = 16;

/// Why there is no verdict about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unjudged {
    /// The process is in mode `off`, so nothing is known of what it holds.
    ModeOff,
    /// The events of the process take more space than is read each time.
    TooLarge,
    /// Other processes, which hold more, took all the time.
    ForWantOfTime,
    /// The process has just started, or ended.
    NothingWritten,
    /// The files of the process cannot be read, or their sums do not count frees.
    Unreadable,
}

impl Unjudged {
    /// Returns the value of the label `reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Unjudged::ModeOff => "mode-off",
            Unjudged::TooLarge => "too-large",
            Unjudged::ForWantOfTime => "for-want-of-time",
            Unjudged::NothingWritten => "nothing-written",
            Unjudged::Unreadable => "unreadable",
        }
    }
}

/// What `heaptape daemon --print-verdicts` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judged {
    /// The programs, those with the worst call sites first.
    pub programs: Vec<JudgedProgram>,
    /// Number of processes without a verdict, also of programs that are not listed.
    pub unjudged: u64,
}

/// What the processes of a program and label hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JudgedProgram {
    pub program: String,
    pub label: String,
    /// Live bytes by verdict.
    pub verdicts: BTreeMap<String, u64>,
    /// The most suspect call sites, worst first.
    pub sites: Vec<JudgedSite>,
    /// Number of processes without a verdict, by reason.
    pub unjudged: BTreeMap<Unjudged, u64>,
}

/// What the processes of a program hold of one call site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JudgedSite {
    /// Number of the stack, the same in all processes of a build and in the tables of the fleet.
    pub stack: i64,
    /// Name of the innermost function of the program.
    pub function: String,
    pub live_bytes: u64,
}

#[derive(Debug, Default)]
struct Known {
    judged: Judged,
    /// When that was judged, in seconds since 1970; 0 if it never was.
    at: u64,
    /// Number of attempts that failed.
    failures: u64,
}

/// The thread that has the programs judged.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    known: Arc<Mutex<Known>>,
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Verdicts {
    /// Starts the thread if the configuration has an interval. It runs as long as the daemon.
    pub(crate) fn start(config: &Config) -> io::Result<Verdicts> {
        let verdicts = Verdicts::default();
        let Some(interval) = config.verdicts else { return Ok(verdicts) };
        let own = Arc::clone(&verdicts.known);
        let mut arguments: Vec<OsString> = ["daemon", "--print-verdicts", "--control"].map(OsString::from).into();
        arguments.push(config.control.clone().into_os_string());
        crash::spawn("verdicts", move || {
            sys::lower_priority(NICE);
            let mut logged: Option<Instant> = None;
            let mut next = Instant::now() + interval;
            loop {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                if let Some(error) = judge(&own, &mut helper_command::confined(&arguments))
                    && logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL)
                {
                    logged = Some(Instant::now());
                    tracing::warn!("the programs cannot be judged: {}", error.escape_debug());
                }
                next = (next + interval).max(Instant::now() + interval / 2);
            }
        })?;
        Ok(verdicts)
    }

    /// Returns the metrics by program.
    pub(crate) fn labeled(&self) -> [LabeledMetric; 3] {
        let known = lock(&self.known);
        let labels = |program: &JudgedProgram| -> Labels {
            vec![("program", program.program.clone()), ("label", program.label.clone())]
        };
        let [mut verdicts, mut sites, mut unjudged]: [BTreeMap<Labels, f64>; 3] = Default::default();
        for program in known.judged.programs.iter().take(MAX_PROGRAMS) {
            for (verdict, bytes) in program.verdicts.iter().take(MAX_VERDICTS) {
                let mut labels = labels(program);
                labels.push(("verdict", verdict.clone()));
                verdicts.insert(labels, *bytes as f64);
            }
            for site in program.sites.iter().take(MAX_SITES) {
                let mut labels = labels(program);
                labels.extend([("site", site.stack.to_string()), ("function", site.function.clone())]);
                sites.insert(labels, site.live_bytes as f64);
            }
            for (why, processes) in &program.unjudged {
                let mut labels = labels(program);
                labels.push(("reason", why.reason().into()));
                unjudged.insert(labels, *processes as f64);
            }
        }
        [
            LabeledMetric::gauge(
                "program_suspect_bytes",
                "Live bytes by the verdict of heaptape leaks",
                verdicts.into_iter().collect(),
            ),
            LabeledMetric::gauge(
                "program_site_live_bytes",
                "Live bytes of the most suspect call sites, by the number of their stack",
                sites.into_iter().collect(),
            ),
            LabeledMetric::gauge(
                "program_unjudged_processes",
                "Processes without a verdict, by reason",
                unjudged.into_iter().collect(),
            ),
        ]
    }

    /// Returns the metrics about the verdicts themselves.
    pub(crate) fn metrics(&self) -> [OwnMetric; 3] {
        let known = lock(&self.known);
        [
            OwnMetric::gauge(
                "verdicts_timestamp_seconds",
                "When the programs were last judged, in seconds since 1970",
                known.at as f64,
            ),
            OwnMetric::counter("verdict_failures_total", "Attempts to judge that failed", known.failures as f64),
            OwnMetric::gauge(
                "unjudged_processes",
                "Processes without a verdict, of all programs",
                known.judged.unjudged as f64,
            ),
        ]
    }
}

/// Runs the command, and stores what it prints. Returns the error of an attempt that failed; then
/// the last verdicts stay.
fn judge(known: &Mutex<Known>, command: &mut Command) -> Option<String> {
    let judged = helper_command::run::<Judged>(command);
    let mut known = lock(known);
    match judged {
        Ok(judged) => {
            (known.judged, known.at) = (judged, clock::unix_ns() / 1_000_000_000);
            None
        }
        Err(error) => {
            known.failures += 1;
            Some(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{self, Programs};

    #[test]
    fn verdicts_are_bounded_and_stay_when_an_attempt_fails() {
        let verdicts = Verdicts::default();
        let print = |text: &str| {
            let mut command = Command::new("cat");
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("printed");
            std::fs::write(&file, text).expect("a file");
            judge(&verdicts.known, command.arg(&file))
        };
        let site = |stack| JudgedSite { stack, function: "f\"\n".into(), live_bytes: 7 };
        let program = |number: usize| JudgedProgram {
            program: format!("p{number}"),
            verdicts: (0..40).map(|verdict| (format!("v{verdict:02}"), verdict)).collect(),
            sites: (1..=40).map(site).collect(),
            unjudged: [(Unjudged::ModeOff, 2), (Unjudged::TooLarge, 1)].into(),
            ..JudgedProgram::default()
        };
        let judged = Judged { programs: (0..400).map(program).collect(), unjudged: 1200 };
        assert_eq!(print(&serde_json::to_string(&judged).expect("JSON")), None);
        assert!(print("nothing").is_some());
        let all = metrics::text(&Programs::default(), std::iter::empty(), &verdicts.metrics(), &verdicts.labeled());
        let rows = |name: &str| all.lines().filter(|line| line.starts_with(&format!("heaptape_{name}{{"))).count();
        assert_eq!(rows("program_suspect_bytes"), MAX_PROGRAMS * MAX_VERDICTS);
        assert_eq!(rows("program_site_live_bytes"), MAX_PROGRAMS * MAX_SITES);
        assert!(all.contains("{program=\"p1\",label=\"\",site=\"2\",function=\"f\\\"\\n\"} 7\n"), "{all}");
        assert_eq!(rows("program_unjudged_processes"), MAX_PROGRAMS * 2);
        assert!(all.contains("{program=\"p1\",label=\"\",reason=\"mode-off\"} 2\n"), "{all}");
        assert!(
            all.contains("\nheaptape_verdict_failures_total 1\n")
                && all.contains("\nheaptape_unjudged_processes 1200\n")
        );
    }
}
