//! The last stage: hands what is to be written to the images' files ([`crate::files`]), and goes on
//! when they cannot be written.
//!
//! A disk that is full, a quota, an error: the piece at hand is given up, its events are counted as
//! lost, thread by thread, and everything that later pieces need (sites, modules, names) is kept
//! until it can be written. Nobody waits: the program runs on, each next piece is another try, and
//! the recording says how long writing stood still, why, and what that cost.

use crate::contribution::Contribution;
use crate::files::{Failure, Files};
use crate::session::{Session, SessionId};
use crate::symbols::Job;
use crate::trace::Chunk;
use crossbeam_channel::{Receiver, Sender};
pub use formats::recording::Accounting as Sums;
use formats::recording::RESERVE;
use formats::tape::{Accounts, Loss, Note, Record};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Records that wait for a disk that cannot be written; beyond it the image is given up.
const MOST_WAITING: usize = 1 << 20;

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
    /// The names to be kept in its folder, with the last piece.
    pub symbols: Option<Box<Job>>,
    /// A folder that is no longer wanted.
    pub remove: Option<PathBuf>,
    /// What is to be done once everything up to here is written.
    pub then: Option<Then>,
    /// The chunk, once it is written.
    pub written: Option<Chunk>,
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
        let (chunk, profile, last, whole, contribution, symbols, remove, then, written) = Default::default();
        let session = Arc::clone(session);
        let is_over = false;
        Piece {
            session,
            before,
            chunk,
            after,
            profile,
            last,
            whole,
            contribution,
            is_over,
            segments,
            symbols,
            remove,
            then,
            written,
        }
    }

    /// Whether there is something to write.
    fn has_bytes(&self) -> bool {
        let records = !self.before.is_empty() || !self.after.is_empty() || self.whole.is_some();
        records || self.chunk.is_some() || self.profile.is_some()
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
    /// Its folder.
    pub part: PathBuf,
    /// The same, when there is something in it.
    pub folder: Option<PathBuf>,
    /// What it adds to sums that are kept elsewhere.
    pub contribution: Option<Box<Contribution>>,
    /// Whether it was the last part.
    pub is_over: bool,
    /// The folders of its flight, oldest first.
    pub segments: Vec<PathBuf>,
    /// The names that these are to keep.
    pub symbols: Option<Box<Job>>,
}

/// One image on its way to disk.
#[derive(Debug)]
struct Target {
    session: Arc<Session>,
    files: Option<Files>,
    /// Records that stand before the next chunk and could not be written yet.
    waiting: Vec<Record>,
    /// Events of chunks that were given up, by thread.
    dropped: BTreeMap<u32, u64>,
    stall: Option<Stall>,
    /// What is told when all is over.
    error: Option<String>,
}

/// Writing stands still.
#[derive(Debug)]
struct Stall {
    since: Instant,
    why: String,
    /// Events by thread, and the ticks that they lie between.
    events: BTreeMap<u32, u64>,
    ticks: (u64, u64),
}

impl Target {
    fn new(session: &Arc<Session>) -> Target {
        let (waiting, dropped) = Default::default();
        Target { session: Arc::clone(session), files: None, waiting, dropped, stall: None, error: None }
    }

    /// Writes a piece, or gives its chunk up.
    fn write(&mut self, piece: &mut Piece) {
        self.waiting.append(&mut piece.before);
        if self.waiting.len() > MOST_WAITING {
            self.waiting.clear();
            self.error.get_or_insert_with(|| {
                format!("{}: what was kept for the disk is given up", self.session.folder.display())
            });
        }
        let mut result = self.put(piece);
        if piece.last.is_some() && result.is_err() {
            // Room for the last words was set aside.
            let reserve = self.session.folder.parent().map(|folder| folder.join(RESERVE));
            reserve.map(|path| std::fs::OpenOptions::new().write(true).truncate(true).open(path));
            self.note_failure(result.err(), piece);
            piece.chunk = None;
            result = self.put(piece).or_else(|_| {
                // Without the sums, which a reader can make again.
                piece.after.retain(|record| !matches!(record, Record::Summary(_)));
                piece.profile = None;
                self.put(piece)
            });
        }
        self.note_failure(result.err(), piece);
        if let Some(sums) = &mut piece.last {
            let dropped = self.dropped.values().sum::<u64>();
            (sums.recorded, sums.lost) = (sums.recorded.saturating_sub(dropped), sums.lost + dropped);
        }
    }

