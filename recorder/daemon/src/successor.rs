//! What a daemon leaves to the next one: the descriptors of the live processes in the fd store, and
//! for each of them a file with its live blocks.

use super::clients::Client;
use super::config::Config;
use super::fd_store::{FdStore, Held, Name};
use super::notify;
use heaptape_recorder::digest::process::carried_mappings_file;
use heaptape_recorder::inject::patch::Plan;
use heaptape_recorder::os::permissions::make_folder;
use heaptape_recorder::session::chunk_journal;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Name of the folder with the live blocks that one daemon hands over to the next.
const CARRIED: &str = "carried";
/// Name of the socket of the fd store, beside the socket of the programs.
const FD_STORE: &str = "fd-store";

/// The next daemon, as far as this one provides for it.
#[derive(Debug)]
pub struct Successor {
    store: FdStore,
    carried: PathBuf,
    /// Whether processes are handed over at the end.
    takes_over: bool,
}

impl Successor {
    /// Finds the fd store, or starts one, and returns the processes in it. `passed` are descriptors
    /// that systemd passed to this process.
    ///
    /// # Errors
    /// The error of the folder of live blocks.
    pub fn find(config: &Config, passed: Vec<(String, OwnedFd)>) -> io::Result<(Successor, Vec<Held>)> {
        let carried = config.state.join(CARRIED);
        make_folder(&carried, None)?;
        let (store, held) = FdStore::find(&config.socket.with_file_name(FD_STORE), passed, notify::has_store());
        Ok((Successor { store, carried, takes_over: false }, held))
    }

    /// Returns the path of the file with the live blocks of a process.
    pub fn carried_over_file(&self, pid: u32) -> PathBuf {
        self.carried.join(pid.to_string())
    }

    /// Writes the label of a process for the next daemon: the process may have overwritten its
    /// environment by then.
    pub fn keep_label(&self, pid: u32, label: &str) {
        let path = self.label_file(pid);
        let result = if label.is_empty() { std::fs::remove_file(&path) } else { std::fs::write(&path, label) };
        if let Err(error) = result
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: the next daemon will not know the label: {error}", path.display());
        }
    }

    /// Returns the label that the last daemon knew.
    pub fn label(&self, pid: u32) -> Option<String> {
        let bytes = std::fs::read(self.label_file(pid)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes the path of the program of a process for the next daemon: the process may have ended
    /// by then.
    pub fn keep_program(&self, pid: u32, exe: &[u8]) {
        let path = self.program_file(pid);
        if let Err(error) = std::fs::write(&path, exe) {
            tracing::warn!("{}: the next daemon may not know the program: {error}", path.display());
        }
    }

    /// Returns the path of the program that the last daemon knew; empty if it is not known.
    pub fn program(&self, pid: u32) -> Vec<u8> {
        std::fs::read(self.program_file(pid)).unwrap_or_default()
    }

    /// Notes for the next daemon what is hooked inside the program of a process.
    pub fn keep_hooks(&self, pid: u32, hooks: &Plan) {
        let path = self.hooks_file(pid);
        let result = hooks.note().map_or_else(|| std::fs::remove_file(&path), |note| std::fs::write(&path, note));
        if let Err(error) = result
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: the next daemon will not know the allocators: {error}", path.display());
        }
    }

    /// Returns what the last daemon knew to be hooked inside the program of a process.
    pub fn hooks(&self, pid: u32) -> Plan {
        std::fs::read(self.hooks_file(pid)).map_or_else(|_| Plan::default(), |note| Plan::of_note(&note))
    }

    fn hooks_file(&self, pid: u32) -> PathBuf {
        self.carried.join(format!("{pid}.hooks"))
    }

    /// Notes for the next daemon whether a process was attached, and is to be restored at the end.
    pub fn keep_attached(&self, pid: u32, is_attached: bool) {
        let path = self.attached_file(pid);
        let result = if is_attached { std::fs::write(&path, "") } else { std::fs::remove_file(&path) };
        if let Err(error) = result
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: the next daemon may not restore the process: {error}", path.display());
        }
    }

    /// Returns whether the last daemon attached a process.
    pub fn is_attached(&self, pid: u32) -> bool {
        self.attached_file(pid).exists()
    }

    fn attached_file(&self, pid: u32) -> PathBuf {
        self.carried.join(format!("{pid}.attached"))
    }

    fn program_file(&self, pid: u32) -> PathBuf {
        self.carried.join(format!("{pid}.program"))
    }

    fn label_file(&self, pid: u32) -> PathBuf {
        self.carried.join(format!("{pid}.label"))
    }

    /// Removes what is noted of a process that has ended. Its live blocks are removed by who has
    /// read them.
    pub fn forget(&self, pid: u32) {
        let mapped = carried_mappings_file(&self.carried_over_file(pid));
        let noted = [self.label_file(pid), self.program_file(pid), self.hooks_file(pid), self.attached_file(pid)];
        for path in noted.into_iter().chain([mapped]) {
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::debug!("{}: {error}", path.display());
            }
        }
    }

    /// Removes the link to the journal of a process that is completely written, by its last folder.
    /// `is_served` returns whether another process with this pid is served, whose link it may be.
    pub fn forget_journal(&self, folder: &Path, is_served: impl Fn(u32) -> bool) {
        let name = folder.file_name().and_then(|name| name.to_str()?.split_once('.'));
        let Some(pid) = name.and_then(|(pid, _)| pid.parse().ok()) else { return };
        let link = chunk_journal::link(&self.carried_over_file(pid));
        if std::fs::read_link(&link).is_ok_and(|target| target == folder || !is_served(pid)) {
            let _ = std::fs::remove_file(link);
        }
    }

    /// Removes the files of all processes but these: the others have ended meanwhile.
    ///
    /// # Errors
    /// The error of the folder.
    pub fn remove_files_except(&self, pids: &[u32]) -> io::Result<()> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        for entry in std::fs::read_dir(&self.carried)?.flatten() {
            if !pids.iter().any(|pid| entry.path().file_stem().is_some_and(|name| name == pid.as_str())) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Stores the descriptors of a process.
    pub fn hold(&self, client: &Client) {
        self.store.hold(&client.held_as(), &client.area, &client.process);
    }

    /// Removes the descriptors of a process.
    pub fn release(&self, name: &Name) {
        self.store.release(name);
    }

    /// Makes the next daemon continue with the processes, if there is a store for them.
    pub fn take_over_at_end(&mut self) {
        self.takes_over = !matches!(self.store, FdStore::Nobody);
    }

    /// Returns whether the next daemon continues with the processes.
    pub fn takes_over(&self) -> bool {
        self.takes_over
    }

    /// Ends the fd store, unless the next daemon needs it.
    pub fn finish(&self) {
        if !self.takes_over {
            self.store.end();
        }
    }
}
