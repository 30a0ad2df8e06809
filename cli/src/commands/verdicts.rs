//! `heaptape daemon --print-verdicts`: what the programs of a daemon hold, by verdict, and their
//! most suspect call sites. The daemon starts it at intervals for its metrics.

use super::live;
use crate::Outcome;
use crate::control::Control;
use heaptape_daemon::protocol::{Process, Request, Which};
use heaptape_daemon::{Judged, JudgedProgram, JudgedSite, MAX_PROGRAMS, MAX_SITES, Unjudged};
use heaptape_recorder::session::options::Mode;
use heaptape_reports::suspects::{self, Suspect, Suspects};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time after which no further process is judged.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Maximum size of the files of a process, in bytes. Events take about 0.2 s a million, and a
/// million takes some 4 MB.
const MAX_BYTES: u64 = 64 << 20;

/// The verdicts of a program and label.
#[derive(Default)]
struct Sums {
    verdicts: BTreeMap<String, u64>,
    sites: BTreeMap<i64, Suspect>,
    unjudged: BTreeMap<Unjudged, u64>,
}

impl Sums {
    fn add(&mut self, of: Suspects) {
        for (verdict, bytes) in of.bytes {
            let sum = self.verdicts.entry(verdict).or_default();
            *sum = sum.saturating_add(bytes);
        }
        for site in of.sites {
            match self.sites.get_mut(&site.stack) {
                Some(sum) => {
                    (sum.bytes, sum.weight) =
                        (sum.bytes.saturating_add(site.bytes), sum.weight.saturating_add(site.weight));
                }
                None => drop(self.sites.insert(site.stack, site)),
            }
        }
    }
}

/// Prints the verdicts about the programs of the daemon at a control socket.
///
/// # Errors
/// When no daemon answers.
pub(super) fn print(control: Option<PathBuf>) -> anyhow::Result<Outcome> {
    let control = Control::at(control);
    let (state, mut served) = live::chosen("all", &control)?;
    // Where there is not enough time for all, those that hold most are judged.
    served.sort_by_key(|process| Reverse(process.live_bytes));
    let (start, mut unjudged) = (Instant::now(), 0);
    let mut programs: BTreeMap<(String, String), Sums> = BTreeMap::new();
    for process in served {
        let judged =
            if start.elapsed() < MAX_TIME { judge(&state, &control, &process) } else { Err(Unjudged::ForWantOfTime) };
        let sums = programs.entry((process.name, process.label)).or_default();
        match judged {
            Ok(found) => sums.add(found),
            Err(reason) => {
                *sums.unjudged.entry(reason).or_default() += 1;
                unjudged += 1;
            }
        }
    }
    let mut ranked: Vec<(u64, JudgedProgram)> = programs.into_iter().map(program).collect();
    ranked.sort_by_key(|(weight, _)| Reverse(*weight));
    let programs = ranked.into_iter().take(MAX_PROGRAMS).map(|(_, program)| program).collect();
    println!("{}", serde_json::to_string(&Judged { programs, unjudged })?);
    Ok(Outcome::Done)
}

/// Returns a program with its worst call sites, and their weight.
fn program(((program, label), sums): ((String, String), Sums)) -> (u64, JudgedProgram) {
    let mut sites: Vec<Suspect> = sums.sites.into_values().collect();
    sites.sort_by_key(|site| Reverse(site.weight));
    sites.truncate(MAX_SITES);
    let weight = sites.iter().fold(0, |sum: u64, site| sum.saturating_add(site.weight));
    let site = |Suspect { stack, function, bytes, .. }| JudgedSite { stack, function, live_bytes: bytes };
    let sites = sites.into_iter().map(site).collect();
    (weight, JudgedProgram { program, label, verdicts: sums.verdicts, sites, unjudged: sums.unjudged })
}

/// Judges what a process holds.
fn judge(state: &Path, control: &Control, process: &Process) -> Result<Suspects, Unjudged> {
    let is_in = |mode: Mode| process.mode.starts_with(mode.name());
    if is_in(Mode::Off) {
        return Err(Unjudged::ModeOff);
    }
    let folders = if is_in(Mode::Profile) {
        // A profile counts on in each segment; of events all segments are needed.
        vec![PathBuf::from(&process.folder)]
    } else {
        if is_in(Mode::Flight) {
            // It is read where it is, and is not kept. Without an answer an older state is judged.
            let which = Which(process.pid.to_string());
            let _ = control.ask(&Request::Snapshot { which, leaves_flights: true, references: false });
        }
        live::recorded(state, process).unwrap_or_default()
    };
    if folders.iter().map(|folder| size(folder)).sum::<u64>() > MAX_BYTES {
        return Err(Unjudged::TooLarge);
    }
    // A process that has just started, or ended, has no files yet, or no more.
    if !folders.iter().any(|folder| size(folder) > 0) {
        return Err(Unjudged::NothingWritten);
    }
    suspects::find(&folders, MAX_SITES).map_err(|_| Unjudged::Unreadable)
}

/// Returns the size of the files in a folder.
fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}
