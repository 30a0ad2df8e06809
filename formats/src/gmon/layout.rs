//! Layout of gmon.out, and a model that keeps every byte. `P` is the target's pointer size (4 or
//! 8). All numbers are in the target's byte order; nothing is padded or aligned.
//!
//! ```text
//! magic     "gmon"  version u32 (1; 0 is read too)  spare 12, then records up to the end:
//!   tag 0   u8  low_pc P  high_pc P  hist_size u32  prof_rate u32  dimen 15  dimen_abbrev 1
//!               hist_size x bin u16
//!   tag 1   u8  from_pc P  self_pc P  count u32
//!   tag 2   u8  nblocks u32   nblocks x (address P  count P)
//! old BSD   low_pc P  high_pc P  ncnt u32
//!           bins u16   (from_pc P  self_pc P  count P) ...
//! 4.4BSD    low_pc P  high_pc P  ncnt u32  version u32  profrate u32  spare 12
//!           bins, arcs as old BSD
//! ld.so     "gmon"  version u32 0x1ffff  spare 12
//!           tag u32 0  low P  high P  bins u32  rate u32  dimen 15  abbrev 1  bins u16
//!           tag u32 1  narcs u32  narcs x (from P  self P  count u32), relative to low
//!           unused zero bytes
//! ```
//!
//! `hist_size` counts bins, although the manual says otherwise. `ncnt` counts bytes, including the
//! header. GNU gprof reads and writes `nblocks` in the byte order of its host:
//! [`Blocks::swapped_count`] keeps that.

use crate::{Abi, Ending, Error};

/// First bytes of the magic forms.
pub const COOKIE: &[u8; 4] = b"gmon";
/// Version that heaptape writes.
pub const VERSION: u32 = 1;
/// Version of profiles that glibc's `ld.so` writes of a shared object (`LD_PROFILE`).
pub const LD_PROFILE_VERSION: u32 = 0x1_ffff;
/// Ticks per second in old BSD files, which do not contain it: the value that GNU gprof assumes.
pub const BSD_RATE: u32 = 100;
/// Version of the 4.4BSD form.
pub const BSD44_VERSION: u32 = 0x0005_1879;
/// Length of cookie, version and spare bytes.
pub const HEADER: usize = 20;
/// Tag of a histogram record.
pub const TAG_HISTOGRAM: u8 = 0;
/// Tag of a call-graph arc.
pub const TAG_ARC: u8 = 1;
/// Tag of a record of basic-block counts.
pub const TAG_BLOCKS: u8 = 2;
/// Maximum of a bin. A larger number is written as several records.
pub const BIN_MAX: u64 = 0xffff;

/// Sizes of the fixed parts of records for one pointer size, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of a pointer.
    pub word: usize,
    /// Size of a histogram record up to its bins, without its tag.
    pub histogram: usize,
    /// Size of an arc, without its tag.
    pub arc: usize,
    /// Size of one basic block.
    pub block: usize,
    /// Size of an arc of the BSD forms.
    pub bsd_arc: usize,
    /// Size of the old BSD header.
    pub bsd_header: usize,
    /// Size of the 4.4BSD header.
    pub bsd44_header: usize,
}

impl Sizes {
    /// Returns the sizes for an ABI.
    pub const fn of(abi: Abi) -> Sizes {
        let word = if abi.word_size == 4 { 4 } else { 8 };
        Sizes {
            word,
            histogram: 2 * word + 24,
            arc: 2 * word + 4,
            block: 2 * word,
            bsd_arc: 3 * word,
            bsd_header: 2 * word + 4,
            bsd44_header: 2 * word + 24,
        }
    }
}

/// Form of a gmon.out file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Cookie and tagged records.
    Magic,
    /// Old BSD: no cookie, no rate.
    Bsd,
    /// 4.4BSD: no cookie, a version word after `ncnt`.
    Bsd44,
    /// Profile of one shared object by glibc's `ld.so`.
    LdProfile,
}

impl Form {
    /// Returns the name that gprof's `-O` uses; `ld.so` for the form that gprof does not know.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Magic => "magic",
            Form::Bsd => "bsd",
            Form::Bsd44 => "4.4bsd",
            Form::LdProfile => "ld.so",
        }
    }
}

