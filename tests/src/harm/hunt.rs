//! Runs cases from consecutive seeds until a deadline, and reports differences.

use super::linkage::ORDINARY;
use super::{Bench, Case, Linkage, Observation, Way, generate, recording, shrink};
use std::fmt;
use std::time::{Duration, Instant};

/// Kinds of runs besides plain recording. Each case runs in one of them.
const OTHER_WAYS: [Way; 6] = [
    Way::Alone,
    Way::Recorded(&["--sample=1KiB"]),
    Way::Recorded(&["--stacks=none"]),
    Way::Daemon("off"),
    Way::Daemon("profile:64KiB"),
    Way::Daemon("trace"),
];

/// Number of bare runs that a difference must not show in. A thread may get another arena of glibc in
/// one of fifty, and then what a sandbox forbids is needed or not.
const BARE_RUNS: u32 = 200;
/// Enough of them for a planted difference.
const FEW_BARE_RUNS: u32 = 3;

/// Maximum duration of shrinking a difference.
const SHRINK_TIME: Duration = Duration::from_secs(60);

/// A case whose runs differ.
pub struct Found {
    pub seed: u64,
    /// How its program is linked.
    pub linkage: Linkage,
    /// The smallest case that was found to differ.
    pub case: Case,
    /// The kind of run that differs.
    pub way: Way,
    /// Description of the difference.
    pub what: String,
    /// Number of further runs of the whole case that differ, and of all of them.
    pub again: (u32, u32),
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { seed, linkage, way, what, again: (times, of), .. } = self;
        writeln!(out, "seed {seed}, {way:?}, again in {times} of {of} runs: {what}")?;
        writeln!(out, "  replay: {}", recording::replay(&self.case, linkage))
    }
}

/// Counts and differences of a hunt.
#[derive(Default)]
pub struct Summary {
    pub cases: u64,
    /// Number of runs with the library.
    pub runs: u64,
    /// Cases that show nothing, with the reason: their bare runs differ or do not end.
    pub unsteady: Vec<(u64, String)>,
    /// The differences that were found.
    pub found: Vec<Found>,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.found.iter().try_for_each(|found| writeln!(out, "{found}"))?;
        let Summary { cases, runs, unsteady, found } = self;
        write!(out, "{cases} cases, {runs} runs with the library, {} differences", found.len())?;
        let seeds: Vec<u64> = unsteady.iter().map(|(seed, _)| *seed).collect();
        write!(out, "; {} cases are not deterministic: {seeds:?}", seeds.len())
    }
}

pub struct Hunt {
    bench: Bench,
    linkage: Linkage,
    ways: Vec<Way>,
    is_shrinking: bool,
    most: usize,
}

impl Default for Hunt {
    fn default() -> Hunt {
        Hunt::new()
    }
}

impl Hunt {
    /// Returns a hunt with all kinds of runs.
    pub fn new() -> Hunt {
        Hunt::linked(ORDINARY)
    }

    /// Returns a hunt with programs that are linked otherwise. Static ones are recorded only:
    /// nothing is preloaded into them.
    pub fn linked(linkage: Linkage) -> Hunt {
        let ways = if linkage.is_static() { vec![Way::Recorded(&[])] } else { Vec::new() };
        Hunt { bench: Bench::new(linkage), linkage, ways, is_shrinking: true, most: 3 }
    }

    /// Runs each case in this kind only, and does not shrink it.
    pub fn only(way: Way) -> Hunt {
        Hunt { ways: vec![way], is_shrinking: false, most: 1, ..Hunt::new() }
    }

    /// Ends after this number of differences.
    pub fn most(self, most: usize) -> Hunt {
        Hunt { most, ..self }
    }

    /// Runs at most `cases` cases from `seed` on, until the time is over or there are enough
    /// differences.
    pub fn run(&self, seed: u64, cases: u64, longest: Duration, summary: &mut Summary) {
        let start = Instant::now();
        for seed in seed..seed.saturating_add(cases) {
            if start.elapsed() >= longest || summary.found.len() >= self.most {
                return;
            }
            let case = generate(seed);
            if self.linkage.allows(&case) {
                self.case(seed, &case, summary);
            }
        }
    }

