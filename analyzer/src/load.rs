//! Opens a recording, the folder of one process, or a single file, and lists what is missing. Damage
//! is no error as long as something can be read.

pub(crate) mod accounting;
mod allocations;
pub(crate) mod archive;
pub(crate) mod bare;
pub(crate) mod chunk;
mod clock;
mod code_names;
pub(crate) mod core;
mod flight;
pub(crate) mod imported;
mod join;
mod joined;
pub(crate) mod mappings;
mod noted;
mod process;
pub(crate) mod references;
mod residency;
mod running;
mod segments;
mod start;
pub(crate) mod tape;
mod times;
mod unhooked;

pub use self::core::{Core, process as process_of_core};
pub use accounting::Accounting;
pub(crate) use accounting::RecordedEvents;
pub use clock::Clock;
pub(crate) use imported::place_modules;
pub use joined::{Joined, Segment};
pub(crate) use mappings::MappingSums;
pub(crate) use process::TapeError;
pub use process::{Events, Process};
pub(crate) use start::StartPoint;

use crate::import;
use crate::missing::Missing;
use crate::text;
use crate::unpack::Compression;
use archive::{Unpacked, is_archive, unpack};
use heaptape_formats::recording::{self, CRASH_REPORT, Exit, PROFILE, RECORDING, TAPE, TRACE};
use heaptape_formats::tape::journal::has_tape;
use heaptape_formats::tape::{Codec, FILE_MAGIC, Source};
use heaptape_formats::{Error, Format, ReadError, foreign, regular, sniff};
use running::is_written_now;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Number of leading bytes by which the format of a file is recognized.
const SNIFF_LENGTH: u64 = 4096;

/// The error of [`open`].
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The path cannot be read.
    #[error("{path}")]
    Io { path: String, source: io::Error },
    /// The file has a known format and cannot be parsed.
    #[error("{path}")]
    Format { path: String, source: Error },
    /// The file cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] crate::unpack::Error),
    /// The file has no known format.
    #[error(
        "{0}: not a recording or a file of a known format (archive, MTRC, MPTL, tape, pprof, heap profile of jemalloc or gperftools, heaptrack, DHAT, Massif, \
         leak report of LeakSanitizer, memcheck, mtrace or memleak)"
    )]
    UnknownFormat(String),
    /// The file is of a tool that is known and not read.
    #[error("{0}: {1}")]
    Foreign(String, String),
    /// The folder is not a recording.
    #[error("{0}: not a recording: it contains neither {RECORDING} nor the folder of a process")]
    NotARecording(String),
    /// The folder of a process has neither a readable tape nor a trace or profile.
    #[error("{path}: {TAPE}")]
    NoTape {
        path: String,
        /// Why the tape cannot be read.
        source: TapeError,
    },
}

#[derive(Debug)]
pub struct Recording {
    /// The path that was opened.
    pub path: PathBuf,
    /// The content of `recording.json`, or `None` for a single process or file.
    pub about: Option<recording::Recording>,
    /// The processes, in the order in which they attached.
    pub processes: Vec<Process>,
    /// What is missing from the recording as a whole. Each process has its own list.
    pub missing: Vec<Missing>,
    /// The files of the recording, if it is in an archive. They are removed after the processes
    /// were dropped, which read them.
    _unpacked: Option<Unpacked>,
}

impl Recording {
    /// Returns whether nothing is missing, as far as it was detected when the recording was opened.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.processes.iter().all(|process| process.missing.is_empty())
    }

    /// Returns a note about a crash report in a complete recording. Another process of heaptape
    /// crashed, or a later one completed the recording.
    pub(crate) fn crash_note(&self) -> Option<String> {
        let report = self.path.join(CRASH_REPORT);
        let is_known = self.missing.contains(&Missing::Crashed) || !report.is_file();
        (!is_known)
            .then(|| format!("heaptape crashed during the recording; please send the report {}", report.display()))
    }
}

/// Returns the path and codec of the trace file in the folder of a process.
pub(crate) fn trace_file(folder: &Path) -> Option<(PathBuf, Codec)> {
    stored(folder, TRACE)
}

/// Returns the path of the profile in the folder of a process. It may be compressed.
pub(crate) fn profile_file(folder: &Path) -> Option<PathBuf> {
    stored(folder, PROFILE).map(|(path, _)| path)
}

