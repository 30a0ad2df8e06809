//! Messages on names that the files of a module do not contain: which module, why, and what would
//! help.

use super::Object;
use super::files::{Why, hexadecimal};
use std::sync::{Mutex, PoisonError};

/// Maximum number of files that one message names.
const MOST: usize = 5;

/// What the names of a module lack.
#[derive(Debug, Default)]
pub(super) struct Lacks {
    /// Whether a function of the program was looked up and has no name.
    pub names: bool,
    /// Whether lines are missing that existed when the program was recorded.
    pub lines: bool,
    /// Why the module's own file is missing.
    pub why: Option<Why>,
}

/// A message on missing names, before it is put together with its like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A file lacks names.
    File(Kind, File),
    /// Anything else, as it is printed.
    Text(String),
}

/// Files of one kind have the same remedy, so that one message is about all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stripped, so that only exported functions have names.
    Stripped,
    /// It has symbols, but not for all code.
    Unnamed,
    /// The file is not what was recorded. What is missing, and why in the singular and the plural.
    Lost { what: &'static str, why: &'static str, why_many: &'static str },
}

/// A file that lacks names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    path: String,
    /// The recorded build-id.
    identity: String,
    /// The build-id of the file that is there instead.
    other: Option<String>,
}

/// Returns what the modules lack, each once.
pub(super) fn notes(objects: &[Object]) -> Vec<Note> {
    let files = objects.iter().filter_map(file);
    let parts = objects.iter().filter_map(parts).take(MOST).map(Note::Text);
    let mut notes = Vec::new();
    for note in files.chain(parts) {
        add(&mut notes, note);
    }
    notes
}

fn add(notes: &mut Vec<Note>, note: Note) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}

/// Returns the messages, one for all files with the same remedy.
pub(super) fn lines(notes: &[Note]) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, note) in notes.iter().enumerate() {
        match note {
            Note::Text(text) => lines.push(text.clone()),
            Note::File(kind, _) => {
                let is_kin = |note: &&Note| matches!(note, Note::File(other, _) if other == kind);
                if notes[..index].iter().any(|note| is_kin(&note)) {
                    continue;
                }
                let kin = notes.iter().filter(is_kin);
                let files: Vec<&File> =
                    kin.filter_map(|note| if let Note::File(_, file) = note { Some(file) } else { None }).collect();
                lines.push(line(kind, &files));
            }
        }
    }
    lines
}

/// Returns a message on parts of the debug information that other files have.
fn parts(object: &Object) -> Option<String> {
    let live = object.live.as_ref().and_then(|live| live.debug.as_ref()?.as_ref());
    let mut missing = live.map(|debug| debug.missing()).unwrap_or_default();
    // What was missing at the end of the recording may exist now.
    let still = object.saved.missing.iter().filter(|file| !std::path::Path::new(file).exists());
    missing.extend(still.cloned());
    missing.sort();
    missing.dedup();
    let (first, more) = (missing.first()?, missing.len() - 1);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let path = &object.path;
    Some(format!(
        "part of the debug information of {path} is missing: {first}{more}; lines and inlined functions of these parts are not shown"
    ))
}

/// Returns what the file of a module lacks.
fn file(object: &Object) -> Option<Note> {
    let Lacks { names, lines, why } = &object.lacks;
    let what = match (names, lines) {
        (true, _) => "symbols",
        (false, true) => "source lines",
        (false, false) => return None,
    };
    let named = |bytes: &[u8]| match bytes {
        [] => "no build-id".to_string(),
        bytes => format!("build-id {}", hexadecimal(bytes)),
    };
    let other = if let Some(Why::Another(other)) = why { Some(named(other)) } else { None };
    let kind = match why {
        // Signal handlers return through `__restore_rt`, coroutines begin in `__start_context`.
        None if object.live.as_ref().is_some_and(|live| live.has_symbols) => Kind::Unnamed,
        None => Kind::Stripped,
        Some(Why::Unreadable) => {
            Kind::Lost { what, why: "the file is gone or cannot be read", why_many: "that are gone or cannot be read" }
        }
        Some(Why::Another(_)) => {
            let why = "the file there is not the file that was recorded";
            Kind::Lost { what, why, why_many: "in whose place others are now" }
        }
        Some(Why::Changed) => {
            let why = "the file there is not the file that was recorded, or was changed since";
            Kind::Lost { what, why, why_many: "that were replaced or changed" }
        }
    };
    let path = if object.path.is_empty() { "a file of unknown name" } else { &object.path };
    let file = File { path: path.to_string(), identity: named(&object.module.build_id), other };
    Some(Note::File(kind, file))
}

