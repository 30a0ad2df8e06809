//! What the views of the foreign tools are fed with when they are given a recording, or a file of another format: the same
//! tables that an export writes.

use crate::convert::{self, ConvertOptions, Converted};
use crate::export::{self, Error, Measure, Options, Source};
use crate::load::{self, Image, Recording, bare};
use crate::processes::Processes;
use crate::unpack::{self, OpenedFile};
use heaptape_formats::gmon::{self, Gmon, Hints};
use heaptape_formats::mptl::Profile;
use heaptape_formats::tape::FILE_MAGIC;
use heaptape_formats::{Format, sniff};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Whether a path is a recording, an image's folder, or one of their files that is no other tool's.
pub fn is_recording(path: &Path) -> bool {
    if path == Path::new("-") {
        return false;
    }
    if path.is_dir() {
        let holds = |name: &str| path.join(name).is_file();
        use heaptape_formats::recording::{RECORDING, TAPE};
        return holds(RECORDING)
            || holds(TAPE)
            || load::profile_file(path).is_some()
            || load::trace_file(path).is_some()
            || has_images(path);
    }
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(4096).read_to_end(&mut start));
    read.is_ok() && (start.starts_with(&FILE_MAGIC) || sniff::format(&start) == Some(Format::Recording))
}

/// A recording whose description is lost: a folder of images.
fn has_images(path: &Path) -> bool {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join(heaptape_formats::recording::TAPE).is_file())
}

/// A recording, opened for a view.
pub struct RecordingInput {
    recordings: Vec<Recording>,
    options: Options,
}

impl RecordingInput {
    /// Opens a recording or a file, with the processes that are named.
    ///
    /// # Errors
    /// When nothing there can be read.
    pub fn open(path: &Path, processes: &Processes) -> Result<RecordingInput, Error> {
        let options = Options { processes: processes.clone(), ..Options::default() };
        Ok(RecordingInput { recordings: vec![load::open(path)?], options })
    }

    /// Counts this, where a view shows one number a place.
    #[must_use]
    pub fn counting(mut self, what: &[Measure]) -> RecordingInput {
        self.options.what = what.to_vec();
        self
    }

    /// Its images, as exporters get them.
    ///
    /// # Errors
    /// When no image is the process that was named.
    pub fn source(&self) -> Result<Source<'_>, Error> {
        Source::new(&self.recordings, &self.options)
    }

    /// Its profile: all images together.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn profile(&self) -> Result<Profile, Error> {
        export::mptl::all(&mut self.source()?)
    }

    /// The image of a view that shows one: that with most events. The others' names come with it.
    ///
    /// # Errors
    /// When none has events.
    pub fn greatest(&self) -> Result<(&Image, Vec<String>), Error> {
        let mut images: Vec<&Image> =
            self.source()?.images.iter().copied().filter(|image| image.has_events()).collect();
        // Of equals the first.
        images.sort_by_key(|image| std::cmp::Reverse(image.tape.events));
        let mut images = images.into_iter();
        let first = images.next().ok_or_else(|| Error::Impossible("this needs events, and there are none".into()))?;
        Ok((first, images.map(|image| image.about.folder.clone()).collect()))
    }

    /// The path of the program that made most events.
    pub fn program(&self) -> Option<PathBuf> {
        self.greatest().ok().map(|(image, _)| PathBuf::from(&image.about.exe)).filter(|exe| !exe.as_os_str().is_empty())
    }

    /// gprof's tables of one ELF object: that with this build-id, else with this path, else with this file name.
    ///
    /// # Errors
    /// When the recording holds no such object.
    pub fn gmon(&self, object: &Path, build_id: Option<&[u8]>) -> Result<(Gmon, Vec<String>), Error> {
        let mut source = self.source()?;
        let measure = self.options.what.first().copied().unwrap_or(Measure::AllocBytes);
        let tables = export::gmon::tables(&mut source, measure);
        let by_id = |other: &export::objects::Object| build_id.is_some_and(|id| !id.is_empty() && other.build_id == id);
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let by_path = |other: &export::objects::Object| real(Path::new(&other.path)) == real(object);
        let by_name = |other: &export::objects::Object| {
            object.file_name().is_some_and(|name| name.to_string_lossy() == other.file_name())
        };
        let tests: [&dyn Fn(&export::objects::Object) -> bool; 3] = [&by_id, &by_path, &by_name];
        let place = tests.iter().find_map(|test| tables.objects.iter().position(|(object, _)| test(object)));
        let Some((found, table)) = place.and_then(|place| tables.objects.get(place)) else {
            let names: Vec<&str> = tables.objects.iter().map(|(object, _)| object.path.as_str()).collect();
            let why = format!("nothing was allocated in {}; there are {}", object.display(), names.join(", "));
            return Err(Error::Impossible(why));
        };
        let (gmon, unit) = table.gmon(measure, &found.path, heaptape_formats::Flavour::LE64)?;
        let mut notes: Vec<String> = source.missing.iter().map(ToString::to_string).collect();
        notes.extend(unit.map(|unit| format!("sums of 2^32 and more: shown in {unit}")));
        Ok((gmon, notes))
    }
}

/// A file of another format as one that a view reads; none when it is of the view's own format, or of none.
///
/// # Errors
/// When it cannot become one.
pub fn converted(opened: &OpenedFile, to: Format, what: &[Measure]) -> Result<Option<Converted>, Error> {
    let options = Options { what: what.to_vec(), ..Options::default() };
    let options = ConvertOptions { export: options, ..ConvertOptions::default() };
    match opened.format {
        Some(format) if format != to => convert::convert(format, to, std::slice::from_ref(opened), &options).map(Some),
        _ => Ok(None),
    }
}

/// gprof's tables of a file: its own, or made of one of another format.
///
/// # Errors
/// When it cannot be read.
pub fn gmon_of(opened: OpenedFile, hints: Hints, what: &[Measure]) -> Result<(Vec<u8>, Vec<String>), Error> {
    match converted(&opened, Format::Gmon, what) {
        Ok(Some(Converted { mut files, notes, .. })) if files.len() == 1 => Ok((files.remove(0).1, notes)),
        Ok(Some(_)) => Err(Error::Impossible(format!("{} holds several events: name one", opened.name))),
        Ok(None) => Ok((opened.bytes, Vec::new())),
        // A BSD file without mark may look like something else: what the reader says counts.
        Err(error) => match gmon::read(&opened.bytes, hints) {
            Ok(_) => Ok((opened.bytes, Vec::new())),
            Err(_) => Err(error),
        },
    }
}

/// A profile for mprof: of a recording, of a trace (bins only), or of a file of its own.
///
/// # Errors
/// When it cannot be read.
pub fn profile(path: &Path, processes: &Processes) -> Result<Option<Profile>, Error> {
    if is_recording(path) {
        return RecordingInput::open(path, processes)?.profile().map(Some);
    }
    if path == Path::new("-") {
        return Ok(None);
    }
    let mut start = Vec::new();
    let read = bare::open(path).and_then(|reader| reader.take(4).read_to_end(&mut start));
    match (read, sniff::format(&start)) {
        (Ok(_), Some(Format::Mtrc)) => RecordingInput::open(path, &Processes::default())?.profile().map(Some),
        _ => Ok(None),
    }
}

/// A file's bytes, unpacked, for views that read whole files.
///
/// # Errors
/// When it cannot be read.
pub fn bytes(path: &Path) -> Result<Vec<u8>, unpack::Error> {
    Ok(unpack::open(path)?.bytes)
}
