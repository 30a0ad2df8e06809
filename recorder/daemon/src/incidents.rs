//! Counts what alerts ask for: flight recordings that were kept, and programs that were killed because
//! memory ran out.

use super::fair_map::FairMap;
use super::metrics::{LabeledMetric, Labels};
use heaptape_recorder::os::clock;

/// Maximum number of programs with rows of their own.
const MAX_PROGRAMS: usize = 500;

/// A program by name and label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    name: String,
    label: String,
}

/// What happened to each program, as counts and times.
#[derive(Debug)]
pub(crate) struct Incidents {
    /// Number of flight recordings that were kept.
    kept_flights: u64,
    /// When a flight was last kept, in seconds since 1970, by program and cause.
    flights: FairMap<(Program, &'static str), f64>,
    /// Number of kills because memory ran out.
    kills: FairMap<Program, u64>,
    /// Those of programs that had to make room.
    other_kills: u64,
}

impl Default for Incidents {
    fn default() -> Self {
        let (flights, kills) = (FairMap::new(MAX_PROGRAMS), FairMap::new(MAX_PROGRAMS));
        Incidents { kept_flights: 0, flights, kills, other_kills: 0 }
    }
}

impl Program {
    fn of(name: &str, label: &str) -> Program {
        Program { name: name.to_owned(), label: label.to_owned() }
    }

    fn labels(&self) -> Labels {
        vec![("program", self.name.clone()), ("label", self.label.clone())]
    }
}

impl Incidents {
    /// Notes that the flight of a user's program was kept for a cause: `trigger`, `pressure`,
    /// `signal`, `request` or `exit`.
    pub(crate) fn flight_kept(&mut self, uid: u32, name: &str, label: &str, cause: &'static str) {
        self.kept_flights += 1;
        *self.flights.entry((Program::of(name, label), cause), uid).0 = clock::unix_ns() as f64 / 1e9;
    }

    /// Notes that the kernel killed a process of a user's program because memory ran out.
    pub(crate) fn out_of_memory(&mut self, uid: u32, name: &str, label: &str) {
        let (count, displaced) = self.kills.entry(Program::of(name, label), uid);
        *count += 1;
        self.other_kills += displaced.unwrap_or(0);
    }

    /// Returns the number of flight recordings that were kept.
    pub(crate) fn kept_flights(&self) -> u64 {
        self.kept_flights
    }

    /// Returns the metrics by program.
    pub(crate) fn metrics(&self) -> [LabeledMetric; 2] {
        let flights = self.flights.iter().map(|((program, cause), _, time)| {
            let mut labels = program.labels();
            labels.push(("cause", (*cause).to_owned()));
            (labels, *time)
        });
        let kills = self.kills.iter().map(|(program, _, count)| (program.labels(), *count as f64));
        let others = (self.other_kills > 0).then(|| (Program::of("other", "").labels(), self.other_kills as f64));
        [
            LabeledMetric::gauge(
                "flight_kept_timestamp_seconds",
                "When a flight recording was last kept, in seconds since 1970",
                flights.collect(),
            ),
            LabeledMetric::counter(
                "program_out_of_memory_kills_total",
                "Processes that the kernel killed because memory ran out",
                kills.chain(others).collect(),
            ),
        ]
    }
}
