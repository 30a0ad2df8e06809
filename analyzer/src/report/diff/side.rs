//! One side of a comparison: the run that the command line names, and its sums by site.

use crate::event::{Bound, Range};
use crate::load::{self, Events, Process, Recording};
use crate::missing::{Missing, lines};
use crate::processes::ProcessFilter;
use crate::program_frames::Role;
use crate::progress::Progress;
use crate::report::frames::{FrameJson, blamed_frames, stack_json};
use crate::report::{Error, Filter, Scope, Unanswerable, mapped};
use crate::stacks::Stacks;
use crate::sums::{sums, sums_within};
use crate::symbols::{Frame, Symbolizer, module_of};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::PathBuf;

/// A run, or the time up to a point in it.
#[derive(Clone, Debug, Default)]
pub struct DiffInput {
    /// Path of the recording or file.
    pub path: PathBuf,
    /// Folders of earlier segments of its processes, whose events count, too.
    pub earlier: Vec<PathBuf>,
    pub processes: ProcessFilter,
    /// Point in time up to which events count; `None` for the end.
    pub until: Option<Bound>,
    /// Which blocks are selected.
    pub filter: Filter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of bytes that these allocated.
    pub bytes: u64,
    pub live_blocks: u64,
    pub live_bytes: u64,
}

impl Sums {
    /// Returns the sums in the order of [`super::Values`].
    pub const fn values(&self) -> [f64; 4] {
        [self.live_bytes as f64, self.live_blocks as f64, self.bytes as f64, self.allocs as f64]
    }

    fn add(&mut self, other: &Sums) {
        self.allocs += other.allocs;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.live_blocks += other.live_blocks;
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
    }
}

/// Location of a site in its source: file name without folders, and line; `None` where debug
/// information does not contain it.
pub(super) type Line = Option<(String, u32)>;

/// Sums of one source line of a function.
#[derive(Clone, Debug, Default)]
pub(super) struct LineSums {
    pub sums: Sums,
    /// Path of the source file.
    pub file: Option<String>,
    /// Call stack of the site that allocated most.
    pub stack: Vec<FrameJson>,
    /// Number of bytes that this site allocated.
    most: u64,
}

/// The sums of a run.
#[derive(Debug, Default)]
pub(super) struct Measurement {
    /// Sums by the names of the innermost program frames, then by source line.
    pub sites: FxHashMap<Vec<String>, FxHashMap<Line, LineSums>>,
    /// Sums of the whole run.
    pub total: Sums,
    /// Bytes that the program has mapped itself, without reserved memory, by the same names.
    pub mapped: FxHashMap<Vec<String>, u64>,
    /// Peak of the live bytes, if the side is a single process.
    pub peak_bytes: Option<u64>,
    /// Length of the run in seconds; 0 if unknown.
    pub seconds: f64,
    /// Whether a process of the run is sampled.
    pub is_sampled: bool,
    /// What is missing from the recording, as sentences.
    pub missing: Vec<String>,
}

/// What is known of both sides, so that both are named alike.
#[derive(Debug)]
pub(super) struct NameMatcher {
    /// Whether a side has names without modules.
    names_alone: bool,
    /// Build ids that all sides have: an offset in such a module means the same.
    builds: FxHashSet<Vec<u8>>,
}

