//! The resident memory of a process by its use: joins snapshots of its pages with the blocks that
//! were live at their time, for one snapshot or for several over the run.

use super::Error;
use super::ancestors::Ancestors;
use super::blocks_by_address::{Entries, Slices};
use crate::event::{Event, Kind};
use crate::load::Process;
use crate::load::tape::PageSnapshot;
use crate::model::Model;
use crate::model::covered::Covered;
use crate::model::live_set::{Block, LiveSet};
use crate::model::neighbors::HeldPages;
use crate::model::timeline::{ByGroup, Timeline};
use crate::progress::Progress;
use crate::replay::replayed;
use crate::report::Unanswerable;
use crate::text::bytes;
use heaptape_formats::resident::{self, Allocator, Bill, LiveBlock, PART_NAMES, Ranges, Resident, short_name};
use heaptape_formats::tape::{Division, Entry, PageRun, Residency};
use serde::Serialize;

/// Page size in bytes for recordings that do not contain it.
const PAGE: u64 = 4096;
/// Maximum number of groups of 512 pages for which it is known whether they ever held a block: 320
/// MiB, for 4 TiB of resident memory.
pub const MAX_GROUPS: usize = 2 << 20;
/// Maximum number of live blocks that are joined with all snapshots of a process: some seconds.
const MAX_BLOCKS: usize = 16 << 20;

/// A part of the resident memory.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Name of the part in JSON.
    pub name: &'static str,
    pub bytes: u64,
    /// What the part is, for people.
    #[serde(skip)]
    pub text: String,
}

impl Part {
    /// Returns a short name for people.
    pub fn short(&self) -> &'static str {
        short_name(self.name)
    }
}

/// Returns the parts of a bill, with their names in JSON.
pub fn parts(bill: &Bill, allocator: Allocator) -> Vec<Part> {
    let slack_text = match allocator {
        Allocator::Unknown => "slack of the allocator, whose size classes are not known".into(),
        known => format!("slack: what {} reserves for them in addition, by its size classes", known.name()),
    };
    let files_text = match bill.written {
        0 => "files".to_owned(),
        written => format!("files, {} of it private pages that the process has written", bytes(written)),
    };
    let texts = [
        "live blocks".to_owned(),
        slack_text,
        "free, on pages that live blocks are on".into(),
        "free: whole pages that once held blocks".into(),
        "memory of the process that never was a block".into(),
        "memory of the process, whose blocks are not known".into(),
        files_text,
        "shared memory".into(),
        "stacks".into(),
        "heaptape itself".into(),
        "pages that the snapshot does not list".into(),
    ];
    let named = PART_NAMES.into_iter().zip(bill.parts()).zip(texts);
    named.map(|((name, bytes), text)| Part { name, bytes, text }).collect()
}

/// Returns the size of the pages of a process in bytes.
pub fn page_bytes(process: &Process) -> u64 {
    match u64::from(process.tape.process.page_size) {
        page if page.is_power_of_two() && (512..=1 << 16).contains(&page) => page,
        _ => PAGE,
    }
}

/// Returns the tick at which the live blocks fit a snapshot best. They change while the pages are
/// read: those of the middle are nearest to all of them.
pub const fn middle(snapshot: &Residency) -> u64 {
    snapshot.tick + snapshot.end_tick.saturating_sub(snapshot.tick) / 2
}

/// Returns the runs of pages of a snapshot.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when they are damaged.
pub fn runs(snapshot: &Residency) -> Result<Vec<PageRun>, Error> {
    Ok(snapshot.runs().map_err(|error| Unanswerable::BadPages(error.to_string()))?)
}

/// Returns the allocator whose `malloc` the process calls. Where that is not known, it is the one
/// that the name of a mapped file shows.
pub(crate) fn main_allocator(process: &Process, snapshot: &Residency) -> Allocator {
    Allocator::of_process(&process.about.malloc, snapshot.names.iter().map(|name| name.lossy()))
}

/// Returns the allocator that served a call of this entry.
fn allocator_of(process: &Process, entry: u8, main: Allocator) -> Allocator {
    let inside = match entry {
        number @ 14..=17 => number - Entry::AllocInside1 as u8,
        number @ 33..=36 => number - Entry::ResizeInside1 as u8,
        _ => return main,
    };
    let named = process.about.allocators.iter().find(|allocator| allocator.number == inside);
    named.map_or(Allocator::Unknown, |allocator| Allocator::of_inside(&allocator.name, &allocator.module))
}