fn stored(folder: &Path, name: &str) -> Option<(PathBuf, Codec)> {
    [Codec::Plain, Codec::Zstd, Codec::Lz4, Codec::Columns]
        .into_iter()
        .map(|codec| (folder.join(format!("{name}{}", codec.suffix())), codec))
        .find(|(path, _)| path.is_file())
}

fn is_process_folder(folder: &Path) -> bool {
    has_tape(folder) || profile_file(folder).is_some() || trace_file(folder).is_some()
}

/// Opens a recording, the folder of a process, or a file. Several folders of one process in it are
/// joined to one process.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// let recording = heaptape_analyzer::open(path.as_ref())?;
/// assert_eq!(recording.processes.len(), 2);
/// for missing in &recording.missing {
///     println!("! {missing}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the path cannot be read, has no known format, or contains nothing that can
/// be read.
pub fn open(path: &Path) -> Result<Recording, Failure> {
    let mut recording = [open_separately(path)?];
    join::join(&mut recording);
    let [recording] = recording;
    Ok(recording)
}

/// Opens several recordings, folders or files. A process that has folders in several of them is in
/// the last one only, with all its segments. Epochs and segments of a flight recording that a
/// daemon has removed since they were listed are left out; of epochs that is noted.
pub fn open_all(paths: &[PathBuf]) -> Result<Vec<Recording>, Failure> {
    let (mut recordings, mut removed) = (Vec::with_capacity(paths.len()), Vec::new());
    for path in paths {
        match flight::open_if_there(path, open_separately)? {
            Some(recording) => recordings.push(recording),
            None if flight::is_in_epoch(path) => removed.push(path),
            None => {}
        }
    }
    if let Some(last) = recordings.last_mut() {
        let why = "the daemon has removed it since it was listed";
        let missing = |path: &&PathBuf| Missing::File { name: path.display().to_string(), why: why.into() };
        last.missing.extend(removed.iter().map(missing));
    }
    if let (true, Some(last)) = (recordings.is_empty(), paths.last()) {
        return Err(io_failure(last, io::ErrorKind::NotFound.into()));
    }
    join::join(&mut recordings);
    Ok(recordings)
}

/// Opens a recording, the folder of a process, or a file, with a process for each folder.
pub(crate) fn open_separately(path: &Path) -> Result<Recording, Failure> {
    let about = std::fs::metadata(path).map_err(|error| io_failure(path, error))?;
    if about.is_dir() {
        return directory(path);
    }
    let file = regular::open(path).map_err(|error| io_failure(path, error))?;
    let mut start = Vec::new();
    file.read_up_to(0, FILE_MAGIC.len(), &mut start).map_err(|error| io_failure(path, error))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if start == FILE_MAGIC {
        return single_process(path, Process::open(folder, None)?);
    }
    if path.file_name().is_some_and(|name| name == RECORDING) {
        return directory(folder);
    }
    // The format of a compressed file is that of its content.
    let mut plain = Vec::new();
    let unpacked = bare::open(path).and_then(|reader| reader.take(SNIFF_LENGTH).read_to_end(&mut plain));
    unpacked.map_err(|error| unpack_failure(path, plain.len(), error))?;
    if is_archive(&plain) {
        let unpacked = unpack(path).map_err(|error| io_failure(path, error))?;
        let recording = directory(&unpacked.recording)?;
        return Ok(Recording { path: path.to_path_buf(), _unpacked: Some(unpacked), ..recording });
    }
    match sniff::format(&plain) {
        Some(Format::Mptl) => return single_process(path, Process::profile(path)?),
        Some(Format::Mtrc) => return single_process(path, Process::trace(path)?),
        Some(Format::Core) => return single_process(path, core::open(path)?),
        Some(format) if import::is_supported(format) => return single_process(path, imported::open(path, format)?),
        _ => {}
    }
    let name = path.display().to_string();
    let advice = sniff::format(&plain).and_then(foreign::without_heap).map(str::to_string);
    Err(match advice.or_else(|| foreign::advice(&plain)) {
        Some(advice) => Failure::Foreign(name, advice),
        None => Failure::UnknownFormat(name),
    })
}

fn single_process(path: &Path, process: Process) -> Result<Recording, Failure> {
    let (path, processes) = (path.to_path_buf(), vec![process]);
    Ok(Recording { path, about: None, processes, missing: Vec::new(), _unpacked: None })
}

