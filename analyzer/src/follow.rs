//! Follows the trace of one process while it is recorded, and copies it out as one plain MTRC file with its end mark.
//!
//! What the tape has committed is copied, chunk by chunk. When the recorder replaces a tape by one that names a compressed trace, the new one is read from
//! the beginning, and chunks that are already out are passed over by their number.

use crate::load::{self, chunk::Decoder};
use heaptape_formats::mtrc::{self, layout::MAGIC};
use heaptape_formats::recording::{Image, RECORDING, RESERVE, Recording, TAPE, TRACE};
use heaptape_formats::tape::{Codec, END_EXEC, Record, Step, Stream};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the files are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a program that another one has replaced is waited for: `recording.json` is written four times a second.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(2);
/// Length of a tape's head, before its first record.
const TAPE_HEADER_LEN: u64 = 16;

/// How the copy ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process has ended and all of its trace is out.
    Complete,
    /// The trace has no end, or a part could not be read: why.
    Truncated(String),
}

/// What was asked for cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no such recording or process.
    #[error("{0}")]
    NotFound(String),
    /// A file could not be read, or the copy not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// ProcessSelector process of a recording.
#[derive(Clone, Debug)]
pub enum ProcessSelector {
    /// The program that `record` started; if that only starts another one in its place, that one.
    Main,
    /// The one with this pid, or in this folder.
    Process(String),
}

