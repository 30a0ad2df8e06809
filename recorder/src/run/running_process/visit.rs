//! One thread of the process, which makes system calls for the recorder, and runs the library.
//!
//! While it does, a signal frame is ready by which it returns to what it did before
//! ([`crate::os::processor`]): on its own stack below the part that it uses, while nothing else is mapped,
//! and later in the library's memory. So it finds its way back also if the recorder is killed at
//! any time. All its signals are blocked meanwhile.

use super::AttachError;
use super::gadgets::Gadgets;
use super::memory::Memory;
use super::ptrace::{self as stops, EVENT_STOP, Resume, Stop, StopError};
use super::threads;
use crate::os::processor::{Extended, Home, Registers, frame};
use crate::os::spawn;
use crate::target::maps;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use std::time::{Duration, Instant};
use wire::standalone::ATTACHED_CALL;

/// The part of a stack below the stack pointer that code may use (System V ABI).
const RED_ZONE: u64 = 128;
/// The longest time of a visit.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of the library's memory after its file: a stack, and the frame.
pub(super) const STACK_BYTES: u64 = 128 << 10;
/// The space for the frame at the end of that.
const FRAME_BYTES: u64 = 64 << 10;
/// What a copy of the process shares with it: descriptors, so that none stays open through the copy
/// when the process has closed it. Its end sends no signal.
const COPY: i32 = libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SYSVSEM;

/// A thread that the recorder has stopped, and that works for it.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    tid: Pid,
    memory: &'a Memory,
    gadgets: Gadgets,
    home: Home,
    deadline: Instant,
    /// Address of the frame on its own stack, and of the context in it.
    frame_at: u64,
    context_at: u64,
    /// The child that it has made last.
    born: Option<Pid>,
    is_home: bool,
    /// When it was stopped.
    pub since: Instant,
}

impl<'a> Visit<'a> {
    /// Stops one thread of a process: the first one that is on its own stack.
    ///
    /// # Errors
    /// No thread can be stopped, or none is on its own stack.
    pub(super) fn begin(pid: u32, memory: &'a Memory, gadgets: Gadgets) -> Result<Visit<'a>, AttachError> {
        let (tids, mappings) = (threads::list(pid), StackMappings::of(pid));
        let mut last = StopError::Ended;
        for tid in tids {
            let since = Instant::now();
            match stop_one(pid, tid) {
                Ok(Some(_)) if stops::is_dispatched(tid) => {
                    let _ = ptrace::detach(tid, None);
                    return Err(StopError::Dispatched.into());
                }
                Ok(Some(registers)) => {
                    // One that waits at that very instruction would begin its own call again.
                    let is_there = registers.pc() == gadgets.system_call;
                    let is_usable = registers.is_native() && mappings.hold(&registers) && !is_there;
                    let visit = is_usable.then(|| Visit::of(tid, registers, memory, gadgets, since));
                    match visit {
                        Some(Ok(visit)) => return Ok(visit),
                        Some(Err(error)) => {
                            let _ = ptrace::detach(tid, None);
                            return Err(error);
                        }
                        None => {
                            let _ = ptrace::detach(tid, None);
                            last = StopError::Late;
                        }
                    }
                }
                Ok(None) => {}
                Err(error @ StopError::Trace(_)) => return Err(error.into()),
                Err(error) => last = error,
            }
        }
        Err(match last {
            StopError::Late => AttachError::NoThread,
            other => other.into(),
        })
    }

    fn of(
        tid: Pid,
        registers: Registers,
        memory: &'a Memory,
        gadgets: Gadgets,
        since: Instant,
    ) -> Result<Visit<'a>, AttachError> {
        let extended = Extended::of(tid).map_err(StopError::Trace)?;
        let pid = tid.as_raw() as u32;
        let refused = |error| AttachError::Refused { what: "a change of its signal mask", error };
        let mask = spawn::mask_of(pid).map_err(refused)?;
        let home = Home { registers, extended, mask };
        let frame = frame::below(registers.sp().wrapping_sub(RED_ZONE), gadgets.restorer, &home);
        memory.write(frame.start, &frame.bytes).map_err(AttachError::memory)?;
        let visit = Visit {
            tid,
            memory,
            gadgets,
            home,
            deadline: since + TIMEOUT,
            frame_at: frame.start,
            context_at: frame.context,
            born: None,
            is_home: false,
            since,
        };
        // From here on the thread finds its own way back, with the mask that it had. The mask is
        // changed after that: it would stay if the recorder were killed before.
        let returning = registers.with_pc(gadgets.restorer).with_sp(frame.context).without_restart();
        returning.set(tid).map_err(StopError::Trace)?;
        spawn::swap_mask_of(pid, spawn::ALL_SIGNALS).map_err(refused)?;
        Ok(visit)
    }

