//! The table ALLOCATION BINS: blocks by exact size.

use super::cells::{percent, percent_or_zero};
use super::{Amount, Totals};
use heaptape_formats::mptl::Bins;
use std::io::{self, Write};

/// Returns the sums over all bins. mprof uses these totals for the other tables as well.
pub(super) fn totals(bins: &Bins) -> Totals {
    let allocated = sum(&bins.allocated, bins.allocated_big);
    Totals { allocated, unfreed: allocated.minus(&sum(&bins.freed, bins.freed_big)) }
}

fn sum(bins: &[u64], big: u64) -> Amount {
    let mut all = Amount::default();
    for (index, _) in bins.iter().enumerate() {
        let amount = amount(bins, big, index);
        all.count += amount.count;
        all.bytes += amount.bytes;
    }
    all
}

fn amount(bins: &[u64], big: u64, index: usize) -> Amount {
    let count = i128::from(bins[index]);
    let bytes = if index + 1 == bins.len() { i128::from(big) } else { count * (index as i128 + 1) };
    Amount { count, bytes }
}

/// Prints the table of allocation bins.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(bins: &Bins, totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
    let number = bins.allocated.len();
    write!(
        out,
        "                                ALLOCATION BINS\n\n                             (number of bins: {number})\n\n\
        \x20                    allocated                          unfreed\n\
        \x20         --------------------------------  --------------------------------\n\
        \x20   size   count       %     bytes       %   count       %     bytes       %\n\n"
    )?;
    let mut rows = 0;
    for index in 0..number.min(bins.freed.len()) {
        let allocated = amount(&bins.allocated, bins.allocated_big, index);
        let unfreed = allocated.minus(&amount(&bins.freed, bins.freed_big, index));
        if allocated.count == 0 {
            continue;
        }
        rows += 1;
        let mark = if index + 1 == number { ">=" } else { "  " };
        write!(out, " {mark} {:4}", index + 1)?;
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
