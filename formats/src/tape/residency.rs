//! Which pages of a process are in memory: the record [`Residency`], and the runs of pages in it.

use super::Codec;
use super::field::Text;
use crate::{Error, Format, Kind, Result, leb128, tape_record};

/// Maximum length of the unpacked runs of a snapshot, in bytes.
pub const MAX_RUN_BYTES: usize = 16 << 20;
/// Number of pages of 4 KiB in the largest address space of programs (57 bits).
const MAX_PAGES: u64 = 1 << 45;

tape_record! {
    /// A range of the address space with one use.
    Mapping {
        /// Bytes between the end of the mapping before and this one.
        gap: u64,
        /// Length of the mapping in bytes.
        length: u64,
        /// One of the `MAPPING_` numbers.
        kind: u8,
        /// Number of its name in the list of names, from 1; 0 if it has none.
        name: u32,
    }
}

/// The mapping is private memory without a file.
pub const MAPPING_ANONYMOUS: u8 = 1;
/// The mapping is a private or shared file. Written pages of a private one are anonymous memory.
pub const MAPPING_FILE: u8 = 2;
/// The mapping is memory that is shared with other processes and has no file on a disk.
pub const MAPPING_SHARED: u8 = 3;
/// The mapping is the stack of the main thread, or probably that of another one.
pub const MAPPING_STACK: u8 = 4;
/// The mapping grows with `brk`.
pub const MAPPING_BRK: u8 = 5;
/// The mapping belongs to the kernel, as the vDSO.
pub const MAPPING_KERNEL: u8 = 6;
/// The mapping belongs to heaptape.
pub const MAPPING_HEAPTAPE: u8 = 7;
/// The mapping is made of huge pages that do not count as resident (`hugetlbfs`).
pub const MAPPING_HUGETLB: u8 = 8;

tape_record! {
    /// Kind 20: which pages of the process were in memory at one point in time.
    Residency {
        /// Tick at which the reading of the pages began.
        tick: u64,
        /// Tick at which it ended.
        end_tick: u64,
        /// Why the snapshot was taken: one of the `RESIDENCY_` numbers.
        cause: u8,
        /// How the pages were read: one of the `PAGES_` numbers.
        method: u8,
        /// `VmRSS` of `/proc/PID/status` after the pages were read, in bytes.
        resident_bytes: u64,
        /// `RssAnon` of it, in bytes.
        anonymous_bytes: u64,
        /// `RssFile` of it, in bytes.
        file_bytes: u64,
        /// `RssShmem` of it, in bytes.
        shared_bytes: u64,
        /// `VmSwap` of it, in bytes.
        swapped_bytes: u64,
        /// Why there are no pages, or not all of them; empty if there are.
        lacks: Text,
        /// Resident pages that are not in the runs, because the list was full.
        unlisted_pages: u64,
        /// Names of mappings: paths, or the kernel's names in brackets.
        names: Vec<Text>,
        /// The mappings in ascending order. Neighbors of the same kind and name are one.
        mappings: Vec<Mapping>,
        /// How the runs are stored: a number of [`Codec`].
        codec: u8,
        /// Length of the unpacked runs in bytes.
        plain_length: u32,
        /// The runs as stored; [`Residency::runs`] reads them.
        stored: Text,
    }
}

/// The snapshot is the first one of the process.
pub const RESIDENCY_FIRST: u8 = 1;
/// The live bytes of the process had a new peak.
pub const RESIDENCY_PEAK: u8 = 2;
/// The resident memory had a new peak, or had doubled or halved since the last snapshot.
pub const RESIDENCY_CHANGE: u8 = 3;
/// Enough time had passed since the last snapshot.
pub const RESIDENCY_INTERVAL: u8 = 4;
/// The snapshot was requested.
pub const RESIDENCY_REQUEST: u8 = 5;
/// The process was about to end by `exit`, or by the return of `main`.
pub const RESIDENCY_EXIT: u8 = 6;
/// The recording ended, and the process went on.
pub const RESIDENCY_END: u8 = 7;

/// No pages were read.
pub const PAGES_NONE: u8 = 0;
/// The pages were read with the ioctl `PAGEMAP_SCAN`.
pub const PAGES_SCAN: u8 = 1;
/// The pages were read from `/proc/PID/pagemap`. Zero pages and huge pages are not known.
pub const PAGES_PAGEMAP: u8 = 2;

