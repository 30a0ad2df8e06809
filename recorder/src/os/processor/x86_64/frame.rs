//! A signal frame by which a thread finds its own way back to what it did, with all its registers:
//! `rt_sigreturn` restores them. If the recorder is killed while a thread runs something else, the
//! thread returns by this frame.
//!
//! The layout is that of Linux for x86-64: `struct ucontext` with its `sigcontext`
//! (`asm/ucontext.h`, `asm/sigcontext.h`), and the state as `xsave` stores it.

use super::super::Home;
use super::registers::{Extended, Registers};
use nix::libc::user_regs_struct;

/// Size of the part before the extended registers: `struct ucontext` (304 bytes), aligned.
const CONTEXT_BYTES: u64 = 320;
/// Offset of the general registers in the context.
const REGISTERS: usize = 40;
const SEGMENTS: usize = REGISTERS + 18 * 8;
/// Offset of the address of the extended registers.
const EXTENDED: usize = 224;
/// Offset of the signal mask.
const MASK: usize = 296;
/// The flags `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS` of the context.
const FLAGS: u64 = 7;
/// No valid mode of an alternate stack: the kernel leaves the thread's own one as it is.
const UNCHANGED_STACK: u64 = 0x7fff_ffff;
/// Offset of the kernel's description in the extended registers (`struct _fpx_sw_bytes`).
const DESCRIPTION: usize = 464;
/// Offset of the set of features in the header that follows the first 512 bytes.
const FEATURES: usize = 512;
/// `FP_XSTATE_MAGIC1`, at the start of the description.
const FIRST_MAGIC: u32 = 0x4650_5853;
/// `FP_XSTATE_MAGIC2`, after the last extended register.
const LAST_MAGIC: u32 = 0x4650_5845;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Address of the first byte.
    pub start: u64,
    /// Address of the context: the stack pointer at `rt_sigreturn`.
    pub context: u64,
    pub bytes: Vec<u8>,
}

/// Returns the registers of a thread that was stopped in a system call, so that it begins the call
/// again. Of any other thread they are as they were.
fn restarted(registers: user_regs_struct) -> user_regs_struct {
    /// `-ERESTARTSYS`, `-ERESTARTNOINTR`, `-ERESTARTNOHAND` and `-ERESTART_RESTARTBLOCK`.
    const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
    if registers.orig_rax as i64 >= 0 && RESTARTS.contains(&(registers.rax as i64)) {
        begun_again(registers)
    } else {
        user_regs_struct { orig_rax: u64::MAX, ..registers }
    }
}

/// Returns the registers with which a thread makes the system call again that was interrupted.
fn begun_again(registers: user_regs_struct) -> user_regs_struct {
    /// Size of the instruction `syscall`.
    const SYSTEM_CALL_BYTES: u64 = 2;
    let (rax, rip) = (registers.orig_rax, registers.rip.wrapping_sub(SYSTEM_CALL_BYTES));
    user_regs_struct { rax, rip, orig_rax: u64::MAX, ..registers }
}

/// Returns the frame of a thread that goes to these registers and never comes from there: it has no
/// extended registers, which are then those of a new program, and all signals are blocked.
pub(crate) fn one_way(end: u64, restorer: u64, registers: Registers) -> Frame {
    let home = Home { registers, extended: Extended::default(), mask: u64::MAX };
    let before = restorer.to_le_bytes();
    let context = end.wrapping_sub(CONTEXT_BYTES) & !63;
    let mut bytes = before.to_vec();
    bytes.extend(context_bytes(0, &home));
    Frame { start: context - before.len() as u64, context, bytes }
}

/// Returns the frame that ends at or below `end`, with the restorer's address in front of its context.
pub(crate) fn below(end: u64, restorer: u64, home: &Home) -> Frame {
    // The last magic follows, and the kernel's alignment of `xsave`.
    let extended_bytes = home.extended.0.len() as u64 + 4;
    let extended = end.wrapping_sub(extended_bytes) & !63;
    let context = extended - CONTEXT_BYTES;
    let before = restorer.to_le_bytes();
    let start = context - before.len() as u64;
    let mut bytes = before.to_vec();
    bytes.extend(context_bytes(extended, home));
    bytes.extend(described(&home.extended.0));
    Frame { start, context, bytes }
}

/// Returns the stack pointer of the code that a signal handler interrupted, if the word at `index` of a
/// stack is the address that the handler returns to.
pub(crate) fn interrupted_stack(stack: &[u64], index: usize, restorers: &[u64]) -> Option<u64> {
    /// Offset in the kernel's frame, from that word on, of the stack pointer.
    const OFFSET: usize = 8 + REGISTERS + 15 * 8;
    let is_return = stack.get(index).is_some_and(|word| restorers.contains(word));
    if is_return { stack.get(index + OFFSET / 8).copied() } else { None }
}

