//! Stops a process at its exec, and maps the standalone library into it, before the first
//! instruction of its program. Nothing traces the process afterwards. If this process is killed
//! meanwhile, the kernel kills the program too, whose registers are not its own then.
//!
//! System calls of the process are made by its vDSO's own instruction, so that no byte of the
//! program is changed for them. All its signals are blocked meanwhile; SIGSTOP is sent again at the
//! end.

use super::image::{Image, ImageError};
use super::program::{HeaderNeed, StaticProgram};
use crate::inject::maps::Maps;
use crate::os::processor::code::{INSTRUCTION_ALIGNMENT, SYSTEM_CALL};
use crate::os::processor::{Registers, page_bytes};
use crate::os::spawn;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use wire::area::PAGE;
use wire::standalone::LoadedProgram;

/// Why the library was not loaded, as the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The process cannot be traced.
    #[error("it cannot be stopped at its start (ptrace: {0})")]
    Trace(Errno),
    /// The process has ended, or its exec failed.
    #[error("it ended before its first instruction")]
    Ended,
    /// A signal stopped the process before its program began.
    #[error("a signal stopped it before its first instruction")]
    Stopped,
    /// The kernel refused something to the process.
    #[error("the kernel refused {what} ({error})")]
    Refused {
        /// What the kernel refused.
        what: &'static str,
        error: io::Error,
    },
    /// The process is not as expected.
    #[error("{0}")]
    Unexpected(&'static str),
    /// The library is not valid.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl From<Errno> for LoadError {
    fn from(error: Errno) -> LoadError {
        if error == Errno::ESRCH { LoadError::Ended } else { LoadError::Trace(error) }
    }
}

/// The options of every tracee.
const OPTIONS: Options = Options::PTRACE_O_TRACEEXEC.union(Options::PTRACE_O_TRACESYSGOOD);
/// `PTRACE_EVENT_STOP`: the stop that `PTRACE_INTERRUPT` requests, and that of a stopped process.
const EVENT_STOP: i32 = 128;

/// A thread, and later the process of its program, that is traced until it is dropped.
#[derive(Debug)]
pub(crate) struct Tracee {
    pid: Pid,
    process: Pid,
    /// Whether the thread may get the number of its process, which it does when it executes a
    /// program and is not the first thread.
    may_change_number: bool,
    /// Whether SIGSTOP was sent to it.
    has_stop: bool,
}

/// What a thread that is followed did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It executes another program, and is stopped before its first instruction.
    Executed,
    /// It has started this process, which is stopped before its own first instruction.
    Started(Pid),
    /// It executes no program, and starts no process.
    Neither,
}

/// Maximum number of stops of a thread that is followed: it makes a few system calls before its
/// exec.
const MAX_STOPS: u32 = 256;

impl Tracee {
    /// Begins to trace a child that will call exec.
    ///
    /// # Errors
    /// The kernel does not permit it, or something else traces the child.
    pub(crate) fn seize(pid: u32) -> Result<Tracee, LoadError> {
        let pid = Pid::from_raw(pid as i32);
        ptrace::seize(pid, OPTIONS | Options::PTRACE_O_EXITKILL)?;
        Ok(Tracee { pid, process: pid, may_change_number: false, has_stop: false })
    }

    /// Begins to trace a thread that will call exec, or start a process that does. If this process
    /// is killed before the exec, the thread goes on.
    ///
    /// # Errors
    /// The kernel does not permit it, or something else traces the thread.
    pub(crate) fn follow(process: u32, thread: u32, starts_process: bool) -> Result<Tracee, LoadError> {
        let (pid, process) = (Pid::from_raw(thread as i32), Pid::from_raw(process as i32));
        let children = Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
        ptrace::seize(pid, if starts_process { OPTIONS | children } else { OPTIONS })?;
        let may_change_number = !starts_process && pid != process;
        let tracee = Tracee { pid, process, may_change_number, has_stop: false };
        ptrace::interrupt(pid)?;
        Ok(tracee)
    }