    fn note_failure(&mut self, failure: Option<Failure>, piece: &mut Piece) {
        let Some(failure) = failure else { return };
        let why = failure.error.to_string();
        let stall = self.stall.get_or_insert_with(|| {
            tracing::warn!("{failure}: writing stands still, and events are counted as lost until it can go on");
            Stall { since: Instant::now(), why, events: BTreeMap::new(), ticks: (u64::MAX, 0) }
        });
        if let Some(chunk) = &mut piece.chunk {
            let (first, last) = stall.ticks;
            stall.ticks = (first.min(chunk.commit.first_tick), last.max(chunk.commit.last_tick));
            for (thread, events) in chunk.threads.drain(..) {
                *stall.events.entry(thread).or_default() += events;
                *self.dropped.entry(thread).or_default() += events;
                self.session.stats.unwritten.fetch_add(events, Relaxed);
            }
        }
        self.error = Some(match self.dropped.values().sum::<u64>() {
            0 => failure.to_string(),
            events => format!("{failure}; {events} events are lost"),
        });
    }

    /// Tries to write all of a piece. What was written is taken out of it.
    fn put(&mut self, piece: &mut Piece) -> Result<(), Failure> {
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(Files::open(&self.session)?),
        };
        if let Some(records) = &piece.whole {
            files.whole(records)?;
            piece.whole = None;
        }
        files.records(&self.waiting)?;
        self.waiting.clear();
        if let Some(chunk) = &mut piece.chunk {
            admitted(&self.session)?;
            files.chunk(chunk)?;
            piece.written = piece.chunk.take();
        }
        if let Some(stall) = self.stall.take() {
            let (seconds, events) = (stall.since.elapsed().as_secs_f64(), stall.events.values().sum::<u64>());
            let text = format!("writing stood still for {seconds:.1} s ({}): {events} events are lost", stall.why);
            tracing::warn!("{}: {text}", self.session.folder.display());
            self.error = Some(format!("{}: {text}", self.session.folder.display()));
            let (from_tick, to_tick) = (stall.ticks.0.min(stall.ticks.1), stall.ticks.1);
            let losses = stall.events.iter().map(|(&thread, &events)| Loss { thread, events, from_tick, to_tick });
            self.waiting.extend(losses.map(Record::Loss));
            self.waiting.push(Record::Note(Note { tick: to_tick, text: text.into() }));
            files.records(&self.waiting)?;
            self.waiting.clear();
        }
        if let Some(bytes) = &piece.profile {
            files.profile(bytes)?;
            piece.profile = None;
        }
        if piece.after.iter().any(|record| matches!(record, Record::End(_))) {
            files.end_mark()?;
        }
        for record in &piece.after {
            match record {
                Record::Accounts(ledger) => files.records(&[Record::Accounts(corrected(ledger, &self.dropped))])?,
                other => files.records(std::slice::from_ref(other))?,
            }
        }
        piece.after.clear();
        Ok(())
    }
}

/// Fails when the disk space that a process shares with others is used up.
fn admitted(session: &Session) -> Result<(), Failure> {
    match &session.options.quota {
        Some(quota) if !quota.admits() => {
            let error = std::io::Error::other("its user's share of the disk is used up");
            Err(Failure { path: session.folder.clone(), error })
        }
        _ => Ok(()),
    }
}

/// A ledger in which events of chunks that were given up are lost ones.
fn corrected(ledger: &Accounts, dropped: &BTreeMap<u32, u64>) -> Accounts {
    let mut ledger = ledger.clone();
    for account in &mut ledger.accounts {
        let gone = dropped.get(&account.thread).copied().unwrap_or(0).min(account.recorded);
        (account.recorded, account.lost) = (account.recorded - gone, account.lost + gone);
    }
    ledger
}

/// The stage's thread: writes pieces until all senders are gone. Chunks go back to be filled again.
pub fn run(pieces: &Receiver<Piece>, spare: &Sender<Chunk>, done: &Sender<Stored>) {
    let mut images: HashMap<SessionId, Target> = HashMap::new();
    for mut piece in pieces {
        let id = piece.session.id;
        if piece.has_bytes() {
            images.entry(id).or_insert_with(|| Target::new(&piece.session)).write(&mut piece);
        }
        if let Some(folder) = piece.remove.take() {
            let _ = std::fs::remove_dir_all(folder);
        }
        if let Some(chunk) = piece.chunk.take().or(piece.written.take()) {
            let _ = spare.try_send(chunk);
        }
        // Whether a flight is kept is not known here.
        let symbols = piece.symbols.take();
        let (now, later) = if piece.segments.is_empty() { (symbols, None) } else { (None, symbols) };
        if let (Some(job), Some(saver)) = (now, piece.session.files.saver()) {
            saver.submit(*job);
        }
        if let Some(sums) = piece.last {
            let target = images.remove(&id);
            let folder = target.is_some().then(|| piece.session.folder.clone());
            let error = target.and_then(|target| target.error);
            let contribution = piece.contribution.take();
            let segments = std::mem::take(&mut piece.segments);
            let _ = done.send(Stored {
                part: piece.session.folder.clone(),
                session: id,
                error,
                sums,
                folder,
                contribution,
                is_over: piece.is_over,
                segments,
                symbols: later,
            });
        }
        if let Some(then) = piece.then.take() {
            then.call();
        }
    }
}
