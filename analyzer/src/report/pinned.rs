//! The call sites whose blocks keep free memory in use, those of blocks that were never written,
//! and the freed blocks that shared pages with them.

use super::ancestors::Ancestor;
use super::bills::{self, Joined};
use super::{Query, SiteDescription, SiteGroup};
use crate::event::Span;
use crate::load::Process;
use crate::model::neighbors::{Freed, Neighbor, Neighbors};
use crate::progress::Progress;
use crate::replay::replay;
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, count, duration};
use heaptape_formats::tape::Residency;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io;

/// Free memory on held pages from which on the freed blocks in it are looked for: that takes
/// another pass over the events.
const MIN_HELD: u64 = 1 << 20;
/// Maximum number of call sites with freed blocks beside those of one call site.
const MAX_NEIGHBORS: usize = 3;
/// Maximum number of call sites for which the text has freed blocks.
const MAX_SHOWN: usize = 3;
/// Freed blocks in less than one part in this many of the memory are in JSON only.
const MIN_SHARE: u64 = 50;
/// Memory of fewer bytes that is not resident is in JSON only.
const MIN_SHOWN: u64 = 1 << 20;

/// Free memory that the live blocks of a call site keep in use.
#[derive(Serialize)]
pub struct PinnedRow {
    pinned_bytes: u64,
    blocks: u64,
    live_bytes: u64,
    /// Free bytes that would be returned if the blocks of the site had pages of their own.
    pool_would_free_bytes: u64,
    /// Age of its youngest and oldest block on these pages, in nanoseconds.
    youngest_age_ns: Option<u64>,
    oldest_age_ns: Option<u64>,
    /// Freed blocks that were in this memory when its pages were fullest, by call site, those with
    /// the most bytes first.
    freed_neighbors: Vec<NeighborRow>,
    /// Folder of the process that allocated the blocks, if it is an ancestor of a forked child.
    #[serde(skip_serializing_if = "Option::is_none")]
    inherited_from: Option<String>,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct NeighborRow {
    /// Free bytes that held blocks of the site when the page was fullest.
    bytes: u64,
    /// Mean lifetime of its blocks that were freed on these pages, in nanoseconds.
    mean_lifetime_ns: Option<u64>,
    #[serde(flatten)]
    site: SiteDescription,
}

/// Memory of the live blocks of a call site that is not resident.
#[derive(Serialize)]
pub struct UntouchedRow {
    untouched_bytes: u64,
    /// Folder of the process that allocated the blocks, if it is an ancestor of a forked child.
    #[serde(skip_serializing_if = "Option::is_none")]
    inherited_from: Option<String>,
    #[serde(flatten)]
    site: SiteDescription,
}

/// The freed blocks on the pages of a snapshot that live blocks keep.
#[derive(Default)]
pub struct Shared {
    neighbors: Vec<Neighbor>,
    freed: Vec<Freed>,
}

impl Shared {
    /// Finds the freed blocks by another pass over the events up to the snapshot.
    pub fn find(process: &Process, snapshot: &Residency, joined: &Joined, progress: &Progress) -> Shared {
        if joined.resident.bill.held < MIN_HELD {
            return Shared::default();
        }
        let mut model = Neighbors::new(joined.held_pages.clone(), bills::page_bytes(process));
        let span = Span { end_tick: bills::middle(snapshot).saturating_add(1), ..Span::ALL };
        replay(process, span, progress, &mut model);
        let (neighbors, freed) = model.finish();
        Shared { neighbors, freed }
    }
}

/// The call sites of a snapshot.
#[derive(Serialize)]
pub struct Sites {
    /// The call sites whose blocks keep free memory in use, most bytes first.
    pub pinned: Vec<PinnedRow>,
    /// The call sites whose blocks are not in memory, most bytes first.
    pub untouched: Vec<UntouchedRow>,
}

/// What the rows of a process are made from.
struct Source<'a> {
    process: &'a Process,
    /// Numbers of its first call site and of the first one after, in the list of all sites.
    sites: std::ops::Range<usize>,
    /// Folder of the process, unless it is that of the snapshot.
    folder: Option<&'a str>,
}

