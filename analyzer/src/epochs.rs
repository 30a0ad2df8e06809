//! Finds the epochs of the daemon on disk. The names of their folders are times, so they sort in
//! the order of the epochs.

use crate::load;
use heaptape_formats::pattern::Pattern;
use heaptape_formats::recording::{
    DCPI_FOLDER, Exit, FLIGHTS, MARKS, Mark, PROFILE, PROGRAM_PREFIX, ProcessInfo, RECORDING, Recording, STREAM, TAPE,
    is_epoch,
};
use heaptape_formats::regular;
use heaptape_formats::tape::journal;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Selects epochs, or processes in them. All conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct EpochQuery {
    /// Maximum number of epochs of each user, newest first.
    pub last: Option<usize>,
    /// Name of the first epoch.
    pub from: Option<String>,
    /// Name of the last epoch, or its beginning.
    pub to: Option<String>,
    /// ID of the user whose processes were recorded.
    pub user: Option<u32>,
    /// Pattern of program names. Selects processes.
    pub program: Option<String>,
    /// ID of processes. Selects processes.
    pub pid: Option<u32>,
    /// With `pid`: a time in nanoseconds since 1970 at which the process ran or starts. Processes
    /// that ended before are left out: they had the same ID.
    pub running_at: Option<u64>,
    /// Label of processes. Selects processes.
    pub label: Option<String>,
    /// Whether folders are listed, too, whose content a later folder of the process includes.
    pub each: bool,
    /// Whether the folders of DCPI profiles are listed instead.
    pub dcpi: bool,
}

