//! Epochs that a killed daemon left open, which the next one seals.

use super::epoch::start_of;
use formats::recording::{Exit, PROFILE, ProcessInfo, RECORDING, Recording, STREAM, TRACE};
use formats::tape::journal;
use heaptape_recorder::os::{Durability, replace_file};
use std::io;
use std::path::Path;

/// Returns the start of `recording.json` for an epoch that started at this time.
pub(super) fn recording_of(started_unix_ns: u64) -> Recording {
    Recording {
        format: "heaptape recording".into(),
        version: 1,
        heaptape: env!("CARGO_PKG_VERSION").into(),
        started_unix_ns,
        ..Recording::default()
    }
}

/// Seals an epoch that a killed daemon left open. Returns whether it can be left as it is.
pub(super) fn seal_left_open(dir: &Path) -> bool {
    let path = dir.join(RECORDING);
    // The daemon was killed before it described the epoch. The removal succeeds only while the
    // folder is empty.
    if !path.exists() && std::fs::remove_dir(dir).is_ok() {
        return true;
    }
    let read = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(_) => Some(recording_of(start_of(dir).unwrap_or(0) * 1_000_000_000)),
    };
    let Some(mut recording) = read.filter(|recording: &Recording| recording.ended_unix_ns.is_none()) else {
        return true;
    };
    let changed = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
    let since = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let ended = since.map_or(recording.started_unix_ns, |since| since.as_nanos() as u64);
    recording.ended_unix_ns = Some(ended);
    for process in recording.processes.iter_mut().filter(|process| process.exit.is_none()) {
        (process.exit, process.ended_unix_ns) = (Some(Exit::Running), Some(ended));
    }
    // Add the processes that were not listed yet.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let folder = entry.file_name().to_string_lossy().into_owned();
        if recording.processes.iter().any(|process| process.folder == folder) {
            continue;
        }
        if journal::has_tape(&entry.path()) {
            recording.processes.push(ProcessInfo { folder, exit: Some(Exit::Running), ..ProcessInfo::default() });
        } else if [TRACE, PROFILE].iter().any(|name| entry.path().join(name).is_file()) {
            recording.processes.push(ProcessInfo { folder, origin: STREAM.into(), ..ProcessInfo::default() });
        }
    }
    let user = dir.parent().and_then(|first| first.file_name()?.to_str()?.parse().ok());
    let reader = user.filter(|uid| *uid != nix::unistd::geteuid().as_raw());
    let written = serde_json::to_vec_pretty(&recording)
        .map_err(io::Error::from)
        .and_then(|bytes| replace_file(&path, &bytes, reader, Durability::BeforeRename));
    match &written {
        Ok(_) => tracing::info!("{}: left open, now sealed", dir.display()),
        Err(error) => tracing::error!("{}: left open, and cannot be sealed: {error}", dir.display()),
    }
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::recording::TAPE;

    #[test]
    fn epoch_of_a_killed_daemon_is_sealed() {
        let state = tempfile::tempdir().expect("a folder");
        let [empty, unsealed] = ["202611211901", "202611211902"].map(|name| state.path().join("7").join(name));
        std::fs::create_dir_all(&empty).expect("an epoch without anything");
        std::fs::create_dir_all(unsealed.join("1.true")).expect("an epoch with a process");
        std::fs::write(unsealed.join("1.true").join(TAPE), "").expect("its tape");
        std::fs::create_dir_all(unsealed.join("2.cat")).expect("a stream");
        std::fs::write(unsealed.join("2.cat").join(TRACE), "MTRC").expect("its trace");
        [&empty, &unsealed].into_iter().for_each(|dir| assert!(seal_left_open(dir)));
        assert!(!empty.exists());
        let bytes = std::fs::read(unsealed.join(RECORDING)).expect("it is described");
        let recording: Recording = serde_json::from_slice(&bytes).expect("as it should be");
        assert_eq!((recording.processes.len(), recording.started_unix_ns), (2, 1_795_287_720_000_000_000));
        assert!(recording.ended_unix_ns.is_some());
        assert!(recording.processes.iter().any(|process| (&*process.folder, &*process.origin) == ("2.cat", STREAM)));
    }
}
