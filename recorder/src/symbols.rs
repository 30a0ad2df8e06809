//! Names that a recording keeps of its own (`symbols.tape`).
//!
//! Who knows how to read ELF and DWARF is given from outside ([`Work`]), and runs in processes of
//! its own, below the recorder's priority: the files are the recorded programs' and may hold
//! anything. A file that crashes it, or that takes more memory or processor time than is allowed,
//! costs the names of its own process, and nothing else. The recorder sends what is to be looked up
//! when a process has ended, and goes on.

use crate::crash;
use crate::process::replace_file;
use crate::spawn;
use crate::sys;
use formats::recording::{SYMBOLS, SYMBOLS_LOCK};
use formats::tape::SymbolQuery;
use formats::tape::field::Field;
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

/// Looks up names: for each process its queries and the files that come along with them. Gives the
/// bytes of each one's `symbols.tape`, as often as it knows more.
pub type Work = fn(&[(&[SymbolQuery], &[PathBuf])], &mut dyn FnMut(usize, &[u8]));

/// A file, held open.
pub type Opened = Arc<OwnedFd>;

/// Files of modules that are open at once, of all processes.
const MOST_OPENED: usize = 384;
/// Files that come along with one job; the kernel passes 253 at once.
const MOST_FILES: usize = 240;
/// Jobs that wait because the helper is busy; more are given up.
const MOST_WAITING: usize = 64;
/// While a recording goes on, jobs that come within this time are done together: their modules are
/// read once.
const WINDOW: Duration = Duration::from_millis(200);
/// Jobs, and files, that are done together.
const BATCH: usize = 32;
const BATCH_FILES: usize = 512;
/// What one batch may take: bytes of address space, seconds of processor time.
const MEMORY: u64 = 4 << 30;
const SECONDS: u64 = 30;

tape_record! {
    /// What is to be looked up for one process. The descriptors that come along: this record, then
    /// a folder and its lock for each folder, then the files that the queries number.
    Request {
        /// User who may read what is written.
        reader: Option<u32>,
        /// Folders that get the names.
        folders: u32,
        /// What is to be looked up.
        queries: Vec<SymbolQuery>,
    }
}

/// A process's names, to be looked up once its folder is written.
#[derive(Debug, Default)]
pub struct Job {
    /// Folders that get the names.
    pub folders: Vec<PathBuf>,
    /// User who may read them.
    pub reader: Option<u32>,
    /// What is to be looked up.
    pub queries: Vec<SymbolQuery>,
    /// The open files that the queries number, from 1.
    pub files: Vec<Opened>,
}

impl Job {
    /// Adds a file; gives its number, 0 for none.
    pub fn add(&mut self, file: Option<Opened>) -> u32 {
        let Some(file) = file.filter(|_| self.files.len() < MOST_FILES) else { return 0 };
        self.files.push(file);
        self.files.len() as u32
    }
}

/// The recorder's side.
#[derive(Debug)]
pub struct Saver {
    channel: OwnedFd,
    helper: u32,
    /// By device and inode: processes share their libraries.
    opened: Mutex<HashMap<(String, u64), Weak<OwnedFd>>>,
    waiting: Mutex<VecDeque<Message>>,
}

/// A job on its way.
#[derive(Debug)]
struct Message {
    folders: u8,
    files: Vec<Opened>,
}

/// The two sides after [`split`].
#[derive(Debug)]
pub enum Side {
    /// The caller goes on with this.
    Recorder(Saver),
    /// This is the helper's process: nothing is left to do but [`Helper::run`].
    Helper(Helper),
}

