//! Rotation: epochs start and end, processes continue in other folders and modes, flight recordings
//! are kept.

use super::archive::ArchiveCommand;
use super::config::Choice;
use super::epoch::{Epoch, FLIGHTS};
use super::metrics::ProcessCounters;
use super::service::{ClosingEpoch, CurrentEpoch, Service};
use crate::access::make_folder;
use crate::clock;
use crate::crash::{self, Destination};
use crate::drain::Command;
use crate::options::Mode;
use crate::process::sanitized_name;
use crate::process_recording::ProcessCommand;
use crate::quota::Quota;
use crate::session::SessionId;
use crate::store::{Callback, Stored};
use crossbeam_channel::bounded;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

impl Service {
    /// Returns the sessions that are flight recordings.
    pub(super) fn flights(&self) -> impl Iterator<Item = SessionId> {
        self.clients.iter().filter(|client| client.choice.mode == Mode::Flight).map(|client| client.session.id)
    }

    /// Returns the epoch of a user, and starts one if there is none.
    pub(super) fn epoch(&mut self, uid: u32) -> io::Result<Arc<Epoch>> {
        if let Some(current) = self.epochs.get(&uid) {
            return Ok(Arc::clone(&current.epoch));
        }
        let own = nix::unistd::geteuid().as_raw();
        let epoch = Arc::new(Epoch::begin(&self.config.state, uid, (uid != own).then_some(uid))?);
        let _ = self.archive.send(ArchiveCommand::Begin(Arc::clone(&epoch)));
        let until = Instant::now() + self.config.epoch;
        let current = CurrentEpoch {
            epoch: Arc::clone(&epoch),
            until,
            names: HashMap::new(),
            streams: 0,
            streamed: Arc::default(),
            _crash: Destination::of(&epoch.dir),
        };
        self.epochs.insert(uid, current);
        Ok(epoch)
    }

    /// Returns the disk quota that all files of a user's processes share.
    pub(super) fn quota(&self, uid: u32) -> Arc<Quota> {
        self.disk.quota(uid, |others| self.config.keep().first(others))
    }

    /// Returns a new folder for a process: in the epoch, or among the flight recordings.
    pub(super) fn folder(&mut self, uid: u32, epoch: &Epoch, mode: Mode, pid: u32, name: &str) -> PathBuf {
        let stem = format!("{pid}.{}", sanitized_name(name.as_bytes()));
        let number = self.epochs.get_mut(&uid).map_or(1, |current| {
            let count = current.names.entry(stem.clone()).or_insert(0);
            *count += 1;
            *count
        });
        let name = if number == 1 { stem } else { format!("{stem}.{number}") };
        if mode != Mode::Flight {
            return epoch.dir.join(name);
        }
        let flights = epoch.dir.with_file_name(FLIGHTS);
        let _ = make_folder(&flights, epoch.reader);
        // The epoch's name distinguishes it from those of other epochs.
        let of = epoch.dir.file_name().unwrap_or_default().to_string_lossy();
        flights.join(format!("{name}@{of}+1"))
    }

