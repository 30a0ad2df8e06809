//! The last stage: writes to the files of the processes ([`crate::files`]), and continues when they
//! cannot be written.
//!
//! When the disk is full, a quota is used up, or an error occurs, the chunk of the write job is
//! dropped. Its events are counted as lost, thread by thread, and everything that later jobs need
//! (sites, modules, names) is kept until it can be written. Nothing waits: the program runs on,
//! each following job is another attempt, and the recording states how long writing was
//! interrupted, why, and how many events that cost.

use crate::chunk_journal;
use crate::files::{Failure, Files};
use crate::profile_delta::ProfileDelta;
use crate::session::{Session, SessionId};
use crate::symbols::Job;
use crate::trace::Chunk;
use crossbeam_channel::{Receiver, Sender};
use formats::recording::{Accounting, RESERVE};
use formats::tape::{Accounts, Loss, Note, Record};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Maximum number of records that wait for a disk that cannot be written; with more, they are
/// dropped.
const MAX_WAITING: usize = 1 << 20;

/// Data to write for one process, in this order: records, chunk, records, profile, end.
#[derive(Debug)]
pub struct WriteJob {
    /// Session of the process.
    pub session: Arc<Session>,
    /// Tape records before the chunk.
    pub before: Vec<Record>,
    /// The chunk, until it is written.
    pub chunk: Option<Chunk>,
    /// Tape records after the chunk.
    pub after: Vec<Record>,
    /// The new content of the profile.
    pub profile: Option<Vec<u8>>,
    /// The event counts, in the last job of a process or segment.
    pub last: Option<Accounting>,
    /// All records of the tape, which replace the existing ones.
    pub replacement_tape: Option<Vec<Record>>,
    /// What the process contributes to sums that are kept elsewhere, in the last job.
    pub profile_delta: Option<Box<ProfileDelta>>,
    /// Whether the process has ended, in the last job.
    pub is_over: bool,
    /// The folders of a flight recording that has ended, in the last job.
    pub segments: Vec<PathBuf>,
    /// The names to look up for the folder, in the last job.
    pub symbols: Option<Box<Job>>,
    /// A folder to remove.
    pub remove: Option<PathBuf>,
    /// Called once everything up to this job is written.
    pub on_written: Option<Callback>,
    /// The chunk, once it is written, to be used again.
    pub written: Option<Chunk>,
}

/// A function that is called once, later.
pub struct Callback(Box<dyn FnOnce() + Send>);

impl Callback {
    /// Creates a callback from a function.
    pub fn new(act: impl FnOnce() + Send + 'static) -> Callback {
        Callback(Box::new(act))
    }

    /// Calls the function once.
    pub fn call(self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Callback {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Callback")
    }
}

impl WriteJob {
    /// Creates a job without any data.
    pub fn of(session: &Arc<Session>) -> WriteJob {
        WriteJob {
            session: Arc::clone(session),
            before: Vec::new(),
            chunk: None,
            after: Vec::new(),
            profile: None,
            last: None,
            replacement_tape: None,
            profile_delta: None,
            is_over: false,
            segments: Vec::new(),
            symbols: None,
            remove: None,
            on_written: None,
            written: None,
        }
    }

