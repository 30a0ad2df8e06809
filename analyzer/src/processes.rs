//! Selects the processes of recordings that a query is about.

use crate::load::{Events, Process, Recording};
use crate::missing::Missing;
use crate::similar::hint;
use crate::text::{clean, counted};
use heaptape_formats::pattern::Pattern;
use heaptape_formats::recording::{Exit, NotTraced};

/// A filter for processes. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// A pid, or the name of a folder in the recording. A pid selects all programs that the process
    /// ran one after another.
    pub process: Option<String>,
    /// A pattern of the program's name: `*` matches any text, `?` one character.
    pub program: Option<String>,
    /// Whether short-lived processes are listed one by one.
    pub all: bool,
    /// Whether only processes match that ran when their recording ended.
    pub running: bool,
}

/// Why a [`ProcessFilter`] selects no process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The recordings have no processes.
    #[error("{}", nothing_recorded(.recordings, .not_traced))]
    NothingRecorded {
        /// Paths of the recordings, separated by commas.
        recordings: String,
        /// Processes that ran without being recorded.
        not_traced: Vec<NotTraced>,
    },
    /// No process matches the filter.
    #[error("{}", no_match(.filter, .hint))]
    NoMatch {
        /// The filter that selects nothing.
        filter: ProcessFilter,
        /// End of the message: names that are similar to those of the filter.
        hint: String,
    },
    /// Processes match, and none of them can be read.
    #[error("{}", unreadable(.recordings, .missing.as_ref()))]
    Unreadable {
        /// Paths of the recordings, separated by commas.
        recordings: String,
        /// The first thing that is missing from a matching process.
        missing: Option<Missing>,
    },
}

/// Maximum number of names in a message about one pid.
const LISTED: usize = 4;
/// Maximum number of processes that are always listed one by one.
const FEW: usize = 4;
/// Number of processes with the most events that are listed, unless they are shells or were
/// replaced by another program.
const LARGEST: usize = 8;
/// A process is listed if it has at least this fraction of all events: one in 100.
const MIN_EVENTS_DIVISOR: u64 = 100;
/// Names of shells. They start other programs, and are seldom interesting themselves.
const SHELLS: &[&str] = &["sh", "bash", "dash", "env"];
/// Maximum duration of a short-lived process, in nanoseconds.
const SHORT_NS: u64 = 1_000_000_000;

impl From<Option<String>> for ProcessFilter {
    fn from(process: Option<String>) -> Self {
        ProcessFilter { process, ..ProcessFilter::default() }
    }
}

impl ProcessFilter {
    /// Returns whether all processes match.
    pub const fn is_all(&self) -> bool {
        self.process.is_none() && self.program.is_none() && !self.running
    }

    pub fn matches(&self, process: &Process) -> bool {
        self.process.as_ref().is_none_or(|name| process.is(name))
            && self.program.as_ref().is_none_or(|program| is_program(process, program))
            && (!self.running || matches!(process.about.exit, Some(Exit::Running) | None))
    }

    /// Removes the processes that were not recorded and do not match from what is missing of
    /// recordings: who selects processes does not ask for the others.
    pub(crate) fn leave_out_unrecorded(&self, recordings: &mut [Recording]) {
        if self.is_all() {
            return;
        }
        let matches = |pid: u32, exe: &str| {
            let name = || exe.rsplit('/').next().unwrap_or_default().to_owned();
            self.process.as_ref().is_none_or(|wanted| *wanted == pid.to_string())
                && self.program.as_ref().is_none_or(|program| Pattern::whole(program).matches(name()))
        };
        for recording in recordings {
            recording.missing.retain(|missing| match missing {
                Missing::Unrecorded(process) => !self.running && matches(process.pid, &process.exe),
                Missing::Outlived { pid, exe } => matches(*pid, exe),
                _ => true,
            });
        }
    }

