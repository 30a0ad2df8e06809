//! The marks in the state folder: named points in time, such as those of deploys.

use formats::recording::{MARKS, Mark};
use heaptape_recorder::os::{Durability, replace_file};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Maximum number of marks that are kept, the newest ones.
const MAX_MARKS: usize = 1000;

/// Adds a mark to those of a state folder. All users may read them.
pub(crate) fn add(state: &Path, mark: Mark) -> io::Result<()> {
    let path = state.join(MARKS);
    let mut marks = Mark::read_all(&std::fs::read_to_string(&path).unwrap_or_default());
    marks.push(mark);
    let first = marks.len().saturating_sub(MAX_MARKS);
    let mut bytes = Vec::new();
    for mark in &marks[first..] {
        serde_json::to_writer(&mut bytes, mark)?;
        bytes.push(b'\n');
    }
    replace_file(&path, &bytes, None, Durability::BeforeRename)?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_marks_are_kept() {
        let state = tempfile::tempdir().expect("a folder");
        let read = || Mark::read_all(&std::fs::read_to_string(state.path().join(MARKS)).unwrap_or_default());
        let mark = |number: u64| Mark { name: format!("deploy \"{number}\""), unix_ns: number };
        let all: Vec<Mark> = (0..MAX_MARKS as u64).map(mark).collect();
        let lines: Vec<String> = all.iter().map(|mark| serde_json::to_string(mark).expect("a line")).collect();
        std::fs::write(state.path().join(MARKS), lines.join("\n") + "\nnot a mark\n").expect("the file");
        assert_eq!(read(), all);
        add(state.path(), mark(5000)).expect("one more");
        assert_eq!((read().len(), read()[0].clone(), read().pop()), (MAX_MARKS, mark(1), Some(mark(5000))));
    }
}
