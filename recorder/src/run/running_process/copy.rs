//! A copy of a process, to read its memory as it was at one moment while it runs on: a child that has
//! the same memory (copy-on-write) and never runs. It is killed when it has been read.
//!
//! *Who sees it.* Handlers of `fork` do not run, since the kernel makes it for a thread that we have
//! stopped. It shares the descriptors, so that a pipe ends when the program closes it. Its end sends no
//! signal, and `wait` finds it only with `__WALL` or `__WCLONE`. For the time of the reading it is a
//! process of its user, and what the program writes meanwhile takes memory twice: so there must be
//! memory for all of it.
//!
//! *If we are killed*, so is the copy, and what is left of it goes with the program.

use super::AttachError;
use super::checks;
use super::gadgets::{Gadgets, find_gadgets};
use super::memory::Memory;
use super::ptrace::{self, StopError};
use super::threads::StoppedThreads;
use super::visit::Visit;
use crate::inject::maps::Maps;
use crate::os::processor::Registers;
use crate::target::cgroup;
use crossbeam_channel::{Receiver, Sender, bounded};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// The milliseconds in which all threads must stop, for one try after the other.
const STOP_LIMITS: [u64; 8] = [10, 10, 20, 20, 40, 80, 100, 100];
/// The pause between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(10);
/// How often we try to take away what is left of the copy.
const REAP_TRIES: u32 = 100;
/// The time in which the kernel ends the copy.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A copy whose memory can be read.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) pid: u32,
    /// The threads of the process, with the registers that they had.
    pub(crate) threads: Vec<(Pid, Registers)>,
    /// Threads that waited in the kernel, where nothing interrupts them.
    pub(crate) in_kernel: usize,
    /// How long the process stood still.
    pub(crate) stop: Duration,
}

/// Makes a copy of a process, calls `read` with it, and removes it. `while_still` is called while all
/// threads stand still: what it returns is of the very moment of the copy.
///
/// # Errors
/// Why there is no copy; the process then runs on as before.
pub(crate) fn with_copy<T, R>(
    pid: u32,
    while_still: impl Fn() -> Result<T, &'static str>,
    read: impl FnOnce(&Copy, T) -> R,
) -> Result<R, AttachError> {
    let (_, memory) = checks::examine_recorded(pid)?;
    check_space(pid)?;
    let (gadgets, _) = find_gadgets(&Maps::of(pid), &memory)?;
    let mut limits = STOP_LIMITS.into_iter();
    let (held, copy, found) = loop {
        let limit = limits.next();
        match make(pid, &memory, gadgets, Duration::from_millis(limit.unwrap_or(100)), &while_still) {
            Err(error) if error.may_pass() && limit.is_some() => std::thread::sleep(TRY_PAUSE),
            result => break result?,
        }
    };
    let result = read(&copy, found);
    drop(held);
    Ok(result)
}

/// Checks that the system has memory for all that the process may write while it is read.
fn check_space(pid: u32) -> Result<(), AttachError> {
    let kilobytes = |text: &str, name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let status =
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default()).into_owned();
    let needed = kilobytes(&status, "RssAnon").unwrap_or(0) << 10;
    let free = std::fs::read_to_string("/proc/meminfo").ok();
    let free = free.and_then(|text| kilobytes(&text, "MemAvailable")).map_or(u64::MAX, |free| free << 10);
    space_problem(needed, free.min(cgroup::memory_left(pid).unwrap_or(u64::MAX))).map_or(Ok(()), Err)
}

/// Returns why a process with so much memory of its own is not copied where so much is left.
fn space_problem(needed: u64, left: u64) -> Option<AttachError> {
    (needed > left).then(|| {
        AttachError::Unsuitable(format!(
            "there is not enough memory to read a copy of it: it has {} MiB, {} MiB are left",
            needed >> 20,
            left >> 20
        ))
    })
}

/// A child that stands still. It is killed when this is dropped, and nothing is left of it.
struct Held<'a> {
    /// The process that it is a child of.
    parent: u32,
    child: Pid,
    /// Its number in the namespace of the process.
    number: u64,
    memory: &'a Memory,
    gadgets: Gadgets,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = kill(self.child, Signal::SIGKILL);
        let deadline = Instant::now() + END_LIMIT;
        while !matches!(ptrace::wait(self.child, deadline), Ok(ptrace::Stop::Ended) | Err(_)) {}
        // The kernel has kept its end for the process, which knows nothing of it.
        for _ in 0..REAP_TRIES {
            match Visit::begin(self.parent, self.memory, self.gadgets) {
                Ok(mut visit) => {
                    let flags = (libc::__WALL | libc::WNOHANG) as u64;
                    let _ = visit.call(libc::SYS_wait4, [self.number, 0, flags, 0, 0, 0]);
                    let _ = visit.end();
                    return;
                }
                Err(error) if error.may_pass() => std::thread::sleep(TRY_PAUSE),
                // It has ended, and its children belong to somebody who waits for them.
                Err(_) => return,
            }
        }
    }
}

