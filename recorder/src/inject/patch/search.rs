//! Searches files for allocators' functions, and remembers what was found: in memory, and in a
//! folder if there is one.

use super::file::{self, FileFunctions, Role};
use super::marks;
use super::names::Names;
use super::separate;
use super::stored::{Entry, Stored};
use super::symbols::{self, ElfFile, Fault, Section};
use crate::os::aside::{self, Owner};
use crate::target::kept_file;
use nix::sys::stat::fstat;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of files whose functions are remembered in memory.
const MAX_KNOWN: usize = 4096;
/// Maximum number of jobs that wait.
const MAX_WAITING: usize = 64;
/// The user of searches for nobody in particular.
const NOBODY: u32 = u32::MAX;
/// The time that a background search of one file may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a program holds the background search up.
const MAX_HOLD: Duration = Duration::from_secs(1);
/// Size of symbol tables in bytes from which on their symbols are stored: a search of some
/// milliseconds.
const STORED_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
    role: Role,
}

type Known = FxHashMap<FileKey, Arc<FileFunctions>>;

/// What is done while no program waits for it.
#[derive(Debug)]
enum Job {
    Search(File, FileKey),
    /// Searches the constants of a file for allocators without symbols.
    Nameless(File, Vec<Section>, Arc<FileFunctions>),
    /// Stores what was found in a file.
    Store(Box<Entry>),
}

/// The jobs, and whether a thread works on them.
#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Whether a thread takes the jobs.
    is_running: bool,
    /// The programs that wait for their plan since then: the thread starts later.
    holders: Vec<Instant>,
    /// Number of searches on threads of their own, in files that may not answer.
    beside: usize,
    /// Whether no thread may be started.
    is_forbidden: bool,
    /// Whether a file was not searched, and is not in the background either.
    has_missed: bool,
}

impl Jobs {
    /// Returns whether a program waits, whose files answer.
    fn is_held(&self) -> bool {
        self.holders.iter().any(|since| since.elapsed() < MAX_HOLD)
    }
}

/// Searches files, and remembers their functions.
#[derive(Clone, Debug)]
pub(super) struct Search {
    names: Arc<Names>,
    known: Arc<Mutex<Known>>,
    stored: Option<Arc<Stored>>,
    jobs: Arc<(Mutex<Jobs>, Condvar)>,
}

/// What was found in a file.
struct Found {
    functions: FileFunctions,
    /// What is to be stored of it.
    entry: Option<Entry>,
    /// Where an allocator without symbols may be seen.
    constants: Vec<Section>,
}

/// Returns the identity of a file.
fn key(file: &File, role: Role) -> Result<FileKey, Fault> {
    let status = fstat(file).map_err(|_| Fault::Invalid)?;
    let (device, inode, size) = (status.st_dev, status.st_ino, status.st_size);
    Ok(FileKey { device, inode, size, changed: (status.st_ctime, status.st_ctime_nsec), role })
}