/// Unit of the samples of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Samples for each unit of the dimension; `None` in the old BSD form, which does not contain
    /// it.
    pub rate: Option<u32>,
    /// Name of the dimension, zero-padded, not always terminated by a zero.
    pub dimen: [u8; 15],
    /// Abbreviation of the dimension.
    pub abbrev: u8,
}

impl Unit {
    /// Returns seconds, which every C library writes and the BSD forms imply.
    pub const fn seconds(rate: Option<u32>) -> Unit {
        Unit { rate, dimen: *b"seconds\0\0\0\0\0\0\0\0", abbrev: b's' }
    }

    /// Returns a dimension that each sample counts one of ("bytes", truncated after 15 bytes), with
    /// its abbreviation (b'b').
    pub fn counted(dimension: &str, abbrev: u8) -> Unit {
        let mut dimen = [0; 15];
        for (position, &byte) in dimen.iter_mut().zip(dimension.as_bytes()) {
            *position = byte;
        }
        Unit { rate: Some(1), dimen, abbrev }
    }

    /// Returns the name of the dimension without padding.
    pub fn dimension(&self) -> &[u8] {
        text(&self.dimen)
    }
}

/// One histogram record of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Histogram<'a> {
    /// Offset of the record in the file, if it was read.
    pub offset: u64,
    /// First address of the range.
    pub low: u64,
    /// Address after the last one of the range.
    pub high: u64,
    /// Unit of the samples.
    pub unit: Unit,
    /// Number of bins that the record announces; in a truncated file more than [`Histogram::bins`]
    /// holds.
    pub size: u32,
    /// Samples of each bin.
    pub bins: &'a [u16],
}

impl Histogram<'_> {
    /// Returns the first address of bin `index`: `low + index * (high - low) / bins`, rounded down.
    pub fn bin_address(&self, index: usize) -> u64 {
        let span = u128::from(self.high.wrapping_sub(self.low));
        let step = (index as u128 * span).checked_div(u128::from(self.size)).unwrap_or(0);
        self.low.wrapping_add(step as u64)
    }

    /// Returns the bytes of address range for each bin; infinite without bins.
    pub fn bytes_per_bin(&self) -> f64 {
        (self.high as f64 - self.low as f64) / f64::from(self.size)
    }
}

/// A run of histogram records that differ only in their ranges and bins. Profiles of sums have one
/// for each address, so they are kept together, in less memory than the file needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histograms {
    /// Offset of the first record in the file.
    pub offset: u64,
    /// Unit of the samples.
    pub unit: Unit,
    /// Number of bins of each record.
    pub size: u32,
    /// First address, and address after the last one, of each record.
    pub ranges: Vec<(u64, u64)>,
    /// Bins of all records; of the last record of a truncated file those that are there.
    pub bins: Vec<u16>,
}

impl Histograms {
    /// Returns a run of one record.
    pub fn one(low: u64, high: u64, unit: Unit, bins: Vec<u16>) -> Histograms {
        Histograms { offset: 0, unit, size: bins.len() as u32, ranges: vec![(low, high)], bins }
    }

    /// Converts the run into a record of a file.
    pub fn record(self) -> Record {
        Record::Histograms(Box::new(self))
    }

    /// Returns the records; `step` is the length of one in the file.
    pub(super) fn records(&self, step: u64) -> impl Iterator<Item = Histogram<'_>> {
        let size = self.size as usize;
        (0..).zip(&self.ranges).map(move |(index, &(low, high))| {
            let bins = self.bins.get(index * size..).unwrap_or_default();
            let offset = self.offset + index as u64 * step;
            Histogram { offset, low, high, unit: self.unit, size: self.size, bins: &bins[..size.min(bins.len())] }
        })
    }

    /// Returns whether the last record has fewer bins than it announces.
    pub(super) fn is_truncated(&self) -> bool {
        (self.bins.len() as u64) < self.ranges.len() as u64 * u64::from(self.size)
    }
}

/// Returns the bytes up to the first zero.
pub(super) fn text(padded: &[u8]) -> &[u8] {
    padded.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// An arc of the call graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Arc {
    /// Return address of the call.
    pub from: u64,
    /// Address within the called function.
    pub to: u64,
    /// Number of calls; 32 bits in the magic form.
    pub count: u64,
}

