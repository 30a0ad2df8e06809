//! Follows the trace of one process while it is recorded, and writes it as one uncompressed MTRC
//! file with end mark.
//!
//! The chunks that the tape commits are copied one by one. When the recorder replaces a tape by one
//! with a compressed trace, the new tape is read from the beginning. Chunks that were already
//! written are skipped by their number.

use crate::load::{self, chunk::Decoder};
use heaptape_formats::mtrc::{self, layout::MAGIC};
use heaptape_formats::recording::{ProcessInfo, RECORDING, RESERVE, Recording, TAPE, TRACE};
use heaptape_formats::regular;
use heaptape_formats::tape::journal;
use heaptape_formats::tape::{Codec, END_EXEC, Record, Source, Step, Stream};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of bytes that are written before more are read: a trace may be larger than the memory.
const COPY_BYTES: usize = 1 << 18;
/// Maximum time to wait for the program that replaces another one in its process. `recording.json`
/// is written four times a second.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(2);
/// Length of a tape's header in bytes, before the first record.
const TAPE_HEADER_LEN: u64 = 16;

/// How the trace ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process ended, and its complete trace was written.
    Complete,
    /// The trace has no end, or some chunk could not be read. The text is the reason.
    Truncated(String),
}

/// The error of [`follow`].
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The recording or process does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Reading a file or writing the copy failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Selects a process of a recording.
#[derive(Clone, Debug)]
pub enum ProcessSelector {
    /// The program that `record` started, or its successor if it calls exec before it allocates.
    Main,
    /// The process with this pid or folder name.
    Process(String),
}