/// Returns the constants of a file that may contain an allocator without symbols; empty for other
/// files.
fn nameless(file: &File, headers: &ElfFile, functions: &FileFunctions) -> Vec<Section> {
    let is_dynamic = functions.is_without_allocator() && !functions.is_static;
    let is_alone = || headers.debug_data.is_none() && !separate::exists(file, headers);
    if is_dynamic && is_alone() { headers.constants.clone() } else { Vec::new() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Search {
    /// Creates a search for these names.
    pub(super) fn new(names: impl Into<Arc<Names>>) -> Search {
        Search { names: names.into(), known: Arc::default(), stored: None, jobs: Arc::default() }
    }

    /// Stores in a folder what takes long to find, and uses what is stored there.
    pub(crate) fn store_in(&mut self, folder: &Path) {
        self.stored = Some(Arc::new(Stored::new(folder, &self.names)));
    }

    /// Returns whether what takes long to find is stored.
    pub(crate) fn is_storing(&self) -> bool {
        self.stored.is_some()
    }

    /// Starts no threads from now on: nothing is searched in the background, and nothing stored.
    pub(crate) fn forbid_threads(&self) {
        lock(&self.jobs.0).is_forbidden = true;
    }

    /// Returns the functions of a file. If the deadline passes, it is searched in the background.
    ///
    /// # Errors
    /// [`Fault::Late`] if the deadline passed, [`Fault::Invalid`] if the file has no status.
    pub(super) fn functions(&self, file: File, role: Role, deadline: Instant) -> Result<Arc<FileFunctions>, Fault> {
        let key = key(&file, role)?;
        if let Some(known) = lock(&self.known).get(&key) {
            return Ok(Arc::clone(known));
        }
        match self.read(&file, role, deadline) {
            Err(Fault::Late) => {
                self.add(Job::Search(file, key));
                Err(Fault::Late)
            }
            // A file that is not understood has no functions.
            Err(Fault::Invalid) => Ok(self.remember(key, FileFunctions::default())),
            Ok(Found { functions, entry, constants }) => {
                if let Some(entry) = entry {
                    self.add(Job::Store(Box::new(entry)));
                }
                let functions = self.remember(key, functions);
                let is_alone = !constants.is_empty();
                let is_searched = is_alone && self.add(Job::Nameless(file, constants, Arc::clone(&functions)));
                if !is_searched {
                    functions.nameless.get_or_init(Vec::new);
                }
                Ok(functions)
            }
        }
    }

    /// Searches a file in the background. Returns its key.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if the file has no status.
    pub(super) fn later(&self, file: File, role: Role) -> Result<FileKey, Fault> {
        let key = key(&file, role)?;
        if !lock(&self.known).contains_key(&key) {
            self.add(Job::Search(file, key));
        }
        Ok(key)
    }

    pub(super) fn known(&self, key: FileKey) -> Option<Arc<FileFunctions>> {
        lock(&self.known).get(&key).cloned()
    }

    /// Reads the functions of a file, from what is stored of it, or by a search.
    fn read(&self, file: &File, role: Role, deadline: Instant) -> Result<Found, Fault> {
        let headers = symbols::headers(file)?;
        let is_stripped = || !separate::exists(file, &headers.file);
        let stored = self.stored.as_ref();
        if let Some(elf) = stored.and_then(|stored| stored.find(file, &headers.file, &self.names, is_stripped)) {
            let functions = file::functions(file, elf, &self.names, role);
            let constants = nameless(file, &headers.file, &functions);
            return Ok(Found { functions, entry: None, constants });
        }
        let found = file::find_symbols(file, &headers, &self.names, deadline)?;
        // Symbols that are not in the file itself take longer.
        let is_slow = headers.table_bytes() >= STORED_BYTES || !headers.file.has_all_names && !found.is_stripped;
        let entry = stored.filter(|_| is_slow).and_then(|stored| stored.entry(file, &found.elf, found.is_stripped));
        let functions = file::functions(file, found.elf, &self.names, role);
        let constants = nameless(file, &headers.file, &functions);
        Ok(Found { functions, entry, constants })
    }

    fn remember(&self, key: FileKey, functions: FileFunctions) -> Arc<FileFunctions> {
        let functions = Arc::new(functions);
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, Arc::clone(&functions));
        functions
    }

    /// Adds a job, and starts the thread that works on it. Returns whether it will be done.
    fn add(&self, job: Job) -> bool {
        // The program may end before the thread has read its constants.
        let mut job = match job {
            Job::Nameless(file, constants, functions) => {
                let file = OwnedFd::from(file);
                let copy = kept_file::is_lent(&file).then(|| kept_file::copy(&file, u64::MAX)).flatten();
                Job::Nameless(copy.unwrap_or(file).into(), constants, functions)
            }
            other => other,
        };
        let mut jobs = lock(&self.jobs.0);
        if let Job::Search(file, key) = job {
            let file = OwnedFd::from(file);
            if !jobs.is_forbidden && kept_file::is_lent(&file) {
                return self.search_beside(file.into(), key, &mut jobs);
            }
            job = Job::Search(file.into(), key);
        }
        let is_known = |other: &Job| matches!((other, &job), (Job::Search(_, a), Job::Search(_, b)) if a == b);
        if jobs.is_forbidden || jobs.waiting.len() >= MAX_WAITING {
            jobs.has_missed |= matches!(job, Job::Search(..));
            return false;
        }
        if jobs.waiting.iter().any(is_known) {
            return true;
        }
        jobs.waiting.push_back(job);
        jobs.is_held() || self.start_thread(&mut jobs)
    }

    /// Searches a file on a mount that may not answer, where no other search waits for it.
    fn search_beside(&self, file: File, key: FileKey, jobs: &mut Jobs) -> bool {
        let owner = Owner { pid: key.inode as u32, uid: NOBODY };
        let Ok(place) = aside::place(owner) else {
            jobs.has_missed = true;
            return false;
        };
        jobs.beside += 1;
        let search = self.clone();
        place.start(move || {
            search.search(&file, key);
            lock(&search.jobs.0).beside -= 1;
            search.jobs.1.notify_all();
        });
        true
    }

    /// Starts the thread if it does not run and there are jobs. Returns whether they will be done.
    fn start_thread(&self, jobs: &mut Jobs) -> bool {
        if !jobs.is_running && !jobs.waiting.is_empty() {
            let search = self.clone();
            let thread = std::thread::Builder::new().name("symbols".into());
            jobs.is_running = thread.spawn(move || search.work()).is_ok();
        }
        jobs.is_running
    }

    /// Calls a function that plans the hooks of a program that waits. No background job starts
    /// meanwhile: it would take time of the same processors.
    pub(crate) fn while_program_waits<T>(&self, plan: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        lock(&self.jobs.0).holders.push(since);
        let planned = plan();
        let mut jobs = lock(&self.jobs.0);
        if let Some(own) = jobs.holders.iter().position(|holder| *holder == since) {
            jobs.holders.swap_remove(own);
        }
        if !jobs.is_held() {
            self.start_thread(&mut jobs);
        }
        planned
    }

    /// Works until no job is left.
    fn work(&self) {
        loop {
            let job = {
                let mut jobs = lock(&self.jobs.0);
                let job = jobs.waiting.pop_front();
                jobs.is_running = job.is_some();
                job
            };
            match job {
                Some(Job::Search(file, key)) => self.search(&file, key),
                Some(Job::Nameless(file, constants, functions)) => {
                    functions.nameless.get_or_init(|| marks::allocators(&file, &constants));
                }
                Some(Job::Store(entry)) => self.store(&entry),
                None => return self.jobs.1.notify_all(),
            }
        }
    }

    /// Searches a file that a program could not wait for. What is found is stored in any case.
    fn search(&self, file: &File, key: FileKey) {
        if lock(&self.known).contains_key(&key) {
            return;
        }
        let Ok(headers) = symbols::headers(file) else { return };
        let deadline = Instant::now() + SEARCH_TIMEOUT;
        let Ok(found) = file::find_symbols(file, &headers, &self.names, deadline) else { return };
        let stored = self.stored.as_ref();
        let entry = stored.and_then(|stored| stored.entry(file, &found.elf, found.is_stripped));
        let functions = self.remember(key, file::functions(file, found.elf, &self.names, key.role));
        entry.iter().for_each(|entry| self.store(entry));
        let constants = nameless(file, &headers.file, &functions);
        let found = marks::allocators(file, &constants);
        functions.nameless.get_or_init(|| found);
    }

    fn store(&self, entry: &Entry) {
        let Some(stored) = &self.stored else { return };
        if let Err(error) = stored.store(entry) {
            tracing::debug!("found symbols are not stored: {error}");
        }
    }

    /// Returns whether a file was not searched, and will not be.
    pub(crate) fn has_missed(&self) -> bool {
        lock(&self.jobs.0).has_missed
    }

    /// Returns whether jobs are not done yet.
    pub(crate) fn is_working(&self) -> bool {
        let jobs = lock(&self.jobs.0);
        jobs.is_running || jobs.beside > 0
    }

    /// Waits until all jobs are done, for at most this time.
    pub(super) fn finish(&self, timeout: Duration) {
        let (jobs, is_idle) = &*self.jobs;
        drop(is_idle.wait_timeout_while(lock(jobs), timeout, |jobs| jobs.is_running || jobs.beside > 0));
    }
}
