//! What the reports on one subject have in common: the query, the processes that it selects, and
//! how call sites are grouped and shown.

use super::filter::Filter;
use super::frames::{CallSite, FrameJson, SourceLines, call_site, call_site_line, stack_json};
use super::grouping::{GroupBy, group_key};
use super::mapping_filter::MappingFilter;
use super::{Error, coverage};
use crate::event::{Range, Span};
use crate::load::{self, Process, Recording, StartPoint};
use crate::missing::Missing;
use crate::model::Model;
use crate::model::block_filter::Filtered;
use crate::processes::ProcessFilter;
use crate::progress::Progress;
use crate::replay::{self, Replay, replay};
use crate::report::Unanswerable;
use crate::sort::SortRows;
use crate::sums::{Models, Sums, sums_of_replay};
use crate::symbols::{Detail, Origin, Symbolizer};
use crate::text::duration;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::path::PathBuf;

/// Number of innermost program frames by which call sites are grouped by default.
const FRAMES: usize = 3;
/// A query: which recordings, processes, blocks and times a report is about, and how it is printed.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Recordings and files to read.
    pub paths: Vec<PathBuf>,
    /// Whether to print JSON instead of text.
    pub json: bool,
    /// Time range of the run.
    pub range: Range,
    /// Maximum number of rows of a table.
    pub top: usize,
    pub processes: ProcessFilter,
    /// Which blocks are selected.
    pub filter: Filter,
    /// How stacks are grouped; `None` for the default of the report.
    pub by: Option<GroupBy>,
    /// Where the files are found that name frames.
    pub origin: Origin,
    /// Whether mappings, or blocks, are left out.
    pub mappings: MappingFilter,
}

impl Query {
    /// Opens the recordings and files of the query.
    ///
    /// # Errors
    /// Returns an error when one of the paths cannot be read.
    pub fn open(&self) -> Result<Vec<Recording>, Error> {
        let mut recordings = load::open_all(&self.paths)?;
        self.processes.leave_out_unrecorded(&mut recordings);
        coverage::note_unseen(&mut recordings, &self.processes);
        Ok(recordings)
    }

    /// Returns a symbolizer that names frames in full.
    pub fn symbolizer(&self) -> Symbolizer {
        let full_names = self.json || self.origin.full_names;
        Symbolizer::from(Detail::Full, Origin { full_names, ..self.origin.clone() })
    }

    /// Returns the selected processes.
    ///
    /// # Errors
    /// Returns [`Error::Unanswerable`] when the report would be about nothing: when nothing was
    /// recorded, when no process, thread, module or function has a given name, or when the time
    /// range is empty.
    pub fn processes<'a>(
        &self,
        recordings: &'a [Recording],
        symbols: &mut Symbolizer,
    ) -> Result<Vec<&'a Process>, Error> {
        let chosen = self.processes.select(recordings)?;
        self.range.check(&chosen)?;
        self.filter.check(&chosen, symbols)?;
        Ok(chosen)
    }

    /// Replays the selected blocks of the query. The live set at the end holds only these.
    pub fn replay(
        &self,
        process: &Process,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut impl Replay,
    ) -> replay::Outcome {
        self.replay_from(process, None, span, symbols, progress, model)
    }

    /// Returns the sums of the blocks and the time range of the query.
    pub fn sums(&self, process: &Process, symbols: &mut Symbolizer, progress: &Progress) -> Sums {
        let span = process.span(&self.range);
        sums_of_replay(process, &mut |Models { totals, sites, peak }| {
            self.replay(process, span, symbols, progress, &mut (totals, sites, peak))
        })
    }

    /// Returns where a pass may begin that needs what was live at the start of the span. With a
    /// filter there is none, because summaries do not divide live blocks by it.
    pub fn replay_start(&self, process: &Process, span: Span, by_site: bool) -> Option<StartPoint> {
        if self.filter.is_all() { process.start_before(span, by_site) } else { None }
    }

    /// Replays the selected blocks of the query from a start on.
    pub fn replay_from(
        &self,
        process: &Process,
        start: Option<&StartPoint>,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut impl Replay,
    ) -> replay::Outcome {
        if self.filter.is_all() {
            return model.replay_from(process, start, span, progress);
        }
        self.replay_filtered(process, span, symbols, progress, model)
    }

    /// Replays the selected blocks of a query with a filter.
    fn replay_filtered(
        &self,
        process: &Process,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut dyn Model,
    ) -> replay::Outcome {
        let chosen = self.filter.resolve(process, symbols, progress);
        let mut outcome = replay(process, span, progress, &mut Filtered { filter: &chosen, model });
        outcome.live.retain(|index, block| chosen.matches(index, block));
        outcome
    }

    /// Returns whether the query is about the whole run and all blocks, so that ready sums answer
    /// it.
    pub const fn is_all(&self) -> bool {
        self.range.is_all() && self.filter.is_all()
    }
}