/// Copies the trace of one process to `out` until the process ends. The recording `dir` may not
/// exist yet, as long as `may_appear` returns true.
///
/// # Errors
/// Returns an error if the recording or process does not exist, or if reading or writing fails.
pub fn follow(
    dir: &Path,
    which: &ProcessSelector,
    may_appear: &dyn Fn() -> bool,
    out: &mut dyn Write,
) -> Result<Ending, Failure> {
    let mut process = loop {
        let recording = read(dir);
        if let Some(process) = recording.as_ref().and_then(|recording| choose(recording, which)) {
            break process.clone();
        }
        let is_live = match &recording {
            Some(recording) => is_written(dir, recording, None),
            None => may_appear(),
        };
        // The recording may have been written between the two reads.
        let again = read(dir);
        if !is_live && again.as_ref().and_then(|recording| choose(recording, which)).is_none() {
            let which = match (which, again) {
                (_, None) => return Err(Failure::NotFound(format!("{}: no recording", dir.display()))),
                (ProcessSelector::Main, _) => "no process was recorded".to_owned(),
                (ProcessSelector::Process(name), _) => format!("no process {name}"),
            };
            return Err(Failure::NotFound(format!("{}: {which}", dir.display())));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let mut trace = Follower::new(dir.join(&process.folder));
    loop {
        // The order matters: everything that the recorder wrote before it ended is read.
        let is_live = read(dir).is_some_and(|recording| is_written(dir, &recording, Some(&process)));
        let mut fresh = Vec::new();
        let end = trace.copy(&mut fresh)?;
        if end == Some(END_EXEC)
            && matches!(which, ProcessSelector::Main)
            && !trace.has_written
            && let Some(next) = successor(dir, &process)
        {
            (trace, process) = (Follower::new(dir.join(&next.folder)), next);
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
        if trace.has_more {
            continue;
        }
        match (end, trace.fault.take()) {
            (Some(_), None) => return Ok(Ending::Complete),
            (Some(_), Some(fault)) => return Ok(Ending::Truncated(fault)),
            (None, fault) if !is_live => {
                out.write_all(&trace.journal())?;
                return Ok(Ending::Truncated(fault.unwrap_or_else(|| "the recording has no end".into())));
            }
            (None, fault) => trace.fault = fault,
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Reads `recording.json`. A killed recorder may leave processes that the file does not list yet.
/// These are added at the end.
fn read(dir: &Path) -> Option<Recording> {
    let mut recording: Recording = serde_json::from_slice(&regular::read(&dir.join(RECORDING)).ok()?).ok()?;
    if recording.ended_unix_ns.is_none() && !is_written(dir, &recording, None) {
        for folder in load::unlisted(dir, Some(&recording)).unwrap_or_default() {
            let folder = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let pid = folder.split('.').next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
            recording.processes.push(ProcessInfo { folder, pid, ..ProcessInfo::default() });
        }
    }
    Some(recording)
}

/// Returns the selected process of a recording.
fn choose<'a>(recording: &'a Recording, which: &ProcessSelector) -> Option<&'a ProcessInfo> {
    match which {
        ProcessSelector::Main => recording.processes.first(),
        ProcessSelector::Process(name) => {
            let is_it = |process: &&ProcessInfo| process.folder == *name || process.pid.to_string() == *name;
            recording.processes.iter().rev().find(is_it)
        }
    }
}

/// Waits for the program that replaced `process` in its process, and returns it.
fn successor(dir: &Path, process: &ProcessInfo) -> Option<ProcessInfo> {
    let start = Instant::now();
    loop {
        let recording = read(dir)?;
        let mut later = recording.processes.iter().skip_while(|other| other.folder != process.folder).skip(1);
        if let Some(next) = later.find(|other| other.pid == process.pid) {
            return Some(next.clone());
        }
        if start.elapsed() > SUCCESSOR_TIMEOUT || !is_written(dir, &recording, Some(process)) {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns whether a recorder is still writing. The recorder of a command holds a lock while it
/// writes. In the epoch of a daemon there is no lock, so the existence of the process decides.
fn is_written(dir: &Path, recording: &Recording, process: Option<&ProcessInfo>) -> bool {
    if recording.ended_unix_ns.is_some() {
        return false;
    }
    match regular::open(&dir.join(RESERVE)) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => process.is_none_or(|process| Path::new(&format!("/proc/{}", process.pid)).exists()),
    }
}

/// Reads the files of one process.
struct Follower {
    folder: PathBuf,
    /// The tape and its inode number.
    tape: Option<(File, u64)>,
    /// Offset of the next record in the tape.
    offset: u64,
    /// The open trace files.
    traces: Vec<(Codec, File)>,
    decoder: Decoder,
    next_chunk: u32,
    /// Whether any bytes were written.
    has_written: bool,
    /// Whether the last call of [`Follower::copy`] left chunks to the next one.
    has_more: bool,
    /// Description of the first read error.
    fault: Option<String>,
}

impl Follower {
    fn new(folder: PathBuf) -> Follower {
        Follower {
            folder,
            tape: None,
            offset: TAPE_HEADER_LEN,
            traces: Vec::new(),
            decoder: Decoder::default(),
            next_chunk: 0,
            has_written: false,
            has_more: false,
            fault: None,
        }
    }

    /// The bytes of the chunks that a killed recorder did not commit.
    fn journal(&self) -> Vec<u8> {
        let open = journal::open_chunks(&self.folder);
        let tape = self.tape.as_ref().map(|(tape, _)| tape as &dyn Source);
        journal::Missing::of(tape, &open).ok().flatten().map_or(Vec::new(), |missing| missing.trace)
    }

    /// Appends the bytes of the chunks that were committed since the last call, but not many more
    /// than [`COPY_BYTES`]. Returns how the process ended, once the tape has its end record.
    fn copy(&mut self, out: &mut Vec<u8>) -> io::Result<Option<u8>> {
        let path = self.folder.join(TAPE);
        let inode = match std::fs::metadata(&path) {
            Ok(about) => about.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.tape.as_ref().is_none_or(|(_, old)| *old != inode) {
            let file = regular::open(&path)?;
            let inode = file.metadata()?.ino();
            (self.tape, self.offset) = (Some((file, inode)), TAPE_HEADER_LEN);
            self.traces.clear();
        }
        let Some((tape, _)) = &self.tape else { return Ok(None) };
        let mut stream = Stream::at(tape, self.offset);
        self.has_more = false;
        loop {
            if out.len() >= COPY_BYTES {
                self.has_more = true;
                break;
            }
            let step = stream.step().map_err(|error| io::Error::other(error.to_string()))?;
            match step {
                Step::Record(_, Record::Chunk(chunk)) if chunk.number >= self.next_chunk => {
                    let codec = Codec::from_number(chunk.codec).unwrap_or(Codec::Plain);
                    let trace = match self.traces.iter().position(|(known, _)| *known == codec) {
                        Some(index) => &self.traces[index].1,
                        None => {
                            let name = format!("{TRACE}{}", codec.suffix());
                            match regular::open(&self.folder.join(name)) {
                                Ok(file) => {
                                    self.traces.push((codec, file));
                                    &self.traces[self.traces.len() - 1].1
                                }
                                // The recorder has replaced this tape and trace. The new ones are
                                // read next time.
                                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                                Err(error) => return Err(error),
                            }
                        }
                    };
                    match self.decoder.plain(trace, &chunk) {
                        Ok(plain) => out.extend_from_slice(plain),
                        Err(why) => drop(self.fault.get_or_insert(format!("chunk {}: {why}", chunk.number))),
                    }
                    (self.next_chunk, self.offset) = (chunk.number + 1, stream.offset());
                }
                Step::Record(_, Record::End(end)) => return Ok(Some(end.reason)),
                Step::Record(..) | Step::Unknown(..) => self.offset = stream.offset(),
                // Damage at the end of the file may be a record that is being written.
                Step::Damage(_, to, error) if to < tape.metadata()?.len() => {
                    self.fault.get_or_insert(format!("{TAPE}: {error}"));
                    self.offset = to;
                }
                Step::Damage(..) | Step::End(_) => break,
            }
        }
        Ok(None)
    }
}
