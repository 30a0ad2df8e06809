//! The control groups of a process: its memory limit, and how often the kernel has killed a process
//! of its group because memory ran out.

use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of parent groups whose limits are read.
const MAX_GROUPS: usize = 64;

/// Limits from this size on are none: version 1 has a number for that, the largest multiple of a
/// page.
const NO_LIMIT: u64 = 1 << 60;

/// How long a limit that was read is believed: many processes of one group may start at once.
const BELIEVED: Duration = Duration::from_secs(1);

/// The last limit that was read: for which groups, and when.
static LAST: Mutex<Option<(String, Option<u64>, Instant)>> = Mutex::new(None);

/// Returns the smallest memory limit, in bytes, of the control groups of a process; `None` if it
/// has none, or if it cannot be read.
pub fn memory_limit(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((of, limit, read)) = &*last
        && *of == groups
        && read.elapsed() < BELIEVED
    {
        return *limit;
    }
    let limit = limit_of(&groups);
    *last = Some((groups, limit, Instant::now()));
    limit
}

fn limit_of(groups: &str) -> Option<u64> {
    groups.lines().filter_map(limit_location).filter_map(|(root, group, file)| smallest_limit(root, &group, file)).min()
}

/// Returns how many bytes the control groups of a process may still take; `None` without a limit. Pages
/// of files that nobody has used for a while are given back first.
pub fn memory_left(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let located = groups.lines().filter_map(limit_location);
    located.filter_map(|(root, group, file)| smallest_rest(root, &group, file)).min()
}

/// Returns the file that counts the processes of the control group of a process which the kernel
/// has killed because memory ran out; `None` if there is none.
pub fn kills_file(pid: u32) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mut files = groups.lines().filter_map(limit_location).map(|(root, group, file)| {
        // Without `.local`, the counter of version 2 contains the groups below.
        let name = if file == "memory.max" { "memory.events.local" } else { "memory.oom_control" };
        root.join(group).join(name)
    });
    files.find(|file| kills(file).is_some())
}

/// Reads the counter of [`kills_file`].
pub fn kills(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Returns the path of the hierarchy of a line of `/proc/PID/cgroup`, the path of the group in it,
/// and the name of the file with the limit.
fn limit_location(line: &str) -> Option<(&'static Path, PathBuf, &'static str)> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, group) = rest.split_once(':')?;
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let group = Path::new(group).strip_prefix("/").ok()?;
    // `..`: the group is outside of what this process can see.
    let is_inside = group.components().all(|component| matches!(component, Component::Normal(_)));
    is_inside.then(|| (Path::new(root), group.to_owned(), file))
}

/// Returns the smallest limit of a group and its parents.
fn smallest_limit(root: &Path, group: &Path, file: &str) -> Option<u64> {
    let limit = |group: &Path| std::fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse::<u64>().ok();
    group.ancestors().take(MAX_GROUPS).filter_map(limit).filter(|limit| *limit < NO_LIMIT).min()
}

/// Returns what a group and its parents may still take: the least of them.
fn smallest_rest(root: &Path, group: &Path, file: &str) -> Option<u64> {
    let (usage, unused) = match file {
        "memory.max" => ("memory.current", "inactive_file "),
        _ => ("memory.usage_in_bytes", "total_inactive_file "),
    };
    let rest = |group: &Path| {
        let read = |name: &str| std::fs::read_to_string(root.join(group).join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let limit = number(file).filter(|limit| *limit < NO_LIMIT)?;
        let stat = read("memory.stat").unwrap_or_default();
        let unused = stat.lines().find_map(|line| line.strip_prefix(unused)?.parse::<u64>().ok()).unwrap_or(0);
        Some(limit.saturating_sub(number(usage)?.saturating_sub(unused)))
    };
    group.ancestors().take(MAX_GROUPS).filter_map(rest).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_versions_are_parsed() {
        let found = |line: &str| limit_location(line).map(|(root, group, file)| root.join(group).join(file));
        assert_eq!(found("0::/user.slice/a"), Some(PathBuf::from("/sys/fs/cgroup/user.slice/a/memory.max")));
        assert_eq!(found("4:memory:/a"), Some(PathBuf::from("/sys/fs/cgroup/memory/a/memory.limit_in_bytes")));
        assert_eq!(found("7:cpu,memory:/"), Some(PathBuf::from("/sys/fs/cgroup/memory/memory.limit_in_bytes")));
        assert_eq!((found("3:cpuset:/"), found("0::/../a"), found("nothing")), (None, None, None));
    }

    #[test]
    fn kills_of_both_versions_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events");
        for text in
            ["oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "low 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n"]
        {
            std::fs::write(&file, text).expect("writes");
            assert_eq!(kills(&file), Some(3), "{text}");
        }
        std::fs::write(&file, "oom_kill_disable 0\n").expect("writes");
        assert_eq!(kills(&file), None);
    }

    #[test]
    fn smallest_limit_applies() {
        let root = tempfile::tempdir().expect("a folder");
        let inner = Path::new("a/b");
        std::fs::create_dir_all(root.path().join(inner)).expect("folders");
        std::fs::write(root.path().join("a/b/memory.max"), "max\n").expect("writes");
        assert_eq!(smallest_limit(root.path(), inner, "memory.max"), None);
        std::fs::write(root.path().join("memory.max"), "9223372036854771712\n").expect("writes");
        assert_eq!(smallest_limit(root.path(), inner, "memory.max"), None);
        std::fs::write(root.path().join("a/memory.max"), "100000000\n").expect("writes");
        assert_eq!(smallest_limit(root.path(), inner, "memory.max"), Some(100_000_000));
        assert_eq!(smallest_rest(root.path(), inner, "memory.max"), None, "what is used is not known");
        std::fs::write(root.path().join("a/memory.current"), "70000000\n").expect("writes");
        std::fs::write(root.path().join("a/memory.stat"), "anon 1\ninactive_file 5000000\n").expect("writes");
        assert_eq!(smallest_rest(root.path(), inner, "memory.max"), Some(35_000_000));
    }
}
