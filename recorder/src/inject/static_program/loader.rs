//! Loads the standalone library into static programs that recorded processes start.
//!
//! A process that is about to execute such a program requests it, and waits for an answer. A thread
//! follows it to the exec: the kernel lets only one thread trace a process. Before the exec nothing
//! depends on the recorder, which may be killed: the kernel then lets the process go on alone.

use super::image::Image;
use super::program;
use super::tracee::{LoadError, Step, Tracee};
use crate::inject::patch::Planner;
use crate::os::crash;
use crate::os::sys;
use nix::errno::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use wire::hello::{LOAD_FOLLOWS, LOAD_NOT_PERMITTED, LOAD_REFUSED, LoadRequest};

/// Maximum number of programs of one user that are followed at once. Further ones run unrecorded.
const MAX_OF_USER: usize = 64;
/// How long [`Loader::finish`] waits for the programs that are followed.
const FINISH_TIMEOUT: Duration = Duration::from_millis(100);

/// A process that is about to start a static program, and waits for the answer.
#[derive(Debug)]
pub struct Follow {
    pub socket: OwnedFd,
    /// Descriptor that becomes readable when the process ends.
    pub process: OwnedFd,
    /// Process id, from the kernel.
    pub pid: u32,
    /// User id of the process, from the kernel.
    pub uid: u32,
    /// Id of the thread that starts the program, as it sees itself.
    pub thread: u32,
    /// Whether the thread or a child executes the program.
    pub request: LoadRequest,
    /// Path of the program, as the process has it.
    pub path: Vec<u8>,
}

/// What became of a request.
#[derive(Debug)]
pub struct Loaded {
    /// The process of the program.
    pub pid: u32,
    /// The process that requested it.
    pub from: u32,
    /// Whether that process itself executes the program.
    pub leaves: bool,
    /// Path of the program, as the process has it.
    pub path: Vec<u8>,
    /// Why the library was not loaded; `None` if it was, and is going to attach the process.
    pub refusal: Option<String>,
}

/// Follows processes, with a thread for each.
#[derive(Debug)]
pub struct Loader {
    library: &'static [u8],
    /// The library, once it is needed; `None` if there is none, or if it is not valid.
    image: OnceLock<Option<Arc<Image>>>,
    planner: Planner,
    users: Arc<Mutex<HashMap<u32, usize>>>,
    running: Arc<AtomicUsize>,
    results: Sender<Loaded>,
    finished: Receiver<Loaded>,
}

/// Why a program was not followed.
enum Refusal {
    /// The process may permit it, and try again.
    NotPermitted,
    /// The reason, as the end of a sentence.
    Because(String),
}

/// Why a process is not recorded that does not permit to be traced, as the end of a sentence.
pub(crate) const NOT_PERMITTED: &str = "the recorder may not stop it at its start (ptrace)";
/// Why a process with a filter of its own is not recorded, as the end of a sentence.
const FILTERED: &str = "a filter for system calls could kill it (seccomp)";

impl Refusal {
    fn text(self) -> String {
        match self {
            Refusal::NotPermitted => NOT_PERMITTED.into(),
            Refusal::Because(why) => why,
        }
    }
}

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Refusal {
        match error {
            LoadError::Trace(Errno::EPERM) => Refusal::NotPermitted,
            other => Refusal::Because(other.to_string()),
        }
    }
}

impl Loader {
    /// Creates a loader of the library with this file. If the file is empty, all requests are
    /// refused.
    pub fn new(library: &'static [u8], planner: Planner) -> Loader {
        let (results, finished) = channel();
        Loader {
            library,
            image: OnceLock::new(),
            planner,
            users: Arc::default(),
            running: Arc::default(),
            results,
            finished,
        }
    }

    /// Returns the library, which is read when a program needs it.
    fn image(&self) -> Option<Arc<Image>> {
        let read = || if self.library.is_empty() { None } else { Image::read(self.library).ok().map(Arc::new) };
        self.image.get_or_init(read).clone()
    }

    /// Follows a process, and loads the library into its program.
    pub fn follow(&self, follow: Follow) {
        let (pid, path, uid) = (follow.pid, follow.path.clone(), follow.uid);
        let leaves = follow.request == LoadRequest::Exec;
        let refuse = |why: &str| {
            let refusal = Some(format!("it is statically linked, and {why}"));
            let _ = self.results.send(Loaded { pid, from: pid, leaves, path: path.clone(), refusal });
        };
        let Some(image) = self.image() else { return refuse("this recorder has no library for it") };
        if !self.admit(uid) {
            return refuse("too many programs of its user start at once");
        }
        let (planner, results, users) = (self.planner.clone(), self.results.clone(), Arc::clone(&self.users));
        let running = Arc::clone(&self.running);
        self.running.fetch_add(1, Relaxed);
        let body = move || {
            run(&follow, &image, &planner, &results);
            leave(&users, uid);
            running.fetch_sub(1, Relaxed);
        };
        if crash::spawn("exec", body).is_err() {
            leave(&self.users, uid);
            self.running.fetch_sub(1, Relaxed);
            refuse("the recorder has no further thread");
        }
    }

