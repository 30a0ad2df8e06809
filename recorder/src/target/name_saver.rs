//! The function names that a recording stores itself (`symbols.tape`).
//!
//! The code that reads ELF and DWARF is passed in ([`Work`]). It runs in separate processes below
//! the recorder's priority: the files belong to the recorded programs and may contain anything. A
//! file that crashes the helper, or that takes more memory or CPU time than is allowed, costs only
//! the names of its own process. The recorder sends a job when a process has ended, and does not
//! wait for it.

mod answers;

use crate::os::clock;
use crate::os::confine;
use crate::os::crash;
use crate::os::replace_file::{Durability, replace_file};
use crate::os::spawn;
use crate::os::sys;
use crate::target::kept_file::{self, Version};
use answers::Answers;
use formats::recording::{SYMBOLS, SYMBOLS_LOCK};
use formats::tape::field::Field;
use formats::tape::{Module, SymbolQuery};
use formats::{Cursor, Format, tape_record};
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::socket::{self, AddressFamily, MsgFlags, Shutdown, SockFlag, SockType};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Looks up names, given the queries of each process and the files that they refer to. Passes the
/// index of a process and the content of its `symbols.tape` to the callback, again whenever more
/// names are known.
pub type Work = fn(&[(&[SymbolQuery], &[PathBuf])], &mut dyn FnMut(usize, &[u8]));

/// A module's file, held open.
pub type Opened = Arc<OwnedFd>;

/// The file of a mapping, as `/proc/PID/maps` names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// Major and minor number of the device.
    pub device: String,
    pub inode: u64,
}

/// A file that is open for all processes that have mapped it.
#[derive(Debug)]
struct Kept {
    file: Weak<OwnedFd>,
    /// Size and times of the file of which this is a copy, so that its inode may be used again.
    copy_of: Option<Version>,
}

impl Kept {
    fn alive(&self) -> Option<(Opened, Option<Version>)> {
        Some((self.file.upgrade()?, self.copy_of))
    }
}

/// Files that were changed within this time of each other may have the same time, in nanoseconds.
const COARSE_TIME: u64 = 100_000_000;
/// Maximum number of bytes of all copies.
const MAX_COPIES: u64 = 256 << 20;
/// Maximum number of module files that are open at once, for all processes.
const MAX_OPEN_FILES: usize = 384;
/// Maximum number of files that are sent with one job; the kernel passes 253 at once.
const MAX_JOB_FILES: usize = 240;
/// Maximum number of jobs that wait because the helper is busy; further ones are dropped.
const MAX_WAITING_JOBS: usize = 64;
/// Jobs that arrive within this time of each other form a batch: their modules are read once.
const BATCH_WINDOW: Duration = Duration::from_millis(200);
/// Maximum number of jobs in a batch.
const BATCH_JOBS: usize = 32;
/// Number of files from which on a batch accepts no further job.
const BATCH_FILES: usize = 512;
/// Limit of the address space of the process that executes a batch, in bytes.
const MAX_ADDRESS_SPACE: u64 = 4 << 30;
/// Limit of the CPU time of the process that executes a batch, in seconds.
const MAX_CPU_SECONDS: u64 = 30;

tape_record! {
    /// The names to look up for one process. The descriptors that are sent with it are: this
    /// record, then each folder followed by its lock, then the files that the queries refer to by
    /// number.
    Request {
        /// User who may read the written files, besides their owner.
        reader: Option<u32>,
        /// Number of folders that receive the names.
        folders: u32,
        queries: Vec<SymbolQuery>,
    }
}

/// The names of a process, to be looked up once its folder is written.
#[derive(Debug, Default)]
pub struct Job {
    /// Folders that receive the names.
    pub folders: Vec<PathBuf>,
    /// User who may read the names, besides their owner.
    pub reader: Option<u32>,
    pub queries: Vec<SymbolQuery>,
    /// The open files; queries refer to them by number, from 1.
    pub files: Vec<Opened>,
}

