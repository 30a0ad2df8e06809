//! The processes that did not attach: which process started them, and which processes continued
//! with a program that is not recorded.
//!
//! There are two sources. The library in the starting process reports it immediately before
//! ([`wire::hello::Notice`]); this detects even the shortest process. And the programs of running
//! sessions are checked regularly; this detects an exec by a direct system call of the program.

use crate::os::regular_file::open_regular;
use crate::target::proc::{self, Process};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of the checks. A program that changed is checked once more before it counts: its hello
/// may not have arrived yet.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Delay of the check after a process announced that it continues with another program. On a machine
/// at full load it may get there late.
const ANNOUNCED_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of processes that may still attach late.
const MAX_LEFT: usize = 256;
/// Maximum number of generations that are searched for a known ancestor.
const GENERATIONS: usize = 32;

/// Returns the file that a process executes: device and inode, which neither a rename nor another
/// root directory changes.
pub fn program(pid: u32) -> Option<(u64, u64)> {
    std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()))
}

/// Returns the ancestors of a process, the nearest first.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(proc::parent(pid), |pid| proc::parent(*pid)).take_while(|pid| *pid > 1).take(GENERATIONS)
}

/// What a watched process has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The process executes another program, which did not attach.
    Left,
    /// The process announced another program and still executes its own: the other one could not be
    /// started.
    Stayed,
}

/// A process that may continue with another program.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    since: Instant,
    /// Whether its library announced it.
    is_announced: bool,
}

impl Leaving {
    fn new(is_announced: bool) -> Leaving {
        Leaving { since: Instant::now(), is_announced }
    }

    /// Returns the time until the process is to be checked.
    fn delay(self) -> Duration {
        let delay = if self.is_announced { ANNOUNCED_DELAY } else { CHECK_INTERVAL / 2 };
        delay.saturating_sub(self.since.elapsed())
    }
}

/// Watches the programs of running sessions for changes.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Processes that may continue with another program.
    leaving: HashMap<u32, Leaving>,
    /// Processes whose new program has not attached so far, with their starts and that program. It may
    /// be slow to load.
    left: Vec<(u32, u64, Vec<u8>)>,
    last_check: Option<Instant>,
}

impl Watch {
    /// Notes that a process announced that it continues with another program.
    pub(crate) fn leaves(&mut self, pid: u32) {
        self.leaving.insert(pid, Leaving::new(true));
    }

    /// Forgets a process that has ended or attached again. Returns whether it had announced that it
    /// continues with another program.
    pub(crate) fn forget(&mut self, pid: u32) -> bool {
        self.leaving.remove(&pid).is_some_and(|leaving| leaving.is_announced)
    }

    /// Notes that the program of a process counts as one that did not attach.
    pub(crate) fn has_left(&mut self, pid: u32, process: &Process) {
        self.left.truncate(MAX_LEFT - 1);
        self.left.insert(0, (pid, process.start_ticks, process.exe.clone()));
    }

    /// Returns whether it is that program which attaches after all, and not one that it continues
    /// with.
    pub(crate) fn comes_late(&mut self, pid: u32, process: &Process) -> bool {
        let is_it =
            |(of, start, exe): &(u32, u64, Vec<u8>)| (*of, *start, exe) == (pid, process.start_ticks, &process.exe);
        let found = self.left.iter().position(is_it);
        found.map(|index| self.left.remove(index)).is_some()
    }

    /// Returns the time until the next check, when a process may be leaving.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.leaving.values().map(|leaving| leaving.delay()).min()
    }

    /// Checks these processes, if it is time. Each is given with the program that it executed when
    /// it attached.
    pub(crate) fn look(&mut self, running: impl Iterator<Item = (u32, Option<(u64, u64)>)>) -> Vec<(u32, Change)> {
        let checks_all = self.last_check.is_none_or(|last| last.elapsed() >= CHECK_INTERVAL);
        if checks_all {
            self.last_check = Some(Instant::now());
        } else if self.deadline().is_none_or(|deadline| !deadline.is_zero()) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for (pid, before) in running {
            let leaving = self.leaving.get(&pid).copied();
            if leaving.is_some_and(|leaving| !leaving.delay().is_zero()) || (!checks_all && leaving.is_none()) {
                continue;
            }
            let has_disconnected = matches!((before, program(pid)), (Some(before), Some(now)) if before != now);
            match (leaving, has_disconnected) {
                (Some(Leaving { is_announced: true, .. }), false) => changes.push((pid, Change::Stayed)),
                (Some(_), true) => changes.push((pid, Change::Left)),
                (Some(_), false) => drop(self.leaving.remove(&pid)),
                (None, true) => drop(self.leaving.insert(pid, Leaving::new(false))),
                (None, false) => {}
            }
        }
        self.leaving.retain(|pid, _| !changes.iter().any(|(changed, _)| changed == pid));
        changes
    }
}

