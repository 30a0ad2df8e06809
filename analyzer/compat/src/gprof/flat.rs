//! The flat profile: time and calls of each function, in descending order of time.

use super::view::{View, g};
use std::io::{Result, Write};

/// Unit prefixes of the per-call columns with their scales, from the largest.
const PREFIXES: [(char, f64); 11] = [
    ('T', 1e-12),
    ('G', 1e-9),
    ('M', 1e-6),
    ('K', 1e-3),
    (' ', 1.0),
    ('m', 1e3),
    ('u', 1e6),
    ('n', 1e9),
    ('p', 1e12),
    ('f', 1e15),
    ('a', 1e18),
];

/// The first line of the column headings. The second line has the units.
const HEADLINE: &str = "  %   cumulative   self              self     total           ";

/// Prints the flat profile.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let mut total = view.samples.total;
    if view.options.traditional {
        if !view.options.brief {
            write!(out, "\n\n\nflat profile:\n{}", include_str!("text/flat.txt"))?;
        }
        write!(out, "\ngranularity: each sample hit covers {} byte(s)", view.granularity())?;
        if total > 0.0 {
            write!(out, " for {:.2}% of {:.2} {}\n\n", 100.0 / total, view.unit(total), view.dimension())?;
        }
    } else {
        write!(out, "Flat profile:\n\nEach sample counts as {} {}.\n", g(1.0 / view.rate), view.dimension())?;
    }
    if total <= 0.0 {
        write!(out, " no time accumulated\n\n")?;
        total = 1.0;
    }
    let mut sorted: Vec<usize> = (0..view.table.symbols.len()).collect();
    sorted.sort_by(|&left, &right| {
        let (one, other) = (view.node(left), view.node(right));
        let by_time = other.time.total_cmp(&one.time).then(other.calls.cmp(&one.calls));
        by_time.then_with(|| view.table.symbols[left].name.as_bytes().cmp(view.table.symbols[right].name.as_bytes()))
    });
    let (prefix, scale) = if view.options.traditional { PREFIXES[5] } else { prefix(view) };
    let per_call = format!("{prefix}{}/call", view.abbreviation());
    let dimension = view.dimension();
    writeln!(out, "{HEADLINE}")?;
    writeln!(out, " time {dimension:>9.9}  {dimension:>8.8}    calls {per_call:>8.8} {per_call:>8.8}  name    ")?;
    let mut sum = 0.0;
    for index in sorted {
        let node = view.node(index);
        let is_selected = view.flat.has(index) || (view.flat.is_empty() && !view.no_flat.has(index));
        if !is_selected || (!view.options.unused && node.calls == 0 && node.time == 0.0) {
            continue;
        }
        sum += node.time;
        let percent = 100.0 * node.time / total;
        if view.options.traditional {
            write!(out, "{percent:5.1} ")?;
        } else {
            write!(out, "{percent:6.2}")?;
        }
        write!(out, " {:9.2} {:8.2}", view.unit(sum), view.unit(node.time))?;
        if node.calls > 0 {
            let each = |time: f64| view.unit(scale * time) / node.calls as f64;
            write!(out, " {:8} {:8.2} {:8.2}  ", node.calls, each(node.time), each(node.time + node.child_time))?;
        } else {
            write!(out, "{:29}", "")?;
        }
        if view.options.traditional {
            writeln!(out, "{}", view.name(index))?;
        } else {
            writeln!(out, "{}", view.plain_name(index))?;
        }
    }
    if !view.options.brief && !view.options.traditional {
        write!(out, "{}", include_str!("text/flat.txt"))?;
    }
    Ok(())
}

/// Returns the prefix and scale with which the most expensive call is at least 1 and less than
/// 1,000.
fn prefix(view: &View<'_>) -> (char, f64) {
    let each = |index| {
        let node = view.node(index);
        if node.calls == 0 { 0.0 } else { view.unit((node.time + node.child_time) / node.calls as f64) }
    };
    let max = (0..view.table.symbols.len()).map(each).fold(0.0, f64::max);
    let fits = |(_, scale): &(char, f64)| (1.0..1000.0).contains(&(scale * max));
    let smallest = PREFIXES[PREFIXES.len() - 1];
    let largest = PREFIXES[0];
    PREFIXES.into_iter().find(fits).unwrap_or(if max > 0.0 && max < 1.0 { smallest } else { largest })
}
