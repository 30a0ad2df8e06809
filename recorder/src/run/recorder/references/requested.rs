//! What commands ask while a process of `record` or `attach` runs: to write what is known of it, and
//! with `holds --live` also which block holds which.

use super::super::Recorder;
use super::ask::{Message, Progress};
use super::living::take_references;
use crate::digest::process::ProcessCommand;
use crate::os::{crash, sys};
use crate::pipeline::drain::Command;
use crate::store::writer::Callback;
use crossbeam_channel::bounded;
use nix::unistd::geteuid;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the command waits for the files to be written: a full disk may never take them.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

impl Recorder {
    /// Answers a command about a process that runs on, if its user may read the recording: our own, or
    /// root. Others, also recorded processes that have changed their user, get no answer.
    pub(in super::super) fn asked(&mut self, pid: u32, of_references: bool, uid: u32, socket: OwnedFd) {
        // The answer is for somebody who reads the recording: that has to name the process.
        if self.dirty {
            self.write_or_note();
        }
        // After an exec, the sessions of the programs before may still be here.
        let running = self.running.iter().rfind(|running| running.session.process.pid == pid);
        let Some(running) = running.filter(|_| [0, geteuid().as_raw()].contains(&uid)) else { return };
        // It says nothing more, but may have gone: we were stopped, and it did not wait.
        if sys::is_readable(sys::fd(&socket)) {
            return;
        }
        let (dir, folder) = (absolute(&self.dir), absolute(&running.session.folder));
        let message = Message { dir, folder, error: None, progress: Progress::Begun };
        self.readings.retain(|reading| !reading.is_finished());
        if of_references && !self.readings.is_empty() {
            let error = Some("they are being read already".into());
            return reply(&socket, &Message { error, progress: Progress::Busy, ..message });
        }
        // From here on the command knows that it has found the right one, and waits.
        reply(&socket, &message);
        let done = Message { progress: Progress::Done, ..message };
        let (session, commands) = (Arc::clone(&running.session), self.stages.commands.clone());
        if !of_references {
            let write = ProcessCommand::Snapshot(Callback::new(move || reply(&socket, &done)));
            let _ = commands.send(Command::ProcessSettled(session.id, write));
            return;
        }
        let reading = crash::spawn("reads references", move || {
            let result = take_references(&session, &commands);
            // The reader needs the events up to here.
            let (closed, written) = bounded::<()>(0);
            let write = ProcessCommand::Snapshot(Callback::new(move || drop(closed)));
            if result.is_ok() && commands.send(Command::ProcessSettled(session.id, write)).is_ok() {
                let _ = written.recv_timeout(WRITE_LIMIT);
            }
            reply(&socket, &Message { error: result.as_ref().err().cloned(), ..done });
            result
        });
        self.readings.extend(reading.ok());
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn reply(socket: &OwnedFd, message: &Message) {
    let _ = serde_json::to_vec(message).map(|bytes| sys::send_with(sys::fd(socket), &bytes, None));
}