    /// Runs one case in its kinds of runs.
    pub fn case(&self, seed: u64, case: &Case, summary: &mut Summary) {
        summary.cases += 1;
        let bare = self.bench.run(case, &Way::Bare);
        if bare.is_stuck() {
            return summary.unsteady.push((seed, "does not end".to_owned()));
        }
        let other = OTHER_WAYS[(seed % OTHER_WAYS.len() as u64) as usize].clone();
        let ways = if self.ways.is_empty() { vec![Way::Recorded(&[]), other] } else { self.ways.clone() };
        for way in ways {
            summary.runs += 1;
            let Some(what) = self.difference(case, &way, &bare) else { continue };
            if let Some(why) = self.unsteady(case, &bare) {
                return summary.unsteady.push((seed, why));
            }
            let again = (0..3).filter(|_| self.difference(case, &way, &bare).is_some()).count() as u32;
            let mut found = Found { seed, linkage: self.linkage, case: case.clone(), way, what, again: (again, 3) };
            if self.is_shrinking {
                let whole = (found.case.clone(), found.what.clone());
                self.smaller(&mut found);
                if self.unsteady(&found.case, &self.bench.run(&found.case, &Way::Bare)).is_some() {
                    (found.case, found.what) = whole;
                }
            }
            eprintln!("{found}");
            return summary.found.push(found);
        }
    }

    /// Runs a case in all kinds of runs.
    pub fn replay(&self, case: &Case, summary: &mut Summary) {
        let bare = self.bench.run(case, &Way::Bare);
        summary.cases += 1;
        let all = OTHER_WAYS.iter().chain([&Way::Recorded(&[])]);
        for way in all.filter(|way| self.ways.is_empty() || self.ways.contains(way)) {
            summary.runs += 1;
            if let Some(what) = self.difference(case, way, &bare) {
                let (linkage, case, way) = (self.linkage, case.clone(), way.clone());
                summary.found.push(Found { seed: 0, linkage, case, way, what, again: (0, 0) });
            }
        }
    }

    /// Returns what bare runs of a case differ in.
    fn unsteady(&self, case: &Case, bare: &Observation) -> Option<String> {
        let runs = if self.is_shrinking { BARE_RUNS } else { FEW_BARE_RUNS };
        (0..runs).find_map(|_| bare.difference(&self.bench.run(case, &Way::Bare)))
    }

    fn difference(&self, case: &Case, way: &Way, bare: &Observation) -> Option<String> {
        let seen = self.bench.run(case, way);
        if seen.is_stuck() && bare.runs_away() {
            return None;
        }
        bare.difference(&seen).or_else(|| match way {
            Way::Recorded(options) => {
                let is_sampled = options.iter().any(|option| option.starts_with("--sample"));
                recording::fault(case, &seen, is_sampled, &self.bench.recording())
            }
            _ => None,
        })
    }

    fn smaller(&self, found: &mut Found) {
        let tries = if found.again.0 == found.again.1 { 1 } else { 4 };
        let mut what = found.what.clone();
        found.case = shrink(&found.case, SHRINK_TIME, |case| {
            let bare = self.bench.run(case, &Way::Bare);
            // A program that does not end is killed with its recorder.
            if bare.is_stuck() {
                return false;
            }
            let differs = (0..tries).find_map(|_| self.difference(case, &found.way, &bare));
            // A smaller case that is not deterministic shows nothing.
            let Some(differs) = differs.filter(|_| bare.difference(&self.bench.run(case, &Way::Bare)).is_none()) else {
                return false;
            };
            what = differs;
            true
        });
        found.what = what;
    }

    /// Stops the daemon and returns what is wrong with its recordings.
    pub fn epoch_fault(mut self) -> Option<String> {
        let daemon = self.bench.daemon();
        daemon.stop();
        recording::epoch_fault(daemon)
    }
}