    /// Handles a segment whose last byte is written.
    pub(super) fn stored(&mut self, mut stored: Stored) {
        let id = stored.session;
        self.counters.errors += u64::from(stored.error.is_some());
        let is_pending_in = |closing: &ClosingEpoch| {
            closing.pending.get(&id).is_some_and(|segment| stored.is_over || stored.segment == *segment)
        };
        if let Some(index) = self.closing.iter().position(is_pending_in) {
            let closing = &mut self.closing[index];
            closing.pending.remove(&id);
            let ending = self.ending.get(&id).filter(|_| stored.is_over);
            let label = ending.map(|ending| ending.label.clone());
            let exit = ending.map(|ending| ending.exit);
            let running =
                || self.clients.iter().find(|client| client.session.id == id).map(|client| client.label.clone());
            let label = label.or_else(running).unwrap_or_default();
            let epoch = Arc::clone(&closing.epoch);
            if stored.is_over {
                self.process_written(&epoch, &mut stored);
            }
            let _ = self.archive.send(ArchiveCommand::SegmentStored(epoch, stored, label, exit));
            self.seal_closed();
        } else if let Some(epoch) = self.ending.get(&id).map(|ending| Arc::clone(&ending.epoch)) {
            let label = self.ending.get(&id).map(|ending| ending.label.clone()).unwrap_or_default();
            let exit = self.ending.get(&id).filter(|_| stored.is_over).map(|ending| ending.exit);
            if stored.is_over {
                self.process_written(&epoch, &mut stored);
            }
            let _ = self.archive.send(ArchiveCommand::SegmentStored(epoch, stored, label, exit));
        } else if let Some(client) = self.clients.iter().find(|client| client.session.id == id) {
            // A segment that ended by a change of mode may still belong to the old epoch.
            let is_in = |closing: &&ClosingEpoch| stored.segment.parent() == Some(&closing.epoch.dir);
            let old = self.closing.iter().find(is_in).map(|closing| Arc::clone(&closing.epoch));
            let epoch = old.unwrap_or_else(|| Arc::clone(&client.epoch));
            let _ = self.archive.send(ArchiveCommand::SegmentStored(epoch, stored, client.label.clone(), None));
        }
    }

    /// Handles a process that has ended and is written.
    pub(super) fn process_written(&mut self, epoch: &Arc<Epoch>, stored: &mut Stored) {
        let ending = self.ending.remove(&stored.session);
        if let Some(ending) = &ending {
            let now = ending.stats.now();
            self.counters.recorded += now.recorded;
            self.counters.lost += now.lost;
            self.counters.sampled_out += now.sampled_out;
            self.past.add(ProcessCounters { name: &ending.name, label: &ending.label, now, runs: false });
        }
        if ending.is_some_and(|ending| ending.keeps) && !stored.segments.is_empty() {
            self.counters.kept += 1;
            tracing::info!("the flight recording of a process that exited is kept in {}", epoch.dir.display());
            let command = ArchiveCommand::Adopt(
                Arc::clone(epoch),
                stored.session,
                (stored.segments.clone(), stored.symbols.take()),
                Callback::new(|| {}),
            );
            let _ = self.archive.send(command);
        } else {
            stored.segments.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        }
    }

    pub(super) fn seal_closed(&mut self) {
        for index in (0..self.closing.len()).rev() {
            if self.closing[index].pending.is_empty() {
                let ClosingEpoch { epoch, on_done, .. } = self.closing.remove(index);
                let done = Callback::new(move || on_done.into_iter().for_each(Callback::call));
                let _ = self.archive.send(ArchiveCommand::Seal(epoch, done));
            }
        }
    }

    /// Ends the epochs of all users; `then` is called for each of them.
    pub(super) fn rotate_all(&mut self, on_done: &mut dyn FnMut(u32) -> Callback) {
        let users: Vec<u32> = self.epochs.keys().copied().collect();
        for uid in users {
            let on_done = on_done(uid);
            self.rotate(uid, on_done);
        }
    }

    /// Returns the number of users with an epoch.
    pub(super) fn users(&self) -> usize {
        self.epochs.len()
    }

    /// Ends the epoch of a user. The next one starts with the processes that run.
    pub(super) fn rotate(&mut self, uid: u32, on_done: Callback) {
        let Some(CurrentEpoch { epoch: old, .. }) = self.epochs.remove(&uid) else { return on_done.call() };
        self.counters.epochs += 1;
        let mut pending: HashMap<SessionId, PathBuf> = self
            .ending
            .iter()
            .filter(|(_, ending)| ending.epoch == old)
            .map(|(id, ending)| (*id, ending.segment.clone()))
            .collect();
        let runs = self.clients.iter().any(|client| client.uid == uid);
        let new =
            if runs { self.epoch(uid).map_err(|error| tracing::error!("no new epoch: {error}")).ok() } else { None };
        if let Some(new) = new {
            for index in 0..self.clients.len() {
                if self.clients[index].uid == uid {
                    let session = Arc::clone(&self.clients[index].session);
                    self.move_to_epoch(index, &new);
                    if self.clients[index].choice.mode != Mode::Flight {
                        pending.insert(session.id, session.folder.clone());
                    }
                }
            }
        }
        self.closing.push(ClosingEpoch { epoch: old, pending, on_done: vec![on_done] });
        self.seal_closed();
    }

