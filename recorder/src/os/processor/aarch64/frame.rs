//! A signal frame by which a thread finds its own way back to what it did: `rt_sigreturn` restores its
//! registers. If the recorder is killed while a thread runs something else, the thread returns by this
//! frame. Of vector registers that are longer than 128 bits the rest is zero then.
//!
//! The layout is that of Linux for aarch64: `struct rt_sigframe` with `siginfo`, `ucontext` and its
//! `sigcontext` (`asm/ucontext.h`, `asm/sigcontext.h`).

use super::super::Home;
use super::registers::{Extended, Registers};

/// Size of the frame: `siginfo`, the part of `ucontext` before the registers, these, and 4096 bytes for
/// records, aligned.
const FRAME_BYTES: u64 = 128 + 176 + 288 + 4096;
const CONTEXT: usize = 128;
/// Offset of the mode of the alternate stack in the context.
const STACK_MODE: usize = CONTEXT + 24;
const MASK: usize = CONTEXT + 40;
/// Offset of x0 to x30, sp, pc and pstate.
const REGISTERS: usize = CONTEXT + 176 + 8;
/// Offset of the records.
const RECORDS: usize = CONTEXT + 176 + 288;
/// No valid mode of an alternate stack: the kernel leaves the thread's own one as it is.
const UNCHANGED_STACK: u32 = 0x7fff_ffff;
/// `FPSIMD_MAGIC`, and the size of this record.
const VECTORS_MAGIC: u32 = 0x4650_8001;
const VECTORS_BYTES: u32 = 528;
/// Where fpsr and fpcr are among the registers that ptrace gives: after 32 of 16 bytes.
const STATUS: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Address of the first byte.
    pub start: u64,
    /// The stack pointer at `rt_sigreturn`: the same address.
    pub context: u64,
    pub bytes: Vec<u8>,
}

/// Returns the frame of a thread that goes to these registers and never comes from there: its vector
/// registers are zeros, and all signals are blocked.
pub(crate) fn one_way(end: u64, restorer: u64, registers: Registers) -> Frame {
    below(end, restorer, &Home { registers, extended: Extended::default(), mask: u64::MAX })
}

/// Returns the frame that ends at or below `end`. The link register leads to the restorer.
pub(crate) fn below(end: u64, _restorer: u64, home: &Home) -> Frame {
    let start = end.wrapping_sub(FRAME_BYTES) & !15;
    let mut bytes = vec![0; FRAME_BYTES as usize];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(target) = bytes.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
    };
    let own = &home.registers;
    put(STACK_MODE, &UNCHANGED_STACK.to_le_bytes());
    put(MASK, &home.mask.to_le_bytes());
    for (index, register) in own.x.into_iter().chain([own.sp, own.pc, own.state]).enumerate() {
        put(REGISTERS + 8 * index, &register.to_le_bytes());
    }
    put(RECORDS, &VECTORS_MAGIC.to_le_bytes());
    put(RECORDS + 4, &VECTORS_BYTES.to_le_bytes());
    let vectors = &home.extended.vectors;
    put(RECORDS + 8, vectors.get(STATUS..STATUS + 8).unwrap_or_default());
    put(RECORDS + 16, vectors.get(..STATUS).unwrap_or_default());
    Frame { start, context: start, bytes }
}

/// Returns the stack pointer of the code that a signal handler interrupted, if the word at `index` of a
/// stack is the head of the vector registers in the kernel's frame: pstate, pc and sp are before it.
pub(crate) fn interrupted_stack(stack: &[u64], index: usize, _restorers: &[u64]) -> Option<u64> {
    const HEAD: u64 = (VECTORS_BYTES as u64) << 32 | VECTORS_MAGIC as u64;
    if stack.get(index) != Some(&HEAD) {
        return None;
    }
    stack.get(index.checked_sub(4)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::ptrace;
    use nix::sys::signal::Signal;
    use nix::sys::wait::waitpid;
    use nix::unistd::Pid;

    /// What the kernel shows of a real process is in the frame where `rt_sigreturn` looks for it.
    #[test]
    fn frame_has_the_layout_of_the_kernel() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = Pid::from_raw(child.id().cast_signed());
        let seized = ptrace::attach(pid).and_then(|()| waitpid(pid, None));
        let found = seized.and_then(|_| Ok((Registers::of(pid)?, Extended::of(pid)?)));
        let _ = ptrace::cont(pid, Signal::SIGKILL);
        let _ = child.wait();
        let Ok((registers, extended)) = found else { return };
        let home = Home { registers, extended, mask: 0x55 };
        let frame = below(0x7fff_0008, 0, &home);
        assert_eq!((frame.start % 16, frame.start, frame.bytes.len() as u64), (0, frame.context, FRAME_BYTES));
        let word = |at: usize| u64::from_le_bytes(frame.bytes[at..at + 8].try_into().unwrap_or_default());
        assert_eq!(
            (word(MASK), word(REGISTERS + 31 * 8), word(REGISTERS + 32 * 8)),
            (0x55, registers.sp, registers.pc)
        );
        let words: Vec<u64> =
            frame.bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let found: Vec<u64> = (0..words.len()).filter_map(|index| interrupted_stack(&words, index, &[])).collect();
        assert_eq!(found, [registers.sp]);
    }
}
