//! What records mean together, within one file and over several: GNU gprof's rules, but in 64 bits where its bins wrap
//! at 2^32 and its `-s` truncates to 16 and 32 bits.
//!
//! Histograms of the same range are added; disjoint ones (they may touch) stand side by side; anything else is an error.
//! All must agree in dimension and in bytes a bin. Arcs and blocks with the same addresses are added.

use std::collections::{BTreeMap, HashMap};

use super::layout::*;
use crate::{Abi, Error, Format, Kind, Result};

/// The sum of all histogram records of one range.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// First address.
    pub low: u64,
    /// Address after the last.
    pub high: u64,
    /// The added bins.
    pub bins: Vec<u64>,
}

impl Sum {
    /// Bytes a bin.
    pub fn bytes_per_bin(&self) -> f64 {
        (self.high as f64 - self.low as f64) / self.bins.len() as f64
    }
}

/// Everything added up.
#[derive(Clone, Debug, Default)]
pub struct Union {
    /// What the samples of the first histogram record are; its rate holds for all.
    pub unit: Option<Unit>,
    /// In the order in which the ranges came.
    pub sums: Vec<Sum>,
    /// In the order in which the pairs of addresses came.
    pub arcs: Vec<Arc>,
    /// In the order in which the addresses came.
    pub blocks: Vec<Block>,
    by_range: HashMap<(u64, u64), usize>,
    by_low: BTreeMap<u64, u64>,
    by_ends: HashMap<(u64, u64), usize>,
    by_address: HashMap<u64, usize>,
    bytes_per_bin: f64,
}

/// How far bytes a bin may differ between records: gprof takes 0.000001 in units of 2 bytes.
const SCALE_SLACK: f64 = 2e-6;

impl Union {
    /// Adds a file. An error leaves the records before the faulty one added.
    pub fn add(&mut self, gmon: &Gmon) -> Result<()> {
        gmon.histograms().try_for_each(|histogram| self.add_histogram(&histogram))?;
        for arc in gmon.arcs() {
            self.add_arc(arc);
        }
        for block in gmon.blocks().flat_map(|blocks| &blocks.blocks) {
            let index = *self.by_address.entry(block.address).or_insert(self.blocks.len());
            match self.blocks.get_mut(index) {
                Some(sum) => sum.count = sum.count.saturating_add(block.count),
                None => self.blocks.push(*block),
            }
        }
        Ok(())
    }

    fn add_arc(&mut self, arc: Arc) {
        let index = *self.by_ends.entry((arc.from, arc.to)).or_insert(self.arcs.len());
        match self.arcs.get_mut(index) {
            Some(sum) => sum.count = sum.count.saturating_add(arc.count),
            None => self.arcs.push(arc),
        }
    }

    fn add_histogram(&mut self, histogram: &Histogram<'_>) -> Result<()> {
        match &self.unit {
            Some(unit) => compatible(unit, self.bytes_per_bin, histogram)?,
            None => {
                self.unit = Some(histogram.unit);
                self.bytes_per_bin = histogram.bytes_per_bin();
            }
        }
        let range = (histogram.low, histogram.high);
        let index = *self.by_range.entry(range).or_insert(self.sums.len());
        if index == self.sums.len() {
            if let Some(other) = self.overlap(range) {
                self.by_range.remove(&range);
                let text = format!(
                    "overlapping histogram records: {:#x}-{:#x} and {:#x}-{:#x}",
                    other.0, other.1, range.0, range.1
                );
                return Err(refused(histogram, "low_pc", text));
            }
            if range.0 < range.1 {
                self.by_low.insert(range.0, range.1);
            }
            self.sums.push(Sum { low: range.0, high: range.1, bins: vec![0; histogram.bins.len()] });
        }
        let bins = &mut self.sums[index].bins;
        // A cut record has fewer bins than a whole one of the same range.
        bins.resize(bins.len().max(histogram.bins.len()), 0);
        for (sum, &bin) in bins.iter_mut().zip(histogram.bins) {
            *sum += u64::from(bin);
        }
        Ok(())
    }

    /// A range that has an address in common with this one.
    fn overlap(&self, (low, high): (u64, u64)) -> Option<(u64, u64)> {
        if low >= high {
            return None;
        }
        let below = self.by_low.range(..high).next_back()?;
        (*below.1 > low).then_some((*below.0, *below.1))
    }

    /// Samples a unit of the dimension: the first record's rate.
    pub fn rate(&self) -> u32 {
        self.unit.and_then(|unit| unit.rate).unwrap_or(BSD_RATE)
    }

