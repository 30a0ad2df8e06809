//! `ctl flush`: answers once everything recorded so far is on disk and in an epoch, processes that have
//! just ended included.

use super::Service;
use super::answers::{notifier, processes};
use crate::control::{Answer, WriteCheck};
use crossbeam_channel::unbounded;
use heaptape_recorder::digest::ProcessCommand;
use heaptape_recorder::os::{poll, sys};
use heaptape_recorder::session::SessionId;
use heaptape_recorder::store::writer::Callback;
use heaptape_recorder::target::proc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Calls a function when its last owner is gone.
#[derive(Debug)]
struct AtLast(Mutex<Option<Callback>>);

impl Drop for AtLast {
    fn drop(&mut self) {
        let function = self.0.get_mut().map_or(None, Option::take);
        function.into_iter().for_each(Callback::call);
    }
}

/// A flush that waits for processes that have ended.
#[derive(Debug)]
pub(super) struct PendingFlush {
    /// The processes that are not completely written.
    waits_for: Vec<SessionId>,
    /// What is to be done when all processes are written.
    _at_last: Arc<AtLast>,
}

impl Service {
    /// Writes all processes to disk, and then the epochs, which list the processes with files.
    /// Processes that have ended are completely written, too: without that, one would be in no list
    /// and in no epoch for a while.
    pub(super) fn write_all(&mut self) -> Answer {
        self.end_exited();
        let ids = self.registry.select(|_| true);
        let (done, dones) = unbounded();
        let check = WriteCheck::begin(self.epochs.disk());
        let at_last = Arc::new(AtLast(Mutex::new(Some(self.epochs.flusher(notifier(&done))))));
        for id in &ids {
            // A process that ends meanwhile drops its callback.
            let at_last = Arc::clone(&at_last);
            self.send_command(*id, ProcessCommand::Snapshot(Callback::new(move || drop(at_last))));
        }
        self.flushes.push(PendingFlush { waits_for: self.registry.ending_ids(), _at_last: at_last });
        self.complete_flushes();
        Answer::Written(dones, 1, processes(ids.len()), check)
    }

    /// Completes the flushes whose ended processes are handed to the archive.
    pub(super) fn complete_flushes(&mut self) {
        for flush in &mut self.flushes {
            flush.waits_for.retain(|id| self.registry.ending(*id).is_some());
        }
        self.flushes.retain(|flush| !flush.waits_for.is_empty());
    }

    /// Ends the recordings of all processes that have ended.
    fn end_exited(&mut self) {
        let clients = self.registry.clients();
        let Ok(ready) = poll::wait(clients.iter().map(|client| sys::fd(&client.process)), Duration::ZERO) else {
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
                let end = proc::end(client.pid(), sys::fd(&client.process));
                self.end(*id, end);
            }
        }
    }
}
