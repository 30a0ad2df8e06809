//! The last stage: compresses chunks, writes trace, tape and profile. The tape's commit record follows its trace bytes, both are only
//! ever appended to, so whatever is cut off at any moment leaves whole chunks.
//!
//! A trace starts plain, as a file that mpatrol's own reader reads. When it outgrows [`PLAIN_LIMIT`] its chunks are written again,
//! compressed, into a new file, and a tape that names that one takes the old tape's place in one rename; then the plain file goes.
//! Between rename and removal both files are there: the tape's chunks say which one holds.

use crate::contribution::Contribution;
use crate::session::{Session, SessionId};
use crate::trace::Chunk;
use crossbeam_channel::{Receiver, Sender};
use formats::recording::{PROFILE, TAPE, TRACE};
use formats::tape::{self, Codec, Column, Record, Step};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes up to which a trace stays plain.
pub const PLAIN_LIMIT: u64 = 1 << 20;
/// Columns smaller than this are not worth compressing.
const SMALL_COLUMN: usize = 64;

/// Something to write for one image, in this order: records, chunk, records, profile, end.
#[derive(Debug)]
pub struct Piece {
    /// Whose.
    pub session: Arc<Session>,
    /// Tape records before the chunk.
    pub before: Vec<Record>,
    /// A chunk.
    pub chunk: Option<Chunk>,
    /// Tape records behind it.
    pub after: Vec<Record>,
    /// The profile's new bytes.
    pub profile: Option<Vec<u8>>,
    /// The image's last piece, or its part's: its events.
    pub last: Option<Sums>,
    /// All records of the tape, in place of those that it has.
    pub whole: Option<Vec<Record>>,
    /// What it adds to sums that are kept elsewhere, with the last piece.
    pub contribution: Option<Box<Contribution>>,
    /// Whether the process is over, with the last piece.
    pub is_over: bool,
    /// The folders of a flight that is over, with the last piece.
    pub segments: Vec<PathBuf>,
    /// A folder that is no longer wanted.
    pub remove: Option<PathBuf>,
    /// What is to be done once everything up to here is written.
    pub then: Option<Then>,
}

/// Something to be done later, once.
pub struct Then(Box<dyn FnOnce() + Send>);

impl Then {
    /// This.
    pub fn new(act: impl FnOnce() + Send + 'static) -> Then {
        Then(Box::new(act))
    }

    /// Does it.
    pub fn call(self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Then {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Then")
    }
}

impl Piece {
    /// An empty piece.
    pub fn of(session: &Arc<Session>) -> Piece {
        let (before, after, segments) = Default::default();
        let (chunk, profile, last, whole, contribution, remove, then) = Default::default();
        let session = Arc::clone(session);
        let is_over = false;
        Piece { session, before, chunk, after, profile, last, whole, contribution, is_over, segments, remove, then }
    }

    /// Whether there is something to write.
    fn has_bytes(&self) -> bool {
        let records = !self.before.is_empty() || !self.after.is_empty() || self.whole.is_some();
        records || self.chunk.is_some() || self.profile.is_some()
    }
}

/// Events of an image, as its ledger says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Counted by the process.
    pub emitted: u64,
    /// In the recording.
    pub recorded: u64,
    /// Found no room.
    pub lost: u64,
    /// Passed over by sampling.
    pub sampled_out: u64,
}

impl Sums {
    /// Adds another image's.
    pub fn add(&mut self, other: Sums) {
        self.emitted += other.emitted;
        self.recorded += other.recorded;
        self.lost += other.lost;
        self.sampled_out += other.sampled_out;
    }
}