    /// Makes a system call.
    ///
    /// # Errors
    /// The error of the call, or `ESRCH` if the process has ended.
    pub(super) fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
        let Gadgets { system_call, restorer } = self.gadgets;
        let registers = self.home.registers.at_call(system_call, number, arguments);
        registers.returning(self.frame_at, self.context_at, restorer).set(self.tid)?;
        for _ in ["entry", "exit"] {
            self.system_call_stop().map_err(|_| Errno::ESRCH)?;
        }
        let result = Registers::of(self.tid)?.result();
        match result as i64 {
            error @ -4095..0 => Err(Errno::from_raw(-error as i32)),
            _ => Ok(result),
        }
    }

    /// Runs a function of the library until it is done. `stack` is the start of the memory for its
    /// stack and the frame.
    ///
    /// # Errors
    /// The process has ended, or the function failed in a way that it must not.
    pub(super) fn run(&mut self, function: u64, stack: u64) -> Result<(), AttachError> {
        let frame = frame::below(stack + STACK_BYTES, self.gadgets.restorer, &self.home);
        self.memory.write(frame.start, &frame.bytes).map_err(AttachError::memory)?;
        let registers = self.home.registers.at_function(function, stack + STACK_BYTES - FRAME_BYTES, frame.context);
        registers.set(self.tid).map_err(StopError::Trace)?;
        let mut is_exit = false;
        loop {
            self.system_call_stop()?;
            let registers = Registers::of(self.tid).map_err(StopError::Trace)?;
            if is_exit && registers.call_number() == i64::from(ATTACHED_CALL) {
                return Ok(());
            }
            is_exit = !is_exit;
        }
    }

    /// Returns the thread that is stopped, and its registers.
    pub(super) fn thread(&self) -> (Pid, Registers) {
        (self.tid, self.home.registers)
    }

    /// Lets the process make a child with the same memory, which stands still before its first
    /// instruction and ends when we do. Returns it with its number in the process's namespace.
    ///
    /// # Errors
    /// The kernel makes no further process, or has no memory for it.
    pub(super) fn fork(&mut self) -> Result<(Pid, u64), AttachError> {
        // If we are killed before the child is held, this is all that it does.
        let exits = self.home.registers.at_call(self.gadgets.system_call, libc::SYS_exit_group, [0; 6]);
        let frame = frame::one_way(self.frame_at, self.gadgets.restorer, exits);
        self.memory.write(frame.start, &frame.bytes).map_err(AttachError::memory)?;
        let options = Options::PTRACE_O_TRACESYSGOOD;
        ptrace::setoptions(self.tid, options | Options::PTRACE_O_TRACECLONE).map_err(StopError::Trace)?;
        let made = self.call(libc::SYS_clone, [COPY as u64, frame.start, 0, 0, 0, 0]);
        ptrace::setoptions(self.tid, options).map_err(StopError::Trace)?;
        let number = made.map_err(AttachError::no_copy)?;
        let child = self.born.take().ok_or(AttachError::Stop(StopError::Ended))?;
        let is_held = match stops::wait(child, self.deadline)? {
            Stop::Ended => false,
            _ => ptrace::setoptions(child, Options::PTRACE_O_EXITKILL).is_ok(),
        };
        if is_held { Ok((child, number)) } else { Err(StopError::Ended.into()) }
    }

    /// Runs the thread to the next start or end of a system call.
    fn system_call_stop(&mut self) -> Result<(), StopError> {
        let mut signal = 0;
        loop {
            stops::resume(self.tid, Resume::SystemCall, signal).map_err(StopError::Trace)?;
            match stops::wait(self.tid, self.deadline)? {
                Stop::Ended => return Err(StopError::Ended),
                Stop::SystemCall => return Ok(()),
                // A fault: the thread must not go on here.
                Stop::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGTRAP) => {
                    return Err(StopError::Ended);
                }
                Stop::Event { event: libc::PTRACE_EVENT_CLONE, .. } => {
                    self.born = ptrace::getevent(self.tid).ok().map(|tid| Pid::from_raw(tid as i32));
                    signal = 0;
                }
                // Only SIGSTOP cannot be blocked. It stops the other threads, and this one later.
                stop => signal = stop.signal(),
            }
        }
    }

    /// Lets the thread go on where it was.
    pub(super) fn end(mut self) -> Result<Duration, StopError> {
        self.go_home()?;
        Ok(self.since.elapsed())
    }

    fn go_home(&mut self) -> Result<(), StopError> {
        if std::mem::replace(&mut self.is_home, true) {
            return Ok(());
        }
        let traced = StopError::Trace;
        // At this stop, and at no other one, the kernel restarts the system call in which the
        // thread was.
        ptrace::interrupt(self.tid).map_err(traced)?;
        let mut signal = 0;
        loop {
            stops::resume(self.tid, Resume::Continue, signal).map_err(traced)?;
            match stops::wait(self.tid, self.deadline + TIMEOUT)? {
                Stop::Ended => return Err(StopError::Ended),
                Stop::Event { event: EVENT_STOP, .. } => break,
                stop => signal = if stop.signal() == libc::SIGSTOP { libc::SIGSTOP } else { 0 },
            }
        }
        self.home.extended.set(self.tid).map_err(traced)?;
        let mask = spawn::swap_mask_of(self.tid.as_raw() as u32, self.home.mask);
        self.home.registers.set(self.tid).map_err(traced)?;
        ptrace::detach(self.tid, None).map_err(traced)?;
        mask.map(drop).map_err(|_| StopError::Ended)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // A process that has ended has nowhere to go.
        let _ = self.go_home();
    }
}

