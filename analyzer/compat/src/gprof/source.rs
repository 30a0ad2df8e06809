//! Execution counts, and the annotated source.

use super::specs::Selection;
use super::view::View;
use std::collections::BTreeMap;
use std::io::{Result, Write};
use std::path::PathBuf;

/// Returns the basic blocks (address and count) by the symbol that contains them, sorted by
/// address.
fn blocks(view: &View<'_>) -> BTreeMap<usize, Vec<(u64, u64)>> {
    let mut found: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    if view.options.lines {
        for block in &view.union.blocks {
            if let Some(index) = view.table.at(block.address) {
                found.entry(index).or_default().push((block.address, block.count));
            }
        }
    }
    found.values_mut().for_each(|blocks| blocks.sort_unstable());
    found
}

/// Sorts as the C library's `qsort` does: by merging halves. gprof compares symbols by file and line
/// if both have one, else by address, which is no order: what comes out depends on the pairs that
/// are compared.
fn merge_sorted(mut items: Vec<usize>, is_later: &dyn Fn(usize, usize) -> bool) -> Vec<usize> {
    if items.len() < 2 {
        return items;
    }
    let second = merge_sorted(items.split_off(items.len() / 2), is_later);
    let mut first = merge_sorted(items, is_later).into_iter().peekable();
    let mut second = second.into_iter().peekable();
    let mut merged = Vec::with_capacity(first.len() + second.len());
    while let (Some(&left), Some(&right)) = (first.peek(), second.peek()) {
        merged.extend(if is_later(left, right) { second.next() } else { first.next() });
    }
    merged.extend(first.chain(second));
    merged
}

/// Prints how often each function was executed, and each basic block if lines are profiled.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print_counts(
    view: &View<'_>,
    selected: &Selection,
    excluded: &Selection,
    out: &mut dyn Write,
) -> Result<()> {
    let blocks = blocks(view);
    let table = &view.table;
    let listed = |index: &usize| selected.has(*index) || selected.is_empty() && !excluded.has(*index);
    let sorted = merge_sorted((0..table.symbols.len()).filter(listed).collect(), &|left, right| {
        let location = |index: usize| Some((table.file(index)?, table.symbols[index].source?.1));
        let is_later = |(left, right)| left > right;
        location(left).zip(location(right)).filter(|(left, right)| left != right).map_or(left > right, is_later)
    });
    let location = |index: usize| (table.file(index), table.symbols[index].source.map(|(_, line)| line));
    for index in sorted {
        let symbol = &table.symbols[index];
        let entry = std::iter::once((symbol.address, view.node(index).calls));
        let min_count = view.options.min_count.max(u64::from(!view.options.unused));
        for (address, count) in entry.chain(blocks.get(&index).into_iter().flatten().copied()) {
            if count >= min_count {
                let (file, line) = (location(index).0.unwrap_or("<unknown>"), location(index).1.unwrap_or_default());
                writeln!(out, "{file}:{line}: ({}:{address:#x}) {count} executions", symbol.name)?;
            }
        }
    }
    Ok(())
}

/// The counts of a source line.
#[derive(Default)]
struct Line {
    /// Calls of the functions that start in the line.
    calls: u64,
    /// Whether a function starts at the first address of the line. As in gprof, a line that begins
    /// inside another function, where it is inlined, counts as none.
    is_entry: bool,
    /// First address of the line.
    address: u64,
    /// Address and count of each basic block.
    blocks: Vec<(u64, u64)>,
}