/// Returns why a program cannot load the library, judged by the head of its file; `None` if it can.
pub fn why_not(path: &Path) -> Option<String> {
    const PT_INTERP: u32 = 3;
    let mut file = open_regular(path).ok()?;
    let meta = file.metadata().ok()?;
    if meta.mode() & 0o6000 != 0 && meta.uid() != nix::unistd::geteuid().as_raw() {
        return Some("it runs with another user's rights (setuid), and then no library is preloaded".into());
    }
    let mut head = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut head).ok()?;
    if let Some(interpreter) = named_interpreter(&head) {
        return why_not(&interpreter);
    }
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if head.get(4) != Some(&2) {
        return Some("it is a 32-bit program".into());
    }
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    let is_static = (0..count).all(|row| number(table.saturating_add(row * size), 4) != Some(u64::from(PT_INTERP)));
    is_static.then(|| "it is statically linked".into())
}

/// The reason for a program that could have loaded the library and did not attach.
pub(crate) const NOT_LOADED: &str = "it did not load the library";

/// The reason for a program whose connection the recorder had to refuse.
pub(crate) const NO_DESCRIPTOR: &str = "its recorder had no descriptor left";

/// Returns what to do about a reason for which a program was not recorded.
pub fn remedy(why: &str) -> Option<&'static str> {
    let remedies = [
        ("written in Go", "ask Go's pprof about its heap; with cgo, what its C code allocates is recorded"),
        ("no symbol of an allocator", "keep the symbols of its allocator (do not strip it), or link it dynamically"),
        ("ptrace", "no debugger or sandbox may prevent that the recorder stops it; or link it dynamically"),
        ("memory for code", "nothing may forbid new code in it (SELinux's execmem, PR_SET_MDWE)"),
        ("refuses if it is stopped", "record a copy without these rights, as the user whom it becomes"),
        ("statically linked", "start it by heaptape record itself, or link it dynamically"),
        ("setuid", "record it as that user: the loader ignores LD_PRELOAD for others"),
        ("32-bit", "build it for 64 bits"),
        ("sanitizer", "build it without the sanitizer, which must be loaded first"),
        (NO_DESCRIPTOR, "raise the limit on open files (ulimit -n)"),
        (NOT_LOADED, "its environment must keep LD_PRELOAD and HEAPTAPE_SOCKET, and its loader must follow them"),
    ];
    remedies.iter().find(|(reason, _)| why.contains(reason)).map(|(_, remedy)| *remedy)
}

/// Returns the interpreter that the head of a script names.
fn named_interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let interpreter = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
    Some(PathBuf::from(OsString::from_vec(interpreter.to_vec())))
}

/// Returns the interpreter that the first line of a script names.
pub fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    open_regular(path).ok()?.take(4096).read_to_end(&mut head).ok()?;
    named_interpreter(&head)
}

/// Opens the file that is executed for a program: its own, or that of the interpreter of a script.
pub fn open_program(path: &Path) -> Option<File> {
    open_regular(&interpreter(path).unwrap_or_else(|| path.to_owned())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrecordable_programs_are_detected() {
        assert_eq!(why_not(Path::new("/bin/sh")), None);
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let path = folder.path().join("program");
        let mut elf = vec![0u8; 120];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
        for (bytes, why) in [(&elf[..], Some("statically")), (b"\x7fELF\x01", Some("32-bit")), (b"text", None)] {
            std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{error}"));
            let found = why_not(&path);
            assert_eq!(found.is_some(), why.is_some());
            assert!(found.unwrap_or_default().contains(why.unwrap_or_default()));
        }
        elf[64] = 3;
        std::fs::write(&path, &elf).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(why_not(&path), None);
        elf[32..40].fill(255);
        std::fs::write(&path, &elf).unwrap_or_else(|error| panic!("{error}"));
        assert!(why_not(&path).is_some());
    }

    #[test]
    fn remedy_fits_the_reason() {
        let of = |why| remedy(why).unwrap_or_default();
        assert!(of("it is statically linked, and is written in Go without C code").contains("pprof"));
        assert!(of("it is statically linked, and has no symbol of an allocator that is known").contains("symbols"));
        assert!(
            of("it is statically linked, and it cannot be stopped at its start (ptrace: EPERM)").contains("debugger")
        );
        let rights = "it is statically linked, and it runs with other rights (setuid), which the kernel refuses if it is \
                      stopped";
        assert!(of(rights).contains("record a copy"));
        assert!(of("it is statically linked, and the kernel refused memory for code (EACCES)").contains("execmem"));
        assert!(of("it is statically linked").contains("start it by heaptape record"));
        assert_eq!(remedy("it exploded"), None);
    }

    #[test]
    fn exec_of_another_program_is_detected() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 0.3; exec sleep 5"]).spawn().expect("sh");
        let (pid, before) = (child.id(), program(child.id()));
        assert!(ancestors(pid).next() == Some(std::process::id()) && before.is_some());
        let mut watch = Watch::default();
        assert_eq!(watch.look([(pid, before)].into_iter()), []);
        watch.leaves(pid);
        std::thread::sleep(2 * ANNOUNCED_DELAY);
        let before = program(pid);
        assert_eq!(watch.look([(pid, before)].into_iter()), [(pid, Change::Stayed)]);
        std::thread::sleep(CHECK_INTERVAL);
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.extend(watch.look([(pid, before)].into_iter()));
            std::thread::sleep(CHECK_INTERVAL / 2);
        }
        assert_eq!(seen.first(), Some(&(pid, Change::Left)));
        let _ = child.kill();
        let _ = child.wait();
    }
}
