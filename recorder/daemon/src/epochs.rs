//! The epochs of all users: the current one of each, and those that have ended and are not
//! completely written. Their files belong to the thread of the archive, which gets commands.

use super::archive::{Archive, ArchiveCommand, KeptFlight};
use super::clients::Ended;
use super::clock_jumps::WallClock;
use super::config::{Config, Keep};
use super::control;
use super::disk::Disk;
use super::epoch::Epoch;
use super::folders::make_state_folder;
use crossbeam_channel::{Sender, unbounded};
use formats::recording::{FLIGHTS, Kept, Mark, ProcessInfo};
use heaptape_recorder::os::aside::{self, Owner, Stuck};
use heaptape_recorder::os::crash::{self, Destination};
use heaptape_recorder::os::permissions::make_folder;
use heaptape_recorder::session::name_store::NameStore;
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::session::{Quota, Session, SessionId};
use heaptape_recorder::store::writer::{Callback, Stored};
use heaptape_recorder::target::name_saver::{Job, Saver};
use heaptape_recorder::target::proc::sanitized_name;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The epoch to which the processes of a user are written.
#[derive(Debug)]
struct CurrentEpoch {
    epoch: Arc<Epoch>,
    /// Number of folders of each name.
    names: HashMap<String, u32>,
    until: Instant,
    /// Number of streams that were started in the epoch, and of their bytes.
    streams: u64,
    streamed: Arc<AtomicU64>,
    /// Registers the folder for the report of a crash of this process.
    _crash: Destination,
}

/// An epoch that has ended and is not completely written.
#[derive(Debug)]
struct ClosingEpoch {
    epoch: Arc<Epoch>,
    /// The processes that are not completely written, each with its segment: a process that has
    /// ended may have continued in further segments.
    pending: HashMap<SessionId, PathBuf>,
    on_done: Callback,
}

/// The streams that a user has sent in the current epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochStreams {
    /// Number of streams that were started.
    pub begun: u64,
    /// Number of their bytes so far.
    pub bytes: Arc<AtomicU64>,
}

/// Counts since the start of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Number of segments that could not be written.
    pub errors: u64,
    pub ended: u64,
    /// Number of attempts to start an epoch that failed.
    pub failed: u64,
}

/// How long an epoch's folder may take. Another attempt fails at once while one has not returned.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two attempts to end an epoch, while the next one cannot be made.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Epochs {
    state: PathBuf,
    serves_all: bool,
    keep: Keep,
    length: Duration,
    current: HashMap<u32, CurrentEpoch>,
    closing: Vec<ClosingEpoch>,
    archive: Sender<ArchiveCommand>,
    archive_thread: Option<JoinHandle<()>>,
    disk: Arc<Disk>,
    wall_clock: Arc<WallClock>,
    /// Stored names of the programs of each user.
    names: HashMap<u32, Arc<NameStore>>,
    counters: Counters,
}

impl Epochs {
    /// Starts the thread of the archive. Epochs that earlier daemons left open are sealed.
    pub(crate) fn start(config: &Config, saver: Option<Arc<Saver>>) -> io::Result<Epochs> {
        let (state, keep, disk) = (config.state.clone(), config.keep(), Arc::new(Disk::default()));
        let wall_clock = Arc::<WallClock>::default();
        let archive = Archive::new(&state, keep, Arc::clone(&disk), Arc::clone(&wall_clock), saver);
        let (sender, commands) = unbounded();
        let archive_thread = crash::spawn("archive", move || archive.run(&commands))?;
        Ok(Epochs {
            state,
            serves_all: config.serves_all,
            keep,
            length: config.epoch,
            current: HashMap::new(),
            closing: Vec::new(),
            archive: sender,
            archive_thread: Some(archive_thread),
            disk,
            wall_clock,
            names: HashMap::new(),
            counters: Counters::default(),
        })
    }

    /// Sets the limits of what is kept, and the length of the epochs from the next ones on.
    pub(crate) fn set_limits(&mut self, config: &Config) {
        (self.keep, self.length) = (config.keep(), config.epoch);
        self.send(ArchiveCommand::Keep(self.keep));
    }

