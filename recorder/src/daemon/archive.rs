//! The epochs on disk, and the thread that owns them: what belongs to one, when it is sealed, how
//! long it is kept.
//!
//! Where things lie says [`formats::recording`].
//!
//! Sealing is a rename of `recording.json`, so an epoch is sealed or it is not. One that a killed
//! daemon left open is sealed, as it lies there, by the next.

use super::epoch::{Epoch, begun};
use super::flows::{Flows, Host};
use super::programs::Program;
use super::retention::{self, Keep, Sizes};
use crate::clock::{self, Clock};
use crate::process::{make_folder, replace_file, sanitised};
use crate::quota::Quota;
use crate::session::SessionId;
use crate::store::{Stored, Then};
use crate::symbols::{Job, Saver};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use formats::recording::{
    DCPI_FOLDER, Exit, PROFILE, PROGRAM_PREFIX, ProcessInfo, RECORDING, Recording, STREAM, TAPE, TRACE,
};
use formats::tape;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often what is new is written.
const WRITE: Duration = Duration::from_secs(5);
/// How often what is kept is looked through.
const SWEEP: Duration = Duration::from_secs(10);
/// How often that may be while a user's share is nearly used up.
const SWEEP_LOW: Duration = Duration::from_millis(500);
/// Programs of one epoch; further ones are added to one row.
const MOST_PROGRAMS: usize = 1024;

/// What the archive is told.
#[derive(Debug)]
pub enum Told {
    /// An epoch began.
    Begin(Arc<Epoch>),
    /// A process is written to an epoch from now on.
    Process(Arc<Epoch>, SessionId, ProcessInfo),
    /// A part of it is over, or all of it: its label, and how it ended.
    Part(Arc<Epoch>, Stored, String, Option<Exit>),
    /// Folders that belong to an epoch from now on: segments of a flight.
    Adopt(Arc<Epoch>, SessionId, (Vec<PathBuf>, Option<Box<Job>>), Then),
    /// A folder that came by a stream, and the image that it is from now on.
    Stream(Arc<Epoch>, PathBuf, ProcessInfo, Then),
    /// An epoch is over: everything of it was told.
    Seal(Arc<Epoch>, Then),
    /// Everything told is to be on disk.
    Flush(Then),
}

/// What the archive tells about itself.
#[derive(Debug, Default)]
pub struct Disk {
    /// Bytes of all epochs.
    pub bytes: AtomicU64,
    /// Epochs.
    pub epochs: AtomicU64,
    /// Epochs that were removed.
    pub removed: AtomicU64,
    /// Things that could not be written.
    pub errors: AtomicU64,
    /// What each user may still write.
    quotas: Mutex<HashMap<u32, Arc<Quota>>>,
}

impl Disk {
    fn quotas(&self) -> MutexGuard<'_, HashMap<u32, Arc<Quota>>> {
        self.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a user may still write; `first` until it is measured.
    pub fn quota(&self, uid: u32, first: impl FnOnce(usize) -> u64) -> Arc<Quota> {
        let mut quotas = self.quotas();
        let others = quotas.len();
        Arc::clone(quotas.entry(uid).or_insert_with(|| Arc::new(Quota::new(first(others)))))
    }

    /// Whether a user's share is used up by what must be kept.
    pub fn is_full(&self, uid: u32) -> bool {
        self.quotas().get(&uid).is_some_and(|quota| quota.is_full())
    }

    /// Pieces that were not written since the last call for want of a user's share.
    pub fn hits(&self) -> Vec<(u32, u64)> {
        self.quotas().iter().map(|(uid, quota)| (*uid, quota.hits())).filter(|(_, hits)| *hits > 0).collect()
    }

    fn is_low(&self) -> bool {
        self.quotas().values().any(|quota| quota.is_low())
    }
}

