//! `ctl flush`: everything that was recorded is on disk, and belongs to an epoch, also of processes
//! that have just ended.

use super::Service;
use super::answers::{notifier, processes};
use crate::daemon::control::Answer;
use crate::process;
use crate::process_recording::ProcessCommand;
use crate::readiness;
use crate::session::SessionId;
use crate::store::Callback;
use crate::sys;
use crossbeam_channel::unbounded;
use std::time::Duration;

/// A flush that waits for processes that have ended.
#[derive(Debug)]
pub struct PendingFlush {
    /// The processes that are not completely written.
    waits_for: Vec<SessionId>,
    on_done: Callback,
}

impl Service {
    /// Writes all processes to disk. Those that have ended are completely written, too: without
    /// that, a process would be in no list and in no epoch for a while.
    pub(super) fn write_all(&mut self) -> Answer {
        self.end_exited();
        let ids = self.registry.select(|_| true);
        let (done, dones) = unbounded();
        ids.iter().for_each(|id| self.send_command(*id, ProcessCommand::Snapshot(notifier(&done))));
        let waits_for = self.registry.ending_ids();
        self.flushes.push(PendingFlush { waits_for, on_done: notifier(&done) });
        self.complete_flushes();
        Answer::When(dones, ids.len() + 1, processes(ids.len()))
    }

    /// Makes the archive write for each flush whose ended processes are handed to it.
    pub(super) fn complete_flushes(&mut self) {
        for mut flush in std::mem::take(&mut self.flushes) {
            flush.waits_for.retain(|id| self.registry.ending(*id).is_some());
            if flush.waits_for.is_empty() {
                self.epochs.flush(flush.on_done);
            } else {
                self.flushes.push(flush);
            }
        }
    }

    /// Ends the recordings of all processes that have ended.
    fn end_exited(&mut self) {
        let clients = self.registry.clients();
        let Ok(ready) = readiness::wait(clients.iter().map(|client| sys::fd(&client.process)), Duration::ZERO) else {
            return;
        };
        let ended = clients.iter().zip(ready).filter(|(_, ready)| *ready).map(|(client, _)| client.session.id);
        let ended: Vec<SessionId> = ended.collect();
        self.end_all(&ended);
    }

    /// Ends the recordings of processes that have ended.
    pub(super) fn end_all(&mut self, ended: &[SessionId]) {
        for id in ended {
            if let Some(client) = self.registry.client(*id) {
                let end = process::end(client.pid(), sys::fd(&client.process));
                self.end(*id, end);
            }
        }
    }
}
