//! The last stage: writes to the files of the processes ([`crate::store::files`]), and continues when they
//! cannot be written.
//!
//! When the disk is full, a quota is used up, or an error occurs, the chunk of the write job is
//! dropped. Its events are counted as lost, thread by thread, and everything that later jobs need
//! (sites, modules, names) is kept until it can be written. Nothing waits: the program runs on,
//! each following job is another attempt, and the recording states how long writing was
//! interrupted, why, and how many events that cost. A segment that ends meanwhile is completed
//! later ([`unfinished`]).

mod unfinished;

use crate::heap::profile_delta::ProfileDelta;
use crate::os::permissions::remove_segment;
use crate::session::traced_process::{KnownAllocators, Session, SessionId};
use crate::store::division::Pending;
use crate::store::files::{Failure, Files};
use crate::store::trace::Chunk;
use crate::target::name_saver::Job;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use formats::recording::{Accounting, RESERVE};
use formats::tape::{Accounts, Division, Loss, Note, Packer, Record};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use unfinished::UnfinishedSegments;

/// Maximum number of records that wait for a disk that cannot be written; with more, they are
/// dropped.
const MAX_WAITING: usize = 1 << 20;
/// Longest time that a write waits for the division of a snapshot.
const LONGEST_DIVISION: Duration = Duration::from_secs(3);

/// A job for the stage. Jobs of a process are done in the order in which they were sent.
#[derive(Debug)]
pub enum WriteJob {
    /// Writes to the files of a process.
    Write {
        session: Arc<Session>,
        /// The data to write.
        content: Content,
        /// Called once the data is written, or cannot be.
        on_written: Option<Callback>,
    },
    /// Writes the last data of a segment, and reports the segment as stored.
    Finish(Box<SegmentEnd>),
    /// Removes a segment of a flight recording.
    Remove(PathBuf),
}

/// Data to write to the files of one process.
#[derive(Debug)]
pub enum Content {
    /// Tape records, and the chunk that needs them.
    Chunk {
        /// Tape records before the chunk.
        records: Vec<Record>,
        /// The chunk. Without events there is none.
        chunk: Option<Box<Chunk>>,
    },
    /// The state after the last chunk.
    State {
        /// Tape records, which are appended.
        records: Vec<Record>,
        /// The new content of the profile, unless the profile stays as it is.
        profile: Option<Vec<u8>>,
    },
    /// The whole state of a process whose events are not stored.
    Snapshot {
        /// All records of the tape, which replace the existing ones.
        tape: Vec<Record>,
        profile: Vec<u8>,
        /// Divisions of snapshots that may not be done yet, each with the index of its record.
        pending: Vec<(usize, Pending)>,
    },
}

impl Content {
    /// Returns whether there is nothing to write.
    fn is_empty(&self) -> bool {
        match self {
            Content::Chunk { records, chunk } => records.is_empty() && chunk.is_none(),
            Content::State { records, profile } => records.is_empty() && profile.is_none(),
            Content::Snapshot { .. } => false,
        }
    }
}