/// Execution count of one basic block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Address in the block.
    pub address: u64,
    /// Number of executions of the block.
    pub count: u64,
}

/// A record of basic-block counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Number of blocks that the record announces; in a truncated file more than [`Blocks::blocks`]
    /// holds.
    pub size: u32,
    /// Whether that number is in the opposite byte order to the rest.
    pub swapped_count: bool,
    /// Blocks of the record.
    pub blocks: Vec<Block>,
}

/// A run of records of one kind, or a single record of basic blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// One or more records of tag 0.
    Histograms(Box<Histograms>),
    /// One or more records of tag 1.
    Arcs(Vec<Arc>),
    /// One record of tag 2.
    Blocks(Blocks),
}

/// A gmon.out file, with everything that is needed to write the same bytes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gmon {
    /// Form of the file.
    pub form: Form,
    /// Byte order and pointer size of the target.
    pub abi: Abi,
    /// Version of the file; 0 in the old BSD form.
    pub version: u32,
    /// 12 bytes without meaning: zeros from C libraries, uninitialized memory from `gprof -s`.
    pub spare: [u8; 12],
    /// Whether `ncnt` of a BSD form is an uneven number. The half bin is not in the file.
    pub has_half_bin: bool,
    /// Records in the order of the file.
    pub records: Vec<Record>,
    /// Bytes after the last readable record or bin: a truncated record, or the unused end of an
    /// `ld.so` profile.
    pub tail: Vec<u8>,
    /// How the file ended.
    pub ending: Ending,
    /// Readable but implausible values, at most [`NOTES`].
    pub notes: Vec<Error>,
}

/// Maximum number of notes that a reader keeps.
pub const NOTES: usize = 32;

impl Gmon {
    /// Creates an empty file of the magic form.
    pub fn new(abi: Abi) -> Gmon {
        Gmon {
            form: Form::Magic,
            abi,
            version: VERSION,
            spare: [0; 12],
            has_half_bin: false,
            records: Vec::new(),
            tail: Vec::new(),
            ending: Ending::Complete,
            notes: Vec::new(),
        }
    }

    /// Returns the histogram records.
    pub fn histograms(&self) -> impl Iterator<Item = Histogram<'_>> {
        let header = 1 + Sizes::of(self.abi).histogram as u64;
        let runs = self.records.iter().filter_map(|record| match record {
            Record::Histograms(run) => Some(&**run),
            _ => None,
        });
        runs.flat_map(move |run| run.records(header + 2 * u64::from(run.size)))
    }

    /// Returns the arcs with link-time addresses. Those of `ld.so` profiles are relative to the
    /// object's lowest address, and their caller is 0 if it is outside the object.
    pub fn arcs(&self) -> impl Iterator<Item = Arc> {
        let relative = self.form == Form::LdProfile;
        let base = self.histograms().next().filter(|_| relative).map_or(0, |histogram| histogram.low);
        let arcs = self.records.iter().filter_map(|record| match record {
            Record::Arcs(arcs) => Some(arcs),
            _ => None,
        });
        arcs.flatten().map(move |arc| Arc {
            from: if arc.from == 0 { 0 } else { arc.from.wrapping_add(base) },
            to: arc.to.wrapping_add(base),
            count: arc.count,
        })
    }

    /// Returns the records of basic blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &Blocks> {
        self.records.iter().filter_map(|record| match record {
            Record::Blocks(blocks) => Some(blocks),
            _ => None,
        })
    }

    /// Returns the numbers of histogram records, arcs and basic-block records, as `gprof -i` counts
    /// them.
    pub fn counts(&self) -> [usize; 3] {
        [self.histograms().count(), self.arcs().count(), self.blocks().count()]
    }

    /// Returns the missing field of a truncated file as an error.
    pub fn truncation(&self) -> Option<Error> {
        match self.ending {
            Ending::Complete => None,
            Ending::Truncated { offset, field } => {
                Some(Error { format: crate::Format::Gmon, offset, field, kind: crate::Kind::Truncated })
            }
        }
    }
}
