//! A helper process that makes all ptrace calls. It shares our memory and descriptor table, but has
//! its own pid: if the command is SIGKILLed, the helper finishes its step, and a thread that it has
//! stopped goes on as if nothing had happened. When it exits, the kernel resumes all its tracees.
//!
//! This is what `posix_spawn` does: `clone` with `CLONE_VM` and `CLONE_VFORK`. The thread that has
//! started it is suspended until it ends, so that it uses the thread-local variables of that thread
//! alone.

use super::AttachError;
use super::ptrace::forget_timer;
use super::threads::status_field;
use crate::os::sys;
use nix::errno::Errno;
use nix::libc::{self, c_int, c_void, pid_t};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::Pid;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Name of the threads and processes that trace.
pub(super) const NAME: &str = "heaptape tracer";
const STACK_BYTES: usize = 1 << 20;
/// If the command dies while one of its threads holds malloc's lock, the helper would block on that
/// lock forever. The kernel ends it after this time.
const TIMEOUT: TimeSpec = TimeSpec::new(15, 0);

/// The memory of its stack, with a page below it that is not accessible.
struct Stack(NonNull<c_void>);

impl Stack {
    fn new() -> nix::Result<Stack> {
        let size = NonZeroUsize::new(STACK_BYTES).ok_or(Errno::EINVAL)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_STACK | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }?;
        let stack = Stack(start);
        // SAFETY: the first page of the mapping above, which nothing uses yet.
        unsafe { mprotect(start, wire::area::PAGE as usize, ProtFlags::PROT_NONE) }?;
        Ok(stack)
    }

    fn top(&self) -> *mut c_void {
        // SAFETY: the end of the mapping of this size.
        unsafe { self.0.as_ptr().byte_add(STACK_BYTES) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made. The process that used it has ended.
        let _ = unsafe { munmap(self.0, STACK_BYTES) };
    }
}

/// What the process calls, and what that has returned.
struct Call<F, T> {
    body: Option<F>,
    result: Option<T>,
}

/// Runs something in a process of its own that traces other processes. They are let go at its end,
/// and a kill of this process does not end it.
///
/// # Errors
/// The error of `body`, or why the helper could not be started.
pub(super) fn traced<T: Send>(body: impl FnOnce() -> Result<T, AttachError> + Send) -> Result<T, AttachError> {
    std::thread::scope(|scope| {
        let name = std::thread::Builder::new().name(NAME.into());
        let thread = name.spawn_scoped(scope, || {
            sys::prefer_thread_to_all();
            run(body).map_err(AttachError::refused("a process that traces"))?.unwrap_or(Err(AttachError::Killed))
        });
        let thread = thread.map_err(|error| AttachError::Refused { what: "a thread of this command", error })?;
        thread.join().unwrap_or(Err(AttachError::Killed))
    })
}

/// Runs something in a process that traces. Returns `None` if that was killed.
///
/// # Errors
/// The system has no memory for it, or no further process.
fn run<F: FnOnce() -> T, T>(body: F) -> nix::Result<Option<T>> {
    let stack = Stack::new()?;
    let mut call = Call { body: Some(body), result: None };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS;
    // SAFETY: the stack is its own. The calling thread is suspended until the process has ended or
    // this one is killed, so that nothing else uses `call` or the thread's variables meanwhile.
    let pid = Errno::result(unsafe { libc::clone(enter::<F, T>, stack.top(), flags, (&raw mut call).cast()) })?;
    reap(pid);
    Ok(call.result)
}

/// Waits for the end of the process, which sends no signal.
fn reap(pid: pid_t) {
    // SAFETY: the kernel writes nothing.
    while Errno::result(unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) }) == Err(Errno::EINTR) {}
}

extern "C" fn enter<F: FnOnce() -> T, T>(call: *mut c_void) -> c_int {
    // SAFETY: `run` passes a pointer to its own variable of this type, and waits.
    let call = unsafe { &mut *call.cast::<Call<F, T>>() };
    // Neither Ctrl-C nor a signal to the group of the command ends it. Its own group is one more
    // that a kill of the command's group does not meet.
    let _ = SigSet::all().thread_block();
    let _ = nix::unistd::setsid();
    let limit = end_at_timeout();
    if let Some(body) = call.body.take() {
        call.result = catch_unwind(AssertUnwindSafe(body)).ok();
    }
    // The timers of this process end with it. The next one must not find them in the variables of
    // the thread.
    forget_timer();
    drop(limit);
    0
}

/// Lets the kernel end this process after some time.
fn end_at_timeout() -> Option<Timer> {
    let notify = SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify)).ok()?;
    timer.set(Expiration::OneShot(TIMEOUT), TimerSetTimeFlags::empty()).ok()?;
    Some(timer)
}

/// Returns whether the process that has started this one is gone, or is about to end because it was
/// killed. `starter` is its id.
pub(super) fn is_orphan(starter: u32) -> bool {
    if nix::unistd::getpid().as_raw() as u32 == starter {
        return false;
    }
    // Its threads have this signal until each has run once more, and no memory after that.
    let leader = Pid::from_raw(starter as pid_t);
    let pending = status_field(starter, leader, "SigPnd").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    let is_killed = pending.is_none_or(|mask| mask & 1 << (Signal::SIGKILL as u32 - 1) != 0);
    let has_memory = status_field(starter, leader, "VmSize").is_some();
    is_killed || !has_memory || nix::unistd::getppid() != leader
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_another_process_with_the_same_memory() {
        let (own, mut seen) = (std::process::id(), Vec::new());
        let result = run(|| {
            seen.push(nix::unistd::getpid().as_raw() as u32);
            (is_orphan(own), seen.len())
        });
        assert_eq!(result, Ok(Some((false, 1))));
        assert!(seen.len() == 1 && seen[0] != own, "{seen:?}");
        let panicked: nix::Result<Option<()>> = run(|| panic!("on purpose"));
        assert_eq!(panicked, Ok(None));
        let killed: nix::Result<Option<()>> = run(|| {
            let _ = nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGKILL);
        });
        assert_eq!(killed, Ok(None));
    }
}
