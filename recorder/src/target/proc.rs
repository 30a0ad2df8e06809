//! Information about a process from `/proc`, with a limit on the bytes of each read. Data that
//! another process controls may be anything.

use crate::os::clock::{self, Clock, Moment};
use crate::os::processor::page_bytes;
use crate::os::sys;
use formats::recording::Exit;
use formats::tape::{END_EXEC, END_EXITED, END_GONE, END_RUNNING, END_SIGNALLED};
use rustc_hash::FxHashSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

/// Maximum length of a command line that is stored, in bytes.
const MAX_COMMAND_LINE: u64 = 64 << 10;
/// Maximum size of an environment that is read, in bytes.
const MAX_ENVIRONMENT: u64 = 4 << 20;

/// A process as it was when it attached.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Process id of the parent.
    pub ppid: u32,
    /// Path of the executable file.
    pub exe: Vec<u8>,
    /// Arguments, with the program's name first.
    pub argv: Vec<Vec<u8>>,
    /// Path of the working directory.
    pub cwd: Vec<u8>,
    /// The kernel's short name of the process (`comm`).
    pub comm: Vec<u8>,
    /// Start of the process in clock ticks after the boot.
    pub start_ticks: u64,
    /// Page faults of the children that it has waited for.
    pub child_faults: u64,
}

fn read(path: &str, most: u64) -> Option<Vec<u8>> {
    // Most of these files are shorter, and the kernel writes a part of them for each call.
    let mut bytes = Vec::with_capacity(most.min(4096) as usize);
    File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn link(path: &str) -> Vec<u8> {
    std::fs::read_link(path).map(|path| path.into_os_string().into_vec()).unwrap_or_default()
}

fn line(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    bytes
}

/// Returns the fields of `stat` after the name, which may contain anything, even blanks and
/// parentheses.
fn stat(pid: u32) -> Option<Vec<String>> {
    let bytes = read(&format!("/proc/{pid}/stat"), 4096)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

impl Process {
    /// Reads a process. Fields that cannot be read are empty.
    pub fn read(pid: u32) -> Process {
        let command = read(&format!("/proc/{pid}/cmdline"), MAX_COMMAND_LINE).unwrap_or_default();
        let mut argv: Vec<Vec<u8>> = command.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        argv.pop_if(|last| last.is_empty());
        let fields = stat(pid).unwrap_or_default();
        Process {
            ppid: number(&fields, PARENT).unwrap_or(0) as u32,
            exe: exe(pid),
            argv,
            cwd: link(&format!("/proc/{pid}/cwd")),
            comm: name(pid),
            start_ticks: number(&fields, START_TICKS).unwrap_or(0),
            child_faults: faults_of_children(&fields).unwrap_or(0),
        }
    }
}

/// Indexes of fields in what [`stat`] returns: proc_pid_stat(5) has them from 3 on.
const PARENT: usize = 1;
const CHILD_MINOR_FAULTS: usize = 8;
const CHILD_MAJOR_FAULTS: usize = 10;
const START_TICKS: usize = 19;
const GROUP: usize = 2;
const SESSION: usize = 3;
/// Addresses of code, stack, arguments and environment, which an exec changes: the kernel places the
/// stack at random, and without that the environment has another size.
const IMAGE: [usize; 5] = [23, 25, 45, 47, 48];

fn number(fields: &[String], index: usize) -> Option<u64> {
    fields.get(index)?.parse().ok()
}

/// Returns the path of the program of a process; nothing if it has ended, or may not be looked at.
pub fn exe(pid: u32) -> Vec<u8> {
    link(&format!("/proc/{pid}/exe"))
}

/// Returns the start of a process in clock ticks after the boot. An exec does not change it.
pub fn start_ticks(pid: u32) -> Option<u64> {
    number(&stat(pid)?, START_TICKS)
}

/// Returns the ID of this boot of the machine; empty if it is not known.
pub fn boot_id() -> &'static str {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    BOOT_ID.get_or_init(|| {
        let bytes = read("/proc/sys/kernel/random/boot_id", 64).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    })
}

/// Returns the host name.
pub fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(PARENT)?.parse().ok()
}

/// Where a process comes from, when it started, and what it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kin {
    /// Process id of the parent.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Session of processes.
    pub session: u32,
    /// Start of the process in clock ticks after the boot.
    pub start_ticks: u64,
    /// Addresses that a forked child has from its parent until it executes a program.
    pub image: [u64; 5],
}

