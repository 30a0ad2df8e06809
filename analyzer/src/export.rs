//! Exports of recordings as files for other tools.
//!
//! An exporter is a file here with `pub struct Export`, and a line in the list below. The values of
//! `--format`, the help, the tables in the documentation and the rows of the tests are made from
//! that list. An exporter gets the selected processes ([`Source`]) and a target for files ([`Out`]),
//! and notes what its format can't hold. [`verify`] reads the files back and compares their sums
//! with the recording's.

mod by_thread;
mod heap_graph;
mod impossible;
pub(crate) mod measure;
mod memory_tracks;
pub(crate) mod merge;
pub(crate) mod object_table;
pub(crate) mod objects;
pub(crate) mod rebase;
mod rows;
pub(crate) mod stack_tree;
pub(crate) mod target;
pub(crate) mod tree;
pub mod verify;

pub use impossible::Impossible;
pub use measure::{Measure, UnknownMeasure};
pub use objects::Object;
pub(crate) use target::Out;
pub use target::Target;
pub use verify::Totals;

use crate::event::Range;
use crate::load::{self, Process, Recording};
use crate::missing::Missing;
use crate::processes::ProcessFilter;
use crate::progress::Progress;
use crate::report::coverage;
use crate::sums::{self, Sums};
use crate::symbols::{Detail, Origin, Symbolizer};
use heaptape_formats::Abi;
use rustc_hash::FxHashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

macro_rules! exporters {
    ($($name:ident,)*) => {
        $(pub mod $name;)*
        /// Every exporter, in the order of the help.
        pub const EXPORTERS: &[&dyn Exporter] = &[$(&$name::Export),*];
    };
}

exporters! {
    mtrc,
    mptl,
    gmon,
    dcpi,
    pprof,
    collapsed,
    svg,
    speedscope,
    firefox,
    perfetto,
    dhat,
    heaptrack,
    callgrind,
    massif,
    csv,
    json,
    parquet,
    html,
}

pub fn exporter(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.iter().copied().find(|exporter| exporter.name() == name)
}

/// Number of files that an export consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One file for all processes together.
    One,
    /// One file for each process; a folder of them when there are several.
    OnePerProcess,
    Folder,
}

/// What an exporter needs and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Whether the exporter needs events; otherwise, sums by site suffice.
    pub events: bool,
    /// Number of files that it writes.
    pub shape: Shape,
}

/// A format in which recordings are exported.
pub trait Exporter: Sync {
    /// Returns the value of `--format`.
    fn name(&self) -> &'static str;
    /// Returns the extension of the file names.
    fn extension(&self) -> &'static str;
    /// Returns one line for the help.
    fn summary(&self) -> &'static str;
    /// Returns what the exporter needs and writes.
    fn needs(&self) -> Needs;
    /// Writes the processes of the source.
    ///
    /// # Errors
    /// Returns an error when the processes do not hold what the format needs, or when a file cannot
    /// be written.
    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error>;
    /// Returns the expected sums of the written files, from the events of the processes or from a
    /// profile's own sums. Their names are those that [`verify::read`] uses for the sums of a file.
    ///
    /// # Errors
    /// Returns an error when the processes cannot be read.
    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error>;
    /// Returns whether the files can be read back, so that their sums are verified. Images cannot.
    fn is_read_back(&self) -> bool {
        true
    }
    /// Returns the actual sums of the written files.
    ///
    /// # Errors
    /// Returns an error when the files cannot be read back.
    fn held(&self, source: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let _ = source;
        verify::read(files)
    }
}