/// Returns the names and paths of the folders in a folder, sorted by name.
fn folders(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Some(name) = entry.file_name().to_str()
        {
            found.push((name.to_owned(), entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the folders of the selected users in a state folder. Only root can list all of them.
fn users(state: &Path, user: Option<u32>) -> io::Result<Vec<PathBuf>> {
    let Some(uid) = user else {
        let all = folders(state)?.into_iter();
        return Ok(all.filter(|(name, _)| name.parse::<u32>().is_ok()).map(|(_, path)| path).collect());
    };
    let path = state.join(uid.to_string());
    std::fs::metadata(state)?;
    Ok(if path.is_dir() { vec![path] } else { Vec::new() })
}

/// Returns the paths of the selected epochs or processes, oldest first. `state` is the state folder
/// of the daemon.
///
/// # Errors
/// Returns an error if the state folder cannot be read. Without `user`, only root and the daemon's
/// user can read it.
pub fn find(state: &Path, query: &EpochQuery) -> io::Result<Vec<PathBuf>> {
    let is_after_start = |name: &str| query.from.as_deref().is_none_or(|from| name >= from);
    let is_before_end = |name: &str| query.to.as_deref().is_none_or(|to| name <= to || name.starts_with(to));
    let mut epochs: Vec<(String, PathBuf)> = Vec::new();
    for user in users(state, query.user)? {
        // Folders of other users cannot be read, unless by root.
        let mut own = folders(&user).unwrap_or_default();
        own.retain(|(name, _)| is_epoch(name) && is_after_start(name) && is_before_end(name));
        // An epoch that is starting has no files yet, nor one that was started on a full disk.
        own.retain(|(_, path)| has_files(path));
        let skipped = query.last.map_or(0, |last| own.len().saturating_sub(last));
        epochs.extend(own.into_iter().skip(skipped));
    }
    epochs.sort();
    let epochs = epochs.into_iter().map(|(_, path)| path);
    if query.dcpi {
        return Ok(epochs.map(|path| path.join(DCPI_FOLDER)).filter(|path| path.is_dir()).collect());
    }
    if query.program.is_none() && query.label.is_none() && query.pid.is_none() {
        return Ok(epochs.collect());
    }
    let mut found: Vec<(Option<ProcessId>, PathBuf)> = Vec::new();
    for epoch in epochs {
        found.extend(processes(&epoch, query));
    }
    if !query.each {
        // A profile continues to count from epoch to epoch, so its last segment has all counts. A
        // trace starts anew in each epoch.
        let mut last: BTreeMap<ProcessId, usize> = BTreeMap::new();
        for (index, (id, _)) in found.iter().enumerate() {
            if let Some(id) = id {
                last.insert(*id, index);
            }
        }
        let is_last = |index, id: Option<ProcessId>| id.is_none_or(|id| last.get(&id) == Some(&index));
        let is_needed =
            |index, id, path: &Path| is_last(index, id) || load::trace_file(path).is_some() || has_journal(path);
        let each = found.into_iter().enumerate();
        let kept = each.filter_map(|(index, (id, path))| is_needed(index, id, &path).then_some(path));
        return Ok(kept.collect());
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Returns the folders of the selected processes that have events, oldest first.
///
/// # Errors
/// Returns an error when the daemon's state cannot be read.
pub fn traces(state: &Path, query: &EpochQuery) -> io::Result<Vec<PathBuf>> {
    let mut found = find(state, query)?;
    found.retain(|folder| load::trace_file(folder).is_some() || has_journal(folder));
    Ok(found)
}

/// Returns the folders of the flight recording that a daemon keeps writing for a running process,
/// which are in no epoch. The daemon may remove or move them as soon as they are listed:
/// [`load::open_all`] finds what is left of them. List them before the epochs to which they may be
/// moved.
pub fn flight(state: &Path, user: u32, pid: u32) -> Vec<PathBuf> {
    let found = folders(&state.join(user.to_string()).join(FLIGHTS)).unwrap_or_default().into_iter();
    let is_own = |name: &str| name.split_once('.').is_some_and(|(number, _)| number.parse() == Ok(pid));
    found.filter(|(name, _)| is_own(name)).map(|(_, path)| path).collect()
}

/// Returns whether an epoch has its description, or the files of a process.
fn has_files(epoch: &Path) -> bool {
    let is_written = |folder: &Path| {
        let length = std::fs::metadata(folder.join(TAPE)).map_or(0, |file| file.len());
        length > 0 || has_journal(folder) || load::trace_file(folder).is_some() || folder.join(PROFILE).is_file()
    };
    epoch.join(RECORDING).is_file() || folders(epoch).is_ok_and(|found| found.iter().any(|(_, path)| is_written(path)))
}

/// Returns the marks of a state folder, oldest first.
///
/// # Errors
/// Returns the error of the file. A state folder without marks has none.
pub fn marks(state: &Path) -> io::Result<Vec<Mark>> {
    match std::fs::read_to_string(state.join(MARKS)) {
        Ok(text) => Ok(Mark::read_all(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the epochs in the folder of a user, oldest first, each with its end in nanoseconds since
/// 1970 if it has ended.
fn ends(user: &Path) -> io::Result<Vec<(PathBuf, Option<u64>)>> {
    let epochs = folders(user)?.into_iter().filter(|(name, _)| is_epoch(name));
    let with_end = |(_, path): (String, PathBuf)| {
        let read = regular::read(&path.join(RECORDING)).ok()?;
        let about: Recording = serde_json::from_slice(&read).ok()?;
        Some((path, about.ended_unix_ns))
    };
    Ok(epochs.filter_map(with_end).collect())
}

/// Returns the epoch of a user whose end is nearest to a time, with its end; `None` if no epoch has
/// ended. Times are in nanoseconds since 1970.
///
/// # Errors
/// Returns an error if the folder of the user cannot be read.
pub fn ending_nearest(user: &Path, unix_ns: u64) -> io::Result<Option<(PathBuf, u64)>> {
    let ended = ends(user)?.into_iter().filter_map(|(path, ended)| Some((path, ended?)));
    Ok(ended.min_by_key(|(_, ended)| ended.abs_diff(unix_ns)))
}

/// Returns the newest epoch of a user.
///
/// # Errors
/// Returns an error if the folder of the user cannot be read.
pub fn newest(user: &Path) -> io::Result<Option<PathBuf>> {
    Ok(ends(user)?.pop().map(|(path, _)| path))
}

/// Returns whether a process is being recorded as a trace, or its recorder was killed.
fn has_journal(folder: &Path) -> bool {
    !journal::open_chunks(folder).is_empty()
}

/// Identifies a process in all epochs: its pid and start time in nanoseconds since 1970.
type ProcessId = (u32, u64);

/// Returns the folders of the selected processes of an epoch. A folder that sums up several
/// processes has no ID.
fn processes(epoch: &Path, query: &EpochQuery) -> Vec<(Option<ProcessId>, PathBuf)> {
    let read = regular::read(&epoch.join(RECORDING)).ok();
    let about: Recording = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let program_pattern = query.program.as_deref().map(Pattern::whole);
    let mut found = Vec::new();
    for (name, path) in folders(epoch).unwrap_or_default() {
        let listed = about.processes.iter().find(|process| process.folder == name);
        let exe = listed.map(|process| process.exe.as_str()).unwrap_or_default();
        let program = exe.rsplit('/').next().unwrap_or_default();
        // In PID.NAME and all.NAME, NAME is the kernel's short name of the process.
        let short = name.split_once('.').map_or(name.as_str(), |(_, short)| short);
        let is_match = |pattern: &Pattern| pattern.matches(program) || pattern.matches(short);
        if name == DCPI_FOLDER || !program_pattern.as_ref().is_none_or(is_match) {
            continue;
        }
        let of_folder = || name.split_once('.').and_then(|(pid, _)| pid.parse().ok());
        if query.pid.is_some_and(|pid| listed.map(|process| process.pid).or_else(of_folder) != Some(pid)) {
            continue;
        }
        let has_ended = |process: &&ProcessInfo| matches!(process.exit, Some(Exit::Code(_) | Exit::Signal(_)));
        let end = listed.filter(has_ended).and_then(|process| process.ended_unix_ns);
        if query.running_at.is_some_and(|time| end.is_some_and(|end| end < time)) {
            continue;
        }
        if let Some(label) = &query.label {
            let sent = listed.filter(|process| process.origin == STREAM);
            let has_label = match sent {
                Some(process) => process.label == *label,
                None => {
                    load::Process::open(&path, None).is_ok_and(|process| process.tape.process.label.lossy() == *label)
                }
            };
            if !has_label {
                continue;
            }
        }
        let id =
            listed.filter(|_| !name.starts_with(PROGRAM_PREFIX)).map(|process| (process.pid, process.started_unix_ns));
        found.push((id, path));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_selected_by_range_and_number() {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for name in
            ["7/202611210800", "7/202611210900", "7/202611210900-0002", "7/flight", "8/202611220000", "x/202611210800"]
        {
            let folder = dir.path().join(name).join("1.true");
            std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{error}"));
            std::fs::write(folder.join(PROFILE), "").unwrap_or_else(|error| panic!("{error}"));
        }
        // An epoch without files is not listed.
        std::fs::create_dir_all(dir.path().join("8/202611220001/2.true")).unwrap_or_else(|error| panic!("{error}"));
        let find = |query: EpochQuery| -> Vec<String> {
            let found = find(dir.path(), &query).unwrap_or_else(|error| panic!("{error}"));
            found.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect()
        };
        let all = ["202611210800", "202611210900", "202611210900-0002", "202611220000"];
        assert_eq!(find(EpochQuery::default()), all);
        // The newest of each user.
        assert_eq!(find(EpochQuery { last: Some(1), ..EpochQuery::default() }), all[2..]);
        assert_eq!(find(EpochQuery { user: Some(7), last: Some(2), ..EpochQuery::default() }), all[1..3]);
        let range =
            EpochQuery { from: Some("2026112109".into()), to: Some("20261121".into()), ..EpochQuery::default() };
        assert_eq!(find(range), all[1..3]);
    }
    #[test]
    fn earlier_process_with_the_same_id_is_left_out() {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let epoch = |name: &str, exit: Exit, ended_unix_ns: u64| {
            let (folder, epoch) = ("7.shop".to_owned(), dir.path().join("5").join(name));
            std::fs::create_dir_all(epoch.join(&folder)).unwrap_or_else(|error| panic!("{error}"));
            let process = ProcessInfo {
                pid: 7,
                started_unix_ns: ended_unix_ns - 50,
                ended_unix_ns: Some(ended_unix_ns),
                exit: Some(exit),
                folder,
                ..ProcessInfo::default()
            };
            let about = Recording { processes: vec![process], ..Recording::default() };
            let text = serde_json::to_string(&about).unwrap_or_else(|error| panic!("{error}"));
            std::fs::write(epoch.join(RECORDING), text).unwrap_or_else(|error| panic!("{error}"));
        };
        epoch("202611210800", Exit::Signal(9), 1000);
        epoch("202611210900", Exit::Running, 2000);
        epoch("202611211000", Exit::Code(0), 3000);
        let found = |running_at| {
            let query = EpochQuery { pid: Some(7), running_at, each: true, ..EpochQuery::default() };
            find(dir.path(), &query).unwrap_or_else(|error| panic!("{error}")).len()
        };
        // A process that runs has an end of its own soon, also while it is looked for.
        assert_eq!([None, Some(1000), Some(1001), Some(3000), Some(3001)].map(found), [3, 3, 2, 2, 1]);
    }
}