/// The end of a segment, which may be the end of its process.
#[derive(Debug)]
pub struct SegmentEnd {
    pub session: Arc<Session>,
    /// The last data of the segment. A process without files has none.
    pub content: Option<Content>,
    /// Event counts of the segment.
    pub sums: Accounting,
    /// What the segment contributes to sums that are kept elsewhere.
    pub profile_delta: Option<Box<ProfileDelta>>,
    /// Whether the process has ended.
    pub is_over: bool,
    /// The folders of a flight recording that has ended, oldest first.
    pub segments: Vec<PathBuf>,
    /// The names to look up for the folders.
    pub symbols: Option<Box<Job>>,
    /// Called once everything is written.
    pub on_written: Option<Callback>,
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

/// A process or segment that is completely written, or whose files failed.
#[derive(Debug)]
pub struct Stored {
    pub session: SessionId,
    /// The error, with the path of the file.
    pub error: Option<String>,
    /// Event counts of the process or segment.
    pub sums: Accounting,
    /// Folder of the process or segment.
    pub segment: PathBuf,
    /// The same folder, if something was written to it.
    pub folder: Option<PathBuf>,
    pub allocators: KnownAllocators,
    /// What the process contributes to sums that are kept elsewhere.
    pub profile_delta: Option<Box<ProfileDelta>>,
    /// Whether the process has ended.
    pub is_over: bool,
    /// The folders of its flight recording, oldest first.
    pub segments: Vec<PathBuf>,
    /// The names to look up for these folders.
    pub symbols: Option<Box<Job>>,
}

/// The files of one segment, and what could not be written to them.
#[derive(Debug)]
struct Output {
    session: Arc<Session>,
    files: Option<Files>,
    /// Records before the next chunk that could not be written yet.
    waiting_records: Vec<Record>,
    /// The chunk that was written by the current job, to be used again.
    written: Option<Box<Chunk>>,
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
    /// Returns a message about the interruption. `all_lost` is the number of events that are lost
    /// by it and by earlier ones.
    fn text(&self, all_lost: u64) -> String {
        let lost = match (self.events.values().sum::<u64>(), all_lost) {
            (0, 0) => "no event is lost".to_owned(),
            (0, all) => format!("no further event is lost, {all} events were before"),
            (events, all) if all > events => format!("{events} events are lost, {all} altogether"),
            (events, _) => format!("{events} events are lost"),
        };
        format!("writing was interrupted for {:.1} s ({}): {lost}", self.since.elapsed().as_secs_f64(), self.why)
    }

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
            written: None,
            dropped: BTreeMap::new(),
            stall: None,
            error: None,
        }
    }

    /// Writes data, or drops its chunk. Returns the chunk, to be used again.
    fn write(&mut self, mut content: Content, packer: &mut Packer) -> Option<Box<Chunk>> {
        let result = self.attempt_twice(&mut content, packer);
        self.note_failure(result.err(), &mut content);
        if let Some(written) = self.written.take() {
            self.session.journal_files.mark_stored(written.number);
            return Some(written);
        }
        match content {
            Content::Chunk { chunk, .. } => chunk,
            Content::State { .. } | Content::Snapshot { .. } => None,
        }
    }

    /// Writes the last data of the segment. When that fails, disk space is used that was reserved
    /// for it. Returns what could not be written.
    fn write_last(&mut self, mut content: Content, packer: &mut Packer) -> Option<Content> {
        let mut result = self.attempt_twice(&mut content, packer);
        if result.is_err() {
            let reserve = self.session.folder.parent().map(|folder| folder.join(RESERVE));
            reserve.map(|path| std::fs::OpenOptions::new().write(true).truncate(true).open(path));
            self.note_failure(result.err(), &mut content);
            result = self.attempt(&mut content, packer);
            if result.is_err() {
                result = self.attempt_without_sums(&mut content, packer);
            }
        }
        let is_written = result.is_ok();
        self.note_failure(result.err(), &mut content);
        (!is_written).then_some(content)
    }

    /// Attempts to write the state of a segment without its sums, which a reader can compute again
    /// from the events.
    fn attempt_without_sums(&mut self, content: &mut Content, packer: &mut Packer) -> Result<(), Failure> {
        let (sums, kept_profile) = match content {
            Content::State { records, profile } => {
                let is_sum = |record: &mut Record| matches!(record, Record::Summary(_));
                (records.extract_if(.., is_sum).collect(), profile.take())
            }
            Content::Chunk { .. } | Content::Snapshot { .. } => (Vec::new(), None),
        };
        let result = self.attempt(content, packer);
        if let (Err(_), Content::State { records, profile }) = (&result, content) {
            records.splice(0..0, sums);
            *profile = kept_profile;
        }
        result
    }

    /// Notes that data could not be written. The events of its chunk are lost.
    fn note_failure(&mut self, failure: Option<Failure>, content: &mut Content) {
        let Some(failure) = failure else { return };
        let why = failure.error.to_string();
        let stall = self.stall.get_or_insert_with(|| {
            tracing::warn!("{failure}: writing is interrupted, and events are counted as lost until it can continue");
            Stall { since: Instant::now(), why, events: BTreeMap::new(), ticks: (u64::MAX, 0) }
        });
        if let Content::Chunk { chunk: Some(chunk), .. } = content {
            let (first, last) = stall.ticks;
            stall.ticks = (first.min(chunk.commit.first_tick), last.max(chunk.commit.last_tick));
            for (thread, events) in chunk.threads.drain(..) {
                *stall.events.entry(thread).or_default() += events;
                *self.dropped.entry(thread).or_default() += events;
                self.session.stats.unwritten.fetch_add(events, Relaxed);
            }
            self.session.journal_files.give_up(&self.session.folder, chunk.number, &stall.losses());
        }
        self.error = Some(match self.dropped_events() {
            0 => failure.to_string(),
            events => format!("{failure}; {events} events are lost"),
        });
    }

    /// Returns the number of events in dropped chunks.
    fn dropped_events(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Attempts to write data. When that fails, attempts it again with the disk space of journal
    /// files that are not needed any more.
    fn attempt_twice(&mut self, content: &mut Content, packer: &mut Packer) -> Result<(), Failure> {
        let result = self.attempt(content, packer);
        if result.is_err() && self.session.journal_files.free(&self.session.folder) {
            return self.attempt(content, packer);
        }
        result
    }

    /// Attempts to write data. What was written is removed from it, unless writing it again does no
    /// harm.
    fn attempt(&mut self, content: &mut Content, packer: &mut Packer) -> Result<(), Failure> {
        if let Content::Chunk { records, .. } = content {
            self.add_waiting(records);
        }
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(Files::open(&self.session)?),
        };
        if let Content::Snapshot { tape, pending, .. } = content {
            add_divisions(tape, pending);
            files.replace_tape(tape)?;
        }
        files.records(&self.waiting_records)?;
        self.waiting_records.clear();
        if let Content::Chunk { chunk: open, .. } = content
            && let Some(mut chunk) = open.take()
        {
            match check_quota(&self.session).and_then(|()| files.chunk(&mut chunk, packer)) {
                Ok(()) => self.written = Some(chunk),
                Err(failure) => {
                    *open = Some(chunk);
                    return Err(failure);
                }
            }
        }
        if let Some(stall) = self.stall.take() {
            let folder = self.session.folder.display();
            let text = stall.text(self.dropped.values().sum());
            tracing::warn!("{folder}: {text}");
            self.error = Some(format!("{folder}: {text}"));
            self.waiting_records.extend(stall.losses());
            self.waiting_records.push(Record::Note(Note { tick: stall.ticks.1, text: text.into() }));
            files.records(&self.waiting_records)?;
            self.waiting_records.clear();
        }
        match content {
            Content::Chunk { .. } => Ok(()),
            Content::State { records, profile } => {
                if let Some(bytes) = profile {
                    files.profile_beside_events(bytes)?;
                    *profile = None;
                }
                write_state(files, records, &self.dropped, &self.session)
            }
            Content::Snapshot { profile, .. } => files.profile(profile),
        }
    }

    /// Adds records to those that wait until they can be written.
    fn add_waiting(&mut self, records: &mut Vec<Record>) {
        self.waiting_records.append(records);
        if self.waiting_records.len() > MAX_WAITING {
            self.waiting_records.clear();
            self.error.get_or_insert_with(|| {
                format!("{}: too many records waited for the disk and are lost", self.session.folder.display())
            });
        }
    }
}