/// Returns where a process comes from. It may be a thread's number, for which this is about the
/// thread's process.
pub fn kin(pid: u32) -> Option<Kin> {
    let fields = stat(pid)?;
    let pid = |index: usize| fields.get(index)?.parse().ok();
    let image = IMAGE.map(|index| number(&fields, index).unwrap_or(0));
    let start_ticks = number(&fields, START_TICKS)?;
    Some(Kin { parent: pid(PARENT)?, group: pid(GROUP)?, session: pid(SESSION)?, start_ticks, image })
}

/// Returns whether this is the number of a process, not of another thread in one.
pub(crate) fn is_process(pid: u32) -> bool {
    let status = read(&format!("/proc/{pid}/status"), 4096).unwrap_or_default();
    let status = String::from_utf8_lossy(&status).into_owned();
    status.lines().find_map(|line| line.strip_prefix("Tgid:")).is_some_and(|tgid| tgid.trim().parse() == Ok(pid))
}

/// Returns the process or thread number that the kernel gave last in this namespace; `None` if it
/// does not tell.
pub(crate) fn last_pid() -> Option<u32> {
    let text = String::from_utf8(read("/proc/loadavg", 256)?).ok()?;
    text.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Returns the highest number of a process.
pub(crate) fn most_pids() -> u32 {
    let text = read("/proc/sys/kernel/pid_max", 64).and_then(|text| String::from_utf8(text).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(1 << 15)
}

/// Returns how many reads were made by the children that a process has waited for, and by its threads
/// that have ended. The kernel itself reads at least twice to execute a program, so a child without a
/// read ran none. `None` if it is not known.
pub(crate) fn child_reads(pid: u32) -> Option<u64> {
    let reads = |path: &str| -> Option<u64> {
        let text = String::from_utf8(read(path, 4096)?).ok()?;
        text.lines().find_map(|line| line.strip_prefix("syscr:"))?.trim().parse().ok()
    };
    // The threads first: what one reads meanwhile makes the result larger, never smaller.
    let mut own = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let name = thread.ok()?.file_name();
        own += reads(&format!("/proc/{pid}/task/{}/io", name.to_str()?)).unwrap_or(0);
    }
    Some(reads(&format!("/proc/{pid}/io"))?.saturating_sub(own))
}

/// Returns the page faults of the children that a process has waited for, and of what these waited
/// for.
pub fn child_faults(pid: u32) -> Option<u64> {
    faults_of_children(&stat(pid)?)
}

fn faults_of_children(fields: &[String]) -> Option<u64> {
    Some(number(fields, CHILD_MINOR_FAULTS)? + number(fields, CHILD_MAJOR_FAULTS)?)
}

/// Returns the variables that a process was started with; none if they cannot be read.
pub fn environment(pid: u32) -> Vec<Vec<u8>> {
    let bytes = read(&format!("/proc/{pid}/environ"), MAX_ENVIRONMENT).unwrap_or_default();
    bytes.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Returns whether a file whose name contains this text is mapped in a process; `None` if that cannot
/// be read.
pub(crate) fn has_mapped(pid: u32, name: &str) -> Option<bool> {
    const MAX_MAPS: u64 = 10 << 20;
    let maps = read(&format!("/proc/{pid}/maps"), MAX_MAPS).filter(|maps| !maps.is_empty())?;
    Some(maps.windows(name.len()).any(|part| part == name.as_bytes()))
}

/// Returns the kernel's short name of a process (`comm`); empty if it has ended.
pub fn name(pid: u32) -> Vec<u8> {
    line(read(&format!("/proc/{pid}/comm"), 64).unwrap_or_default())
}

/// Returns the effective user id of a process.
pub fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// Returns a line of the `status` of a process.
fn status(pid: u32, name: &str) -> Option<String> {
    let text = read(&format!("/proc/{pid}/status"), 8192)?;
    String::from_utf8_lossy(&text).lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// Returns the effective user id of a process, also of one that nobody may look at.
pub fn effective_user(pid: u32) -> Option<u32> {
    status(pid, "Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the id of a process in its own pid namespace.
pub fn inner_pid(pid: u32) -> Option<u32> {
    status(pid, "NSpid:")?.split_ascii_whitespace().last()?.parse().ok()
}

/// Returns all processes that this one can see.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the processes that were started with this variable (`NAME=VALUE`) in their environment,
/// and their forked children.
pub fn with_variable(variable: &[u8]) -> impl Iterator<Item = u32> {
    pids().filter(move |pid| {
        let environment = read(&format!("/proc/{pid}/environ"), MAX_ENVIRONMENT).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable)
    })
}

/// Returns the processes whose program has this name: that of its file, or the kernel's short name.
pub fn with_name(name: &[u8]) -> Vec<u32> {
    let is_named = |pid: &u32| {
        let exe = link(&format!("/proc/{pid}/exe"));
        self::name(*pid) == name || exe.rsplit(|byte| *byte == b'/').next() == Some(name)
    };
    pids().filter(is_named).collect()
}

/// Returns whether a signal or a debugger has stopped a process.
pub fn is_stopped(pid: u32) -> bool {
    stat(pid).and_then(|fields| fields.first().map(|state| matches!(state.as_str(), "T" | "t"))).unwrap_or(false)
}

/// Returns whether a process was killed, and is there only until its last thread has ended, or until
/// its parent has waited for it.
pub fn is_zombie(pid: u32) -> bool {
    stat(pid).and_then(|fields| fields.first().map(|state| state == "Z")).unwrap_or(false)
}

/// Returns how long ago a process started; a program that it executed later is younger.
pub fn age(pid: u32) -> Option<Duration> {
    Some(age_of(start_ticks(pid)?))
}

/// Returns how long ago a process started, by the clock ticks between the boot and that.
pub(crate) fn age_of(start_ticks: u64) -> Duration {
    // The kernel reports start times in hundredths of a second.
    clock::since_boot().saturating_sub(Duration::from_millis(start_ticks.saturating_mul(10)))
}

pub fn thread_name(pid: u32, tid: u32) -> Option<Vec<u8>> {
    read(&format!("/proc/{pid}/task/{tid}/comm"), 64).map(line)
}

/// Returns the ids of a process's threads in its own pid namespace; `None` when they are not known
/// for sure. Calls `at_each` for each thread, since there may be many.
pub fn threads(pid: u32, is_namespaced: bool, at_each: impl Fn()) -> Option<FxHashSet<u32>> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut threads = FxHashSet::default();
    for entry in folder {
        at_each();
        let tid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        if !is_namespaced {
            threads.insert(tid);
            continue;
        }
        // A thread that ends between the listing and the read is not counted.
        if let Some(status) = read(&format!("/proc/{pid}/task/{tid}/status"), 8192) {
            let status = String::from_utf8_lossy(&status).into_owned();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            threads.insert(ids.split_ascii_whitespace().last()?.parse().ok()?);
        }
    }
    Some(threads)
}

/// The end of a process, and when it was seen: what is left of it may be written much later, on a disk
/// that is busy, and would seem to be a time in which it did nothing.
#[derive(Clone, Copy, Debug)]
pub struct SeenEnd {
    pub end: End,
    pub at: Moment,
}

impl SeenEnd {
    /// Returns an end that is seen now.
    pub fn now(end: End, clock: &Clock) -> SeenEnd {
        SeenEnd { end, at: Moment::now(clock) }
    }
}

/// How a process ended: one of the tape's `END_` numbers, and the exit code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// One of the `END_` numbers.
    pub reason: u8,
    /// Exit code or signal number.
    pub status: u32,
}

impl End {
    /// The process was still running.
    pub const RUNNING: End = End { reason: END_RUNNING, status: 0 };
    /// The process executed another program.
    pub const EXEC: End = End { reason: END_EXEC, status: 0 };
    /// The process has ended, in an unknown way.
    pub const GONE: End = End { reason: END_GONE, status: 0 };

    /// Converts a wait status.
    pub(crate) fn of_status(status: i32) -> End {
        let (code, signal) = (status >> 8 & 0xff, status & 0x7f);
        if signal == 0 {
            End { reason: END_EXITED, status: code as u32 }
        } else {
            End { reason: END_SIGNALLED, status: signal as u32 }
        }
    }

    /// Converts the end to its form in `recording.json`.
    pub fn exit(self) -> Exit {
        match self.reason {
            END_EXITED => Exit::Code(self.status),
            END_SIGNALLED => Exit::Signal(self.status),
            END_EXEC => Exit::Exec,
            END_RUNNING => Exit::Running,
            _ => Exit::Unknown,
        }
    }
}

/// Returns how a process has ended. The kernel keeps the status at the process's descriptor once it
/// has been waited for (from 6.15 on), and in `/proc` until then.
pub fn end(pid: u32, process: BorrowedFd<'_>) -> End {
    let waited = || sys::exit_status(process);
    let zombie = || {
        let fields = stat(pid)?;
        let status = fields.get(49)?.parse().ok()?;
        (fields.first()? == "Z").then_some(status)
    };
    waited().or_else(zombie).or_else(waited).map_or(End::GONE, End::of_status)
}

/// Returns the values of variables in a process's environment as it was at its start.
pub fn variable(pid: u32, names: &[&str]) -> Vec<Option<String>> {
    let bytes = read(&format!("/proc/{pid}/environ"), 4 * MAX_COMMAND_LINE).unwrap_or_default();
    let value = |name: &&str| {
        bytes.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        })
    };
    names.iter().map(value).collect()
}

