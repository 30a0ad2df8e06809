//! The source lines below the entries of the leak report.

use super::entries::Entry;
use crate::report::frames::{SourceLines, call_site};
use crate::source_files::{SourceFile, read_unchanged};
use crate::symbols::Symbolizer;
use std::path::Path;

/// Maximum number of lines of an entry.
const MAX_LINES: usize = 3;
/// Returns the source lines of an entry as text, with their numbers; none where the file is not
/// there, or was changed since the program ran.
pub(super) fn lines(entry: &Entry, symbols: &mut Symbolizer) -> Vec<String> {
    let process = entry.largest().process;
    let mut wanted = entry.lines.clone();
    if wanted.count() == 0 {
        wanted.add(&call_site(symbols, process.stacks(), entry.largest().site, 1).frame);
    }
    let started = process.about.started_unix_ns.max(1);
    text_of(&wanted, symbols.sysroot(), started)
}

fn text_of(wanted: &SourceLines, sysroot: Option<&Path>, started_unix_ns: u64) -> Vec<String> {
    let mut lines = Vec::new();
    let mut known: Option<(&str, Option<SourceFile>)> = None;
    for (file, number) in wanted.iter().take(MAX_LINES) {
        if known.as_ref().is_none_or(|(path, _)| *path != file) {
            known = Some((file, read_unchanged(file, sysroot, started_unix_ns)));
        }
        let Some((_, Some(source))) = &known else { continue };
        let line = source.text.lines().nth((number as usize).saturating_sub(1)).map(str::trim);
        lines.extend(
            line.filter(|line| !line.is_empty()).map(|line| format!("{number:>6}  {}", line.replace('\t', " "))),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::Frame;

    #[test]
    fn only_source_files_that_did_not_change_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let text = "int one;\n\tint two = 2;\n\n  \u{1b}[31mthree();\n";
        std::fs::write(path("a.c"), text).expect("a file");
        std::fs::write(path("secret"), text).expect("a file");
        std::fs::create_dir(path("folder.c")).expect("a folder");
        let of = |file: &str, lines: &[u32], started| {
            let mut wanted = SourceLines::default();
            for &line in lines {
                wanted.add(&Frame { file: Some(file.into()), line: Some(line), ..Frame::default() });
            }
            text_of(&wanted, None, started)
        };
        // What is no text stays in the line: the screen replaces it.
        let all = ["     1  int one;", "     2  int two = 2;", "     4  \u{1b}[31mthree();"];
        assert_eq!(of(&path("a.c"), &[2, 1, 4], u64::MAX), all);
        assert_eq!(of(&path("a.c"), &[1, 2, 4, 5, 6], u64::MAX), all);
        assert_eq!(of(&path("a.c"), &[3, 99, u32::MAX], u64::MAX), [""; 0]);
        for (file, started) in [(path("a.c"), 1), (path("secret"), u64::MAX), (path("folder.c"), u64::MAX)] {
            assert_eq!(of(&file, &[1], started), [""; 0], "{file}");
        }
        for file in ["/dev/zero", "/proc/self/environ", "/nowhere/a.c", ""] {
            assert_eq!(of(file, &[1], u64::MAX), [""; 0], "{file}");
        }
    }
}
