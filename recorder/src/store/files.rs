//! The files of one process: trace, tape, profile. The tape's commit record follows the trace bytes
//! that it commits, and both files are only appended to, so a truncation at any point leaves
//! complete chunks. A write that failed in part is undone, so that the next attempt starts at the
//! same offset.
//!
//! A trace starts uncompressed, as a file that mpatrol's own reader reads. When it exceeds
//! [`PLAIN_LIMIT`] its chunks are written to a new, compressed file. A tape that names this file
//! replaces the old tape in one rename, and then the uncompressed file is removed. Between rename
//! and removal both files exist: the tape's chunks show which one is valid.
//!
//! An uncompressed trace ends with MTRC's end mark at any moment, so that mpatrol's own reader,
//! which accepts no file without it, reads the trace while it grows ([`AppendFile::append`]). Its
//! first bytes are written under another name, so that nobody finds the file without the mark.

use crate::os::compression::Compression;
use crate::os::permissions::{let_read, make_folder};
use crate::os::replace_file::{Durability, replace_file};
use crate::os::sync;
use crate::session::disk_quota::Quota;
use crate::session::traced_process::Session;
use crate::store::trace::Chunk;
use formats::mtrc::layout::MAGIC;
use formats::recording::{PROFILE, TAPE, TRACE};
use formats::tape::{self, COLUMN_PREVIOUS, Codec, Column, Packer, Record, Step};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of bytes up to which a trace stays uncompressed.
pub(crate) const PLAIN_LIMIT: u64 = 1 << 20;
/// Columns smaller than this are not compressed.
const SMALL_COLUMN: usize = 64;

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub(crate) struct Failure {
    pub path: PathBuf,
    pub error: io::Error,
}

fn with_path<T>(path: &Path, result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| Failure { path: path.to_owned(), error })
}

/// A file that is only appended to.
#[derive(Debug)]
struct AppendFile {
    path: PathBuf,
    file: File,
    /// Number of bytes, without the mark.
    length: u64,
    /// Bytes that follow the last one at any moment: the end mark of an uncompressed trace.
    mark: &'static [u8],
}

impl AppendFile {
    /// Creates a new file. A file that an earlier attempt left is removed.
    fn create(path: PathBuf, reader: Option<u32>) -> Result<AppendFile, Failure> {
        let create = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = create().or_else(|_| std::fs::remove_file(&path).and_then(|()| create()));
        let file = with_path(&path, file)?;
        with_path(&path, let_read(&file, reader))?;
        Ok(AppendFile { path, file, length: 0, mark: &[] })
    }

    /// Appends bytes and returns their offset.
    ///
    /// With a mark, whoever reads the file meanwhile finds either the old mark or everything up to
    /// the new one: what is behind the old mark comes first, and replacing it is the last step.
    fn append(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        let marked = if self.length == 0 { 0 } else { self.mark.len().min(bytes.len()) };
        let (first, behind) = bytes.split_at(marked);
        let end = self.length + bytes.len() as u64;
        let parts = [(behind, self.length + marked as u64), (self.mark, end), (first, self.length)];
        if let Err(error) = parts.into_iter().try_for_each(|(part, offset)| self.file.write_all_at(part, offset)) {
            self.truncate(self.length);
            return with_path(&self.path, Err(error));
        }
        Ok(std::mem::replace(&mut self.length, end))
    }

    /// Truncates the file: bytes that no commit names would be read as events without names.
    fn truncate(&mut self, length: u64) {
        self.length = length;
        let marked = self.file.write_all_at(self.mark, length).map_or(0, |()| self.mark.len() as u64);
        let _ = self.file.set_len(length + marked);
    }
}

/// The open files of one process.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    reader: Option<u32>,
    quota: Option<Arc<Quota>>,
    tape: AppendFile,
    trace: Option<AppendFile>,
    /// Codec of the trace now, and codec and level of a large trace.
    codec: Codec,
    final_codec: (Codec, i32),
    packed: Vec<u8>,
    framed: Vec<u8>,
    /// Round of the pending synchronization: see [`sync::add_written`].
    round: u64,
    /// The first round in which these files were written.
    first_round: u64,
    has_end: bool,
}

/// Completes the commit of a chunk with offset, length and checksum of its stored bytes.
fn complete(commit: &mut tape::Chunk, codec: Codec, offset: u64, packed: &[u8]) {
    commit.codec = codec as u8;
    (commit.stored_offset, commit.stored_length) = (offset, packed.len() as u64);
    commit.checksum = crc32fast::hash(packed);
}

