//! All threads of a process, stopped. They are released when the thread of this process that has
//! stopped them ends: the kernel then lets go of all of them at once. Detaching them one by one
//! takes several times as long, since each one that runs takes the processor away.
//!
//! No signal is sent to them: `PTRACE_SEIZE` and `PTRACE_INTERRUPT` change nothing that the program
//! can see.

use super::memory::Memory;
use super::ptrace::{self, Resume, Stop, StopError};
use crate::os::processor::{NOTES_CALLS, RETURN_ADDRESS, Registers, Waiting};
use crate::target::waiting::{Doing, doing};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::Options;
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// The longest time for which a thread that did not stop in time is waited for. The others run.
const STRAGGLER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoppedThread {
    pub tid: Pid,
    /// General registers of the thread.
    pub registers: Registers,
    /// The reason why the thread stopped.
    stop: Stop,
}

/// Whether threads that have not stopped in time wait in the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateInKernel {
    /// At least one does.
    pub any: bool,
    /// At least one does, and no other one is late.
    pub all: bool,
}

/// All threads of a process, stopped by the calling thread.
#[derive(Debug)]
pub(crate) struct StoppedThreads {
    pid: u32,
    pub threads: Vec<StoppedThread>,
    /// The threads whose stop was requested, and that have not stopped yet.
    stopping: Vec<Requested>,
    /// When the first one was stopped.
    pub since: Instant,
}

/// Returns the ids of the threads of a process.
pub(crate) fn list(pid: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw).collect()
}

/// Returns the text after a name in a thread's status.
pub(crate) fn status_field(pid: u32, tid: Pid, name: &str) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status).into_owned();
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|field| field.trim().to_owned())
}

/// A thread whose stop was requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requested {
    pub tid: Pid,
    /// The call in which it waited before, where a stop hides it.
    pub call: Option<Waiting>,
}