    fn admit(&self, uid: u32) -> bool {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let count = users.entry(uid).or_default();
        let is_admitted = *count < MAX_OF_USER;
        *count += usize::from(is_admitted);
        is_admitted
    }

    /// Returns the next result, if there is one.
    pub fn next(&self) -> Option<Loaded> {
        self.finished.try_recv().ok()
    }

    /// Returns whether processes are followed.
    pub fn is_busy(&self) -> bool {
        self.running.load(Relaxed) > 0
    }

    /// Waits a short time for the processes that are followed.
    pub fn finish(&self) {
        let end = Instant::now() + FINISH_TIMEOUT;
        while self.is_busy() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn leave(users: &Mutex<HashMap<u32, usize>>, uid: u32) {
    let mut users = users.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(count) = users.get_mut(&uid) {
        *count -= 1;
        if *count == 0 {
            users.remove(&uid);
        }
    }
}

/// Follows a process to its program, and sends the result before the program begins.
fn run(follow: &Follow, image: &Image, planner: &Planner, results: &Sender<Loaded>) {
    let answer = |byte: u8| {
        let _ = sys::send_with(sys::fd(&follow.socket), &[byte], None);
    };
    let send = |pid: u32, refusal: Option<String>| {
        let (from, path) = (follow.pid, follow.path.clone());
        let leaves = pid == from && follow.request == LoadRequest::Exec;
        let refusal = refusal.map(|why| format!("it is statically linked, and {why}"));
        let _ = results.send(Loaded { pid, from, leaves, path, refusal });
    };
    let mut tracee = match begin(follow) {
        Ok(tracee) => tracee,
        Err(refusal) => {
            // The recorder must know it before the process starts a child, and names that.
            let byte = if matches!(refusal, Refusal::NotPermitted) { LOAD_NOT_PERMITTED } else { LOAD_REFUSED };
            send(follow.pid, Some(refusal.text()));
            return answer(byte);
        }
    };
    answer(LOAD_FOLLOWS);
    match tracee.step() {
        Ok(Step::Executed) => {}
        Ok(Step::Started(child)) if follow.request == LoadRequest::Spawn => {
            // The thread that has started it goes on alone.
            tracee = tracee.child(child);
            if tracee.run_to_exec().is_err() {
                // The child ends if no program can be executed.
                return;
            }
        }
        Ok(Step::Started(_) | Step::Neither) | Err(LoadError::Ended) => return,
        Err(error) => return send(follow.pid, Some(error.to_string())),
    }
    if let Some(result) = load(&mut tracee, follow.uid, image, planner) {
        send(tracee.process(), result.err());
    }
}

/// Begins to trace the thread that has sent the request.
fn begin(follow: &Follow) -> Result<Tracee, Refusal> {
    let thread = thread(follow.pid, follow.thread)
        .ok_or_else(|| Refusal::Because("the thread that starts it is not known".into()))?;
    let followed = Tracee::follow(follow.pid, thread, follow.request == LoadRequest::Spawn);
    let tracee = followed.map_err(|error| match Refusal::from(error) {
        // It must not try to permit it: a filter may end it for that system call.
        Refusal::NotPermitted if has_own_filter(thread) => Refusal::Because(FILTERED.into()),
        refusal => refusal,
    })?;
    // The process that has sent the request still exists, so its number is not another one's.
    if sys::is_readable(sys::fd(&follow.process)) {
        return Err(Refusal::Because("it has ended".into()));
    }
    Ok(tracee)
}

/// Returns the thread of a process that has this id in its own namespace.
fn thread(pid: u32, own: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let numbers: Vec<u32> =
        tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).take(1 << 16).collect();
    if let [one] = numbers[..] {
        return Some(one);
    }
    let has_id = |task: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok()) == Some(own)
    };
    numbers.into_iter().find(has_id)
}

/// Loads the library into the program that a process has just begun to execute. Returns `None` if
/// the program is not a static one.
fn load(tracee: &mut Tracee, uid: u32, image: &Image, planner: &Planner) -> Option<Result<(), String>> {
    let pid = tracee.process();
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let program = match program::find(&folder.join("exe"), planner)? {
        Ok(program) => program,
        Err(why) => return Some(Err(why)),
    };
    // The folder of a program that its user may not read belongs to root.
    if !std::fs::metadata(&folder).is_ok_and(|folder| folder.uid() == uid) {
        return Some(Err("its user may not read it".into()));
    }
    if has_own_filter(pid) {
        return Some(Err(FILTERED.into()));
    }
    Some(tracee.load_now(&program, image).map_err(|error| error.to_string()))
}

/// Returns whether a thread has filters for system calls that the recorder does not have.
fn has_own_filter(thread: u32) -> bool {
    filters(thread) > filters(std::process::id())
}

/// Returns how many filters for system calls a thread has.
fn filters(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).and_then(|number| number.trim().parse().ok())
    };
    // A kernel before 5.9 has no number of filters.
    field("Seccomp_filters:").or_else(|| field("Seccomp:")).unwrap_or(0)
}