/// Returns the name of the reason for a snapshot.
pub const fn residency_cause(number: u8) -> &'static str {
    match number {
        RESIDENCY_FIRST => "first",
        RESIDENCY_PEAK => "peak",
        RESIDENCY_CHANGE => "change",
        RESIDENCY_INTERVAL => "interval",
        RESIDENCY_REQUEST => "request",
        RESIDENCY_EXIT => "exit",
        RESIDENCY_END => "end",
        _ => "unknown",
    }
}

/// What a page contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Memory of the process itself.
    Anonymous,
    /// A page of a file, or of memory that processes share.
    File,
    /// The page of zeros that the kernel maps where memory was read and never written. It does not
    /// count as resident.
    Zero,
    /// The page is on a swap device, and does not count as resident.
    Swapped,
}

/// A run of pages of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Number of the first page: its address divided by the size of a page.
    pub first: u64,
    /// Number of pages in the run.
    pub pages: u64,
    /// What the pages contain.
    pub kind: PageKind,
    /// Whether they belong to huge pages.
    pub is_huge: bool,
}

impl PageRun {
    /// Returns the number of the first page after the run.
    pub const fn end(&self) -> u64 {
        self.first.saturating_add(self.pages)
    }

    /// Returns whether the pages count as resident memory.
    pub const fn is_resident(&self) -> bool {
        matches!(self.kind, PageKind::Anonymous | PageKind::File)
    }
}

const KIND_BITS: u32 = 3;
const HUGE: u64 = 4;

/// Packs the runs of a snapshot, in ascending order.
///
/// # Examples
///
/// ```
/// use heaptape_formats::tape::{PageKind, PageRun, PageRuns, Residency};
///
/// let run = PageRun { first: 0x55555, pages: 3, kind: PageKind::Anonymous, is_huge: false };
/// let mut runs = PageRuns::default();
/// runs.push(run);
/// let mut snapshot = Residency::default();
/// runs.pack_into(&mut snapshot)?;
/// assert_eq!(snapshot.runs()?, [run]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PageRuns {
    bytes: Vec<u8>,
    /// The first page after the runs in `bytes`.
    end: u64,
    open: Option<PageRun>,
    unlisted: u64,
}

impl PageRuns {
    /// Adds a run. It is joined with the one before if both touch and are of the same kind. When
    /// the list is full, resident pages are only counted.
    pub fn push(&mut self, run: PageRun) {
        if let Some(open) = &mut self.open
            && (open.end(), open.kind, open.is_huge) == (run.first, run.kind, run.is_huge)
        {
            open.pages = open.pages.saturating_add(run.pages);
            return;
        }
        self.close();
        self.open = Some(run);
    }

    fn close(&mut self) {
        let Some(run) = self.open.take() else { return };
        if self.bytes.len() + 20 > MAX_RUN_BYTES || run.first < self.end {
            self.unlisted += if run.is_resident() { run.pages } else { 0 };
            return;
        }
        leb128::write(&mut self.bytes, run.first - self.end);
        let kind = run.kind as u64 | if run.is_huge { HUGE } else { 0 };
        leb128::write(&mut self.bytes, run.pages << KIND_BITS | kind);
        self.end = run.end();
    }

    /// Stores the runs in a snapshot.
    ///
    /// # Errors
    /// When the compression library fails.
    pub fn pack_into(mut self, snapshot: &mut Residency) -> std::io::Result<()> {
        /// Runs of fewer bytes are not worth a compressed frame.
        const MIN_PACKED: usize = 256;
        self.close();
        let codec = if self.bytes.len() < MIN_PACKED { Codec::Plain } else { Codec::Zstd };
        let mut stored = Vec::new();
        codec.pack(&self.bytes, 1, &mut stored)?;
        (snapshot.codec, snapshot.plain_length) = (codec as u8, self.bytes.len() as u32);
        (snapshot.stored, snapshot.unlisted_pages) = (Text(stored), self.unlisted);
        Ok(())
    }
}

