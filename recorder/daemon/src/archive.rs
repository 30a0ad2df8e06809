//! The thread that owns the epochs on disk: it says which files belong to an epoch, seals epochs when
//! they are over, and removes them when their time has come ([`super::retention`]).
//!
//! The names of files and folders are in [`formats::recording`].
//!
//! Sealing is a rename of `recording.json`, so an epoch is either sealed or not. An epoch that a
//! killed daemon left open is sealed as it is by the next one.

use super::clients::Ended;
use super::clock_jumps::WallClock;
use super::config::Keep;
use super::dcpi_profiles::{DcpiProfiles, Host};
use super::disk::Disk;
use super::epoch::Epoch;
use super::left_open::{recording_of, seal_left_open};
use super::marks;
use super::programs::Program;
use super::retention::{self, Limit, Share, Sizes};
use crossbeam_channel::{Receiver, select};
use formats::recording::{
    DCPI_FOLDER, Exit, Kept, Mark, PROFILE, PROGRAM_PREFIX, ProcessInfo, README, README_TEXT, RECORDING, Recording,
    STREAM, TAPE,
};
use formats::tape::{self, Origin, journal};
use heaptape_recorder::os::clock::{self, Clock};
use heaptape_recorder::os::permissions::make_folder;
use heaptape_recorder::os::{Durability, replace_file};
use heaptape_recorder::session::{Quota, Session, SessionId};
use heaptape_recorder::store::writer::{Callback, Stored};
use heaptape_recorder::target::name_saver::{Job, Saver};
use heaptape_recorder::target::proc::{self, sanitized_name};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval of writing new data.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of checking the limits of what is kept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of these checks while the share of a user is nearly used up.
const SWEEP_INTERVAL_LOW: Duration = Duration::from_millis(500);
/// Interval of these checks while a write waits for one.
const SWEEP_INTERVAL_WANTED: Duration = Duration::from_millis(50);
/// Maximum number of programs of one epoch; further ones share one row.
const MAX_PROGRAMS: usize = 1024;

/// Maximum number of epochs that wait to be sealed; the next daemon seals further ones.
const MAX_UNSEALED: usize = 256;

/// The segments of a flight recording that are kept.
#[derive(Debug)]
pub(crate) struct KeptFlight {
    /// Folders of the segments, oldest first.
    pub folders: Vec<PathBuf>,
    /// Names to look up for them.
    pub symbols: Option<Box<Job>>,
    /// When and why they are kept; `None` for the end of a process that ended well.
    pub kept: Option<Kept>,
    /// How the process ended, if it has.
    pub ended: Ended,
}

#[derive(Debug)]
pub(crate) enum ArchiveCommand {
    /// An epoch has started.
    Begin(Arc<Epoch>),
    /// A process is written to an epoch from now on.
    Process(Arc<Epoch>, Weak<Session>, SessionId, ProcessInfo),
    /// A segment or process is completely written: with its label, and how it ended.
    SegmentStored(Arc<Epoch>, Stored, String, Option<Ended>),
    /// The segments of a flight recording belong to an epoch from now on.
    Adopt(Arc<Epoch>, SessionId, KeptFlight, Callback),
    /// A folder was received as a stream, and is this process from now on.
    Stream(Arc<Epoch>, PathBuf, ProcessInfo, Callback),
    /// An epoch has ended: all commands about it were sent.
    Seal(Arc<Epoch>, Callback),
    /// All data so far is to be written.
    Flush(Callback),
    Mark(Mark, Callback),
    /// The limits of what is kept have changed.
    Keep(Keep),
}

/// An epoch that is not sealed.
#[derive(Debug)]
struct OpenEpoch {
    epoch: Arc<Epoch>,
    /// When it ended, if it has. It is sealed as soon as it can be written.
    ended_unix_ns: Option<u64>,
    processes: Vec<(SessionId, ProcessInfo)>,
    /// The processes that are still recorded.
    running: Vec<Weak<Session>>,
    programs: HashMap<(String, String), (String, Program)>,
    dcpi_profiles: DcpiProfiles,
    /// Folders of processes that are part of the sums of their programs, and that the list of
    /// processes on disk may still have.
    merged: Vec<String>,
    is_new: bool,
}

