//! One side of a comparison: a run, as a person names it, and its sums by site.

use crate::event::{Bound, Range};
use crate::load::{self, Events, Image, Recording};
use crate::missing::lines;
use crate::processes::ProcessFilter;
use crate::program_frames::Role;
use crate::progress::Progress;
use crate::report::frames::{FrameJson, blamed_frames, stack_json};
use crate::report::sums::{sums, within};
use crate::report::{Error, Filter};
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer, module_of};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::PathBuf;

/// A run, or a part of it.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The recording or file.
    pub path: PathBuf,
    /// Only these processes.
    pub processes: ProcessFilter,
    /// What was until this moment; none: the end.
    pub until: Option<Bound>,
    /// Only these blocks.
    pub filter: Filter,
}

/// Sums of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Allocations and resizes.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, live.
    pub live_blocks: u64,
    /// Live bytes.
    pub live_bytes: u64,
}

impl Sums {
    /// The numbers in the order of [`super::Values`].
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

/// Where a site is in its source: file name without folders, and line; none where no debug
/// information says it.
pub type Line = Option<(String, u32)>;

/// One line of a function that allocates.
#[derive(Clone, Debug, Default)]
pub struct At {
    /// Sums.
    pub sums: Sums,
    /// The file's whole path.
    pub file: Option<String>,
    /// The stack that allocated most.
    pub stack: Vec<FrameJson>,
    most: u64,
}

/// A run, measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// By the names of the innermost frames of the program, then by line.
    pub sites: FxHashMap<Vec<String>, FxHashMap<Line, At>>,
    /// The whole.
    pub total: Sums,
    /// The most live bytes at any moment; of one process image only.
    pub peak_bytes: Option<u64>,
    /// Length of the run; 0 when not known.
    pub seconds: f64,
    /// Whether it is of samples.
    pub is_sampled: bool,
    /// What is missing, in words.
    pub missing: Vec<String>,
}

/// What both sides know, so that both are named alike.
#[derive(Debug)]
pub struct Known {
    /// Whether some side has names alone, and no modules.
    names_alone: bool,
    /// Build-ids that all sides have: an offset in such a module means the same.
    builds: FxHashSet<Vec<u8>>,
}

impl Known {
    /// Looks at all sides.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn of(a: &[Side], b: &[Side], within_one: bool, symbols: &mut Symbolizer) -> Result<Known, Error> {
        let mut known = Known { names_alone: false, builds: FxHashSet::default() };
        let is_filtered = a.iter().chain(b).any(|side| !side.filter.is_all());
        // Recordings whose names are compared with those of the filter: what only one side has is a
        // change.
        let mut kept: Vec<(Recording, &Side)> = Vec::new();
        for (number, side) in a.iter().chain(b).enumerate() {
            let recording = load::open(&side.path)?;
            let images = images(&recording, side)?;
            if within_one && number == 0 {
                let until = b.first().and_then(|side| side.until);
                Range { from: side.until, to: until }.check(&images).map_err(Error::Unanswerable)?;
            }
            let has_modules = images.iter().any(|image| !image.stacks().modules.is_empty());
            let has_stacks = images.iter().any(|image| !image.stacks().is_empty());
            known.names_alone |= has_stacks && !has_modules;
            let modules = images.iter().flat_map(|image| &image.stacks().modules);
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
            let mut all: Vec<&Image> = Vec::new();
            for (recording, side) in &kept {
                all.extend(images(recording, side)?);
            }
            side.filter.check(&all, symbols).map_err(Error::Unanswerable)?;
        }
        Ok(known)
    }

    /// What a frame is called on both sides.
    fn name(&self, stacks: &Stacks, site: u32, frame: &Frame) -> String {
        match &frame.function {
            Some(function) => plain(function).to_string(),
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

    /// The role of a frame on both sides.
    fn role(&self, symbols: &Symbolizer, frame: &Frame) -> Role {
        match (self.names_alone, &frame.function) {
            (true, Some(function)) => symbols.roles().by_name(Some(function)),
            _ => frame.role,
        }
    }
}

/// A function's name without what a compiler adds to its copies and parts.
fn plain(function: &str) -> &str {
    let ends = [".constprop.", ".isra.", ".part.", ".cold", ".llvm.", ".lto_priv."];
    ends.iter().filter_map(|end| function.find(end)).min().map_or(function, |at| &function[..at])
}

fn images<'a>(recording: &'a Recording, side: &Side) -> Result<Vec<&'a Image>, Error> {
    let chosen = side.processes.select(std::slice::from_ref(recording));
    chosen.map_err(|why| match side.processes.is_all() {
        // It names the path already.
        true => Error::Unanswerable(why),
        false => Error::Unanswerable(format!("{}: {why}", side.path.display())),
    })
}