fn directory(path: &Path) -> Result<Recording, Failure> {
    let json = path.join(RECORDING);
    let mut missing = Vec::new();
    let about: Option<recording::Recording> = match regular::read(&json) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(about) => Some(about),
            Err(error) => {
                missing.push(Missing::File { name: RECORDING.into(), why: error.to_string() });
                None
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_process_folder(path) => {
            return single_process(path, process_of_recording(path)?);
        }
        Err(error) => {
            missing.push(Missing::File { name: RECORDING.into(), why: error.to_string() });
            None
        }
    };
    let is_written_now = about.as_ref().is_some_and(|about| is_written_now(path, about));
    if !is_written_now && about.as_ref().is_some_and(|about| about.ended_unix_ns.is_none()) {
        missing.push(if path.join(CRASH_REPORT).is_file() { Missing::Crashed } else { Missing::Unfinished });
    }
    let mut processes = Vec::new();
    let listed = about.iter().flat_map(|about| &about.processes);
    for entry in listed {
        // A folder name must be a single component, so that no recording can refer to files outside
        // of its directory.
        let mut components = Path::new(&entry.folder).components();
        let is_name = matches!((components.next(), components.next()), (Some(std::path::Component::Normal(_)), None));
        let folder = path.join(&entry.folder);
        match is_name.then(|| Process::open(&folder, Some(entry))) {
            Some(Ok(process)) => processes.push(process),
            // Since the list was written, it ended and became part of the sums of its program.
            Some(Err(_)) if is_written_now && !folder.exists() => {}
            Some(Err(error)) => {
                missing.push(Missing::File { name: entry.folder.clone(), why: text::with_causes(&error) });
                processes.push(Process::empty(&folder, entry));
            }
            None => missing.push(Missing::File { name: entry.folder.clone(), why: "not the name of a folder".into() }),
        }
    }
    for folder in unlisted(path, about.as_ref()).map_err(|error| io_failure(path, error))? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if about.is_some() && !is_written_now {
            missing.push(Missing::File { name, why: format!("it is not listed in {RECORDING}") });
        }
        if let Ok(process) = Process::open(&folder, None) {
            processes.push(process);
        }
    }
    if is_written_now {
        processes.iter_mut().for_each(Process::note_running);
    }
    let unrecorded = about.iter().flat_map(|about| &about.not_traced);
    missing.extend(unrecorded.cloned().map(Missing::Unrecorded));
    // What runs on after `attach`, or in another epoch of the daemon, is meant to.
    if about.as_ref().is_some_and(|about| !about.command.is_empty() && about.ended_unix_ns.is_some()) {
        let runs_on = processes.iter().map(|process| &process.about).filter(|one| one.exit == Some(Exit::Running));
        missing.extend(runs_on.map(|one| Missing::Outlived { pid: one.pid, exe: one.exe.clone() }));
    }
    if about.is_none() && processes.is_empty() {
        return Err(Failure::NotARecording(path.display().to_string()));
    }
    if processes.is_empty() {
        missing.push(Missing::NoProcess);
    }
    Ok(Recording { path: path.to_path_buf(), about, processes, missing, _unpacked: None })
}

/// Opens the folder of a process. In a recording, one whose files cannot be read is a process with
/// something missing, as it is when the recording is opened: a full disk leaves such folders in
/// epochs, and other epochs have the rest of the process.
fn process_of_recording(folder: &Path) -> Result<Process, Failure> {
    let around = recording_around(folder);
    let is_written_now = around.is_some_and(|(dir, about)| is_written_now(&dir, &about));
    let mut process = opened_in_recording(folder)?;
    if is_written_now || flight::is_open(folder) {
        process.note_running();
    }
    Ok(process)
}

fn opened_in_recording(folder: &Path) -> Result<Process, Failure> {
    match (Process::open(folder, listed(folder).as_ref()), recording_around(folder)) {
        (Err(Failure::NoTape { .. }), Some(_)) => {
            let unlisted = || recording::ProcessInfo {
                folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                ..recording::ProcessInfo::default()
            };
            Ok(Process::empty(folder, &listed(folder).unwrap_or_else(unlisted)))
        }
        (process, _) => process,
    }
}

/// Returns the path and the content of `recording.json` of the recording around the folder of a
/// process; `None` if the folder is alone.
pub fn recording_around(folder: &Path) -> Option<(PathBuf, recording::Recording)> {
    let folder = folder.canonicalize().ok()?;
    let around = folder.parent()?;
    let bytes = regular::read(&around.join(RECORDING)).ok()?;
    Some((around.to_path_buf(), serde_json::from_slice(&bytes).ok()?))
}