/// State of the thread.
#[derive(Debug)]
pub(crate) struct Archive {
    state: PathBuf,
    keep: Keep,
    host: String,
    clock: Clock,
    disk: Arc<Disk>,
    /// Gets a message when a write waits for a sweep.
    wanted: Receiver<()>,
    open: Vec<OpenEpoch>,
    /// Epochs that have ended and could not be sealed, oldest first.
    unsealed: VecDeque<OpenEpoch>,
    /// Epochs of earlier daemons that could not be sealed.
    left_open: Vec<PathBuf>,
    saver: Option<Arc<Saver>>,
    sizes: Sizes,
    wall_clock: Arc<WallClock>,
}

impl Archive {
    /// Creates the archive of a state folder. Epochs that earlier daemons left open are sealed.
    pub(crate) fn new(
        state: &Path,
        keep: Keep,
        disk: Arc<Disk>,
        wall_clock: Arc<WallClock>,
        saver: Option<Arc<Saver>>,
    ) -> Archive {
        let host = proc::host();
        let mut left_open: Vec<PathBuf> = retention::epochs(state).into_iter().map(|found| found.dir).collect();
        left_open.retain(|dir| !seal_left_open(dir));
        Archive {
            state: state.to_owned(),
            keep,
            host,
            clock: Clock::choose(),
            wanted: disk.wanted(),
            disk,
            open: Vec::new(),
            unsealed: VecDeque::new(),
            left_open,
            sizes: Sizes::new(),
            wall_clock,
            saver,
        }
    }

    /// The thread of the archive: runs until all senders of commands are gone, then seals all
    /// epochs.
    pub(crate) fn run(mut self, commands: &Receiver<ArchiveCommand>) {
        let (mut write, mut sweep, mut last_sweep) = (Instant::now() + WRITE_INTERVAL, Instant::now(), Instant::now());
        let wanted = self.wanted.clone();
        loop {
            let next_check = if self.open.is_empty() { sweep } else { sweep.min(Instant::now() + SWEEP_INTERVAL_LOW) };
            let wait = write.min(next_check).saturating_duration_since(Instant::now());
            select! {
                recv(commands) -> command => match command {
                    Ok(command) => self.execute(command),
                    Err(_) => break,
                },
                recv(wanted) -> _ => sweep = sweep.min(last_sweep + SWEEP_INTERVAL_WANTED),
                default(wait) => {}
            }
            if Instant::now() >= write {
                self.write_all();
                write = Instant::now() + WRITE_INTERVAL;
            }
            let is_low = last_sweep.elapsed() >= SWEEP_INTERVAL_LOW && self.disk.is_low();
            if Instant::now() >= sweep || is_low {
                self.sweep();
                (sweep, last_sweep) = (Instant::now() + SWEEP_INTERVAL, Instant::now());
            }
        }
        self.seal_rest();
        while let Some(open) = self.open.pop() {
            self.seal(open);
        }
    }

    fn execute(&mut self, command: ArchiveCommand) {
        match command {
            ArchiveCommand::Begin(epoch) => {
                self.open.push(OpenEpoch {
                    epoch,
                    ended_unix_ns: None,
                    processes: Vec::new(),
                    running: Vec::new(),
                    programs: HashMap::new(),
                    dcpi_profiles: DcpiProfiles::default(),
                    merged: Vec::new(),
                    is_new: true,
                });
                self.write_last();
                if let Some(Epoch { dir, reader, .. }) = self.open.last().map(|open| &*open.epoch) {
                    // After `recording.json`: an epoch without it is removed while it is empty.
                    let _ = replace_file(&dir.join(README), README_TEXT.as_bytes(), *reader, Durability::Later);
                }
            }
            ArchiveCommand::Process(epoch, session, id, process) => {
                if let Some(open) = self.open_epoch(&epoch) {
                    open.running.push(session);
                    open.processes.push((id, process));
                    open.is_new = true;
                }
            }
            ArchiveCommand::SegmentStored(epoch, stored, label, ended) => {
                if let Some(open) = self.open_epoch(&epoch) {
                    open.segment_stored(stored, &label, ended);
                }
            }
            ArchiveCommand::Adopt(epoch, id, flight, then) => {
                let adopted = self.open_epoch(&epoch).map(|open| open.adopt(id, &flight)).unwrap_or_default();
                if let (Some(job), Some(saver), false) = (flight.symbols, &self.saver, adopted.is_empty()) {
                    saver.submit(Job { folders: adopted, ..*job });
                }
                self.write_all();
                then.call();
            }
            ArchiveCommand::Stream(epoch, folder, process, then) => {
                let errors = Arc::clone(&self.disk);
                if let Some(open) = self.open_epoch(&epoch) {
                    let moved = std::fs::rename(&folder, epoch.dir.join(&process.folder));
                    // No session has this number: the folder does not change any more.
                    moved.is_ok().then(|| open.processes.push((0, process)));
                    errors.note_result(&folder, moved);
                }
                self.write_all();
                then.call();
            }
            ArchiveCommand::Seal(epoch, then) => {
                if let Some(index) = self.open.iter().position(|open| open.epoch == epoch) {
                    let open = self.open.swap_remove(index);
                    self.seal(open);
                }
                self.sweep();
                then.call();
            }
            ArchiveCommand::Mark(mark, then) => {
                self.disk.note_result(&self.state, marks::add(&self.state, mark));
                then.call();
            }
            ArchiveCommand::Keep(keep) => {
                self.keep = keep;
                self.sweep();
            }
            ArchiveCommand::Flush(then) => {
                self.write_all();
                then.call();
            }
        }
    }

