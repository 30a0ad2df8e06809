//! The bytes of a gmon.out file, and the model that keeps every one of them. `P` is the target's pointer size (4 or 8); all
//! numbers are in the target's byte order; nothing is padded or aligned.
//!
//! ```text
//! magic     "gmon"  version u32 (1; 0 is read too)  spare 12           then records up to the end of the file:
//!   tag 0   u8  low_pc P  high_pc P  hist_size u32  prof_rate u32  dimen 15  dimen_abbrev 1   hist_size x bin u16
//!   tag 1   u8  from_pc P  self_pc P  count u32
//!   tag 2   u8  nblocks u32   nblocks x (address P  count P)
//! old BSD   low_pc P  high_pc P  ncnt u32                               bins u16   (from_pc P  self_pc P  count P) ...
//! 4.4BSD    low_pc P  high_pc P  ncnt u32  version u32  profrate u32  spare 12    bins, arcs as old BSD
//! ld.so     "gmon"  version u32 0x1ffff  spare 12   tag u32 0  low P  high P  bins u32  rate u32  dimen 15  abbrev 1  bins u16
//!           tag u32 1  narcs u32   narcs x (from P  self P  count u32), addresses relative to low;   unused zero bytes
//! ```
//!
//! `hist_size` counts bins, whatever the manual says; `ncnt` counts bytes, header included. GNU gprof reads and writes
//! `nblocks` in its host's byte order: [`Blocks::swapped_count`] keeps that.

use crate::{Abi, Ending, Error};

/// The first bytes of the magic forms.
pub const COOKIE: &[u8; 4] = b"gmon";
/// The version that is written.
pub const VERSION: u32 = 1;
/// The version word of profiles that glibc's `ld.so` writes of a shared object (`LD_PROFILE`).
pub const LD_PROFILE_VERSION: u32 = 0x1_ffff;
/// Ticks a second in old BSD files, which do not say: what GNU gprof takes.
pub const BSD_RATE: u32 = 100;
/// The version word of the 4.4BSD form.
pub const BSD44_VERSION: u32 = 0x0005_1879;
/// Cookie, version and spare bytes.
pub const HEADER: usize = 20;
/// Tag of a histogram record.
pub const TAG_HISTOGRAM: u8 = 0;
/// Tag of a call-graph arc.
pub const TAG_ARC: u8 = 1;
/// Tag of a record of basic-block counts.
pub const TAG_BLOCKS: u8 = 2;
/// The most that a bin holds; more is written as several records.
pub const BIN_MAX: u64 = 0xffff;

/// Bytes of the records' fixed parts for one pointer size.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of a pointer.
    pub word: usize,
    /// Of a histogram record up to its bins, without its tag.
    pub histogram: usize,
    /// Of an arc, without its tag.
    pub arc: usize,
    /// Of one basic block.
    pub block: usize,
    /// Of an arc of the BSD forms.
    pub bsd_arc: usize,
    /// Of the old BSD header.
    pub bsd_header: usize,
    /// Of the 4.4BSD header.
    pub bsd44_header: usize,
}

impl Sizes {
    /// For a abi.
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

/// The four forms of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// With cookie and tagged records.
    Magic,
    /// Old BSD: no cookie, no rate.
    Bsd,
    /// 4.4BSD: no cookie, a version word behind `ncnt`.
    Bsd44,
    /// What glibc's `ld.so` writes of one shared object.
    LdProfile,
}

impl Form {
    /// The name that gprof's `-O` uses; `ld.so` for the form that it does not know.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Magic => "magic",
            Form::Bsd => "bsd",
            Form::Bsd44 => "4.4bsd",
            Form::LdProfile => "ld.so",
        }
    }
}

/// What the samples of a histogram are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Samples a unit of the dimension; `None` in the old BSD form, which does not say.
    pub rate: Option<u32>,
    /// The dimension: zero-padded, not always ended by a zero.
    pub dimen: [u8; 15],
    /// Its abbreviation.
    pub abbrev: u8,
}

impl Unit {
    /// Seconds, as every C library writes and as the BSD forms mean without saying.
    pub const fn seconds(rate: Option<u32>) -> Unit {
        Unit { rate, dimen: *b"seconds\0\0\0\0\0\0\0\0", abbrev: b's' }
    }

    /// A dimension of which each sample is one ("bytes", cut after 15 bytes), and its abbreviation (b'b').
    pub fn counted(dimension: &str, abbrev: u8) -> Unit {
        let mut dimen = [0; 15];
        for (position, &byte) in dimen.iter_mut().zip(dimension.as_bytes()) {
            *position = byte;
        }
        Unit { rate: Some(1), dimen, abbrev }
    }

    /// The dimension's text.
    pub fn dimension(&self) -> &[u8] {
        text(&self.dimen)
    }
}

/// One histogram record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Histogram<'a> {
    /// Bytes from the file's start to the record, when it was read.
    pub offset: u64,
    /// First address.
    pub low: u64,
    /// Address after the last.
    pub high: u64,
    /// What its samples are.
    pub unit: Unit,
    /// Bins that the record announces; in a cut file more than [`Histogram::bins`] holds.
    pub size: u32,
    /// The samples.
    pub bins: &'a [u16],
}