/// Returns the entry of the folder of a process in the recording around it.
fn listed(folder: &Path) -> Option<recording::ProcessInfo> {
    let (_, about) = recording_around(folder)?;
    let folder = folder.canonicalize().ok()?;
    let name = folder.file_name()?;
    about.processes.into_iter().find(|process| *process.folder == *name)
}

/// Returns the folders of processes that `recording.json` does not list, because it is damaged or
/// was not written yet.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(crate) fn unlisted(path: &Path, about: Option<&recording::Recording>) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let listed = about.is_some_and(|about| about.processes.iter().any(|process| *process.folder == *name));
        if !listed && entry.file_type()?.is_dir() && is_process_folder(&entry.path()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn io_failure(path: &Path, source: io::Error) -> Failure {
    Failure::Io { path: path.display().to_string(), source }
}

/// Returns the error of a file of which `plain` bytes could be unpacked.
fn unpack_failure(path: &Path, plain: usize, error: io::Error) -> Failure {
    let mut start = Vec::new();
    let read = regular::open_once(path).and_then(|file| file.take(Compression::MAGIC).read_to_end(&mut start));
    match Compression::detect(&start).filter(|_| read.is_ok()) {
        None => io_failure(path, error),
        Some(compression) => {
            let (name, offset) = (path.display().to_string(), plain as u64);
            crate::unpack::Error::Damaged { name, compression, offset, source: error }.into()
        }
    }
}

pub(crate) fn read_failure(path: &Path, error: ReadError) -> Failure {
    match error {
        ReadError::Io(source) => io_failure(path, source),
        ReadError::Format(source) => Failure::Format { path: path.display().to_string(), source },
    }
}

/// Returns whether a path is a core file.
pub fn is_core(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = regular::open(path).and_then(|file| file.take(SNIFF_LENGTH).read_to_end(&mut start));
    read.is_ok() && sniff::format(&start) == Some(Format::Core)
}

/// Returns whether a path is a recording, the folder of a process, or one of their files that is
/// specific to heaptape.
pub fn is_recording(path: &Path) -> bool {
    if path == Path::new("-") {
        return false;
    }
    if path.is_dir() {
        let holds = |name: &str| path.join(name).is_file();
        return holds(RECORDING)
            || has_tape(path)
            || profile_file(path).is_some()
            || trace_file(path).is_some()
            || has_process_folders(path);
    }
    let mut start = Vec::new();
    let read = regular::open(path).and_then(|file| file.take(SNIFF_LENGTH).read_to_end(&mut start));
    let is_known = start.starts_with(&FILE_MAGIC) || sniff::format(&start) == Some(Format::Recording);
    read.is_ok() && (is_known || archive::is_archive_file(path))
}

/// Returns whether a directory contains process folders: a recording whose description is lost.
fn has_process_folders(path: &Path) -> bool {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| has_tape(&entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk leaves an empty tape in an epoch.
    #[test]
    fn folder_without_a_tape_does_not_hide_the_others() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape/v1/trace");
        let epoch = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let copy = |from: &Path, to: &Path| {
            let copied = std::fs::read(from).and_then(|bytes| std::fs::write(to, bytes));
            copied.unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        };
        copy(&golden.join(RECORDING), &epoch.path().join(RECORDING));
        let recording = open(&golden).unwrap_or_else(|error| panic!("{error}"));
        let mut folders = Vec::new();
        for process in &recording.processes {
            let folder = epoch.path().join(&process.about.folder);
            std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("{error}"));
            for entry in std::fs::read_dir(&process.path).into_iter().flatten().flatten() {
                copy(&entry.path(), &folder.join(entry.file_name()));
            }
            folders.push(folder);
        }
        let empty = &folders[1];
        for entry in std::fs::read_dir(empty).into_iter().flatten().flatten() {
            let removed = std::fs::remove_file(entry.path());
            removed.unwrap_or_else(|error| panic!("{error}"));
        }
        std::fs::write(empty.join(TAPE), "").unwrap_or_else(|error| panic!("{error}"));
        let opened = open_all(&folders).unwrap_or_else(|error| panic!("{error}"));
        let processes: Vec<&Process> = opened.iter().flat_map(|recording| &recording.processes).collect();
        assert!(processes[0].missing.is_empty() && processes[0].has_events());
        assert!(!processes[1].missing.is_empty() && !processes[1].has_events());
        assert_eq!(processes[1].about.folder, recording.processes[1].about.folder);
        // Alone, outside of a recording, it is an error.
        std::fs::remove_file(epoch.path().join(RECORDING)).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(open(empty), Err(Failure::NoTape { .. })));
    }
}