/// An epoch that is not sealed.
#[derive(Debug)]
struct Open {
    epoch: Arc<Epoch>,
    images: Vec<(SessionId, ProcessInfo)>,
    programs: HashMap<(String, String), (String, Program)>,
    flows: Flows,
    is_new: bool,
}

/// The thread's state.
#[derive(Debug)]
pub struct Archive {
    state: PathBuf,
    keep: Keep,
    host: String,
    clock: Clock,
    disk: Arc<Disk>,
    open: Vec<Open>,
    saver: Option<Arc<Saver>>,
    sizes: Sizes,
}

impl Archive {
    /// For this state folder. What earlier daemons left open is sealed.
    pub fn new(state: &Path, keep: Keep, disk: Arc<Disk>, saver: Option<Arc<Saver>>) -> Archive {
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        for dir in retention::epochs(state).into_iter().map(|found| found.dir) {
            seal_left(&dir);
        }
        let (open, sizes) = Default::default();
        Archive { state: state.to_owned(), keep, host, clock: Clock::choose(), disk, open, sizes, saver }
    }

    /// The thread: runs until nobody tells any more, then seals everything.
    pub fn run(mut self, told: &Receiver<Told>) {
        let (mut write, mut sweep, mut swept) = (Instant::now() + WRITE, Instant::now(), Instant::now());
        loop {
            let look = if self.open.is_empty() { sweep } else { sweep.min(Instant::now() + SWEEP_LOW) };
            match told.recv_deadline(write.min(look)) {
                Ok(told) => self.told(told),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= write {
                self.write_all();
                write = Instant::now() + WRITE;
            }
            let is_low = swept.elapsed() >= SWEEP_LOW && self.disk.is_low();
            if Instant::now() >= sweep || is_low {
                self.sweep();
                (sweep, swept) = (Instant::now() + SWEEP, Instant::now());
            }
        }
        while let Some(open) = self.open.pop() {
            self.seal(open);
        }
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Begin(epoch) => {
                let (images, programs, flows) = Default::default();
                self.open.push(Open { epoch, images, programs, flows, is_new: true });
                self.write_last();
            }
            Told::Process(epoch, id, image) => {
                if let Some(open) = self.find(&epoch) {
                    open.images.push((id, image));
                    open.is_new = true;
                }
            }
            Told::Part(epoch, stored, label, exit) => {
                if let Some(open) = self.find(&epoch) {
                    open.part(stored, &label, exit);
                }
            }
            Told::Adopt(epoch, id, (folders, symbols), then) => {
                let adopted = self.find(&epoch).map(|open| open.adopt(id, &folders)).unwrap_or_default();
                if let (Some(job), Some(saver), false) = (symbols, &self.saver, adopted.is_empty()) {
                    saver.submit(Job { folders: adopted, ..*job });
                }
                self.write_all();
                then.call();
            }
            Told::Stream(epoch, folder, image, then) => {
                let errors = Arc::clone(&self.disk);
                if let Some(open) = self.find(&epoch) {
                    let moved = std::fs::rename(&folder, epoch.dir.join(&image.folder));
                    // No session has this number: what came does not change any more.
                    moved.is_ok().then(|| open.images.push((0, image)));
                    count(&errors, moved);
                }
                self.write_all();
                then.call();
            }
            Told::Seal(epoch, then) => {
                if let Some(place) = self.open.iter().position(|open| open.epoch == epoch) {
                    let open = self.open.swap_remove(place);
                    self.seal(open);
                }
                self.sweep();
                then.call();
            }
            Told::Flush(then) => {
                self.write_all();
                then.call();
            }
        }
    }