    /// Follows the thread through its system calls until it executes a program, starts a process,
    /// or does neither. It is stopped then.
    ///
    /// # Errors
    /// It has ended, or a signal has stopped it.
    pub(crate) fn step(&mut self) -> Result<Step, LoadError> {
        let mut has_tried = false;
        for _ in 0..MAX_STOPS {
            match self.wait()? {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => return Ok(Step::Executed),
                WaitStatus::PtraceEvent(
                    _,
                    _,
                    libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE,
                ) => return Ok(Step::Started(Pid::from_raw(ptrace::getevent(self.pid)? as i32))),
                // The interrupt requested this stop. After a signal it stays stopped when nothing
                // traces it.
                WaitStatus::PtraceEvent(_, Signal::SIGTRAP, EVENT_STOP) => ptrace::syscall(self.pid, None)?,
                WaitStatus::PtraceEvent(_, _, EVENT_STOP) => return Err(LoadError::Stopped),
                WaitStatus::Stopped(_, signal) => ptrace::syscall(self.pid, signal)?,
                WaitStatus::PtraceSyscall(_) => {
                    let registers = Registers::of(self.pid)?;
                    let is_exec = [libc::SYS_execve, libc::SYS_execveat].contains(&registers.call_number());
                    if registers.is_call_entry() && has_tried && !is_exec {
                        return Ok(Step::Neither);
                    }
                    has_tried |= is_exec;
                    ptrace::syscall(self.pid, None)?;
                }
                _ => ptrace::syscall(self.pid, None)?,
            }
        }
        Ok(Step::Neither)
    }

    /// Returns the process that the thread has started, which is traced too.
    pub(crate) fn child(&self, pid: Pid) -> Tracee {
        Tracee { pid, process: pid, may_change_number: false, has_stop: false }
    }

    /// Lets a process run until it executes a program, and is stopped before its first instruction.
    pub(crate) fn run_to_exec(&mut self) -> Result<(), LoadError> {
        loop {
            match self.wait()? {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => return Ok(()),
                WaitStatus::Stopped(_, signal) => ptrace::cont(self.pid, signal)?,
                _ => ptrace::cont(self.pid, None)?,
            }
        }
    }

    /// Loads the library into the program that the process has just begun to execute. The program
    /// begins when the tracee is dropped.
    ///
    /// # Errors
    /// Why the program runs without the library. It is unchanged then.
    pub(crate) fn load_now(&mut self, program: &StaticProgram, image: &Image) -> Result<(), LoadError> {
        ptrace::setoptions(self.pid, OPTIONS | Options::PTRACE_O_EXITKILL)?;
        self.load_at_exec(program, image)
    }

    /// Returns the id of the process that the thread belongs to.
    pub(crate) fn process(&self) -> u32 {
        self.process.as_raw() as u32
    }

    /// Waits until the child executes the program, loads the library, and lets the child run.
    ///
    /// # Errors
    /// Why the program runs without the library. It is unchanged then.
    pub(crate) fn load(mut self, program: &StaticProgram, library: &[u8]) -> Result<(), LoadError> {
        let image = Image::read(library)?;
        self.wait_for_exec()?;
        self.load_at_exec(program, &image)
    }

    fn load_at_exec(&mut self, program: &StaticProgram, image: &Image) -> Result<(), LoadError> {
        let mask = self.swap_mask(spawn::ALL_SIGNALS)?;
        let loaded = self.stop_at_entry().and_then(|registers| {
            let entry = Memory::of(self.pid).and_then(|memory| self.map(program, image, registers, &memory));
            let first = entry.as_ref().map_or(registers.pc(), |entry| *entry);
            // No system call is to be restarted.
            registers.with_pc(first).without_restart().set(self.pid)?;
            entry.map(|_| ())
        });
        self.swap_mask(mask)?;
        loaded
    }

