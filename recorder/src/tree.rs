//! The process tree beyond what attached: who made whom, and who went on with a program that nobody
//! records.
//!
//! Two sources. The library in a maker says so right before ([`wire::hello::Notice`]): that catches
//! the shortest process. And programs of running sessions are looked at now and then: that catches
//! an exec by a system call of the program's own.

use crate::process;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often programs are looked at. One that changed is looked at once more before it counts: its
/// hello may be on the way.
const LOOK: Duration = Duration::from_millis(500);
/// How soon after its maker said that a process goes on with another program.
const SOON: Duration = Duration::from_millis(20);
/// Generations that are looked through for a known one.
const GENERATIONS: usize = 32;

/// The file that a process runs: device and inode, which neither a rename nor another root changes.
pub fn program(pid: u32) -> Option<(u64, u64)> {
    std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()))
}

/// The processes above one, the nearest first.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(process::parent(pid), |pid| process::parent(*pid))
        .take_while(|pid| *pid > 1)
        .take(GENERATIONS)
}

/// What a process that was watched has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It runs another program, which did not attach.
    Left,
    /// It was said to go on with another program, and goes on with its own: that could not be
    /// started.
    Stayed,
}

/// Watches the programs of running sessions.
#[derive(Debug, Default)]
pub struct Watch {
    /// Processes that are leaving: since when, and whether their library said so.
    leaving: HashMap<u32, (Instant, bool)>,
    looked: Option<Instant>,
}

impl Watch {
    /// A process said that it goes on with another program.
    pub fn leaves(&mut self, pid: u32) {
        self.leaving.insert(pid, (Instant::now(), true));
    }

    /// The process has ended, or attached anew. Whether it had said that it goes on with another
    /// program.
    pub fn forget(&mut self, pid: u32) -> bool {
        self.leaving.remove(&pid).is_some_and(|(_, said)| said)
    }

    /// Time until the next look, when somebody is leaving.
    pub fn deadline(&self) -> Option<Duration> {
        let wait = |said: bool| if said { SOON } else { LOOK / 2 };
        self.leaving.values().map(|(since, said)| wait(*said).saturating_sub(since.elapsed())).min()
    }

    /// Looks at these processes, given with the program that they ran when they attached, if it is
    /// time.
    pub fn look(&mut self, running: impl Iterator<Item = (u32, Option<(u64, u64)>)>) -> Vec<(u32, Change)> {
        let all = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        if all {
            self.looked = Some(Instant::now());
        } else if self.deadline().is_none_or(|deadline| !deadline.is_zero()) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for (pid, before) in running {
            let leaving = self.leaving.get(&pid).copied();
            let is_due = |(since, said): (Instant, bool)| since.elapsed() >= if said { SOON } else { LOOK / 2 };
            if leaving.is_some_and(|leaving| !is_due(leaving)) || (!all && leaving.is_none()) {
                continue;
            }
            let has_left = matches!((before, program(pid)), (Some(before), Some(now)) if before != now);
            match (leaving, has_left) {
                (Some((_, true)), false) => changes.push((pid, Change::Stayed)),
                (Some(_), true) => changes.push((pid, Change::Left)),
                (Some((_, false)), false) => drop(self.leaving.remove(&pid)),
                (None, true) => drop(self.leaving.insert(pid, (Instant::now(), false))),
                _ => {}
            }
        }
        self.leaving.retain(|pid, _| !changes.iter().any(|(changed, _)| changed == pid));
        changes
    }
}

/// Whether a program's name is meant by a pattern: `*` stands for anything.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(head) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// Why a program cannot load the library, from the head of its file.
pub fn why_not(path: &Path) -> Option<String> {
    const PT_INTERP: u32 = 3;
    let mut file = File::open(path).ok()?;
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

/// Why a program that could have loaded the library did not attach.
pub const NOT_LOADED: &str = "it did not load the library";

/// What helps against a reason for which a program was not recorded.
pub fn remedy(why: &str) -> Option<&'static str> {
    let remedies = [
        ("statically linked", "link it dynamically: nothing can be preloaded into a static program"),
        ("setuid", "record it as that user: the loader ignores LD_PRELOAD for others"),
        ("32-bit", "build it for 64 bits"),
        ("sanitizer", "build it without the sanitizer, which must be loaded first"),
        (NOT_LOADED, "its environment must keep LD_PRELOAD and HEAPTAPE_SOCKET, and its loader must obey them"),
    ];
    remedies.iter().find(|(reason, _)| why.contains(reason)).map(|(_, remedy)| *remedy)
}

/// The interpreter that the head of a script names.
fn named_interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let interpreter = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
    Some(PathBuf::from(OsString::from_vec(interpreter.to_vec())))
}

/// The interpreter of a script, by its first line.
pub fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(4096).read_to_end(&mut head).ok()?;
    named_interpreter(&head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, wanted) in [
            ("cc1", "cc1", true),
            ("cc1", "cc1plus", false),
            ("cc1*", "cc1plus", true),
            ("*", "", true),
            ("*plus", "cc1plus", true),
            ("c*p*s", "cc1plus", true),
            ("c*p*x", "cc1plus", false),
            ("*1*1*", "cc1plus", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn programs_are_judged() {
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
    fn a_process_that_leaves_is_seen() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 0.3; exec sleep 5"]).spawn().expect("sh");
        let (pid, before) = (child.id(), program(child.id()));
        assert!(ancestors(pid).next() == Some(std::process::id()) && before.is_some());
        let mut watch = Watch::default();
        assert_eq!(watch.look([(pid, before)].into_iter()), []);
        watch.leaves(pid);
        std::thread::sleep(2 * SOON);
        let before = program(pid);
        assert_eq!(watch.look([(pid, before)].into_iter()), [(pid, Change::Stayed)]);
        std::thread::sleep(LOOK);
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.extend(watch.look([(pid, before)].into_iter()));
            std::thread::sleep(LOOK / 2);
        }
        assert_eq!(seen.first(), Some(&(pid, Change::Left)));
        let _ = child.kill();
        let _ = child.wait();
    }
}
