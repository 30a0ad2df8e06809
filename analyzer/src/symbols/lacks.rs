//! Messages on names that the files of a module do not contain: which module, why, and what would
//! help.

use super::Object;
use super::files::{Why, hexadecimal};
use std::sync::{Mutex, PoisonError};

/// Maximum number of modules that are reported one by one.
const MOST: usize = 8;

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

/// Returns a message for each module whose names are missing.
pub(super) fn lines(objects: &[Object]) -> Vec<String> {
    let mut lines: Vec<String> = objects.iter().filter_map(line).collect();
    let more = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    if more > 0 {
        lines.push(format!("no symbols for {more} more modules"));
    }
    lines.extend(objects.iter().filter_map(parts).take(MOST));
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

fn line(object: &Object) -> Option<String> {
    let Lacks { names, lines, why } = &object.lacks;
    let what = match (names, lines) {
        (true, _) => "symbols",
        (false, true) => "source lines",
        (false, false) => return None,
    };
    let path = &object.path;
    let identity = match &object.module.build_id[..] {
        [] => "no build-id".to_string(),
        bytes => format!("build-id {}", hexadecimal(bytes)),
    };
    let found = match why {
        None => {
            let found = match object.live.as_ref().is_some_and(|live| live.has_symbols) {
                // Signal handlers return through `__restore_rt`, coroutines begin in `__start_context`.
                true => "its symbol table does not have them, as is usual for hand-written assembly",
                false => "the file is stripped; install its debug symbols, or use --debuginfod",
            };
            return Some(format!("no symbols for some functions of {path} ({identity}): {found}"));
        }
        Some(Why::Unreadable) => "the file is gone or cannot be read".to_string(),
        Some(Why::Another(other)) if other.is_empty() => {
            "the file there is not the file that was recorded (no build-id)".to_string()
        }
        Some(Why::Another(other)) => {
            format!("the file there is not the file that was recorded (build-id {})", hexadecimal(other))
        }
        Some(Why::Changed) => "the file there is not the file that was recorded, or was changed since".to_string(),
    };
    let help = "use --sysroot DIR with the recorded files, or --debuginfod, or record again";
    Some(format!("no {what} for {path} ({identity}): {found}; {help}"))
}

/// Messages of dropped symbolizers that no report has shown.
static UNSHOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps messages for the end of the command.
pub(super) fn keep(lines: Vec<String>) {
    let mut unshown = UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for line in lines {
        if !unshown.contains(&line) {
            unshown.push(line);
        }
    }
}

/// Returns the messages on missing names, by module, that the report itself has not shown.
pub fn unshown() -> Vec<String> {
    std::mem::take(&mut UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner))
}