/// The resident memory of a process by its use.
#[derive(Debug)]
pub struct Joined {
    /// The memory by use and by site.
    pub resident: Resident,
    /// Pages with free bytes on which there are live blocks.
    pub held_pages: HeldPages,
    /// The allocator by whose size classes the slack was computed.
    pub allocator: Allocator,
    /// Number of live blocks.
    pub blocks: usize,
    /// Number of the live blocks that an ancestor allocated before the fork.
    pub inherited_blocks: u64,
    /// Bytes of these blocks.
    pub inherited_bytes: u64,
}

/// Joins a snapshot and its runs with live blocks and the pages that ever held one, if the blocks
/// are known. A forked child also has those of its ancestors.
pub fn join(
    process: &Process,
    snapshot: &Residency,
    runs: &[PageRun],
    blocks: Option<(&LiveSet, &Covered)>,
    ancestors: &Ancestors,
) -> Joined {
    let page = page_bytes(process);
    let ranges = Ranges::of(&snapshot.mappings);
    let allocator = main_allocator(process, snapshot);
    let (mut inherited_blocks, mut inherited_bytes) = (0, 0u64);
    for block in ancestors.blocks() {
        inherited_blocks += 1;
        inherited_bytes = inherited_bytes.saturating_add(block.size);
    }
    let visit = |each: &mut dyn FnMut(LiveBlock, u8)| {
        for (_, block) in blocks.iter().flat_map(|(live, _)| live.iter()) {
            let (address, size, tick, site) = (block.address, block.size, block.tick, block.site);
            each(LiveBlock { address, size, tick, site }, block.entry);
        }
        ancestors.blocks().for_each(|block| each(block, 0));
    };
    let entries = Entries::default();
    let mut source = Slices::new(&visit, &entries);
    let (count, inside) = (source.count, source.inside);
    let of = |block: &LiveBlock| match entries.of(block.address) {
        Some(entry) => allocator_of(process, entry, allocator),
        None => allocator,
    };
    let mut held_pages = HeldPages::default();
    let mut resident = resident::divide(
        resident::Pages { runs, ranges: &ranges, page },
        resident::Blocks {
            source: &mut source,
            main: allocator,
            allocator: &of,
            covered: blocks.map(|(_, covered)| covered),
        },
        &mut |page, site| held_pages.add(page, site),
    );
    resident.bill.unlisted = snapshot.unlisted_pages.saturating_mul(page);
    let inside = inside.map(|entry| allocator_of(process, entry, allocator));
    let allocator = inside.unwrap_or(allocator);
    Joined { resident, held_pages, allocator, blocks: count, inherited_blocks, inherited_bytes }
}

/// Returns the resident memory as the recorder divided it, of a process whose events are not kept.
/// `None` if it could not divide it.
pub(crate) fn of_division(division: &Division) -> Option<Joined> {
    division.lacks.0.is_empty().then(|| Joined {
        resident: Resident::from(division),
        held_pages: HeldPages::default(),
        allocator: Allocator::of_number(division.allocator),
        blocks: usize::try_from(division.blocks).unwrap_or(usize::MAX),
        inherited_blocks: division.inherited_blocks,
        inherited_bytes: division.inherited_bytes,
    })
}

/// The memory of a process at one of its snapshots.
#[derive(Clone, Debug)]
pub struct Point {
    pub tick: u64,
    /// The memory by use.
    pub bill: Bill,
    /// Live bytes on pages that are not in memory and not swapped out.
    pub untouched: u64,
    /// The allocator by whose size classes the slack was computed.
    pub allocator: Allocator,
}

impl Point {
    fn of(tick: u64, joined: Joined) -> Point {
        let Joined { resident: Resident { bill, untouched, .. }, allocator, .. } = joined;
        Point { tick, bill, untouched, allocator }
    }
}

