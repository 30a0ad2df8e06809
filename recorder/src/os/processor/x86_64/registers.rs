//! The general registers of a stopped thread.

use super::super::Waiting;
use nix::errno::Errno;
use nix::libc::{self, c_long, user_regs_struct};
use nix::sys::ptrace;
use nix::unistd::Pid;

/// The direction flag and the trap flag, which are off at the start of a function.
const FLAGS_OFF: u64 = 0x400 | 0x100;
/// The code segment of 64-bit programs.
const LONG_MODE: u64 = 0x33;
/// `NT_X86_XSTATE`: all registers but the general ones.
const EXTENDED: c_long = 0x202;

/// The floating-point and vector registers of a thread, as the kernel lays them out in a signal frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extended(pub(super) Vec<u8>);

impl Extended {
    /// Reads the registers of a stopped tracee.
    pub(crate) fn of(tid: Pid) -> nix::Result<Extended> {
        /// More than all known processors have.
        const MAX_BYTES: usize = 64 << 10;
        let mut bytes = vec![0u8; MAX_BYTES];
        let mut range = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel writes to the range only, and stores how many bytes it wrote.
        let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid.as_raw(), EXTENDED, &raw mut range) };
        Errno::result(result)?;
        bytes.truncate(range.iov_len);
        Ok(Extended(bytes))
    }

    /// Sets the registers of a stopped tracee.
    pub(crate) fn set(&self, tid: Pid) -> nix::Result<()> {
        let mut range = libc::iovec { iov_base: self.0.as_ptr().cast_mut().cast(), iov_len: self.0.len() };
        // SAFETY: the kernel reads the range only.
        let result = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid.as_raw(), EXTENDED, &raw mut range) };
        Errno::result(result).map(drop)
    }
}

/// The general registers of a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers(pub(super) user_regs_struct);

impl Registers {
    /// Reads the registers of a stopped tracee.
    pub(crate) fn of(tid: Pid) -> nix::Result<Registers> {
        ptrace::getregs(tid).map(Registers)
    }

    /// Sets the registers of a stopped tracee.
    pub(crate) fn set(self, tid: Pid) -> nix::Result<()> {
        ptrace::setregs(tid, self.0)
    }

    /// Returns the address of the next instruction.
    pub(crate) const fn pc(&self) -> u64 {
        self.0.rip
    }

    pub(crate) const fn sp(&self) -> u64 {
        self.0.rsp
    }

    pub(crate) const fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }

    /// Returns whether the thread runs code for this processor.
    pub(crate) const fn is_native(&self) -> bool {
        self.0.cs == LONG_MODE
    }

    /// Returns what a system call has returned, at its end.
    pub(crate) const fn result(&self) -> u64 {
        self.0.rax
    }

    /// Returns the number of the system call in which the thread is.
    pub(crate) const fn call_number(&self) -> i64 {
        self.0.orig_rax.cast_signed()
    }

    /// Returns whether the thread is at the start of a system call, and not at its end.
    pub(crate) const fn is_call_entry(&self) -> bool {
        self.0.rax.cast_signed() == -(libc::ENOSYS as i64)
    }

    /// Returns all of them that a program may keep a value in.
    pub(crate) fn general(&self) -> Vec<u64> {
        let own = &self.0;
        vec![
            own.rax, own.rbx, own.rcx, own.rdx, own.rsi, own.rdi, own.rbp, own.rsp, own.r8, own.r9, own.r10, own.r11,
            own.r12, own.r13, own.r14, own.r15,
        ]
    }

    /// Returns them with another next instruction.
    pub(crate) const fn with_pc(self, pc: u64) -> Registers {
        Registers(user_regs_struct { rip: pc, ..self.0 })
    }

    /// Returns them so that no system call is begun again.
    pub(crate) const fn without_restart(self) -> Registers {
        Registers(user_regs_struct { orig_rax: u64::MAX, ..self.0 })
    }

    /// Returns them with the address of the frame of `rt_sigreturn`.
    pub(crate) const fn with_sp(self, sp: u64) -> Registers {
        Registers(user_regs_struct { rsp: sp, ..self.0 })
    }

    /// Returns them at a system call whose instruction is at `at`.
    pub(crate) const fn at_call(self, at: u64, number: i64, arguments: [u64; 6]) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let (rax, orig_rax, eflags) = (number as u64, u64::MAX, self.0.eflags & !FLAGS_OFF);
        Registers(user_regs_struct { rip: at, rax, orig_rax, eflags, rdi, rsi, rdx, r10, r8, r9, ..self.0 })
    }

    /// Returns them so that a return leads to the restorer and its frame: `frame` is the address of
    /// the frame's first byte, which is the restorer's address.
    pub(crate) const fn returning(self, frame: u64, _context: u64, _restorer: u64) -> Registers {
        self.with_sp(frame)
    }

    /// Returns them at the start of a function of the library, which leaves by the frame at `context`.
    pub(crate) const fn at_function(self, function: u64, sp: u64, context: u64) -> Registers {
        let (rip, rsp, r12, eflags) = (function, sp, context, self.0.eflags & !FLAGS_OFF);
        Registers(user_regs_struct { rip, rsp, rbp: 0, rax: 0, r12, orig_rax: u64::MAX, eflags, ..self.0 })
    }

    /// Returns them so that the kernel begins the system call again that reports the stop as an
    /// interruption. If a signal arrives meanwhile and has a handler, the kernel reports the
    /// interruption as it would without the stop.
    pub(crate) const fn begun_again(self, _: Option<&Waiting>) -> Option<Registers> {
        /// `-ERESTARTNOHAND`, the kernel's own value for calls of this kind.
        const RESTART: i64 = -514;
        Some(Registers(user_regs_struct { rax: RESTART as u64, ..self.0 }))
    }

    /// Returns them for a thread that will not go on from this stop, but from a later one.
    pub(crate) const fn resumed_later(self, _: Option<&Waiting>) -> Registers {
        self
    }
}