impl Job {
    /// Adds a query about a module of a process that started at this time: its file and that of its
    /// debug information, and the addresses.
    pub fn ask(&mut self, module: &Module, since_unix_ns: u64, files: [Option<Opened>; 2], addresses: Vec<u64>) {
        let [file, debug_file] = files.map(|file| self.add(file));
        let (path, build_id, identity) = (module.path.clone(), module.build_id.clone(), module.file.0.clone());
        self.queries.push(SymbolQuery { path, build_id, identity, since_unix_ns, file, debug_file, addresses });
    }

    /// Adds a file and returns its number; 0 if there is no file, or if the job has too many.
    fn add(&mut self, file: Option<Opened>) -> u32 {
        let Some(file) = file.filter(|_| self.files.len() < MAX_JOB_FILES) else { return 0 };
        self.files.push(file);
        self.files.len() as u32
    }
}

/// The recorder's connection to the helper process.
#[derive(Debug)]
pub struct Saver {
    channel: OwnedFd,
    helper: u32,
    /// The open files: processes share their libraries.
    opened: Mutex<HashMap<FileKey, Kept>>,
    waiting: Mutex<VecDeque<Message>>,
}

/// A job, serialized to be sent.
#[derive(Debug)]
struct Message {
    folders: u8,
    files: Vec<Opened>,
}

/// The process in which [`split`] has returned.
#[derive(Debug)]
pub enum Side {
    /// The caller: it sends jobs.
    Recorder(Saver),
    /// The helper process: it must only call [`Helper::run`].
    Helper(Helper),
}

