//! How much memory a process and those beside it may use, as its control groups say.

use std::path::{Component, Path, PathBuf};

/// Groups above one that are looked at.
const MOST_GROUPS: usize = 64;

/// The least limit on memory, in bytes, of the control groups that a process is in; `None` if there
/// is none, or it cannot be read.
pub fn memory_limit(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().filter_map(place).filter_map(|(root, group, file)| least(root, &group, file)).min()
}

/// Where the groups of a line of `/proc/PID/cgroup` are, which of them it is, and the name of the
/// file with the limit.
fn place(line: &str) -> Option<(&'static Path, PathBuf, &'static str)> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, group) = rest.split_once(':')?;
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let group = Path::new(group).strip_prefix("/").ok()?;
    // `..`: the group lies outside of what this process sees.
    let is_inside = group.components().all(|component| matches!(component, Component::Normal(_)));
    is_inside.then(|| (Path::new(root), group.to_owned(), file))
}

/// The least limit of a group and those that it lies in.
fn least(root: &Path, group: &Path, file: &str) -> Option<u64> {
    let limit = |group: &Path| std::fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse::<u64>().ok();
    group.ancestors().take(MOST_GROUPS).filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_versions() {
        let found = |line: &str| place(line).map(|(root, group, file)| root.join(group).join(file));
        assert_eq!(found("0::/user.slice/a"), Some(PathBuf::from("/sys/fs/cgroup/user.slice/a/memory.max")));
        assert_eq!(found("4:memory:/a"), Some(PathBuf::from("/sys/fs/cgroup/memory/a/memory.limit_in_bytes")));
        assert_eq!(found("7:cpu,memory:/"), Some(PathBuf::from("/sys/fs/cgroup/memory/memory.limit_in_bytes")));
        assert_eq!((found("3:cpuset:/"), found("0::/../a"), found("nothing")), (None, None, None));
    }

    #[test]
    fn the_least_limit_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let inner = Path::new("a/b");
        std::fs::create_dir_all(root.path().join(inner)).expect("folders");
        std::fs::write(root.path().join("a/b/memory.max"), "max\n").expect("writes");
        assert_eq!(least(root.path(), inner, "memory.max"), None);
        std::fs::write(root.path().join("a/memory.max"), "100000000\n").expect("writes");
        assert_eq!(least(root.path(), inner, "memory.max"), Some(100_000_000));
    }
}
