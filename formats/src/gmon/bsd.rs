//! Reader and writer of the forms without a cookie: old BSD and 4.4BSD. One histogram of seconds,
//! then arcs to the end of the file, whose counts are as wide as a pointer. As with gprof, an
//! incomplete last arc is not an error.

use super::bins::put_bins;
use super::layout::*;
use crate::{Abi, Cursor, Format, Kind, Result};

pub(super) fn read(bytes: &[u8], form: Form, abi: Abi) -> Result<Gmon> {
    let sizes = Sizes::of(abi);
    let mut cursor = Cursor::new(Format::Gmon, bytes);
    let low = cursor.word("low_pc", abi)?;
    let high = cursor.word("high_pc", abi)?;
    let position = cursor.clone();
    let ncnt = cursor.number("ncnt", abi, 4)?;
    let mut gmon = Gmon { form, version: 0, has_half_bin: ncnt % 2 == 1, ..Gmon::new(abi) };
    let (mut header, mut rate) = (sizes.bsd_header, None);
    if form == Form::Bsd44 {
        header = sizes.bsd44_header;
        let position = cursor.clone();
        gmon.version = cursor.number("version", abi, 4)? as u32;
        if gmon.version != BSD44_VERSION {
            return Err(position.error("version", Kind::Version(u64::from(gmon.version))));
        }
        rate = Some(cursor.number("profrate", abi, 4)? as u32);
        gmon.spare = cursor.take("spare", 12)?.try_into().unwrap_or_default();
    }
    let Some(size) = ncnt.checked_sub(header as u64) else {
        return Err(position.bad("ncnt", ncnt, "at least the length of the header belongs"));
    };
    let size = (size / 2) as u32;
    gmon.push_histogram(Histogram { offset: 0, low, high, unit: Unit::seconds(rate), size, bins: &[] });
    gmon.push_bins(&mut cursor, size)?;
    if gmon.ends_inside(&mut cursor) {
        return Ok(gmon);
    }
    let arc = |bytes: &[u8]| {
        let word = |index: usize| abi.number(&bytes[index * sizes.word..(index + 1) * sizes.word]);
        Arc { from: word(0), to: word(1), count: word(2) }
    };
    let arcs = cursor.rest().chunks_exact(sizes.bsd_arc);
    gmon.tail = arcs.remainder().to_vec();
    if arcs.len() > 0 {
        gmon.records.push(Record::Arcs(arcs.map(arc).collect()));
    }
    Ok(gmon)
}

/// Appends the file. Content that the form cannot hold would be lost, so it is refused.
pub(super) fn write(gmon: &Gmon, out: &mut Vec<u8>) -> Result<()> {
    let refuse = |field, text: &str| {
        Err(crate::Error {
            format: Format::Gmon,
            offset: 0,
            field,
            kind: Kind::Text(format!("{}: {text}", gmon.form.name())),
        })
    };
    let (abi, sizes) = (gmon.abi, Sizes::of(gmon.abi));
    let mut histograms = gmon.histograms();
    let (Some(histogram), None) = (histograms.next(), histograms.next()) else {
        return refuse("bins", "this form holds exactly one histogram");
    };
    if gmon.blocks().next().is_some() {
        return refuse("nblocks", "this form holds no basic blocks");
    }
    let header = if gmon.form == Form::Bsd44 { sizes.bsd44_header } else { sizes.bsd_header };
    let ncnt = header as u64 + 2 * u64::from(histogram.size) + u64::from(gmon.has_half_bin);
    if ncnt > u64::from(u32::MAX) {
        return refuse("ncnt", "more bins than a 32-bit number of bytes holds");
    }
    abi.put_word(out, histogram.low);
    abi.put_word(out, histogram.high);
    abi.put(out, ncnt, 4);
    if gmon.form == Form::Bsd44 {
        abi.put(out, u64::from(BSD44_VERSION), 4);
        abi.put(out, u64::from(histogram.unit.rate.unwrap_or(BSD_RATE)), 4);
        out.extend_from_slice(&gmon.spare);
    }
    put_bins(out, abi, histogram.bins);
    for arc in gmon.arcs() {
        abi.put_word(out, arc.from);
        abi.put_word(out, arc.to);
        abi.put_word(out, arc.count);
    }
    out.extend_from_slice(&gmon.tail);
    Ok(())
}
