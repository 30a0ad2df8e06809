//! Stops of traced threads, as `waitpid` reports them: also those of real-time signals, for which
//! nix has no value, and with a time limit.

use super::kill_points;
use nix::errno::Errno;
use nix::libc::{self, c_int, c_uint, c_void, pid_t};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::Pid;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// `PTRACE_EVENT_STOP`: the stop that `PTRACE_INTERRUPT` requests, and that of a stopped process.
pub(crate) const EVENT_STOP: c_int = 128;
/// The signal that ends a wait. It goes to the thread that waits, and is handled by doing nothing.
const WAKE: Signal = Signal::SIGALRM;

/// Why not all threads were stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The kernel does not let this process trace it.
    #[error("its threads cannot be stopped (ptrace: {0})")]
    Trace(Errno),
    /// A thread did not stop in time.
    #[error("a thread does not stop (it waits in the kernel, or for a child of vfork)")]
    Late,
    /// A thread has its system calls dispatched to the program (Syscall User Dispatch).
    #[error(
        "it handles its system calls itself (Syscall User Dispatch, as Wine does), which would end it for those of \
         the library; start it with heaptape record instead"
    )]
    Dispatched,
    /// The process has ended.
    #[error("it has ended")]
    Ended,
}

/// Why a traced thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The thread has ended.
    Ended,
    /// It is at the start or at the end of a system call.
    SystemCall,
    /// An event of ptrace, with the signal that the kernel reports for it.
    Event {
        /// The signal: SIGTRAP, or the one that has stopped the process.
        signal: c_int,
        event: c_int,
    },
    /// A signal is about to be delivered.
    Signal(c_int),
}

/// Returns whether a stopped thread has system calls dispatched to the program: see
/// `Documentation/admin-guide/syscall-user-dispatch.rst` of the kernel, from 6.4 on.
pub(crate) fn is_dispatched(tid: Pid) -> bool {
    const GET_SYSCALL_USER_DISPATCH_CONFIG: c_uint = 0x4211;
    // `struct ptrace_sud_config`: mode, address of the selector, start and length of the text that may.
    let mut config = [0u64; 4];
    let size = size_of_val(&config);
    // SAFETY: the request writes as many bytes as the third argument says, the size of `config`.
    let result = unsafe {
        libc::ptrace(GET_SYSCALL_USER_DISPATCH_CONFIG as _, tid.as_raw(), size as *mut c_void, config.as_mut_ptr())
    };
    result == 0 && config[0] != 0
}

