//! ALLOCATION BINS: blocks by exact size.

use super::cells::{percent, percent_or_zero};
use super::{Amount, Totals};
use heaptape_formats::mptl::Bins;
use std::io::{self, Write};

/// Sums over all bins: mprof takes its totals from here, also for the other tables.
pub fn totals(bins: &Bins) -> Totals {
    let allocated = sum(&bins.allocated, bins.allocated_big);
    Totals { allocated, unfreed: allocated.minus(&sum(&bins.freed, bins.freed_big)) }
}

fn sum(bins: &[u64], big: u64) -> Amount {
    let mut all = Amount::default();
    for (at, _) in bins.iter().enumerate() {
        let amount = amount(bins, big, at);
        all.count += amount.count;
        all.bytes += amount.bytes;
    }
    all
}

fn amount(bins: &[u64], big: u64, at: usize) -> Amount {
    let count = i128::from(bins[at]);
    let bytes = if at + 1 == bins.len() { i128::from(big) } else { count * (at as i128 + 1) };
    Amount { count, bytes }
}

pub fn print(bins: &Bins, totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
    let number = bins.allocated.len();
    write!(
        out,
        "                                ALLOCATION BINS\n\n                             (number of bins: {number})\n\n\
        \x20                    allocated                          unfreed\n\
        \x20         --------------------------------  --------------------------------\n\
        \x20   size   count       %     bytes       %   count       %     bytes       %\n\n"
    )?;
    let mut rows = 0;
    for at in 0..number.min(bins.freed.len()) {
        let allocated = amount(&bins.allocated, bins.allocated_big, at);
        let unfreed = allocated.minus(&amount(&bins.freed, bins.freed_big, at));
        if allocated.count == 0 {
            continue;
        }
        rows += 1;
        let mark = if at + 1 == number { ">=" } else { "  " };
        write!(out, " {mark} {:4}", at + 1)?;
        let count = percent(allocated.count, totals.allocated.count);
        let bytes = percent(allocated.bytes, totals.allocated.bytes);
        write!(out, "  {:6}  {count:6.2}  {:8}  {bytes:6.2}", allocated.count, allocated.bytes)?;
        let count = percent_or_zero(unfreed.count, totals.unfreed.count);
        let bytes = percent_or_zero(unfreed.bytes, totals.unfreed.bytes);
        writeln!(out, "  {:6}  {count:6.2}  {:8}  {bytes:6.2}", unfreed.count, unfreed.bytes)?;
    }
    if rows > 0 {
        writeln!(out)?;
    }
    let Totals { allocated, unfreed } = totals;
    writeln!(
        out,
        "   total  {:6}          {:8}          {:6}          {:8}",
        allocated.count, allocated.bytes, unfreed.count, unfreed.bytes
    )
}
