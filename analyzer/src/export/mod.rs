//! Recordings as files for other tools.
//!
//! An export is a file here with `pub struct Export` and a line in THE list below, which makes the
//! values of `--format`, the help, the tables of the documents, and the rows of the tests.
//! Exporters get the images that were asked for ([`Source`]) and a place for files ([`Out`]); what
//! their format cannot hold they tell as notes, and [`verify`] compares what the written files add
//! up to with what the recording does.

mod by_thread;
pub mod measure;
pub mod objects;
pub mod places;
pub mod rebase;
mod rows;
pub mod stack_tree;
pub mod tree;
pub mod verify;

pub use measure::Measure;
pub use places::{Out, Target};
pub use verify::Totals;

use crate::event::Range;
use crate::load::{self, Image, Recording};
use crate::missing::Missing;
use crate::processes::ProcessFilter;
use crate::progress::Progress;
use crate::report::sums::{self, Sums};
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
    dhat,
    heaptrack,
    callgrind,
    massif,
    csv,
    json,
    parquet,
    html,
}

/// The exporter of a name.
pub fn exporter(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.iter().copied().find(|exporter| exporter.name() == name)
}

/// Where an export goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One file for all images together.
    One,
    /// One file for each process image: a folder of them when there are several.
    OneAnImage,
    /// A folder of files.
    Folder,
}

/// What an exporter needs, and what it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Whether it needs events; else sums by site will do.
    pub events: bool,
    /// What it makes.
    pub shape: Shape,
}

/// One way to write a recording.
pub trait Exporter: Sync {
    /// The value of `--format`.
    fn name(&self) -> &'static str;
    /// Ending of its files' names.
    fn extension(&self) -> &'static str;
    /// One line for the help.
    fn summary(&self) -> &'static str;
    /// What it needs, and what it makes.
    fn needs(&self) -> Needs;
    /// Writes the images of the source.
    ///
    /// # Errors
    /// When the images do not hold what it needs, or a file cannot be written.
    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error>;
    /// What the written files must add up to, from the images' events (or a profile's own sums).
    /// The names are those that [`verify::read`] gives to the sums of a file.
    ///
    /// # Errors
    /// When the images cannot be read.
    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error>;
    /// Whether the files can be read back, so that their sums are proved: pictures cannot.
    fn is_read_back(&self) -> bool {
        true
    }
    /// What the written files do add up to.
    ///
    /// # Errors
    /// When they cannot be read back.
    fn held(&self, source: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let _ = source;
        verify::read(files)
    }
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing can be read.
    #[error(transparent)]
    Load(#[from] load::Failure),
    /// A single file cannot be opened.
    #[error(transparent)]
    Open(#[from] crate::unpack::Error),
    /// A file cannot be written.
    #[error("{0}")]
    Write(String, #[source] io::Error),
    /// The format refuses, or bytes of it cannot be read.
    #[error("{0}: {1}")]
    Format(String, heaptape_formats::Error),
    /// It cannot be made of this.
    #[error("{0}")]
    Impossible(String),
}

/// How to export.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which part of the run.
    pub range: Option<Range>,
    /// Only these processes.
    pub processes: ProcessFilter,
    /// What is counted, where the format holds one number a place; empty: what the exporter holds
    /// usual.
    pub what: Vec<Measure>,
    /// Numbers that the real 64-bit mptrace shows rightly.
    pub for_mptrace: bool,
    /// Names of functions, files and lines in each event.
    pub names: bool,
    /// Charge what other images allocate for an image to it, too.
    pub through: bool,
    /// Byte order and word size, where the format leaves a choice.
    pub flavour: Option<Abi>,
    /// Version word of mpatrol's formats.
    pub version: Option<u64>,
    /// A row for each event, where the format has rows of stacks otherwise.
    pub each_event: bool,
    /// Where the files are looked for that name frames, and which functions are wrappers.
    pub origin: Origin,
}

/// What is exported.
pub struct Source<'a> {
    /// The images that were asked for.
    pub images: Vec<&'a Image>,
    /// The recordings that they are of, in the order of the command line.
    pub recordings: &'a [Recording],
    /// What `recording.json` says, where there is one.
    pub about: Option<&'a heaptape_formats::recording::Recording>,
    /// How.
    pub options: &'a Options,
    /// Names of addresses.
    pub symbols: Symbolizer,
    /// What is missing of the images, as far as it was found on the way.
    pub missing: Vec<Missing>,
    progress: Progress,
    /// Sums that were asked for before, by the place of their image.
    known: FxHashMap<*const Image, Rc<Sums>>,
}

impl<'a> Source<'a> {
    /// The images of recordings that the options ask for.
    ///
    /// # Errors
    /// When no process is one that was named.
    pub fn new(recordings: &'a [Recording], options: &'a Options) -> Result<Self, Error> {
        let images = options.processes.select(recordings).map_err(Error::Impossible)?;
        options.range.unwrap_or_default().check(&images).map_err(Error::Impossible)?;
        let mut missing: Vec<Missing> = recordings.iter().flat_map(|recording| recording.missing.clone()).collect();
        missing.extend(images.iter().flat_map(|image| image.missing.clone()));
        Ok(Source {
            images,
            recordings,
            about: recordings.iter().find_map(|recording| recording.about.as_ref()),
            options,
            symbols: Symbolizer::from(Detail::Full, options.origin.clone()),
            missing,
            progress: Progress::new("exporting"),
            known: FxHashMap::default(),
        })
    }