impl NameMatcher {
    /// Reads the modules of all sides, and checks their filters and time ranges.
    ///
    /// # Errors
    /// Returns an error when a side cannot be read, or when its selection of processes, times or
    /// blocks is empty.
    pub(super) fn of(
        a: &[DiffInput],
        b: &[DiffInput],
        within_one: bool,
        symbols: &mut Symbolizer,
    ) -> Result<NameMatcher, Error> {
        let mut known = NameMatcher { names_alone: false, builds: FxHashSet::default() };
        let is_filtered = a.iter().chain(b).any(|side| !side.filter.is_all());
        // Recordings whose names are compared with those of the filter. A name that only one side
        // has is a change.
        let mut kept: Vec<(Recording, &DiffInput)> = Vec::new();
        for (number, side) in a.iter().chain(b).enumerate() {
            let recording = open(side, symbols)?;
            let processes = processes(&recording, side)?;
            if within_one && number == 0 {
                let until = b.first().and_then(|side| side.until.clone());
                Range { from: side.until.clone(), to: until }.check(&processes)?;
            }
            let has_modules = processes.iter().any(|process| !process.stacks().modules.is_empty());
            let has_stacks = processes.iter().any(|process| !process.stacks().is_empty());
            known.names_alone |= has_stacks && !has_modules;
            let modules = processes.iter().flat_map(|process| &process.stacks().modules);
            let ids = modules.map(|module| module.build_id.clone()).filter(|id| !id.is_empty());
            let own: FxHashSet<Vec<u8>> = ids.collect();
            if number == 0 {
                known.builds = own;
            } else {
                known.builds.retain(|id| own.contains(id));
            }
            if is_filtered {
                kept.push((recording, side));
            }
        }
        if let Some(side) = a.first().filter(|_| is_filtered) {
            let mut all: Vec<&Process> = Vec::new();
            for (recording, side) in &kept {
                all.extend(processes(recording, side)?);
            }
            side.filter.check(&all, symbols)?;
        }
        Ok(known)
    }

    /// Returns the name of a frame that is the same on both sides.
    fn name(&self, stacks: &Stacks, site: u32, frame: &Frame) -> String {
        match &frame.function {
            Some(function) => without_clone_suffix(function).to_string(),
            None => {
                let same = |id: &Vec<u8>| self.builds.contains(id);
                let module = module_of(stacks, &stacks.site(site));
                match module.is_some_and(|module| same(&module.build_id)) {
                    true => frame.title(),
                    false if frame.module_name().is_empty() => "(unknown)".into(),
                    false => format!("{} (no name)", frame.module_name()),
                }
            }
        }
    }

    /// Returns the role of a frame that is the same on both sides.
    fn role(&self, symbols: &Symbolizer, frame: &Frame) -> Role {
        match (self.names_alone, &frame.function) {
            (true, Some(function)) => symbols.roles().by_name(Some(function)),
            _ => frame.role,
        }
    }
}

/// Returns a function's name without the suffixes that a compiler adds to its clones and split
/// parts.
fn without_clone_suffix(function: &str) -> &str {
    let ends = [".constprop.", ".isra.", ".part.", ".cold", ".llvm.", ".lto_priv."];
    ends.iter().filter_map(|end| function.find(end)).min().map_or(function, |length| &function[..length])
}

/// Opens a side. Its processes have the events of their earlier segments.
fn open(side: &DiffInput, symbols: &Symbolizer) -> Result<Recording, Error> {
    let paths: Vec<PathBuf> = side.earlier.iter().chain([&side.path]).cloned().collect();
    let last = load::open_all(&paths)?.pop();
    let mut recording = [last.map_or_else(|| load::open(&side.path), Ok)?];
    load::place_modules(&mut recording, symbols.sysroot());
    let [recording] = recording;
    Ok(recording)
}

/// Returns the selected processes of a side.
fn processes<'a>(recording: &'a Recording, side: &DiffInput) -> Result<Vec<&'a Process>, Error> {
    let chosen = side.processes.select(std::slice::from_ref(recording));
    chosen.map_err(|source| match side.processes.is_all() {
        // The message already contains the path.
        true => Error::Select(source),
        false => Error::SelectSide { path: side.path.clone(), source },
    })
}