/// Returns the rows of a snapshot, those with the most bytes first.
pub fn sites(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    snapshot: &Residency,
    joined: &Joined,
    shared: &Shared,
    ancestors: &[Ancestor],
) -> Sites {
    let end = ancestors.first().map_or(usize::MAX, |parent| parent.first_site as usize);
    let mut sources = vec![Source { process, sites: 0..end, folder: None }];
    for (index, ancestor) in ancestors.iter().enumerate() {
        let end = ancestors.get(index + 1).map_or(usize::MAX, |next| next.first_site as usize);
        let (process, folder) = (&ancestor.process, Some(&*ancestor.process.about.folder));
        sources.push(Source { process, sites: ancestor.first_site as usize..end, folder });
    }
    let mut found = Sites { pinned: Vec::new(), untouched: Vec::new() };
    for source in &sources {
        let all = &joined.resident.sites;
        let rows = &all[source.sites.start.min(all.len())..source.sites.end.min(all.len())];
        let numbered = || rows.iter().zip(0u32..);
        let page = bills::page_bytes(process);
        // A group's youngest block is stored as the largest tick, the oldest as the smallest one.
        let pinned = numbered().map(|(row, site)| {
            // The recorder does not know the ages of the blocks in a division of its own.
            let (low, high) = row.ticks.unwrap_or((u64::MAX, 0));
            let pool = (row.alone_pages * page).saturating_sub(row.alone_occupied.next_multiple_of(page));
            (site, [row.pinned, row.blocks, row.live, pool, u64::MAX - low, high])
        });
        let clock = process.clock;
        let age = |tick: u64| {
            let is_known = process.has_times() && tick != 0 && tick != u64::MAX;
            is_known.then(|| clock.span_nanos(snapshot.tick.saturating_sub(tick)))
        };
        let groups = query.grouping.group(source.process, symbols, pinned);
        let mut beside = match source.folder {
            None => freed_beside(query, process, symbols, &groups, shared),
            Some(_) => Vec::new(),
        }
        .into_iter();
        for group in groups.iter().take(query.view.top) {
            let [pinned_bytes, blocks, live_bytes, pool_would_free_bytes, ..] = group.values;
            let [.., low, high] = group.max;
            found.pinned.push(PinnedRow {
                pinned_bytes,
                blocks,
                live_bytes,
                pool_would_free_bytes,
                youngest_age_ns: age(high),
                oldest_age_ns: age(u64::MAX - low),
                freed_neighbors: beside.next().unwrap_or_default(),
                inherited_from: source.folder.map(str::to_owned),
                site: group.describe(source.process, symbols),
            });
        }
        let groups =
            query.grouping.group(source.process, symbols, numbered().map(|(row, site)| (site, [row.untouched])));
        found.untouched.extend(groups.iter().take(query.view.top).map(|group| UntouchedRow {
            untouched_bytes: group.values[0],
            inherited_from: source.folder.map(str::to_owned),
            site: group.describe(source.process, symbols),
        }));
    }
    // The order of equal rows is kept.
    found.pinned.sort_by_key(|row| std::cmp::Reverse(row.pinned_bytes));
    found.untouched.sort_by_key(|row| std::cmp::Reverse(row.untouched_bytes));
    found.pinned.truncate(query.view.top);
    found.untouched.truncate(query.view.top);
    found
}

/// Returns the freed blocks beside those of each of the first groups.
fn freed_beside(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    groups: &[SiteGroup],
    shared: &Shared,
) -> Vec<Vec<NeighborRow>> {
    let mut group_of: FxHashMap<u32, Option<usize>> = FxHashMap::default();
    let mut sums: Vec<FxHashMap<u32, u64>> = vec![FxHashMap::default(); groups.len().min(query.view.top)];
    for neighbor in &shared.neighbors {
        let group = *group_of.entry(neighbor.pinning).or_insert_with(|| {
            let key = query.grouping.key(process, symbols, neighbor.pinning);
            groups.iter().position(|group| group.has_key(&key))
        });
        if let Some(sums) = group.and_then(|group| sums.get_mut(group)) {
            *sums.entry(neighbor.freed).or_default() += neighbor.bytes;
        }
    }
    let mut rows = |sums: &FxHashMap<u32, u64>| -> Vec<NeighborRow> {
        let sites = sums.iter().map(|(site, bytes)| {
            let Freed { blocks, ticks } = shared.freed.get(*site as usize).copied().unwrap_or_default();
            (*site, [*bytes, blocks, ticks])
        });
        let mut sites: Vec<_> = sites.collect();
        sites.sort_unstable_by_key(|(site, _)| *site);
        let groups = query.grouping.group(process, symbols, sites.into_iter());
        let row = |group: &SiteGroup| {
            let [bytes, blocks, ticks, ..] = group.values;
            let mean = process.has_times().then(|| process.clock.span_nanos(ticks / blocks.max(1)));
            NeighborRow { bytes, mean_lifetime_ns: mean, site: group.describe(process, symbols) }
        };
        groups.iter().take(MAX_NEIGHBORS).map(row).collect()
    };
    sums.iter().map(&mut rows).collect()
}

