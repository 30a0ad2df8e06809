//! Sums of several records, within one file and over several: GNU gprof's rules, but in 64 bits
//! where its bins wrap at 2^32 and its `-s` truncates to 16 and 32 bits.
//!
//! Histograms of the same range are added. Disjoint ones (they may touch) are kept side by side.
//! Any other overlap is an error. All must have the same dimension and the same bytes a bin. Arcs
//! and blocks with the same addresses are added.

use std::collections::{BTreeMap, HashMap};

use super::layout::*;
use crate::{Abi, Error, Format, Kind, Result};

/// Sum of all histogram records of one range.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// First address of the range.
    pub low: u64,
    /// Address after the last one of the range.
    pub high: u64,
    /// Sums of the bins.
    pub bins: Vec<u64>,
}

impl Sum {
    /// Returns the bytes of address range for each bin.
    pub fn bytes_per_bin(&self) -> f64 {
        (self.high as f64 - self.low as f64) / self.bins.len() as f64
    }
}

/// Sums of all records of the added files.
///
/// # Examples
///
/// ```
/// use heaptape_formats::gmon::{self, Hints, Union};
///
/// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/gmon/real/calls64.gmon"))?;
/// let file = gmon::read(&bytes, Hints::default())?;
/// let (mut once, mut twice) = (Union::default(), Union::default());
/// once.add(&file)?;
/// twice.add(&file)?;
/// twice.add(&file)?;
/// let sum = |union: &Union| union.sums.iter().flat_map(|sum| &sum.bins).sum::<u64>();
/// assert_eq!(2 * sum(&once), sum(&twice));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Union {
    /// Unit of the first histogram record. Its rate is used for all.
    pub unit: Option<Unit>,
    /// Histograms, in the order in which their ranges first occurred.
    pub sums: Vec<Sum>,
    /// Arcs, in the order in which their pairs of addresses first occurred.
    pub arcs: Vec<Arc>,
    /// Basic blocks, in the order in which their addresses first occurred.
    pub blocks: Vec<Block>,
    by_range: HashMap<(u64, u64), usize>,
    by_low: BTreeMap<u64, u64>,
    by_ends: HashMap<(u64, u64), usize>,
    by_address: HashMap<u64, usize>,
    bytes_per_bin: f64,
}

/// Tolerance for the difference in bytes a bin between records: gprof accepts 0.000001 in units of
/// 2 bytes.
const SCALE_SLACK: f64 = 2e-6;

impl Union {
    /// Adds the records of a file.
    ///
    /// # Errors
    ///
    /// When a histogram overlaps another one, or has another scale or dimension. The records before
    /// it have then been added.
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
            Some(sum) => sum.count = sum.count.wrapping_add(arc.count),
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
        // A truncated record has fewer bins than a complete one of the same range.
        bins.resize(bins.len().max(histogram.bins.len()), 0);
        for (sum, &bin) in bins.iter_mut().zip(histogram.bins) {
            *sum += u64::from(bin);
        }
        Ok(())
    }

    /// Returns a range that has an address in common with this one.
    fn overlap(&self, (low, high): (u64, u64)) -> Option<(u64, u64)> {
        if low >= high {
            return None;
        }
        let below = self.by_low.range(..high).next_back()?;
        (*below.1 > low).then_some((*below.0, *below.1))
    }

    /// Returns the samples for each unit of the dimension: the rate of the first record.
    pub fn rate(&self) -> u32 {
        self.unit.and_then(|unit| unit.rate).unwrap_or(BSD_RATE)
    }

    /// Returns a file with these sums: histograms, arcs, blocks. A record whose numbers do not fit
    /// its fields is repeated.
    ///
    /// # Errors
    ///
    /// When a bin is 2^32 or more, or an arc would have to be repeated more than 65,536 times.
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

/// Appends as many records of one range as its largest bin needs, at least one.
pub(super) fn split(gmon: &mut Gmon, range: (u64, u64), unit: Unit, bins: &[u64]) -> Result<()> {
    // gprof adds in 32 bits.
    if let Some(&bin) = bins.iter().find(|&&bin| bin > u64::from(u32::MAX)) {
        let expected = "a sum below 2^32 belongs: gprof wraps there; use a coarser dimension";
        return Err(Error { format: Format::Gmon, offset: 0, field: "bins", kind: Kind::Bad(bin, expected) });
    }
    let size = bins.len() as u32;
    let records = bins.iter().map(|bin| bin.div_ceil(BIN_MAX)).max().unwrap_or(0).max(1);
    for repeat in 0..records {
        let share = |bin: &u64| bin.saturating_sub(repeat * BIN_MAX).min(BIN_MAX) as u16;
        match gmon.records.last_mut() {
            Some(Record::Histograms(run)) if run.unit == unit && run.size == size => {
                run.ranges.push(range);
                run.bins.extend(bins.iter().map(share));
            }
            _ => {
                let run = Histograms::one(range.0, range.1, unit, bins.iter().map(share).collect());
                gmon.records.push(run.record());
            }
        }
    }
    Ok(())
}

/// Maximum number of records in which one arc is repeated: 2^48 calls.
const ARC_REPEATS: u64 = 1 << 16;

/// Appends an arc as often as its count needs.
pub(super) fn put_arc(arcs: &mut Vec<Arc>, arc: Arc, most: u64) -> Result<()> {
    let repeats = arc.count.div_ceil(most).max(1);
    if repeats > ARC_REPEATS {
        let expected = "a sum below 2^48 belongs, as more than 65,536 records would be needed";
        return Err(Error { format: Format::Gmon, offset: 0, field: "count", kind: Kind::Bad(arc.count, expected) });
    }
    arcs.extend((0..repeats).map(|repeat| Arc { count: (arc.count - repeat * most).min(most), ..arc }));
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
