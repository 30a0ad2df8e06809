//! Writer of gmon.out files. A file that was read is written byte for byte, also a truncated one.

use super::bins::put_bins;
use super::bsd;
use super::layout::*;
use crate::{Abi, Error, Format, Kind, Result};

/// Returns the bytes of the file.
///
/// # Errors
///
/// When the form cannot hold something of the model.
pub fn write(gmon: &Gmon) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match gmon.form {
        Form::Bsd | Form::Bsd44 => bsd::write(gmon, &mut out)?,
        Form::Magic => magic(gmon, &mut out)?,
        Form::LdProfile => ld_profile(gmon, &mut out)?,
    }
    Ok(out)
}

fn header(gmon: &Gmon, out: &mut Vec<u8>) {
    out.extend_from_slice(COOKIE);
    gmon.abi.put(out, u64::from(gmon.version), 4);
    out.extend_from_slice(&gmon.spare);
}

fn refused(field: &'static str, value: u64, expected: &'static str) -> Error {
    Error { format: Format::Gmon, offset: 0, field, kind: Kind::Bad(value, expected) }
}

fn magic(gmon: &Gmon, out: &mut Vec<u8>) -> Result<()> {
    let abi = gmon.abi;
    header(gmon, out);
    for record in &gmon.records {
        match record {
            Record::Histograms(run) => {
                for histogram in run.records(0) {
                    out.push(TAG_HISTOGRAM);
                    put_histogram(out, abi, &histogram);
                }
            }
            Record::Arcs(arcs) => {
                for arc in arcs {
                    out.push(TAG_ARC);
                    put_arc(out, abi, arc)?;
                }
            }
            Record::Blocks(blocks) => {
                out.push(TAG_BLOCKS);
                let size = if blocks.swapped_count { blocks.size.swap_bytes() } else { blocks.size };
                abi.put(out, u64::from(size), 4);
                for block in &blocks.blocks {
                    abi.put_word(out, block.address);
                    abi.put_word(out, block.count);
                }
            }
        }
    }
    out.extend_from_slice(&gmon.tail);
    Ok(())
}

fn ld_profile(gmon: &Gmon, out: &mut Vec<u8>) -> Result<()> {
    let abi = gmon.abi;
    header(gmon, out);
    for record in &gmon.records {
        match record {
            Record::Histograms(run) => {
                for histogram in run.records(0) {
                    abi.put(out, u64::from(TAG_HISTOGRAM), 4);
                    put_histogram(out, abi, &histogram);
                }
            }
            Record::Arcs(arcs) => {
                abi.put(out, u64::from(TAG_ARC), 4);
                abi.put(out, arcs.len() as u64, 4);
                for arc in arcs {
                    put_arc(out, abi, arc)?;
                }
            }
            Record::Blocks(blocks) => {
                return Err(refused("nblocks", u64::from(blocks.size), "an ld.so profile has no basic blocks"));
            }
        }
    }
    out.extend_from_slice(&gmon.tail);
    Ok(())
}

fn put_histogram(out: &mut Vec<u8>, abi: Abi, histogram: &Histogram<'_>) {
    abi.put_word(out, histogram.low);
    abi.put_word(out, histogram.high);
    abi.put(out, u64::from(histogram.size), 4);
    abi.put(out, u64::from(histogram.unit.rate.unwrap_or(BSD_RATE)), 4);
    out.extend_from_slice(&histogram.unit.dimen);
    out.push(histogram.unit.abbrev);
    put_bins(out, abi, histogram.bins);
}

fn put_arc(out: &mut Vec<u8>, abi: Abi, arc: &Arc) -> Result<()> {
    if arc.count > u64::from(u32::MAX) {
        return Err(refused("count", arc.count, "a 32-bit count belongs; repeat the arc"));
    }
    abi.put_word(out, arc.from);
    abi.put_word(out, arc.to);
    abi.put(out, arc.count, 4);
    Ok(())
}
