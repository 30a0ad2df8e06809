//! Confines a process that reads files of unknown origin for a recorder or daemon: ELF and DWARF of
//! recorded programs. Whoever takes it over by such a file finds no capability, no other program to
//! execute, no process to trace, and bounded memory and CPU time.

use crate::os::sys;
use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

/// Environment variable with which a command of heaptape confines itself at its start.
pub const VARIABLE: &str = "HEAPTAPE_CONFINE";
/// Limit of the address space, in bytes.
const MAX_ADDRESS_SPACE: u64 = 8 << 30;
/// Limit of the CPU time of such a command, in seconds.
const MAX_CPU_SECONDS: u64 = 600;

/// System calls that a reader of files never makes. Those of the allocator, of threads and of the C
/// library differ from version to version, so a list of what is permitted would break with the next
/// one.
const FORBIDDEN: &[libc::c_long] = &[
    // Other programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_kcmp,
    libc::SYS_setpriority,
    // Namespaces, mounts and privileges.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_open_by_handle_at,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_personality,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    // A network.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Returns the filter of the forbidden calls, which fail with EPERM.
fn filter() -> Option<BpfProgram> {
    let rules: BTreeMap<i64, Vec<_>> = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().ok()?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, denied, arch).ok()?.try_into().ok()
}

/// Gives up all capabilities, and the system calls that nothing here needs. The process must have one
/// thread; those that it makes later are confined, too. What the kernel does not support is left
/// out.
pub(crate) fn drop_rights() {
    let _ = sys::drop_capabilities();
    if prctl::set_no_new_privs().is_ok() {
        let _ = filter().map(|filter| seccompiler::apply_filter(&filter));
    }
}

/// Confines this process if its environment asks for that.
pub fn confine_if_requested() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    for (resource, limit) in
        [(Resource::RLIMIT_AS, MAX_ADDRESS_SPACE), (Resource::RLIMIT_CPU, MAX_CPU_SECONDS), (Resource::RLIMIT_CORE, 0)]
    {
        let _ = setrlimit(resource, limit, limit);
    }
    drop_rights();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::process::Command;

    #[test]
    fn confined_thread_reads_files_and_executes_nothing() {
        assert!(Command::new("true").status().is_ok());
        let confined = std::thread::spawn(|| {
            drop_rights();
            let executed = Command::new("true").status().map_err(|error| error.kind());
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("its own state");
            let thread = std::thread::spawn(|| Command::new("true").status().map_err(|error| error.kind()));
            (executed, status, thread.join().expect("threads can be made"))
        });
        let (executed, status, by_child) = confined.join().expect("it ends");
        assert_eq!(executed.err(), Some(ErrorKind::PermissionDenied));
        assert_eq!(by_child.err(), Some(ErrorKind::PermissionDenied), "a thread of it is confined, too");
        for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        assert!(Command::new("true").status().is_ok(), "other threads are not");
    }
}