    fn find(&mut self, epoch: &Arc<Epoch>) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.epoch == *epoch)
    }

    fn write_last(&mut self) {
        if let Some(open) = self.open.last() {
            count(&self.disk, open.write_recording(&self.host, None));
        }
    }

    fn write_all(&mut self) {
        for open in &mut self.open {
            count(&self.disk, open.write(&self.host));
            open.save_names(self.saver.as_deref(), false);
        }
    }

    fn seal(&mut self, mut open: Open) {
        let result = open.write(&self.host).and_then(|()| {
            let folder = open.epoch.dir.join(DCPI_FOLDER);
            let host = Host { name: &self.host, megahertz: self.clock.megahertz() };
            open.flows.write(&folder, open.epoch.started_unix_ns / 1_000_000_000, host, open.epoch.reader)?;
            open.write_recording(&self.host, Some(clock::unix_ns()))?;
            std::fs::File::open(&open.epoch.dir)?.sync_all()
        });
        if open.flows.left_out > 0 {
            tracing::warn!(
                "{}: {} rows found no room in its DCPI profiles",
                open.epoch.dir.display(),
                open.flows.left_out
            );
        }
        count(&self.disk, result);
        open.save_names(self.saver.as_deref(), true);
    }

    /// What is too old or too much goes.
    fn sweep(&mut self) {
        let open: Vec<&Path> = self.open.iter().map(|open| open.epoch.dir.as_path()).collect();
        let before: Vec<(u32, Arc<Quota>, u64)> =
            self.disk.quotas().iter().map(|(uid, quota)| (*uid, Arc::clone(quota), quota.written())).collect();
        let now = clock::unix_ns() / 1_000_000_000;
        let found = retention::sweep(&self.state, self.keep, &open, now, &mut self.sizes);
        self.disk.bytes.store(found.bytes, Relaxed);
        self.disk.epochs.store(found.epochs, Relaxed);
        self.disk.removed.fetch_add(found.removed, Relaxed);
        for (uid, quota, written) in before {
            let first = || (0, self.keep.first(found.users.len()));
            let (used, limit) = found.users.get(&uid).copied().unwrap_or_else(first);
            let was_full = quota.is_full();
            quota.set(written, used, limit);
            if quota.is_full() && !was_full {
                tracing::warn!(
                    "user {uid}: the share of {limit} bytes of the disk is used up by what must be kept: events are no longer kept"
                );
            }
        }
    }
}

fn count(disk: &Disk, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!("an epoch cannot be written: {error}");
        disk.errors.fetch_add(1, Relaxed);
    }
}

impl Open {
    fn part(&mut self, stored: Stored, label: &str, exit: Option<Exit>) {
        self.is_new = true;
        // A process that was written in two ways has two entries.
        let written = stored.folder.as_ref().and_then(|folder| folder.file_name()).map(|name| name.to_string_lossy());
        let is_it = |(id, image): &(SessionId, ProcessInfo)| {
            *id == stored.session && written.as_ref().is_none_or(|name| image.folder == *name)
        };
        let place = self.images.iter().rposition(is_it);
        let exe = place.map(|place| self.images[place].1.exe.clone()).unwrap_or_default();
        if let Some(contribution) = &stored.contribution {
            self.flows.add(contribution);
            if contribution.whole {
                let dir = &self.epoch;
                let known =
                    self.programs.len() < MOST_PROGRAMS || self.programs.contains_key(&(exe.clone(), label.into()));
                let key = if known { (exe, label.to_owned()) } else { ("other programs".into(), String::new()) };
                let names: Vec<String> = self.programs.values().map(|(name, _)| name.clone()).collect();
                let (_, program) = self.programs.entry(key).or_insert_with_key(|(exe, label)| {
                    let stem =
                        format!("{PROGRAM_PREFIX}{}", sanitised(exe.rsplit('/').next().unwrap_or_default().as_bytes()));
                    let name = std::iter::once(stem.clone()).chain((2..).map(|number| format!("{stem}.{number}")));
                    let name = name.into_iter().find(|name| !names.contains(name)).unwrap_or(stem);
                    (name, Program::new(exe, label, dir.uid, dir.started_unix_ns))
                });
                program.add(contribution);
            }
        }
        let Some(place) = place else { return };
        if stored.contribution.is_some_and(|contribution| contribution.whole) {
            // Its sums are its program's now.
            let (_, image) = self.images.swap_remove(place);
            let _ = std::fs::remove_dir_all(self.epoch.dir.join(image.folder));
        } else {
            let image = &mut self.images[place].1;
            image.exit = exit.or(Some(Exit::Running));
            image.ended_unix_ns = Some(clock::unix_ns());
            image.accounting = Some(stored.sums);
        }
    }

