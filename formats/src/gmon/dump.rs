//! Dump of a file: one record per line, and of each histogram the bins that are not zero.

use std::io::{Result, Write};

use super::layout::*;

/// Prints every record of a file.
///
/// # Errors
///
/// When `out` fails.
pub fn dump(gmon: &Gmon, out: &mut impl Write) -> Result<()> {
    let abi = gmon.abi;
    writeln!(out, "endian {} ptr {}", if abi.big_endian { "big" } else { "little" }, abi.word_size)?;
    let sizes = Sizes::of(abi);
    let bins =
        gmon.histograms().next().map_or(0, |histogram| 2 * u64::from(histogram.size)) + u64::from(gmon.has_half_bin);
    match gmon.form {
        Form::Magic | Form::LdProfile => {
            write!(out, "header version {} spare ", gmon.version)?;
            gmon.spare.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
            writeln!(out)?;
        }
        Form::Bsd => {
            let header = sizes.bsd_header;
            writeln!(out, "format old bsd header_bytes {header} ncnt {}", header as u64 + bins)?;
        }
        Form::Bsd44 => {
            let header = sizes.bsd44_header;
            let ncnt = header as u64 + bins;
            writeln!(out, "format 4.4bsd version {:#x} header_bytes {header} ncnt {ncnt}", gmon.version)?;
        }
    }
    let (mut samples, mut arcs, mut calls) = (0u64, 0usize, 0u128);
    let mut linked = gmon.arcs();
    for record in &gmon.records {
        match record {
            Record::Histograms(run) => {
                for histogram in run.records(0) {
                    samples += dump_histogram(gmon.form, &histogram, out)?;
                }
            }
            Record::Arcs(run) => {
                arcs += run.len();
                for arc in linked.by_ref().take(run.len()) {
                    writeln!(out, "arc from {:#x} self {:#x} count {}", arc.from, arc.to, arc.count)?;
                    calls += u128::from(arc.count);
                }
            }
            Record::Blocks(blocks) => {
                writeln!(out, "bb entries {}", blocks.size)?;
                for block in &blocks.blocks {
                    writeln!(out, "block {:#x} {}", block.address, block.count)?;
                }
            }
        }
    }
    if matches!(gmon.form, Form::Magic | Form::LdProfile) {
        writeln!(out, "totals samples {samples} arcs {arcs} arc_count_sum {calls}")?;
    }
    for note in &gmon.notes {
        writeln!(out, "note {note}")?;
    }
    match gmon.truncation() {
        Some(truncation) => writeln!(out, "cut {truncation}"),
        None => Ok(()),
    }
}

fn dump_histogram(form: Form, histogram: &Histogram<'_>, out: &mut impl Write) -> Result<u64> {
    let total: u64 = histogram.bins.iter().map(|&bin| u64::from(bin)).sum();
    let hits = || histogram.bins.iter().enumerate().filter(|(_, bin)| **bin != 0);
    write!(out, "hist low {:#x} high {:#x} bins {} bytes_per_bin ", histogram.low, histogram.high, histogram.size)?;
    let (scale, unit) = (histogram.bytes_per_bin(), histogram.unit);
    let rate = unit.rate.unwrap_or(BSD_RATE);
    match form {
        Form::Bsd => writeln!(out, "{scale} rate (not in the file) total {total}")?,
        Form::Bsd44 => writeln!(out, "{scale} rate {rate} total {total}")?,
        Form::Magic | Form::LdProfile => {
            let dimension = String::from_utf8_lossy(unit.dimension());
            let abbrev = char::from(unit.abbrev).to_string();
            let abbrev = abbrev.trim_end_matches('\0');
            write!(out, "{scale:.6} rate {rate} dimen {dimension:?} abbrev {abbrev:?} ")?;
            writeln!(out, "total {total} nonzero {}", hits().count())?;
        }
    }
    for (index, bin) in hits() {
        writeln!(out, "bin {index} {:#x} {bin}", histogram.bin_address(index))?;
    }
    Ok(total)
}
