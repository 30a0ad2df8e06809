//! Which processes of recordings a question is about.

use crate::load::{Events, Image, Recording};
use crate::similar::hint;
use crate::text::{clean, counted};
use heaptape_formats::pattern::matches;
use heaptape_formats::recording::Exit;

/// The processes that a person names; all conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// A pid, or a folder in the recording. A pid names all programs that the process ran, one
    /// after another.
    pub process: Option<String>,
    /// A pattern of the program's name: `*` stands for any text, `?` for one character.
    pub program: Option<String>,
    /// Whether short-lived processes are listed one by one.
    pub all: bool,
}

/// Names in a message about one pid.
const LISTED: usize = 4;
/// With fewer processes none is folded away.
const FEW: usize = 4;
/// This many processes with the most events are not folded away, other than shells and what went on
/// with another program.
const GREATEST: usize = 8;
/// Nor is a process with at least one in so many of all events.
const PART: u64 = 100;
/// Shells: what starts a program, and is seldom what is asked about.
const SHELLS: &[&str] = &["sh", "bash", "dash", "env"];
/// A process that lived less than this many nanoseconds is short-lived.
const SHORT_NS: u64 = 1_000_000_000;

impl From<Option<String>> for ProcessFilter {
    fn from(process: Option<String>) -> Self {
        ProcessFilter { process, ..ProcessFilter::default() }
    }
}

impl ProcessFilter {
    /// Whether no process is left out.
    pub const fn is_all(&self) -> bool {
        self.process.is_none() && self.program.is_none()
    }

    /// Whether a process is named.
    pub fn matches(&self, image: &Image) -> bool {
        self.process.as_ref().is_none_or(|process| image.is(process))
            && self.program.as_ref().is_none_or(|program| is_program(image, program))
    }

    /// The processes of recordings that are named.
    ///
    /// # Errors
    /// When there is none, or nothing of any was recorded: says why, with the names that come near.
    pub fn select<'a>(&self, recordings: &'a [Recording]) -> Result<Vec<&'a Image>, String> {
        let all: Vec<&Image> = recordings.iter().flat_map(|recording| &recording.images).collect();
        if all.is_empty() {
            return Err(nothing(recordings));
        }
        let chosen: Vec<&Image> = all.iter().copied().filter(|image| self.matches(image)).collect();
        if chosen.is_empty() {
            return Err(self.nobody(&all));
        }
        let is_readable = |image: &&Image| !matches!(image.events, Events::None) || image.sums.is_some();
        if !chosen.iter().any(is_readable) {
            let why = chosen.iter().flat_map(|image| &image.missing).next();
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            return Err(clean(&format!("nothing of {} can be read{why}", named(recordings))).into_owned());
        }
        Ok(chosen)
    }

    /// Why nobody was found.
    fn nobody(&self, all: &[&Image]) -> String {
        let names: Vec<String> = all.iter().map(|image| image.name()).collect();
        let folders = || all.iter().map(|image| image.about.folder.as_str());
        let (names, of_both) = (names.iter().map(String::as_str), self.process.is_some() && self.program.is_some());
        let text = match (&self.process, &self.program) {
            (Some(process), Some(program)) if of_both => {
                format!("no process {process} runs a program {program}{}", hint(process, folders()))
            }
            (Some(process), _) => format!("no process {process} in the recording{}", hint(process, folders())),
            (_, program) => {
                let program = program.as_deref().unwrap_or_default();
                format!("no program {program} in the recording{}", hint(program, names))
            }
        };
        clean(&text).into_owned()
    }

    /// What a person should know who named a pid that ran several programs.
    pub fn note(&self, chosen: &[&Image]) -> Option<String> {
        let pid = self.process.as_ref().filter(|process| process.parse::<u32>().is_ok())?;
        let folders: Vec<&str> = chosen.iter().map(|image| image.about.folder.as_str()).collect();
        if folders.len() < 2 {
            return None;
        }
        let more = folders.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let some = folders.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
        let several = counted(folders.len() as u64, "program");
        Some(format!("pid {pid} ran {several}, one after another: {some}{more}; --process FOLDER names one"))
    }

    /// Splits processes into those that are listed one by one and short-lived ones that are summed
    /// up in one line: those that lived less than a second and made few of the events. None is
    /// summed up when processes are named, or when there are few.
    pub fn fold<'a>(&self, chosen: Vec<&'a Image>) -> (Vec<&'a Image>, Vec<&'a Image>) {
        if self.all || !self.is_all() || chosen.len() <= FEW {
            return (chosen, Vec::new());
        }
        let mut order: Vec<&Image> = chosen.clone();
        order.sort_by_key(|image| std::cmp::Reverse(image.tape.events));
        let eighth = order.get(GREATEST - 1).map_or(0, |image| image.tape.events);
        let sum = order.iter().fold(0u64, |sum, image| sum.saturating_add(image.tape.events));
        let greatest = order[0].tape.events;
        chosen.into_iter().partition(|image| {
            let events = image.tape.events;
            let is_large = events >= greatest || events >= sum / PART;
            !is_short(image) || is_large || (!is_helper(image) && events >= eighth)
        })
    }
}

/// The line that stands for short-lived processes.
pub fn folded_line(folded: &[&Image]) -> String {
    let (count, plural) = (folded.len(), if folded.len() == 1 { "" } else { "es" });
    let events = folded.iter().fold(0u64, |sum, image| sum.saturating_add(image.tape.events));
    format!("and {count} short-lived process{plural} with {} (--all-processes)", counted(events, "event"))
}

fn is_short(image: &Image) -> bool {
    image.has_ended() && image.has_times() && image.clock.nanos(image.tape.last_tick) < SHORT_NS
}

fn is_helper(image: &Image) -> bool {
    image.about.exit == Some(Exit::Exec) || SHELLS.contains(&image.name().as_str())
}

/// Whether a process runs a program of this name: that of its file, of its folder, or that by which
/// it was called.
fn is_program(image: &Image, pattern: &str) -> bool {
    let called = image.about.argv.first().map(|called| called.rsplit('/').next().unwrap_or(called));
    let folder = image.about.folder.split_once('.').map(|(_, name)| name);
    let names = [Some(&*image.name()), called, folder]
        .map(|name| name.is_some_and(|name| matches(pattern.as_bytes(), name.as_bytes())));
    names.contains(&true)
}

fn named(recordings: &[Recording]) -> String {
    recordings.iter().map(|recording| recording.path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Why recordings hold no process.
fn nothing(recordings: &[Recording]) -> String {
    let mut text = format!("nothing was recorded in {}", named(recordings));
    let refused =
        recordings.iter().filter_map(|recording| recording.about.as_ref()).flat_map(|about| &about.not_traced);
    for process in refused.take(LISTED) {
        let name = process.exe.rsplit('/').next().unwrap_or_default();
        text += &format!("; {name} (pid {}) was not recorded: {}", process.pid, process.why);
    }
    clean(&text).into_owned()
}