    /// Moves folders here, gives where they are now, and lists them beside the process that they
    /// are of.
    fn adopt(&mut self, id: SessionId, folders: &[PathBuf]) -> Vec<PathBuf> {
        let mut adopted = Vec::new();
        let Some(of) = self.images.iter().find(|(known, _)| *known == id).map(|(_, image)| image.clone()) else {
            return adopted;
        };
        for folder in folders {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let wanted = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}.{number}")));
            let Some(name) = wanted.into_iter().find(|name| !self.epoch.dir.join(name).exists()) else { continue };
            if std::fs::rename(folder, self.epoch.dir.join(&name)).is_ok() {
                // The process's own entry was for the segment that it began with.
                let own = self.images.iter_mut().find(|(known, image)| *known == id && image.folder == name);
                own.into_iter().for_each(|(_, image)| image.folder.clear());
                let image = ProcessInfo {
                    folder: name,
                    exit: Some(Exit::Running),
                    ended_unix_ns: Some(clock::unix_ns()),
                    accounting: None,
                    ..of.clone()
                };
                // No session has this number: what is kept does not change any more.
                adopted.push(self.epoch.dir.join(&image.folder));
                self.images.push((0, image));
                self.is_new = true;
            }
        }
        adopted
    }

    /// Has the names looked up that programs' sums are to keep; at the end of the epoch all that
    /// are new.
    fn save_names(&mut self, saver: Option<&Saver>, is_last: bool) {
        let Some(saver) = saver else { return };
        for (name, program) in self.programs.values_mut() {
            let folder = self.epoch.dir.join(&*name);
            program.symbols(folder, self.epoch.reader, is_last).into_iter().for_each(|job| saver.submit(job));
        }
    }

    fn write(&mut self, host: &str) -> io::Result<()> {
        let (dir, reader) = (&self.epoch.dir, self.epoch.reader);
        for (name, program) in self.programs.values_mut().filter(|(_, program)| program.is_new) {
            let folder = dir.join(&*name);
            make_folder(&folder, reader)?;
            let mut bytes = Vec::new();
            tape::Writer::file_header(&mut bytes);
            let mut writer = tape::Writer::default();
            program.tape(clock::unix_ns()).iter().for_each(|record| writer.record(record, &mut bytes));
            replace_file(&folder.join(TAPE), &bytes, reader)?;
            replace_file(&folder.join(PROFILE), &program.mptl(), reader)?;
            program.is_new = false;
            self.is_new = true;
        }
        self.write_recording(host, None)
    }

    /// Lists what is there: a process without files is not, unless events of it are lost.
    fn write_recording(&self, host: &str, ended_unix_ns: Option<u64>) -> io::Result<()> {
        let there = |image: &&ProcessInfo| {
            image.origin == STREAM
                || image.accounting.is_some_and(|accounting| accounting.lost > 0)
                || self.epoch.dir.join(&image.folder).join(TAPE).is_file()
        };
        let mut images: Vec<ProcessInfo> = self.images.iter().map(|(_, image)| image).filter(there).cloned().collect();
        for ((exe, _), (name, _)) in &self.programs {
            let started_unix_ns = self.epoch.started_unix_ns;
            let image = ProcessInfo {
                folder: name.clone(),
                origin: "attach".into(),
                exe: exe.clone(),
                started_unix_ns,
                exit: Some(Exit::Code(0)),
                ..ProcessInfo::default()
            };
            images.push(image);
        }
        images.sort_by(|one, other| one.folder.cmp(&other.folder));
        let recording =
            Recording { host: host.to_owned(), ended_unix_ns, images, ..recording_of(self.epoch.started_unix_ns) };
        let mut bytes = serde_json::to_vec_pretty(&recording)?;
        bytes.push(b'\n');
        replace_file(&self.epoch.dir.join(RECORDING), &bytes, self.epoch.reader)
    }
}

