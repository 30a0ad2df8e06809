//! The general registers of a stopped thread.
//!
//! The kernel prepares the restart of an interrupted system call before it stops the thread: the next
//! instruction is the call's `svc` again, with the first argument in x0. When the call reports the
//! interruption instead, the argument is overwritten, and ptrace does not show it. So a thread's call is
//! noted from `/proc` before the stop is requested ([`Waiting`]).

use super::super::Waiting;
use nix::errno::Errno;
use nix::libc::{self, c_int, c_void};
use nix::unistd::Pid;

/// `NT_PRSTATUS`: x0 to x30, sp, pc, pstate (`struct user_pt_regs`).
const GENERAL: c_int = 1;
/// `NT_ARM_TLS`: the thread pointer.
const THREAD_POINTER: c_int = 0x401;
/// `NT_PRFPREG`: the vector registers of 128 bits.
const VECTORS: c_int = 2;
/// `NT_ARM_SVE`: the vector registers of all lengths.
const LONG_VECTORS: c_int = 0x405;
/// Bits of pstate: the type of the last branch (BTI), and single steps.
const STATE_OFF: u64 = 0b11 << 10 | 1 << 21;
/// pstate of a program that is not for 64 bits.
const IS_32_BITS: u64 = 1 << 4;
const INSTRUCTION_BYTES: u64 = 4;

/// The general registers of a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(super) x: [u64; 31],
    pub(super) sp: u64,
    pub(super) pc: u64,
    pub(super) state: u64,
    pub(super) thread_pointer: u64,
    /// Whether the kernel has kept the rest of a wait, e.g. of a sleep.
    continues_wait: bool,
}

/// Reads a set of registers. Returns the number of bytes.
fn read(tid: Pid, set: c_int, out: &mut [u8]) -> nix::Result<usize> {
    let mut range = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    // SAFETY: the kernel writes to the range only, and stores how many bytes it wrote.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid.as_raw(), set as usize, &raw mut range) };
    Errno::result(result).map(|_| range.iov_len)
}

fn write(tid: Pid, set: c_int, bytes: &[u8]) -> nix::Result<()> {
    let mut range = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
    // SAFETY: the kernel reads the range only.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid.as_raw(), set as usize, &raw mut range) };
    Errno::result(result).map(drop)
}

/// The vector registers of a stopped thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extended {
    /// Those of 128 bits, as ptrace gives them.
    pub(super) vectors: Vec<u8>,
    /// All of them, where the processor has longer ones.
    long: Vec<u8>,
}

impl Extended {
    /// Reads the registers of a stopped tracee.
    pub(crate) fn of(tid: Pid) -> nix::Result<Extended> {
        /// More than all known processors have.
        const MAX_BYTES: usize = 64 << 10;
        let get = |set| {
            let mut bytes = vec![0; MAX_BYTES];
            let count = read(tid, set, &mut bytes)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        let long: nix::Result<_> = get(LONG_VECTORS);
        Ok(Extended { vectors: get(VECTORS)?, long: long.unwrap_or_default() })
    }

    /// Sets the registers of a stopped tracee.
    pub(crate) fn set(&self, tid: Pid) -> nix::Result<()> {
        if self.long.is_empty() { write(tid, VECTORS, &self.vectors) } else { write(tid, LONG_VECTORS, &self.long) }
    }
}

impl Registers {
    /// Reads the registers of a stopped tracee.
    pub(crate) fn of(tid: Pid) -> nix::Result<Registers> {
        let mut bytes = [0; 34 * 8];
        let mut pointer = [0; 8];
        read(tid, GENERAL, &mut bytes)?;
        read(tid, THREAD_POINTER, &mut pointer)?;
        let word = |number: usize| bytes.as_chunks::<8>().0.get(number).map_or(0, |word| u64::from_le_bytes(*word));
        Ok(Registers {
            x: std::array::from_fn(word),
            sp: word(31),
            pc: word(32),
            state: word(33),
            thread_pointer: u64::from_le_bytes(pointer),
            continues_wait: false,
        })
    }

