//! How the memory that the programs mapped themselves changed. It is beside the blocks, and in none
//! of their sums.

use super::Options;
use super::side::Measurement;
use super::text::{relative, signed};
use crate::text::{Screen, bytes, count};
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::io;

/// Default number of rows.
const TOP: usize = 5;

/// A change of what a call site has mapped, without memory that is only reserved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MappedChange {
    /// Names of the functions that the site is matched by, innermost first.
    pub functions: Vec<String>,
    /// Bytes on side A.
    pub a: f64,
    /// Bytes on side B.
    pub b: f64,
    /// Difference between B and A.
    pub delta: f64,
}

/// Returns the changes between two sides, each of some runs, beyond the noise; largest first. Each
/// side is multiplied by its factor.
pub(super) fn changes(
    a: &[Measurement],
    b: &[Measurement],
    [scale_a, scale_b]: [f64; 2],
    options: &Options,
) -> Vec<MappedChange> {
    let names: FxHashSet<&Vec<String>> = a.iter().chain(b).flat_map(|run| run.mapped.keys()).collect();
    let mean = |runs: &[Measurement], of: &dyn Fn(&Measurement) -> u64| {
        runs.iter().map(|run| of(run) as f64).sum::<f64>() / runs.len().max(1) as f64
    };
    let sum = |run: &Measurement| run.mapped.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let whole = (mean(a, &sum) * scale_a).max(mean(b, &sum) * scale_b);
    let mut found = Vec::new();
    for functions in names {
        let of = |run: &Measurement| run.mapped.get(functions).copied().unwrap_or(0);
        let (a, b) = (mean(a, &of) * scale_a, mean(b, &of) * scale_b);
        let delta = b - a;
        if delta.abs() > (options.noise * a.max(b)).max(options.min_share * whole) {
            found.push(MappedChange { functions: functions.clone(), a, b, delta });
        }
    }
    found.sort_by(|x, y| y.delta.abs().total_cmp(&x.delta.abs()).then_with(|| x.functions.cmp(&y.functions)));
    found
}

/// Prints the largest changes. JSON has all.
pub(super) fn print(changes: &[MappedChange], options: &Options, screen: &mut Screen) -> io::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let sum: f64 = changes.iter().map(|change| change.delta).sum();
    screen.line(&format!("mapped by the program itself: {} (no blocks)", signed(sum, bytes)))?;
    let rows = changes.iter().take(options.top.unwrap_or(TOP)).map(|change| {
        let [before, after] = [change.a, change.b].map(|value| bytes(value.round() as u64));
        vec![signed(change.delta, bytes), relative(change.a, change.b), before, after, change.functions.join(" < ")]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    screen.table(&["change", "", "before", "after", "mapped at"], &rows)?;
    if changes.len() > rows.len() {
        screen.line(&format!("and {} more (--json)", count((changes.len() - rows.len()) as u64)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rows: &[(&str, u64)]) -> Measurement {
        let mapped = rows.iter().map(|(name, bytes)| (vec![(*name).to_owned()], *bytes)).collect();
        Measurement { mapped, ..Measurement::default() }
    }

    #[test]
    fn changes_are_those_of_the_means_without_noise() {
        let a = [run(&[("same", 1 << 20), ("gone", 8192), ("grew", 4096)])];
        let b = [run(&[("same", (1 << 20) + 4096), ("grew", 12288)]), run(&[("same", 1 << 20), ("grew", 20480)])];
        let found = changes(&a, &b, [1.0, 1.0], &Options::default());
        let rows: Vec<_> = found.iter().map(|change| (&*change.functions[0], change.a, change.b)).collect();
        assert_eq!(rows, [("grew", 4096.0, 16384.0), ("gone", 8192.0, 0.0)]);
        assert!(changes(&a, &a, [1.0, 1.0], &Options::default()).is_empty());
    }
}