/// Copies the trace of one process to `out` until the process ends. `dir` is a recording, and need not exist yet while `may_appear` says so.
///
/// # Errors
/// When there is no such recording or process, or when reading or writing fails.
pub fn follow(
    dir: &Path,
    which: &ProcessSelector,
    may_appear: &dyn Fn() -> bool,
    out: &mut dyn Write,
) -> Result<Ending, Failure> {
    let mut image = loop {
        let recording = read(dir);
        if let Some(image) = recording.as_ref().and_then(|recording| choose(recording, which)) {
            break image.clone();
        }
        let is_live = match &recording {
            Some(recording) => is_written(dir, recording, None),
            None => may_appear(),
        };
        // What was written between the two looks counts.
        let again = read(dir);
        if !is_live && again.as_ref().and_then(|recording| choose(recording, which)).is_none() {
            let process = match (which, again) {
                (_, None) => return Err(Failure::NotFound(format!("{}: no recording", dir.display()))),
                (ProcessSelector::Main, _) => "no process was recorded".to_owned(),
                (ProcessSelector::Process(name), _) => format!("no process {name}"),
            };
            return Err(Failure::NotFound(format!("{}: {process}", dir.display())));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let mut trace = Follower::new(dir.join(&image.folder));
    loop {
        // In this order: what the recorder wrote before it ended is read.
        let is_live = read(dir).is_some_and(|recording| is_written(dir, &recording, Some(&image)));
        let mut fresh = Vec::new();
        let end = trace.copy(&mut fresh)?;
        if end == Some(END_EXEC)
            && matches!(which, ProcessSelector::Main)
            && !trace.has_written
            && let Some(next) = successor(dir, &image)
        {
            (trace, image) = (Follower::new(dir.join(&next.folder)), next);
            continue;
        }
        if end.is_some() && fresh.is_empty() && !trace.has_written {
            mtrc::Writer::new(mtrc::Options::default()).header(&mut fresh);
        }
        if end.is_some() {
            fresh.extend_from_slice(MAGIC);
        }
        if !fresh.is_empty() {
            trace.has_written = true;
            out.write_all(&fresh)?;
            out.flush()?;
        }
        match (end, trace.fault.take()) {
            (Some(_), None) => return Ok(Ending::Complete),
            (Some(_), Some(fault)) => return Ok(Ending::Truncated(fault)),
            (None, fault) if !is_live => {
                return Ok(Ending::Truncated(fault.unwrap_or_else(|| "the recording has no end".into())));
            }
            (None, fault) => trace.fault = fault,
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// What `recording.json` says. It is written each second, so that a killed recorder leaves processes that it does not list: these come last.
fn read(dir: &Path) -> Option<Recording> {
    let mut recording: Recording = serde_json::from_slice(&std::fs::read(dir.join(RECORDING)).ok()?).ok()?;
    if recording.ended_unix_ns.is_none() && !is_written(dir, &recording, None) {
        for folder in load::unlisted(dir, Some(&recording)).unwrap_or_default() {
            let folder = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let pid = folder.split('.').next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
            recording.images.push(Image { folder, pid, ..Image::default() });
        }
    }
    Some(recording)
}

fn choose<'a>(recording: &'a Recording, which: &ProcessSelector) -> Option<&'a Image> {
    match which {
        ProcessSelector::Main => recording.images.first(),
        ProcessSelector::Process(name) => {
            let is_it = |image: &&Image| image.folder == *name || image.pid.to_string() == *name;
            recording.images.iter().rev().find(is_it)
        }
    }
}

/// The image that took the place of one in its process.
fn successor(dir: &Path, image: &Image) -> Option<Image> {
    let start = Instant::now();
    loop {
        let recording = read(dir)?;
        let mut later = recording.images.iter().skip_while(|other| other.folder != image.folder).skip(1);
        if let Some(next) = later.find(|other| other.pid == image.pid) {
            return Some(next.clone());
        }
        if start.elapsed() > SUCCESSOR_TIMEOUT || !is_written(dir, &recording, Some(image)) {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether a recorder is at work: it holds a lock while it writes a recording of a command. A daemon's epoch has none; there the process decides.
fn is_written(dir: &Path, recording: &Recording, image: Option<&Image>) -> bool {
    if recording.ended_unix_ns.is_some() {
        return false;
    }
    match File::open(dir.join(RESERVE)) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => image.is_none_or(|image| Path::new(&format!("/proc/{}", image.pid)).exists()),
    }
}

/// One process's files.
struct Follower {
    folder: PathBuf,
    tape: Option<(File, u64)>,
    /// Offset of the next record in it.
    at: u64,
    traces: Vec<(Codec, File)>,
    decoder: Decoder,
    /// Number of the next chunk.
    next: u32,
    has_written: bool,
    /// What could not be read.
    fault: Option<String>,
}

impl Follower {
    fn new(folder: PathBuf) -> Follower {
        let (tape, traces, fault) = Default::default();
        let (at, next, has_written, decoder) = (TAPE_HEADER_LEN, 0, false, Decoder::default());
        Follower { folder, tape, at, traces, decoder, next, has_written, fault }
    }

    /// Appends the bytes of all chunks that have been committed since. Returns how the process ended, once the tape says so.
    fn copy(&mut self, out: &mut Vec<u8>) -> io::Result<Option<u8>> {
        let path = self.folder.join(TAPE);
        let inode = match std::fs::metadata(&path) {
            Ok(about) => about.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.tape.as_ref().is_none_or(|(_, old)| *old != inode) {
            let file = File::open(&path)?;
            let inode = file.metadata()?.ino();
            (self.tape, self.at) = (Some((file, inode)), TAPE_HEADER_LEN);
            self.traces.clear();
        }
        let Some((tape, _)) = &self.tape else { return Ok(None) };
        let mut stream = Stream::at(tape, self.at);
        loop {
            let step = stream.step().map_err(|error| io::Error::other(error.to_string()))?;
            match step {
                Step::Record(_, Record::Chunk(chunk)) if chunk.number >= self.next => {
                    let codec = Codec::from_number(chunk.codec).unwrap_or(Codec::Plain);
                    let trace = match self.traces.iter().position(|(known, _)| *known == codec) {
                        Some(place) => &self.traces[place].1,
                        None => {
                            let name = format!("{TRACE}{}", codec.suffix());
                            match File::open(self.folder.join(name)) {
                                Ok(file) => {
                                    self.traces.push((codec, file));
                                    &self.traces[self.traces.len() - 1].1
                                }
                                // The recorder has put another tape and trace in the place of these; they are read at the next look.
                                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                                Err(error) => return Err(error),
                            }
                        }
                    };
                    match self.decoder.plain(trace, &chunk) {
                        Ok(plain) => out.extend_from_slice(plain),
                        Err(why) => drop(self.fault.get_or_insert(format!("chunk {}: {why}", chunk.number))),
                    }
                    (self.next, self.at) = (chunk.number + 1, stream.offset());
                }
                Step::Record(_, Record::End(end)) => return Ok(Some(end.reason)),
                Step::Record(..) | Step::Unknown(..) => self.at = stream.offset(),
                // At the end of the file it may be a record that is being written.
                Step::Damage(_, to, error) if to < tape.metadata()?.len() => {
                    self.fault.get_or_insert(format!("{TAPE}: {error}"));
                    self.at = to;
                }
                Step::Damage(..) | Step::End(_) => break,
            }
        }
        Ok(None)
    }
}