    /// Sets the registers of a stopped tracee, but for the thread pointer.
    pub(crate) fn set(self, tid: Pid) -> nix::Result<()> {
        let mut x = self.x;
        if self.continues_wait {
            // As the kernel does it itself at the stop in which the call was interrupted.
            x[8] = libc::SYS_restart_syscall as u64;
        }
        let words = x.into_iter().chain([self.sp, self.pc, self.state]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        write(tid, GENERAL, &bytes)
    }

    /// Returns the address of the next instruction.
    pub(crate) const fn pc(&self) -> u64 {
        self.pc
    }

    pub(crate) const fn sp(&self) -> u64 {
        self.sp
    }

    pub(crate) const fn thread_pointer(&self) -> u64 {
        self.thread_pointer
    }

    /// Returns whether the thread runs code for this processor.
    pub(crate) const fn is_native(&self) -> bool {
        self.state & IS_32_BITS == 0
    }

    /// Returns what a system call has returned, at its end.
    pub(crate) const fn result(&self) -> u64 {
        self.x[0]
    }

    /// Returns the number of the system call in which the thread is.
    pub(crate) const fn call_number(&self) -> i64 {
        self.x[8].cast_signed()
    }

    /// Returns whether the thread is at the start of a system call, and not at its end. The kernel tells
    /// a tracer by x7.
    pub(crate) const fn is_call_entry(&self) -> bool {
        self.x[7] == 0
    }

    /// Returns all of them that a program may keep a value in.
    pub(crate) fn general(&self) -> Vec<u64> {
        self.x.to_vec()
    }

    /// Returns them with another next instruction.
    pub(crate) const fn with_pc(self, pc: u64) -> Registers {
        Registers { pc, continues_wait: false, ..self }
    }

    /// Returns them so that no system call is begun again: at another instruction the kernel begins none.
    pub(crate) const fn without_restart(self) -> Registers {
        Registers { state: self.state & !STATE_OFF, ..self }
    }

    /// Returns them with the address of the frame of `rt_sigreturn`.
    pub(crate) const fn with_sp(self, sp: u64) -> Registers {
        Registers { sp, ..self }
    }

    /// Returns them at a system call whose instruction is at `at`.
    pub(crate) const fn at_call(self, at: u64, number: i64, arguments: [u64; 6]) -> Registers {
        let mut x = self.x;
        let [first, second, third, fourth, fifth, sixth] = arguments;
        (x[0], x[1], x[2], x[3], x[4], x[5], x[8]) = (first, second, third, fourth, fifth, sixth, number as u64);
        Registers { x, pc: at, state: self.state & !STATE_OFF, continues_wait: false, ..self }
    }

    /// Returns them so that a return leads to the restorer and its frame, whose context is at `context`.
    pub(crate) const fn returning(self, _frame: u64, context: u64, restorer: u64) -> Registers {
        let mut x = self.x;
        x[30] = restorer;
        Registers { x, sp: context, ..self }
    }

    /// Returns them at the start of a function of the library, which leaves by the frame at `context`.
    pub(crate) const fn at_function(self, function: u64, sp: u64, context: u64) -> Registers {
        let mut x = self.x;
        (x[20], x[29], x[30]) = (context, 0, 0);
        Registers { x, pc: function, sp, state: self.state & !STATE_OFF, continues_wait: false, ..self }
    }

    /// Returns whether the thread is still in the call in which it was before the stop: at its
    /// instruction again, or behind it.
    fn is_in(&self, waiting: &Waiting) -> bool {
        let is_same = self.x.get(1..6) == waiting.arguments.get(1..) && self.call_number() == waiting.number;
        is_same && (self.pc == waiting.next || self.pc.wrapping_add(INSTRUCTION_BYTES) == waiting.next)
    }

    /// Returns them so that the system call begins again that reports the stop as an interruption; `None`
    /// if its first argument is not known. A signal that arrives meanwhile is handled before.
    pub(crate) fn begun_again(self, waiting: Option<&Waiting>) -> Option<Registers> {
        let waiting = waiting.filter(|waiting| self.is_in(waiting) && self.pc == waiting.next)?;
        let mut x = self.x;
        x[0] = waiting.arguments[0];
        Some(Registers { x, pc: self.pc.wrapping_sub(INSTRUCTION_BYTES), ..self })
    }

    /// Returns them for a thread that will not go on from this stop, but from a later one: a wait with a
    /// time goes on for what is left of it.
    pub(crate) fn resumed_later(self, waiting: Option<&Waiting>) -> Registers {
        let keeps_rest = |waiting: &Waiting| match waiting.number {
            libc::SYS_nanosleep => true,
            libc::SYS_clock_nanosleep => waiting.arguments[1] & libc::TIMER_ABSTIME as u64 == 0,
            libc::SYS_futex => waiting.arguments[3] != 0,
            _ => false,
        };
        let is_kept = |waiting: &Waiting| {
            self.is_in(waiting) && self.pc.wrapping_add(INSTRUCTION_BYTES) == waiting.next && keeps_rest(waiting)
        };
        Registers { continues_wait: waiting.is_some_and(is_kept), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits in a call at 0x1000, and how the kernel shows it after the stop.
    fn waits(number: i64, pc: u64, first: u64) -> (Registers, Waiting) {
        let mut x = [7; 31];
        (x[0], x[1], x[3], x[8]) = (first, 0, 0x5000, number as u64);
        let registers =
            Registers { x, sp: 0x7000, pc, state: 0x1000 | 1 << 11, thread_pointer: 0, continues_wait: false };
        let arguments = [3, 0, 7, 0x5000, 7, 7];
        (registers, Waiting { number, arguments, next: 0x1004 })
    }

    #[test]
    fn interrupted_call_gets_its_first_argument_again() {
        let (registers, waiting) = waits(libc::SYS_epoll_pwait, 0x1004, -4i64 as u64);
        let again = registers.begun_again(Some(&waiting)).expect("it was noted");
        assert_eq!((again.pc, again.x[0], &again.x[1..]), (0x1000, 3, &registers.x[1..]));
        assert_eq!(registers.begun_again(None), None);
        let other = Waiting { next: 0x2000, ..waiting };
        assert_eq!(registers.begun_again(Some(&other)), None);
    }

    #[test]
    fn only_the_rest_of_a_sleep_is_slept() {
        let kept = |number, pc| {
            let (registers, waiting) = waits(number, pc, 3);
            registers.resumed_later(Some(&waiting)).continues_wait
        };
        assert!(kept(libc::SYS_clock_nanosleep, 0x1000) && kept(libc::SYS_futex, 0x1000));
        assert!(!kept(libc::SYS_read, 0x1000) && !kept(libc::SYS_futex, 0x1004));
    }

    #[test]
    fn a_call_and_a_function_begin_without_a_landing_pad() {
        let (registers, _) = waits(libc::SYS_read, 0x1000, 3);
        let call = registers.at_call(0x2000, libc::SYS_mmap, [1, 2, 3, 4, 5, 6]).returning(0, 0x6000, 0x3000);
        assert_eq!((call.pc, call.sp, call.x[8], call.x[30], call.state), (0x2000, 0x6000, 222, 0x3000, 0x1000));
        assert_eq!(call.x[..6], [1, 2, 3, 4, 5, 6]);
        let function = registers.at_function(0x2000, 0x8000, 0x9000);
        assert_eq!((function.pc, function.sp, function.x[20], function.x[29]), (0x2000, 0x8000, 0x9000, 0));
    }
}