fn column(packer: &mut Packer, kind: u8, plain: &[u8], codec: (Codec, i32)) -> io::Result<Column> {
    let (codec, level) = match codec.0 {
        _ if plain.len() < SMALL_COLUMN => (Codec::Plain, 0),
        // What the columns of a trace are compressed by.
        Codec::Columns => (Codec::Zstd, codec.1),
        Codec::Plain | Codec::Lz4 | Codec::Zstd => codec,
    };
    let mut stored = Vec::new();
    packer.pack(codec, plain, level, &mut stored)?;
    Ok(Column { kind, codec: codec as u8, plain_length: plain.len() as u32, stored: tape::field::Text(stored) })
}

impl Files {
    /// Creates the tape. The trace is created with the first chunk.
    ///
    /// # Errors
    /// The path and the error of the file that could not be created.
    pub(crate) fn open(session: &Session) -> Result<Files, Failure> {
        let folder = session.folder.clone();
        let mut framed = Vec::new();
        tape::Writer::file_header(&mut framed);
        tape::Writer::default().record(&Record::Process(session.process.clone()), &mut framed);
        if session.options.folds {
            with_path(&folder, make_folder(&folder, session.options.reader))?;
        }
        let reader = session.options.reader;
        let mut tape = AppendFile::create(folder.join(TAPE), reader)?;
        tape.append(&framed)?;
        let Compression { codec, level } = session.options.compression;
        Ok(Files {
            folder,
            reader,
            quota: session.options.quota.clone(),
            tape,
            trace: None,
            codec: Codec::Plain,
            final_codec: (codec, level),
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
    ///
    /// # Errors
    /// The path and the error of the tape.
    pub(crate) fn records(&mut self, records: &[Record]) -> Result<(), Failure> {
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
        let files = self.trace.iter().chain([&self.tape]).map(|append_file| &append_file.file);
        sync::add_written(&mut self.round, bytes, files);
        if self.first_round == 0 {
            self.first_round = self.round;
        }
    }

    /// Appends a chunk: its bytes to the trace, then its commit to the tape.
    ///
    /// # Errors
    /// The path and the error of the file that could not be written. Both files are as before.
    pub(crate) fn chunk(&mut self, chunk: &mut Chunk, packer: &mut Packer) -> Result<(), Failure> {
        if self.codec != self.final_codec.0 && chunk.commit.plain_offset + chunk.commit.plain_length > PLAIN_LIMIT {
            self.compress(packer).inspect_err(|_| {
                let half_done = [self.trace_path(self.final_codec.0), self.folder.join(format!("{TAPE}.tmp"))];
                half_done.iter().for_each(|path| drop(std::fs::remove_file(path)));
            })?;
        }
        let codec = if self.codec == Codec::Plain { (Codec::Plain, 0) } else { self.final_codec };
        let path = self.trace_path(self.codec);
        let trace = match &mut self.trace {
            Some(trace) => trace,
            none => {
                self.round = 0;
                let (mark, first): (&[u8], _) = match codec.0 {
                    Codec::Plain => (MAGIC, self.folder.join(format!("{TRACE}.tmp"))),
                    _ => (&[], path.clone()),
                };
                none.insert(AppendFile { mark, ..AppendFile::create(first, self.reader)? })
            }
        };
        let start = trace.length;
        let parts = chunk.mtrc.each_ref().map(Vec::as_slice);
        let plain_length = chunk.commit.plain_length as usize;
        with_path(&trace.path, packer.pack_columns(codec.0, parts, plain_length, codec.1, &mut self.packed))?;
        complete(&mut chunk.commit, codec.0, start, &self.packed);
        trace.append(&self.packed)?;
        if trace.path != path {
            with_path(&path, std::fs::rename(&trace.path, &path)).inspect_err(|_| trace.truncate(start))?;
            trace.path = path;
        }
        chunk.commit.columns.clear();
        for (kind, plain) in chunk.columns.iter().filter(|(kind, plain)| *kind == COLUMN_PREVIOUS || !plain.is_empty())
        {
            // Columns are always compressed: only the trace has another reader.
            let column = with_path(&self.tape.path, column(packer, *kind, plain, self.final_codec))?;
            chunk.commit.columns.push(column);
        }
        let (first_tick, last_tick) = (chunk.commit.first_tick, chunk.commit.last_tick);
        let result = self.records(&[Record::Chunk(std::mem::take(&mut chunk.commit))]);
        (chunk.commit.first_tick, chunk.commit.last_tick) = (first_tick, last_tick);
        if let (Err(_), Some(trace)) = (&result, &mut self.trace) {
            trace.truncate(start);
        }
        self.wrote(self.packed.len());
        result
    }

    /// Converts the trace to a compressed file, since it has exceeded [`PLAIN_LIMIT`].
    fn compress(&mut self, packer: &mut Packer) -> Result<(), Failure> {
        let final_codec = self.final_codec.0;
        let Some(plain) = &self.trace else {
            self.codec = final_codec;
            return Ok(());
        };
        let bytes = with_path(&plain.path, std::fs::read(&plain.path))?;
        let old_tape = with_path(&self.tape.path, std::fs::read(&self.tape.path))?;
        let mut trace = AppendFile::create(self.trace_path(final_codec), self.reader)?;
        let mut tape = AppendFile::create(self.folder.join(format!("{TAPE}.tmp")), self.reader)?;
        let mut framed = Vec::new();
        tape::Writer::file_header(&mut framed);
        let mut writer = tape::Writer::default();
        let mut reader = with_path(&self.tape.path, tape::Reader::new(&old_tape).map_err(io::Error::other))?;
        loop {
            match reader.step() {
                Step::Record(_, Record::Chunk(mut commit)) => {
                    let from = commit.stored_offset as usize;
                    let plain = bytes.get(from..from + commit.stored_length as usize).unwrap_or_default();
                    let (codec, level) = self.final_codec;
                    with_path(&trace.path, packer.pack(codec, plain, level, &mut self.packed))?;
                    complete(&mut commit, codec, trace.length, &self.packed);
                    trace.append(&self.packed)?;
                    writer.record(&Record::Chunk(commit), &mut framed);
                }
                Step::Record(_, record) => writer.record(&record, &mut framed),
                Step::Unknown(..) | Step::Damage(..) => {}
                Step::End(_) => break,
            }
        }
        tape.append(&framed)?;
        let path = self.folder.join(TAPE);
        let rename = || with_path(&path, std::fs::rename(&tape.path, &path));
        let renamed = match self.first_round {
            0 => Some(rename()),
            round => sync::unless_taken(round, rename),
        };
        match renamed {
            Some(result) => result?,
            // The data of the old files may be on the disk already, and must not be lost with them.
            None => {
                with_path(&trace.path, trace.file.sync_data())?;
                with_path(&tape.path, tape.file.sync_data())?;
                rename()?;
            }
        }
        tape.path = path;
        // From here on the new files are valid; an uncompressed file that remains does no harm.
        let _ = std::fs::remove_file(&plain.path);
        (self.codec, self.tape, self.trace, self.round) = (final_codec, tape, Some(trace), 0);
        Ok(())
    }

    /// Replaces a file atomically.
    fn replace(&mut self, name: &str, bytes: &[u8]) -> Result<AppendFile, Failure> {
        let path = self.folder.join(name);
        let file = with_path(&path, replace_file(&path, bytes, self.reader, Durability::BeforeRename))?;
        Ok(AppendFile { path, file, length: bytes.len() as u64, mark: &[] })
    }

    /// Replaces the profile by new content.
    ///
    /// # Errors
    /// The path and the error of the profile.
    pub(crate) fn profile(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.replace(PROFILE, bytes).map(drop)
    }

    /// Replaces the profile of a process whose events are stored. If there was none, nothing waits
    /// for the disk: after a loss of power it can be made from the events.
    ///
    /// # Errors
    /// The path and the error of the profile.
    pub(crate) fn profile_beside_events(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.folder.join(PROFILE);
        if path.exists() {
            return self.profile(bytes);
        }
        with_path(&path, replace_file(&path, bytes, self.reader, Durability::Later)).map(drop)
    }

    /// Replaces the tape by these records.
    ///
    /// # Errors
    /// The path and the error of the tape.
    pub(crate) fn replace_tape(&mut self, records: &[Record]) -> Result<(), Failure> {
        let mut framed = Vec::new();
        tape::Writer::file_header(&mut framed);
        let mut writer = tape::Writer::default();
        records.iter().for_each(|record| writer.record(record, &mut framed));
        (self.tape, self.round) = (self.replace(TAPE, &framed)?, 0);
        Ok(())
    }

    /// Appends the end mark of the trace, which belongs to no chunk. It is written before the last
    /// record of the tape, which states that everything is stored.
    ///
    /// # Errors
    /// The path and the error of the trace.
    pub(crate) fn end_mark(&mut self) -> Result<(), Failure> {
        self.packed.clear();
        let (codec, level) = self.final_codec;
        // An uncompressed trace has its mark already.
        if let Some(trace) = self.trace.as_mut().filter(|trace| !self.has_end && trace.mark.is_empty()) {
            with_path(&trace.path, codec.pack(MAGIC, level, &mut self.packed))?;
            trace.append(&self.packed)?;
            self.has_end = true;
        }
        Ok(())
    }
}
