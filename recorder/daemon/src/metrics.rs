//! Metrics as Prometheus text: the heap of each program, and the resources of the daemon itself.
//! They are served over HTTP, and by `ctl metrics`.

use super::fair_map::FairMap;
use formats::resident::{Bill, PART_NAMES};
use heaptape_recorder::session::StatsSnapshot;
use heaptape_recorder::target::proc::ResidentMemory;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of programs that run, and of those that have ended, with metrics of their own.
/// Further ones are summed under one name, since clients can choose any names.
const MAX_PROGRAMS: usize = 500;

/// Describes a metric for Prometheus.
#[derive(Clone, Copy, Debug)]
struct Description {
    /// Name, without the prefix of heaptape.
    name: &'static str,
    /// Kind of the metric, `gauge` or `counter`.
    kind: &'static str,
    help: &'static str,
}

/// A metric of the daemon itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnMetric {
    description: Description,
    value: f64,
}

impl OwnMetric {
    /// Creates a metric that may rise and fall.
    pub(crate) fn gauge(name: &'static str, help: &'static str, value: f64) -> OwnMetric {
        OwnMetric { description: Description { name, kind: "gauge", help }, value }
    }

    /// Creates a metric that only rises.
    pub(crate) fn counter(name: &'static str, help: &'static str, value: f64) -> OwnMetric {
        OwnMetric { description: Description { name, kind: "counter", help }, value }
    }

    /// Returns the name, without the prefix of heaptape.
    pub(crate) fn name(&self) -> &'static str {
        self.description.name
    }

    /// Returns the current value of the metric.
    pub(crate) fn value(&self) -> f64 {
        self.value
    }
}

/// A metric with one value for each set of labels.
#[derive(Clone, Debug)]
pub(crate) struct LabeledMetric {
    description: Description,
    rows: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// Values of labels, by name.
pub(crate) type Labels = Vec<(&'static str, String)>;

impl LabeledMetric {
    /// Creates a metric that may rise and fall.
    pub(crate) fn gauge(name: &'static str, help: &'static str, rows: Vec<(Labels, f64)>) -> LabeledMetric {
        LabeledMetric { description: Description { name, kind: "gauge", help }, rows }
    }

    /// Creates a metric that only rises.
    pub(crate) fn counter(name: &'static str, help: &'static str, rows: Vec<(Labels, f64)>) -> LabeledMetric {
        LabeledMetric { description: Description { name, kind: "counter", help }, rows }
    }

    fn write(&self, out: &mut String) {
        let Description { name, kind, help } = self.description;
        let _ = write!(out, "# HELP heaptape_{name} {help}\n# TYPE heaptape_{name} {kind}\n");
        for (labels, value) in &self.rows {
            let label = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
            let labels: Vec<String> = labels.iter().map(label).collect();
            let _ = writeln!(out, "heaptape_{name}{{{}}} {value}", labels.join(","));
        }
    }
}

/// The counters of one process, with the program that they are added to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessCounters<'a> {
    pub uid: u32,
    pub name: &'a str,
    pub label: &'a str,
    /// Counters of the process at this point in time.
    pub now: StatsSnapshot,
    pub runs: bool,
    pub resident: ResidentMemory,
    /// Memory limit of its control groups in bytes; 0 if there is none.
    pub limit_bytes: u64,
    /// The resident memory at the last snapshot of its pages by use, if it is known.
    pub divided: Option<Bill>,
}

impl<'a> ProcessCounters<'a> {
    /// Returns the counters without what is not for everybody on the machine: the label, and the
    /// name of a program of another user than `own`.
    pub(crate) fn anonymous(self, own: u32) -> ProcessCounters<'a> {
        ProcessCounters { name: if self.uid == own { self.name } else { OTHER }, label: "", ..self }
    }
}

/// Name of programs that have no metrics of their own.
const OTHER: &str = "other";

/// Escapes the value of a label: backslash, quote and newline are escaped, other control characters
/// are replaced.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(200) {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            character if character.is_control() => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    out
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    processes: u64,
    live_bytes: u64,
    live_blocks: u64,
    allocs: u64,
    bytes: u64,
    lost: u64,
    sampled_out: u64,
    growing: u64,
    mapped: u64,
    reserved: u64,
    resident_bytes: u64,
    anonymous_bytes: u64,
    /// The smallest limit of a process; 0 if none has one.
    limit_bytes: u64,
    /// Number of processes whose resident memory is known by use.
    divided: u64,
    /// The bytes of each use, as [`PART_NAMES`] lists them.
    parts: [u64; PART_NAMES.len()],
}

