//! The files of one image: trace, tape, profile. The tape's commit record follows its trace bytes,
//! both are only ever appended to, so whatever is cut off at any moment leaves whole chunks. What
//! could not be written whole is taken back, so that the next try starts where this one did.
//!
//! A trace starts plain, as a file that mpatrol's own reader reads. When it outgrows
//! [`PLAIN_LIMIT`] its chunks are written again, compressed, into a new file, and a tape that names
//! that one takes the old tape's place in one rename; then the plain file goes. Between rename and
//! removal both files are there: the tape's chunks say which one holds.

use crate::quota::Quota;
use crate::session::Session;
use crate::sync;
use crate::trace::Chunk;
use formats::recording::{PROFILE, TAPE, TRACE};
use formats::tape::{self, COLUMN_PREVIOUS, Codec, Column, Record, Step};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes up to which a trace stays plain.
pub const PLAIN_LIMIT: u64 = 1 << 20;
/// Columns smaller than this are not worth compressing.
const SMALL_COLUMN: usize = 64;

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct Failure {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| Failure { path: path.to_owned(), error })
}

/// A file that only grows.
#[derive(Debug)]
struct Growing {
    path: PathBuf,
    file: File,
    at: u64,
}

impl Growing {
    /// A new file; what an earlier try left there goes.
    fn create(path: PathBuf, reader: Option<u32>) -> Result<Growing, Failure> {
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = at(&path, file)?;
        at(&path, crate::process::let_read(&file, reader))?;
        Ok(Growing { path, file, at: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        if let Err(error) = self.file.write_all_at(bytes, self.at) {
            self.back_to(self.at);
            return at(&self.path, Err(error));
        }
        self.at += bytes.len() as u64;
        Ok(self.at - bytes.len() as u64)
    }

    /// Takes back what lies behind a place: bytes that nobody names would be taken for events whose
    /// names were torn off.
    fn back_to(&mut self, place: u64) {
        self.at = place;
        let _ = self.file.set_len(place);
    }
}

/// The files of one image.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    reader: Option<u32>,
    quota: Option<Arc<Quota>>,
    tape: Growing,
    trace: Option<Growing>,
    /// How the trace is stored now, and how it is to be stored once it is large.
    codec: Codec,
    later: (Codec, i32),
    packed: Vec<u8>,
    framed: Vec<u8>,
    /// See [`sync::wrote`].
    round: u64,
    /// The first of these rounds.
    first_round: u64,
    has_end: bool,
}

/// Writes a record's commit: packs columns and bytes, and says where they lie.
fn pack(chunk: &mut Chunk, codec: (Codec, i32), offset: u64, packed: &mut Vec<u8>) -> io::Result<()> {
    packed.clear();
    codec.0.pack(&chunk.plain, codec.1, packed)?;
    let commit = &mut chunk.commit;
    commit.codec = codec.0 as u8;
    (commit.stored_offset, commit.stored_length) = (offset, packed.len() as u64);
    commit.checksum = crc32fast::hash(packed);
    Ok(())
}

fn column(kind: u8, plain: &[u8], codec: (Codec, i32)) -> io::Result<Column> {
    let (codec, level) = if plain.len() < SMALL_COLUMN { (Codec::Plain, 0) } else { codec };
    let mut stored = Vec::new();
    codec.pack(plain, level, &mut stored)?;
    Ok(Column { kind, codec: codec as u8, plain_length: plain.len() as u32, stored: tape::field::Text(stored) })
}

impl Files {
    /// Creates tape and, with the first chunk, trace.
    pub fn open(session: &Session) -> Result<Files, Failure> {
        let folder = session.folder.clone();
        let mut framed = Vec::new();
        tape::Writer::file_header(&mut framed);
        tape::Writer::default().record(&Record::Process(session.process.clone()), &mut framed);
        if session.options.folds {
            at(&folder, crate::process::make_folder(&folder, session.options.reader))?;
        }
        let reader = session.options.reader;
        let mut tape = Growing::create(folder.join(TAPE), reader)?;
        tape.append(&framed)?;
        let later = (session.options.codec, session.options.level);
        Ok(Files {
            folder,
            reader,
            quota: session.options.quota.clone(),
            tape,
            trace: None,
            codec: Codec::Plain,
            later,
            packed: Vec::new(),
            framed,
            round: 0,
            first_round: 0,
            has_end: false,
        })
    }

    fn trace_path(&self, codec: Codec) -> PathBuf {
        self.folder.join(format!("{TRACE}{}", codec.suffix()))
    }

    /// Appends records to the tape.
    pub fn records(&mut self, records: &[Record]) -> Result<(), Failure> {
        if records.is_empty() {
            return Ok(());
        }
        self.framed.clear();
        let mut writer = tape::Writer::default();
        records.iter().for_each(|record| writer.record(record, &mut self.framed));
        self.tape.append(&self.framed)?;
        self.wrote(self.framed.len());
        Ok(())
    }

    fn wrote(&mut self, bytes: usize) {
        self.quota.iter().for_each(|quota| quota.count(bytes as u64));
        let files = self.trace.iter().chain([&self.tape]).map(|growing| &growing.file);
        sync::wrote(&mut self.round, bytes, files);
        if self.first_round == 0 {
            self.first_round = self.round;
        }
    }