/// Returns the sums of a side.
///
/// # Errors
/// Returns an error when the side cannot be read, or when it needs events that it does not have.
pub(super) fn measure(
    side: &DiffInput,
    known: &NameMatcher,
    depth: usize,
    symbols: &mut Symbolizer,
) -> Result<Measurement, Error> {
    let recording = open(side, symbols)?;
    let progress = Progress::new("reading events");
    let mut measured = Measurement::default();
    let mut missing = recording.missing.clone();
    let processes = processes(&recording, side)?;
    for process in &processes {
        let range = Range { from: None, to: side.until.clone() };
        if (side.until.is_some() || !side.filter.is_all()) && matches!(process.events, Events::Profile) {
            return Err(Unanswerable::OnlySums(side.path.clone()).into());
        }
        let sums = if !side.filter.is_all() {
            let scope = Scope { range: range.clone(), filter: side.filter.clone(), ..Scope::default() };
            scope.sums(process, symbols, &progress)
        } else if range.is_all() {
            sums(process, &progress)
        } else {
            sums_within(process, &range, &progress)
        };
        for found in &sums.missing {
            if !missing.contains(found) {
                missing.push(found.clone());
            }
        }
        measured.peak_bytes = (processes.len() == 1 && sums.has_peak).then_some(sums.totals.peak_bytes);
        if process.has_times() {
            let end = process.span(&range).end_tick.min(process.tape.last_tick);
            measured.seconds = measured.seconds.max(process.clock.nanos(end) as f64 / 1e9);
        }
        if side.filter.is_all() {
            let ranges = mapped::ranges_at(process, process.span(&range).end_tick.saturating_sub(1));
            for (mapped, bytes) in mapped::own(&ranges).filter(|(_, bytes)| bytes.used > 0) {
                let SiteKey { names, .. } = named(process.stacks(), mapped.by.site, known, depth, symbols);
                let sum = measured.mapped.entry(names).or_default();
                *sum = sum.saturating_add(bytes.used);
            }
        }
        for row in &sums.sites {
            let sums = Sums {
                allocs: row.allocs,
                bytes: row.bytes,
                live_blocks: row.allocs.saturating_sub(row.frees),
                live_bytes: row.bytes.saturating_sub(row.freed_bytes),
            };
            measured.total.add(&sums);
            let stacks = process.stacks();
            let SiteKey { names, file, line } = named(stacks, row.site, known, depth, symbols);
            let short = file.as_deref().map(|file| file.rsplit('/').next().unwrap_or(file).to_string());
            let sums_of_line = measured.sites.entry(names).or_default().entry(short.zip(line)).or_default();
            sums_of_line.sums.add(&sums);
            if row.bytes > sums_of_line.most || sums_of_line.stack.is_empty() {
                (sums_of_line.most, sums_of_line.stack, sums_of_line.file) =
                    (row.bytes, stack_json(symbols, stacks, row.site), file);
            }
        }
    }
    if side.processes.running {
        // They have no end yet, and neither has their epoch.
        missing.retain(|one| !matches!(one, Missing::Unfinished | Missing::NoEnd));
    }
    let several = processes.len() > 1 || recording.missing.len() == missing.len();
    let of = if several { format!("{}: ", side.path.display()) } else { String::new() };
    measured.is_sampled = processes.iter().any(|process| process.tape.is_sampled());
    measured.missing = lines(&missing).into_iter().map(|missing| format!("{of}{missing}")).collect();
    Ok(measured)
}

/// What a site is matched by: names of functions, and the location of the blamed frame.
struct SiteKey {
    names: Vec<String>,
    file: Option<String>,
    line: Option<u32>,
}

fn named(stacks: &Stacks, site: u32, known: &NameMatcher, depth: usize, symbols: &mut Symbolizer) -> SiteKey {
    let frames = blamed_frames(symbols, stacks, site, depth, |symbols, frame| known.role(symbols, frame)).frames;
    let Some((_, first)) = frames.first() else {
        return SiteKey { names: vec!["(no stack)".into()], file: None, line: None };
    };
    let names = frames.iter().map(|(number, frame)| known.name(stacks, *number, frame)).collect();
    SiteKey { names, file: first.file.clone(), line: first.line }
}
