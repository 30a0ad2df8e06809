//! The source lines around the frames of a page, for `--with-source`. A page is often mailed, so no
//! source is in it unless asked for.

use super::names::Names;
use super::pack::safe;
use crate::source_files::read_unchanged;
use std::collections::BTreeMap;
use std::path::Path;

/// Number of lines before and after the line of a frame.
const AROUND: u32 = 6;
/// Maximum number of characters of a line.
const WIDTH: usize = 200;
/// Maximum number of lines of a page.
const LINES: usize = 20_000;

/// Pieces of a file: the number of the first line of each, and its lines.
type Pieces = Vec<(u32, Vec<String>)>;

/// Returns the lines around the program's frames, of files that are there and have not changed
/// since `started_unix_ns`.
pub(super) fn read(names: &Names, sysroot: Option<&Path>, started_unix_ns: u64) -> BTreeMap<String, Pieces> {
    let mut found = BTreeMap::new();
    let mut left = LINES;
    for (path, lines) in names.program_lines() {
        let Some(file) = read_unchanged(path, sysroot, started_unix_ns) else { continue };
        let text: Vec<&str> = file.text.lines().collect();
        let pieces = pieces(lines.into_iter(), &text, &mut left);
        if !pieces.is_empty() {
            found.insert(path.to_string(), pieces);
        }
    }
    found
}

/// Returns the pieces of a file around lines, which ascend. Pieces that touch are one.
fn pieces(lines: impl Iterator<Item = u32>, text: &[&str], left: &mut usize) -> Pieces {
    let mut found: Pieces = Vec::new();
    for line in lines.filter(|line| *line as usize <= text.len()) {
        let next = found.last().map_or(1, |(first, piece)| first + piece.len() as u32);
        let first = line.saturating_sub(AROUND).max(1);
        let last = line.saturating_add(AROUND).min(text.len() as u32);
        let shown = |number: u32| safe(&text[number as usize - 1].chars().take(WIDTH).collect::<String>());
        let added: Vec<String> = (first.max(next)..=last).map(shown).take(*left).collect();
        *left -= added.len();
        match found.last_mut() {
            Some((_, piece)) if first <= next => piece.extend(added),
            _ if added.is_empty() => {}
            _ => found.push((first, added)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_around_lines_and_never_overlap() {
        let text: Vec<String> = (1..=100).map(|number| format!("line {number}")).collect();
        let text: Vec<&str> = text.iter().map(String::as_str).collect();
        let mut left = LINES;
        let shown = |lines: &[u32], left: &mut usize| -> Vec<(u32, usize)> {
            pieces(lines.iter().copied(), &text, left).iter().map(|(first, piece)| (*first, piece.len())).collect()
        };
        assert_eq!(shown(&[3], &mut left), [(1, 9)]);
        assert_eq!(shown(&[20, 22, 33], &mut left), [(14, 26)]);
        assert_eq!(shown(&[20, 50, 99], &mut left), [(14, 13), (44, 13), (93, 8)]);
        assert_eq!(shown(&[101, u32::MAX], &mut left), []);
        left = 20;
        assert_eq!(shown(&[20, 50, 99], &mut left), [(14, 13), (44, 7)]);
        assert_eq!(left, 0);
        let piece = &pieces([50].into_iter(), &text, &mut LINES.clone())[0];
        assert_eq!((piece.1[0].as_str(), piece.1[12].as_str()), ("line 44", "line 56"));
    }
}