    /// Appends a chunk: its bytes to the trace, then its commit to the tape.
    pub fn chunk(&mut self, chunk: &mut Chunk) -> Result<(), Failure> {
        if self.codec != self.later.0 && chunk.commit.plain_offset + chunk.commit.plain_length > PLAIN_LIMIT {
            self.compress().inspect_err(|_| {
                let half_done = [self.trace_path(self.later.0), self.folder.join(format!("{TAPE}.tmp"))];
                half_done.iter().for_each(|path| drop(std::fs::remove_file(path)));
            })?;
        }
        let codec = if self.codec == Codec::Plain { (Codec::Plain, 0) } else { self.later };
        let path = self.trace_path(self.codec);
        let trace = match &mut self.trace {
            Some(trace) => trace,
            none => {
                self.round = 0;
                none.insert(Growing::create(path, self.reader)?)
            }
        };
        let start = trace.at;
        at(&trace.path, pack(chunk, codec, start, &mut self.packed))?;
        trace.append(&self.packed)?;
        chunk.commit.columns.clear();
        for (kind, plain) in chunk.columns.iter().filter(|(kind, plain)| *kind == COLUMN_PREVIOUS || !plain.is_empty())
        {
            // Columns are our own in any case: the plain trace is for another reader.
            let column = at(&self.tape.path, column(*kind, plain, self.later))?;
            chunk.commit.columns.push(column);
        }
        let (first_tick, last_tick) = (chunk.commit.first_tick, chunk.commit.last_tick);
        let result = self.records(&[Record::Chunk(std::mem::take(&mut chunk.commit))]);
        (chunk.commit.first_tick, chunk.commit.last_tick) = (first_tick, last_tick);
        if let (Err(_), Some(trace)) = (&result, &mut self.trace) {
            trace.back_to(start);
        }
        self.wrote(self.packed.len());
        result
    }

    /// The trace has outgrown the plain file: from here on it is compressed.
    fn compress(&mut self) -> Result<(), Failure> {
        let later = self.later.0;
        let Some(plain) = &self.trace else {
            self.codec = later;
            return Ok(());
        };
        let bytes = at(&plain.path, std::fs::read(&plain.path))?;
        let old_tape = at(&self.tape.path, std::fs::read(&self.tape.path))?;
        let mut trace = Growing::create(self.trace_path(later), self.reader)?;
        let mut tape = Growing::create(self.folder.join(format!("{TAPE}.tmp")), self.reader)?;
        let mut framed = Vec::new();
        tape::Writer::file_header(&mut framed);
        let mut writer = tape::Writer::default();
        let mut reader = at(&self.tape.path, tape::Reader::new(&old_tape).map_err(io::Error::other))?;
        loop {
            match reader.step() {
                Step::Record(_, Record::Chunk(commit)) => {
                    let from = commit.stored_offset as usize;
                    let plain = bytes.get(from..from + commit.stored_length as usize).unwrap_or_default().to_vec();
                    let mut chunk = Chunk { commit, plain, ..Chunk::default() };
                    at(&trace.path, pack(&mut chunk, self.later, trace.at, &mut self.packed))?;
                    trace.append(&self.packed)?;
                    writer.record(&Record::Chunk(chunk.commit), &mut framed);
                }
                Step::Record(_, record) => writer.record(&record, &mut framed),
                Step::Unknown(..) | Step::Damage(..) => {}
                Step::End(_) => break,
            }
        }
        tape.append(&framed)?;
        if self.first_round != 0 && sync::was_taken(self.first_round) {
            // What the old ones hold may be on the disk already, and must not be lost with them.
            at(&trace.path, trace.file.sync_data())?;
            at(&tape.path, tape.file.sync_data())?;
        }
        let path = self.folder.join(TAPE);
        at(&path, std::fs::rename(&tape.path, &path))?;
        tape.path = path;
        // From here on the new files hold; a plain file that stays is one too many and no more.
        let _ = std::fs::remove_file(&plain.path);
        (self.codec, self.tape, self.trace, self.round) = (later, tape, Some(trace), 0);
        Ok(())
    }

    /// Puts a file in the place of another, whole.
    fn replace(&mut self, name: &str, bytes: &[u8]) -> Result<Growing, Failure> {
        let (path, temporary) = (self.folder.join(name), self.folder.join(format!("{name}.tmp")));
        let mut file = Growing::create(temporary, self.reader)?;
        file.append(bytes)?;
        at(&file.path, file.file.sync_data())?;
        at(&path, std::fs::rename(&file.path, &path))?;
        file.path = path;
        Ok(file)
    }

    /// Writes the profile anew.
    pub fn profile(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.replace(PROFILE, bytes).map(drop)
    }

    /// Writes the tape anew.
    pub fn whole(&mut self, records: &[Record]) -> Result<(), Failure> {
        let mut framed = Vec::new();
        tape::Writer::file_header(&mut framed);
        let mut writer = tape::Writer::default();
        records.iter().for_each(|record| writer.record(record, &mut framed));
        (self.tape, self.round) = (self.replace(TAPE, &framed)?, 0);
        Ok(())
    }

    /// The end mark belongs to no chunk; the tape's last record says that all is there, so it comes
    /// last.
    pub fn end_mark(&mut self) -> Result<(), Failure> {
        self.packed.clear();
        let codec = if self.codec == Codec::Plain { (Codec::Plain, 0) } else { self.later };
        if let Some(trace) = self.trace.as_mut().filter(|_| !self.has_end) {
            let mark = formats::mtrc::layout::MAGIC;
            at(&trace.path, codec.0.pack(mark, codec.1, &mut self.packed))?;
            trace.append(&self.packed)?;
            self.has_end = true;
        }
        Ok(())
    }
}