    fn open_epoch(&mut self, epoch: &Arc<Epoch>) -> Option<&mut OpenEpoch> {
        self.open.iter_mut().find(|open| open.epoch == *epoch)
    }

    fn write_last(&mut self) {
        if let Some(open) = self.open.last() {
            self.disk.note_result(&open.epoch.dir, open.write_recording(&self.host, None));
        }
    }

    fn write_all(&mut self) {
        let errors = self.disk.errors.load(Relaxed);
        for open in &mut self.open {
            let result = open.write(&self.host);
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                self.disk.note_gone(&open.epoch.dir);
            }
            self.disk.note_result(&open.epoch.dir, result);
            open.save_names(self.saver.as_deref(), false);
        }
        self.seal_rest();
        if self.disk.errors.load(Relaxed) == errors {
            self.disk.note_success();
        }
    }

    /// Seals an epoch, or keeps it for another attempt.
    fn seal(&mut self, mut open: OpenEpoch) {
        let left_out = open.dcpi_profiles.left_out;
        if left_out > 0 && open.ended_unix_ns.is_none() {
            tracing::warn!("{}: {left_out} rows were left out of its DCPI profiles", open.epoch.dir.display());
        }
        let result = open.seal(&self.host, &self.clock);
        open.save_names(self.saver.as_deref(), true);
        let is_removed = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if let Err(error) = &result {
            self.disk.note_error(&open.epoch.dir, error);
        }
        if result.is_err() && !is_removed {
            self.unsealed.push_back(open);
            if self.unsealed.len() > MAX_UNSEALED {
                self.unsealed.pop_front();
            }
        } else {
            self.disk.note_sealed();
        }
    }

    /// Attempts again to seal the epochs that could not be written.
    fn seal_rest(&mut self) {
        for _ in 0..self.unsealed.len() {
            self.unsealed.pop_front().into_iter().for_each(|open| self.seal(open));
        }
    }

    /// Removes epochs that are too old or exceed a limit.
    fn sweep(&mut self) {
        self.left_open.retain(|dir| !seal_left_open(dir));
        let open: Vec<&Path> = self.open.iter().map(|open| open.epoch.dir.as_path()).collect();
        let before: Vec<(u32, Arc<Quota>, u64)> =
            self.disk.quotas().iter().map(|(uid, quota)| (*uid, Arc::clone(quota), quota.written())).collect();
        let now = clock::unix_ns() / 1_000_000_000;
        let age = if self.wall_clock.time_without_jump().is_none() { self.keep.age } else { Duration::MAX };
        let aged = Keep { age, ..self.keep };
        let free = || {
            let file_system = nix::sys::statvfs::statvfs(&self.state).ok()?;
            Some(file_system.blocks_available() * file_system.fragment_size())
        };
        // Without the number, the free space limits nothing.
        let found = retention::sweep(&self.state, aged, free().unwrap_or(u64::MAX), &open, now, &mut self.sizes);
        let free = free();
        self.disk.free.store(free.unwrap_or(0), Relaxed);
        self.disk.bytes.store(found.bytes, Relaxed);
        self.disk.epochs.store(found.epochs, Relaxed);
        let keep = self.keep.leaving_free(found.bytes, free.unwrap_or(u64::MAX));
        let mut retained = self.disk.retained();
        retained.shares.clone_from(&found.users);
        retained.bytes = (keep.bytes < self.keep.bytes).then_some(keep.bytes);
        for (removed, limit) in &found.removed {
            *retained.removed.entry(*limit).or_default() += 1;
            tracing::info!("{}: removed because of {}", removed.dir.display(), limit.key());
        }
        drop(retained);
        for (uid, quota, written) in before {
            let first = || Share { used: 0, limit: keep.first(found.users.len()), of: Limit::Bytes };
            let Share { used, limit, of } = found.users.get(&uid).copied().unwrap_or_else(first);
            let was_full = quota.is_full();
            quota.set(written, used, limit);
            if quota.is_full() && !was_full {
                tracing::warn!(
                    "user {uid}: the share of {limit} bytes of the disk ({}) is used up by data that must be kept: events are not stored any more",
                    of.key()
                );
            }
        }
    }
}

