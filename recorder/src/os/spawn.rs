//! Starts the recorded program like `exec` would have started it.
//!
//! The program's process is forked first and held before its `exec`. Its pid is therefore known
//! before the recording exists, and the recording has its final name from the beginning. Attributes
//! that `exec` preserves and `fork` does not are restored before the `exec`: the signal mask,
//! ignored signals, pending signals, closed standard streams, interval timers, the parent-death
//! signal and the subreaper flag.

use super::start_again;
use nix::errno::Errno;
use nix::libc;
use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A set of signals as the kernel stores it: bit N-1 is signal N.
pub(crate) type Mask = u64;

/// The set of all signals. The kernel removes SIGKILL and SIGSTOP from it.
pub(crate) const ALL_SIGNALS: Mask = Mask::MAX;

/// Bit of [`STATE_AT_START`]: SIGPIPE was ignored.
const IGNORED_SIGPIPE: u32 = 8;

/// Bits of [`STATE_AT_START`]: what the file mode creation mask forbade the owner. A mask of 0777 is
/// the program's; our own folders could not be opened with it.
const MASKED: u32 = 0o700;

/// State that we or Rust's runtime change before `main`. Bits 0 to 2 are set for standard streams
/// that were closed (the runtime opens `/dev/null` there), and [`IGNORED_SIGPIPE`] if SIGPIPE was
/// ignored (the runtime always ignores it). [`MASKED`] is the third.
static STATE_AT_START: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = before_main;

/// Runs before `main`. glibc passes what `main` gets in C; musl passes nothing.
extern "C" fn before_main(_: c_int, arguments: *const *const c_char, environment: *const *const c_char) {
    // First: a preloaded sanitizer sees the calls below, and is not ready for them.
    if cfg!(target_env = "gnu") {
        // SAFETY: glibc's lists end in a null pointer, and stay as they are until `main` runs.
        unsafe { start_again::without_sanitizers(arguments, environment) };
    }
    let mut bits = 0;
    for number in 0..3 {
        // SAFETY: the call takes integers only; F_GETFD changes nothing.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            bits |= 1 << number;
        }
    }
    if is_ignored(libc::SIGPIPE) {
        bits |= IGNORED_SIGPIPE;
    }
    // SAFETY: the calls take integers only.
    unsafe {
        let mask = libc::umask(0o777);
        libc::umask(mask & !MASKED);
        bits |= mask & MASKED;
    }
    STATE_AT_START.store(bits, Relaxed);
}

/// Returns whether this process ignores a signal.
pub(crate) fn is_ignored(signal: c_int) -> bool {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is writable; no new action is passed, so that nothing changes.
    unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN }
}

/// Sets the disposition of a signal to default or ignored.
pub(crate) fn set_ignored(signal: c_int, ignored: bool) {
    let handler = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither disposition runs code of ours.
    unsafe { libc::signal(signal, handler) };
}

/// Returns the signals by which a fault ends a process with a core dump.
pub(crate) fn fatal_signals() -> Mask {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT].map(bit).iter().sum()
}

/// Replaces the signal mask of the calling thread and returns the old one. It covers all 64
/// signals, also those that libc reserves for itself.
pub(crate) fn swap_mask(mask: Mask) -> Mask {
    let mut old: Mask = 0;
    let size = size_of::<Mask>();
    // SAFETY: both pointers are to 8 bytes, the size that is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut old, size) };
    old
}

/// Returns the signal mask of a thread that the caller traces and that is stopped.
pub(crate) fn mask_of(tid: u32) -> io::Result<Mask> {
    // <linux/ptrace.h>; the address is the size of a mask.
    const PTRACE_GETSIGMASK: u32 = 0x420a;
    let (mut mask, size, tid): (Mask, _, _) = (0, size_of::<Mask>(), tid as libc::pid_t);
    // SAFETY: the pointer is to 8 bytes, the size that is passed.
    Errno::result(unsafe { libc::ptrace(PTRACE_GETSIGMASK, tid, size, &raw mut mask) })?;
    Ok(mask)
}