    /// Returns the matching processes of recordings.
    ///
    /// # Errors
    /// Returns an error if no process matches, with similar names, or if none of the matching
    /// processes can be read.
    pub fn select<'a>(&self, recordings: &'a [Recording]) -> Result<Vec<&'a Process>, SelectError> {
        let all: Vec<&Process> = recordings.iter().flat_map(|recording| &recording.processes).collect();
        if all.is_empty() {
            let about = recordings.iter().filter_map(|recording| recording.about.as_ref());
            let not_traced = about.flat_map(|about| &about.not_traced).take(LISTED).cloned().collect();
            return Err(SelectError::NothingRecorded { recordings: named(recordings), not_traced });
        }
        let chosen: Vec<&Process> = all.iter().copied().filter(|process| self.matches(process)).collect();
        if chosen.is_empty() {
            return Err(self.no_match(&all));
        }
        let is_readable = |process: &&Process| !matches!(process.events, Events::None) || process.sums.is_some();
        if !chosen.iter().any(is_readable) {
            let missing = chosen.iter().flat_map(|process| &process.missing).next().cloned();
            return Err(SelectError::Unreadable { recordings: named(recordings), missing });
        }
        Ok(chosen)
    }

    /// Returns the error for the case that no process matches.
    fn no_match(&self, all: &[&Process]) -> SelectError {
        let names: Vec<String> = match &self.process {
            Some(_) => all.iter().map(|process| process.about.folder.clone()).collect(),
            None => all.iter().map(|process| process.name()).collect(),
        };
        let wanted = self.process.as_ref().or(self.program.as_ref()).map_or("", String::as_str);
        SelectError::NoMatch { filter: self.clone(), hint: hint(wanted, names.iter().map(String::as_str)) }
    }

    /// Returns a note if a pid was selected that ran several programs.
    pub fn note(&self, chosen: &[&Process]) -> Option<String> {
        let pid = self.process.as_ref().filter(|process| process.parse::<u32>().is_ok())?;
        let folders: Vec<&str> = chosen.iter().map(|process| process.about.folder.as_str()).collect();
        if folders.len() < 2 {
            return None;
        }
        let more = folders.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let some = folders.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
        let several = counted(folders.len() as u64, "program");
        Some(format!("pid {pid} ran {several}, one after another: {some}{more}; --process FOLDER names one"))
    }

    /// Splits processes into those that are listed one by one, and those that are summed up in one
    /// line. A process is summed up if it is short-lived and has few of the events. All processes
    /// are listed if the filter selects some, or if there are few.
    pub fn fold<'a>(&self, chosen: Vec<&'a Process>) -> (Vec<&'a Process>, Vec<&'a Process>) {
        if self.all || !self.is_all() || chosen.len() <= FEW {
            return (chosen, Vec::new());
        }
        let mut order: Vec<&Process> = chosen.clone();
        order.sort_by_key(|process| std::cmp::Reverse(process.tape.events));
        let large = order.get(LARGEST - 1).map_or(0, |process| process.tape.events);
        let sum = order.iter().fold(0u64, |sum, process| sum.saturating_add(process.tape.events));
        let largest = order[0].tape.events;
        chosen.into_iter().partition(|process| {
            let events = process.tape.events;
            let is_large = events >= largest || events >= sum / MIN_EVENTS_DIVISOR;
            !is_short(process) || is_large || (!is_helper(process) && events >= large)
        })
    }
}

/// Returns the line that sums up short-lived processes.
pub fn folded_line(folded: &[&Process]) -> String {
    let (count, plural) = (folded.len(), if folded.len() == 1 { "" } else { "es" });
    let events = folded.iter().fold(0u64, |sum, process| sum.saturating_add(process.tape.events));
    format!("and {count} short-lived process{plural} with {} (--all-processes)", counted(events, "event"))
}

fn is_short(process: &Process) -> bool {
    process.has_ended() && process.has_times() && process.clock.nanos(process.tape.last_tick) < SHORT_NS
}

fn is_helper(process: &Process) -> bool {
    process.about.exit == Some(Exit::Exec) || SHELLS.contains(&process.name().as_str())
}

/// Returns whether a process runs a program whose name matches: the name of its file, of its
/// folder, or by which it was called.
fn is_program(process: &Process, pattern: &str) -> bool {
    let called = process.about.argv.first().map(|called| called.rsplit('/').next().unwrap_or(called));
    let folder = process.about.folder.split_once('.').map(|(_, name)| name);
    let pattern = Pattern::whole(pattern);
    let exe = process.about.exe.rsplit('/').next();
    [Some(&*process.name()), exe, called, folder].into_iter().flatten().any(|name| pattern.matches(name))
}

/// Returns the paths of recordings for messages.
fn named(recordings: &[Recording]) -> String {
    recordings.iter().map(|recording| recording.path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the message for recordings without processes.
fn nothing_recorded(recordings: &str, not_traced: &[NotTraced]) -> String {
    let mut text = format!("nothing was recorded in {recordings}");
    for process in not_traced {
        let name = process.exe.rsplit('/').next().unwrap_or_default();
        text += &format!("; {name} (pid {}) was not recorded: {}", process.pid, process.why);
    }
    clean(&text).into_owned()
}

/// Returns the message for a filter that no process matches.
fn no_match(filter: &ProcessFilter, hint: &str) -> String {
    let text = match (&filter.process, &filter.program) {
        (Some(process), Some(program)) => format!("no process {process} runs a program {program}{hint}"),
        (Some(process), None) => format!("no process {process} in the recording{hint}"),
        (None, program) => format!("no program {} in the recording{hint}", program.as_deref().unwrap_or_default()),
    };
    clean(&text).into_owned()
}

/// Returns the message for processes that cannot be read.
fn unreadable(recordings: &str, missing: Option<&Missing>) -> String {
    let why = missing.map_or_else(String::new, |missing| format!(": {missing}"));
    clean(&format!("nothing of {recordings} can be read{why}")).into_owned()
}