/// Starts the helper process. The caller must have one thread.
///
/// # Errors
/// The error of the fork, or of the socket pair.
pub fn split() -> io::Result<Side> {
    let pair = socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, helpers) = pair.map_err(sys::io)?;
    match sys::fork().map_err(sys::io)? {
        Some(helper) => {
            let (opened, waiting) = (Mutex::default(), Mutex::default());
            Ok(Side::Recorder(Saver { channel: ours, helper, opened, waiting }))
        }
        None => Ok(Side::Helper(Helper { channel: helpers })),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Saver {
    /// Returns a module's file if it is open already, and was not changed since a time, in
    /// nanoseconds since 1970.
    pub fn known(&self, which: &FileKey, since: u64) -> Option<Opened> {
        let (file, copy_of) = locked(&self.opened).get(which).and_then(Kept::alive)?;
        // While the file itself is open, no other one gets its inode.
        (copy_of.is_none() && Version::of(&file)?.renamed <= since).then_some(file)
    }

    /// Returns a module's file: the one that is open already, or what `open` returns. A file that
    /// was changed since a time, in nanoseconds since 1970, may be rewritten again, and is copied.
    ///
    /// Opening and copying may take for ever, so nobody else waits for it.
    pub fn opened(&self, which: &FileKey, since: u64, open: impl FnOnce() -> Option<OwnedFd>) -> Option<Opened> {
        if let Some(file) = self.known(which, since) {
            return Some(file);
        }
        let (known, copied) = {
            let mut opened = locked(&self.opened);
            if opened.len() >= MAX_OPEN_FILES {
                opened.retain(|_, kept| kept.file.strong_count() > 0);
                if opened.len() >= MAX_OPEN_FILES {
                    return None;
                }
            }
            let copies = opened.values().filter(|kept| kept.file.strong_count() > 0);
            let copied = copies.filter_map(|kept| kept.copy_of).map(|version| version.bytes).sum::<u64>();
            (opened.get(which).and_then(Kept::alive), copied)
        };
        let file = open()?;
        let version = Version::of(&file)?;
        if let Some((copy, _)) = known.filter(|(_, copy_of)| *copy_of == Some(version)) {
            return Some(copy);
        }
        let is_lent = kept_file::is_lent(&file);
        let copy = match is_lent || version.renamed > since {
            true => kept_file::copy(&file, MAX_COPIES.saturating_sub(copied)),
            false => None,
        };
        if is_lent && copy.is_none() {
            return None;
        }
        let copy_of = copy.is_some().then_some(version);
        let file = Arc::new(copy.unwrap_or(file));
        let mut opened = locked(&self.opened);
        // Within a tick of the kernel's clock, another file may get the inode and the same times.
        if copy_of.is_some() && version.renamed.saturating_add(COARSE_TIME) > clock::unix_ns() {
            opened.remove(which);
        } else {
            opened.insert(which.clone(), Kept { file: Arc::downgrade(&file), copy_of });
        }
        Some(file)
    }

    /// Sends a job to the helper. From here on a reader of the folder waits for its names. Returns
    /// false if the job cannot be executed.
    pub fn submit(&self, job: Job) -> bool {
        let folder = job.folders.first().map(|folder| folder.display().to_string()).unwrap_or_default();
        match serialize(job) {
            Ok(message) => {
                let mut waiting = locked(&self.waiting);
                if waiting.len() >= MAX_WAITING_JOBS {
                    tracing::debug!("{folder}: its names are not stored: the helper has too many jobs");
                    return false;
                }
                waiting.push_back(message);
                self.send(&mut waiting, false);
                true
            }
            Err(error) => {
                tracing::debug!("{folder}: its names are not stored: {error}");
                false
            }
        }
    }

    /// Sends the jobs for which there was no room. Called from time to time: maybe none follows them.
    pub fn send_waiting(&self) {
        self.send(&mut locked(&self.waiting), false);
    }

    fn send(&self, waiting: &mut VecDeque<Message>, waits: bool) {
        while let Some(message) = waiting.front() {
            let files: Vec<BorrowedFd<'_>> = message.files.iter().map(|file| sys::fd(&**file)).collect();
            match sys::send_files_with(sys::fd(&self.channel), &[message.folders], &files, waits) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ETOOMANYREFS) if !waits => return,
                // Without a helper, readers look up the names in the files that exist then.
                _ => drop(waiting.pop_front()),
            }
        }
    }

    /// Ends the stream of jobs if the helper has received all of them, so that it starts with the
    /// last ones now.
    pub fn close(&self) {
        let mut waiting = locked(&self.waiting);
        self.send(&mut waiting, false);
        if waiting.is_empty() {
            let _ = socket::shutdown(self.channel.as_raw_fd(), Shutdown::Write);
        }
    }

    /// Ends the stream of jobs. Waits until the functions have their names, for at most `timeout`;
    /// the helper continues alone.
    pub fn finish(&self, timeout: Duration) {
        let start = Instant::now();
        self.send(&mut locked(&self.waiting), true);
        let _ = socket::shutdown(self.channel.as_raw_fd(), Shutdown::Write);
        // If this process is the first one of a container, the helper ends with it.
        let timeout = if std::process::id() == 1 { Duration::from_secs(MAX_CPU_SECONDS) } else { timeout };
        sys::wait_readable_for(sys::fd(&self.channel), timeout);
        tracing::debug!("the names took {:.3} s at the end", start.elapsed().as_secs_f64());
    }

    /// Returns the pid of the helper process.
    pub fn helper(&self) -> u32 {
        self.helper
    }
}

/// Serializes a job, and locks its folders.
fn serialize(job: Job) -> io::Result<Message> {
    let mut bytes = Vec::new();
    let Job { folders, reader, queries, files } = job;
    Request { reader, folders: folders.len() as u32, queries }.put(&mut bytes);
    let mut sent: Vec<Opened> = vec![Arc::new(sys::memory_file(&bytes)?)];
    for folder in &folders {
        let lock = File::options().write(true).create(true).truncate(false).open(folder.join(SYMBOLS_LOCK))?;
        // If the folder is locked, an earlier job for it is still being executed, and readers wait
        // for that one.
        if let Err(std::fs::TryLockError::Error(error)) = lock.try_lock() {
            return Err(error);
        }
        sent.extend([Arc::new(OwnedFd::from(File::open(folder)?)), Arc::new(OwnedFd::from(lock))]);
    }
    sent.extend(files);
    Ok(Message { folders: folders.len() as u8, files: sent })
}