/// Stops a thread in a place where it can work for the recorder: not while a signal is delivered.
fn stop_one(pid: u32, tid: Pid) -> Result<Option<Registers>, StopError> {
    let deadline = Instant::now() + Duration::from_secs(1);
    let Some(requested) = threads::interrupt(pid, tid).map_err(StopError::Trace)? else { return Ok(None) };
    loop {
        match stops::wait(tid, deadline)? {
            Stop::Ended => return Ok(None),
            stop @ Stop::Event { event: EVENT_STOP, .. } => {
                let registers = Registers::of(tid).map_err(StopError::Trace)?;
                let registers = threads::restart_wait(&requested, stop, registers).map_err(StopError::Trace)?;
                return Ok(Some(registers.resumed_later(requested.call.as_ref())));
            }
            stop => stops::resume(tid, Resume::Continue, stop.signal()).map_err(StopError::Trace)?,
        }
    }
}

/// The mappings that hold stacks which are known as such: of the main thread, and of threads made
/// by libc, whose thread pointer is at the end. On any other stack there may be no space for a
/// frame.
struct StackMappings(Vec<std::ops::Range<u64>>, Option<std::ops::Range<u64>>);

impl StackMappings {
    fn of(pid: u32) -> StackMappings {
        let text = maps::read(pid);
        let text = String::from_utf8_lossy(&text);
        let (mut writable, mut main) = (Vec::new(), None);
        for mapping in text.lines().filter_map(maps::parse) {
            let range = mapping.start..mapping.end;
            if mapping.name == "[stack]" {
                main = Some(range.clone());
            }
            if mapping.is_writable() {
                writable.push(range);
            }
        }
        StackMappings(writable, main)
    }

    fn hold(&self, registers: &Registers) -> bool {
        /// The frame with all registers of known processors, and the red zone.
        const NEEDED: u64 = 16 << 10;
        let (sp, thread_pointer) = (registers.sp(), registers.thread_pointer());
        let low = sp.saturating_sub(NEEDED);
        if self.1.as_ref().is_some_and(|main| main.contains(&sp)) {
            // The kernel enlarges it.
            return true;
        }
        self.0.iter().any(|range| {
            range.contains(&sp) && range.contains(&low) && range.contains(&thread_pointer) && thread_pointer > sp
        })
    }
}

/// Returns the flags and the protection of memory for the library.
pub(crate) fn library_memory() -> [u64; 2] {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    [protection as u64, flags as u64]
}