/// What `recording.json` says of an epoch that began then.
fn recording_of(started_unix_ns: u64) -> Recording {
    Recording {
        format: "heaptape recording".into(),
        version: 1,
        heaptape: env!("CARGO_PKG_VERSION").into(),
        started_unix_ns,
        ..Recording::default()
    }
}

/// Seals an epoch that a daemon left open when it was killed.
fn seal_left(dir: &Path) {
    let path = dir.join(RECORDING);
    // Killed before it said what it is; removing it succeeds while nothing is in it.
    if !path.exists() && std::fs::remove_dir(dir).is_ok() {
        return;
    }
    let read = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(_) => Some(recording_of(begun(dir).unwrap_or(0) * 1_000_000_000)),
    };
    let Some(mut recording) = read.filter(|recording: &Recording| recording.ended_unix_ns.is_none()) else { return };
    let changed = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
    let since = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let ended = since.map_or(recording.started_unix_ns, |since| since.as_nanos() as u64);
    recording.ended_unix_ns = Some(ended);
    for image in recording.images.iter_mut().filter(|image| image.exit.is_none()) {
        (image.exit, image.ended_unix_ns) = (Some(Exit::Running), Some(ended));
    }
    // Processes that were not listed yet.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let folder = entry.file_name().to_string_lossy().into_owned();
        if recording.images.iter().any(|image| image.folder == folder) {
            continue;
        }
        if entry.path().join(TAPE).is_file() {
            recording.images.push(ProcessInfo { folder, exit: Some(Exit::Running), ..ProcessInfo::default() });
        } else if [TRACE, PROFILE].iter().any(|name| entry.path().join(name).is_file()) {
            recording.images.push(ProcessInfo { folder, origin: STREAM.into(), ..ProcessInfo::default() });
        }
    }
    let user = dir.parent().and_then(|own| own.file_name()?.to_str()?.parse().ok());
    let reader = user.filter(|uid| *uid != nix::unistd::geteuid().as_raw());
    let written = serde_json::to_vec_pretty(&recording)
        .map_err(io::Error::from)
        .and_then(|bytes| replace_file(&path, &bytes, reader));
    match written {
        Ok(()) => tracing::info!("{}: left open, now sealed", dir.display()),
        Err(error) => tracing::error!("{}: left open, and cannot be sealed: {error}", dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_daemon_left_is_sealed() {
        let place = tempfile::tempdir().expect("a folder");
        let [empty, begun] = ["202611211901", "202611211902"].map(|name| place.path().join("7").join(name));
        std::fs::create_dir_all(&empty).expect("an epoch without anything");
        std::fs::create_dir_all(begun.join("1.true")).expect("an epoch with a process");
        std::fs::write(begun.join("1.true").join(TAPE), "").expect("its tape");
        std::fs::create_dir_all(begun.join("2.cat")).expect("a stream");
        std::fs::write(begun.join("2.cat").join(TRACE), "MTRC").expect("its trace");
        let keep = Keep { age: Duration::MAX, bytes: u64::MAX, user_bytes: u64::MAX };
        Archive::new(place.path(), keep, Arc::default(), None);
        assert!(!empty.exists());
        let bytes = std::fs::read(begun.join(RECORDING)).expect("it is described");
        let recording: Recording = serde_json::from_slice(&bytes).expect("as it should be");
        assert_eq!((recording.images.len(), recording.started_unix_ns), (2, 1_795_287_720_000_000_000));
        assert!(recording.ended_unix_ns.is_some());
        assert!(recording.images.iter().any(|image| (&*image.folder, &*image.origin) == ("2.cat", STREAM)));
    }
}