/// Adds the divisions to the records of a tape as soon as they are done.
fn add_divisions(tape: &mut Vec<Record>, pending: &mut Vec<(usize, Pending)>) {
    // The last one first, so that the indexes of the others stay valid.
    for (index, division) in pending.drain(..).rev() {
        if let Some(division) = division.wait(LONGEST_DIVISION) {
            tape.insert(index.min(tape.len()), Record::Division(Division::clone(&division)));
        }
    }
}

/// Writes the records of a state, and removes those that were written. The last record of a tape
/// states that everything before it is stored.
fn write_state(
    files: &mut Files,
    records: &mut Vec<Record>,
    dropped: &BTreeMap<u32, u64>,
    session: &Session,
) -> Result<(), Failure> {
    let is_end = records.iter().any(|record| matches!(record, Record::End(_)));
    if is_end {
        files.end_mark()?;
    }
    let mut written = 0;
    let result = records.iter().try_for_each(|record| {
        match record {
            Record::Accounts(accounts) => files.records(&[Record::Accounts(with_lost_events(accounts, dropped))])?,
            other => files.records(std::slice::from_ref(other))?,
        }
        written += 1;
        Ok(())
    });
    records.drain(..written);
    if is_end && result.is_ok() {
        session.journal_files.remove(&session.folder);
    }
    result
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

/// Finishes a segment: looks up its names, and returns what is reported about it.
fn finish(output: Option<&Output>, segment_end: SegmentEnd) -> Stored {
    let SegmentEnd { session, mut sums, profile_delta, is_over, segments, symbols, .. } = segment_end;
    // Names of a flight recording are looked up later, if the recording is kept.
    let (now, later) = if segments.is_empty() { (symbols, None) } else { (None, symbols) };
    if let (Some(job), Some(saver)) = (now, session.files.saver()) {
        saver.submit(*job);
    }
    let dropped = output.map_or(0, Output::dropped_events);
    (sums.recorded, sums.lost) = (sums.recorded.saturating_sub(dropped), sums.lost + dropped);
    Stored {
        segment: session.folder.clone(),
        session: session.id,
        folder: output.is_some().then(|| session.folder.clone()),
        error: output.and_then(|output| output.error.clone()),
        sums,
        allocators: session.allocators(),
        profile_delta,
        is_over,
        segments,
        symbols: later,
    }
}

/// The thread of the stage: writes until all senders are gone. Chunks are returned to be filled
/// again.
pub fn run(write_jobs: &Receiver<WriteJob>, spare: &Sender<Chunk>, stored_out: &Sender<Stored>) {
    let mut outputs: HashMap<SessionId, Output> = HashMap::new();
    let mut unfinished = UnfinishedSegments::default();
    let mut packer = Packer::default();
    loop {
        let received = match unfinished.next_attempt() {
            Some(next) => write_jobs.recv_deadline(next),
            None => write_jobs.recv().map_err(RecvTimeoutError::from),
        };
        unfinished.attempt_if_due(&mut packer);
        let write_job = match received {
            Ok(write_job) => write_job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let on_written = match write_job {
            WriteJob::Write { session, content, on_written } => {
                if !content.is_empty() {
                    let output = outputs.entry(session.id).or_insert_with(|| Output::new(&session));
                    if let Some(chunk) = output.write(content, &mut packer) {
                        let _ = spare.try_send(*chunk);
                    }
                }
                on_written
            }
            WriteJob::Finish(mut segment_end) => {
                let session = &segment_end.session;
                let content = segment_end.content.take();
                let left = content.and_then(|content| {
                    let output = outputs.entry(session.id).or_insert_with(|| Output::new(session));
                    output.write_last(content, &mut packer)
                });
                let output = outputs.remove(&session.id);
                let on_written = segment_end.on_written.take();
                let _ = stored_out.send(finish(output.as_ref(), *segment_end));
                if let (Some(output), Some(left)) = (output, left) {
                    unfinished.add(output, left);
                }
                on_written
            }
            WriteJob::Remove(folder) => {
                remove_segment(&folder);
                None
            }
        };
        if let Some(on_written) = on_written {
            on_written.call();
        }
    }
    unfinished.attempt(&mut packer);
}