impl OpenEpoch {
    fn segment_stored(&mut self, stored: Stored, label: &str, ended: Option<Ended>) {
        self.is_new = true;
        // A process that was written in two modes has two entries.
        let written = stored.folder.as_ref().and_then(|folder| folder.file_name()).map(|name| name.to_string_lossy());
        let is_stored = |(id, process): &(SessionId, ProcessInfo)| {
            *id == stored.session && written.as_ref().is_none_or(|name| process.folder == *name)
        };
        let index = self.processes.iter().rposition(is_stored);
        let exe = index.map(|index| self.processes[index].1.exe.clone()).unwrap_or_default();
        if let Some(profile_delta) = &stored.profile_delta {
            self.dcpi_profiles.add(profile_delta);
            if profile_delta.has_no_files {
                let dir = &self.epoch;
                let known =
                    self.programs.len() < MAX_PROGRAMS || self.programs.contains_key(&(exe.clone(), label.into()));
                let key = if known { (exe, label.to_owned()) } else { ("other programs".into(), String::new()) };
                let names: Vec<String> = self.programs.values().map(|(name, _)| name.clone()).collect();
                let (_, program) = self.programs.entry(key).or_insert_with_key(|(exe, label)| {
                    let stem = format!(
                        "{PROGRAM_PREFIX}{}",
                        sanitized_name(exe.rsplit('/').next().unwrap_or_default().as_bytes())
                    );
                    let name = std::iter::once(stem.clone()).chain((2..).map(|number| format!("{stem}.{number}")));
                    let name = name.into_iter().find(|name| !names.contains(name)).unwrap_or(stem);
                    (name, Program::new(exe, label, dir.uid, dir.started_unix_ns))
                });
                program.add(profile_delta);
            }
        }
        let Some(index) = index else { return };
        if stored.profile_delta.is_some_and(|profile_delta| profile_delta.has_no_files) {
            // Its sums are part of its program's now. The list on disk has the process until it is
            // written again.
            let (_, process) = self.processes.swap_remove(index);
            self.merged.push(process.folder);
        } else {
            let process = &mut self.processes[index].1;
            process.exit = Some(ended.map_or(Exit::Running, |ended| ended.exit));
            process.last_memory = ended.and_then(|ended| ended.memory);
            process.ended_unix_ns = Some(clock::unix_ns());
            process.accounting = Some(stored.sums);
            stored.allocators.note_in(process);
        }
    }