    /// Returns whether there is data to write.
    fn has_bytes(&self) -> bool {
        let records = !self.before.is_empty() || !self.after.is_empty() || self.replacement_tape.is_some();
        records || self.chunk.is_some() || self.profile.is_some()
    }
}

/// A process or segment that is completely written, or whose files failed.
#[derive(Debug)]
pub struct Stored {
    /// Session of the process.
    pub session: SessionId,
    /// The error, with the path of the file.
    pub error: Option<String>,
    /// Event counts of the process or segment.
    pub sums: Accounting,
    /// Folder of the process or segment.
    pub segment: PathBuf,
    /// The same folder, if something was written to it.
    pub folder: Option<PathBuf>,
    /// What the process contributes to sums that are kept elsewhere.
    pub profile_delta: Option<Box<ProfileDelta>>,
    /// Whether the process has ended.
    pub is_over: bool,
    /// The folders of its flight recording, oldest first.
    pub segments: Vec<PathBuf>,
    /// The names to look up for these folders.
    pub symbols: Option<Box<Job>>,
}

/// The files of one process, and what could not be written to them.
#[derive(Debug)]
struct Output {
    session: Arc<Session>,
    files: Option<Files>,
    /// Records before the next chunk that could not be written yet.
    waiting_records: Vec<Record>,
    /// Number of events of dropped chunks, by thread.
    dropped: BTreeMap<u32, u64>,
    stall: Option<Stall>,
    /// The error to report at the end.
    error: Option<String>,
}

/// An interruption of writing.
#[derive(Debug)]
struct Stall {
    since: Instant,
    why: String,
    /// Number of lost events by thread, and the first and last tick of their chunks.
    events: BTreeMap<u32, u64>,
    ticks: (u64, u64),
}

impl Stall {
    /// Returns the tape records of the lost events.
    fn losses(&self) -> Vec<Record> {
        let (from_tick, to_tick) = (self.ticks.0.min(self.ticks.1), self.ticks.1);
        let losses = self.events.iter().map(|(&thread, &events)| Loss { thread, events, from_tick, to_tick });
        losses.map(Record::Loss).collect()
    }
}

impl Output {
    fn new(session: &Arc<Session>) -> Output {
        Output {
            session: Arc::clone(session),
            files: None,
            waiting_records: Vec::new(),
            dropped: BTreeMap::new(),
            stall: None,
            error: None,
        }
    }

    /// Writes a job, or drops its chunk.
    fn write(&mut self, write_job: &mut WriteJob) {
        self.waiting_records.append(&mut write_job.before);
        if self.waiting_records.len() > MAX_WAITING {
            self.waiting_records.clear();
            self.error.get_or_insert_with(|| {
                format!("{}: too many records waited for the disk and are lost", self.session.folder.display())
            });
        }
        let mut result = self.write_all_parts(write_job);
        let journal_files = &self.session.journal_files;
        if result.is_err() && journal_files.free(&self.session.folder) {
            result = self.write_all_parts(write_job);
        }
        if write_job.last.is_some() && result.is_err() {
            // Disk space for the end of the recording was reserved.
            let reserve = self.session.folder.parent().map(|folder| folder.join(RESERVE));
            reserve.map(|path| std::fs::OpenOptions::new().write(true).truncate(true).open(path));
            self.note_failure(result.err(), write_job);
            write_job.chunk = None;
            result = self.write_all_parts(write_job).or_else(|_| {
                // Without the sums, which a reader can compute again.
                write_job.after.retain(|record| !matches!(record, Record::Summary(_)));
                write_job.profile = None;
                self.write_all_parts(write_job)
            });
        }
        self.note_failure(result.err(), write_job);
        if let Some(chunk) = &write_job.written {
            write_job.session.journal_files.mark_stored(chunk.number);
        }
        if let Some(sums) = &mut write_job.last {
            let dropped = self.dropped.values().sum::<u64>();
            (sums.recorded, sums.lost) = (sums.recorded.saturating_sub(dropped), sums.lost + dropped);
        }
    }

    fn note_failure(&mut self, failure: Option<Failure>, write_job: &mut WriteJob) {
        let Some(failure) = failure else { return };
        let why = failure.error.to_string();
        let stall = self.stall.get_or_insert_with(|| {
            tracing::warn!("{failure}: writing is interrupted, and events are counted as lost until it can continue");
            Stall { since: Instant::now(), why, events: BTreeMap::new(), ticks: (u64::MAX, 0) }
        });
        if let Some(chunk) = &mut write_job.chunk {
            let (first, last) = stall.ticks;
            stall.ticks = (first.min(chunk.commit.first_tick), last.max(chunk.commit.last_tick));
            for (thread, events) in chunk.threads.drain(..) {
                *stall.events.entry(thread).or_default() += events;
                *self.dropped.entry(thread).or_default() += events;
                self.session.stats.unwritten.fetch_add(events, Relaxed);
            }
            self.session.journal_files.give_up(&self.session.folder, chunk.number, &stall.losses());
        }
        self.error = Some(match self.dropped.values().sum::<u64>() {
            0 => failure.to_string(),
            events => format!("{failure}; {events} events are lost"),
        });
    }