/// Returns the label of a call site, which may be one of an ancestor.
fn label(site: &SiteDescription, inherited_from: Option<&str>) -> String {
    match inherited_from {
        Some(folder) => format!("(parent {folder}) {}", site.label),
        None => site.label.clone(),
    }
}

impl Sites {
    /// Returns the innermost frames of a call site, as many as distinguish it from the others.
    fn short_label(&self, row: &PinnedRow) -> String {
        let first = |label: &str, count: usize| label.split(" < ").take(count).collect::<Vec<_>>().join(" < ");
        let is_other = |other: &&PinnedRow| other.site.label != row.site.label;
        let is_shared = |count: usize| {
            let label = first(&row.site.label, count);
            self.pinned.iter().filter(is_other).any(|other| first(&other.site.label, count) == label)
        };
        first(&row.site.label, (1..3).find(|count| !is_shared(*count)).unwrap_or(3))
    }

    /// Prints which blocks keep free memory, and what was in it before.
    ///
    /// # Errors
    /// When the screen cannot be written.
    pub fn print_pinned(&self, screen: &mut Screen) -> io::Result<()> {
        if self.pinned.is_empty() {
            return Ok(());
        }
        screen.line("pinned: free memory that stays resident because these blocks are on its pages")?;
        let row = |row: &PinnedRow| {
            let age = match (row.youngest_age_ns, row.oldest_age_ns) {
                (Some(youngest), Some(oldest)) => format!("{} to {}", duration(youngest), duration(oldest)),
                _ => String::new(),
            };
            let label = label(&row.site, row.inherited_from.as_deref());
            let sizes = [row.pinned_bytes, row.live_bytes].map(bytes);
            sizes.into_iter().chain([count(row.blocks), bytes(row.pool_would_free_bytes), age, label]).collect()
        };
        let rows: Vec<Vec<String>> = self.pinned.iter().map(row).collect();
        screen.table(
            &["free memory", "kept by", "in blocks", "a pool would return", "their age", "allocated at"],
            &rows,
        )?;
        let is_shown = |bytes: u64, of: u64| bytes.saturating_mul(MIN_SHARE) >= of;
        let held = self.pinned.first().map_or(0, |row| row.pinned_bytes);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in self.pinned.iter().take(MAX_SHOWN).filter(|row| is_shown(row.pinned_bytes, held)) {
            let pinning = self.short_label(row);
            for freed in row.freed_neighbors.iter().filter(|freed| is_shown(freed.bytes, row.pinned_bytes)) {
                let lived = freed.mean_lifetime_ns.map(duration).unwrap_or_default();
                rows.push(vec![bytes(freed.bytes), lived, pinning.clone(), freed.site.label.clone()]);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        screen.line("what was in this memory before, when it was fullest")?;
        screen.table(&["bytes", "lived", "kept by", "allocated at"], &rows)
    }

    /// Prints which live blocks were never written.
    ///
    /// # Errors
    /// When the screen cannot be written.
    pub fn print_untouched(&self, screen: &mut Screen) -> io::Result<()> {
        let shown = self.untouched.iter().filter(|row| row.untouched_bytes >= MIN_SHOWN);
        let row =
            |row: &UntouchedRow| vec![bytes(row.untouched_bytes), label(&row.site, row.inherited_from.as_deref())];
        let rows: Vec<Vec<String>> = shown.map(row).collect();
        if rows.is_empty() {
            return Ok(());
        }
        screen.line("live and never written:")?;
        screen.table(&["bytes", "allocated at"], &rows)
    }
}
