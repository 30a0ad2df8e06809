//! Histogram bins -> time of each symbol. A bin is divided among the symbols it covers, in units of 2 bytes, gprof's unit:
//! symbols begin at their address rounded down to it.

use super::symbols::Table;
use heaptape_formats::gmon::{Sum, Union};

/// Bytes of a unit.
const UNIT: u64 = 2;

/// What was charged, in samples.
#[derive(Debug, Default)]
pub struct Samples {
    /// For each symbol.
    pub times: Vec<f64>,
    /// All samples, those of no symbol included, those of excluded symbols not.
    pub total: f64,
}

/// Charges all bins to the symbols that `counts` accepts.
pub fn assign(table: &Table, union: &Union, counts: impl Fn(usize) -> bool) -> Samples {
    let mut samples = Samples { times: vec![0.0; table.symbols.len()], total: 0.0 };
    let starts: Vec<u64> = table.symbols.iter().map(|symbol| symbol.address / UNIT).collect();
    let end = table.symbols.last().map_or(0, |last| last.last.saturating_add(1) / UNIT);
    for sum in &union.sums {
        assign_one(&mut samples, sum, &starts, end, &counts);
    }
    samples
}

fn assign_one(samples: &mut Samples, sum: &Sum, starts: &[u64], end: u64, counts: &impl Fn(usize) -> bool) {
    let scale = units_per_bin(sum);
    let low = sum.low / UNIT;
    if sum.high <= sum.low {
        // A range that has no addresses.
        samples.total += sum.bins.iter().map(|&bin| bin as f64).sum::<f64>();
        return;
    }
    for (index, &bin) in sum.bins.iter().enumerate().filter(|(_, bin)| **bin > 0) {
        let bin_low = low.saturating_add((scale * index as f64) as u64);
        let bin_high = low.saturating_add((scale * (index + 1) as f64) as u64);
        // A bin narrower than a unit goes wholly to the symbol there, where gprof counts some twice and others not at all.
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
            if counts(symbol) {
                samples.times[symbol] += credit;
            } else {
                samples.total -= credit;
            }
        }
    }
}

/// Units that a bin covers; not whole in general.
pub fn units_per_bin(sum: &Sum) -> f64 {
    (sum.high.saturating_sub(sum.low) / UNIT) as f64 / sum.bins.len() as f64
}
