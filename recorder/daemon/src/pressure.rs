//! Memory pressure on processes, as the kernel reports it for their control groups (version 2):
//! `memory.events.local` counts how often the limits of a group were reached, `memory.pressure` is
//! the share of time in which tasks of the group waited for memory. Both are described in the
//! kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/accounting/psi.rst`.

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Where version 2 is mounted, alone or beside version 1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Maximum number of parent groups that are read for a process.
const MAX_PARENTS: usize = 16;
/// Counters of `memory.events.local` that show pressure: a limit was reached.
const COUNTERS: [&str; 3] = ["high", "max", "oom"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Report {
    /// The counters in [`COUNTERS`].
    events: [u64; COUNTERS.len()],
    /// Share of the last ten seconds in which a task waited for memory, in hundredths of a percent.
    waiting: u64,
}

/// Why a group is under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A limit was reached: the name of the counter.
    Limit(&'static str),
    /// Tasks waited for memory: the share of time, in hundredths of a percent.
    Waiting(u64),
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Limit(counter) => {
                write!(out, "its control group reached a limit of memory (memory.events: {counter})")
            }
            Reason::Waiting(share) => {
                let (percent, hundredths) = (share / 100, share % 100);
                write!(out, "its control group waited for memory in {percent}.{hundredths:02} % of ten seconds")
            }
        }
    }
}

#[derive(Debug, Default)]
struct Group {
    last: Report,
    /// Why it is under pressure since the last check, if it is.
    reason: Option<Reason>,
    is_used: bool,
}

/// The groups of the recorded processes.
#[derive(Debug)]
pub(crate) struct Pressure {
    roots: Vec<PathBuf>,
    /// Share of time from which on waiting is pressure, in hundredths of a percent; 0 for never.
    limit: u64,
    groups: HashMap<PathBuf, Group>,
}

/// Returns the path of the group of version 2 from the text of `/proc/PID/cgroup`.
fn group_of(text: &str) -> Option<PathBuf> {
    let group = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // `..`: the group is outside of what this process can see.
    let is_inside = Path::new(group).components().all(|component| matches!(component, Component::Normal(_)));
    is_inside.then(|| PathBuf::from(group))
}

fn read(folder: &Path) -> Option<Report> {
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let (events, pressure) = (text("memory.events.local"), text("memory.pressure"));
    if events.is_none() && pressure.is_none() {
        return None;
    }
    let mut report = Report::default();
    for line in events.iter().flat_map(|text| text.lines()) {
        let Some((name, count)) = line.split_once(' ') else { continue };
        if let Some(index) = COUNTERS.iter().position(|counter| *counter == name) {
            report.events[index] = count.trim().parse().unwrap_or(0);
        }
    }
    let some = pressure.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("some ")));
    let average = some.and_then(|line| line.split(' ').find_map(|field| field.strip_prefix("avg10=")));
    let percent: f64 = average.and_then(|percent| percent.parse().ok()).unwrap_or(0.0);
    report.waiting = (percent.clamp(0.0, 100.0) * 100.0) as u64;
    Some(report)
}

impl Pressure {
    /// Watches with a limit in percent of time, below `root` or where the kernel's control groups
    /// usually are.
    pub(crate) fn new(percent: u64, root: Option<&Path>) -> Pressure {
        let usual = || ROOTS.iter().map(PathBuf::from).collect();
        let roots = root.map_or_else(usual, |root| vec![root.to_owned()]);
        Pressure { roots, limit: percent.min(100) * 100, groups: HashMap::new() }
    }

