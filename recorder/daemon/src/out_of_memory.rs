//! Distinguishes kills by the kernel because memory ran out from kills by another process. Both end
//! a process by SIGKILL. The kernel counts its kills by control group, and names the pids in its
//! log.

use heaptape_recorder::os::clock;
use heaptape_recorder::target::cgroup;
use nix::fcntl::OFlag;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Minimum time for which a kill that the kernel counted can explain the end of a process. A large
/// process takes seconds to end.
const KILL_AGE: Duration = Duration::from_secs(10);
/// Maximum number of records of the kernel's log that are read at once.
const MAX_LOG_RECORDS: usize = 100_000;

/// The counter of one control group.
#[derive(Debug)]
struct Group {
    /// The counter at least [`KILL_AGE`] ago, or more if later kills have been attributed.
    baseline: u64,
    /// The counter at the last renewal, which becomes the next baseline.
    next: u64,
    /// Number of kills since the last renewal that have been attributed.
    attributed: u64,
    is_used: bool,
}

/// A kill that the kernel's log names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoggedKill {
    /// Time since the boot, in nanoseconds.
    monotonic_ns: u64,
    pid: u32,
    /// Resident memory of the process when it was killed, in bytes.
    resident_bytes: u64,
}

/// The kills by the kernel because memory ran out.
#[derive(Debug)]
pub(crate) struct OutOfMemory {
    groups: HashMap<PathBuf, Group>,
    renewed: Instant,
    log: Option<File>,
    /// The kills that the log named in the last time.
    logged: Vec<LoggedKill>,
}

impl OutOfMemory {
    /// Starts to observe the kernel's log, if it is readable.
    pub(crate) fn start() -> OutOfMemory {
        let log = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open("/dev/kmsg");
        let at_end = |mut log: File| log.seek(SeekFrom::End(0)).is_ok().then_some(log);
        let log = log.ok().and_then(at_end);
        OutOfMemory { groups: HashMap::new(), renewed: Instant::now(), log, logged: Vec::new() }
    }

    /// Starts to observe the control group of a process. Returns its counter file.
    pub(crate) fn watch(&mut self, pid: u32) -> Option<PathBuf> {
        let file = cgroup::kills_file(pid)?;
        let count = cgroup::kills(&file)?;
        let group = Group { baseline: count, next: count, attributed: 0, is_used: true };
        self.groups.entry(file.clone()).or_insert(group).is_used = true;
        Some(file)
    }

    /// Forgets old kills. Called about once a second, with the counter files of all processes.
    pub(crate) fn renew<'a>(&mut self, used: impl Iterator<Item = &'a Path>) {
        if self.renewed.elapsed() < KILL_AGE {
            return;
        }
        self.renewed = Instant::now();
        used.for_each(|file| self.groups.get_mut(file).into_iter().for_each(|group| group.is_used = true));
        // The last process of a group may be ending: one period passes before it is forgotten.
        self.groups.retain(|_, group| std::mem::take(&mut group.is_used));
        for (file, group) in &mut self.groups {
            group.renew(cgroup::kills(file));
        }
    }

    /// Returns whether the kernel killed a process that ended by SIGKILL, with its resident memory
    /// if the log has that. `file` is the counter of its group.
    pub(crate) fn explains(&mut self, pid: u32, file: Option<&Path>) -> Option<Option<u64>> {
        self.read_log();
        let own = self.logged.iter().rfind(|kill| kill.pid == pid).copied();
        let of_others = self.logged.iter().filter(|kill| kill.pid != pid).count() as u64;
        let group = file.and_then(|file| Some((cgroup::kills(file)?, self.groups.get_mut(file)?)));
        let is_counted = group.is_some_and(|(count, group)| group.attribute(count, own.is_some(), of_others));
        let resident = own.map(|kill| kill.resident_bytes).filter(|bytes| *bytes > 0);
        (own.is_some() || is_counted).then_some(resident)
    }

    fn read_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        let mut record = [0; 8192];
        for _ in 0..MAX_LOG_RECORDS {
            // Each read returns one record.
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(length) => self.logged.extend(LoggedKill::parse(&String::from_utf8_lossy(&record[..length]))),
                // The record was overwritten before it was read.
                Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        let oldest = clock::monotonic_ns().saturating_sub(KILL_AGE.as_nanos() as u64);
        self.logged.retain(|kill| kill.monotonic_ns >= oldest);
    }
}

impl Group {
    fn renew(&mut self, count: Option<u64>) {
        self.baseline = self.next.max(self.baseline + self.attributed);
        self.next = count.unwrap_or(self.next).max(self.baseline);
        self.attributed = 0;
    }

    /// Returns whether a kill that the kernel counted explains the end of a process, which the log
    /// names or does not name. A kill explains one end.
    fn attribute(&mut self, count: u64, is_logged: bool, logged_of_others: u64) -> bool {
        let unexplained = count.saturating_sub(self.baseline + self.attributed);
        let is_own = is_logged || unexplained > logged_of_others;
        self.attributed += u64::from(is_own && unexplained > 0);
        is_own
    }
}

impl LoggedKill {
    /// Parses a record of `/dev/kmsg`: priority, number, microseconds since the boot and flags,
    /// then the message, which names pid and memory of the killed process.
    fn parse(record: &str) -> Option<LoggedKill> {
        let (head, message) = record.split_once(';')?;
        let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
        let (_, killed) = message.split_once("Killed process ")?;
        let pid = killed.split_once(' ')?.0.parse().ok()?;
        let kibibytes = |name: &str| -> Option<u64> { killed.rsplit_once(name)?.1.split_once("kB")?.0.parse().ok() };
        let parts = ["anon-rss:", "file-rss:", "shmem-rss:"].map(|name| kibibytes(name).unwrap_or(0));
        let resident_bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.saturating_mul(1024)));
        Some(LoggedKill { monotonic_ns: micros.saturating_mul(1000), pid, resident_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_is_read_from_the_log() {
        let record = "3,812,51303068900,-;Memory cgroup out of memory: Killed process 15134 (a (b) c) \
            total-vm:1139108kB, anon-rss:100kB, file-rss:20kB, shmem-rss:3kB, UID:0 pgtables:244kB oom_score_adj:0\n";
        let kill = LoggedKill { monotonic_ns: 51_303_068_900_000, pid: 15134, resident_bytes: 123 << 10 };
        assert_eq!(LoggedKill::parse(record), Some(kill));
        for other in ["", "6,1,2,-;usb 1-1: new device", "3,8,x,-;Killed process 1 (a)", "3,8,1,-;Killed process"] {
            assert_eq!(LoggedKill::parse(other), None, "{other}");
        }
    }

    #[test]
    fn counted_kill_explains_one_end_and_is_forgotten_after_a_while() {
        let mut group = Group { baseline: 7, next: 7, attributed: 0, is_used: true };
        assert!(!group.attribute(7, false, 0), "no kill");
        assert!(group.attribute(8, false, 0) && !group.attribute(8, false, 0), "one kill, one end");
        assert!(!group.attribute(9, false, 1), "the log names another process");
        assert!(group.attribute(9, true, 1) && !group.attribute(9, false, 0));
        group.renew(Some(10));
        assert!(group.attribute(10, false, 0), "a process that takes long to end");
        group.renew(Some(11));
        group.renew(Some(11));
        assert!(!group.attribute(11, false, 0), "a process of the group that is not recorded");
        group.renew(None);
        assert!(group.attribute(12, false, 0), "the counter was unreadable once");
    }
}