    /// Writes all data of a job. Data that was written is removed from it.
    fn write_all_parts(&mut self, write_job: &mut WriteJob) -> Result<(), Failure> {
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(Files::open(&self.session)?),
        };
        if let Some(records) = &write_job.replacement_tape {
            files.replace_tape(records)?;
            write_job.replacement_tape = None;
        }
        files.records(&self.waiting_records)?;
        self.waiting_records.clear();
        if let Some(chunk) = &mut write_job.chunk {
            check_quota(&self.session)?;
            files.chunk(chunk)?;
            write_job.written = write_job.chunk.take();
        }
        if let Some(stall) = self.stall.take() {
            let (seconds, events) = (stall.since.elapsed().as_secs_f64(), stall.events.values().sum::<u64>());
            let text = format!("writing was interrupted for {seconds:.1} s ({}): {events} events are lost", stall.why);
            tracing::warn!("{}: {text}", self.session.folder.display());
            self.error = Some(format!("{}: {text}", self.session.folder.display()));
            self.waiting_records.extend(stall.losses());
            self.waiting_records.push(Record::Note(Note { tick: stall.ticks.1, text: text.into() }));
            files.records(&self.waiting_records)?;
            self.waiting_records.clear();
        }
        if let Some(bytes) = &write_job.profile {
            files.profile(bytes)?;
            write_job.profile = None;
        }
        if write_job.after.iter().any(|record| matches!(record, Record::End(_))) {
            files.end_mark()?;
        }
        for record in &write_job.after {
            match record {
                Record::Accounts(accounts) => {
                    files.records(&[Record::Accounts(with_lost_events(accounts, &self.dropped))])?
                }
                other => files.records(std::slice::from_ref(other))?,
            }
        }
        if write_job.after.iter().any(|record| matches!(record, Record::End(_))) {
            chunk_journal::remove(&self.session.folder);
        }
        write_job.after.clear();
        Ok(())
    }
}

/// Returns an error when the disk quota of the process's user is used up.
fn check_quota(session: &Session) -> Result<(), Failure> {
    match &session.options.quota {
        Some(quota) if !quota.admits() => {
            let error = std::io::Error::other("its user's share of the disk is used up");
            Err(Failure { path: session.folder.clone(), error })
        }
        _ => Ok(()),
    }
}

/// Returns accounts in which the events of dropped chunks are lost ones.
fn with_lost_events(accounts: &Accounts, dropped: &BTreeMap<u32, u64>) -> Accounts {
    let mut accounts = accounts.clone();
    for account in &mut accounts.accounts {
        let lost_here = dropped.get(&account.thread).copied().unwrap_or(0).min(account.recorded);
        (account.recorded, account.lost) = (account.recorded - lost_here, account.lost + lost_here);
    }
    accounts
}

/// The thread of the stage: writes until all senders are gone. Chunks are returned to be filled
/// again.
pub fn run(write_jobs: &Receiver<WriteJob>, spare: &Sender<Chunk>, stored_out: &Sender<Stored>) {
    let mut outputs: HashMap<SessionId, Output> = HashMap::new();
    for mut write_job in write_jobs {
        let id = write_job.session.id;
        if write_job.has_bytes() {
            outputs.entry(id).or_insert_with(|| Output::new(&write_job.session)).write(&mut write_job);
        }
        if let Some(folder) = write_job.remove.take() {
            let _ = std::fs::remove_dir_all(folder);
        }
        if let Some(chunk) = write_job.chunk.take().or(write_job.written.take()) {
            let _ = spare.try_send(chunk);
        }
        // Names of a flight recording are looked up later, if the recording is kept.
        let symbols = write_job.symbols.take();
        let (now, later) = if write_job.segments.is_empty() { (symbols, None) } else { (None, symbols) };
        if let (Some(job), Some(saver)) = (now, write_job.session.files.saver()) {
            saver.submit(*job);
        }
        if let Some(sums) = write_job.last {
            let output = outputs.remove(&id);
            let folder = output.is_some().then(|| write_job.session.folder.clone());
            let error = output.and_then(|output| output.error);
            let profile_delta = write_job.profile_delta.take();
            let segments = std::mem::take(&mut write_job.segments);
            let _ = stored_out.send(Stored {
                segment: write_job.session.folder.clone(),
                session: id,
                error,
                sums,
                folder,
                profile_delta,
                is_over: write_job.is_over,
                segments,
                symbols: later,
            });
        }
        if let Some(on_written) = write_job.on_written.take() {
            on_written.call();
        }
    }
}