/// What is known of the other threads once they stand still.
type Others = Result<(Vec<(Pid, Registers)>, usize), StopError>;

fn make<'a, T>(
    pid: u32,
    memory: &'a Memory,
    gadgets: Gadgets,
    limit: Duration,
    while_still: &impl Fn() -> Result<T, &'static str>,
) -> Result<(Held<'a>, Copy, T), AttachError> {
    let mut visit = Visit::begin(pid, memory, gadgets)?;
    let own = visit.thread();
    let (stopped, others) = bounded::<Others>(1);
    // The thread that holds the others ends when this is dropped.
    let (go, held) = bounded::<()>(0);
    std::thread::scope(|scope| {
        let hold = move || hold_others(pid, own.0, limit, &stopped, &held);
        let thread = std::thread::Builder::new().name(super::tracer::NAME.into()).spawn_scoped(scope, hold);
        thread.map_err(|error| AttachError::Refused { what: "a thread of this command", error })?;
        let (mut all, in_kernel) = others.recv().unwrap_or(Err(StopError::Ended))?;
        let found = while_still().map_err(|why| AttachError::Unsuitable(why.into()))?;
        let (child, number) = visit.fork()?;
        drop(go);
        let held = Held { parent: pid, child, number, memory, gadgets };
        let stop = visit.end()?;
        all.push(own);
        Ok((held, Copy { pid: child.as_raw().cast_unsigned(), threads: all, in_kernel, stop }, found))
    })
}

/// Stops all threads of a process but one, and holds them until `held` is closed: the end of the
/// calling thread lets go of them.
fn hold_others(pid: u32, than: Pid, limit: Duration, stopped: &Sender<Others>, held: &Receiver<()>) {
    let mut others = StoppedThreads::of(pid);
    let result = match others.stop_others(than, limit) {
        // They execute no instruction of the program before they stop.
        Err(StopError::Late) if others.late_ones_in_kernel().all => Ok(()),
        result => result,
    };
    let late = others.all().len() - others.threads.len();
    let is_stopped = result.is_ok();
    let threads = others.threads.iter().map(|thread| (thread.tid, thread.registers)).collect();
    let _ = stopped.send(result.map(|()| (threads, late)));
    if is_stopped {
        let _ = held.recv();
    }
    if !is_stopped || late > 0 {
        others.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads;
    use super::*;
    use nix::errno::Errno;
    use std::process::{Command, Stdio};

    #[test]
    fn a_copy_for_which_there_is_no_memory_is_refused() {
        let problem = |needed, left| space_problem(needed, left).map(|error| error.to_string());
        assert_eq!((problem(0, 0), problem(5, 5), problem(1, u64::MAX)), (None, None, None));
        let said = problem(700 << 20, 300 << 20).expect("a refusal");
        assert!(said.contains("it has 700 MiB, 300 MiB are left"), "{said}");
        assert!(problem(6, 5).is_some());
    }

    /// The copy has the memory of the moment at which it was made, ends with the call, and the process
    /// has neither a child nor a trace of it afterwards.
    #[test]
    fn a_copy_is_as_the_process_was_and_leaves_nothing() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep starts");
        let pid = child.id();
        // It may still be in the loader, where no thread can be used.
        let exe = || std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        while !exe().contains("nanosleep") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let maps = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let (before, children) = (maps(pid), format!("/proc/{pid}/task/{pid}/children"));
        let seen = with_copy(pid, || Ok(7), |copy, found| (copy.pid, found, maps(copy.pid), copy.threads.len()));
        let left = std::fs::read_to_string(&children).unwrap_or_default();
        let state = threads::status_field(pid, Pid::from_raw(pid as i32), "TracerPid");
        child.kill().expect("it sleeps");
        let _ = child.wait();
        let (copy, found, inside, count) = seen.expect("a copy");
        assert_eq!((found, count, inside), (7, 1, before));
        assert_eq!((left.trim(), state.as_deref()), ("", Some("0")));
        assert_eq!(kill(Pid::from_raw(copy.cast_signed()), None), Err(Errno::ESRCH));
    }
}