/// Returns the message on files of one kind. One file has its whole path, several their names.
fn line(kind: &Kind, files: &[&File]) -> String {
    let names: Vec<&str> = files.iter().map(|file| file.path.rsplit('/').next().unwrap_or_default()).collect();
    let count = names.len();
    let more = if count > MOST { format!(" and {} more", count - MOST) } else { String::new() };
    let names = format!("{}{more}", names[..count.min(MOST)].join(", "));
    match (kind, files) {
        (Kind::Stripped, [File { path, .. }]) => {
            format!(
                "no symbols for some functions of {path}: the file is stripped; install its debug symbols, or use --debuginfod"
            )
        }
        (Kind::Stripped, _) => {
            format!(
                "no symbols for some functions of {count} stripped files ({names}); install their debug symbols, or use --debuginfod"
            )
        }
        (Kind::Unnamed, [File { path, .. }]) => {
            format!(
                "no symbols for some functions of {path}: its symbol table lacks them, as is usual for hand-written assembly"
            )
        }
        (Kind::Unnamed, _) => {
            format!(
                "no symbols for some functions of {count} files ({names}): their symbol tables lack them, as is usual for hand-written assembly"
            )
        }
        (Kind::Lost { what, why, .. }, [File { path, identity, other }]) => {
            let other = other.as_ref().map(|other| format!(" ({other})")).unwrap_or_default();
            format!("no {what} for {path} ({identity}): {why}{other}; {RECORDED_FILES}")
        }
        (Kind::Lost { what, why_many, .. }, _) => {
            format!("no {what} for {count} files {why_many} ({names}); {RECORDED_FILES}")
        }
    }
}

const RECORDED_FILES: &str = "use --sysroot DIR with the recorded files, or --debuginfod, or record again";

/// Messages of dropped symbolizers that no report has shown.
static UNSHOWN: Mutex<Vec<Note>> = Mutex::new(Vec::new());

/// Keeps messages for the end of the command.
pub(super) fn keep(notes: Vec<Note>) {
    let mut unshown = UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for note in notes {
        add(&mut unshown, note);
    }
}

/// Returns the messages on missing names that the report itself has not shown.
pub fn unshown() -> Vec<String> {
    lines(&std::mem::take(&mut *UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: Kind, path: &str) -> Note {
        Note::File(kind, File { path: path.into(), identity: "build-id 12".into(), other: None })
    }

    #[test]
    fn files_with_one_remedy_are_one_line() {
        let mut notes = Vec::new();
        for name in ["a", "b", "c", "a", "d", "e", "f", "g"] {
            add(&mut notes, file(Kind::Stripped, &format!("/usr/bin/{name}")));
        }
        add(&mut notes, file(Kind::Unnamed, "/lib/libm.so"));
        let found = lines(&notes);
        let stripped = "no symbols for some functions of 7 stripped files (a, b, c, d, e and 2 more); install their debug symbols, \
                        or use --debuginfod";
        assert_eq!(found[0], stripped);
        assert!(found[1].contains("/lib/libm.so: its symbol table lacks them"), "{found:?}");
        assert_eq!(found.len(), 2);
    }
}
