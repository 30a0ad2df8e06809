//! Assigns the samples of histogram bins to symbols. A bin is divided among the symbols that it
//! covers, in gprof's units of 2 bytes. The start of a symbol is its address rounded down to a
//! unit.

use super::symbols::Table;
use heaptape_formats::gmon::{Sum, Union};

/// Size of a unit in bytes.
const UNIT: u64 = 2;

#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Samples of each symbol.
    pub times: Vec<f64>,
    /// Sum of all samples, including those outside all symbols, excluding those of excluded
    /// symbols.
    pub total: f64,
}

/// Assigns all bins to the symbols for which `is_included` returns true.
pub(super) fn assign(table: &Table, union: &Union, is_included: impl Fn(usize) -> bool) -> Samples {
    let mut samples = Samples { times: vec![0.0; table.symbols.len()], total: 0.0 };
    let starts: Vec<u64> = table.symbols.iter().map(|symbol| symbol.address / UNIT).collect();
    let end = table.symbols.last().map_or(0, |last| last.last.saturating_add(1) / UNIT);
    for sum in &union.sums {
        assign_one(&mut samples, sum, &starts, end, &is_included);
    }
    samples
}

fn assign_one(samples: &mut Samples, sum: &Sum, starts: &[u64], end: u64, is_included: &impl Fn(usize) -> bool) {
    let scale = units_per_bin(sum);
    let low = sum.low / UNIT;
    if sum.high <= sum.low {
        // The range contains no addresses.
        samples.total += sum.bins.iter().map(|&bin| bin as f64).sum::<f64>();
        return;
    }
    for (index, &bin) in sum.bins.iter().enumerate().filter(|(_, bin)| **bin > 0) {
        let bin_low = low.saturating_add((scale * index as f64) as u64);
        let bin_high = low.saturating_add((scale * (index + 1) as f64) as u64);
        // A bin smaller than a unit counts for the symbol at its start. gprof counts some of them
        // twice and others never.
        let (bin_high, scale) = if scale < 1.0 { (bin_low.saturating_add(1), 1.0) } else { (bin_high, scale) };
        let time = bin as f64;
        samples.total += time;
        let first = starts.partition_point(|&start| start <= bin_low).saturating_sub(1);
        for (symbol, &start) in starts.iter().enumerate().skip(first).take_while(|(_, start)| **start < bin_high) {
            let next = starts.get(symbol + 1).copied().unwrap_or(end);
            let overlap = next.min(bin_high).saturating_sub(start.max(bin_low));
            if overlap == 0 {
                continue;
            }
            let credit = overlap as f64 * time / scale;
            if is_included(symbol) {
                samples.times[symbol] += credit;
            } else {
                samples.total -= credit;
            }
        }
    }
}

/// Returns the number of units that a bin covers, in general not an integer.
pub(super) fn units_per_bin(sum: &Sum) -> f64 {
    (sum.high.saturating_sub(sum.low) / UNIT) as f64 / sum.bins.len() as f64
}