/// Begins to trace a thread, and requests its stop. Returns `None` if it has ended.
pub(crate) fn interrupt(pid: u32, tid: Pid) -> Result<Option<Requested>, Errno> {
    let waiting = || match doing(pid, tid.as_raw().cast_unsigned()) {
        Doing::Calls(call) => Some(Waiting { number: call.number, arguments: call.arguments, next: call.next }),
        _ => None,
    };
    let call = if NOTES_CALLS { waiting() } else { None };
    match nix::sys::ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD) {
        Ok(()) => match nix::sys::ptrace::interrupt(tid) {
            Ok(()) => Ok(Some(Requested { tid, call })),
            Err(Errno::ESRCH) => Ok(None),
            Err(error) => Err(error),
        },
        Err(Errno::ESRCH) => Ok(None),
        // The kernel's answer for a thread that has ended and was not waited for.
        Err(Errno::EPERM) if is_ended(pid, tid) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a thread waits in the kernel, and nothing interrupts it.
pub(crate) fn is_in_kernel(pid: u32, tid: Pid) -> bool {
    status_field(pid, tid, "State").is_some_and(|state| state.starts_with('D'))
}

/// Returns whether a thread has ended; the first one is listed until the others have, too.
pub(crate) fn is_ended(pid: u32, tid: Pid) -> bool {
    status_field(pid, tid, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// How a stop of one thread ended.
#[derive(Clone, Debug)]
pub(crate) enum Brief {
    /// It stands still, with these registers.
    Stopped(Box<Registers>),
    /// It has not stopped in time, and will: [`settle`] waits for that.
    Late(Requested),
    /// It has ended, or may not be stopped.
    No,
}

/// Stops a thread until the calling thread ends. A system call that the stop interrupts is begun
/// again.
pub(crate) fn stop_briefly(pid: u32, tid: Pid, limit: Duration) -> Brief {
    let requested = if is_in_kernel(pid, tid) { None } else { interrupt(pid, tid).unwrap_or(None) };
    requested.map_or(Brief::No, |requested| settle(&requested, Instant::now() + limit))
}

/// Waits until a thread stops whose stop was requested. If the calling thread ended before that, a
/// system call of it could report an interruption that no signal explains.
pub(crate) fn settle(requested: &Requested, deadline: Instant) -> Brief {
    let tid = requested.tid;
    loop {
        match ptrace::look(tid) {
            Ok(Some(Stop::Ended)) | Err(_) => return Brief::No,
            Ok(Some(stop)) => {
                let registers = Registers::of(tid).and_then(|registers| restart_wait(requested, stop, registers));
                return registers.map_or(Brief::No, |registers| Brief::Stopped(Box::new(registers)));
            }
            Ok(None) if Instant::now() >= deadline => return Brief::Late(*requested),
            Ok(None) => std::thread::sleep(Duration::from_micros(20)),
        }
    }
}

impl StoppedThreads {
    /// Returns the threads of a process, of which none is stopped yet.
    pub(crate) fn of(pid: u32) -> StoppedThreads {
        StoppedThreads { pid, threads: Vec::new(), stopping: Vec::new(), since: Instant::now() }
    }

    /// Stops all threads of the process within a time. A system call that a stop interrupts is
    /// begun again, so that the program sees no interruption.
    ///
    /// # Errors
    /// Why they are not stopped. The caller then calls [`StoppedThreads::release`].
    pub(crate) fn stop(&mut self, limit: Duration) -> Result<(), StopError> {
        self.since = Instant::now();
        let result = self.stop_all(Vec::new(), self.since + limit);
        if self.threads.is_empty() { result.and(Err(StopError::Ended)) } else { result }
    }

    /// Stops one thread of the process within a time, if it has not ended.
    ///
    /// # Errors
    /// Why it is not stopped. The caller then calls [`StoppedThreads::release`].
    pub(crate) fn stop_one(&mut self, tid: Pid, limit: Duration) -> Result<(), StopError> {
        self.since = Instant::now();
        if let Some(requested) = interrupt(self.pid, tid).map_err(StopError::Trace)? {
            self.stopping.push(requested);
            let stop = ptrace::wait(tid, self.since + limit)?;
            self.stopping.pop();
            self.add(&requested, stop)?;
        }
        Ok(())
    }

    /// Stops all threads of the process but one, which stands still already.
    ///
    /// # Errors
    /// As of [`StoppedThreads::stop`].
    pub(crate) fn stop_others(&mut self, than: Pid, limit: Duration) -> Result<(), StopError> {
        self.since = Instant::now();
        self.stop_all(vec![than], self.since + limit)
    }

    fn stop_all(&mut self, mut known: Vec<Pid>, deadline: Instant) -> Result<(), StopError> {
        // Threads that run may make others meanwhile.
        loop {
            let new: Vec<Pid> = list(self.pid).into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                return if self.stopping.is_empty() { Ok(()) } else { Err(StopError::Late) };
            }
            for tid in new {
                known.push(tid);
                self.stopping.extend(interrupt(self.pid, tid).map_err(StopError::Trace)?);
            }
            self.wait_for_stops(deadline)?;
            // Those that have not stopped may make others, unless they wait in the kernel.
            if !self.stopping.is_empty() && !self.late_ones_in_kernel().all {
                return Err(StopError::Late);
            }
        }
    }

    /// Waits until all threads have stopped, or the deadline. The rest stays in `stopping`.
    fn wait_for_stops(&mut self, deadline: Instant) -> Result<(), StopError> {
        let mut late = Vec::new();
        let mut result = Ok(());
        while let Some(requested) = self.stopping.pop() {
            match ptrace::wait(requested.tid, deadline).and_then(|stop| self.add(&requested, stop)) {
                Ok(()) => {}
                Err(StopError::Late) => late.push(requested),
                Err(error) => {
                    late.push(requested);
                    result = Err(error);
                    break;
                }
            }
        }
        self.stopping.append(&mut late);
        result
    }

    fn add(&mut self, requested: &Requested, stop: Stop) -> Result<(), StopError> {
        let tid = requested.tid;
        if stop == Stop::Ended {
            return Ok(());
        }
        if ptrace::is_dispatched(tid) {
            self.stopping.push(*requested);
            let _ = ptrace::resume(tid, Resume::Detach, stop.signal());
            self.stopping.pop();
            return Err(StopError::Dispatched);
        }
        // At once: the wait of a thread is then as it was, also if the others do not stop.
        let registers = Registers::of(tid).and_then(|registers| restart_wait(requested, stop, registers));
        match registers {
            Ok(registers) => self.threads.push(StoppedThread { tid, registers, stop }),
            Err(Errno::ESRCH) => {}
            Err(error) => return Err(StopError::Trace(error)),
        }
        Ok(())
    }

    /// Returns all threads whose stop was requested, also those that have not stopped yet.
    pub(crate) fn all(&self) -> Vec<Pid> {
        self.threads
            .iter()
            .map(|thread| thread.tid)
            .chain(self.stopping.iter().map(|requested| requested.tid))
            .collect()
    }

    /// Returns which of the threads that have not stopped in time wait in the kernel without being
    /// interruptible. They stop before they return to the program.
    pub(crate) fn late_ones_in_kernel(&self) -> LateInKernel {
        let count = self.stopping.iter().filter(|requested| is_in_kernel(self.pid, requested.tid)).count();
        LateInKernel { any: count > 0, all: count > 0 && count == self.stopping.len() }
    }

    /// Lets all threads go after a stop that failed: first those that are stopped, and then each
    /// other one when it has stopped. If it were let go before, its system call would report an
    /// interruption that no signal explains. Returns whether all of them have stopped by then.
    pub(crate) fn release(mut self) -> bool {
        let deadline = Instant::now() + STRAGGLER_TIMEOUT;
        let mut stopping = std::mem::take(&mut self.stopping).into_iter();
        let mut is_complete = true;
        loop {
            for thread in self.threads.drain(..) {
                // A thread that has ended needs no release.
                let _ = ptrace::resume(thread.tid, Resume::Detach, thread.stop.signal());
            }
            let Some(requested) = stopping.next() else { return is_complete };
            match ptrace::wait(requested.tid, deadline) {
                Ok(stop) => drop(self.add(&requested, stop)),
                Err(_) => is_complete = false,
            }
        }
    }

    /// Moves the threads that are in moved instructions to where these are now.
    pub(crate) fn relocate(&mut self, new: impl Fn(u64) -> Option<u64>) -> Result<(), StopError> {
        for thread in &mut self.threads {
            if let Some(pc) = new(thread.registers.pc()) {
                thread.registers = thread.registers.with_pc(pc);
                match thread.registers.set(thread.tid) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(StopError::Trace(error)),
                }
            }
        }
        Ok(())
    }

    /// Returns whether the memory that a thread may return to holds one of these addresses.
    pub(crate) fn refers_to(&self, memory: &Memory, is_inside: impl Fn(u64) -> bool) -> bool {
        self.threads.iter().any(|thread| {
            let own = &thread.registers;
            let mut registers = own.general().into_iter().chain([own.pc()]).map(|value| value & RETURN_ADDRESS);
            registers.any(&is_inside) || memory.stack_holds(own.sp(), own.thread_pointer(), &is_inside)
        })
    }
}

/// Lets the kernel begin a system call again that reports the stop as an interruption. Returns the
/// registers of the thread.
pub(crate) fn restart_wait(requested: &Requested, stop: Stop, registers: Registers) -> Result<Registers, Errno> {
    if !stop.is_interrupt() || !was_interrupted(&registers) {
        return Ok(registers);
    }
    let Some(registers) = registers.begun_again(requested.call.as_ref()) else { return Ok(registers) };
    registers.set(requested.tid)?;
    Ok(registers)
}

/// System calls that report an interruption by a stop, although no signal was handled (signal(7)).
/// Those from `read` on do so on sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`), which begins
/// again.
const INTERRUPTED: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
];

/// Returns whether a stop made a system call of the thread report an interruption.
fn was_interrupted(registers: &Registers) -> bool {
    registers.result().cast_signed() == -i64::from(libc::EINTR) && INTERRUPTED.contains(&registers.call_number())
}
