//! Heaps and labels that a program names through `heaptape.h`, and the names of the allocators of a
//! process. A heap or label is a call site outside of all frames of the program.

use crate::load::Process;
use crate::model::block_filter::AllocatorFilter;
use crate::stacks::{Site, Stacks};
use heaptape_formats::pattern::Pattern;
use heaptape_formats::tape::{Entry, HEAP_PREFIX, LABEL_PREFIX, SiteSums, is_annotation};
use serde::Serialize;
use std::borrow::Cow;

/// Name of the allocator of all blocks that come from no allocator inside the program and from no
/// heap that it names.
pub const MALLOC: &str = "malloc";
/// Name of the allocator of blocks that the program reports without a heap.
const REPORTED: &str = "reported";

/// Returns the name of a heap or label at a site, without its prefix, if it has this prefix.
fn name<'a>(stacks: &'a Stacks, site: &Site, prefix: &str) -> Option<Cow<'a, str>> {
    let named = stacks.named.get((site.named as usize).checked_sub(1)?).filter(|_| is_annotation(site.address))?;
    named.function.strip_prefix(prefix.as_bytes()).map(String::from_utf8_lossy)
}

fn names(stacks: &Stacks, prefix: &str) -> Vec<String> {
    let sites = (1..=stacks.len() as u32).map(|number| stacks.site(number));
    let mut names: Vec<String> = sites.filter_map(|site| Some(name(stacks, &site, prefix)?.into_owned())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the labels of threads.
pub fn labels(stacks: &Stacks) -> Vec<String> {
    names(stacks, LABEL_PREFIX)
}

/// Returns the heaps that the program names.
pub fn heaps(stacks: &Stacks) -> Vec<String> {
    names(stacks, HEAP_PREFIX)
}

/// Returns for each site, by its number, whether its stack has an annotation with this prefix that
/// matches a pattern.
pub(crate) fn sites_below(stacks: &Stacks, prefix: &str, patterns: &[String]) -> Vec<bool> {
    let patterns: Vec<Pattern> = patterns.iter().map(|text| Pattern::whole(text)).collect();
    let mut found = vec![false; stacks.len() + 1];
    for number in 1..=stacks.len() as u32 {
        let site = stacks.site(number);
        let is_own = name(stacks, &site, prefix).is_some_and(|name| patterns.iter().any(|one| one.matches(&*name)));
        found[number as usize] = is_own || (site.parent < number && found[site.parent as usize]);
    }
    found
}

/// Sums of a heap or label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamedSums {
    /// Name of the heap or label.
    pub name: String,
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Bytes of the allocations and reallocations.
    pub bytes: u64,
    /// Number of blocks that are live at the end.
    pub live_blocks: u64,
    pub live_bytes: u64,
}

/// Returns the sums of all annotations with a prefix, those with most bytes first. `rows` are the
/// sums by site. What has several labels counts for each of them.
pub fn sums(stacks: &Stacks, rows: &[SiteSums], prefix: &str) -> Vec<NamedSums> {
    let names = names(stacks, prefix);
    let mut sums: Vec<NamedSums> =
        names.iter().map(|name| NamedSums { name: name.clone(), ..NamedSums::default() }).collect();
    for row in rows.iter().filter(|_| !names.is_empty()) {
        let mut found: Vec<usize> = stacks
            .stack(row.site)
            .filter_map(|(_, site)| name(stacks, &site, prefix))
            .filter_map(|name| names.binary_search_by(|known| known[..].cmp(&*name)).ok())
            .collect();
        found.sort_unstable();
        found.dedup();
        for index in found {
            let Some(sum) = sums.get_mut(index) else { continue };
            sum.allocs = sum.allocs.saturating_add(row.allocs);
            sum.bytes = sum.bytes.saturating_add(row.bytes);
            sum.live_blocks = sum.live_blocks.saturating_add(row.allocs.saturating_sub(row.frees));
            sum.live_bytes = sum.live_bytes.saturating_add(row.bytes.saturating_sub(row.freed_bytes));
        }
    }
    sums.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    sums
}

/// Returns the names of the allocators of a process that `--allocator` may name.
pub fn allocators(process: &Process) -> Vec<String> {
    let hooked = process.about.allocators.iter().filter(|allocator| allocator.found > 0);
    let inside = hooked.map(|allocator| allocator.name.clone());
    let mut names: Vec<String> = [MALLOC.to_owned(), REPORTED.to_owned()].into_iter().chain(inside).collect();
    names.extend(heaps(process.stacks()));
    names
}

/// Returns which blocks come from an allocator that matches one of the patterns.
pub(crate) fn blocks_of(process: &Process, patterns: &[String]) -> AllocatorFilter {
    let matches = |name: &str| patterns.iter().any(|text| Pattern::whole(text).matches(name));
    let mut filter =
        AllocatorFilter { sites: sites_below(process.stacks(), HEAP_PREFIX, patterns), entries: [false; 256] };
    for entry in 0..=u8::MAX {
        let Domain { inside, is_reported } = Domain::of(entry);
        filter.entries[usize::from(entry)] = match inside {
            // The last number is that of all allocators from there on.
            Some(number) => {
                process.about.allocators.iter().any(|one| one.found > 0 && one.number == number && matches(&one.name))
            }
            None => matches(if is_reported { REPORTED } else { MALLOC }),
        };
    }
    filter
}

/// The allocator of an event, as far as its function tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Number of the allocator inside the program.
    pub inside: Option<u8>,
    /// Whether the program reported the event.
    pub is_reported: bool,
}

impl Domain {
    /// Returns the allocator of an entry.
    pub fn of(entry: u8) -> Domain {
        let first = match entry {
            14..=17 => Some(Entry::AllocInside1),
            26..=29 => Some(Entry::FreeInside1),
            33..=36 => Some(Entry::ResizeInside1),
            _ => None,
        };
        let reported = [Entry::AllocReported, Entry::FreeReported, Entry::ResizeReported];
        Domain {
            inside: first.map(|first| entry - first as u8),
            is_reported: reported.iter().any(|one| *one as u8 == entry),
        }
    }
}
