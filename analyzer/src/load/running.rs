//! Recordings that are being written now. A process that still runs has no end yet, and that is not
//! missing.

use super::Process;
use crate::missing::Missing;
use heaptape_formats::recording::{Exit, ProcessInfo, RECORDING, RESERVE, Recording, is_epoch};
use heaptape_formats::regular;
use std::fs::TryLockError;
use std::path::Path;
use std::time::Duration;

/// Maximum age of the description of an epoch that a daemon has open: it writes it every 5 s.
const MAX_AGE: Duration = Duration::from_secs(15);

/// Returns whether a recorder writes this recording now. The recorder of a command holds a lock
/// while it writes. A daemon describes its open epochs again and again.
pub(super) fn is_written_now(dir: &Path, about: &Recording) -> bool {
    if about.ended_unix_ns.is_some() {
        return false;
    }
    if let Ok(file) = regular::open(&dir.join(RESERVE)) {
        return matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    }
    let of_daemon =
        dir.canonicalize().is_ok_and(|dir| dir.file_name().is_some_and(|name| is_epoch(&name.to_string_lossy())));
    let written = std::fs::metadata(dir.join(RECORDING)).and_then(|file| file.modified());
    of_daemon && written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < MAX_AGE))
}

impl Process {
    /// Notes that the recording is being written now: while the process runs, it has no end.
    pub(super) fn note_running(&mut self) {
        if self.tape.end.is_none() && self.live_root().is_some() {
            self.missing.retain(|missing| *missing != Missing::NoEnd);
            self.about.exit.get_or_insert(Exit::Running);
        }
    }

    /// Returns whether the process runs, and its events are being written now.
    pub(crate) fn is_being_written(&self) -> bool {
        self.has_events() && self.tape.end.is_none() && self.about.exit == Some(Exit::Running)
    }
}

/// Returns the file name by which a program was started, if that is a link of another name. The
/// first argument may be anything, and a program may have added to it (`redis-server *:6379`). So
/// it or its first word must match the kernel's short name, which is in the name of the folder:
/// `PID.NAME`, `PID.NAME.2`, or `PID.NAME@EPOCH+1`.
pub(super) fn called<'a>(folder: &str, about: &'a ProcessInfo) -> Option<&'a str> {
    const SHORT: usize = 15;
    let file = |path: &'a str| path.rsplit('/').next().unwrap_or_default();
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    let is_end = |rest: &str| rest.is_empty() || rest.starts_with('@') || rest.strip_prefix('.').is_some_and(is_number);
    let is_confirmed = |called: &&str| {
        let short = called.get(..SHORT).unwrap_or(called);
        let rest = folder.split_once('.').and_then(|(_, name)| name.strip_prefix(short));
        !called.is_empty() && rest.is_some_and(is_end)
    };
    let first = about.argv.first()?;
    let word = first.split([' ', ':']).next().unwrap_or_default();
    [file(first), file(word)].into_iter().find(is_confirmed).filter(|called| *called != file(&about.exe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_link_needs_the_name_that_the_kernel_has() {
        let about = |called: &str| ProcessInfo {
            exe: "/usr/bin/redis-check-rdb".into(),
            argv: vec![called.into()],
            ..ProcessInfo::default()
        };
        let about = [
            about("redis-server"),
            about("/usr/bin/redis-server 127.0.0.1:6379"),
            about("/usr/bin/redis-check-rdb"),
            about(""),
        ];
        let names = [Some("redis-server"), Some("redis-server"), None, None];
        for folder in ["7.redis-server", "7.redis-server.2", "7.redis-server@202611231151+1"] {
            assert_eq!(about.each_ref().map(|about| called(folder, about)), names);
        }
        for folder in ["7.redis", "7.redis-server-2", "redis-server"] {
            assert_eq!(called(folder, &about[0]), None, "{folder}");
        }
    }
}
