//! Snapshots of the pages of very large processes take bounded memory.

use heaptape_formats::tape::{PageKind, PageRun, PageRuns, Residency};

/// Maximum length of the runs of a snapshot in bytes.
const MAX_RUN_BYTES: usize = 16 << 20;
/// Pages of 4 KiB in 100 GiB.
const PAGES: u64 = (100 << 30) / 4096;

/// Packs resident pages in runs of `run` pages, with gaps of `gap` pages between them.
fn packed(run: u64, gap: u64) -> Residency {
    let (mut runs, mut snapshot) = (PageRuns::default(), Residency::default());
    for number in 0..PAGES / run {
        let first = 0x5_5555_0000 + number * (run + gap);
        runs.push(PageRun { first, pages: run, kind: PageKind::Anonymous, is_huge: false });
    }
    runs.pack_into(&mut snapshot).expect("it is packed");
    snapshot
}

/// Returns the most memory that this process ever had, in bytes.
fn most_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the line");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("a number") * 1024
}

/// All cases are one test, since it measures the memory of the process.
#[test]
fn runs_of_a_hundred_gibibytes_are_bounded() {
    let before = most_resident();
    // One heap without holes takes some bytes; in pieces of 1 MiB it takes 100,000 runs.
    let whole = packed(PAGES, 0);
    assert!(whole.stored.0.len() < 20, "{}", whole.stored.0.len());
    let pieces = packed(256, 16);
    assert!(pieces.plain_length < 400_000 && pieces.stored.0.len() < 10_000, "{}", pieces.stored.0.len());
    for snapshot in [&whole, &pieces] {
        let runs = snapshot.runs().expect("runs");
        assert_eq!((runs.iter().map(|run| run.pages).sum::<u64>(), snapshot.unlisted_pages), (PAGES, 0));
    }
    // Every second page is the worst case: 26 million runs of two bytes. The list is full before
    // the end, and the other pages are counted.
    let worst = packed(1, 1);
    assert!(worst.plain_length as usize <= MAX_RUN_BYTES, "{}", worst.plain_length);
    assert!(most_resident() - before < 64 << 20, "{} bytes", most_resident() - before);
    let runs = worst.runs().expect("runs");
    assert_eq!(runs.iter().map(|run| run.pages).sum::<u64>() + worst.unlisted_pages, PAGES);
    assert!(runs.len() > 8_000_000, "{}", runs.len());
}