/// An image whose last byte is written, or whose files failed.
#[derive(Debug)]
pub struct Stored {
    /// Which.
    pub session: SessionId,
    /// What went wrong, with the file's name.
    pub error: Option<String>,
    /// Its events.
    pub sums: Sums,
    /// Its folder, when there is something in it.
    pub folder: Option<PathBuf>,
    /// What it adds to sums that are kept elsewhere.
    pub contribution: Option<Box<Contribution>>,
    /// Whether it was the last part.
    pub is_over: bool,
    /// The folders of its flight, oldest first.
    pub segments: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
struct Failure {
    path: PathBuf,
    error: io::Error,
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
    fn create(path: PathBuf, owner: Option<u32>) -> Result<Growing, Failure> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = at(&path, file)?;
        at(&path, crate::process::give_to(&file, owner))?;
        Ok(Growing { path, file, at: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        at(&self.path, self.file.write_all_at(bytes, self.at))?;
        self.at += bytes.len() as u64;
        Ok(self.at - bytes.len() as u64)
    }
}

/// The files of one image.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    owner: Option<u32>,
    tape: Growing,
    trace: Option<Growing>,
    /// How the trace is stored now, and how it is to be stored once it is large.
    codec: Codec,
    later: (Codec, i32),
    packed: Vec<u8>,
    framed: Vec<u8>,
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
    fn open(session: &Session) -> Result<Files, Failure> {
        let folder = session.folder.clone();
        let mut framed = Vec::new();
        tape::Writer::file_head(&mut framed);
        tape::Writer::default().record(&Record::Process(session.process.clone()), &mut framed);
        if session.options.folds {
            at(&folder, crate::process::make_folder(&folder, session.options.owner))?;
        }
        let mut tape = Growing::create(folder.join(TAPE), session.options.owner)?;
        tape.append(&framed)?;
        let later = (session.options.codec, session.options.level);
        let owner = session.options.owner;
        Ok(Files { folder, owner, tape, trace: None, codec: Codec::Plain, later, packed: Vec::new(), framed })
    }

    fn trace_path(&self, codec: Codec) -> PathBuf {
        self.folder.join(format!("{TRACE}{}", codec.suffix()))
    }

    fn records(&mut self, records: &[Record]) -> Result<(), Failure> {
        if records.is_empty() {
            return Ok(());
        }
        self.framed.clear();
        let mut writer = tape::Writer::default();
        records.iter().for_each(|record| writer.record(record, &mut self.framed));
        self.tape.append(&self.framed).map(drop)
    }

    fn chunk(&mut self, chunk: &mut Chunk) -> Result<(), Failure> {
        if self.codec != self.later.0 && chunk.commit.plain_offset + chunk.commit.plain_length > PLAIN_LIMIT {
            self.compress()?;
        }
        let codec = if self.codec == Codec::Plain { (Codec::Plain, 0) } else { self.later };
        let path = self.trace_path(self.codec);
        let trace = match &mut self.trace {
            Some(trace) => trace,
            none => none.insert(Growing::create(path, self.owner)?),
        };
        at(&trace.path, pack(chunk, codec, trace.at, &mut self.packed))?;
        trace.append(&self.packed)?;
        for (kind, plain) in chunk.columns.iter().filter(|(_, plain)| !plain.is_empty()) {
            // Columns are our own in any case: the plain trace is for another reader.
            let column = at(&self.tape.path, column(*kind, plain, self.later))?;
            chunk.commit.columns.push(column);
        }
        self.records(&[Record::Chunk(std::mem::take(&mut chunk.commit))])
    }

    /// The trace has outgrown the plain file: from here on it is compressed.
    fn compress(&mut self) -> Result<(), Failure> {
        self.codec = self.later.0;
        let Some(plain) = self.trace.take() else { return Ok(()) };
        let bytes = at(&plain.path, std::fs::read(&plain.path))?;
        let old_tape = at(&self.tape.path, std::fs::read(&self.tape.path))?;
        let mut trace = Growing::create(self.trace_path(self.codec), self.owner)?;
        let mut tape = Growing::create(self.folder.join(format!("{TAPE}.tmp")), self.owner)?;
        let mut framed = Vec::new();
        tape::Writer::file_head(&mut framed);
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
        let path = self.folder.join(TAPE);
        at(&path, std::fs::rename(&tape.path, &path))?;
        tape.path = path;
        at(&plain.path, std::fs::remove_file(&plain.path))?;
        (self.tape, self.trace) = (tape, Some(trace));
        Ok(())
    }