/// Returns the control group of a process, and the systemd unit that it belongs to.
pub fn control_group(pid: u32) -> (String, Option<String>) {
    let text = read(&format!("/proc/{pid}/cgroup"), MAX_COMMAND_LINE).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned();
    let is_unit = |component: &&str| component.ends_with(".service") || component.ends_with(".scope");
    let unit = path.rsplit('/').find(is_unit).map(str::to_owned);
    (path, unit)
}

/// Returns the CPU time that a process has used, in clock ticks of the kernel (100 per second).
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let fields = stat(pid)?;
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentMemory {
    pub bytes: u64,
    /// What is neither of a file nor shared, in bytes.
    pub anonymous_bytes: u64,
}

/// Returns the resident memory of a process; `None` if it has ended.
pub fn resident_memory(pid: u32) -> Option<ResidentMemory> {
    let text = read(&format!("/proc/{pid}/statm"), 256)?;
    let mut pages = std::str::from_utf8(&text).ok()?.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (all, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    let bytes = |pages: u64| pages.saturating_mul(page_bytes());
    (all > 0).then(|| ResidentMemory { bytes: bytes(all), anonymous_bytes: bytes(all.saturating_sub(shared)) })
}

/// Returns a name that is safe in a path: `[A-Za-z0-9._-]`, no dot first, at most 64 bytes.
pub fn sanitized_name(name: &[u8]) -> String {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let clean = |byte: &u8| if is_allowed(byte) { char::from(*byte) } else { '_' };
    let name: String = name.iter().take(64).map(clean).collect();
    match name.as_bytes().first() {
        None => "_".into(),
        Some(b'.') => format!("_{}", &name[1..]),
        Some(_) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn names_become_safe_in_paths() {
        for (name, clean) in
            [("sqlite3", "sqlite3"), ("../../etc", "_._.._etc"), ("", "_"), ("a b\n", "a_b_"), (".x", "_x")]
        {
            assert_eq!(sanitized_name(name.as_bytes()), clean);
        }
        assert_eq!(sanitized_name(&[b'x'; 500]).len(), 64);
    }

    #[test]
    fn process_and_its_end_are_read() {
        let me = Process::read(std::process::id());
        assert!(!me.exe.is_empty() && !me.argv.is_empty() && me.ppid > 0 && !me.cwd.is_empty() && !me.comm.is_empty());
        for (script, wanted) in [
            ("exit 7", End { reason: END_EXITED, status: 7 }),
            ("kill -9 $$", End { reason: END_SIGNALLED, status: 9 }),
        ] {
            let mut child =
                Command::new("/bin/sh").args(["-c", script]).spawn().unwrap_or_else(|error| panic!("{error}"));
            let process = sys::process(child.id()).unwrap_or_else(|error| panic!("{error}"));
            let mut wait = [nix::poll::PollFd::new(sys::fd(&process), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut wait, nix::poll::PollTimeout::from(5000u16)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(end(child.id(), sys::fd(&process)), wanted, "while it is a zombie");
            let _ = child.wait();
            let after = end(child.id(), sys::fd(&process));
            assert!(after == wanted || after == End::GONE, "{after:?}");
        }
    }

    #[test]
    fn age_of_a_process_is_read() {
        let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap_or_else(|error| panic!("{error}"));
        let young = age(child.id()).unwrap_or(Duration::MAX);
        std::thread::sleep(Duration::from_millis(300));
        let older = age(child.id()).unwrap_or(Duration::MAX);
        let _ = child.kill();
        let _ = child.wait();
        assert!(young < older && older < Duration::from_secs(30), "{young:?} {older:?}");
        assert_eq!(age(u32::MAX), None);
    }

    #[test]
    fn threads_of_this_process_are_listed() {
        let tid = nix::unistd::gettid().as_raw() as u32;
        for is_namespaced in [false, true] {
            assert!(threads(std::process::id(), is_namespaced, || ()).is_some_and(|threads| threads.contains(&tid)));
        }
        assert_eq!(threads(u32::MAX, false, || ()), None);
    }
}