/// A job as the helper receives it.
#[derive(Debug)]
struct Received {
    request: Request,
    /// Each folder with its lock file.
    folders: Vec<(OwnedFd, OwnedFd)>,
    files: Vec<OwnedFd>,
}

impl Received {
    /// Writes the first names of its process.
    fn write(&self, bytes: &[u8]) {
        for (folder, _lock) in &self.folders {
            let path = path_of(folder).join(SYMBOLS);
            let _ = replace_file(&path, bytes, self.request.reader, Durability::BeforeRename);
        }
    }

    /// Writes further names of its process, and lines.
    fn overwrite(&self, bytes: &[u8]) {
        for (folder, _lock) in &self.folders {
            let _ = overwrite_file(&path_of(folder).join(SYMBOLS), bytes);
        }
    }

    /// Readers need not wait any longer.
    fn unlock(&self) {
        for (folder, _lock) in &self.folders {
            let _ = std::fs::remove_file(path_of(folder).join(SYMBOLS_LOCK));
        }
    }
}

/// Jobs with the same question: its answer is for all of them. Not empty.
type Group = Vec<Received>;

/// The helper's connection to the recorder.
#[derive(Debug)]
pub struct Helper {
    channel: OwnedFd,
}

impl Helper {
    /// Executes jobs until the recorder is gone and all jobs are done.
    pub fn run(&self, work: Work) {
        // A hostile file may crash the helper: that is not a fault to report.
        crash::disarm();
        let _ = nix::unistd::setsid();
        spawn::close_inherited(&[], false);
        sys::discard_stderr();
        sys::close_all_except(sys::fd(&self.channel));
        // A signal that ends the recorder must not prevent the names of what was recorded.
        let _ = SigSet::all().thread_block();
        sys::lower_priority(10);
        let (mut is_closed, mut answers) = (false, Answers::default());
        while !is_closed {
            let (mut batch, mut first_arrival): (Vec<Group>, _) = (Vec::new(), None);
            let files = |batch: &[Group]| batch.iter().flatten().map(|job| job.files.len() + 8).sum::<usize>();
            while batch.len() < BATCH_JOBS && files(&batch) < BATCH_FILES {
                let wait =
                    first_arrival.map(|first_arrival: Instant| BATCH_WINDOW.saturating_sub(first_arrival.elapsed()));
                if wait.is_some_and(|wait| !sys::wait_readable_for(sys::fd(&self.channel), wait)) {
                    break;
                }
                match self.receive() {
                    Some(Some(job)) => {
                        if let Some(job) = answers.answer(job) {
                            Answers::add(&mut batch, job);
                            first_arrival.get_or_insert_with(Instant::now);
                        }
                    }
                    Some(None) => {}
                    None => {
                        is_closed = true;
                        break;
                    }
                }
            }
            let last = is_closed.then(|| sys::fd(&self.channel));
            if execute_in_child(&batch, work, last) {
                batch.iter().for_each(|group| answers.keep(group));
            } else if batch.len() > 1 {
                // One of the jobs is hostile. It must not cost the others their names.
                for group in &batch {
                    execute_in_child(std::slice::from_ref(group), work, None);
                }
            }
            batch.iter().flatten().for_each(Received::unlock);
        }
    }

    /// Receives the next job: `None` when the recorder has closed its end, `Some(None)` for an
    /// invalid message.
    fn receive(&self) -> Option<Option<Received>> {
        let mut folders = [0; 1];
        let (count, files) = loop {
            match sys::receive_many_files(sys::fd(&self.channel), &mut folders) {
                Err(Errno::EINTR) => {}
                Err(_) => return None,
                Ok(received) => break received,
            }
        };
        if count == 0 {
            return None;
        }
        let mut files = files.into_iter();
        let mut parse = || {
            let request = files.next()?;
            let folders = (0..folders[0]).map(|_| Some((files.next()?, files.next()?))).collect::<Option<_>>()?;
            Some((request, folders))
        };
        let Some((request, folders)) = parse() else { return Some(None) };
        let request = std::fs::read(path_of(&request)).unwrap_or_default();
        let request = Request::get(&mut Cursor::new(Format::Tape, &request), "request").unwrap_or_default();
        Some(Some(Received { request, folders, files: files.collect() }))
    }
}

