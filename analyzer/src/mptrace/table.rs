//! The table of events and the statistics, in the format of mptrace.

use super::{Count, Totals};
use crate::text::clean_name;
use heaptape_formats::mtrc::Location;
use std::io::{self, Write};

fn digits(address_bytes: u8) -> usize {
    if address_bytes == 4 { 8 } else { 16 }
}

/// Prints the header of the table.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn header(address_bytes: u8, out: &mut dyn Write) -> io::Result<()> {
    let width = digits(address_bytes) + 2;
    writeln!(out, " event  type     index  {:^width$}      size    life   count     bytes", "allocation")?;
    writeln!(out, "------  ------  ------  {:-<width$}  --------  ------  ------  --------", "")
}

/// Prints a row for memory that the library took from the system.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn system(address_bytes: u8, what: &str, address: u64, size: u64, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "        {what:16}0x{address:0digits$X}  {size:8}", digits = digits(address_bytes))
}

/// A row of the table: one event of a block.
pub(super) struct Row<'a> {
    pub event: u64,
    /// Name of the operation.
    pub what: &'a str,
    /// Allocation index of the block.
    pub index: u64,
    pub address: u64,
    /// Size of the block in bytes.
    pub size: u64,
    /// For a free, the number of events since the block's allocation.
    pub life: Option<u64>,
}

/// Prints a row. `live` are the live blocks after the event.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn event(address_bytes: u8, row: &Row, live: Count, out: &mut dyn Write) -> io::Result<()> {
    let Row { event, what, index, address, size, life } = *row;
    write!(out, "{event:6}  {what:7} {index:6}  0x{address:0digits$X}  {size:8}  ", digits = digits(address_bytes))?;
    match life {
        Some(life) => write!(out, "{life:6}")?,
        None => write!(out, "      ")?,
    }
    writeln!(out, "  {:6}  {:8}", live.blocks, live.bytes)
}

/// Prints what is known of the caller on a line of its own. Prints nothing if nothing is known.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn source(location: &Location, out: &mut dyn Write) -> io::Result<()> {
    if location.thread == 0 && location.function.is_none() && (location.file.is_none() || location.line == 0) {
        return Ok(());
    }
    write!(out, "{:23}", "")?;
    if location.thread != 0 {
        write!(out, " thread {}", location.thread)?;
    }
    if let Some(function) = location.function {
        out.write_all(b" in ")?;
        out.write_all(clean_name(function).as_bytes())?;
    }
    if let Some(file) = location.file.filter(|_| location.line != 0) {
        out.write_all(b" at ")?;
        out.write_all(clean_name(file).as_bytes())?;
        write!(out, " line {}", location.line)?;
    }
    writeln!(out)
}

/// Prints the statistics of the trace.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn statistics(totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
    let Totals { allocated, freed, peak, reserved, internal, smallest, largest } = *totals;
    let total = Count { blocks: reserved.blocks + internal.blocks, bytes: reserved.bytes + internal.bytes };
    out.write_all(b"memory allocation tracing statistics\n------------------------------------\n")?;
    let rows = [
        ("allocated", allocated),
        ("freed", freed),
        ("unfreed", totals.live()),
        ("peak", peak),
        ("reserved", reserved),
        ("internal", internal),
        ("total", total),
    ];
    for (name, Count { blocks, bytes }) in rows {
        let name = format!("{name}:");
        writeln!(out, "{name:10} {blocks} ({bytes} {})", unit(bytes))?;
    }
    let average = average(allocated);
    writeln!(out, "\nsmallest size: {smallest} {}", unit(smallest.into()))?;
    writeln!(out, "largest size:  {largest} {}", unit(largest.into()))?;
    writeln!(out, "average size:  {average} {}", unit(average))
}

fn unit(bytes: u128) -> &'static str {
    if bytes == 1 { "byte" } else { "bytes" }
}

/// Returns the average size, rounded to the nearest integer, halves to the even one.
fn average(allocated: Count) -> u128 {
    let blocks = u128::from(allocated.blocks.max(1));
    let (quotient, twice_remainder) = (allocated.bytes / blocks, allocated.bytes % blocks * 2);
    quotient + u128::from(twice_remainder > blocks || twice_remainder == blocks && quotient % 2 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_to_even() {
        let average = |bytes, blocks| average(Count { blocks, bytes });
        assert_eq!([average(1, 2), average(3, 2), average(5, 2), average(7, 2)], [0, 2, 2, 4]);
        assert_eq!([average(5, 3), average(4, 3), average(0, 0)], [2, 1, 0]);
    }
}