impl Histogram<'_> {
    /// The first address of bin `index`: `low + index * (high - low) / bins`, rounded down.
    pub fn bin_address(&self, index: usize) -> u64 {
        let span = u128::from(self.high.wrapping_sub(self.low));
        let step = (index as u128 * span).checked_div(u128::from(self.size)).unwrap_or(0);
        self.low.wrapping_add(step as u64)
    }

    /// Bytes a bin; infinite without bins.
    pub fn bytes_per_bin(&self) -> f64 {
        (self.high as f64 - self.low as f64) / f64::from(self.size)
    }
}

/// A run of histogram records that agree in all but their ranges and bins: as profiles of sums have one for each address,
/// they are kept together, in less memory than the file takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histograms {
    /// Bytes from the file's start to the first record.
    pub offset: u64,
    /// What the samples are.
    pub unit: Unit,
    /// Bins of each record.
    pub size: u32,
    /// First address, and address after the last, of each record.
    pub ranges: Vec<(u64, u64)>,
    /// The bins of all records; of the last one of a cut file only what is there.
    pub bins: Vec<u16>,
}

impl Histograms {
    /// One record.
    pub fn one(low: u64, high: u64, unit: Unit, bins: Vec<u16>) -> Histograms {
        Histograms { offset: 0, unit, size: bins.len() as u32, ranges: vec![(low, high)], bins }
    }

    /// The same as a part of a file.
    pub fn record(self) -> Record {
        Record::Histograms(Box::new(self))
    }

    /// The records; `step` is the length of one in the file.
    pub(super) fn records(&self, step: u64) -> impl Iterator<Item = Histogram<'_>> {
        let size = self.size as usize;
        (0..).zip(&self.ranges).map(move |(index, &(low, high))| {
            let bins = self.bins.get(index * size..).unwrap_or_default();
            let offset = self.offset + index as u64 * step;
            Histogram { offset, low, high, unit: self.unit, size: self.size, bins: &bins[..size.min(bins.len())] }
        })
    }

    /// Whether the last record has fewer bins than it announces.
    pub(super) fn is_truncated(&self) -> bool {
        (self.bins.len() as u64) < self.ranges.len() as u64 * u64::from(self.size)
    }
}

/// The bytes up to the first zero.
pub(super) fn text(padded: &[u8]) -> &[u8] {
    padded.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// An arc of the call graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Arc {
    /// Where it was called from: the return address.
    pub from: u64,
    /// An address within what was called.
    pub to: u64,
    /// How often. 32 bits in the magic form.
    pub count: u64,
}

/// One basic block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// An address in it.
    pub address: u64,
    /// How often it ran.
    pub count: u64,
}

/// A record of basic-block counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Blocks that the record announces; in a cut file more than [`Blocks::blocks`] holds.
    pub size: u32,
    /// Whether that number lies in the other byte order than the rest.
    pub swapped_count: bool,
    /// The blocks.
    pub blocks: Vec<Block>,
}

/// A run of records of one kind without another between them; of basic blocks a single record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// One or more records of tag 0.
    Histograms(Box<Histograms>),
    /// One or more records of tag 1.
    Arcs(Vec<Arc>),
    /// Tag 2.
    Blocks(Blocks),
}

/// A file: everything that it takes to write the same bytes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gmon {
    /// Which form.
    pub form: Form,
    /// Byte order and pointer size.
    pub abi: Abi,
    /// The version word; 0 in the old BSD form.
    pub version: u32,
    /// 12 bytes without meaning: zeros from C libraries, uninitialised memory from `gprof -s`.
    pub spare: [u8; 12],
    /// BSD forms: whether `ncnt` was odd; the half bin is not in the file.
    pub has_half_bin: bool,
    /// The records in the order of the file.
    pub records: Vec<Record>,
    /// Bytes behind the last readable record or bin: a cut record, or the unused end of an `ld.so` profile.
    pub tail: Vec<u8>,
    /// How the file ended.
    pub ending: Ending,
    /// What is readable but can hardly be meant (at most [`NOTES`]).
    pub notes: Vec<Error>,
}

/// The most notes that a reader keeps.
pub const NOTES: usize = 32;

impl Gmon {
    /// An empty file of the magic form.
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

    /// The histogram records.
    pub fn histograms(&self) -> impl Iterator<Item = Histogram<'_>> {
        let header = 1 + Sizes::of(self.abi).histogram as u64;
        let runs = self.records.iter().filter_map(|record| match record {
            Record::Histograms(run) => Some(&**run),
            _ => None,
        });
        runs.flat_map(move |run| run.records(header + 2 * u64::from(run.size)))
    }

    /// The arcs, with link-time addresses: those of `ld.so` profiles count from the object's lowest address, and their
    /// caller is 0 when it lies outside the object.
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

    /// The records of basic blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &Blocks> {
        self.records.iter().filter_map(|record| match record {
            Record::Blocks(blocks) => Some(blocks),
            _ => None,
        })
    }

    /// Histogram records, arcs and basic-block records, as `gprof -i` counts them.
    pub fn counts(&self) -> [usize; 3] {
        [self.histograms().count(), self.arcs().count(), self.blocks().count()]
    }

    /// For a cut file, what is missing where.
    pub fn truncation(&self) -> Option<Error> {
        match self.ending {
            Ending::Complete => None,
            Ending::Truncated { offset, field } => {
                Some(Error { format: crate::Format::Gmon, offset, field, kind: crate::Kind::Truncated })
            }
        }
    }
}