    /// Returns the epoch of a user, and starts one if there is none.
    pub(crate) fn of_user(&mut self, uid: u32) -> io::Result<Arc<Epoch>> {
        if let Some(current) = self.current.get(&uid) {
            return Ok(Arc::clone(&current.epoch));
        }
        self.begin(uid).inspect_err(|_| self.counters.failed += 1)
    }

    /// Starts an epoch of a user.
    fn begin(&mut self, uid: u32) -> io::Result<Arc<Epoch>> {
        let (state, serves_all) = (self.state.clone(), self.serves_all);
        let named = self.wall_clock.time_without_jump();
        let make = move || {
            if control::is_gone(&state) {
                make_state_folder(&state, serves_all)?;
            }
            let own = nix::unistd::geteuid().as_raw();
            Epoch::begin(&state, uid, (uid != own).then_some(uid), named)
        };
        // A disk that does not answer, e.g. a frozen one, must not stop the service.
        let owner = Owner { pid: std::process::id(), uid };
        let made = aside::call_for(DISK_PATIENCE, owner, make).map_err(|Stuck| {
            io::Error::new(io::ErrorKind::TimedOut, format!("{}: the disk does not answer", self.state.display()))
        })?;
        let epoch = Arc::new(made?);
        self.send(ArchiveCommand::Begin(Arc::clone(&epoch)));
        let current = CurrentEpoch {
            epoch: Arc::clone(&epoch),
            until: Instant::now() + self.length,
            names: HashMap::new(),
            streams: 0,
            streamed: Arc::default(),
            _crash: Destination::of(&epoch.dir),
        };
        self.current.insert(uid, current);
        Ok(epoch)
    }