impl Stop {
    fn of(status: c_int) -> Stop {
        if !libc::WIFSTOPPED(status) {
            return Stop::Ended;
        }
        match (libc::WSTOPSIG(status), status >> 16) {
            (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
            (signal, 0) => Stop::Signal(signal),
            (signal, event) => Stop::Event { signal, event },
        }
    }

    /// Returns whether it was requested by `PTRACE_INTERRUPT`, and is neither that of a signal nor
    /// that of a stopped process.
    pub(crate) fn is_interrupt(self) -> bool {
        self == Stop::Event { signal: libc::SIGTRAP, event: EVENT_STOP }
    }

    /// Returns the number of the signal that is delivered when the thread goes on; 0 for none.
    pub(crate) fn signal(self) -> c_int {
        match self {
            Stop::Signal(signal) => signal,
            _ => 0,
        }
    }
}

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resume {
    /// Until its next stop.
    Continue,
    /// Until the next start or end of a system call.
    SystemCall,
    /// Not traced any more.
    Detach,
}

/// Lets a stopped thread go on, and delivers a signal to it unless that is 0.
pub(super) fn resume(tid: Pid, how: Resume, signal: c_int) -> Result<(), Errno> {
    kill_points::step();
    let request: c_uint = match how {
        Resume::Continue => libc::PTRACE_CONT,
        Resume::SystemCall => libc::PTRACE_SYSCALL,
        Resume::Detach => libc::PTRACE_DETACH,
    };
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: these requests take integers only, and change the other process, not this one.
    Errno::result(unsafe { libc::ptrace(request, tid.as_raw(), none, libc::c_long::from(signal)) }).map(drop)
}

/// Waits until a thread stops.
///
/// # Errors
/// The thread did not stop before the deadline, or is not traced.
pub(super) fn wait(tid: Pid, deadline: Instant) -> Result<Stop, StopError> {
    kill_points::step();
    if let Some(stop) = wait_once(tid, libc::WNOHANG)? {
        return Ok(stop);
    }
    let alarm = Alarm::at(deadline);
    loop {
        // A blocking wait: a tracer that looks again and again takes the processor from the
        // threads that are to stop.
        if let Some(stop) = wait_once(tid, if alarm.is_set { 0 } else { libc::WNOHANG })? {
            return Ok(stop);
        }
        if Instant::now() >= deadline {
            return Err(StopError::Late);
        }
        if !alarm.is_set {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Returns why a thread has stopped, if it has.
pub(super) fn look(tid: Pid) -> Result<Option<Stop>, StopError> {
    wait_once(tid, libc::WNOHANG)
}

/// Returns `None` if the thread has not stopped, or a signal has ended the wait.
fn wait_once(tid: Pid, flags: c_int) -> Result<Option<Stop>, StopError> {
    let mut status = 0;
    // SAFETY: the kernel writes the status only, which is this variable.
    let result: pid_t = unsafe { libc::waitpid(tid.as_raw(), &raw mut status, libc::__WALL | flags) };
    match Errno::result(result) {
        Ok(0) | Err(Errno::EINTR) => Ok(None),
        Ok(_) => Ok(Some(Stop::of(status))),
        Err(Errno::ECHILD) => Ok(Some(Stop::Ended)),
        Err(error) => Err(StopError::Trace(error)),
    }
}

/// A timer that interrupts system calls of the calling thread from some time on.
struct Alarm {
    is_set: bool,
}

thread_local! {
    // The end of the thread does not delete it: if the process that made it was killed, this
    // process has no such timer.
    static TIMER: RefCell<Option<ManuallyDrop<Timer>>> = const { RefCell::new(None) };
}

impl Alarm {
    fn at(deadline: Instant) -> Alarm {
        /// Between the first and the next signals, for the case that one comes before the wait.
        const INTERVAL: TimeSpec = TimeSpec::new(0, 1_000_000);
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        let when = Expiration::IntervalDelayed(TimeSpec::from_duration(left), INTERVAL);
        Alarm { is_set: set_timer(when) }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.is_set {
            set_timer(Expiration::OneShot(TimeSpec::new(0, 0)));
        }
    }
}

/// Deletes the timer of the calling thread.
pub(crate) fn forget_timer() {
    TIMER.with_borrow_mut(|timer| timer.take().map(ManuallyDrop::into_inner));
}

fn set_timer(when: Expiration) -> bool {
    TIMER.with_borrow_mut(|timer| {
        if timer.is_none() {
            *timer = new_timer().map(ManuallyDrop::new);
        }
        timer.as_mut().is_some_and(|timer| timer.set(when, TimerSetTimeFlags::empty()).is_ok())
    })
}

/// Makes the timer of the calling thread; `None` if the system has no more.
fn new_timer() -> Option<Timer> {
    use nix::sys::signal::{SaFlags, SigAction};
    use nix::sys::signal::{SigEvent, SigHandler, SigevNotify, sigaction};
    extern "C" fn nothing(_: c_int) {}
    // Without SA_RESTART, so that the signal ends a wait. Each process that traces has handlers of
    // its own.
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, and this program uses the signal for nothing else.
    let _ = unsafe { sigaction(WAKE, &action) };
    let mut set = SigSet::empty();
    set.add(WAKE);
    set.thread_unblock().ok()?;
    let thread_id = nix::unistd::gettid().as_raw();
    let notify = SigevNotify::SigevThreadId { signal: WAKE, thread_id, si_value: 0 };
    Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_those_of_the_kernel() {
        let stopped = |signal: c_int, event: c_int| event << 16 | signal << 8 | 0x7f;
        assert_eq!(Stop::of(stopped(libc::SIGTRAP | 0x80, 0)), Stop::SystemCall);
        assert_eq!(Stop::of(stopped(libc::SIGRTMIN(), 0)), Stop::Signal(libc::SIGRTMIN()));
        assert_eq!(Stop::of(stopped(libc::SIGRTMIN(), 0)).signal(), libc::SIGRTMIN());
        assert!(Stop::of(stopped(libc::SIGTRAP, EVENT_STOP)).is_interrupt());
        assert!(!Stop::of(stopped(libc::SIGSTOP, EVENT_STOP)).is_interrupt());
        assert_eq!(Stop::of(0), Stop::Ended);
        assert_eq!(Stop::of(libc::SIGKILL), Stop::Ended);
    }

    #[test]
    fn wait_for_a_child_that_does_not_stop_ends_at_the_deadline() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let tid = Pid::from_raw(child.id() as pid_t);
        let start = Instant::now();
        let waited = wait(tid, start + Duration::from_millis(30));
        let elapsed = start.elapsed();
        child.kill().expect("it sleeps");
        assert_eq!(wait(tid, Instant::now() + Duration::from_secs(60)), Ok(Stop::Ended));
        // Its end has been waited for already.
        let _ = child.wait();
        assert_eq!(waited, Err(StopError::Late));
        assert!(elapsed >= Duration::from_millis(30), "{elapsed:?}");
    }
}