replayed! {
    (&mut Timeline, &mut ByGroup, &mut OverTime<'_>);
}

/// Computes the memory by use at several snapshots in one replay.
#[derive(Debug)]
pub struct OverTime<'a> {
    process: &'a Process,
    /// The chosen snapshots, earliest first.
    snapshots: Vec<&'a PageSnapshot>,
    covered: Covered,
    ancestors: Ancestors,
    /// Number of snapshots that are done.
    done: usize,
    /// Number of live blocks that were joined so far, of all snapshots.
    blocks: usize,
    /// The memory at the snapshots so far.
    pub points: Vec<Point>,
}

impl<'a> OverTime<'a> {
    /// Prepares the join of at most `most` snapshots of a process, spread evenly over all. There
    /// are none if the blocks are not known, unless the recorder divided the memory.
    pub fn new(process: &'a Process, most: usize, progress: &Progress) -> OverTime<'a> {
        let mut all: Vec<&PageSnapshot> =
            process.tape.snapshots.iter().filter(|snapshot| snapshot.sums.method != 0).collect();
        all.sort_by_key(|snapshot| snapshot.sums.tick);
        if most == 0 {
            all.clear();
        }
        let count = all.len().min(most);
        // The last one is always chosen.
        let chosen = (1..=count).filter_map(|number| all.get((number * all.len()).div_ceil(count) - 1).copied());
        let mut over_time = OverTime::of(process, chosen.collect());
        if !over_time.snapshots.is_empty() {
            over_time.ancestors = Ancestors::of(process, progress, &mut over_time.covered);
        }
        over_time
    }

    /// Prepares the join of the snapshot with the most anonymous memory and of the last one. There
    /// are none if the blocks are not known, unless the recorder divided the memory. Blocks of
    /// ancestors are left out.
    pub(crate) fn most_and_last(process: &'a Process) -> OverTime<'a> {
        let known = || process.tape.snapshots.iter().filter(|snapshot| snapshot.sums.method != 0);
        let most = known().max_by_key(|snapshot| snapshot.sums.anonymous_bytes);
        let last = known().max_by_key(|snapshot| snapshot.sums.tick);
        let mut chosen: Vec<&PageSnapshot> = most.into_iter().chain(last).collect();
        chosen.dedup_by_key(|snapshot| snapshot.sums.tick);
        OverTime::of(process, chosen)
    }

    /// Prepares the join of these snapshots, which are sorted by their time.
    fn of(process: &'a Process, mut snapshots: Vec<&'a PageSnapshot>) -> OverTime<'a> {
        let mut points = Vec::new();
        if !process.knows_blocks() {
            let divided = |snapshot: &&PageSnapshot| snapshot.division.as_deref().and_then(of_division);
            points = snapshots.iter().filter_map(|one| Some(Point::of(one.sums.tick, divided(one)?))).collect();
            snapshots.clear();
        }
        let mut covered = Covered::new(&[], page_bytes(process), MAX_GROUPS);
        for record in snapshots.iter().filter_map(|snapshot| process.page_snapshot(snapshot)) {
            covered.set_allocator(main_allocator(process, &record));
            if let Ok(runs) = record.runs() {
                covered.include(&runs, MAX_GROUPS);
            }
        }
        let ancestors = Ancestors::default();
        OverTime { process, snapshots, covered, ancestors, done: 0, blocks: 0, points }
    }
}

impl Model for OverTime<'_> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        if !self.snapshots.is_empty() {
            self.covered.alloc(event, block);
        }
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        if !self.snapshots.is_empty() {
            self.covered.resize(event, old, block);
        }
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if !self.snapshots.is_empty() {
            self.covered.free(event, old);
        }
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        self.covered.inherited(block, gone);
        self.ancestors.inherited(block, gone);
    }

    fn next_stop(&self) -> u64 {
        self.snapshots.get(self.done).map_or(u64::MAX, |snapshot| middle(&snapshot.sums))
    }

    fn stop(&mut self, live: &LiveSet) {
        let Some(snapshot) = self.snapshots.get(self.done) else { return };
        self.done += 1;
        if self.blocks > MAX_BLOCKS {
            return;
        }
        let Some(record) = self.process.page_snapshot(snapshot) else { return };
        let Ok(runs) = record.runs() else { return };
        let known = Some((live, &self.covered));
        let joined = join(self.process, &record, &runs, known, &self.ancestors);
        self.blocks += joined.blocks;
        self.points.push(Point::of(record.tick, joined));
    }
}