/// Starts the helper. The caller has one thread.
///
/// # Errors
/// When there can be no other process.
pub fn split() -> io::Result<Side> {
    let pair = socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, helpers) = pair.map_err(sys::io)?;
    match sys::fork().map_err(sys::io)? {
        Some(helper) => {
            let (opened, waiting) = Default::default();
            Ok(Side::Recorder(Saver { channel: ours, helper, opened, waiting }))
        }
        None => Ok(Side::Helper(Helper { channel: helpers })),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Saver {
    /// A module's file: the one that is open already, or what `open` gives.
    pub fn opened(&self, which: (String, u64), open: impl FnOnce() -> Option<OwnedFd>) -> Option<Opened> {
        let mut opened = locked(&self.opened);
        if let Some(file) = opened.get(&which).and_then(Weak::upgrade) {
            return Some(file);
        }
        if opened.len() >= MOST_OPENED {
            opened.retain(|_, file| file.strong_count() > 0);
            if opened.len() >= MOST_OPENED {
                return None;
            }
        }
        let file = Arc::new(open()?);
        opened.insert(which, Arc::downgrade(&file));
        Some(file)
    }

    /// Hands a job to the helper. A reader of the folder waits for its names from here on, should
    /// it need them.
    pub fn submit(&self, job: Job) {
        let what = job.folders.first().map(|folder| folder.display().to_string()).unwrap_or_default();
        match message(job) {
            Ok(message) => {
                let mut waiting = locked(&self.waiting);
                if waiting.len() >= MOST_WAITING {
                    tracing::debug!("{what}: its names are not kept: the helper is behind");
                    return;
                }
                waiting.push_back(message);
                self.send(&mut waiting, false);
            }
            Err(error) => tracing::debug!("{what}: its names are not kept: {error}"),
        }
    }

    fn send(&self, waiting: &mut VecDeque<Message>, waits: bool) {
        while let Some(message) = waiting.front() {
            let files: Vec<BorrowedFd<'_>> = message.files.iter().map(|file| sys::fd(&**file)).collect();
            match sys::send_files_now(sys::fd(&self.channel), &[message.folders], &files, waits) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ETOOMANYREFS) if !waits => return,
                // Without a helper the names are those of the files, as they are found.
                _ => drop(waiting.pop_front()),
            }
        }
    }

    /// Nothing more comes. Waits until the functions have their names, at most so long; the helper
    /// goes on alone.
    pub fn finish(&self, most: Duration) {
        let asked = Instant::now();
        self.send(&mut locked(&self.waiting), true);
        let _ = socket::shutdown(self.channel.as_raw_fd(), Shutdown::Write);
        // Should this process be a container's first one, the helper ends with it.
        let most = if std::process::id() == 1 { Duration::from_secs(SECONDS) } else { most };
        sys::wait_readable_for(sys::fd(&self.channel), most);
        tracing::debug!("the names took {:.3} s at the end", asked.elapsed().as_secs_f64());
    }

    /// The helper's process.
    pub fn helper(&self) -> u32 {
        self.helper
    }
}

/// A job as it is sent.
fn message(job: Job) -> io::Result<Message> {
    let mut bytes = Vec::new();
    let Job { folders, reader, queries, files } = job;
    Request { reader, folders: folders.len() as u32, queries }.put(&mut bytes);
    let mut sent: Vec<Opened> = vec![Arc::new(sys::bytes_file(&bytes)?)];
    for folder in &folders {
        let lock = File::options().write(true).create(true).truncate(false).open(folder.join(SYMBOLS_LOCK))?;
        // Should it be locked, an earlier job for the folder is still under way, and readers wait
        // for that one.
        if let Err(std::fs::TryLockError::Error(error)) = lock.try_lock() {
            return Err(error);
        }
        sent.extend([Arc::new(OwnedFd::from(File::open(folder)?)), Arc::new(OwnedFd::from(lock))]);
    }
    sent.extend(files);
    Ok(Message { folders: folders.len() as u8, files: sent })
}

/// A job as the helper has it.
#[derive(Debug)]
struct Received {
    request: OwnedFd,
    /// Each with its lock.
    folders: Vec<(OwnedFd, OwnedFd)>,
    files: Vec<OwnedFd>,
}

/// The helper's side.
#[derive(Debug)]
pub struct Helper {
    channel: OwnedFd,
}