impl Sum {
    /// Adds the counters of a process. One that has ended holds no memory any more.
    fn add(&mut self, process: ProcessCounters<'_>) {
        let ProcessCounters { now, runs, resident, limit_bytes, divided, .. } = process;
        let held = |value: u64| if runs { value } else { 0 };
        let divided = divided.filter(|_| runs);
        self.merge(&Sum {
            processes: u64::from(runs),
            live_bytes: held(now.live_bytes),
            live_blocks: held(now.live_blocks),
            allocs: now.allocs,
            bytes: now.bytes,
            lost: now.lost,
            sampled_out: now.sampled_out,
            growing: held(now.growing),
            mapped: held(now.mapped),
            reserved: held(now.reserved),
            resident_bytes: held(resident.bytes),
            anonymous_bytes: held(resident.anonymous_bytes),
            limit_bytes: held(limit_bytes),
            divided: u64::from(divided.is_some()),
            parts: divided.map(|bill| bill.parts()).unwrap_or_default(),
        });
    }

    fn merge(&mut self, more: &Sum) {
        for (sum, more) in [
            (&mut self.processes, more.processes),
            (&mut self.live_bytes, more.live_bytes),
            (&mut self.live_blocks, more.live_blocks),
            (&mut self.allocs, more.allocs),
            (&mut self.bytes, more.bytes),
            (&mut self.lost, more.lost),
            (&mut self.sampled_out, more.sampled_out),
            (&mut self.growing, more.growing),
            (&mut self.mapped, more.mapped),
            (&mut self.reserved, more.reserved),
            (&mut self.resident_bytes, more.resident_bytes),
            (&mut self.anonymous_bytes, more.anonymous_bytes),
            (&mut self.divided, more.divided),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in self.parts.iter_mut().zip(more.parts) {
            *sum = sum.saturating_add(more);
        }
        let limits = [self.limit_bytes, more.limit_bytes];
        self.limit_bytes = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(0);
    }
}

/// Metrics by name and label of a program. Of more than [`MAX_PROGRAMS`], some share one name.
#[derive(Debug)]
pub(crate) struct Programs {
    rows: FairMap<(String, String), Sum>,
    other: Sum,
}

impl Default for Programs {
    fn default() -> Self {
        Programs { rows: FairMap::new(MAX_PROGRAMS), other: Sum::default() }
    }
}

impl Programs {
    pub(crate) fn add(&mut self, process: ProcessCounters<'_>) {
        let key = (process.name.to_owned(), process.label.to_owned());
        let (sum, displaced) = self.rows.entry(key, process.uid);
        sum.add(process);
        displaced.iter().for_each(|displaced| self.other.merge(displaced));
    }

    /// Returns the metrics without labels, and without the names of other users' programs.
    pub(crate) fn anonymous(&self, own: u32) -> Programs {
        let mut anonymous = Programs { other: self.other, ..Programs::default() };
        for ((name, _), uid, sum) in self.rows.iter() {
            if uid == own {
                anonymous.rows.entry((name.clone(), String::new()), uid).0.merge(sum);
            } else {
                anonymous.other.merge(sum);
            }
        }
        anonymous
    }

    /// Adds the rows to those of a table.
    fn add_to(&self, table: &mut BTreeMap<(String, String), Sum>) {
        self.rows.iter().for_each(|(key, _, sum)| table.entry(key.clone()).or_default().merge(sum));
        if self.other != Sum::default() {
            table.entry((OTHER.into(), String::new())).or_default().merge(&self.other);
        }
    }
}

struct ProgramMetric {
    description: Description,
    value: fn(&Sum) -> u64,
}

impl ProgramMetric {
    const fn gauge(name: &'static str, help: &'static str, value: fn(&Sum) -> u64) -> ProgramMetric {
        ProgramMetric { description: Description { name, kind: "gauge", help }, value }
    }