    pub(super) fn move_to_epoch(&mut self, index: usize, epoch: &Arc<Epoch>) {
        self.clients[index].epoch = Arc::clone(epoch);
        let choice = self.clients[index].choice;
        if choice.mode == Mode::Flight {
            let client = &self.clients[index];
            let command = ArchiveCommand::Process(Arc::clone(epoch), client.session.id, client.session.info());
            let _ = self.archive.send(command);
        } else {
            self.rotate_process(index, choice, Callback::new(|| {}));
        }
    }

    /// Continues a process in another folder, in the mode of the choice.
    pub(super) fn rotate_process(&mut self, index: usize, choice: Choice, on_done: Callback) {
        let (uid, epoch) = (self.clients[index].uid, Arc::clone(&self.clients[index].epoch));
        let (pid, name) = (self.clients[index].pid(), self.clients[index].name.clone());
        let folder = self.folder(uid, &epoch, choice.mode, pid, &name);
        let quota = self.quota(uid);
        let client = &mut self.clients[index];
        let mut options = choice.options(&self.config, &client.label);
        (options.reader, options.quota) = (epoch.reader, Some(quota));
        if choice.sampling == client.choice.sampling {
            options.sample_bytes = client.interval;
        } else {
            client.interval = choice.interval();
        }
        // A profile continues to count from the attach; a trace starts anew.
        let starts = choice.mode.has_events().then(|| (self.clock.now(), clock::unix_ns()));
        let session = Arc::new(client.session.next_segment(folder, Arc::new(options), starts));
        client.choice = choice;
        client.session = Arc::clone(&session);
        let _ = self.archive.send(ArchiveCommand::Process(epoch, session.id, session.info()));
        let _ = self.stages.commands.send(Command::Process(session.id, ProcessCommand::Rotate(session, on_done)));
    }

    /// Changes what is kept of a running process.
    pub(super) fn change(&mut self, id: SessionId, choice: Choice, on_done: Callback) {
        let Some(index) = self.clients.iter().position(|client| client.session.id == id) else { return on_done.call() };
        self.fd_store.release(&self.clients[index].held_as());
        self.rotate_process(index, choice, on_done);
        let client = &self.clients[index];
        client.session.options.overflow.set(client.session.mapping.header());
        client.command();
        self.store_for_next_daemon(index);
    }

    /// Sends a message to the digest of a process.
    pub(super) fn send_command(&self, id: SessionId, process_command: ProcessCommand) {
        let _ = self.stages.commands.send(Command::Process(id, process_command));
    }

    /// Makes the archive write everything.
    pub(super) fn flush(&self, on_done: Callback) {
        let _ = self.archive.send(ArchiveCommand::Flush(on_done));
    }

    /// Keeps the events of a flight recording.
    pub(super) fn keep_flight(&mut self, id: SessionId, why: &str, on_done: Callback) {
        let Some(client) = self.clients.iter_mut().find(|client| client.session.id == id) else {
            return on_done.call();
        };
        client.kept = Some(Instant::now());
        self.counters.kept += 1;
        tracing::info!("the flight recording of {} ({}) is kept: {why}", client.name.escape_debug(), client.pid());
        let (archive, epoch) = (self.archive.clone(), Arc::clone(&client.epoch));
        let (reply, folders) = bounded(1);
        // The reply is sent by the stage that has written the files.
        let adopt = move || {
            if let Ok(kept) = folders.recv() {
                let _ = archive.send(ArchiveCommand::Adopt(epoch, id, kept, on_done));
            }
        };
        if crash::spawn("keep", adopt).is_ok() {
            self.send_command(id, ProcessCommand::KeepFlight(reply));
        }
    }
}
