//! The input of compat views: if a view gets a recording or a file of another format, it shows the
//! tables that an export to its own format would write.

use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::convert::{self, ConvertOptions, Converted};
use heaptape_analyzer::export::Impossible;
use heaptape_analyzer::export::{self, Error, Measure, Options, Source};
use heaptape_analyzer::unpack::{self, OpenedFile};
use heaptape_analyzer::{Process, Recording, is_recording};
use heaptape_formats::gmon::{self, Gmon, Hints};
use heaptape_formats::mptl::Profile;
use heaptape_formats::{Format, sniff};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A recording that is opened for a view.
pub struct RecordingInput {
    recordings: Vec<Recording>,
    options: Options,
}

impl RecordingInput {
    /// Opens a recording or a file, restricted to the selected processes.
    ///
    /// # Errors
    /// Returns an error if nothing can be read from `path`.
    pub fn open(path: &Path, processes: &ProcessFilter) -> Result<RecordingInput, Error> {
        let options = Options { processes: processes.clone(), ..Options::default() };
        Ok(RecordingInput { recordings: vec![heaptape_analyzer::open(path)?], options })
    }

    /// Selects the measures to count, for views that show one number for each address.
    #[must_use]
    pub(crate) fn with_measures(mut self, what: &[Measure]) -> RecordingInput {
        self.options.what = what.to_vec();
        self
    }

    /// Returns the selected processes as the source of an exporter.
    ///
    /// # Errors
    /// Returns an error if no process matches the selection.
    pub fn source(&self) -> Result<Source<'_>, Error> {
        Source::new(&self.recordings, &self.options)
    }

    /// Returns the profile of all selected processes together.
    ///
    /// # Errors
    /// Returns an error if no process matches, or if one cannot be read.
    pub fn profile(&self) -> Result<Profile, Error> {
        export::mptl::all(&mut self.source()?)
    }

    /// Returns the process with most events, for a view that shows one process, and the folders of
    /// the others.
    ///
    /// # Errors
    /// Returns an error if no selected process has events.
    pub fn largest(&self) -> Result<(&Process, Vec<String>), Error> {
        let mut processes: Vec<&Process> =
            self.source()?.processes.iter().copied().filter(|process| process.has_events()).collect();
        // The sort is stable: of equal processes the first one is used.
        processes.sort_by_key(|process| std::cmp::Reverse(process.tape.events));
        let mut processes = processes.into_iter();
        let first = processes.next().ok_or(Impossible::NoEvents("this"))?;
        Ok((first, processes.map(|process| process.about.folder.clone()).collect()))
    }

    /// Returns the path of the program with most events, if it is known.
    pub fn program(&self) -> Option<PathBuf> {
        self.largest()
            .ok()
            .map(|(process, _)| PathBuf::from(&process.about.exe))
            .filter(|exe| !exe.as_os_str().is_empty())
    }

    /// Returns gprof's tables of one ELF object, and notes for the user. The object is that with
    /// this build ID, else that with this path, else that with this file name.
    ///
    /// # Errors
    /// Returns an error if the recording has no such object, or if its sums do not fit the format.
    pub fn gmon(&self, object: &Path, build_id: Option<&[u8]>) -> Result<(Gmon, Vec<String>), Error> {
        let mut source = self.source()?;
        let measure = self.options.what.first().copied().unwrap_or(Measure::AllocBytes);
        let tables = export::gmon::tables(&mut source, measure);
        let by_id = |other: &export::Object| build_id.is_some_and(|id| !id.is_empty() && other.build_id == id);
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let by_path = |other: &export::Object| real(Path::new(&other.path)) == real(object);
        let by_name =
            |other: &export::Object| object.file_name().is_some_and(|name| name.to_string_lossy() == other.file_name());
        let tests: [&dyn Fn(&export::Object) -> bool; 3] = [&by_id, &by_path, &by_name];
        let index = tests.iter().find_map(|test| tables.objects.iter().position(|(object, _)| test(object)));
        let Some((found, table)) = index.and_then(|index| tables.objects.get(index)) else {
            let others = tables.objects.iter().map(|(object, _)| object.path.clone()).collect();
            return Err(Impossible::UnknownObject { object: object.to_path_buf(), others }.into());
        };
        let (gmon, unit) = table.gmon(measure, &found.path, heaptape_formats::Abi::LE64)?;
        let mut notes: Vec<String> = source.missing.iter().map(ToString::to_string).collect();
        notes.extend(unit.map(|unit| format!("sums of 2^32 and more: shown in {unit}")));
        Ok((gmon, notes))
    }
}

/// Converts a file of another format to the format of a view. Returns `None` if it already has that
/// format, or if its format is unknown.
///
/// # Errors
/// Returns an error if the file cannot be read or converted.
pub(crate) fn convert_to(opened: &OpenedFile, to: Format, what: &[Measure]) -> Result<Option<Converted>, Error> {
    let options = Options { what: what.to_vec(), ..Options::default() };
    let options = ConvertOptions { export: options, ..ConvertOptions::default() };
    match opened.format {
        Some(format) if format != to => convert::convert(format, to, std::slice::from_ref(opened), &options).map(Some),
        _ => Ok(None),
    }
}

/// Returns the bytes of a gmon.out file, and notes for the user. A file of another format is
/// converted.
///
/// # Errors
/// Returns an error if the file cannot be read or converted, or if it converts to several files.
pub(crate) fn gmon_bytes(opened: OpenedFile, hints: Hints, what: &[Measure]) -> Result<(Vec<u8>, Vec<String>), Error> {
    match convert_to(&opened, Format::Gmon, what) {
        Ok(Some(Converted { mut files, notes, .. })) if files.len() == 1 => Ok((files.remove(0).1, notes)),
        Ok(Some(_)) => Err(Impossible::SeveralEvents(opened.name).into()),
        Ok(None) => Ok((opened.bytes, Vec::new())),
        // A BSD file has no magic number and may look like another format. The reader decides.
        Err(error) => match gmon::read(&opened.bytes, hints) {
            Ok(_) => Ok((opened.bytes, Vec::new())),
            Err(_) => Err(error),
        },
    }
}

/// Returns the profile of a recording or of a trace (bins only), for mprof. Returns `None` for any
/// other file.
///
/// # Errors
/// Returns an error if the recording or trace cannot be read.
pub fn profile(path: &Path, processes: &ProcessFilter) -> Result<Option<Profile>, Error> {
    if is_recording(path) {
        return RecordingInput::open(path, processes)?.profile().map(Some);
    }
    if !path.is_file() {
        // What is read of a pipe here would be missing from the profile.
        return Ok(None);
    }
    let mut start = Vec::new();
    let read = heaptape_analyzer::open_file(path).and_then(|reader| reader.take(4).read_to_end(&mut start));
    match (read, sniff::format(&start)) {
        (Ok(_), Some(Format::Mtrc)) => RecordingInput::open(path, &ProcessFilter::default())?.profile().map(Some),
        _ => Ok(None),
    }
}

/// Returns the decompressed bytes of a file, for views that read whole files.
///
/// # Errors
/// Returns an error if the file cannot be read or decompressed.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, unpack::Error> {
    Ok(unpack::open(path)?.bytes)
}