impl Helper {
    /// Does what comes until the recorder is gone and everything is done.
    pub fn run(&self, work: Work) {
        // A hostile file may crash it: that is no fault to report.
        crash::disarm();
        let _ = nix::unistd::setsid();
        spawn::close_inherited(&[], false);
        sys::be_silent();
        sys::keep_only(sys::fd(&self.channel));
        // It ends when it is done; a signal that ends the recorder does not mean the names of what
        // was recorded.
        let _ = SigSet::all().thread_block();
        sys::be_nice(10);
        let mut is_over = false;
        while !is_over {
            let (mut batch, mut since) = (Vec::new(), None);
            let files = |batch: &[Received]| batch.iter().map(|job: &Received| job.files.len() + 8).sum::<usize>();
            while batch.len() < BATCH && files(&batch) < BATCH_FILES {
                let wait = since.map(|since: Instant| WINDOW.saturating_sub(since.elapsed()));
                if wait.is_some_and(|wait| !sys::wait_readable_for(sys::fd(&self.channel), wait)) {
                    break;
                }
                match self.receive() {
                    Some(job) => batch.extend(job),
                    None => {
                        is_over = true;
                        break;
                    }
                }
                since.get_or_insert_with(Instant::now);
            }
            let last = is_over.then(|| sys::fd(&self.channel));
            if !apart(&batch, work, last) && batch.len() > 1 {
                // One of them is hostile: it costs the others nothing.
                for job in &batch {
                    apart(std::slice::from_ref(job), work, None);
                }
            }
            for (folder, _lock) in batch.iter().flat_map(|job| &job.folders) {
                let _ = std::fs::remove_file(inside(folder).join(SYMBOLS_LOCK));
            }
        }
    }

    /// The next job; none when nothing more comes.
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
        let mut taken = || {
            let request = files.next()?;
            let folders = (0..folders[0]).map(|_| Some((files.next()?, files.next()?))).collect::<Option<_>>()?;
            Some((request, folders))
        };
        let (request, folders) = match taken() {
            Some(taken) => taken,
            None => return Some(None),
        };
        Some(Some(Received { request, folders, files: files.collect() }))
    }
}

/// Where a folder is, whatever it is called now.
fn inside(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// Does a batch in a process of its own; false when it did not come to its end. Of the last batch
/// the recorder hears when each process has its functions' names; lines take longer.
fn apart(batch: &[Received], work: Work, recorder: Option<BorrowedFd<'_>>) -> bool {
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
            let limits = [(Resource::RLIMIT_AS, MEMORY), (Resource::RLIMIT_CPU, SECONDS), (Resource::RLIMIT_CORE, 0)];
            for (what, most) in limits {
                let _ = setrlimit(what, most, most);
            }
            done(batch, work, recorder);
            std::process::exit(0);
        }
        Err(_) => false,
    }
}

/// Writes a file anew where it is, and creates none: whoever removes the folder at this moment must
/// find no new file in it. Readers wait for the folder's lock.
fn rewrite_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

fn done(batch: &[Received], work: Work, mut recorder: Option<BorrowedFd<'_>>) {
    let read = |job: &Received| -> Option<Request> {
        let bytes = std::fs::read(inside(&job.request)).ok()?;
        Request::get(&mut Cursor::new(Format::Tape, &bytes), "request").ok()
    };
    let requests: Vec<(Request, Vec<PathBuf>)> =
        batch.iter().map(|job| (read(job).unwrap_or_default(), job.files.iter().map(inside).collect())).collect();
    let processes: Vec<(&[SymbolQuery], &[PathBuf])> =
        requests.iter().map(|(request, files)| (&request.queries[..], &files[..])).collect();
    let mut unnamed: HashSet<usize> = (0..batch.len()).collect();
    work(&processes, &mut |number, bytes| {
        let (Some(job), Some((request, _))) = (batch.get(number), requests.get(number)) else { return };
        let is_first = unnamed.remove(&number);
        for (folder, _lock) in &job.folders {
            let path = inside(folder).join(SYMBOLS);
            let _ = if is_first { replace_file(&path, bytes, request.reader) } else { rewrite_file(&path, bytes) };
        }
        if let Some(recorder) = recorder.take_if(|_| unnamed.is_empty()) {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let _ = socket::send(recorder.as_raw_fd(), b".", flags);
        }
    });
}