    /// Puts a file in the place of another, whole.
    fn replace(&mut self, name: &str, bytes: &[u8]) -> Result<Growing, Failure> {
        let (path, temporary) = (self.folder.join(name), self.folder.join(format!("{name}.tmp")));
        let _ = std::fs::remove_file(&temporary);
        let mut file = Growing::create(temporary, self.owner)?;
        file.append(bytes)?;
        at(&file.path, file.file.sync_data())?;
        at(&path, std::fs::rename(&file.path, &path))?;
        file.path = path;
        Ok(file)
    }

    fn profile(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.replace(PROFILE, bytes).map(drop)
    }

    fn whole(&mut self, records: &[Record]) -> Result<(), Failure> {
        let mut framed = Vec::new();
        tape::Writer::file_head(&mut framed);
        let mut writer = tape::Writer::default();
        records.iter().for_each(|record| writer.record(record, &mut framed));
        self.tape = self.replace(TAPE, &framed)?;
        Ok(())
    }

    fn write(&mut self, piece: &mut Piece) -> Result<(), Failure> {
        if let Some(records) = &piece.whole {
            self.whole(records)?;
        }
        self.records(&piece.before)?;
        if let Some(chunk) = &mut piece.chunk {
            self.chunk(chunk)?;
        }
        if let Some(bytes) = &piece.profile {
            self.profile(bytes)?;
        }
        if piece.after.iter().any(|record| matches!(record, Record::End(_))) {
            // The end mark belongs to no chunk; the tape's last record says that all is there, so it comes last.
            self.packed.clear();
            let codec = if self.codec == Codec::Plain { (Codec::Plain, 0) } else { self.later };
            if let Some(trace) = &mut self.trace {
                let mark = formats::mtrc::layout::MAGIC;
                at(&trace.path, codec.0.pack(mark, codec.1, &mut self.packed))?;
                trace.append(&self.packed)?;
            }
        }
        self.records(&piece.after)
    }
}

/// The stage's thread: writes pieces until all senders are gone. Chunks go back to be filled again.
pub fn run(pieces: &Receiver<Piece>, spare: &Sender<Chunk>, done: &Sender<Stored>) {
    let mut images: HashMap<SessionId, Result<Files, String>> = HashMap::new();
    for mut piece in pieces {
        let id = piece.session.id;
        if piece.has_bytes() {
            let files = images.entry(id).or_insert_with(|| told(Files::open(&piece.session)));
            if let Ok(open) = files
                && let Err(failure) = told(open.write(&mut piece))
            {
                *files = Err(failure);
            }
        }
        if let Some(folder) = piece.remove.take() {
            let _ = std::fs::remove_dir_all(folder);
        }
        if let Some(chunk) = piece.chunk.take() {
            let _ = spare.try_send(chunk);
        }
        if let Some(sums) = piece.last {
            let files = images.remove(&id);
            let folder = files.is_some().then(|| piece.session.folder.clone());
            let error = files.and_then(Result::err);
            let contribution = piece.contribution.take();
            let segments = std::mem::take(&mut piece.segments);
            let _ =
                done.send(Stored { session: id, error, sums, folder, contribution, is_over: piece.is_over, segments });
        }
        if let Some(then) = piece.then.take() {
            then.call();
        }
    }
}

/// Says once what went wrong; the image is left as it is, cut but readable, and its process goes on.
fn told<T>(result: Result<T, Failure>) -> Result<T, String> {
    result.map_err(|failure| {
        tracing::error!("{failure}: this process is not recorded any further");
        failure.to_string()
    })
}
