//! Call sites summed up by what their stacks have in common, and how such a group is shown.

use super::frames::{CallSite, FrameJson, SourceLines, call_site, call_site_line, stack_json};
use super::grouping::{GroupBy, group_key};
use crate::load::Process;
use crate::symbols::Symbolizer;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// By what a report groups call sites; `None` for its default, [`FRAMES`] program frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grouping(pub Option<GroupBy>);

/// Number of innermost program frames by which call sites are grouped by default.
const FRAMES: usize = 3;
/// Maximum number of values by which call sites are summed up.
const VALUES: usize = 6;

/// Call sites that have the same group key.
#[derive(Clone, Debug)]
pub struct SiteGroup {
    call_site: CallSite,
    key: Vec<String>,
    by: Option<GroupBy>,
    /// The site with the largest first value.
    pub site: u32,
    /// Number of call sites in the group.
    pub sites: u64,
    /// Sums of the values that the report counts; 0 where it counts fewer.
    pub values: [u64; VALUES],
    /// For each value, its maximum over the sites.
    pub max: [u64; VALUES],
    largest: u64,
    /// Source lines of the blamed frames.
    lines: SourceLines,
}

impl Grouping {
    /// Groups rows of sites. The group with the largest first value comes first; groups whose
    /// first value is 0 are left out.
    pub fn group<const N: usize>(
        self,
        process: &Process,
        symbols: &mut Symbolizer,
        rows: impl Iterator<Item = (u32, [u64; N])>,
    ) -> Vec<SiteGroup> {
        self.group_rows(process, symbols, padded(rows), |values| values[0] > 0)
    }

    /// Groups rows as [`Self::group`] does, and keeps the groups of which `is_listed` holds. Their
    /// sums have the values of all their sites: blocks of 0 bytes are blocks, too.
    pub fn group_listed<const N: usize>(
        self,
        process: &Process,
        symbols: &mut Symbolizer,
        rows: impl Iterator<Item = (u32, [u64; N])>,
        is_listed: fn(&[u64; VALUES]) -> bool,
    ) -> Vec<SiteGroup> {
        self.group_rows(process, symbols, padded(rows), is_listed)
    }

    /// Returns the key of the group that a site belongs to: see [`SiteGroup::has_key`].
    pub fn key(self, process: &Process, symbols: &mut Symbolizer, site: u32) -> Vec<String> {
        let call_site = call_site(symbols, process.stacks(), site, FRAMES);
        self.key_of(process, symbols, site, &call_site)
    }

    fn key_of(self, process: &Process, symbols: &mut Symbolizer, site: u32, call_site: &CallSite) -> Vec<String> {
        match self.0 {
            None | Some(GroupBy::Frames(FRAMES)) => call_site.names.clone(),
            Some(by) => group_key(symbols, process.stacks(), site, by),
        }
    }

    /// Not generic, so that it's compiled once.
    fn group_rows(
        self,
        process: &Process,
        symbols: &mut Symbolizer,
        rows: Vec<(u32, [u64; VALUES])>,
        is_listed: fn(&[u64; VALUES]) -> bool,
    ) -> Vec<SiteGroup> {
        let mut groups: Vec<SiteGroup> = Vec::new();
        let mut known: FxHashMap<Vec<String>, usize> = FxHashMap::default();
        for (site, values) in rows.into_iter().filter(|(_, values)| values.iter().any(|value| *value > 0)) {
            let call_site = call_site(symbols, process.stacks(), site, FRAMES);
            let key = self.key_of(process, symbols, site, &call_site);
            let index = *known.entry(key.clone()).or_insert_with(|| {
                groups.push(SiteGroup {
                    call_site: call_site.clone(),
                    key,
                    by: self.0,
                    site,
                    sites: 0,
                    values: [0; VALUES],
                    max: [0; VALUES],
                    largest: 0,
                    lines: SourceLines::default(),
                });
                groups.len() - 1
            });
            let group = &mut groups[index];
            if is_listed(&values) {
                group.lines.add(&call_site.frame);
                group.sites += 1;
            }
            if values[0] > group.largest {
                (group.largest, group.site, group.call_site) = (values[0], site, call_site);
            }
            for ((sum, max), value) in group.values.iter_mut().zip(&mut group.max).zip(values) {
                *sum = sum.saturating_add(value);
                *max = value.max(*max);
            }
        }
        groups.retain(|group| is_listed(&group.values));
        groups.sort_by(|a, b| b.values[0].cmp(&a.values[0]).then_with(|| a.site.cmp(&b.site)));
        groups
    }
}

/// Returns rows with as many values as all groups have.
fn padded<const N: usize>(rows: impl Iterator<Item = (u32, [u64; N])>) -> Vec<(u32, [u64; VALUES])> {
    const { assert!(N <= VALUES) };
    let mut padded = Vec::new();
    for (site, values) in rows {
        let mut row = [0; VALUES];
        row[..N].copy_from_slice(&values);
        padded.push((site, row));
    }
    padded
}

/// How a group is shown: its call site on one line, and the whole stack of its largest site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteDescription {
    /// The innermost program frame and its callers, on one line.
    #[serde(rename = "place")]
    pub label: String,
    /// Number of call sites in the group.
    pub sites: u64,
    /// Number of source lines of the innermost frame; 0 when none is known.
    pub lines: u64,
    /// The function of a library by which the innermost program frame allocates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<FrameJson>,
    /// Call stack of the site with the largest first value, innermost frame first.
    pub stack: Vec<FrameJson>,
}

impl SiteGroup {
    /// Returns whether the sites with this key are in the group.
    pub(crate) fn has_key(&self, key: &[String]) -> bool {
        self.key == key
    }

    /// Returns the description of the group, with named frames.
    pub fn describe(&self, process: &Process, symbols: &mut Symbolizer) -> SiteDescription {
        SiteDescription {
            label: match self.by {
                Some(GroupBy::Function) => symbols.names().of(&self.key.join(" < ")),
                Some(GroupBy::File | GroupBy::Line | GroupBy::Module) => self.key.join(" < "),
                Some(GroupBy::Frames(count)) => {
                    let call_site = call_site(symbols, process.stacks(), self.site, count.max(1));
                    call_site_line(&call_site, &self.lines, symbols.names())
                }
                None | Some(GroupBy::Stack) => call_site_line(&self.call_site, &self.lines, symbols.names()),
            },
            sites: self.sites,
            lines: self.lines.count() as u64,
            library: self.call_site.library.as_ref().map(FrameJson::from),
            stack: stack_json(symbols, process.stacks(), self.site),
        }
    }
}
