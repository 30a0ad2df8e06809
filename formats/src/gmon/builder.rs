//! Builder of a file of sums: amounts at addresses and along arcs, of any size, in a form that the
//! real gprof reads without a warning and adds up to the same numbers.
//!
//! Each address has a histogram record of its own: one bin of the 2 bytes `[address & !1, +2)`,
//! gprof's unit. So all records have the same scale and are equal or disjoint, as gprof requires.
//! An amount above 65,535 repeats its record. One above 2^32 - 1, where gprof wraps, continues in
//! the next 2 bytes of the same function.

use std::collections::BTreeMap;

use super::layout::*;
use super::union::{put_arc, split};
use crate::{Abi, Error, Format, Kind, Result};

/// Collects the sums of a file.
///
/// # Examples
///
/// ```
/// use heaptape_formats::Abi;
/// use heaptape_formats::gmon::{self, Builder, Unit};
///
/// let mut builder = Builder::new(Abi::LE64, Unit::counted("bytes", b'b'));
/// builder.sample(0x1149, 0x1180, 4096);
/// builder.arc(0x1171, 0x1140, 4096);
/// let file = builder.finish()?;
/// assert_eq!(file.arcs().count(), 1);
/// assert!(gmon::write(&file)?.starts_with(b"gmon"));
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    abi: Abi,
    unit: Unit,
    sites: BTreeMap<u64, Site>,
    arcs: BTreeMap<(u64, u64), u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Site {
    amount: u64,
    end: u64,
}

impl Builder {
    /// Creates a builder for sums of a dimension ([`Unit::counted`]).
    pub fn new(abi: Abi, unit: Unit) -> Builder {
        Builder { abi, unit, sites: BTreeMap::new(), arcs: BTreeMap::new() }
    }

    /// Adds an amount at a link-time address: that of a return address minus 1, or of a function.
    /// `end` is the end of the function around it, or 0 if unknown; it is needed only from 2^32 on.
    pub fn sample(&mut self, address: u64, end: u64, amount: u64) {
        let site = self.sites.entry(address & !1).or_default();
        site.amount = site.amount.saturating_add(amount);
        site.end = site.end.max(end);
    }

    /// Adds an amount to an arc from a return address to the entry of the called function. For
    /// gprof's inclusive columns to be right, it must be in the same unit as the samples, and be
    /// added once for each stack.
    pub fn arc(&mut self, from: u64, to: u64, amount: u64) {
        let sum = self.arcs.entry((from, to)).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Returns the file: histograms by address, then arcs by addresses.
    ///
    /// # Errors
    ///
    /// When an amount does not fit. A coarser dimension is then needed.
    pub fn finish(mut self) -> Result<Gmon> {
        let mut gmon = Gmon::new(self.abi);
        while let Some((low, site)) = self.sites.pop_first() {
            let mut amount = site.amount;
            let beyond = amount.saturating_sub(u64::from(u32::MAX));
            let next = low.wrapping_add(2);
            if beyond > 0 && next < site.end {
                self.sample(next, site.end, beyond);
                amount -= beyond;
            }
            let high = self.limit(low)?;
            if amount > 0 {
                split(&mut gmon, (low, high), self.unit, &[amount])?;
            }
        }
        let mut arcs = Vec::with_capacity(self.arcs.len());
        for (&(from, to), &count) in &self.arcs {
            put_arc(&mut arcs, Arc { from, to, count }, u64::from(u32::MAX))?;
        }
        if !arcs.is_empty() {
            gmon.records.push(Record::Arcs(arcs));
        }
        Ok(gmon)
    }

    /// Returns the end of the 2 bytes at `low`, which must be an address of the target.
    fn limit(&self, low: u64) -> Result<u64> {
        let last = if self.abi.word_size == 4 { u64::from(u32::MAX) } else { u64::MAX };
        low.checked_add(2).filter(|&high| high <= last).ok_or(Error {
            format: Format::Gmon,
            offset: 0,
            field: "low_pc",
            kind: Kind::Bad(low, "an address within the target's pointer size belongs"),
        })
    }
}