impl Residency {
    /// Reads the runs of pages.
    ///
    /// # Errors
    /// When the bytes are not ascending runs of pages.
    pub fn runs(&self) -> Result<Vec<PageRun>> {
        let bad =
            |text: String| Error { format: Format::Tape, offset: 0, field: "Residency.stored", kind: Kind::Text(text) };
        let codec = Codec::from_number(self.codec).ok_or_else(|| bad(format!("unknown codec {}", self.codec)))?;
        if self.plain_length as usize > MAX_RUN_BYTES {
            return Err(bad(format!("{} bytes, more than {MAX_RUN_BYTES}", self.plain_length)));
        }
        let plain = codec.unpack(&self.stored.0, self.plain_length as usize).map_err(|error| bad(error.to_string()))?;
        let (mut runs, mut at, mut end) = (Vec::new(), 0, 0u64);
        while at < plain.len() {
            let mut number = || {
                let (number, length) = leb128::read(plain.get(at..).unwrap_or_default()).ok()?;
                at += length;
                Some(number)
            };
            let (Some(gap), Some(run)) = (number(), number()) else {
                return Err(bad(format!("no number at {at}")));
            };
            let (first, pages) = (end.saturating_add(gap), run >> KIND_BITS);
            end = first.saturating_add(pages);
            if pages == 0 || end > MAX_PAGES {
                return Err(bad(format!("a run of {pages} pages from page {first}")));
            }
            let kind = match run & 3 {
                0 => PageKind::Anonymous,
                1 => PageKind::File,
                2 => PageKind::Zero,
                _ => PageKind::Swapped,
            };
            runs.push(PageRun { first, pages, kind, is_huge: run & HUGE != 0 });
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, pages: u64, kind: PageKind, is_huge: bool) -> PageRun {
        PageRun { first, pages, kind, is_huge }
    }

    fn packed(runs: &[PageRun]) -> Residency {
        let (mut list, mut snapshot) = (PageRuns::default(), Residency::default());
        runs.iter().for_each(|run| list.push(*run));
        list.pack_into(&mut snapshot).unwrap_or_else(|error| panic!("{error}"));
        snapshot
    }

    #[test]
    fn runs_are_read_as_they_were_packed() {
        let mut runs = vec![
            run(5, 1, PageKind::Anonymous, false),
            run(6, 512, PageKind::Anonymous, true),
            run(1000, 2, PageKind::Zero, false),
            run(1002, 2, PageKind::Swapped, false),
            run(0x7_ffff_ffff, 1, PageKind::File, false),
        ];
        assert_eq!(packed(&runs).runs().unwrap_or_default(), runs);
        runs.extend((0..1000).map(|page| run(0x8_0000_0000 + 2 * page, 1, PageKind::Anonymous, false)));
        let snapshot = packed(&runs);
        assert_eq!(snapshot.codec, Codec::Zstd as u8);
        assert_eq!(snapshot.runs().unwrap_or_default(), runs);
    }

    #[test]
    fn adjacent_runs_of_a_kind_are_one() {
        let snapshot = packed(&[
            run(5, 1, PageKind::File, false),
            run(6, 1, PageKind::File, false),
            run(7, 1, PageKind::Zero, false),
        ]);
        let expected = [run(5, 2, PageKind::File, false), run(7, 1, PageKind::Zero, false)];
        assert_eq!(snapshot.runs().unwrap_or_default(), expected);
    }

    #[test]
    fn runs_that_are_out_of_order_are_counted_only() {
        let snapshot = packed(&[run(50, 1, PageKind::File, false), run(6, 7, PageKind::File, false)]);
        assert_eq!((snapshot.runs().unwrap_or_default().len(), snapshot.unlisted_pages), (1, 7));
    }

    #[test]
    fn bad_runs_are_refused() {
        let good = packed(&[run(5, 1, PageKind::File, false)]);
        let with = |bytes: &[u8]| Residency { plain_length: bytes.len() as u32, stored: bytes.into(), ..good.clone() };
        for wrong in [
            Residency { codec: 9, ..good.clone() },
            Residency { plain_length: u32::MAX, ..good.clone() },
            Residency { plain_length: 1, ..good.clone() },
            with(&[0x80]),
            with(&[1]),
            with(&[1, 0]),
            with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 8]),
            with(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            assert!(wrong.runs().is_err(), "{wrong:?}");
        }
    }
}