    /// Returns the users with a current epoch.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.current.keys().copied().collect()
    }

    /// Returns the users whose current epoch is over.
    pub(crate) fn expired(&self) -> Vec<u32> {
        let now = Instant::now();
        // One whose folder was removed cannot be written any more.
        let gone = self.disk.gone();
        let is_over = |current: &CurrentEpoch| current.until <= now || gone.contains(&current.epoch.dir);
        self.current.iter().filter(|(_, current)| is_over(current)).map(|(uid, _)| *uid).collect()
    }

    /// Returns whether epochs have ended that are not completely written.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Returns the counters since the start of the daemon.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the state of the disk.
    pub(crate) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Returns the disk quota that all files of a user's processes share.
    pub(crate) fn quota(&self, uid: u32) -> Arc<Quota> {
        self.disk.quota(uid, self.keep)
    }

    /// Returns the stored names of the programs of an epoch's user.
    pub(crate) fn names(&mut self, epoch: &Epoch) -> Arc<NameStore> {
        let user = self.state.join(epoch.uid.to_string());
        let store = || Arc::new(NameStore::of(&user, epoch.reader));
        Arc::clone(self.names.entry(epoch.uid).or_insert_with(store))
    }

    /// Returns a new folder for a process: in the epoch, or among the flight recordings.
    pub(crate) fn folder(&mut self, uid: u32, epoch: &Epoch, mode: Mode, pid: u32, name: &str) -> PathBuf {
        let stem = format!("{pid}.{}", sanitized_name(name.as_bytes()));
        let number = self.current.get_mut(&uid).map_or(1, |current| {
            let count = current.names.entry(stem.clone()).or_insert(0);
            *count += 1;
            *count
        });
        let name = if number == 1 { stem } else { format!("{stem}.{number}") };
        if mode != Mode::Flight {
            return epoch.dir.join(name);
        }
        let flights = epoch.dir.with_file_name(FLIGHTS);
        let _ = make_folder(&flights, epoch.reader);
        // The epoch's name distinguishes it from those of other epochs.
        let of = epoch.dir.file_name().unwrap_or_default().to_string_lossy();
        flights.join(format!("{name}@{of}+1"))
    }

    /// Returns the streams that a user has sent in the current epoch.
    pub(crate) fn streams(&self, uid: u32) -> EpochStreams {
        let streams =
            |current: &CurrentEpoch| EpochStreams { begun: current.streams, bytes: Arc::clone(&current.streamed) };
        self.current.get(&uid).map(streams).unwrap_or_default()
    }

    /// Counts a stream that starts in the current epoch of a user.
    pub(crate) fn count_stream(&mut self, uid: u32) {
        if let Some(current) = self.current.get_mut(&uid) {
            current.streams += 1;
        }
    }

    /// Lists a process, or its next segment, in an epoch.
    pub(crate) fn list(&self, epoch: &Arc<Epoch>, session: &Arc<Session>, info: ProcessInfo) {
        let (epoch, weak) = (Arc::clone(epoch), Arc::downgrade(session));
        self.send(ArchiveCommand::Process(epoch, weak, session.id, info));
    }

    /// Moves the folders of a kept flight recording into an epoch.
    pub(crate) fn adopt(&self, epoch: &Arc<Epoch>, id: SessionId, flight: KeptFlight, on_done: Callback) {
        self.send(ArchiveCommand::Adopt(Arc::clone(epoch), id, flight, on_done));
    }

    /// Returns the function that moves the folders of the flight recording of a running process to
    /// an epoch, for another thread.
    pub(crate) fn adopter(
        &self,
        epoch: &Arc<Epoch>,
        id: SessionId,
        kept: Kept,
        on_done: Callback,
    ) -> impl FnOnce((Vec<PathBuf>, Option<Box<Job>>)) + Send + 'static {
        let (archive, epoch) = (self.archive.clone(), Arc::clone(epoch));
        move |(folders, symbols)| {
            let flight = KeptFlight { folders, symbols, kept: Some(kept), ended: Ended::RUNNING };
            let _ = archive.send(ArchiveCommand::Adopt(epoch, id, flight, on_done));
        }
    }

    /// Moves the folder of a received stream into an epoch.
    pub(crate) fn add_stream(&self, epoch: Arc<Epoch>, folder: PathBuf, process: ProcessInfo, on_done: Callback) {
        self.send(ArchiveCommand::Stream(epoch, folder, process, on_done));
    }

    /// Makes the archive write everything.
    pub(crate) fn flush(&self, on_done: Callback) {
        self.send(ArchiveCommand::Flush(on_done));
    }

    /// Returns the function that does so, for another thread.
    pub(crate) fn flusher(&self, on_done: Callback) -> Callback {
        let archive = self.archive.clone();
        Callback::new(move || drop(archive.send(ArchiveCommand::Flush(on_done))))
    }

    /// Adds a mark to those in the state folder.
    pub(crate) fn mark(&self, mark: Mark, on_done: Callback) {
        self.send(ArchiveCommand::Mark(mark, on_done));
    }

    /// Ends the current epoch of a user, if there is one, and returns it. With `goes_on` the next
    /// one is started, and returned, too. [`Epochs::close`] completes the end.
    ///
    /// # Errors
    /// The error of the next epoch's folder. The current epoch stays, and expires again soon.
    #[expect(clippy::type_complexity, reason = "two epochs, of which each may be missing")]
    pub(crate) fn renew(&mut self, uid: u32, goes_on: bool) -> io::Result<Option<(Arc<Epoch>, Option<Arc<Epoch>>)>> {
        let Some(old) = self.current.get(&uid).map(|current| Arc::clone(&current.epoch)) else { return Ok(None) };
        let new = if goes_on {
            let begun = self.begin(uid);
            if begun.is_err() {
                self.counters.failed += 1;
                self.current.entry(uid).and_modify(|current| current.until = Instant::now() + RETRY_INTERVAL);
            }
            Some(begun?)
        } else {
            self.current.remove(&uid);
            None
        };
        self.counters.ended += 1;
        Ok(Some((old, new)))
    }

    /// Seals an ended epoch as soon as these processes are completely written.
    pub(crate) fn close(&mut self, epoch: Arc<Epoch>, pending: HashMap<SessionId, PathBuf>, on_done: Callback) {
        self.closing.push(ClosingEpoch { epoch, pending, on_done });
        self.seal_closed();
    }

    /// Returns the ended epoch that waited for a segment, which does not wait for it any more.
    pub(crate) fn take_pending(&mut self, stored: &Stored) -> Option<Arc<Epoch>> {
        let id = stored.session;
        let waits = |closing: &&mut ClosingEpoch| {
            closing.pending.get(&id).is_some_and(|segment| stored.is_over || stored.segment == *segment)
        };
        let closing = self.closing.iter_mut().find(waits)?;
        closing.pending.remove(&id);
        Some(Arc::clone(&closing.epoch))
    }

    /// Returns the ended epoch in whose folder a segment is.
    pub(crate) fn closing_with(&self, segment: &Path) -> Option<Arc<Epoch>> {
        let is_in = |closing: &&ClosingEpoch| segment.parent() == Some(&closing.epoch.dir);
        self.closing.iter().find(is_in).map(|closing| Arc::clone(&closing.epoch))
    }

    /// Counts a segment that is completely written.
    pub(crate) fn count_segment(&mut self, stored: &Stored) {
        self.counters.errors += u64::from(stored.error.is_some());
    }

    /// Completes the entry of a segment or process in its epoch.
    pub(crate) fn segment_stored(&mut self, epoch: Arc<Epoch>, stored: Stored, label: String, ended: Option<Ended>) {
        self.send(ArchiveCommand::SegmentStored(epoch, stored, label, ended));
        self.seal_closed();
    }

    fn seal_closed(&mut self) {
        for index in (0..self.closing.len()).rev() {
            if self.closing[index].pending.is_empty() {
                let ClosingEpoch { epoch, on_done, .. } = self.closing.remove(index);
                self.send(ArchiveCommand::Seal(epoch, on_done));
            }
        }
    }

    /// Seals all epochs, and ends the thread of the archive.
    pub(crate) fn finish(&mut self) {
        // Without a sender of commands, the archive seals all epochs.
        self.archive = unbounded().0;
        if let Some(archive_thread) = self.archive_thread.take() {
            let _ = archive_thread.join();
        }
    }

    /// Removes the segments of flight recordings, except those of processes that continue.
    pub(crate) fn clear_flights(&self, continuing: &[u32]) {
        for user in std::fs::read_dir(&self.state).into_iter().flatten().flatten() {
            let folders = flight_folders(&user.path().join(FLIGHTS));
            folders.into_iter().filter(|(pid, _)| !continuing.contains(pid)).for_each(|(_, folder)| {
                let _ = std::fs::remove_dir_all(folder);
            });
            // It succeeds only if the folder is empty.
            let _ = std::fs::remove_dir(user.path().join(FLIGHTS));
        }
    }

    /// Returns the segments of the flight recording of a process that the last daemon wrote, oldest
    /// first.
    pub(crate) fn flight_segments(&self, uid: u32, pid: u32) -> Vec<PathBuf> {
        let folders = flight_folders(&self.state.join(uid.to_string()).join(FLIGHTS)).into_iter();
        let mut own: Vec<PathBuf> = folders.filter(|(of, _)| *of == pid).map(|(_, folder)| folder).collect();
        // The number after `+` counts the segments, the time orders those of several daemons.
        let number = |folder: &PathBuf| folder.to_string_lossy().rsplit_once('+')?.1.parse::<u32>().ok();
        let epoch = |folder: &PathBuf| Some(folder.to_string_lossy().rsplit_once('@')?.1.split_once('+')?.0.to_owned());
        own.sort_by_cached_key(|folder| (epoch(folder), number(folder)));
        own
    }

    fn send(&self, command: ArchiveCommand) {
        let _ = self.archive.send(command);
    }
}

/// Returns the folders of flight recordings with the pids of their processes.
fn flight_folders(flights: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(flights).into_iter().flatten().flatten();
    let pid = |path: &Path| path.file_name()?.to_str()?.split_once('.')?.0.parse().ok();
    entries.map(|entry| entry.path()).map(|path| (pid(&path).unwrap_or(0), path)).collect()
}
