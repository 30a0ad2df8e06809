//! What speaks against an attach, before anything is stopped.

use super::memory::Memory;
use super::threads::{self, status_field};
use super::{AttachError, tracer};
use crate::os::processor::{MACHINE, MACHINE_NAME};
use crate::os::sys;
use crate::target::{maps, proc};
use nix::unistd::Pid;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time for which a step of another command is waited for. The kernel ends it before.
const OTHER_STEP: Duration = Duration::from_secs(20);

/// The process, as its status names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// Process id in the process's own pid namespace.
    pub own_pid: u32,
    /// User id of the process.
    pub uid: u32,
    /// Number of bytes of address space that the process may still map.
    pub address_space: u64,
}

/// The mark of our own library in the names of mapped files, and what it says.
const OWN_MARK: (&str, &str) = (
    "libheaptape",
    "it has heaptape's library already: it is recorded, or was by a recorder that is gone (then start it again)",
);
/// Marks of other libraries.
const MARKS: [(&str, &str); 5] = [
    ("libasan", "it was built with a sanitizer, which replaces the allocator; build it without one"),
    ("libtsan", "it was built with a sanitizer, which replaces the allocator; build it without one"),
    ("liblsan", "it was built with a sanitizer, which replaces the allocator; build it without one"),
    ("vgpreload", "valgrind runs it; start it without valgrind"),
    ("librrpreload", "rr records it; start it without rr"),
];

/// Examines a process that is to be attached, and opens its memory.
///
/// # Errors
/// Why it cannot be attached, and what helps.
pub(crate) fn examine(pid: u32) -> Result<(Identity, Memory), AttachError> {
    let found = examine_for(pid, "start it with heaptape record instead")?;
    let text = maps::read(pid);
    let (mark, why) = OWN_MARK;
    match names_with(&String::from_utf8_lossy(&text), mark) {
        true => Err(AttachError::Unsuitable(why.into())),
        false => Ok(found),
    }
}

/// Returns whether the name of a mapped file begins with a mark.
fn names_with(maps: &str, mark: &str) -> bool {
    maps.lines().filter_map(|line| line.rsplit('/').next()).any(|name| name.starts_with(mark))
}

/// Examines a process, which may have the library already, and opens its memory.
///
/// # Errors
/// Why its threads may not be stopped, and what helps.
pub(crate) fn examine_recorded(pid: u32) -> Result<(Identity, Memory), AttachError> {
    examine_for(pid, "what holds what is read at its end instead (heaptape record --references)")
}

fn examine_for(pid: u32, instead: &str) -> Result<(Identity, Memory), AttachError> {
    let leader = Pid::from_raw(pid as i32);
    let field = |name| status_field(pid, leader, name);
    let refuse = |why: &str| Err(AttachError::Unsuitable(why.into()));
    let Some(state) = field("State") else { return Err(AttachError::NoProcess) };
    if state.starts_with(['Z', 'X']) {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        return match threads {
            0 | 1 => refuse("it has ended"),
            _ => refuse(&format!("its main thread has ended, and only others run (pthread_exit): {instead}")),
        };
    }
    if std::fs::read_link(format!("/proc/{pid}/exe")).is_err_and(|error| error.raw_os_error() == Some(2)) {
        return refuse("it is a thread of the kernel");
    }
    if pid == std::process::id() {
        return refuse("it is this process itself");
    }
    let tracer = || field("TracerPid").filter(|tracer| tracer != "0");
    let name_of = |tracer: &str| std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
    // One of a command that was killed finishes its step.
    let deadline = Instant::now() + OTHER_STEP;
    while tracer().is_some_and(|tracer| name_of(&tracer).trim() == tracer::NAME) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(tracer) = tracer() {
        let name = name_of(&tracer);
        let why = format!("{} (pid {tracer}) traces it already: end that first", name.trim());
        return Err(AttachError::Unsuitable(why));
    }
    let memory = Memory::of(pid).map_err(|error| no_right(pid, &error))?;
    match field("Seccomp").as_deref() {
        None | Some("0") => {}
        Some(_) => {
            return refuse(&format!(
                "it is in a sandbox (seccomp), which may end it for a system call of the library; {instead}"
            ));
        }
    }
    if field("x86_Thread_features").is_some_and(|features| features.contains("shstk")) {
        return refuse(&format!("it has a shadow stack, which is not supported; {instead}"));
    }
    if let Some(other) = waited_for_sharer(pid) {
        return refuse(&format!(
            "process {other} shares its memory (clone with CLONE_VM) and is not stopped with it: try again when that \
             one has ended, or {instead}"
        ));
    }
    check_program(pid)?;
    let text = maps::read(pid);
    let text = String::from_utf8_lossy(&text);
    for (mark, why) in MARKS {
        if names_with(&text, mark) {
            return refuse(why);
        }
    }
    let last_number = |text: String| text.split_ascii_whitespace().last().and_then(|last| last.parse().ok());
    let identity = Identity {
        own_pid: field("NSpid").and_then(last_number).unwrap_or(pid),
        uid: field("Uid").and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0),
        address_space: address_space(pid, field("VmSize")),
    };
    Ok((identity, memory))
}

