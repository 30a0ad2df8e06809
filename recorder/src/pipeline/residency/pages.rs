//! Reads which pages of a process are in memory: by the ioctl `PAGEMAP_SCAN` of
//! `/proc/PID/pagemap` (Linux 6.7), or else by reading that file. Neither stops the process.
//!
//! The numbers are those of the kernel's `include/uapi/linux/fs.h` and
//! `Documentation/admin-guide/mm/pagemap.rst`.

use formats::tape::{PAGES_PAGEMAP, PAGES_SCAN, PageKind, PageRun, PageRuns};
use nix::libc;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Number of the ioctl: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;

/// First address after those of programs, with four levels of page tables.
const END: u64 = if cfg!(target_arch = "aarch64") { 1 << 48 } else { 0x7fff_ffff_f000 };
/// Number of ranges that one call returns: 96 KiB.
const RANGES: usize = 4096;
/// Number of entries of `pagemap` that one call reads: 64 KiB.
const ENTRIES: usize = 8192;

/// The argument of the ioctl: `struct pm_scan_arg`.
#[derive(Debug, Default)]
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    ranges: u64,
    ranges_length: u64,
    max_pages: u64,
    inverted: u64,
    required: u64,
    any_of: u64,
    returned: u64,
}

/// A result of the ioctl: `struct page_region`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Range {
    start: u64,
    end: u64,
    categories: u64,
}

fn run_of(range: &Range, page: u64) -> PageRun {
    let is = |category: u64| range.categories & category != 0;
    let kind = match () {
        () if !is(IS_PRESENT) => PageKind::Swapped,
        () if is(IS_ZERO) => PageKind::Zero,
        () if is(IS_FILE) => PageKind::File,
        () => PageKind::Anonymous,
    };
    let (first, end) = (range.start / page, range.end / page);
    PageRun { first, pages: end.saturating_sub(first), kind, is_huge: is(IS_HUGE) }
}

/// Reads the pages of a process by the ioctl.
///
/// # Errors
/// `ENOTTY` if the kernel does not have it, otherwise its error.
fn scan(pagemap: &File, page: u64, runs: &mut PageRuns) -> io::Result<()> {
    let mut ranges = vec![Range::default(); RANGES];
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        end: END,
        ranges: ranges.as_mut_ptr() as u64,
        ranges_length: RANGES as u64,
        any_of: IS_PRESENT | IS_SWAPPED,
        returned: IS_FILE | IS_PRESENT | IS_SWAPPED | IS_ZERO | IS_HUGE,
        ..ScanArgument::default()
    };
    while argument.start < END {
        // SAFETY: the argument has the layout of the kernel's `pm_scan_arg`, with its size, and
        // names a buffer of `RANGES` results, which lives as long as `ranges`. The kernel writes
        // no more results than that.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        let Ok(found) = usize::try_from(found) else { return Err(io::Error::last_os_error()) };
        let found = &ranges[..found.min(RANGES)];
        found.iter().for_each(|range| runs.push(run_of(range, page)));
        let Some(last) = found.last() else { return Ok(()) };
        // The kernel collects 512 ranges at once. If it has come to the end, `walk_end` is where
        // the last full collection has ended, which is before the last range (Linux 6.18).
        let next = argument.walk_end.max(last.end);
        if next <= argument.start {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        argument.start = next;
    }
    Ok(())
}

/// Returns the kind of a page by its entry in `pagemap`; `None` if it is neither in memory nor
/// swapped out.
const fn kind_of(entry: u64) -> Option<PageKind> {
    const FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;
    match entry & (FILE | SWAPPED | PRESENT) {
        kind if kind & SWAPPED != 0 => Some(PageKind::Swapped),
        kind if kind & PRESENT == 0 => None,
        kind if kind & FILE != 0 => Some(PageKind::File),
        _ => Some(PageKind::Anonymous),
    }
}

/// Reads the pages of address ranges from `pagemap`.
fn read(pagemap: &File, page: u64, ranges: impl Iterator<Item = (u64, u64)>, runs: &mut PageRuns) -> io::Result<()> {
    const ENTRY: usize = size_of::<u64>();
    let mut buffer = vec![0; ENTRIES * ENTRY];
    for (start, end) in ranges {
        let (mut number, end) = (start / page, end.min(END) / page);
        while number < end {
            let wanted = ENTRIES.min((end - number) as usize) * ENTRY;
            let length = pagemap.read_at(&mut buffer[..wanted], number * ENTRY as u64)? / ENTRY * ENTRY;
            if length == 0 {
                break;
            }
            for entry in buffer[..length].chunks_exact(ENTRY) {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                if let Some(kind) = kind_of(entry) {
                    runs.push(PageRun { first: number, pages: 1, kind, is_huge: false });
                }
                number += 1;
            }
        }
    }
    Ok(())
}

