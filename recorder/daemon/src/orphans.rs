//! Processes that an earlier daemon recorded and did not pass on: where it was killed together with
//! its fd store, as the runtimes of containers do. They have its area mapped and write to it, and
//! nobody reads it. The library attaches once, at the start of a program, so they stay unrecorded.

use super::config::Config;
use heaptape_recorder::os::crash;
use heaptape_recorder::target::{proc, untraced};
use std::collections::HashSet;
use std::io;
use std::sync::mpsc::{Receiver, channel};

/// Maximum size of the list of mappings that is read of a process, in bytes.
const MAX_MAPS: u64 = 4 << 20;

/// The search, which reads the mappings of all processes.
#[derive(Debug)]
pub struct Orphans(Receiver<(u32, u32)>);

/// Returns whether a process has an area of a recorder mapped.
fn has_area(pid: u32) -> bool {
    use std::io::Read;
    let mut maps = String::new();
    let file = std::fs::File::open(format!("/proc/{pid}/maps"));
    let read = file.and_then(|file| file.take(MAX_MAPS).read_to_string(&mut maps));
    read.is_ok() && maps.lines().any(|line| line.contains(" rw-s ") && line.ends_with("/memfd:heaptape (deleted)"))
}

impl Orphans {
    /// Starts the search. `known` are the processes that this daemon has taken over.
    ///
    /// # Errors
    /// The error of the thread.
    pub fn search(config: &Config, known: HashSet<u32>) -> io::Result<Orphans> {
        let (socket, serves_all) = (config.socket.display().to_string(), config.serves_all);
        let (sender, found) = channel();
        crash::spawn("orphans", move || {
            let (own, own_user) = (untraced::program(std::process::id()), nix::unistd::geteuid().as_raw());
            for pid in proc::pids().filter(|pid| !known.contains(pid)) {
                let Some(uid) = proc::owner(pid).filter(|uid| serves_all || *uid == own_user) else { continue };
                // The fd store and the helpers have areas of others mapped. Other recorders have
                // other sockets.
                let is_ours = untraced::program(pid) != own
                    && has_area(pid)
                    && proc::variable(pid, &["HEAPTAPE_SOCKET"]).first().is_some_and(|of| of.as_ref() == Some(&socket));
                if is_ours && sender.send((pid, uid)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Orphans(found))
    }

    /// Returns the next process that was found, with its user.
    pub fn next(&self) -> Option<(u32, u32)> {
        self.0.try_recv().ok()
    }
}