    /// A file that says the same: histograms, arcs, blocks. What the fields do not hold is repeated.
    pub fn to_gmon(&self, form: Form, abi: Abi) -> Result<Gmon> {
        let mut gmon = Gmon { form, ..Gmon::new(abi) };
        if let Some(unit) = self.unit {
            let unit = Unit { rate: Some(self.rate()), ..unit };
            for sum in &self.sums {
                split(&mut gmon, (sum.low, sum.high), unit, &sum.bins)?;
            }
        }
        let most = if matches!(form, Form::Bsd | Form::Bsd44) { u64::MAX } else { u64::from(u32::MAX) };
        let mut arcs = Vec::with_capacity(self.arcs.len());
        for &arc in &self.arcs {
            put_arc(&mut arcs, arc, most)?;
        }
        if !arcs.is_empty() {
            gmon.records.push(Record::Arcs(arcs));
        }
        if !self.blocks.is_empty() {
            let blocks = self.blocks.clone();
            gmon.records.push(Record::Blocks(Blocks { size: blocks.len() as u32, swapped_count: false, blocks }));
        }
        Ok(gmon)
    }
}

/// Appends as many records of one range as its fullest bin needs; at least one.
pub(super) fn split(gmon: &mut Gmon, range: (u64, u64), unit: Unit, bins: &[u64]) -> Result<()> {
    // gprof adds in 32 bits.
    if let Some(&bin) = bins.iter().find(|&&bin| bin > u64::from(u32::MAX)) {
        let expected = "a sum below 2^32 belongs: gprof wraps there; take a coarser dimension";
        return Err(Error { format: Format::Gmon, offset: 0, field: "bins", kind: Kind::Bad(bin, expected) });
    }
    let size = bins.len() as u32;
    let records = bins.iter().map(|bin| bin.div_ceil(BIN_MAX)).max().unwrap_or(0).max(1);
    for turn in 0..records {
        let part = |bin: &u64| bin.saturating_sub(turn * BIN_MAX).min(BIN_MAX) as u16;
        match gmon.records.last_mut() {
            Some(Record::Histograms(run)) if run.unit == unit && run.size == size => {
                run.ranges.push(range);
                run.bins.extend(bins.iter().map(part));
            }
            _ => {
                let run = Histograms::one(range.0, range.1, unit, bins.iter().map(part).collect());
                gmon.records.push(run.record());
            }
        }
    }
    Ok(())
}

/// The most records that one arc is repeated in: 2^48 calls.
const ARC_REPEATS: u64 = 1 << 16;

/// An arc as often as its count needs.
pub(super) fn put_arc(arcs: &mut Vec<Arc>, arc: Arc, most: u64) -> Result<()> {
    let repeats = arc.count.div_ceil(most).max(1);
    if repeats > ARC_REPEATS {
        let expected = "a sum below 2^48 belongs, as more than 65,536 records would be needed";
        return Err(Error { format: Format::Gmon, offset: 0, field: "count", kind: Kind::Bad(arc.count, expected) });
    }
    arcs.extend((0..repeats).map(|turn| Arc { count: (arc.count - turn * most).min(most), ..arc }));
    Ok(())
}

fn refused(histogram: &Histogram<'_>, field: &'static str, text: String) -> Error {
    Error { format: Format::Gmon, offset: histogram.offset, field, kind: Kind::Text(text) }
}

fn compatible(first: &Unit, bytes_per_bin: f64, next: &Histogram<'_>) -> Result<()> {
    let lossy = |unit: &Unit| String::from_utf8_lossy(unit.dimension()).into_owned();
    if first.dimen != next.unit.dimen {
        let (from, to) = (lossy(first), lossy(&next.unit));
        let text = format!("dimension unit changed between histogram records, from '{from}' to '{to}'");
        return Err(refused(next, "dimen", text));
    }
    if first.abbrev != next.unit.abbrev {
        let (from, to) = (char::from(first.abbrev), char::from(next.unit.abbrev));
        let text = format!("dimension abbreviation changed between histogram records, from {from:?} to {to:?}");
        return Err(refused(next, "dimen_abbrev", text));
    }
    let (was, is) = (bytes_per_bin, next.bytes_per_bin());
    let differs = if was.is_finite() && is.is_finite() { (was - is).abs() > SCALE_SLACK } else { was != is };
    if differs {
        return Err(refused(
            next,
            "hist_size",
            format!("different scales in histogram records: {was} and {is} bytes a bin"),
        ));
    }
    Ok(())
}