/// Replaces the signal mask of a thread that the caller traces and that is stopped. Returns the old
/// one.
pub(crate) fn swap_mask_of(tid: u32, mask: Mask) -> io::Result<Mask> {
    const PTRACE_SETSIGMASK: u32 = 0x420b;
    let old = mask_of(tid)?;
    let (size, tid) = (size_of::<Mask>(), tid as libc::pid_t);
    // SAFETY: the pointer is to 8 bytes, the size that is passed.
    Errno::result(unsafe { libc::ptrace(PTRACE_SETSIGMASK, tid, size, &raw const mask) })?;
    Ok(old)
}

/// Returns a descriptor from which the pending signals of the caller are read.
pub(crate) fn signal_file(mask: Mask) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the pointer is to 8 bytes, the size that is passed.
    let file = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, size_of::<Mask>(), flags) };
    let file = Errno::result(file)?;
    // SAFETY: the kernel has just given the descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(file as c_int) })
}

/// Sends a signal with the bytes of a `siginfo_t`. Without them the kernel names this process as
/// the sender.
pub(crate) fn send(process: BorrowedFd<'_>, signal: c_int, information: Option<&[u8; 128]>) {
    let information = information.map_or(ptr::null(), |bytes| bytes.as_ptr());
    // SAFETY: the pointer is null or points to the 128 bytes of a `siginfo_t`. For a process that
    // has ended the call returns ESRCH.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, information, 0) };
}

pub(crate) fn send_to(pid: u32, signal: c_int) {
    if let Ok(pid @ 1..) = libc::pid_t::try_from(pid) {
        // SAFETY: plain numbers.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Waits until a signal that this process has received has reached every process of its group. The
/// kernel holds the lock of the process table while it signals a group, and `setpgid` takes the
/// same lock before it finds that no process has this number.
pub(crate) fn wait_for_group_signals() {
    // SAFETY: plain numbers; the pid is above the kernel's limit.
    unsafe { libc::setpgid(libc::pid_t::MAX, 1) };
}

/// Stops this process as this signal would, until it is continued. All signals are blocked before
/// and after.
pub(crate) fn stop(signal: c_int) {
    let signal = if is_ignored(signal) { libc::SIGSTOP } else { signal };
    send_to(std::process::id(), signal);
    swap_mask(ALL_SIGNALS & !bit(signal));
    swap_mask(ALL_SIGNALS);
}

pub(crate) fn bit(signal: c_int) -> Mask {
    if (1..=64).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// Returns the wait status of a child, without waiting; `None` if it has not changed.
pub(crate) fn child_status(pid: u32) -> io::Result<Option<c_int>> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let found = unsafe { libc::waitpid(pid as libc::pid_t, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    Ok((Errno::result(found)? != 0).then_some(status))
}

/// Waits for the end of a child and discards its status.
pub(crate) fn reap(pid: u32) {
    // SAFETY: a null pointer asks for no status.
    while unsafe { libc::waitpid(pid as libc::pid_t, ptr::null_mut(), 0) } < 0 && Errno::last() == Errno::EINTR {}
}

/// Starts a child that blocks all signals, does nothing, and ends when this process ends.
pub(crate) fn idle_child() -> io::Result<u32> {
    let parent = std::process::id();
    // SAFETY: the child calls only functions that may be called after a fork in a process with
    // threads.
    match Errno::result(unsafe { libc::fork() })? {
        0 => {
            swap_mask(ALL_SIGNALS);
            end_with_parent(parent);
            // SAFETY: these calls change nothing but the child's own descriptors; they come before
            // the wait, so that no pipe stays open.
            unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
            loop {
                // SAFETY: waits for a signal; all are blocked.
                unsafe { libc::pause() };
            }
        }
        child => Ok(child as u32),
    }
}

/// Makes the kernel kill this process when its parent ends.
fn end_with_parent(parent: u32) {
    // SAFETY: plain numbers; a parent that has ended before is found by the comparison.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent as libc::pid_t {
            libc::_exit(127);
        }
    }
}

/// Closes the descriptors that this process inherited for the program alone: a reader must see the
/// end of a pipe when the program closes it. Standard error stays open, and standard output if
/// `stdout` is set.
pub(crate) fn close_inherited(inherited: &[c_int], stdout: bool) {
    for &number in inherited {
        // SAFETY: these descriptors were open before this process opened any, and no value here
        // owns them.
        unsafe { libc::close(number) };
    }
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdin(&null);
        if !stdout {
            let _ = nix::unistd::dup2_stdout(&null);
        }
    }
}

/// Returns the descriptors above standard error with which this process was started.
pub(crate) fn inherited() -> Vec<c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|number| *number > 2);
    // SAFETY: plain numbers; only descriptors that stay open over `exec` can have been inherited.
    let stays = |number: &c_int| unsafe { libc::fcntl(*number, libc::F_GETFD) } == 0;
    numbers.filter(stays).collect()
}