/// Returns a path to a folder that stays valid when the folder is renamed.
fn path_of(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// Executes a batch in a child process; returns false when that did not exit normally. Of the last
/// batch the recorder is notified when each process has the names of its functions; line numbers
/// take longer.
fn execute_in_child(batch: &[Group], work: Work, recorder: Option<BorrowedFd<'_>>) -> bool {
    if batch.is_empty() {
        return true;
    }
    match sys::fork() {
        Ok(Some(child)) => {
            let child = Pid::from_raw(i32::try_from(child).unwrap_or(0));
            loop {
                match waitpid(child, None) {
                    Err(Errno::EINTR) => {}
                    ended => return matches!(ended, Ok(WaitStatus::Exited(_, 0))),
                }
            }
        }
        Ok(None) => {
            let limits = [
                (Resource::RLIMIT_AS, MAX_ADDRESS_SPACE),
                (Resource::RLIMIT_CPU, MAX_CPU_SECONDS),
                (Resource::RLIMIT_CORE, 0),
            ];
            for (resource, limit) in limits {
                let _ = setrlimit(resource, limit, limit);
            }
            confine::drop_rights();
            execute(batch, work, recorder);
            std::process::exit(0);
        }
        Err(_) => false,
    }
}

/// Overwrites an existing file and creates none: a process that removes the folder at the same time
/// must find no new file in it. Readers wait for the folder's lock.
fn overwrite_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

/// Looks up the names of a batch and writes them. Notifies the recorder when each process has
/// names.
fn execute(batch: &[Group], work: Work, mut recorder: Option<BorrowedFd<'_>>) {
    let asked: Vec<(&Received, Vec<PathBuf>)> = batch
        .iter()
        .filter_map(|group| group.first())
        .map(|job| (job, job.files.iter().map(path_of).collect()))
        .collect();
    let processes: Vec<(&[SymbolQuery], &[PathBuf])> =
        asked.iter().map(|(job, files)| (&job.request.queries[..], &files[..])).collect();
    let mut unnamed: HashSet<usize> = (0..batch.len()).collect();
    work(&processes, &mut |number, bytes| {
        let Some(group) = batch.get(number) else { return };
        match unnamed.remove(&number) {
            true => group.iter().for_each(|job| job.write(bytes)),
            false => group.iter().for_each(|job| job.overwrite(bytes)),
        }
        if let Some(recorder) = recorder.take_if(|_| unnamed.is_empty()) {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let _ = socket::send(recorder.as_raw_fd(), b".", flags);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_for_which_there_was_no_room_are_sent_later() {
        let pair = socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (channel, theirs) = pair.unwrap_or_else(|error| panic!("{error}"));
        let saver = Saver { channel, helper: 0, opened: Mutex::default(), waiting: Mutex::default() };
        let helper = Helper { channel: theirs };
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let waiting = || locked(&saver.waiting).len();
        let mut jobs = 0;
        while waiting() < 3 {
            let one = folder.path().join(jobs.to_string());
            std::fs::create_dir(&one).unwrap_or_else(|error| panic!("{error}"));
            assert!(saver.submit(Job { folders: vec![one], ..Job::default() }));
            jobs += 1;
        }
        for _ in 3..jobs {
            assert!(matches!(helper.receive(), Some(Some(_))));
        }
        assert_eq!(waiting(), 3);
        saver.send_waiting();
        assert_eq!(waiting(), 0);
        for _ in 0..3 {
            assert!(matches!(helper.receive(), Some(Some(_))));
        }
    }
}