    fn swap_mask(&self, mask: spawn::Mask) -> Result<spawn::Mask, LoadError> {
        spawn::swap_mask_of(self.pid.as_raw() as u32, mask)
            .map_err(|error| LoadError::Refused { what: "a change of its signal mask", error })
    }

    /// Waits until the tracee stops. Its end is left to its parent, or to the caller of
    /// [`spawn::child_status`].
    fn wait(&mut self) -> Result<WaitStatus, LoadError> {
        let kinds = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
        loop {
            // Nobody who waits for the old number of a thread would notice the new one. This thread
            // has no other tracee, and no child.
            let found = match self.may_change_number {
                true => waitid(Id::All, kinds | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD),
                false => waitid(Id::Pid(self.pid), kinds),
            };
            match found {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Err(LoadError::Ended),
                Ok(status) => {
                    self.pid = status.pid().unwrap_or(self.pid);
                    return Ok(waitpid(self.pid, Some(WaitPidFlag::__WALL))?);
                }
            }
        }
    }

    fn wait_for_exec(&mut self) -> Result<(), LoadError> {
        loop {
            match self.wait()? {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => return Ok(()),
                // It stays stopped when nothing traces it.
                WaitStatus::PtraceEvent(_, _, EVENT_STOP) => return Err(LoadError::Stopped),
                WaitStatus::Stopped(_, signal) => ptrace::cont(self.pid, signal)?,
                _ => ptrace::cont(self.pid, None)?,
            }
        }
    }

    /// Goes on from the exec, in which the registers are not set yet, to the first instruction.
    fn stop_at_entry(&mut self) -> Result<Registers, LoadError> {
        ptrace::interrupt(self.pid)?;
        ptrace::cont(self.pid, None)?;
        loop {
            match self.wait()? {
                WaitStatus::PtraceEvent(_, _, EVENT_STOP) => return Ok(Registers::of(self.pid)?),
                other => {
                    self.note_stop(&other);
                    ptrace::cont(self.pid, None)?;
                }
            }
        }
    }

    /// Keeps a SIGSTOP, which cannot be blocked, for the end.
    fn note_stop(&mut self, status: &WaitStatus) {
        self.has_stop |= matches!(status, WaitStatus::Stopped(_, Signal::SIGSTOP));
    }

    /// Makes a system call in the process. `registers` are those of the process, and `at` is the
    /// address of an instruction for system calls.
    fn call(&mut self, at: u64, number: i64, arguments: [u64; 6], registers: Registers) -> Result<u64, Errno> {
        registers.at_call(at, number, arguments).set(self.pid)?;
        for _ in ["entry", "exit"] {
            loop {
                ptrace::syscall(self.pid, None)?;
                match self.wait() {
                    Ok(WaitStatus::PtraceSyscall(_)) => break,
                    Ok(other) => self.note_stop(&other),
                    Err(_) => return Err(Errno::ESRCH),
                }
            }
        }
        let result = Registers::of(self.pid)?.result();
        match result as i64 {
            error @ -4095..0 => Err(Errno::from_raw(-error as i32)),
            _ => Ok(result),
        }
    }