/// The reason why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A recording cannot be read.
    #[error(transparent)]
    Load(#[from] load::Failure),
    /// A file of another format cannot be opened.
    #[error(transparent)]
    Open(#[from] crate::unpack::Error),
    /// A file cannot be written.
    #[error("{0}")]
    Write(String, #[source] io::Error),
    /// The format cannot hold a value, or bytes of it cannot be read.
    #[error("{0}")]
    Format(String, #[source] heaptape_formats::Error),
    /// A written file is not valid JSON.
    #[error("{0}")]
    Json(String, #[source] serde_json::Error),
    /// No process is selected.
    #[error(transparent)]
    Select(#[from] crate::processes::SelectError),
    /// The time range selects nothing.
    #[error(transparent)]
    Range(#[from] crate::report::RangeError),
    /// The recording does not hold what the format needs, or the options do not fit it.
    #[error(transparent)]
    Impossible(#[from] Impossible),
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Time range of the run; `None` for the whole run.
    pub range: Option<Range>,
    pub processes: ProcessFilter,
    /// Measures to export; empty for the default of the exporter.
    pub what: Vec<Measure>,
    /// Whether to keep addresses below 2^31, which the real 64-bit mptrace shows correctly.
    pub for_mptrace: bool,
    /// Whether to write names of functions, files and lines with each event.
    pub names: bool,
    /// Whether to charge an object also for what others allocate on its behalf.
    pub through: bool,
    /// Byte order and word size, for formats that have a choice.
    pub flavour: Option<Abi>,
    /// Version number, for mpatrol's formats.
    pub version: Option<u64>,
    /// Whether to write a row for each event, for formats that otherwise have a row for each stack.
    pub each_event: bool,
    /// Whether to write the lines of source files around the frames, for the page.
    pub with_source: bool,
    /// Where the files are found that name frames, and which functions are allocator wrappers.
    pub origin: Origin,
}

/// The input of an exporter.
pub struct Source<'a> {
    /// The processes that the options select.
    pub processes: Vec<&'a Process>,
    /// The recordings of these processes, in the order of the command line.
    pub recordings: &'a [Recording],
    /// The content of `recording.json`, if there is one.
    pub about: Option<&'a heaptape_formats::recording::Recording>,
    pub options: &'a Options,
    /// The symbolizer, which names addresses.
    pub symbols: Symbolizer,
    /// What is missing of the processes, as far as it has been found so far.
    pub missing: Vec<Missing>,
    progress: Progress,
    /// Sums that have been computed, by the address of their process.
    known: FxHashMap<*const Process, Rc<Sums>>,
}

impl<'a> Source<'a> {
    /// Selects the processes of recordings.
    ///
    /// # Errors
    /// Returns an error when no process matches the options.
    pub fn new(recordings: &'a [Recording], options: &'a Options) -> Result<Self, Error> {
        let processes = options.processes.select(recordings)?;
        options.range.clone().unwrap_or_default().check(&processes)?;
        let mut missing: Vec<Missing> = recordings.iter().flat_map(|recording| recording.missing.clone()).collect();
        missing.extend(processes.iter().flat_map(|process| process.missing.clone()));
        Ok(Source {
            processes,
            recordings,
            about: recordings.iter().find_map(|recording| recording.about.as_ref()),
            options,
            symbols: Symbolizer::from(Detail::Full, options.origin.clone()),
            missing,
            progress: Progress::new("exporting"),
            known: FxHashMap::default(),
        })
    }

    /// Returns the selected processes of a recording.
    pub(crate) fn processes_of(&self, recording: &'a Recording) -> Vec<&'a Process> {
        recording
            .processes
            .iter()
            .filter(|process| self.processes.iter().any(|selected| std::ptr::eq(*selected, *process)))
            .collect()
    }

    /// Returns the selected time range.
    pub fn range(&self) -> Range {
        self.options.range.clone().unwrap_or_default()
    }

    /// Returns the progress display.
    pub const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the totals and the sums by site of a process.
    pub fn sums(&mut self, process: &Process) -> Rc<Sums> {
        if let Some(known) = self.known.get(&std::ptr::from_ref(process)) {
            return known.clone();
        }
        let range = self.range();
        let sums = if range.is_all() {
            sums::sums(process, &self.progress)
        } else {
            sums::sums_within(process, &range, &self.progress)
        };
        self.found(&sums.missing);
        let sums = Rc::new(sums);
        self.known.insert(process, sums.clone());
        sums
    }

    /// Adds what was found missing during the export.
    pub fn found(&mut self, missing: &[Missing]) {
        for one in missing {
            if !self.missing.contains(one) {
                self.missing.push(one.clone());
            }
        }
    }
}

/// The result of an export.
#[derive(Debug, Default)]
pub struct Written {
    /// The files in the order in which they were written; empty for standard output.
    pub files: Vec<PathBuf>,
    /// What the format could not hold, and other notes.
    pub notes: Vec<String>,
    pub missing: Vec<Missing>,
    /// The comparisons of sums, if verification was requested.
    pub verdicts: Vec<verify::Verdict>,
}

impl Written {
    /// Returns whether the files hold everything, as far as it is known.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.verdicts.iter().all(|verdict| verdict.holds())
    }
}

/// Exports recordings or files. If `verify` is set, the files are read back.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::export::{self, Options};
///
/// # let folder = tempfile::tempdir()?;
/// # let target = folder.path().join("stacks.txt");
/// let exporter = export::exporter("collapsed").unwrap();
/// let written = export::run(exporter, &[path.into()], &Options::default(), Some(&target), true)?;
/// assert!(written.is_whole());
/// assert!(std::fs::read_to_string(&written.files[0])?.contains("main;keep_two"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error when a recording cannot be read, when the processes do not hold what the format
/// needs, or when a file cannot be written.
pub fn run(
    exporter: &dyn Exporter,
    paths: &[PathBuf],
    options: &Options,
    target: Option<&Path>,
    verify: bool,
) -> Result<Written, Error> {
    if verify && !exporter.is_read_back() {
        return Err(Impossible::NotReadBack(exporter.name()).into());
    }
    let mut recordings: Vec<Recording> = load::open_all(paths)?;
    load::place_modules(&mut recordings, options.origin.sysroot.as_deref());
    options.processes.leave_out_unrecorded(&mut recordings);
    coverage::note_unseen(&mut recordings, &options.processes);
    let mut source = Source::new(&recordings, options)?;
    let needs = exporter.needs();
    if needs.events {
        source.processes.retain(|process| process.has_events());
    }
    if source.processes.is_empty() {
        let why = if needs.events { Impossible::NoEvents(exporter.name()) } else { Impossible::NoProcess };
        return Err(why.into());
    }
    let several = needs.shape == Shape::Folder || needs.shape == Shape::OnePerProcess && source.processes.len() > 1;
    let mut out = Out::new(Target::of(exporter, paths, target, several)?);
    match needs.shape {
        Shape::OnePerProcess if several => {
            for process in std::mem::take(&mut source.processes) {
                source.processes.push(process);
                out.next_name(format!("{}.{}", process.about.folder, exporter.extension()));
                exporter.write(&mut source, &mut out)?;
                source.processes.clear();
            }
            source.processes = processes_again(&recordings, options, needs);
        }
        _ => exporter.write(&mut source, &mut out)?,
    }
    let mut written = Written::default();
    if verify {
        let held = exporter.held(&source, &out.files)?;
        written.verdicts = verify::compare(&exporter.totals(&mut source)?, &held);
    }
    (written.files, written.notes, written.missing) = (out.files, out.notes, source.missing);
    Ok(written)
}

fn processes_again<'a>(recordings: &'a [Recording], options: &Options, needs: Needs) -> Vec<&'a Process> {
    let all = recordings.iter().flat_map(|recording| &recording.processes);
    all.filter(|process| options.processes.matches(process))
        .filter(|process| !needs.events || process.has_events())
        .collect()
}
