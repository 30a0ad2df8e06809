//! What the files of a module could not tell, in words: which module, why, and what would help.

use super::Object;
use super::files::{Why, hexadecimal};
use std::sync::{Mutex, PoisonError};

/// Modules that are named one by one.
const MOST: usize = 8;

/// What a module's names lacked.
#[derive(Debug, Default)]
pub struct Lacks {
    /// A function of the program was looked up and has no name.
    pub names: bool,
    /// Lines that there were when it was recorded are not there any more.
    pub lines: bool,
    /// Why its own file is not there.
    pub why: Option<Why>,
}

/// A line for each module whose names are missing.
pub(super) fn lines(objects: &[Object]) -> Vec<String> {
    let mut lines: Vec<String> = objects.iter().filter_map(line).collect();
    let more = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    if more > 0 {
        lines.push(format!("no symbols for {more} more modules"));
    }
    lines
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
            let help = "install its debug symbols, or use --debuginfod";
            return Some(format!("no symbols for some functions of {path} ({identity}): the file is stripped; {help}"));
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

/// Lines of symbolizers that are gone, which nobody has shown.
static UNSHOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps lines for whoever ends the command.
pub(super) fn keep(lines: Vec<String>) {
    let mut unshown = UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for line in lines {
        if !unshown.contains(&line) {
            unshown.push(line);
        }
    }
}

/// What names the command lacked, module by module, as far as its own output did not show it.
pub fn unshown() -> Vec<String> {
    std::mem::take(&mut UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner))
}