    /// Maps the library, and what it needs besides. Returns the address at which it begins.
    fn map(
        &mut self,
        program: &StaticProgram,
        image: &Image,
        registers: Registers,
        memory: &Memory,
    ) -> Result<u64, LoadError> {
        let at = memory.system_call(self.pid)?;
        let refused = |what| move |error: Errno| LoadError::Refused { what, error: error.into() };
        let (prot, flags) = (
            (libc::PROT_READ | libc::PROT_WRITE) as u64,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64,
        );
        let mut loaded = self.find(program)?;
        let (start, end) = (program.start.wrapping_add(loaded.bias), program.end.wrapping_add(loaded.bias));
        let table = match program.header_need() {
            HeaderNeed::Own { start, end } => {
                (loaded.unwind_header, loaded.unwind_header_end) =
                    (start.wrapping_add(loaded.bias), end.wrapping_add(loaded.bias));
                None
            }
            HeaderNeed::New { bytes } => Maps::of(self.pid.as_raw() as u32).take_near(start, end, bytes).map(|near| {
                (loaded.unwind_header, loaded.unwind_header_end) = (near, near + bytes);
                bytes.next_multiple_of(PAGE)
            }),
        };
        let base = self
            .call(at, libc::SYS_mmap, [0, image.memory_bytes, prot, flags, u64::MAX, 0], registers)
            .map_err(refused("memory for the library"))?;
        let result = (|| {
            if let Some(bytes) = table {
                let flags = flags | libc::MAP_FIXED_NOREPLACE as u64;
                let arguments = [loaded.unwind_header, bytes, prot, flags, u64::MAX, 0];
                let mapped = self.call(at, libc::SYS_mmap, arguments, registers);
                if mapped != Ok(loaded.unwind_header) {
                    return Err(LoadError::Unexpected("there is no free address range near to it"));
                }
                memory.write(loaded.unwind_header, &program.new_header(loaded.bias, loaded.unwind_header))?;
            }
            memory.write(base, &image.at(base, &loaded))?;
            for range in &image.protected {
                let prot = libc::PROT_READ | if range.is_code { libc::PROT_EXEC } else { 0 };
                let arguments = [base + range.offset, range.bytes, prot as u64, 0, 0, 0];
                self.call(at, libc::SYS_mprotect, arguments, registers).map_err(refused("memory for code"))?;
            }
            Ok(base + image.entry)
        })();
        if result.is_err() {
            let _ = self.call(at, libc::SYS_munmap, [base, image.memory_bytes, 0, 0, 0, 0], registers);
        }
        result
    }

    /// Finds where the program is mapped.
    fn find(&self, program: &StaticProgram) -> Result<LoadedProgram, LoadError> {
        let maps = Maps::of(self.pid.as_raw() as u32);
        let code = maps.code.iter().find(|code| code.inode == program.inode);
        let code = code.ok_or(LoadError::Unexpected("its file was replaced while it started"))?;
        let bias = program.bias(code.start, code.offset).ok_or(LoadError::Unexpected("its segments overlap"))?;
        let (start, end) = (program.start.wrapping_add(bias), program.end.wrapping_add(bias));
        Ok(LoadedProgram { start, end, bias, ..LoadedProgram::NONE })
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let signal = self.has_stop.then_some(Signal::SIGSTOP);
        // A process that has ended is not traced any more.
        let _ = ptrace::detach(self.pid, signal);
    }
}

/// The memory of a process that is stopped.
struct Memory(File);

impl Memory {
    fn of(pid: Pid) -> Result<Memory, LoadError> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
        file.map(Memory).map_err(|error| LoadError::Refused { what: "access to its memory", error })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        self.0.write_all_at(bytes, at).map_err(|error| LoadError::Refused { what: "access to its memory", error })
    }

    /// Returns the address of an instruction for system calls, in the vDSO.
    fn system_call(&self, pid: Pid) -> Result<u64, LoadError> {
        let none = LoadError::Unexpected("its vDSO makes no system call");
        let auxiliary = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut pairs = auxiliary.chunks_exact(16).map(|pair| (word(pair), word(pair.get(8..).unwrap_or_default())));
        let Some((_, vdso)) = pairs.find(|(kind, _)| *kind == libc::AT_SYSINFO_EHDR) else { return Err(none) };
        let mut bytes = vec![0; page_bytes() as usize];
        // The vDSO has two pages or three.
        for page in (0..3).map(|page| vdso + page * page_bytes()) {
            if self.0.read_exact_at(&mut bytes, page).is_err() {
                break;
            }
            let mut starts = bytes.windows(SYSTEM_CALL.len()).step_by(INSTRUCTION_ALIGNMENT as usize);
            if let Some(found) = starts.position(|code| code == SYSTEM_CALL) {
                let found = found as u64 * INSTRUCTION_ALIGNMENT;
                return Ok(page + found);
            }
        }
        Err(none)
    }
}