/// Checks that sums count frees.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when the sums hold only the live bytes at the peak and at other
/// points in time, as Massif's do.
pub fn needs_frees(sums: &Sums, process: &Process) -> Result<(), Error> {
    if sums.totals.allocs > 0 || sums.sites.iter().all(|row| row.peak_bytes == 0) {
        return Ok(());
    }
    Err(Unanswerable::NoAllocations(process.path.clone()).into())
}

/// The fields with which the JSON of each process begins.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessHeader {
    /// Id of the process.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Folder of the process in the recording.
    pub folder: String,
    /// Mean number of bytes between samples; 0 when every event was recorded. In a sampled
    /// recording, bytes are estimates, and blocks are those of the sample.
    pub sample_bytes: u64,
    /// Whether nothing is missing from the recording of the process.
    pub complete: bool,
    pub missing: Vec<String>,
    /// Why calls that map memory are not recorded; absent if they are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unseen_mappings: String,
}

impl ProcessHeader {
    /// Returns the header of the report on a process.
    pub fn of(process: &Process, missing: &[Missing]) -> Self {
        ProcessHeader {
            pid: process.about.pid,
            exe: process.about.exe.clone(),
            folder: process.about.folder.clone(),
            sample_bytes: process.tape.process.sample_bytes,
            complete: missing.is_empty(),
            missing: missing.iter().map(ToString::to_string).collect(),
            unseen_mappings: process.about.unseen_mappings.clone(),
        }
    }
}

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

fn key_of(query: &Query, process: &Process, symbols: &mut Symbolizer, site: u32, call_site: &CallSite) -> Vec<String> {
    match query.by {
        None | Some(GroupBy::Frames(FRAMES)) => call_site.names.clone(),
        Some(by) => group_key(symbols, process.stacks(), site, by),
    }
}

/// Returns the key of the group of [`group_sites`] that a site belongs to.
pub fn site_key(query: &Query, process: &Process, symbols: &mut Symbolizer, site: u32) -> Vec<String> {
    let call_site = call_site(symbols, process.stacks(), site, FRAMES);
    key_of(query, process, symbols, site, &call_site)
}

/// Groups rows of sites, by default by their innermost program frames. The group with the largest
/// first value comes first; groups whose first value is 0 are left out.
pub fn group_sites<const N: usize>(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    rows: impl Iterator<Item = (u32, [u64; N])>,
) -> Vec<SiteGroup> {
    group_rows(query, process, symbols, padded(rows), |values| values[0] > 0)
}

/// Groups rows as [`group_sites`] does, and keeps the groups of which `is_listed` holds. Their sums
/// have the values of all their sites: blocks of 0 bytes are blocks, too.
pub fn group_sites_by<const N: usize>(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    rows: impl Iterator<Item = (u32, [u64; N])>,
    is_listed: fn(&[u64; VALUES]) -> bool,
) -> Vec<SiteGroup> {
    group_rows(query, process, symbols, padded(rows), is_listed)
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

/// Groups rows of sites. It is not generic, so that it is compiled once, and with optimization.
fn group_rows(
    query: &Query,
    process: &Process,
    symbols: &mut Symbolizer,
    rows: Vec<(u32, [u64; VALUES])>,
    is_listed: fn(&[u64; VALUES]) -> bool,
) -> Vec<SiteGroup> {
    let mut groups: Vec<SiteGroup> = Vec::new();
    let mut known: FxHashMap<Vec<String>, usize> = FxHashMap::default();
    for (site, values) in rows.into_iter().filter(|(_, values)| values.iter().any(|value| *value > 0)) {
        let call_site = call_site(symbols, process.stacks(), site, FRAMES);
        let key = key_of(query, process, symbols, site, &call_site);
        let index = *known.entry(key.clone()).or_insert_with(|| {
            let (call_site, lines) = (call_site.clone(), SourceLines::default());
            groups.push(SiteGroup {
                call_site,
                key,
                by: query.by,
                site,
                sites: 0,
                values: [0; VALUES],
                max: [0; VALUES],
                largest: 0,
                lines,
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
    groups.sort_rows_by(|a, b| b.values[0].cmp(&a.values[0]).then_with(|| a.site.cmp(&b.site)));
    groups
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
    pub fn has_key(&self, key: &[String]) -> bool {
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

/// A point in time of a run: nanoseconds after the start if the recording has times, and the number
/// of events before it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PointInTime {
    /// Nanoseconds after the start; `None` without times.
    pub time_ns: Option<u64>,
    /// Number of events before it; `None` if unknown.
    pub event: Option<u64>,
}

impl PointInTime {
    /// Returns the point in time of a tick and, where it is known, of an event number.
    pub fn at(process: &Process, tick: u64, event: Option<u64>) -> Self {
        PointInTime { time_ns: process.has_times().then(|| process.clock.nanos(tick)), event }
    }

    /// Returns the point in time as text for people.
    pub fn text(&self) -> String {
        match (self.time_ns, self.event) {
            (Some(nanos), _) => format!("{} after the start", duration(nanos)),
            (None, Some(event)) => format!("event {event}"),
            (None, None) => "an unknown point in time".into(),
        }
    }
}