/// Prints each source file with the counts of its lines. `page` starts the listing. A file that
/// cannot be found is reported to `err` and skipped.
///
/// # Errors
/// Returns an error if a source file cannot be read, or if writing fails.
pub(super) fn print_annotated(
    view: &View<'_>,
    selected: &Selection,
    excluded: &Selection,
    page: &mut dyn FnMut(&mut dyn Write) -> Result<()>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<()> {
    let mut blocks = blocks(view);
    let mut files: BTreeMap<usize, BTreeMap<u32, Line>> = BTreeMap::new();
    for (index, symbol) in view.table.symbols.iter().enumerate() {
        let Some((file, number)) = symbol.source else { continue };
        if !(selected.has(index) || selected.is_empty() && !excluded.has(index)) {
            continue;
        }
        let line = files.entry(file).or_default().entry(number).or_insert_with(|| Line {
            address: symbol.address,
            is_entry: symbol.is_function,
            ..Line::default()
        });
        line.calls = line.calls.wrapping_add(view.node(index).calls);
        line.blocks.extend(blocks.remove(&index).unwrap_or_default());
    }
    let mut first = true;
    for (&file, lines) in files.iter().rev() {
        let calls: u64 = lines.values().fold(0, |sum, line| sum.wrapping_add(line.calls));
        if calls == 0 && !view.options.unused {
            continue;
        }
        let path = &view.table.files[file];
        let Some(found) = find(path, &view.options.directories) else {
            writeln!(err, "gprof: could not locate `{path}'")?;
            continue;
        };
        let text = std::fs::read(&found)?;
        if view.options.separate_files {
            let name = path.rsplit('/').next().unwrap_or(path);
            let mut annotated = std::io::BufWriter::new(std::fs::File::create(format!("{name}-ann"))?);
            annotate(view, &text, lines, calls, &mut annotated)?;
            annotated.flush()?;
            continue;
        }
        if std::mem::take(&mut first) {
            page(out)?;
        } else {
            write!(out, "\n\x0c\n")?;
        }
        writeln!(out, "*** File {path}:")?;
        annotate(view, &text, lines, calls, out)?;
    }
    Ok(())
}

/// Returns the path of a source file: the path itself, or a file of the same name in one of the
/// directories.
fn find(path: &str, directories: &[String]) -> Option<PathBuf> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let unchanged = [PathBuf::from(path), PathBuf::from(name)].into_iter();
    let in_directories = directories.iter().flat_map(|directory| {
        let directory = PathBuf::from(directory);
        [directory.join(path.trim_start_matches('/')), directory.join(name)]
    });
    unchanged.chain(in_directories).find(|path| path.is_file())
}

/// Prints the text of a source file with its counts, the most executed lines and a summary.
fn annotate(view: &View<'_>, text: &[u8], lines: &BTreeMap<u32, Line>, calls: u64, out: &mut dyn Write) -> Result<()> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let (mut executable, mut executed, mut last) = (0u32, 0u32, 0);
    for (number, source) in (1u32..).zip(text.split(|&byte| byte == b'\n')) {
        let mut note = String::new();
        if let Some(line) = lines.get(&number) {
            executable += 1;
            if let Some(counts) = counts(line, view.options.all_lines, &mut last) {
                executed += 1;
                let sum: u64 = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
                let shown: Vec<String> = counts.iter().map(u64::to_string).collect();
                note = if sum == 0 { "#####".to_owned() } else { shown.join(",") };
            }
        }
        let arrow = if note.is_empty() { "    " } else { " -> " };
        write!(out, "{note:>12}{arrow}")?;
        out.write_all(source)?;
        writeln!(out)?;
    }
    let mut most_executed: Vec<(u32, u64)> =
        lines.iter().map(|(&number, line)| (number, line.calls)).filter(|line| line.1 > 0).collect();
    most_executed.sort_by_key(|&(_, calls)| std::cmp::Reverse(calls));
    if view.options.table_length > 0 {
        write!(out, "\n\nTop {} Lines:\n\n     Line      Count\n\n", view.options.table_length)?;
        for (number, calls) in most_executed.iter().take(view.options.table_length) {
            writeln!(out, "{number:9} {calls:10}")?;
        }
    }
    write!(out, "\nExecution Summary:\n\n")?;
    writeln!(out, "{executable:9}   Executable lines in this file")?;
    writeln!(out, "{executed:9}   Lines executed")?;
    let per_line = |total: f64| if executable == 0 { 100.0 } else { total / f64::from(executable) };
    writeln!(out, "{:9.2}   Percent of the file executed", per_line(100.0 * f64::from(executed)))?;
    writeln!(out, "\n{calls:9}   Total number of line executions")?;
    writeln!(out, "{:9.2}   Average executions per line", if executable == 0 { 0.0 } else { per_line(calls as f64) })
}

/// Returns the counts of a line: the calls of the function that starts there, then its basic
/// blocks. Returns `None` if nothing is known. With `all`, adjacent equal counts are merged, and a
/// line without counts has the count of the line before.
fn counts(line: &Line, all: bool, last: &mut u64) -> Option<Vec<u64>> {
    let mut counts = Vec::new();
    if line.is_entry {
        counts.push(line.calls);
    } else if all && line.blocks.first().is_some_and(|block| block.0 > line.address) {
        counts.push(*last);
    }
    for &(_, count) in &line.blocks {
        if !(all && counts.last() == Some(&count)) {
            counts.push(count);
        }
    }
    if all && counts.is_empty() {
        counts.push(*last);
    }
    *last = counts.last().copied().unwrap_or(*last);
    (!counts.is_empty()).then_some(counts)
}