/// Measures a side.
///
/// # Errors
/// When it cannot be read, or needs events that it does not have.
pub fn measure(side: &Side, known: &Known, depth: usize, symbols: &mut Symbolizer) -> Result<Measured, Error> {
    let recording = load::open(&side.path)?;
    let progress = Progress::new("reading events");
    let mut measured = Measured::default();
    let mut missing = recording.missing.clone();
    let images = images(&recording, side)?;
    for image in &images {
        let range = Range { from: None, to: side.until };
        if (side.until.is_some() || !side.filter.is_all()) && matches!(image.events, Events::Profile) {
            let why = format!("{}: a profile holds only sums, and no moments", side.path.display());
            return Err(Error::Unanswerable(why));
        }
        let sums = if !side.filter.is_all() {
            let asked = crate::report::Query { range, filter: side.filter.clone(), ..Default::default() };
            crate::report::sums::of_asked(image, &asked, symbols, &progress)
        } else if range.is_all() {
            sums(image, &progress)
        } else {
            within(image, &range, &progress)
        };
        for found in &sums.missing {
            if !missing.contains(found) {
                missing.push(found.clone());
            }
        }
        measured.peak_bytes = (images.len() == 1 && sums.has_peak).then_some(sums.totals.peak_bytes);
        if image.has_times() {
            let end = image.span(&range).end_tick.min(image.tape.last_tick);
            measured.seconds = measured.seconds.max(image.clock.nanos(end) as f64 / 1e9);
        }
        for row in &sums.sites {
            let sums = Sums {
                allocs: row.allocs,
                bytes: row.bytes,
                live_blocks: row.allocs.saturating_sub(row.frees),
                live_bytes: row.bytes.saturating_sub(row.freed_bytes),
            };
            measured.total.add(&sums);
            let stacks = image.stacks();
            let (names, file, line) = named(stacks, row.site, known, depth, symbols);
            let short = file.as_deref().map(|file| file.rsplit('/').next().unwrap_or(file).to_string());
            let at = measured.sites.entry(names).or_default().entry(short.zip(line)).or_default();
            at.sums.add(&sums);
            if row.bytes > at.most || at.stack.is_empty() {
                (at.most, at.stack, at.file) = (row.bytes, stack_json(symbols, stacks, row.site), file);
            }
        }
    }
    let several = images.len() > 1 || recording.missing.len() == missing.len();
    let of = if several { format!("{}: ", side.path.display()) } else { String::new() };
    measured.is_sampled = images.iter().any(|image| image.tape.is_sampled());
    measured.missing = lines(&missing).into_iter().map(|missing| format!("{of}{missing}")).collect();
    Ok(measured)
}

/// The names that a site is matched by, and where the frame is that is blamed.
fn named(
    stacks: &Stacks,
    site: u32,
    known: &Known,
    depth: usize,
    symbols: &mut Symbolizer,
) -> (Vec<String>, Option<String>, Option<u32>) {
    let frames = blamed_frames(symbols, stacks, site, depth, |symbols, frame| known.role(symbols, frame));
    let Some((_, first)) = frames.first() else { return (vec!["(no stack)".into()], None, None) };
    let names = frames.iter().map(|(number, frame)| known.name(stacks, *number, frame)).collect();
    (names, first.file.clone(), first.line)
}
