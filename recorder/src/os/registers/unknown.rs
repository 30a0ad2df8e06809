//! Another processor, of which nothing is stopped: the same names, so that the rest is compiled, and
//! an error if they are used.

use nix::errno::Errno;
use nix::unistd::Pid;

/// The registers of x86-64.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct user_regs_struct {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// Returns no registers.
///
/// # Errors
/// Always `ENOSYS`.
pub(crate) fn getregs(_: Pid) -> nix::Result<user_regs_struct> {
    Err(Errno::ENOSYS)
}

/// Sets no registers.
///
/// # Errors
/// Always `ENOSYS`.
pub(crate) fn setregs(_: Pid, _: user_regs_struct) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}