/// A program with its arguments and environment, in the form that `exec` requires.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

fn text(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

impl Program {
    /// Creates a program that is searched for in PATH, with the caller's environment.
    ///
    /// # Errors
    /// `InvalidInput` when the path or an argument contains a null byte.
    pub(crate) fn new(path: &OsStr, arguments: &[OsString]) -> io::Result<Program> {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        let arguments = std::iter::once(path).chain(arguments.iter().map(OsString::as_os_str));
        let arguments = arguments.map(text).collect::<io::Result<_>>()?;
        let mut environment = Vec::new();
        // Entries without `=`, and the order of the entries, belong to the program too, so the list
        // is copied as it is. SAFETY: libc's list ends in a null pointer, its strings in 0; this
        // process does not change its environment.
        unsafe {
            let mut entry = environ;
            while !entry.is_null() && !(*entry).is_null() {
                environment.push(std::ffi::CStr::from_ptr(*entry).to_owned());
                entry = entry.add(1);
            }
        }
        start_again::restore(&mut environment);
        Ok(Program { path: text(path)?, arguments, environment })
    }

    /// Sets an environment variable of the program.
    ///
    /// # Errors
    /// `InvalidInput` when the value contains a null byte.
    pub(crate) fn set(&mut self, name: &str, value: &OsStr) -> io::Result<()> {
        let prefix = format!("{name}=");
        let mut entry = OsString::from(&prefix);
        entry.push(value);
        let entry = CString::new(entry.into_vec()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match self.environment.iter_mut().find(|old| old.to_bytes().starts_with(prefix.as_bytes())) {
            Some(old) => *old = entry,
            None => self.environment.push(entry),
        }
        Ok(())
    }

    /// Replaces this process by the program. Returns only if that fails.
    pub(crate) fn exec(&self, attributes: &ExecAttributes) -> io::Error {
        let (arguments, environment) = (list(&self.arguments), list(&self.environment));
        attributes.start_timers();
        attributes.restore();
        // SAFETY: both lists end in a null pointer, and `self` keeps their strings.
        unsafe { libc::execvpe(self.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        io::Error::last_os_error()
    }
}

fn list(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Attributes of a process that `exec` preserves and `fork` does not.
#[derive(Clone, Debug)]
pub(crate) struct ExecAttributes {
    mask: Mask,
    ignores_child: bool,
    started: u32,
    timers: [libc::itimerval; 3],
    parent_death: c_int,
    is_subreaper: bool,
}

const TIMERS: [c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

impl ExecAttributes {
    /// Reads the attributes of this process and stops its interval timers, which are the program's.
    /// `mask` and `ignores_child` (SIGCHLD) are those with which this process was started.
    pub(crate) fn capture(mask: Mask, ignores_child: bool) -> ExecAttributes {
        // SAFETY: all zeros is a valid value of these plain structures.
        let (mut timers, none): ([libc::itimerval; 3], libc::itimerval) = unsafe { std::mem::zeroed() };
        for (kind, timer) in TIMERS.into_iter().zip(&mut timers) {
            // SAFETY: both pointers are to timer values.
            unsafe { libc::syscall(libc::SYS_setitimer, kind, &raw const none, ptr::from_mut(timer)) };
        }
        let (mut parent_death, mut subreaper): (c_int, c_int) = (0, 0);
        // SAFETY: both requests write one int.
        unsafe {
            libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut parent_death);
            libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut subreaper);
        }
        // The first process of a pid namespace adopts its orphans; the program is to do that.
        let is_subreaper = subreaper != 0 || std::process::id() == 1;
        ExecAttributes {
            mask,
            ignores_child,
            started: STATE_AT_START.load(Relaxed),
            timers,
            parent_death,
            is_subreaper,
        }
    }

    /// Starts the interval timers: they run from the fork on. An alarm that comes before the `exec`
    /// stays pending.
    fn start_timers(&self) {
        for (kind, timer) in TIMERS.into_iter().zip(&self.timers) {
            if timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0 {
                let none = ptr::null_mut::<libc::itimerval>();
                // SAFETY: the first pointer is to a timer value, the second is null.
                unsafe { libc::syscall(libc::SYS_setitimer, kind, ptr::from_ref(timer), none) };
            }
        }
    }

    fn restore(&self) {
        // SAFETY: plain numbers, about the child itself.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, c_long::from(self.parent_death));
            if self.is_subreaper {
                libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as c_long);
            }
            for number in (0..3).filter(|number| self.started & 1 << number != 0) {
                libc::close(number);
            }
            libc::umask(libc::umask(0o777) & 0o777 | self.started & MASKED);
        }
        set_ignored(libc::SIGPIPE, self.started & IGNORED_SIGPIPE != 0);
        set_ignored(libc::SIGCHLD, self.ignores_child);
        swap_mask(self.mask);
    }
}

/// A child that waits before its `exec` until [`HeldChild::release`]. It is killed if it is dropped
/// before.
#[derive(Debug)]
pub(crate) struct HeldChild {
    pub pid: u32,
    channel: Option<OwnedFd>,
}

impl HeldChild {
    /// Forks the program's process. The caller must have blocked all signals.
    pub(crate) fn start(program: &Program, attributes: &ExecAttributes) -> io::Result<HeldChild> {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
        let (channel, child_channel) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let (arguments, environment) = (list(&program.arguments), list(&program.environment));
        let parent = std::process::id();
        // SAFETY: the child calls only functions that may be called after a fork in a process with
        // threads; `execvpe` works on its stack.
        let child = unsafe { libc::fork() };
        if child != 0 {
            return Ok(HeldChild { pid: Errno::result(child)? as u32, channel: Some(channel) });
        }
        swap_mask(ALL_SIGNALS);
        end_with_parent(parent);
        attributes.start_timers();
        let mut go = 0u8;
        // SAFETY: one byte is read into a buffer of one byte; all signals are blocked, so that
        // nothing interrupts the call.
        if unsafe { libc::read(child_channel.as_raw_fd(), (&raw mut go).cast::<c_void>(), 1) } == 1 {
            attributes.restore();
            // SAFETY: both lists end in a null pointer, and `program` keeps their strings.
            unsafe { libc::execvpe(program.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
            let error = (Errno::last_raw() as u32).to_le_bytes();
            // SAFETY: four bytes are written from four bytes.
            unsafe { libc::write(child_channel.as_raw_fd(), error.as_ptr().cast::<c_void>(), error.len()) };
        }
        // SAFETY: ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(127) }
    }

    /// Lets the child execute the program, and calls `meanwhile`, before it waits until that has
    /// happened.
    ///
    /// # Errors
    /// The error of `exec`.
    pub(crate) fn release(mut self, meanwhile: impl FnOnce()) -> io::Result<()> {
        let Some(channel) = self.channel.take() else { return Ok(()) };
        // The end of a child that was killed meanwhile is seen by the caller, which waits for the
        // child.
        let _ = nix::unistd::write(&channel, b"g");
        meanwhile();
        let mut error = [0; 4];
        loop {
            match nix::unistd::read(&channel, &mut error) {
                Err(Errno::EINTR) => {}
                Ok(4) => {
                    reap(self.pid);
                    return Err(io::Error::from_raw_os_error(u32::from_le_bytes(error) as i32));
                }
                _ => return Ok(()),
            }
        }
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        if self.channel.take().is_some() {
            send_to(self.pid, libc::SIGKILL);
            reap(self.pid);
        }
    }
}
