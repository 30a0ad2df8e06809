//! What happened to programs, for alerts: flights that were kept, and kills because memory ran out.

use super::metrics::{LabeledMetric, Labels};
use heaptape_recorder::os::clock;
use std::collections::BTreeMap;

/// Maximum number of programs with rows of their own. Further ones share one, since clients can
/// choose any names.
const MAX_PROGRAMS: usize = 500;

/// A program by name and label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    name: String,
    label: String,
}

/// What happened to each program, as counts and times.
#[derive(Debug, Default)]
pub struct Incidents {
    /// Number of flight recordings that were kept.
    kept_flights: u64,
    /// When a flight was last kept, in seconds since 1970, by program and cause.
    flights: BTreeMap<(Program, &'static str), f64>,
    /// Number of kills because memory ran out.
    kills: BTreeMap<Program, u64>,
}

impl Program {
    fn of(name: &str, label: &str, is_known: impl Fn(&Program) -> bool, count: usize) -> Program {
        let program = Program { name: name.to_owned(), label: label.to_owned() };
        let is_own = count < MAX_PROGRAMS || is_known(&program);
        if is_own { program } else { Program { name: "other".into(), label: String::new() } }
    }

    fn labels(&self) -> Labels {
        vec![("program", self.name.clone()), ("label", self.label.clone())]
    }
}

impl Incidents {
    /// Notes that the flight of a program was kept for a cause: `trigger`, `pressure`, `signal`,
    /// `request` or `exit`.
    pub fn flight_kept(&mut self, name: &str, label: &str, cause: &'static str) {
        self.kept_flights += 1;
        let is_known = |program: &Program| self.flights.contains_key(&(program.clone(), cause));
        let program = Program::of(name, label, is_known, self.flights.len());
        self.flights.insert((program, cause), clock::unix_ns() as f64 / 1e9);
    }

    /// Notes that the kernel killed a process of a program because memory ran out.
    pub fn out_of_memory(&mut self, name: &str, label: &str) {
        let program = Program::of(name, label, |program| self.kills.contains_key(program), self.kills.len());
        *self.kills.entry(program).or_default() += 1;
    }

    /// Returns the number of flight recordings that were kept.
    pub fn kept_flights(&self) -> u64 {
        self.kept_flights
    }

    /// Returns the metrics by program.
    pub fn metrics(&self) -> [LabeledMetric; 2] {
        let flights = self.flights.iter().map(|((program, cause), time)| {
            let mut labels = program.labels();
            labels.push(("cause", (*cause).to_owned()));
            (labels, *time)
        });
        let kills = self.kills.iter().map(|(program, count)| (program.labels(), *count as f64));
        [
            LabeledMetric::gauge(
                "flight_kept_timestamp_seconds",
                "When a flight recording was last kept, in seconds since 1970",
                flights.collect(),
            ),
            LabeledMetric::counter(
                "program_out_of_memory_kills_total",
                "Processes that the kernel killed because memory ran out",
                kills.collect(),
            ),
        ]
    }
}