/// Reads the pages of a process from its open `pagemap`. `ranges` are its mappings, in ascending
/// order. Returns one of the `PAGES_` numbers.
pub(super) fn pages(
    pagemap: &File,
    page: u64,
    ranges: impl Iterator<Item = (u64, u64)>,
    runs: &mut PageRuns,
) -> io::Result<u8> {
    match scan(pagemap, page, runs) {
        Ok(()) => Ok(PAGES_SCAN),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
            *runs = PageRuns::default();
            read(pagemap, page, ranges, runs).map(|()| PAGES_PAGEMAP)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::tape::Residency;
    use nix::sys::mman;
    use std::num::NonZeroUsize;

    fn unpacked(runs: PageRuns) -> Vec<PageRun> {
        let mut snapshot = Residency::default();
        runs.pack_into(&mut snapshot).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(snapshot.unlisted_pages, 0, "pages are out of order");
        snapshot.runs().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The entry of a swapped page has its swap type and offset in the low bits, and neither of the
    /// bits 61 and 63 (the kernel's `pagemap.rst`). The ioctl says that it is not present.
    #[test]
    fn swapped_pages_are_no_resident_ones() {
        assert_eq!(kind_of(1 << 62 | 0x1234_5678_9abc), Some(PageKind::Swapped));
        assert_eq!(kind_of(1 << 63 | 0x1234), Some(PageKind::Anonymous));
        assert_eq!(kind_of(1 << 63 | 1 << 61 | 0x1234), Some(PageKind::File));
        assert_eq!(kind_of(1 << 55), None);
        let run = |categories| run_of(&Range { start: 0x7000, end: 0x9000, categories }, 4096);
        let swapped = PageRun { first: 7, pages: 2, kind: PageKind::Swapped, is_huge: false };
        assert_eq!(run(IS_SWAPPED), swapped);
        assert_eq!(run(IS_PRESENT | IS_HUGE), PageRun { kind: PageKind::Anonymous, is_huge: true, ..swapped });
    }

    /// A block of which every second page was written, seen by both ways of reading. It has more
    /// ranges than the kernel collects at once (512), and more than one call returns.
    #[test]
    fn written_pages_are_found_by_scan_and_by_reading() {
        const PAGE: usize = 4096;
        const WRITTEN: usize = RANGES + 700;
        const PAGES: NonZeroUsize = NonZeroUsize::new(2 * WRITTEN * PAGE).unwrap();
        // The allocator might return memory whose pages were written before.
        // SAFETY: a new private mapping, which nothing else refers to.
        let block = unsafe {
            let access = mman::ProtFlags::PROT_READ | mman::ProtFlags::PROT_WRITE;
            let block = mman::mmap_anonymous(None, PAGES, access, mman::MapFlags::MAP_PRIVATE).expect("memory");
            mman::madvise(block, PAGES.get(), mman::MmapAdvise::MADV_NOHUGEPAGE).expect("small pages");
            std::slice::from_raw_parts_mut(block.as_ptr().cast::<u8>(), PAGES.get())
        };
        let start = block.as_ptr() as usize;
        (0..WRITTEN).for_each(|page| block[2 * page * PAGE] = 1);
        let pagemap = File::open("/proc/self/pagemap").unwrap_or_else(|error| panic!("{error}"));
        let range = (start as u64, (start + 2 * WRITTEN * PAGE) as u64);
        let written = |runs: PageRuns| -> Vec<u64> {
            let (first, end) = (range.0 / PAGE as u64, range.1 / PAGE as u64);
            let inside = |page: &u64| (first..end).contains(page);
            let anonymous = unpacked(runs).into_iter().filter(|run| run.kind == PageKind::Anonymous && !run.is_huge);
            anonymous.flat_map(|run| run.first..run.end()).filter(inside).collect()
        };
        let mut read_runs = PageRuns::default();
        read(&pagemap, PAGE as u64, [range].into_iter(), &mut read_runs).unwrap_or_else(|error| panic!("{error}"));
        let expected: Vec<u64> = (0..WRITTEN as u64).map(|page| range.0 / PAGE as u64 + 2 * page).collect();
        assert_eq!(written(read_runs), expected);
        let mut scan_runs = PageRuns::default();
        match scan(&pagemap, PAGE as u64, &mut scan_runs) {
            Ok(()) => assert_eq!(written(scan_runs), expected),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}"),
        }
        assert_eq!(block[0], 1);
    }
}