    /// Moves folders into the epoch, lists them with the process that they belong to, and returns
    /// their new paths.
    fn adopt(&mut self, id: SessionId, flight: &KeptFlight) -> Vec<PathBuf> {
        let mut adopted = Vec::new();
        let Some(owner) = self.processes.iter().find(|(known, _)| *known == id).map(|(_, process)| process.clone())
        else {
            return adopted;
        };
        for folder in &flight.folders {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let candidates = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}.{number}")));
            let Some(name) = candidates.into_iter().find(|name| !self.epoch.dir.join(name).exists()) else { continue };
            if std::fs::rename(folder, self.epoch.dir.join(&name)).is_ok() {
                // The first entry of the process was for its first segment.
                let first = self.processes.iter_mut().find(|(known, process)| *known == id && process.folder == name);
                let is_first = first.is_some();
                first.into_iter().for_each(|(_, process)| process.folder.clear());
                let ended = if Some(folder) == flight.folders.last() { flight.ended } else { Ended::RUNNING };
                let process = ProcessInfo {
                    folder: name,
                    exit: Some(ended.exit),
                    last_memory: ended.memory,
                    ended_unix_ns: Some(clock::unix_ns()),
                    accounting: None,
                    kept: flight.kept.clone(),
                    began_unix_ns: match owner.began_unix_ns {
                        0 if !is_first => owner.started_unix_ns,
                        began => began,
                    },
                    ..owner.clone()
                };
                // No session has this number: the folder does not change any more.
                adopted.push(self.epoch.dir.join(&process.folder));
                self.processes.push((0, process));
                self.is_new = true;
            }
        }
        adopted
    }

    /// Requests the names for the programs' sums; at the end of the epoch all names that are new.
    fn save_names(&mut self, saver: Option<&Saver>, is_last: bool) {
        let Some(saver) = saver else { return };
        for (name, program) in self.programs.values_mut() {
            let folder = self.epoch.dir.join(&*name);
            if let Some(job) = program.symbols(folder, self.epoch.reader, is_last) {
                saver.submit(job);
            }
        }
    }

    /// Notes what is known of the allocators of running processes by now. They were listed when
    /// they got their areas, before they used them.
    fn note_allocators(&mut self) {
        self.running.retain(|session| {
            let Some(session) = session.upgrade() else { return false };
            let is_its = |(id, process): &&mut (SessionId, ProcessInfo)| {
                *id == session.id && session.folder.ends_with(&process.folder)
            };
            if let Some((_, process)) = self.processes.iter_mut().rev().find(is_its) {
                session.allocators().note_in(process);
            }
            true
        });
    }

    fn write(&mut self, host: &str) -> io::Result<()> {
        self.note_allocators();
        let (dir, reader) = (&self.epoch.dir, self.epoch.reader);
        for (name, program) in self.programs.values_mut().filter(|(_, program)| program.is_new) {
            let folder = dir.join(&*name);
            make_folder(&folder, reader)?;
            let mut bytes = Vec::new();
            tape::Writer::file_header(&mut bytes);
            let mut writer = tape::Writer::default();
            program.tape(clock::unix_ns()).iter().for_each(|record| writer.record(record, &mut bytes));
            replace_file(&folder.join(TAPE), &bytes, reader, Durability::BeforeRename)?;
            replace_file(&folder.join(PROFILE), &program.mptl(), reader, Durability::BeforeRename)?;
            program.is_new = false;
            self.is_new = true;
        }
        // Readers leave out a process without its folder.
        self.merged.drain(..).for_each(|folder| drop(std::fs::remove_dir_all(dir.join(folder))));
        self.write_recording(host, None)
    }

    fn seal(&mut self, host: &str, clock: &Clock) -> io::Result<()> {
        let ended = *self.ended_unix_ns.get_or_insert_with(clock::unix_ns);
        self.write(host)?;
        let folder = self.epoch.dir.join(DCPI_FOLDER);
        let dcpi_host = Host { name: host, megahertz: clock.megahertz() };
        let started = self.epoch.started_unix_ns / 1_000_000_000;
        self.dcpi_profiles.write(&folder, started, dcpi_host, self.epoch.reader)?;
        self.write_recording(host, Some(ended))?;
        std::fs::File::open(&self.epoch.dir)?.sync_all()
    }

    /// Writes the list of processes. A process without files is only listed if events of it are
    /// lost.
    fn write_recording(&self, host: &str, ended_unix_ns: Option<u64>) -> io::Result<()> {
        let is_listed = |process: &&ProcessInfo| {
            process.origin == STREAM
                || process.accounting.is_some_and(|accounting| accounting.lost > 0)
                || journal::has_tape(&self.epoch.dir.join(&process.folder))
        };
        let mut processes: Vec<ProcessInfo> =
            self.processes.iter().map(|(_, process)| process).filter(is_listed).cloned().collect();
        for ((exe, _), (name, _)) in &self.programs {
            let started_unix_ns = self.epoch.started_unix_ns;
            let process = ProcessInfo {
                folder: name.clone(),
                origin: Origin::Attach.name().into(),
                exe: exe.clone(),
                started_unix_ns,
                exit: Some(Exit::Code(0)),
                ..ProcessInfo::default()
            };
            processes.push(process);
        }
        processes.sort_by(|one, other| one.folder.cmp(&other.folder));
        let recording =
            Recording { host: host.to_owned(), ended_unix_ns, processes, ..recording_of(self.epoch.started_unix_ns) };
        let mut bytes = serde_json::to_vec_pretty(&recording)?;
        bytes.push(b'\n');
        replace_file(&self.epoch.dir.join(RECORDING), &bytes, self.epoch.reader, Durability::BeforeRename).map(drop)
    }
}