    const fn counter(name: &'static str, help: &'static str, value: fn(&Sum) -> u64) -> ProgramMetric {
        ProgramMetric { description: Description { name, kind: "counter", help }, value }
    }
}

const PROGRAM_METRICS: [ProgramMetric; 13] = [
    ProgramMetric::gauge("processes", "Processes served", |sum| sum.processes),
    ProgramMetric::gauge("live_bytes", "Bytes allocated and not freed", |sum| sum.live_bytes),
    ProgramMetric::gauge("live_blocks", "Blocks allocated and not freed", |sum| sum.live_blocks),
    ProgramMetric::gauge("resident_bytes", "Resident memory", |sum| sum.resident_bytes),
    ProgramMetric::gauge("resident_anonymous_bytes", "Resident memory that is neither of files nor shared", |sum| {
        sum.anonymous_bytes
    }),
    ProgramMetric::gauge("mapped_bytes", "Bytes that it mapped itself (mmap, brk, shmat) and may use", |sum| {
        sum.mapped
    }),
    ProgramMetric::gauge("reserved_bytes", "Bytes of addresses that it has only reserved (PROT_NONE)", |sum| {
        sum.reserved
    }),
    ProgramMetric::gauge("memory_limit_bytes", "Smallest memory limit of its control groups, 0 without one", |sum| {
        sum.limit_bytes
    }),
    ProgramMetric::counter("allocations_total", "Allocations and resizes, including those of ended processes", |sum| {
        sum.allocs
    }),
    ProgramMetric::counter("allocated_bytes_total", "Bytes that they requested", |sum| sum.bytes),
    ProgramMetric::counter("lost_events_total", "Events lost for want of space", |sum| sum.lost),
    ProgramMetric::counter("sampled_out_events_total", "Events skipped by sampling", |sum| sum.sampled_out),
    ProgramMetric::gauge("growing_sites", "Call sites that hold more than a minute ago", |sum| sum.growing),
];

/// Writes the resident memory of the programs by use, as far as it is known.
fn parts(programs: &BTreeMap<(String, String), Sum>, out: &mut String) {
    const NAME: &str = "heaptape_program_resident_part_bytes";
    let _ = write!(
        out,
        "# HELP {NAME} Resident memory by use at the last snapshots of the pages, where it is known\n# TYPE {NAME} gauge\n"
    );
    for ((program, label), sum) in programs.iter().filter(|(_, sum)| sum.divided > 0) {
        let (program, label) = (escaped(program), escaped(label));
        for (part, bytes) in PART_NAMES.iter().zip(sum.parts) {
            let _ = writeln!(out, "{NAME}{{program=\"{program}\",label=\"{label}\",part=\"{part}\"}} {bytes}");
        }
    }
}

/// Returns the metrics as text: of `past` processes their final counters, of others the current
/// ones.
pub(crate) fn text<'a>(
    past: &Programs,
    processes: impl Iterator<Item = ProcessCounters<'a>>,
    own: &[OwnMetric],
    labeled: &[LabeledMetric],
) -> String {
    // What runs has rows of its own, however many programs have ended.
    let mut current = Programs::default();
    processes.for_each(|process| current.add(process));
    let mut programs = BTreeMap::new();
    current.add_to(&mut programs);
    past.add_to(&mut programs);
    let programs = &programs;
    let mut out = String::new();
    for ProgramMetric { description: Description { name, kind, help }, value } in PROGRAM_METRICS {
        let _ = write!(out, "# HELP heaptape_program_{name} {help}\n# TYPE heaptape_program_{name} {kind}\n");
        for ((program, label), sum) in programs {
            let (program, label) = (escaped(program), escaped(label));
            let _ = writeln!(out, "heaptape_program_{name}{{program=\"{program}\",label=\"{label}\"}} {}", value(sum));
        }
    }
    parts(programs, &mut out);
    labeled.iter().for_each(|metric| metric.write(&mut out));
    for OwnMetric { description: Description { name, kind, help }, value } in own {
        let _ = write!(out, "# HELP heaptape_{name} {help}\n# TYPE heaptape_{name} {kind}\nheaptape_{name} {value}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_resident_memory_are_added_where_they_are_known() {
        let process = |divided, runs| ProcessCounters {
            uid: 0,
            name: "a",
            label: "",
            now: StatsSnapshot::default(),
            runs,
            resident: ResidentMemory::default(),
            limit_bytes: 0,
            divided,
        };
        let bill = Bill { live: 5, held: 7, ..Bill::default() };
        let processes = [process(Some(bill), true), process(Some(bill), true), process(Some(bill), false)];
        let shown = text(&Programs::default(), processes.into_iter(), &[], &[]);
        for (part, bytes) in [("live", 10), ("held_free", 14), ("files", 0)] {
            let line =
                format!("heaptape_program_resident_part_bytes{{program=\"a\",label=\"\",part=\"{part}\"}} {bytes}\n");
            assert!(shown.contains(&line), "{line}{shown}");
        }
        let unknown = text(&Programs::default(), [process(None, true)].into_iter(), &[], &[]);
        assert!(!unknown.contains("part="), "{unknown}");
    }

    fn counters<'a>(uid: u32, name: &'a str, label: &'a str, runs: bool) -> ProcessCounters<'a> {
        let now = StatsSnapshot { allocs: 1, live_bytes: 5, ..StatsSnapshot::default() };
        ProcessCounters {
            uid,
            name,
            label,
            now,
            runs,
            resident: ResidentMemory::default(),
            limit_bytes: 0,
            divided: None,
        }
    }

    #[test]
    fn programs_of_a_user_who_makes_up_labels_displace_no_others() {
        let labels: Vec<String> = (0..3000).map(|number| format!("junk{number:04}")).collect();
        let mut past = Programs::default();
        past.add(counters(0, "cron", "", false));
        labels.iter().for_each(|label| past.add(counters(7, "true", label, false)));
        let running = labels.iter().take(700).map(|label| counters(7, "sleep", label, true));
        let shown = text(&past, running.chain([counters(0, "shop", "shop.service", true)]), &[], &[]);
        for line in [
            "heaptape_program_live_bytes{program=\"shop\",label=\"shop.service\"} 5\n",
            "heaptape_program_allocations_total{program=\"cron\",label=\"\"} 1\n",
            "heaptape_program_processes{program=\"sleep\",label=\"junk0699\"} 1\n",
        ] {
            assert!(shown.contains(line), "{line}");
        }
        let allocs = shown.lines().filter(|line| line.starts_with("heaptape_program_allocations_total"));
        let allocs: Vec<u64> = allocs.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        assert_eq!((allocs.len(), allocs.iter().sum()), (2 * MAX_PROGRAMS + 1, 3702), "nothing is lost");
    }

    #[test]
    fn metrics_for_everybody_have_no_labels_and_no_programs_of_others() {
        let mut past = Programs::default();
        past.add(counters(7, "secret", "project", false));
        past.add(counters(5, "mine", "project", false));
        let running = [counters(7, "deploy", "x", true), counters(5, "mine", "y", true)];
        let shown = text(&past.anonymous(5), running.map(|one| one.anonymous(5)).into_iter(), &[], &[]);
        assert!(shown.contains("heaptape_program_allocations_total{program=\"mine\",label=\"\"} 2\n"), "{shown}");
        assert!(shown.contains("heaptape_program_allocations_total{program=\"other\",label=\"\"} 2\n"), "{shown}");
        for word in ["secret", "project", "deploy", "\"x\"", "\"y\""] {
            assert!(!shown.contains(word), "{word}: {shown}");
        }
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\"} 1\nheaptape_live 5\\\u{1b}[31m"), "a\\\"} 1\\nheaptape_live 5\\\\\u{fffd}[31m");
        assert_eq!(escaped(&"x".repeat(1000)).len(), 200);
        let hits = LabeledMetric::counter("hits_total", "Hits", vec![(vec![("budget", "a\"b".into())], 3.0)]);
        let text = text(&Programs::default(), std::iter::empty(), &[OwnMetric::gauge("up", "One", 1.0)], &[hits]);
        assert!(
            text.contains("# TYPE heaptape_hits_total counter\nheaptape_hits_total{budget=\"a\\\"b\"} 3\n"),
            "{text}"
        );
        assert!(text.ends_with("# TYPE heaptape_up gauge\nheaptape_up 1\n"));
    }
}