    /// The images of a recording that were asked for.
    pub fn images_of(&self, recording: &'a Recording) -> Vec<&'a Image> {
        recording.images.iter().filter(|image| self.images.iter().any(|asked| std::ptr::eq(*asked, *image))).collect()
    }

    /// The part of the run that was asked for.
    pub fn range(&self) -> Range {
        self.options.range.unwrap_or_default()
    }

    /// Shows how far long work is.
    pub const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// An image's totals and sums by site.
    pub fn sums(&mut self, image: &Image) -> Rc<Sums> {
        if let Some(known) = self.known.get(&std::ptr::from_ref(image)) {
            return known.clone();
        }
        let range = self.range();
        let sums = if range.is_all() {
            sums::sums(image, &self.progress)
        } else {
            sums::sums_within(image, &range, &self.progress)
        };
        self.found(&sums.missing);
        let sums = Rc::new(sums);
        self.known.insert(image, sums.clone());
        sums
    }

    /// Keeps what was found missing on the way.
    pub fn found(&mut self, missing: &[Missing]) {
        for one in missing {
            if !self.missing.contains(one) {
                self.missing.push(one.clone());
            }
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Written {
    /// The files, in the order in which they were written; empty for standard output.
    pub files: Vec<PathBuf>,
    /// What the format could not hold, and other things worth knowing.
    pub notes: Vec<String>,
    /// What the recording lacks.
    pub missing: Vec<Missing>,
    /// What was proved, when it was asked for.
    pub verdicts: Vec<verify::Verdict>,
}

impl Written {
    /// Whether everything is in the files, as far as it is known.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.verdicts.iter().all(|verdict| verdict.holds())
    }
}

/// Exports recordings or images; `verify` reads the files back.
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
/// When nothing can be read, the images do not hold what the format needs, or a file cannot be
/// written.
pub fn run(
    exporter: &dyn Exporter,
    paths: &[PathBuf],
    options: &Options,
    target: Option<&Path>,
    verify: bool,
) -> Result<Written, Error> {
    if verify && !exporter.is_read_back() {
        let why = "is not read back here: leave out --verify";
        return Err(Error::Impossible(format!("{} {why}", exporter.name())));
    }
    let recordings: Vec<Recording> = paths.iter().map(|path| load::open(path)).collect::<Result<_, _>>()?;
    let mut source = Source::new(&recordings, options)?;
    let needs = exporter.needs();
    if needs.events {
        source.images.retain(|image| image.has_events());
    }
    if source.images.is_empty() {
        return Err(Error::Impossible(match needs.events {
            true => format!("{} needs events, and there are none", exporter.name()),
            false => "there is no process image in it".to_string(),
        }));
    }
    let several = needs.shape == Shape::Folder || needs.shape == Shape::OneAnImage && source.images.len() > 1;
    let mut out = Out::new(Target::of(exporter, paths, target, several)?);
    match needs.shape {
        Shape::OneAnImage if several => {
            for image in std::mem::take(&mut source.images) {
                source.images.push(image);
                out.next_name(format!("{}.{}", image.about.folder, exporter.extension()));
                exporter.write(&mut source, &mut out)?;
                source.images.clear();
            }
            source.images = images_again(&recordings, options, needs);
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

fn images_again<'a>(recordings: &'a [Recording], options: &Options, needs: Needs) -> Vec<&'a Image> {
    let all = recordings.iter().flat_map(|recording| &recording.images);
    all.filter(|image| options.processes.matches(image)).filter(|image| !needs.events || image.has_events()).collect()
}