fn put(out: &mut [u8], at: usize, value: &[u8]) {
    if let Some(target) = out.get_mut(at..at + value.len()) {
        target.copy_from_slice(value);
    }
}

fn context_bytes(extended: u64, home: &Home) -> Vec<u8> {
    let mut out = vec![0; CONTEXT_BYTES as usize];
    let own = restarted(home.registers.0);
    let registers = [
        own.r8, own.r9, own.r10, own.r11, own.r12, own.r13, own.r14, own.r15, own.rdi, own.rsi, own.rbp, own.rbx,
        own.rdx, own.rax, own.rcx, own.rsp, own.rip, own.eflags,
    ];
    put(&mut out, 0, &FLAGS.to_le_bytes());
    put(&mut out, 24, &UNCHANGED_STACK.to_le_bytes());
    for (index, register) in registers.into_iter().enumerate() {
        put(&mut out, REGISTERS + 8 * index, &register.to_le_bytes());
    }
    // cs, gs, fs, ss: the two in between are not restored.
    put(&mut out, SEGMENTS, &(own.cs as u16).to_le_bytes());
    put(&mut out, SEGMENTS + 6, &(own.ss as u16).to_le_bytes());
    put(&mut out, EXTENDED, &extended.to_le_bytes());
    put(&mut out, MASK, &home.mask.to_le_bytes());
    out
}

/// Returns the extended registers with the description that the kernel expects in a frame.
fn described(extended: &[u8]) -> Vec<u8> {
    let mut out = extended.to_vec();
    // The features that the processor has, as ptrace reports them.
    let features: [u8; 8] =
        out.get(DESCRIPTION..DESCRIPTION + 8).and_then(|all| all.try_into().ok()).unwrap_or_default();
    let bytes = extended.len() as u32;
    if extended.len() > FEATURES {
        put(&mut out, DESCRIPTION, &FIRST_MAGIC.to_le_bytes());
        put(&mut out, DESCRIPTION + 4, &(bytes + 4).to_le_bytes());
        put(&mut out, DESCRIPTION + 8, &features);
        put(&mut out, DESCRIPTION + 16, &bytes.to_le_bytes());
    }
    out.extend(LAST_MAGIC.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> user_regs_struct {
        // SAFETY is not needed: all fields are numbers, and each has one.
        user_regs_struct {
            r15: 15,
            r14: 14,
            r13: 13,
            r12: 12,
            rbp: 6,
            rbx: 3,
            r11: 11,
            r10: 10,
            r9: 9,
            r8: 8,
            rax: 0,
            rcx: 1,
            rdx: 2,
            rsi: 4,
            rdi: 5,
            orig_rax: u64::MAX,
            rip: 0x40_1000,
            cs: 0x33,
            eflags: 0x246,
            rsp: 0x7fff_0000,
            ss: 0x2b,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        }
    }

    #[test]
    fn interrupted_call_begins_again() {
        let waits = user_regs_struct { rax: -512i64 as u64, orig_rax: 202, ..registers() };
        let again = restarted(waits);
        assert_eq!((again.rax, again.rip, again.orig_rax), (202, 0x40_0ffe, u64::MAX));
        let done = restarted(user_regs_struct { rax: 5, orig_rax: 0, ..registers() });
        assert_eq!((done.rax, done.rip), (5, 0x40_1000));
        let epoll = user_regs_struct { rax: -4i64 as u64, orig_rax: 232, ..registers() };
        let again = restarted(Registers(epoll).begun_again(None).expect("registers").0);
        assert_eq!((again.rax, again.rip), (232, 0x40_0ffe));
    }

    #[test]
    fn frame_has_the_layout_of_the_kernel() {
        let home = Home { registers: Registers(registers()), extended: Extended(vec![7; 832]), mask: 0x55 };
        let frame = below(0x7fff_0000 - 128, 0x0101_0101_0101_0101, &home);
        let word = |address: u64| {
            let at = (address - frame.start) as usize;
            u64::from_le_bytes(frame.bytes[at..at + 8].try_into().unwrap_or_default())
        };
        let extended = word(frame.context + 224);
        assert_eq!((extended % 64, word(frame.start), word(frame.context)), (0, 0x0101_0101_0101_0101, 7));
        assert_eq!(
            (word(frame.context + 40), word(frame.context + 168), word(frame.context + 296)),
            (8, 0x40_1000, 0x55)
        );
        assert_eq!(word(extended + 464) as u32, FIRST_MAGIC);
        assert_eq!((word(extended + 464) >> 32, word(extended + 480) as u32), (836, 832));
        assert_eq!(frame.bytes[frame.bytes.len() - 4..], LAST_MAGIC.to_le_bytes());
        assert!(frame.start + frame.bytes.len() as u64 <= 0x7fff_0000 - 128);
    }
}