    /// Returns the folders of the group of a process and of its parents, of those that report
    /// pressure.
    pub(crate) fn groups(&self, pid: u32) -> Vec<PathBuf> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let Some(group) = group_of(&text).filter(|_| self.limit > 0) else { return Vec::new() };
        let folders = |root: &PathBuf| -> Vec<PathBuf> {
            let all = group.ancestors().take(MAX_PARENTS).map(|group| root.join(group));
            all.filter(|folder| read(folder).is_some()).collect()
        };
        self.roots.iter().map(folders).find(|folders| !folders.is_empty()).unwrap_or_default()
    }

    /// Reads the groups of all processes once. Called once a second.
    pub(crate) fn look<'a>(&mut self, used: impl Iterator<Item = &'a PathBuf>) {
        for folder in used {
            if let Some(group) = self.groups.get_mut(folder) {
                group.is_used = true;
            } else if let Some(last) = read(folder) {
                // What was counted before is no pressure now.
                self.groups.insert(folder.clone(), Group { last, reason: None, is_used: true });
            }
        }
        self.groups.retain(|_, group| std::mem::take(&mut group.is_used));
        for (folder, group) in &mut self.groups {
            let now = read(folder).unwrap_or_else(|| group.last.clone());
            group.reason = group.last.reason(&now, self.limit);
            group.last = now;
        }
    }

    /// Returns why a process in these groups is under pressure since the last look, if it is. Of
    /// its own group, the first one, every sign counts; of parents, only a limit that was reached.
    pub(crate) fn reason(&self, folders: &[PathBuf]) -> Option<Reason> {
        let reasons = folders.iter().enumerate().filter_map(|(index, folder)| {
            let reason = self.groups.get(folder)?.reason?;
            (index == 0 || matches!(reason, Reason::Limit(_))).then_some(reason)
        });
        reasons.into_iter().next()
    }
}

impl Report {
    /// Returns why a group is under pressure, if it is.
    fn reason(&self, now: &Report, limit: u64) -> Option<Reason> {
        let grew = (0..COUNTERS.len()).rev().find(|&index| now.events[index] > self.events[index]);
        let waits = (limit > 0 && now.waiting >= limit).then_some(Reason::Waiting(now.waiting));
        grew.map(|index| Reason::Limit(COUNTERS[index])).or(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: &str =
        "some avg10=1.50 avg60=0.00 avg300=0.00 total=7\nfull avg10=90.00 avg60=0.00 avg300=0.00 total=7\n";
    const BUSY: &str =
        "some avg10=12.34 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

    #[test]
    fn group_of_version_2_is_found() {
        assert_eq!(group_of("4:memory:/a\n0::/user.slice/b\n"), Some(PathBuf::from("user.slice/b")));
        assert_eq!(group_of("0::/\n"), Some(PathBuf::new()));
        assert_eq!((group_of("0::/../b\n"), group_of("4:memory:/a\n")), (None, None));
    }

    /// Of a parent, a limit counts, and waiting of other groups in it does not.
    #[test]
    fn limits_of_parents_are_pressure() {
        let root = tempfile::tempdir().expect("a folder");
        let own = root.path().join("a");
        std::fs::create_dir(&own).expect("a folder");
        let write = |folder: &Path, name: &str, text: &str| std::fs::write(folder.join(name), text).expect("writes");
        write(&own, "memory.pressure", CALM);
        write(root.path(), "memory.pressure", BUSY);
        let (mut pressure, used) = (Pressure::new(10, Some(root.path())), vec![own, root.path().to_owned()]);
        pressure.look(used.iter());
        assert_eq!((pressure.reason(&used), pressure.reason(&used[1..])), (None, Some(Reason::Waiting(1234))));
        write(root.path(), "memory.events.local", "high 0\nmax 1\n");
        pressure.look(used.iter());
        assert_eq!(pressure.reason(&used), Some(Reason::Limit("max")));
    }

    #[test]
    fn events_and_waiting_are_pressure_once_they_are_new() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a");
        std::fs::create_dir(&folder).expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("writes");
        write("memory.events.local", "low 9\nhigh 3\nmax 0\noom 0\noom_kill 0\n");
        write("memory.pressure", CALM);
        let (mut pressure, used) = (Pressure::new(10, Some(root.path())), vec![folder.clone()]);
        let mut look = || {
            pressure.look(used.iter());
            pressure.reason(&used)
        };
        assert_eq!((look(), look()), (None, None), "old events");
        write("memory.events.local", "low 10\nhigh 4\nmax 0\noom 0\noom_kill 0\n");
        assert_eq!(look(), Some(Reason::Limit("high")));
        assert_eq!(look(), None, "the same events");
        write("memory.events.local", "low 10\nhigh 5\nmax 2\noom 1\noom_kill 0\n");
        assert_eq!(look(), Some(Reason::Limit("oom")));
        write("memory.pressure", BUSY);
        assert_eq!(look(), Some(Reason::Waiting(1234)));
        assert!(Reason::Waiting(1205).to_string().contains("12.05 %"));
        write("memory.pressure", "some avg10=NaN\nnothing\n");
        assert_eq!(look(), None);
        std::fs::remove_dir_all(&folder).expect("it is removed");
        assert_eq!(look(), None);
    }
}
