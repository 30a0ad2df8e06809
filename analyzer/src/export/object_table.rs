//! Samples and arcs of one ELF object, as a gmon.out file has them.

use super::objects::Frame;
use super::{Error, Measure};
use crate::export::Impossible;
use heaptape_formats::Abi;
use heaptape_formats::gmon::{self, Builder, Gmon, Unit};
use rustc_hash::{FxHashMap, FxHashSet};

/// Samples and arcs of one object.
#[derive(Debug, Default)]
pub struct Table {
    /// Link-time address of the call -> end of its function, and amount.
    pub(super) samples: FxHashMap<u64, (u64, u64)>,
    /// Address of the call and start of the callee -> amount.
    pub(super) arcs: FxHashMap<(u64, u64), u64>,
    /// Start of the callee -> amount that came from outside the object.
    entries: FxHashMap<u64, u64>,
    /// Starts of functions on stacks.
    met: FxHashSet<u64>,
    /// Starts of functions that others of the object called.
    called: FxHashSet<u64>,
}

impl Table {
    /// Returns whether no amount is in the object.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub fn sample(&mut self, frame: &Frame, amount: u64) {
        if amount == 0 {
            return;
        }
        // gprof counts in units of 2 bytes, and assigns a unit that two functions share to the
        // second.
        let is_shared = frame.end > 0 && frame.address | 1 >= frame.end;
        let address = if is_shared { frame.address.saturating_sub(2).max(frame.start) } else { frame.address };
        let (end, sum) = self.samples.entry(address).or_default();
        (*end, *sum) = ((*end).max(frame.end), sum.saturating_add(amount));
    }

    /// Counts an amount from a frame to the function of another.
    pub fn arc(&mut self, caller: &Frame, callee: &Frame, amount: u64) {
        if caller.start != callee.start {
            self.called.insert(callee.start);
        }
        let sum = self.arcs.entry((caller.address, callee.start)).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Counts an amount of a function that was called from outside the object, or by an unknown
    /// caller.
    pub fn entry(&mut self, frame: &Frame, amount: u64) {
        let sum = self.entries.entry(frame.start).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Notes that a stack passes through this function.
    pub fn meet(&mut self, frame: &Frame) {
        self.met.insert(frame.start);
    }

    /// Returns whether a stack passes through the function with this start.
    pub(crate) fn has_met(&self, start: u64) -> bool {
        self.met.contains(&start)
    }

    /// Adds arcs for calls from outside, so that callers inside are not assigned their amounts.
    pub fn enter(&mut self, from: Option<u64>) {
        let Some(from) = from else { return };
        for (&start, &amount) in self.entries.iter().filter(|(start, _)| self.called.contains(start)) {
            self.arcs.insert((from, start), amount);
        }
    }

    /// Returns the file, and its unit if it differs from that of the measure: sums too large for
    /// gprof are counted in larger units.
    ///
    /// # Errors
    /// Returns an error when even the largest unit is too small.
    pub fn gmon(&self, measure: Measure, name: &str, flavour: Abi) -> Result<(Gmon, Option<&'static str>), Error> {
        let units: &[(&'static str, u8, u32)] = match measure.is_bytes() {
            true => &[("bytes", b'b', 0), ("KiB", b'K', 10), ("MiB", b'M', 20)],
            false => &[("blocks", b'n', 0), ("1024 blocks", b'N', 10)],
        };
        let mut refused = None;
        for &(dimension, abbreviation, shift) in units {
            let mut builder = Builder::new(flavour, Unit::counted(dimension, abbreviation));
            let scaled = |amount: u64| (amount >> shift) + u64::from(shift > 0 && amount >> (shift - 1) & 1 == 1);
            let amounts = self.samples.values().map(|(_, amount)| scaled(*amount));
            if let Err(error) = fits(amounts, self.arcs.values().map(|amount| scaled(*amount))) {
                refused = Some(error);
                continue;
            }
            for (&address, &(end, amount)) in &self.samples {
                builder.sample(address, end, scaled(amount));
            }
            for (&(from, to), &amount) in &self.arcs {
                builder.arc(from, to, scaled(amount));
            }
            match builder.finish() {
                Ok(gmon) => return Ok((gmon, (shift > 0).then_some(dimension))),
                Err(error) => refused = Some(error),
            }
        }
        Err(match refused {
            Some(error) => Error::Format(name.to_string(), error),
            None => Impossible::NoUnit(name.to_string()).into(),
        })
    }
}

/// Maximum number of records of a file: 45 MB. A bin holds 65,535 and an arc 2^32 - 1; larger
/// amounts are written as repeated records.
const MOST_RECORDS: u64 = 1 << 20;

/// Checks that amounts can be written in a reasonable number of records.
///
/// # Errors
/// Returns an error when they cannot, so that a coarser unit is needed.
pub(crate) fn fits(
    samples: impl Iterator<Item = u64>,
    arcs: impl Iterator<Item = u64>,
) -> heaptape_formats::Result<()> {
    let samples = samples.map(|amount| amount.div_ceil(gmon::layout::BIN_MAX));
    let arcs = arcs.map(|amount| amount.div_ceil(u64::from(u32::MAX)));
    // Each amount needs one record, so that only the repetitions count.
    let repeats = samples.chain(arcs).map(|records| records.saturating_sub(1)).fold(0u64, u64::saturating_add);
    if repeats <= MOST_RECORDS {
        return Ok(());
    }
    let expected = "at most 2^20 repeated records belong: take a coarser dimension";
    let kind = heaptape_formats::Kind::Bad(repeats, expected);
    Err(heaptape_formats::Error { format: heaptape_formats::Format::Gmon, offset: 0, field: "bins", kind })
}
