//! The comparison as text.

use super::{Change, Comparison, Options, Values};
use crate::text::{Screen, bytes, count};
use std::io;

/// Default number of rows.
const TOP: usize = 20;

/// Formats a change with its sign.
fn signed(value: f64, shown: impl Fn(u64) -> String) -> String {
    match value.round() {
        0.0 => "0".into(),
        value if value < 0.0 => format!("-{}", shown(-value as u64)),
        value => format!("+{}", shown(value as u64)),
    }
}

/// Formats a change as a percentage of the old value.
fn relative(a: f64, b: f64) -> String {
    match (a, b) {
        (a, b) if a == b => "same".into(),
        (0.0, _) => "new".into(),
        (_, 0.0) => "gone".into(),
        (a, b) => format!("{:+.1}%", (b - a) * 100.0 / a),
    }
}

/// Prints the changes, and the sums of both sides.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(found: &Comparison, options: &Options, screen: &mut Screen) -> io::Result<()> {
    let whole = |name: &str, a: f64, b: f64, shown: fn(u64) -> String| {
        format!("{name} {} -> {} ({})", shown(a.max(0.0) as u64), shown(b.max(0.0) as u64), relative(a, b))
    };
    let Values { live_bytes, live_blocks, bytes: allocated, allocs } = found.a;
    let mut totals = vec![
        whole("live", live_bytes, found.b.live_bytes, bytes),
        whole("live blocks", live_blocks, found.b.live_blocks, count),
        whole("allocated", allocated, found.b.bytes, bytes),
        whole("allocations", allocs, found.b.allocs, count),
    ];
    if let Some((a, b)) = found.peak_bytes {
        totals.push(whole("peak", a, b, bytes));
    }
    screen.line(&totals.join("; "))?;
    if (found.scale - 1.0).abs() > 1e-9 {
        screen.line(&format!("B is multiplied by {:.4}", found.scale))?;
    }
    if found.changes.is_empty() {
        return screen.line(&format!("nothing changed beyond the noise, at {} sites", count(found.quiet_sites)));
    }
    let top = options.top.unwrap_or(TOP);
    let rows: Vec<Vec<String>> = found.changes.iter().take(top).map(row).collect();
    screen.table(&["live", "", "allocated", "", "allocations", "", "site"], &rows)?;
    if found.changes.len() > top {
        screen.line(&format!("and {} more changed sites (--top N)", count((found.changes.len() - top) as u64)))?;
    }
    screen.line(&format!("{} sites did not change beyond the noise", count(found.quiet_sites)))
}

/// Formats a change on one line, for a report without a table.
pub fn change_line(change: &Change) -> String {
    let Change { delta, .. } = change;
    let (live, blocks) = (signed(delta.live_bytes, bytes), signed(delta.live_blocks, count));
    let (allocated, allocs) = (signed(delta.bytes, bytes), signed(delta.allocs, count));
    format!("{live} live in {blocks} blocks, {allocated} allocated in {allocs} allocations: {}", site(change))
}

/// Formats the site of a change: the innermost function with its line, or with the number of lines
/// that it sums up, then its callers.
fn site(change: &Change) -> String {
    let location = match (&change.file, change.line) {
        (Some(file), Some(line)) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            if change.lines > 1 { format!(" {file} ({} lines)", change.lines) } else { format!(" {file}:{line}") }
        }
        _ => String::new(),
    };
    let mut names = change.functions.iter();
    let mut site = names.next().cloned().unwrap_or_default() + &location;
    names.for_each(|name| site += &format!(" < {name}"));
    site
}

fn row(change: &Change) -> Vec<String> {
    let Change { a, b, delta, .. } = change;
    vec![
        signed(delta.live_bytes, bytes),
        relative(a.live_bytes, b.live_bytes),
        signed(delta.bytes, bytes),
        relative(a.bytes, b.bytes),
        signed(delta.allocs, count),
        relative(a.allocs, b.allocs),
        site(change),
    ]
}
