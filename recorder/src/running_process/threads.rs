//! All threads of a process, stopped. They are released when the thread of this process that has
//! stopped them ends: the kernel then lets go of all of them at once. Detaching them one by one
//! takes several times as long, since each one that runs takes the processor away.
//!
//! No signal is sent to them: `PTRACE_SEIZE` and `PTRACE_INTERRUPT` change nothing that the program
//! can see.

use super::frame;
use super::memory::Memory;
use nix::errno::Errno;
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// `PTRACE_EVENT_STOP`: the stop that `PTRACE_INTERRUPT` requests, and that of a stopped process.
pub const EVENT_STOP: i32 = 128;
/// The longest time in which all threads must stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Why not all threads were stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The kernel does not let this process trace it.
    #[error("its threads cannot be stopped (ptrace: {0})")]
    Trace(Errno),
    /// A thread did not stop in time.
    #[error("a thread did not stop within 100 ms (it waits in the kernel, or for a child of vfork)")]
    Late,
    /// The process has ended.
    #[error("it has ended")]
    Ended,
}

/// A thread that is stopped.
#[derive(Clone, Copy, Debug)]
pub struct StoppedThread {
    /// Id of the thread.
    pub tid: Pid,
    /// General registers of the thread.
    pub registers: user_regs_struct,
    /// Whether it was this stop that interrupted it, and no signal.
    is_interrupted: bool,
}

/// Returns whether a stop was requested by `PTRACE_INTERRUPT`, and is neither that of a signal nor
/// that of a stopped process.
pub fn is_interrupt(stop: WaitStatus) -> bool {
    matches!(stop, WaitStatus::PtraceEvent(_, Signal::SIGTRAP, EVENT_STOP))
}

/// All threads of a process, stopped by the calling thread.
#[derive(Debug)]
pub struct StoppedThreads {
    /// The threads that were stopped.
    pub threads: Vec<StoppedThread>,
    /// When the first one was stopped.
    pub since: Instant,
}

/// Returns the ids of the threads of a process.
pub fn list(pid: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw).collect()
}

/// Returns the text after a name in a thread's status.
pub fn status_field(pid: u32, tid: Pid, name: &str) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status).into_owned();
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|field| field.trim().to_owned())
}

/// Begins to trace a thread, and requests its stop. Returns false if it has ended.
///
/// # Errors
/// The error of `ptrace`.
pub fn interrupt(pid: u32, tid: Pid) -> Result<bool, Errno> {
    match ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD) {
        Ok(()) => match ptrace::interrupt(tid) {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            Err(error) => Err(error),
        },
        Err(Errno::ESRCH) => Ok(false),
        // The kernel's answer for a thread that has ended and was not waited for.
        Err(Errno::EPERM) if is_ended(pid, tid) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_ended(pid: u32, tid: Pid) -> bool {
    status_field(pid, tid, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// Waits until a thread stops. Returns `None` if it has ended.
///
/// # Errors
/// The thread did not stop before the deadline, or is not traced.
pub fn wait(tid: Pid, deadline: Instant) -> Result<Option<WaitStatus>, StopError> {
    /// The pause between two looks: threads that run stop within microseconds.
    const PAUSE: Duration = Duration::from_micros(20);
    loop {
        match waitpid(tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() >= deadline => return Err(StopError::Late),
            Ok(WaitStatus::StillAlive) => std::thread::sleep(PAUSE),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(StopError::Trace(error)),
            Ok(status) => return Ok(Some(status)),
        }
    }
}

impl StoppedThreads {
    /// Stops all threads of a process. A system call that a stop interrupts is begun again, so that
    /// the program sees no interruption.
    ///
    /// # Errors
    /// Why they are not stopped. Those that are get released when the calling thread ends.
    pub fn stop(pid: u32) -> Result<StoppedThreads, StopError> {
        let since = Instant::now();
        let deadline = since + STOP_TIMEOUT;
        let (mut known, mut threads) = (Vec::new(), Vec::new());
        loop {
            let new: Vec<Pid> = list(pid).into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            let mut stopping = Vec::new();
            for tid in new {
                known.push(tid);
                if interrupt(pid, tid).map_err(StopError::Trace)? {
                    stopping.push(tid);
                }
            }
            for tid in stopping {
                let Some(stop) = wait(tid, deadline)? else { continue };
                let is_interrupted = is_interrupt(stop);
                match ptrace::getregs(tid) {
                    Ok(registers) => threads.push(StoppedThread { tid, registers, is_interrupted }),
                    Err(Errno::ESRCH) => {}
                    Err(error) => return Err(StopError::Trace(error)),
                }
            }
        }
        if threads.is_empty() {
            return Err(StopError::Ended);
        }
        let mut stopped = StoppedThreads { threads, since };
        stopped.threads.iter_mut().for_each(|thread| thread.restart_wait(pid));
        Ok(stopped)
    }

    /// Moves the threads that are in moved instructions to where these are now.
    ///
    /// # Errors
    /// The error of `ptrace`.
    pub fn relocate(&mut self, new: impl Fn(u64) -> Option<u64>) -> Result<(), StopError> {
        for thread in &mut self.threads {
            if let Some(rip) = new(thread.registers.rip) {
                thread.registers = user_regs_struct { rip, ..thread.registers };
                match ptrace::setregs(thread.tid, thread.registers) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(StopError::Trace(error)),
                }
            }
        }
        Ok(())
    }

    /// Returns whether the memory that a thread may return to holds one of these addresses.
    pub fn refers_to(&self, memory: &Memory, is_inside: impl Fn(u64) -> bool) -> bool {
        self.threads.iter().any(|thread| {
            let own = &thread.registers;
            let registers = [
                own.rip, own.rax, own.rbx, own.rcx, own.rdx, own.rsi, own.rdi, own.rbp, own.r8, own.r9, own.r10,
                own.r11, own.r12, own.r13, own.r14, own.r15,
            ];
            registers.into_iter().any(&is_inside) || memory.stack_holds(own.rsp, own.fs_base, &is_inside)
        })
    }
}

impl StoppedThread {
    /// Begins a system call again that reports the stop as an interruption.
    fn restart_wait(&mut self, pid: u32) {
        if self.is_interrupted && frame::was_interrupted(&self.registers) && !has_signal(pid, self.tid) {
            self.registers = frame::begun_again(self.registers);
            // A thread that has ended meanwhile waits for nothing.
            let _ = ptrace::setregs(self.tid, self.registers);
        }
    }
}

/// Returns whether a signal waits for a thread that does not block it.
pub fn has_signal(pid: u32, tid: Pid) -> bool {
    let mask = |name| status_field(pid, tid, name).and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") != 0
}
