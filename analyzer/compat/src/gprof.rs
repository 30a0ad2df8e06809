//! gprof's view of gmon.out files: flat profile, call graph, lines, annotated source, sums and file
//! information. Text and columns are those of GNU gprof 2.40. `docs/gmon.md` lists the differences.

mod entries;
mod flat;
mod graph;
mod image;
pub mod options;
mod samples;
mod source;
mod specs;
mod symbols;
mod view;

use crate::input::{self, RecordingInput};
use graph::{Filter, Graph};
use heaptape_analyzer::export::{self, Measure};
use heaptape_analyzer::is_recording;
use heaptape_analyzer::symbols::ObjectError;
use heaptape_analyzer::unpack;
use heaptape_formats::gmon::{self, Form, Gmon, Hints, Union};
use heaptape_formats::regular;
use image::Image;
pub use options::Options;
use specs::{ArcSelection, Selection, preference};
use std::io::Write;
use std::path::Path;
use symbols::{Rules, Table};
use view::{Names, View};

/// The error of the view.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The executable cannot be read.
    #[error("{path}")]
    Executable { path: String, source: std::io::Error },
    /// The executable is a damaged program file, or none.
    #[error("{path}{}", if matches!(.source, ObjectError::Damaged(_)) { ": not a program that can be read" } else { "" })]
    Object { path: String, source: ObjectError },
    /// The executable has no symbols.
    #[error("file `{0}' has no symbols")]
    NoSymbols(String),
    /// A profile cannot be opened.
    #[error(transparent)]
    Open(#[from] unpack::Error),
    /// A file of another format cannot be converted.
    #[error(transparent)]
    Convert(#[from] export::Error),
    /// A profile cannot be parsed, or does not fit the others.
    #[error("{path}{hint}")]
    Profile {
        path: String,
        /// What the profile seems to be, or nothing.
        hint: String,
        source: heaptape_formats::Error,
    },
    /// A recording cannot be read, or has no tables of the executable.
    #[error("{path}")]
    Recording {
        path: String,
        /// Why there are no tables.
        source: export::Error,
    },
    /// A recording without the path of its program was given instead of an executable.
    #[error("{0}: the path of its program is not known")]
    NoProgram(String),
    /// The flat profile needs a histogram.
    #[error("gmon.out file is missing histogram")]
    NoHistogram,
    /// The call graph needs arcs.
    #[error("gmon.out file is missing call-graph data")]
    NoArcs,
    /// The sum does not fit the format of gmon.sum.
    #[error("gmon.sum")]
    Sum(#[source] heaptape_formats::Error),
    /// Writing the output failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Whether all input could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// All input was read.
    Complete,
    /// A file was truncated. Its readable part was used.
    Truncated,
}

type Result<T> = std::result::Result<T, Failure>;

fn profile_failure(path: &str, source: heaptape_formats::Error) -> Failure {
    Failure::Profile { path: path.to_owned(), hint: String::new(), source }
}

/// Runs gprof: writes listings to `out`, warnings to `err`, and the files of `-s` and `-y` to the
/// working directory.
///
/// # Errors
/// Returns an error if the executable or a profile cannot be read, if a requested listing has no
/// data, or if writing fails.
pub fn run(options: &Options, out: &mut dyn Write, err: &mut dyn Write) -> Result<Completeness> {
    if options.help {
        write!(out, "{}", options::help())?;
        return Ok(Completeness::Complete);
    }
    if options.version {
        writeln!(out, "heaptape gprof {} (output of GNU gprof 2.40)", env!("CARGO_PKG_VERSION"))?;
        return Ok(Completeness::Complete);
    }
    // If the only argument is a recording, its program takes the place of the executable.
    let is_recording_only = is_recording(Path::new(&options.image));
    let completed = if is_recording_only { with_program(options)? } else { options.clone() };
    let options = &completed;
    let path = || options.image.clone();
    let bytes = regular::read(options.image.as_ref()).map_err(|source| Failure::Executable { path: path(), source })?;
    let image = Image::read(&bytes).map_err(|source| Failure::Object { path: path(), source })?;
    if image.symbols.is_empty() {
        return Err(Failure::NoSymbols(path()));
    }
    let rules = Rules { no_static: options.no_static, only_functions: options.only_functions };
    let table = if options.lines { Table::lines(&image, rules) } else { Table::functions(&image, rules) };
    let mut input =
        Input { completeness: Completeness::Complete, union: Union::default(), has_blocks: false, has_graph: false };
    for path in &options.profiles {
        input.read(path, &image, options, out, err)?;
    }
    list(options, table, input, &image, out, err)
}

/// The sum of the profiles.
struct Input {
    completeness: Completeness,
    union: Union,
    has_blocks: bool,
    /// Whether there is a call graph, if only an empty one as in a BSD file without arcs.
    has_graph: bool,
}

impl Input {
    fn read(
        &mut self,
        path: &str,
        image: &Image,
        options: &Options,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<()> {
        let hints = Hints { form: options.form, abi: Some(image.abi) };
        if is_recording(Path::new(path)) {
            return self.read_recording(path, image, options, err);
        }
        let opened = unpack::open(Path::new(path))?;
        let what: Vec<Measure> = options.what.into_iter().collect();
        let (bytes, notes) = input::gmon_bytes(opened, hints, &what)?;
        for note in &notes {
            writeln!(err, "gprof: {path}: {note}")?;
        }
        let read = gmon::read(&bytes, hints).map_err(|source| {
            let other = gmon::read(&bytes, Hints { abi: None, ..hints });
            let fits = other.ok().filter(|other| other.ending.is_complete() && other.abi != image.abi);
            let hint = fits.map(|other| {
                let (theirs, ours) = (other.abi.name(), image.abi.name());
                format!(" (it reads as {theirs}, and {} is {ours})", options.image)
            });
            Failure::Profile { path: path.to_owned(), hint: hint.unwrap_or_default(), source }
        })?;
        for note in &read.notes {
            writeln!(err, "gprof: warning: {path}: {note}")?;
        }
        if let Some(cut) = read.truncation() {
            writeln!(err, "gprof: {path}: {cut}; the records before are used")?;
            self.completeness = Completeness::Truncated;
        }
        if read.blocks().next().is_some() {
            self.has_blocks = true;
            if !options.lines {
                writeln!(err, "gprof: warning: ignoring basic-block exec counts (use -l or --line)")?;
            }
        }
        if options.info {
            info(path, &read, out)?;
        }
        self.has_graph |= matches!(read.form, Form::Bsd | Form::Bsd44);
        self.union.add(&read).map_err(|error| profile_failure(path, error))
    }

    fn read_recording(&mut self, path: &str, image: &Image, options: &Options, err: &mut dyn Write) -> Result<()> {
        let recording = RecordingInput::open(Path::new(path), &options.processes).map(|recording| match options.what {
            Some(what) => recording.with_measures(&[what]),
            None => recording,
        });
        let tables =
            recording.and_then(|recording| recording.gmon(Path::new(&options.image), image.build_id.as_deref()));
        let (gmon, notes) = tables.map_err(|source| Failure::Recording { path: path.to_owned(), source })?;
        for note in &notes {
            writeln!(err, "gprof: {path}: {note}")?;
            self.completeness = Completeness::Truncated;
        }
        self.union.add(&gmon).map_err(|error| profile_failure(path, error))
    }
}

/// Returns the options with the program of the recording as executable. The recording is the first
/// argument, where gprof expects the executable.
fn with_program(options: &Options) -> Result<Options> {
    let recording = options.image.clone();
    let opened = RecordingInput::open(Path::new(&recording), &options.processes)?;
    let program = opened.program().map(|path| path.display().to_string());
    let Some(image) = program else { return Err(Failure::NoProgram(recording)) };
    Ok(Options { image, profiles: vec![recording], ..options.clone() })
}

/// Prints the file information (`-i`).
fn info(path: &str, gmon: &Gmon, out: &mut dyn Write) -> std::io::Result<()> {
    let version = if matches!(gmon.form, Form::Bsd | Form::Bsd44) { 0 } else { gmon.version };
    writeln!(out, "File `{path}' (version {version}) contains:")?;
    for (count, kind) in gmon.counts().into_iter().zip(["histogram", "call-graph", "basic-block count"]) {
        writeln!(out, "\t{count} {kind} record{}", if count == 1 { "" } else { "s" })?;
    }
    Ok(())
}

/// The functions of the profiler itself. They are omitted unless they are selected by name.
const PROFILER: [&str; 5] = ["_gprof_mcount", "mcount", "_mcount", "__mcount", "__mcount_internal"];

/// Prints the selected listings.
fn list(
    options: &Options,
    table: Table,
    input: Input,
    image: &Image,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Completeness> {
    let Input { completeness, union, has_blocks, has_graph } = input;
    let has_histogram = union.unit.is_some();
    let has_arcs = has_graph || !union.arcs.is_empty();
    let mut styles = options.enabled;
    if styles == Default::default() && !options.info && !options.sum {
        styles.flat = has_histogram && !options.explicit.flat;
        styles.graph = has_arcs && !options.explicit.graph;
        styles.counts = !has_histogram && !has_arcs && has_blocks && !options.explicit.counts;
    }
    if options.sum {
        write_sum(options, &table, &union, image)?;
    }
    let select = |names: &Vec<String>| Selection::new(names, &table);
    let without_profiler = |names: &Vec<String>| {
        let profiler = PROFILER.iter().map(|name| (*name).to_owned());
        Selection::new(&profiler.chain(names.iter().cloned()).collect::<Vec<_>>(), &table)
    };
    let names = &options.names;
    let (flat, no_flat) = (select(&names.flat), without_profiler(&names.no_flat));
    let counts = |index| flat.has(index) || flat.is_empty() && !no_flat.has(index);
    let samples = samples::assign(&table, &union, counts);
    let (arcs, no_arcs) = (ArcSelection::new(&names.arcs, &table), ArcSelection::new(&names.no_arcs, &table));
    let (graph, no_graph) = (select(&names.graph), without_profiler(&names.no_graph));
    let (time, no_time) = (select(&names.time), without_profiler(&names.no_time));
    let static_arcs = if options.static_arcs { static_arcs(&table, image) } else { Vec::new() };
    let filter = Filter {
        arc: &|caller, callee| arcs.has(caller, callee) || arcs.is_empty() && !no_arcs.has(caller, callee),
        static_arcs: &static_arcs,
        entry: &|index| preference(&graph, &no_graph, index),
        time: &|index| preference(&time, &no_time, index),
    };
    let graph = Graph::new(&table, &union, &samples.times, &filter);
    if styles.flat && !has_histogram {
        return Err(Failure::NoHistogram);
    }
    if styles.graph && !has_arcs {
        return Err(Failure::NoArcs);
    }
    let (source, no_source) = (select(&names.source), select(&names.no_source));
    let (exec, no_exec) = (select(&names.counts), select(&names.no_counts));
    let rate = union.rate();
    let view = View {
        options,
        table,
        union,
        has_arcs,
        rate: f64::from(rate),
        samples,
        graph,
        flat,
        no_flat,
        names: Names::default(),
    };
    let mut pages = PageBreaks { is_first: !options.info };
    if styles.graph && options.traditional {
        pages.next(out)?;
        entries::print(&view, out)?;
    }
    if styles.flat {
        pages.next(out)?;
        flat::print(&view, out)?;
    }
    if styles.graph {
        if !options.traditional {
            pages.next(out)?;
            entries::print(&view, out)?;
        }
        pages.next(out)?;
        entries::print_index(&view, out)?;
    }
    if styles.counts {
        pages.next(out)?;
        source::print_counts(&view, &exec, &no_exec, out)?;
    }
    if styles.source {
        source::print_annotated(&view, &source, &no_source, &mut |out| pages.next(out), out, err)?;
    }
    Ok(completeness)
}

/// Returns the direct calls in the code whose target is a function's entry (`-c`).
fn static_arcs(table: &Table, image: &Image) -> Vec<(usize, usize)> {
    let calls = |caller: usize| {
        let symbol = &table.symbols[caller];
        let entry = |target| table.at(target).filter(|&callee| table.symbols[callee].address == target);
        image.calls(symbol.address, symbol.last).into_iter().filter_map(entry).map(move |callee| (caller, callee))
    };
    (0..table.symbols.len()).flat_map(calls).collect()
}

/// Writes a form feed before each listing except the first.
struct PageBreaks {
    is_first: bool,
}

impl PageBreaks {
    fn next(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        if std::mem::take(&mut self.is_first) { Ok(()) } else { writeln!(out, "\x0c") }
    }
}

/// Writes gmon.sum (`-s`). As in gprof, arcs connect the first addresses of source lines.
fn write_sum(options: &Options, table: &Table, union: &Union, image: &Image) -> Result<()> {
    let none = |_| graph::Preference::Any;
    let filter = Filter { arc: &|_, _| true, static_arcs: &[], entry: &none, time: &none };
    let graph = Graph::new(table, union, &vec![0.0; table.symbols.len()], &filter);
    let mut sum = union.clone();
    // Sorted by caller, then the newest first.
    let mut arcs: Vec<&graph::CallArc> = graph.arcs.iter().rev().collect();
    arcs.sort_by_key(|arc| arc.caller);
    let address = |index: usize| table.symbols[index].address;
    sum.arcs = arcs
        .into_iter()
        .map(|arc| gmon::Arc { from: address(arc.caller), to: address(arc.callee), count: arc.calls })
        .collect();
    sum.blocks = union.blocks.iter().filter(|block| table.at(block.address).is_some()).copied().collect();
    sum.blocks.sort_by_key(|block| block.address);
    let form = options.form.unwrap_or(Form::Magic);
    let written = sum.to_gmon(form, image.abi).and_then(|gmon| gmon::write(&gmon));
    let written = written.map_err(Failure::Sum)?;
    std::fs::write("gmon.sum", written)?;
    Ok(())
}