/// Returns a process that shares the memory of another one and runs beside it. A child of `vfork` does
/// not: its parent's thread waits in the kernel meanwhile, as that of `posix_spawn` does.
pub(crate) fn sharer(pid: u32) -> Option<u32> {
    let size = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        text.split_ascii_whitespace().next().map(str::to_owned)
    };
    let own = size(pid)?;
    let waits = |pid: u32| threads::list(pid).into_iter().any(|tid| threads::is_in_kernel(pid, tid));
    proc::pids().find(|other| {
        let may_share = *other != pid && size(*other).as_ref() == Some(&own);
        may_share
            && sys::share_memory([pid, *other]) == Some(true)
            && !waits(pid)
            && !proc::parent(*other).is_some_and(waits)
    })
}

/// Waits a moment for the end of what shares the memory of a process: most such children execute a
/// program soon.
fn waited_for_sharer(pid: u32) -> Option<u32> {
    const LONGEST: Duration = Duration::from_millis(500);
    let since = Instant::now();
    loop {
        let found = sharer(pid)?;
        if since.elapsed() > LONGEST {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn check_program(pid: u32) -> Result<(), AttachError> {
    /// `EI_CLASS` of 64-bit programs.
    const CLASS: u8 = 2;
    let path = format!("/proc/{pid}/exe");
    let mut head = [0; 20];
    let file = std::fs::File::open(&path);
    let read = file.and_then(|file| std::os::unix::fs::FileExt::read_exact_at(&file, &mut head, 0));
    if read.is_err() || !head.starts_with(b"\x7fELF") {
        return Err(AttachError::Unsuitable("its program file cannot be read".into()));
    }
    if (head[4], u16::from_le_bytes([head[18], head[19]])) != (CLASS, MACHINE.0) {
        return Err(AttachError::Unsuitable(format!("it is not a 64-bit program for {MACHINE_NAME}")));
    }
    if crate::target::sanitizer::is_sanitized(Path::new(&path)) {
        let why = "it was built with a sanitizer, which replaces the allocator; build it without one";
        return Err(AttachError::Unsuitable(why.into()));
    }
    Ok(())
}

/// Returns why the memory of a process cannot be opened.
fn no_right(pid: u32, error: &std::io::Error) -> AttachError {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let is_ours = std::fs::metadata(format!("/proc/{pid}"))
        .is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == nix::unistd::geteuid().as_raw());
    let why = match scope.trim() {
        "3" => "the kernel forbids every ptrace (kernel.yama.ptrace_scope is 3) until it is started anew",
        "1" | "2" if is_ours => {
            "the kernel forbids ptrace of processes that are no children (kernel.yama.ptrace_scope): run this as root, \
             or set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
        }
        _ if nix::unistd::geteuid().is_root() => forbidden_to_root(),
        _ if is_ours => "it has other rights than this command (setuid, capabilities): run this as root",
        _ => match missing_right(&std::fs::read_to_string("/proc/self/status").unwrap_or_default()) {
            Some(missing) => {
                return AttachError::Unsuitable(format!("it belongs to another user: {missing} is missing ({error})"));
            }
            None => "it belongs to another user: run this as root",
        },
    };
    AttachError::Unsuitable(format!("{why} ({error})"))
}

/// Returns why root may not trace a process.
fn forbidden_to_root() -> &'static str {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    if effective.is_some_and(|set| set & 1 << CAP_SYS_PTRACE == 0) {
        "root has no CAP_SYS_PTRACE here, as in most containers: give it that capability, or attach from the host"
    } else {
        "the kernel forbids it to root as well: it is of another user namespace (attach from the host), or a security \
         module protects it"
    }
}

/// Returns the capability that a process with this `/proc/PID/status` lacks to write to the memory of
/// other users' processes, if it has the other one: with neither, it is no service that was given
/// rights on purpose. `/proc/PID/mem` is a file of the process's user, so it takes CAP_DAC_OVERRIDE,
/// too.
fn missing_right(status: &str) -> Option<&'static str> {
    const RIGHTS: [(u32, &str); 2] = [(1, "CAP_DAC_OVERRIDE"), (19, "CAP_SYS_PTRACE")];
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    let missing: Vec<_> = RIGHTS.iter().filter(|(number, _)| effective >> number & 1 == 0).collect();
    if let [(_, name)] = missing[..] { Some(name) } else { None }
}

/// Returns the bytes of address space that a process may still map; `u64::MAX` without a limit.
fn address_space(pid: u32, used: Option<String>) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
    let Some(limit) = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()) else {
        return u64::MAX;
    };
    let kilobytes = used.and_then(|used| used.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    limit.saturating_sub(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_capability_is_named() {
        let missing = |effective: &str| missing_right(&format!("Name:\tx\nCapEff:\t{effective}\nSeccomp:\t0\n"));
        // CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, as in the packaged unit.
        assert_eq!(missing("0000000000080004"), Some("CAP_DAC_OVERRIDE"));
        assert_eq!(missing("0000000000000002"), Some("CAP_SYS_PTRACE"));
        assert_eq!((missing("0000000000000000"), missing("0000000000080002")), (None, None));
    }
}
