//! What a daemon leaves to the next one: the descriptors of the live processes in the fd store, and
//! for each of them a file with its live blocks.

use super::clients::Note;
use super::config::Config;
use super::fd_store::FdStore;
use super::notify;
use heaptape_recorder::digest::carried_mappings_file;
use heaptape_recorder::os::permissions::make_folder;
use heaptape_recorder::session::chunk_journal;
use heaptape_recorder::session::keeper::Held;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Name of the folder with the live blocks that one daemon hands over to the next.
const CARRIED: &str = "carried";
/// Name of the socket of the fd store, beside the socket of the programs.
const FD_STORE: &str = "fd-store";

/// Removes a file that may not be there. A frozen file system makes each removal wait, also that of
/// nothing.
pub(crate) fn remove_if_there(path: &Path) {
    if path.symlink_metadata().is_ok()
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::debug!("{}: {error}", path.display());
    }
}

/// The next daemon, as far as this one provides for it.
#[derive(Debug)]
pub(crate) struct Successor {
    store: FdStore,
    carried: PathBuf,
    /// Whether processes are handed over at the end.
    takes_over: bool,
}

impl Successor {
    /// Finds the fd store, or starts one, and returns the processes in it. `passed` are descriptors
    /// that systemd passed to this process.
    pub(crate) fn find(config: &Config, passed: Vec<(String, OwnedFd)>) -> io::Result<(Successor, Vec<Held<Note>>)> {
        let carried = config.state.join(CARRIED);
        make_folder(&carried, None)?;
        let (store, held) = FdStore::find(&config.socket.with_file_name(FD_STORE), passed, notify::has_store());
        Ok((Successor { store, carried, takes_over: false }, held))
    }

    /// Returns the path of the file with the live blocks of a process.
    pub(crate) fn carried_over_file(&self, pid: u32) -> PathBuf {
        self.carried.join(pid.to_string())
    }

    /// Removes what was mapped when a process was handed over: it has ended. Its live blocks are
    /// removed by who has read them.
    pub(crate) fn forget(&self, pid: u32) {
        remove_if_there(&carried_mappings_file(&self.carried_over_file(pid)));
    }

    /// Removes the link to the journal of a process that is completely written, by its last folder.
    /// `is_served` returns whether another process with this pid is served, whose link it may be.
    pub(crate) fn forget_journal(&self, folder: &Path, is_served: impl Fn(u32) -> bool) {
        let name = folder.file_name().and_then(|name| name.to_str()?.split_once('.'));
        let Some(pid) = name.and_then(|(pid, _)| pid.parse().ok()) else { return };
        let link = chunk_journal::link(&self.carried_over_file(pid));
        if std::fs::read_link(&link).is_ok_and(|target| target == folder || !is_served(pid)) {
            let _ = std::fs::remove_file(link);
        }
    }

    /// Removes the files of all processes but these: the others have ended meanwhile.
    pub(crate) fn remove_files_except(&self, pids: &[u32]) -> io::Result<()> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        for entry in std::fs::read_dir(&self.carried)?.flatten() {
            if !pids.iter().any(|pid| entry.path().file_stem().is_some_and(|name| name == pid.as_str())) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Returns the fd store, the keeper of the processes.
    pub(crate) fn keeper(&mut self) -> &mut FdStore {
        &mut self.store
    }

    /// Makes the next daemon continue with the processes, if there is a store for them.
    pub(crate) fn take_over_at_end(&mut self) {
        self.takes_over = !matches!(self.store, FdStore::Nobody);
    }

    /// Returns whether the next daemon continues with the processes.
    pub(crate) fn takes_over(&self) -> bool {
        self.takes_over
    }

    /// Ends the fd store, unless the next daemon needs it.
    pub(crate) fn finish(&self) {
        if !self.takes_over {
            self.store.end();
        }
    }
}
